//! etcd's errors as [`StorageError`]s.
//!
//! etcd's clients tell errors apart by text (`api/v3rpc/rpctypes/error.go`), and so do we: proxies in front of etcd keep the
//! text and lose the code.

use std::error::Error as _;

use tonic::{Code, Status};

use crate::storage::{Revision, StorageError};

/// etcd's text for a revision below the compacted one.
pub(super) const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";
const FUTURE: &str = "etcdserver: mvcc: required revision is a future revision";
const NO_SPACE: &str = "etcdserver: mvcc: database space exceeded";
const REQUEST_TOO_LARGE: &str = "etcdserver: request is too large";
const TIMED_OUT: &str = "etcdserver: request timed out";
const LEASE_NOT_FOUND: &str = "etcdserver: requested lease not found";
/// grpc-go's text for a message beyond the server's limit, which no part of etcd saw.
const MESSAGE_TOO_LARGE: &str = "received message larger than max";
/// The same from this side: a message that our own decoder refused.
const OURS_TOO_LARGE: &str = "decoded message length too large";

/// A call that failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    /// The revision is ahead of the store's; etcd does not say where the store is.
    #[error("the revision is a future revision")]
    Future,
    /// The lease is gone; nothing was written.
    #[error("the lease is gone")]
    LeaseNotFound,
    #[error(transparent)]
    Storage(#[from] StorageError),
}

impl CallError {
    /// For calls in which neither a revision nor a lease of ours takes part.
    pub(super) fn into_storage(self) -> StorageError {
        match self {
            Self::Storage(error) => error,
            other => StorageError::Internal(format!("etcd: unexpectedly, {other}")),
        }
    }

    pub(super) fn from_status(status: &Status) -> Self {
        if is_transport(status) {
            return StorageError::Unavailable(format!("etcd: {}", chain(status))).into();
        }
        Self::from_text(status.code(), status.message())
    }

    /// From the parts of an error that etcd itself sent.
    pub(super) fn from_text(code: Code, text: &str) -> Self {
        // `contains`, since some proxies wrap the text into their own.
        let has = |known: &str| text.contains(known);
        let told = || format!("etcd: {text}");
        let error = match code {
            _ if has(COMPACTED) => StorageError::Compacted { oldest: None },
            _ if has(FUTURE) => return Self::Future,
            _ if has(LEASE_NOT_FOUND) => return Self::LeaseNotFound,
            _ if has(NO_SPACE) => StorageError::NoSpace(text.to_owned()),
            _ if has(REQUEST_TOO_LARGE) || has(MESSAGE_TOO_LARGE) => StorageError::TooLarge(text.to_owned()),
            _ if has(OURS_TOO_LARGE) => StorageError::Internal(told()),
            _ if has(TIMED_OUT) => StorageError::Timeout(told()),
            Code::DeadlineExceeded => StorageError::Timeout(told()),
            Code::Unavailable | Code::Cancelled | Code::Aborted => StorageError::Unavailable(told()),
            // Rate limits ("too many requests"), of etcd or of a proxy's tenant.
            Code::ResourceExhausted => StorageError::Unavailable(told()),
            code => StorageError::Internal(format!("etcd: {text} ({code:?})")),
        };
        error.into()
    }

    /// From the answer that ends a watch.
    pub(super) fn from_cancel(compact_revision: i64, reason: &str) -> Self {
        match u64::try_from(compact_revision) {
            Ok(oldest) if oldest > 0 => StorageError::Compacted { oldest: Some(Revision(oldest)) }.into(),
            _ if reason.is_empty() => StorageError::Unavailable("etcd ended the watch without a reason".into()).into(),
            _ => Self::from_text(Code::Unavailable, reason),
        }
    }
}

/// Whether the error arose on the way, not at the server: then it has a cause.
pub(super) fn is_transport(status: &Status) -> bool {
    status.source().is_some()
}

/// Whether the request certainly did not leave this process, so that a write can be tried again.
pub(super) fn was_not_sent(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        // hyper cancels only what it has not begun to send.
        if error.is::<tonic::ConnectError>()
            || error.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_canceled)
        {
            return true;
        }
        cause = error.source();
    }
    false
}

/// The message with those of its causes that add something.
pub(super) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = match error.downcast_ref::<Status>() {
        Some(status) => status.message().to_owned(),
        None => error.to_string(),
    };
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text.push_str(": ");
            text.push_str(&next);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(code: Code, text: &str) -> CallError {
        CallError::from_status(&Status::new(code, text))
    }

    #[test]
    fn the_text_decides_and_then_the_code() {
        use StorageError as E;
        assert!(matches!(mapped(Code::OutOfRange, COMPACTED), CallError::Storage(E::Compacted { oldest: None })));
        // As `etcd grpc-proxy` passes it on.
        assert!(matches!(mapped(Code::Unknown, COMPACTED), CallError::Storage(E::Compacted { .. })));
        assert!(matches!(mapped(Code::OutOfRange, FUTURE), CallError::Future));
        assert!(matches!(mapped(Code::NotFound, LEASE_NOT_FOUND), CallError::LeaseNotFound));
        assert!(matches!(mapped(Code::ResourceExhausted, NO_SPACE), CallError::Storage(E::NoSpace(_))));
        assert!(matches!(mapped(Code::InvalidArgument, REQUEST_TOO_LARGE), CallError::Storage(E::TooLarge(_))));
        let larger = "grpc: received message larger than max (4000000 vs. 2097152)";
        assert!(matches!(mapped(Code::ResourceExhausted, larger), CallError::Storage(E::TooLarge(_))));
        assert!(matches!(
            mapped(Code::Unavailable, "etcdserver: request timed out, possibly due to connection lost"),
            CallError::Storage(E::Timeout(_))
        ));
        assert!(matches!(mapped(Code::Unavailable, "etcdserver: no leader"), CallError::Storage(E::Unavailable(_))));
        assert!(matches!(
            mapped(Code::ResourceExhausted, "etcdserver: too many requests"),
            CallError::Storage(E::Unavailable(_))
        ));
        assert!(matches!(
            mapped(Code::PermissionDenied, "etcdserver: permission denied"),
            CallError::Storage(E::Internal(_))
        ));
    }

    #[test]
    fn a_cancelled_watch_says_why() {
        use StorageError as E;
        assert!(matches!(
            CallError::from_cancel(7, ""),
            CallError::Storage(E::Compacted { oldest: Some(Revision(7)) })
        ));
        assert!(matches!(CallError::from_cancel(0, COMPACTED), CallError::Storage(E::Compacted { oldest: None })));
        assert!(matches!(CallError::from_cancel(0, ""), CallError::Storage(E::Unavailable(_))));
        assert!(matches!(CallError::from_cancel(0, "etcdserver: no leader"), CallError::Storage(E::Unavailable(_))));
    }

    #[test]
    fn only_what_was_not_sent_counts_as_not_sent() {
        assert!(!was_not_sent(&Status::unavailable("etcdserver: no leader")));
        let refused = tonic::ConnectError("connection refused".into());
        let status = Status::from_error(Box::new(refused));
        assert!(was_not_sent(&status) && is_transport(&status));
        let reset = Status::from_error(Box::new(std::io::Error::from(std::io::ErrorKind::ConnectionReset)));
        assert!(!was_not_sent(&reset) && is_transport(&reset));
    }
}
