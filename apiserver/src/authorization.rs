//! Authorisation: may this user do that?
//!
//! An aggregated server does not decide itself: it asks the cluster with SubjectAccessReviews
//! ([`DelegatedAuthorizer`](delegated::DelegatedAuthorizer)), after the few answers that it knows alone: members of
//! `system:masters`, and the paths of health checks (k8s.io/apiserver `pkg/server/options/authorization.go`).
//!
//! An error is never a permission, and never remembered.

pub mod delegated;

use std::sync::Arc;

use async_trait::async_trait;

use crate::request::{RequestContext, RequestInfo, UserInfo};

/// Whom Kubernetes lets do anything (k8s.io/apiserver `pkg/authentication/user`, `SystemPrivilegedGroup`).
pub const SYSTEM_MASTERS: &str = "system:masters";

/// What is asked of an authorizer: who, does what, to which resource or path.
#[derive(Clone, Copy, Debug)]
pub struct AuthorizationAttributes<'a> {
    /// Who asks.
    pub user: &'a UserInfo,
    /// The verb, which need not be that of [`info`](Self::info): an update that would create asks for `create`.
    pub verb: &'a str,
    /// The resource or path.
    pub info: &'a RequestInfo,
}

/// An authorizer's answer.
#[derive(Clone, Debug)]
pub enum Decision {
    /// The request may go on.
    Allow,
    /// The request is refused, whatever further authorizers would say.
    Deny {
        /// Why, for the user; may be empty.
        reason: String,
    },
    /// This authorizer does not allow it; another may. When all have spoken, this is a refusal.
    NoOpinion {
        /// Why, for the user; may be empty.
        reason: String,
    },
    /// It could not be found out. The request is refused, and asking again may help.
    Error(AuthorizationError),
}

/// Why it could not be found out whether a request is allowed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct AuthorizationError {
    /// What went wrong.
    pub message: String,
}

/// Decides whether requests are allowed.
#[async_trait]
pub trait Authorizer: Send + Sync + 'static {
    /// Decides about one request.
    async fn authorize(&self, attributes: &AuthorizationAttributes<'_>) -> Decision;
}

/// Asks one authorizer after the other: the first that allows or denies is right.
pub struct Union {
    authorizers: Vec<Arc<dyn Authorizer>>,
}

/// Allows everything to the members of some groups.
pub struct PrivilegedGroups {
    groups: Vec<String>,
}

/// Allows paths that name no resource, exactly or by a trailing `*`.
pub struct AlwaysAllowPaths {
    exact: Vec<String>,
    prefixes: Vec<String>,
}

/// A path of `--authorization-always-allow-paths` with a `*` that is not its last character.
#[derive(Debug, thiserror::Error)]
#[error("only a trailing * is allowed in {path:?} of --authorization-always-allow-paths")]
pub struct PathPatternError {
    path: String,
}

// === impl AuthorizationAttributes ===

impl<'a> AuthorizationAttributes<'a> {
    /// What the request itself asks for.
    pub fn of(context: &'a RequestContext) -> Self {
        Self { user: &context.user, verb: &context.info.verb, info: &context.info }
    }

    /// The same with another verb.
    pub fn with_verb(self, verb: &'a str) -> Self {
        Self { verb, ..self }
    }

    /// What the user cannot do, in Kubernetes' words, for a 403's message
    /// (k8s.io/apiserver `pkg/endpoints/handlers/responsewriters/errors.go`).
    pub fn refusal(&self, reason: &str) -> String {
        let Self { user: UserInfo { name, .. }, verb, info } = self;
        let mut text = if info.is_resource {
            let resource = match info.subresource.as_str() {
                "" => info.resource.clone(),
                subresource => format!("{}/{subresource}", info.resource),
            };
            let scope = match info.namespace.as_str() {
                "" => "at the cluster scope".to_owned(),
                namespace => format!("in the namespace {namespace:?}"),
            };
            format!("User {name:?} cannot {verb} resource {resource:?} in API group {:?} {scope}", info.group)
        } else {
            format!("User {name:?} cannot {verb} path {:?}", info.path)
        };
        text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        if !reason.is_empty() {
            text.push_str(": ");
            text.push_str(reason);
        }
        text
    }
}

// === impl Decision ===

impl Decision {
    /// Whether the request may go on.
    pub fn is_allow(&self) -> bool {
        matches!(self, Decision::Allow)
    }
}

// === impl Union ===

impl Union {
    /// Asks these in this order.
    pub fn new(authorizers: Vec<Arc<dyn Authorizer>>) -> Self {
        Self { authorizers }
    }
}

#[async_trait]
impl Authorizer for Union {
    async fn authorize(&self, attributes: &AuthorizationAttributes<'_>) -> Decision {
        let mut reasons: Vec<String> = Vec::new();
        let mut error = None;
        for authorizer in &self.authorizers {
            match authorizer.authorize(attributes).await {
                decision @ (Decision::Allow | Decision::Deny { .. }) => return decision,
                Decision::NoOpinion { reason } if reason.is_empty() => {}
                Decision::NoOpinion { reason } => reasons.push(reason),
                Decision::Error(e) => error = Some(e),
            }
        }
        error.map_or_else(|| Decision::NoOpinion { reason: reasons.join("\n") }, Decision::Error)
    }
}

// === impl PrivilegedGroups ===

impl PrivilegedGroups {
    /// Allows everything to members of these groups.
    pub fn new(groups: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { groups: groups.into_iter().map(Into::into).collect() }
    }
}

#[async_trait]
impl Authorizer for PrivilegedGroups {
    async fn authorize(&self, attributes: &AuthorizationAttributes<'_>) -> Decision {
        if attributes.user.groups.iter().any(|group| self.groups.contains(group)) {
            Decision::Allow
        } else {
            Decision::NoOpinion { reason: String::new() }
        }
    }
}

// === impl AlwaysAllowPaths ===

impl AlwaysAllowPaths {
    /// Allows these paths; a leading `/` may be left out.
    ///
    /// # Errors
    /// When a pattern has a `*` elsewhere than at its end.
    pub fn new(paths: &[String]) -> Result<Self, PathPatternError> {
        let (mut exact, mut prefixes) = (Vec::new(), Vec::new());
        for path in paths {
            let pattern = path.strip_prefix('/').unwrap_or(path);
            match pattern.strip_suffix('*') {
                Some(prefix) if !prefix.contains('*') => prefixes.push(prefix.to_owned()),
                None if !pattern.contains('*') => exact.push(pattern.to_owned()),
                _ => return Err(PathPatternError { path: path.clone() }),
            }
        }
        Ok(Self { exact, prefixes })
    }
}

#[async_trait]
impl Authorizer for AlwaysAllowPaths {
    async fn authorize(&self, attributes: &AuthorizationAttributes<'_>) -> Decision {
        let info = attributes.info;
        let path = info.path.strip_prefix('/').unwrap_or(&info.path);
        let listed =
            || self.exact.iter().any(|p| p == path) || self.prefixes.iter().any(|p| path.starts_with(p.as_str()));
        if !info.is_resource && listed() { Decision::Allow } else { Decision::NoOpinion { reason: String::new() } }
    }
}

#[cfg(test)]
mod tests;
