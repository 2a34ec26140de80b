//! etcd's errors: code and text, byte for byte, since clients match on the text
//! (`api/v3rpc/rpctypes/error.go`), and the refusals that are the proxy's own.

use tonic::{Code, Status};

/// An error that etcd itself would give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EtcdError {
    /// A request without a key.
    EmptyKey,
    /// An operation of a Txn that is none.
    KeyNotFound,
    /// A value together with `ignore_value`.
    ValueProvided,
    /// A lease together with `ignore_lease`.
    LeaseProvided,
    /// More operations in a Txn than `--max-txn-ops`.
    TooManyOps,
    /// A sort order or target that does not exist.
    InvalidSortOption,
    /// RangeStream with another order than that of the keys.
    StreamSortOrder,
    /// RangeStream with bounds for revisions.
    StreamRevisionFilters,
    /// A revision below the last compaction.
    Compacted,
    /// A revision that is not there yet.
    FutureRevision,
    /// A lease that was never granted, or has ended.
    LeaseNotFound,
    /// More at a time than there may be.
    TooManyRequests,
    /// What was asked for may have been done.
    Timeout,
    /// A write at the quota.
    NoSpace,
    /// A write larger than `--max-request-bytes`.
    RequestTooLarge,
    /// Authenticate on an etcd with authentication off.
    AuthNotEnabled,
    /// A user that does not exist.
    UserNotFound,
    /// A role that does not exist.
    RoleNotFound,
    /// The server ends.
    Stopped,
}

/// What the tenant may not do here, and who may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// Changes to the members of the upstream.
    Membership,
    /// Defragment, MoveLeader, Downgrade, Hash: they concern the whole upstream.
    Maintenance,
    /// Raising and disarming alarms of the upstream.
    Alarm,
    /// Disarming the NOSPACE of the tenant's own quota.
    OwnNoSpace,
    /// Users, roles and permissions.
    Auth,
    /// Compact where the operator switched it off.
    Compaction,
}

/// What etcd has and the proxy has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsupported {
    /// Lease ids are permuted, so their order is lost.
    LeaseOrder,
}

// === impl EtcdError ===

impl EtcdError {
    /// The code that etcd gives with this error.
    pub const fn code(self) -> Code {
        match self {
            Self::EmptyKey
            | Self::KeyNotFound
            | Self::ValueProvided
            | Self::LeaseProvided
            | Self::TooManyOps
            | Self::InvalidSortOption
            | Self::RequestTooLarge => Code::InvalidArgument,
            Self::LeaseNotFound => Code::NotFound,
            Self::StreamSortOrder | Self::StreamRevisionFilters => Code::Unimplemented,
            Self::Compacted | Self::FutureRevision => Code::OutOfRange,
            Self::TooManyRequests | Self::NoSpace => Code::ResourceExhausted,
            Self::AuthNotEnabled | Self::UserNotFound | Self::RoleNotFound => Code::FailedPrecondition,
            Self::Timeout | Self::Stopped => Code::Unavailable,
        }
    }

    /// The text that etcd gives with this error.
    pub const fn text(self) -> &'static str {
        match self {
            Self::EmptyKey => "etcdserver: key is not provided",
            Self::KeyNotFound => "etcdserver: key not found",
            Self::ValueProvided => "etcdserver: value is provided",
            Self::LeaseProvided => "etcdserver: lease is provided",
            Self::TooManyOps => "etcdserver: too many operations in txn request",
            Self::InvalidSortOption => "etcdserver: invalid sort option",
            Self::StreamSortOrder => "RangeStream does not support custom sort orders",
            Self::StreamRevisionFilters => "RangeStream does not support revision filters",
            Self::Compacted => "etcdserver: mvcc: required revision has been compacted",
            Self::FutureRevision => "etcdserver: mvcc: required revision is a future revision",
            Self::LeaseNotFound => "etcdserver: requested lease not found",
            Self::TooManyRequests => "etcdserver: too many requests",
            Self::Timeout => "etcdserver: request timed out",
            Self::NoSpace => "etcdserver: mvcc: database space exceeded",
            Self::RequestTooLarge => "etcdserver: request is too large",
            Self::AuthNotEnabled => "etcdserver: authentication is not enabled",
            Self::UserNotFound => "etcdserver: user name not found",
            Self::RoleNotFound => "etcdserver: role name not found",
            Self::Stopped => "etcdserver: server stopped",
        }
    }
}

impl From<EtcdError> for Status {
    fn from(error: EtcdError) -> Self {
        Self::new(error.code(), error.text())
    }
}

// === impl Denied ===

impl From<Denied> for Status {
    fn from(denied: Denied) -> Self {
        Self::permission_denied(match denied {
            Denied::Membership => {
                "etcd-proxy: the members of the shared etcd are administered by its operator, not through a tenant's proxy"
            }
            Denied::Maintenance => {
                "etcd-proxy: this concerns the whole shared etcd; its operator may do it on the etcd itself, not through a tenant's proxy"
            }
            Denied::Alarm => {
                "etcd-proxy: alarms of the shared etcd are raised and disarmed by its operator, not through a tenant's proxy"
            }
            Denied::OwnNoSpace => {
                "etcd-proxy: this tenant has reached its quota; its NOSPACE is not disarmed but goes by itself once keys are deleted, or once the operator of this proxy raises the quota"
            }
            Denied::Auth => {
                "etcd-proxy: users and roles are not administered here; access is granted by the client certificates that the operator of this proxy trusts"
            }
            Denied::Compaction => {
                "etcd-proxy: compaction is switched off for this tenant by the operator of this proxy"
            }
        })
    }
}

// === impl Unsupported ===

impl From<Unsupported> for Status {
    fn from(unsupported: Unsupported) -> Self {
        Self::unimplemented(match unsupported {
            Unsupported::LeaseOrder => {
                "etcd-proxy: lease ids have no order here; compare a lease by EQUAL or NOT_EQUAL, or with 0"
            }
        })
    }
}
