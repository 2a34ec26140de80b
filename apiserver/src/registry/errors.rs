//! What clients are told when the storage fails (k8s.io/apiserver `pkg/storage/errors/storage.go`, `pkg/storage/etcd3/errors.go`).
//!
//! Deliberately other than there: what is too large for the storage is 413, not 500; a write that may have happened is 504.

use crate::{
    meta::GroupResource,
    status::Status,
    storage::{KeyValue, StorageError},
};

/// What was tried when the storage failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    /// Reading one object.
    Get,
    /// Reading a collection.
    List,
    /// Following objects.
    Watch,
    /// Writing a new object.
    Create,
    /// Writing an object again.
    Update,
    /// Removing an object.
    Delete,
}

/// Seconds after which it makes sense to try again when the storage cannot be reached.
const RETRY_UNREACHABLE: u32 = 2;
/// Seconds after which it makes sense to try again when the storage has not reached a revision.
const RETRY_TOO_LARGE: u32 = 1;

/// The status for a failure of the storage.
pub(super) fn status(error: StorageError, resource: &GroupResource, operation: Operation) -> Status {
    let retry = || Status::server_timeout(resource, operation.as_str(), RETRY_UNREACHABLE);
    match error {
        StorageError::Compacted { .. } if operation == Operation::Watch => {
            Status::expired("The resourceVersion for the provided watch is too old.")
        }
        StorageError::Compacted { .. } => Status::expired("The resourceVersion for the provided list is too old."),
        StorageError::Future { requested, current } => {
            Status::too_large_resource_version(requested.0, current.0, RETRY_TOO_LARGE)
        }
        StorageError::TooLarge(detail) => Status::request_entity_too_large(detail),
        StorageError::Unavailable(detail) => {
            tracing::warn!(%resource, operation = operation.as_str(), error = detail, "the storage cannot be reached");
            retry()
        }
        StorageError::Timeout(detail) => {
            tracing::warn!(%resource, operation = operation.as_str(), error = detail, "the storage did not answer in time");
            match operation {
                Operation::Get | Operation::List | Operation::Watch => retry(),
                Operation::Create | Operation::Update | Operation::Delete => Status::timeout(
                    format_args!("the storage did not answer in time; the {} may have happened", operation.as_str()),
                    0,
                ),
            }
        }
        error @ (StorageError::NoSpace(_) | StorageError::SlowReader | StorageError::Internal(_)) => {
            tracing::error!(%resource, operation = operation.as_str(), %error, "the storage failed");
            Status::internal_error(error)
        }
    }
}

/// The status for stored bytes that cannot be read.
pub(super) fn corrupt(kv: &KeyValue, error: impl std::fmt::Display) -> Status {
    tracing::error!(key = kv.key, revision = kv.mod_revision.0, %error, "a stored object cannot be decoded");
    Status::internal_error(format_args!("the object stored at {} cannot be decoded: {error}", kv.key))
}

// === impl Operation ===

impl Operation {
    /// The name in messages.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Operation::Get => "get",
            Operation::List => "list",
            Operation::Watch => "watch",
            Operation::Create => "create",
            Operation::Update => "update",
            Operation::Delete => "delete",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::Revision;

    #[test]
    fn each_failure_has_its_code() {
        let resource = GroupResource { group: "example.com".to_owned(), resource: "pizzas".to_owned() };
        let cases = [
            (StorageError::Compacted { oldest: None }, Operation::List, 410, "Expired", None),
            (StorageError::Compacted { oldest: None }, Operation::Watch, 410, "Expired", None),
            (
                StorageError::Future { requested: Revision(9), current: Revision(3) },
                Operation::List,
                504,
                "Timeout",
                Some(1),
            ),
            (StorageError::TooLarge("x".to_owned()), Operation::Create, 413, "RequestEntityTooLarge", None),
            (StorageError::Unavailable("x".to_owned()), Operation::Get, 500, "ServerTimeout", Some(2)),
            (StorageError::Timeout("x".to_owned()), Operation::List, 500, "ServerTimeout", Some(2)),
            (StorageError::Timeout("x".to_owned()), Operation::Update, 504, "Timeout", None),
            (StorageError::Internal("x".to_owned()), Operation::Get, 500, "InternalError", None),
        ];
        for (error, operation, code, reason, retry) in cases {
            let status = status(error, &resource, operation);
            assert_eq!((status.code().as_u16(), status.reason()), (code, reason), "{status}");
            assert_eq!(status.retry_after().map(|r| r.as_secs()), retry, "{status}");
        }
    }
}
