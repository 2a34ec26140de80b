//! Authentication: who asks?
//!
//! An aggregated server believes, in this order: the front proxy's headers, when they come with a certificate that the
//! *request-header* CA signed for an allowed name; a client certificate of the *client* CA; a bearer token, of which it asks
//! the cluster by TokenReview; and else takes the request for anonymous. A credential that is presented and wrong is 401,
//! never anonymous (k8s.io/apiserver `pkg/authentication/authenticatorfactory/delegating.go`).
//!
//! The TLS layer only proves that the peer holds the key of the certificate it sent. What the certificate is worth is found
//! out here, at each request, against each CA by itself: so a certificate of the client CA never speaks for others, and a
//! CA that is replaced takes effect on open connections too.

pub mod certificate;
pub mod cluster;
pub mod request_header;
pub mod token;
pub mod trust;

use std::sync::Arc;

use async_trait::async_trait;
use http::HeaderMap;

pub use self::{
    certificate::Peer,
    request_header::RequestHeaderNames,
    token::TokenReviewer,
    trust::{CaBundle, RequestHeaderTrust, Trust},
};
use crate::request::{UserInfo, Warnings};

/// The user of requests without credentials.
pub const ANONYMOUS: &str = "system:anonymous";
/// The group of requests without credentials.
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group of everybody else.
pub const AUTHENTICATED: &str = "system:authenticated";

/// What a request shows of who sent it.
pub struct Evidence<'a> {
    /// The other end of the connection.
    pub peer: &'a Peer,
    /// The request's headers.
    pub headers: &'a HeaderMap,
    /// Where to tell the client of small mistakes.
    pub warnings: &'a Warnings,
}

/// Why credentials were not accepted. The client learns `Unauthorized` and no more; this is for the log.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}", self.messages.join("; "))]
pub struct AuthenticationError {
    messages: Vec<String>,
}

/// Finds out who asks.
#[async_trait]
pub trait Authenticator: Send + Sync + 'static {
    /// The user, or `None` if the request has no credentials that this authenticator knows.
    ///
    /// # Errors
    /// When there are credentials, and they are wrong or cannot be checked.
    async fn authenticate(&self, evidence: &Evidence<'_>) -> Result<Option<UserInfo>, AuthenticationError>;

    /// Headers that may carry an identity, besides `Authorization` and the usual `X-Remote-…`: they are removed from
    /// requests once these are authenticated.
    fn identity_headers(&self) -> Option<Arc<RequestHeaderTrust>> {
        None
    }
}

/// What an aggregated server believes.
pub struct DelegatingAuthenticator {
    trust: Arc<Trust>,
    tokens: Option<TokenReviewer>,
    anonymous: bool,
}

// === impl AuthenticationError ===

impl AuthenticationError {
    /// An error with this text.
    pub fn new(message: impl Into<String>) -> Self {
        Self { messages: vec![message.into()] }
    }
}

// === impl DelegatingAuthenticator ===

impl DelegatingAuthenticator {
    /// Believes certificates of these CAs, tokens when `tokens` vouches for them, and with `anonymous` lets requests
    /// without credentials pass to authorisation.
    pub fn new(trust: Arc<Trust>, tokens: Option<TokenReviewer>, anonymous: bool) -> Self {
        Self { trust, tokens, anonymous }
    }
}

#[async_trait]
impl Authenticator for DelegatingAuthenticator {
    async fn authenticate(&self, evidence: &Evidence<'_>) -> Result<Option<UserInfo>, AuthenticationError> {
        let mut errors = Vec::new();
        if let Some(front_proxy) = self.trust.request_header() {
            match request_header::authenticate(&front_proxy, evidence) {
                Ok(Some(user)) => return Ok(Some(authenticated(user))),
                Ok(None) => {}
                Err(error) => errors.extend(error.messages),
            }
        }
        if let Some(ca) = self.trust.client_ca() {
            match evidence.peer.user(&ca) {
                Ok(Some(user)) => return Ok(Some(authenticated(user))),
                Ok(None) => {}
                Err(error) => errors.extend(error.messages),
            }
        }
        if let Some(tokens) = &self.tokens
            && let Some(token) = token::bearer_token(evidence)
        {
            match tokens.review(token).await {
                Ok(user) => return Ok(Some(authenticated(user))),
                Err(error) => errors.extend(error.messages),
            }
        }
        if !errors.is_empty() {
            return Err(AuthenticationError { messages: errors });
        }
        Ok(self.anonymous.then(|| UserInfo {
            name: ANONYMOUS.to_owned(),
            groups: vec![UNAUTHENTICATED.to_owned()],
            ..UserInfo::default()
        }))
    }

    fn identity_headers(&self) -> Option<Arc<RequestHeaderTrust>> {
        self.trust.request_header()
    }
}

/// Adds the group of all authenticated users (k8s.io/apiserver `pkg/authentication/group`).
fn authenticated(mut user: UserInfo) -> UserInfo {
    let settled = |group: &String| group == AUTHENTICATED || group == UNAUTHENTICATED;
    if user.name != ANONYMOUS && !user.groups.iter().any(settled) {
        user.groups.push(AUTHENTICATED.to_owned());
    }
    user
}

/// Whether a user stands for nobody in particular.
pub fn is_anonymous(user: &UserInfo) -> bool {
    user.name == ANONYMOUS || user.groups.iter().any(|group| group == UNAUTHENTICATED)
}

#[cfg(test)]
mod tests;
