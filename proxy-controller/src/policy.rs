//! What an EtcdUpstream, the grants and the claims permit an EtcdProxy. Pure: the webhook asks before an object is stored, the
//! reconciler whenever it looks at one, since permissions are taken back, too.
//!
//! **Invariant:** nothing that a tenant writes is believed because the webhook let it pass; the reconciler acts on what
//! [`check`] says now, and the claim's own Txn has the last word on a prefix.

mod bounds;
mod clients;
mod placement;
mod prefix;
pub mod quantity;

use std::{collections::HashSet, fmt};

use kube::ResourceExt as _;

pub use self::{
    bounds::{limits, replicas, resources, tls},
    clients::{ClientTargets, Target, client_targets, consents},
    prefix::{HeldPrefix, adopts, allocated_prefix, wanted_prefix},
};
use crate::api::{EtcdProxy, EtcdProxyGrant, EtcdUpstream, Mode};

/// What is known when an EtcdProxy is judged.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The EtcdUpstream it refers to; nothing if there is none of that name.
    pub upstream: Option<&'a EtcdUpstream>,
    /// All grants of the namespaces it names; others do no harm.
    pub grants: &'a [&'a EtcdProxyGrant],
    /// The claimed prefixes of that upstream; nothing if they are not known, and then the claim itself decides.
    pub claims: Option<&'a [HeldPrefix]>,
    /// Where the controller and the proxies run.
    pub controller_namespace: &'a str,
}

/// One thing that is not permitted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Refusal {
    /// The field, as the API server names fields: `spec.clients[1].namespace`.
    pub field: String,
    /// For conditions and metrics.
    pub reason: Reason,
    /// What kind of error of a field it is.
    pub fault: Fault,
    /// What is wrong, and what to do.
    pub message: String,
    /// The one client that it concerns; nothing if it concerns the whole object.
    pub client: Option<String>,
}

/// Why something is not permitted: the `reason` of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// There is no EtcdUpstream of that name.
    UpstreamNotFound,
    /// The EtcdUpstream contradicts itself.
    UpstreamInvalid,
    /// The EtcdUpstream does not list the namespace.
    NamespaceNotAllowed,
    /// The EtcdUpstream does not allow the wished prefix.
    PrefixNotAllowed,
    /// Somebody else holds the prefix, or one that overlaps it.
    PrefixTaken,
    /// The prefix holds what somebody left, and the operator has not given it to this object.
    PrefixHoldsData,
    /// A limit is higher than permitted.
    LimitsNotAllowed,
    /// More replicas than permitted.
    ReplicasNotAllowed,
    /// More compute resources than permitted.
    ResourcesNotAllowed,
    /// Certificates of a shorter life than permitted.
    ValidityNotAllowed,
    /// A placement that is not permitted.
    PlacementNotAllowed,
    /// A sidecar would hand the upstream's credentials to the tenant.
    UpstreamAuthRequired,
    /// Clients where there are none.
    ClientsNotAllowed,
    /// Another namespace has not consented.
    GrantMissing,
    /// Nothing is ever written there.
    TargetNotAllowed,
    /// Two clients would be written to one object.
    DuplicateTarget,
}

/// The kinds of errors of fields (`apimachinery/pkg/util/validation/field/errors.go`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The value can never be right.
    Invalid(Value),
    /// The value names what does not exist.
    NotFound(Value),
    /// The value stands elsewhere already.
    Duplicate(Value),
    /// The value might be right, and is not permitted.
    Forbidden,
}

/// A value as the API server prints it in errors: strings in quotes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Value(String);

/// Everything that is not permitted, in the order of the fields. Empty: all of it is.
#[must_use]
pub fn check(proxy: &EtcdProxy, facts: &Facts<'_>) -> Vec<Refusal> {
    let reference = proxy.spec.upstream_ref.name.as_str();
    let field = "spec.upstreamRef";
    let Some(upstream) = facts.upstream else {
        let message = "there is no EtcdUpstream of this name";
        return vec![Refusal::new(field, Reason::UpstreamNotFound, Fault::NotFound(Value::text(reference)), message)];
    };
    // Who may not use an upstream learns nothing more about it.
    let namespace = proxy.namespace().unwrap_or_default();
    if let Err(refusal) = namespace_allowed(&namespace, upstream, facts.controller_namespace) {
        return vec![refusal];
    }
    let mut refusals = Vec::new();
    refusals.extend(upstream_sound(upstream));
    refusals.extend(mode(proxy, upstream));
    refusals.extend(bounds::check(proxy, upstream));
    refusals.extend(placement::check(proxy, upstream));
    refusals.extend(prefix::check(proxy, upstream, facts.claims));
    if proxy.spec.mode == Mode::Deployment {
        refusals.extend(clients::check(proxy, facts.grants, facts.controller_namespace));
    }
    let mut seen = HashSet::new();
    refusals.retain(|refusal| seen.insert(refusal.clone()));
    refusals
}

fn namespace_allowed(namespace: &str, upstream: &EtcdUpstream, controller: &str) -> Result<(), Refusal> {
    let refuse =
        |message: String| Err(Refusal::new("spec.upstreamRef", Reason::NamespaceNotAllowed, Fault::Forbidden, message));
    if namespace == controller {
        return refuse(format!(
            "namespace {namespace} is the controller's own: what is written for tenants would lie beside the upstream's credentials"
        ));
    }
    if upstream.spec.allowed_namespaces.iter().any(|allowed| allowed == "*" || allowed == namespace) {
        return Ok(());
    }
    refuse(format!("EtcdUpstream {} does not list namespace {namespace} in its allowedNamespaces", upstream.name_any()))
}

/// The operator's own contradictions: nothing is provided on such an upstream.
fn upstream_sound(upstream: &EtcdUpstream) -> Option<Refusal> {
    let (root, meta) = (&upstream.spec.prefix_root, &upstream.spec.meta_prefix);
    (root.starts_with(meta.as_str()) || meta.starts_with(root.as_str())).then(|| {
        let message = format!(
            "EtcdUpstream {} has a prefixRoot, {root}, that overlaps its metaPrefix, {meta}: the operator must separate them",
            upstream.name_any()
        );
        Refusal::new("spec.upstreamRef", Reason::UpstreamInvalid, Fault::Forbidden, message)
    })
}

/// A sidecar has the upstream's credentials beside the tenant; and what is about pods of ours means nothing for it.
fn mode(proxy: &EtcdProxy, upstream: &EtcdUpstream) -> Vec<Refusal> {
    let spec = &proxy.spec;
    if spec.mode != Mode::Sidecar {
        return Vec::new();
    }
    let mut refusals = Vec::new();
    if !upstream.spec.allow_sidecar_credentials {
        let message = format!(
            "mode Sidecar would put a credential for the whole etcd into this namespace, which EtcdUpstream {} does not allow (allowSidecarCredentials); use mode Deployment",
            upstream.name_any()
        );
        refusals.push(Refusal::new("spec.mode", Reason::UpstreamAuthRequired, Fault::Forbidden, message));
    }
    for (present, field, reason) in [
        (spec.replicas.is_some(), "spec.replicas", Reason::ReplicasNotAllowed),
        (spec.resources.is_some(), "spec.resources", Reason::ResourcesNotAllowed),
        (spec.placement.is_some(), "spec.placement", Reason::PlacementNotAllowed),
    ] {
        if present {
            refusals.push(Refusal::forbidden(field, reason, "has no meaning in mode Sidecar: the pods are yours"));
        }
    }
    if !spec.clients.is_empty() {
        let message = "has no meaning in mode Sidecar: the sidecar serves its own pod, without certificates";
        refusals.push(Refusal::forbidden("spec.clients", Reason::ClientsNotAllowed, message));
    }
    refusals
}

// === impl Refusal ===

impl Refusal {
    fn new(field: impl Into<String>, reason: Reason, fault: Fault, message: impl Into<String>) -> Self {
        Self { field: field.into(), reason, fault, message: message.into(), client: None }
    }

    fn forbidden(field: impl Into<String>, reason: Reason, message: impl Into<String>) -> Self {
        Self::new(field, reason, Fault::Forbidden, message)
    }

    fn of_client(self, client: &str) -> Self {
        Self { client: Some(client.to_owned()), ..self }
    }

    /// The error without the field, as the API server writes it (`ErrorBody`).
    pub fn body(&self) -> String {
        let Self { fault, message, .. } = self;
        match fault {
            Fault::Invalid(value) => format!("Invalid value: {value}: {message}"),
            Fault::NotFound(value) => format!("Not found: {value}: {message}"),
            Fault::Duplicate(value) => format!("Duplicate value: {value}: {message}"),
            Fault::Forbidden => format!("Forbidden: {message}"),
        }
    }
}

/// The error of a field, as the API server writes it: `spec.prefix: Forbidden: …`.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

// === impl Reason ===

impl Reason {
    /// Whether it is about how much of something there may be: more can be cut to that.
    pub fn is_bound(self) -> bool {
        matches!(
            self,
            Self::LimitsNotAllowed | Self::ReplicasNotAllowed | Self::ResourcesNotAllowed | Self::ValidityNotAllowed
        )
    }

    /// The reason of a condition.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::UpstreamNotFound => "UpstreamNotFound",
            Self::UpstreamInvalid => "UpstreamInvalid",
            Self::NamespaceNotAllowed => "NamespaceNotAllowed",
            Self::PrefixNotAllowed => "PrefixNotAllowed",
            Self::PrefixTaken => "PrefixTaken",
            Self::PrefixHoldsData => "PrefixHoldsData",
            Self::LimitsNotAllowed => "LimitsNotAllowed",
            Self::ReplicasNotAllowed => "ReplicasNotAllowed",
            Self::ResourcesNotAllowed => "ResourcesNotAllowed",
            Self::ValidityNotAllowed => "ValidityNotAllowed",
            Self::PlacementNotAllowed => "PlacementNotAllowed",
            Self::UpstreamAuthRequired => "UpstreamAuthRequired",
            Self::ClientsNotAllowed => "ClientsNotAllowed",
            Self::GrantMissing => "GrantMissing",
            Self::TargetNotAllowed => "TargetNotAllowed",
            Self::DuplicateTarget => "DuplicateTarget",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// === impl Fault ===

impl Fault {
    /// The type of the cause in an API server's answer.
    pub fn cause(&self) -> &'static str {
        match self {
            Self::Invalid(_) => "FieldValueInvalid",
            Self::NotFound(_) => "FieldValueNotFound",
            Self::Duplicate(_) => "FieldValueDuplicate",
            Self::Forbidden => "FieldValueForbidden",
        }
    }
}

// === impl Value ===

impl Value {
    fn text(text: &str) -> Self {
        Self(format!("{text:?}"))
    }

    fn number(number: impl fmt::Display) -> Self {
        Self(number.to_string())
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests;
