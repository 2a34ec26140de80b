//! What is checked before a prefix is served. Reads only.

use std::{error::Error, time::Duration};

use tokio::time::{sleep, timeout};
use tonic::{Code, Status};

use crate::{
    config::Tenancy,
    meta::{ClaimError, MetaLayout, Standing, standing},
    upstream::Upstream,
};

/// How long the upstream gets to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest pause between two attempts to ask an upstream that cannot be reached.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Why a prefix must not be served.
#[derive(Debug, thiserror::Error)]
pub enum StartupError {
    /// Another tenant's prefix overlaps.
    #[error("prefix {prefix} overlaps {}, which is claimed by {owner}: serving it would mix the data of two tenants; choose another prefix, or have the other claim released", other.escape_ascii())]
    Overlaps {
        /// The prefix that was to be served.
        prefix: crate::prefix::Prefix,
        /// The other prefix.
        other: Vec<u8>,
        /// Its owner.
        owner: String,
    },
    /// The upstream's user may not see the other claims, and there is none of its own.
    #[error(
        "prefix {prefix} is not claimed, and the upstream's user may not read the other claims, so nothing says that the prefix is free; claim it with `etcd-proxy claim --prefix={prefix}` as a user who may"
    )]
    Unknown {
        /// The prefix that was to be served.
        prefix: crate::prefix::Prefix,
    },
    /// The claims cannot be read.
    #[error(
        "the claims under {meta_prefix} cannot be read: {source}; the upstream's user needs read permission there, at least on the key of its own claim"
    )]
    Claims {
        /// The meta prefix.
        meta_prefix: crate::prefix::Prefix,
        /// What is wrong.
        source: ClaimError,
    },
}

/// What one look at the claims says.
#[derive(Debug)]
pub enum Verdict {
    /// Serve.
    Serve,
    /// Do not.
    Refuse(StartupError),
    /// The upstream cannot be asked for now.
    Later,
}

/// Looks at the claims once.
pub async fn check(tenancy: &Tenancy, upstream: &Upstream) -> Verdict {
    let prefix = &tenancy.prefix;
    let meta = MetaLayout::new(tenancy.meta_prefix.clone());
    let mut kv = upstream.kv();
    let Ok(answer) = timeout(PATIENCE, standing(&mut kv, &meta, prefix)).await else {
        tracing::warn!("the upstream does not answer, so the claims cannot be checked");
        return Verdict::Later;
    };
    match answer {
        Ok(Standing::Claimed { claim, others_seen }) => {
            tracing::info!(%prefix, owner = claim.owner, others_seen, "the prefix is claimed");
            Verdict::Serve
        }
        Ok(Standing::Unclaimed) => {
            tracing::warn!(%prefix, "the prefix is not claimed: nothing keeps another tenant from choosing one that overlaps; run `etcd-proxy claim`");
            Verdict::Serve
        }
        Ok(Standing::Overlaps { prefix: other, owner }) => {
            Verdict::Refuse(StartupError::Overlaps { prefix: prefix.clone(), other, owner })
        }
        Ok(Standing::Unknown) => Verdict::Refuse(StartupError::Unknown { prefix: prefix.clone() }),
        Err(ClaimError::Upstream(status)) if may_pass(&status) => {
            tracing::warn!(error = &status as &dyn Error, "the upstream cannot be asked for the claims");
            Verdict::Later
        }
        Err(source) => Verdict::Refuse(StartupError::Claims { meta_prefix: tenancy.meta_prefix.clone(), source }),
    }
}

/// Looks until there is an answer.
///
/// # Errors
/// If the prefix must not be served.
pub async fn check_until_answered(tenancy: &Tenancy, upstream: &Upstream) -> Result<(), StartupError> {
    let mut pause = Duration::from_millis(250);
    loop {
        match check(tenancy, upstream).await {
            Verdict::Serve => return Ok(()),
            Verdict::Refuse(error) => return Err(error),
            Verdict::Later => sleep(pause).await,
        }
        pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
    }
}

/// What a member that is a learner answers (`api/v3rpc/rpctypes/error.go`). It may be promoted.
const LEARNER: &str = "etcdserver: rpc not supported for learner";

/// Whether an error may go away by itself.
fn may_pass(status: &Status) -> bool {
    status.message() == LEARNER
        || matches!(
            status.code(),
            Code::Unavailable
                | Code::DeadlineExceeded
                | Code::Cancelled
                | Code::Aborted
                | Code::ResourceExhausted
                | Code::Unknown
                | Code::Internal
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_pass_is_waited_for() {
        assert!(may_pass(&Status::unavailable("etcdserver: no leader")));
        assert!(may_pass(&Status::failed_precondition("etcdserver: rpc not supported for learner")));
        assert!(!may_pass(&Status::failed_precondition("etcdserver: user name is empty")));
        assert!(!may_pass(&Status::permission_denied("etcdserver: permission denied")));
    }
}
