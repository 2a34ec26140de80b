//! What goes wrong at a shared etcd, in words that a condition can show.

use std::time::Duration;

use etcd_proxy::{meta::MetaError, prefix::Prefix, tls::TlsError, upstream::EndpointError};
use tonic::Code;

/// Settings that no connection can be made from.
#[derive(Debug, thiserror::Error)]
pub enum SharedConfigError {
    /// There is no endpoint.
    #[error("no endpoint is named")]
    NoEndpoint,
    /// An endpoint that cannot be understood.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// An endpoint that speaks TLS, and nothing to verify it by.
    #[error("endpoint {0} speaks TLS, and no CA certificate is given to verify it by")]
    NoCa(String),
    /// Certificates that cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
}

/// Why something could not be done at a shared etcd.
#[derive(Debug, thiserror::Error)]
pub enum SharedError {
    /// No endpoint takes requests.
    #[error("cannot {doing}: {reasons}")]
    Unreachable {
        /// What was to be done.
        doing: &'static str,
        /// Each endpoint and what is wrong with it.
        reasons: String,
    },
    /// No answer in time. What was asked for may have been done all the same.
    #[error("cannot {doing}: no answer from {endpoints} within {limit:?}")]
    Timeout {
        /// What was to be done.
        doing: &'static str,
        /// The endpoints.
        endpoints: String,
        /// How long it was waited for.
        limit: Duration,
    },
    /// etcd answered with an error.
    #[error("cannot {doing}: {endpoints} answers {code:?}: {message}")]
    Refused {
        /// What was to be done.
        doing: &'static str,
        /// The endpoints.
        endpoints: String,
        /// The status' code.
        code: Code,
        /// The status' text.
        message: String,
    },
    /// A prefix that no tenant may have, whoever permits it.
    #[error("prefix {prefix} overlaps {reserved}, where {whose} lie")]
    Reserved {
        /// The prefix.
        prefix: Prefix,
        /// The prefix that it overlaps.
        reserved: String,
        /// Whose keys are there.
        whose: &'static str,
    },
    /// The claim of a prefix is not, or no longer, held by the owner on whose behalf something was to be done.
    #[error("prefix {prefix} is not held by {owner} (uid {uid}) any more")]
    NotHeld {
        /// The prefix.
        prefix: Prefix,
        /// Who was thought to hold it.
        owner: String,
        /// That owner's uid.
        uid: String,
    },
    /// The stored claim cannot be read.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// Others kept changing the claims.
    #[error("cannot {doing}: the claims kept changing meanwhile")]
    Contention {
        /// What was to be done.
        doing: &'static str,
    },
}

// === impl SharedError ===

impl SharedError {
    /// Whether the shared etcd itself is what is in the way: it cannot be reached, does not answer, or has no leader.
    pub fn is_unreachable(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Timeout { .. } => true,
            Self::Refused { code, .. } => matches!(code, Code::Unavailable | Code::DeadlineExceeded),
            Self::Reserved { .. } | Self::NotHeld { .. } | Self::Meta(_) | Self::Contention { .. } => false,
        }
    }
}
