//! What the parties do: two tenants, each behind its proxy, and a client of the shared etcd itself.

use proptest::{collection::vec, prelude::*, sample::select};
use proto::etcdserverpb::{DeleteRangeRequest, PutRequest, RangeRequest, TxnRequest, WatchCreateRequest};

use crate::requests::{Space, place};

/// The parties by number: the tenants, and the client of the shared etcd.
pub(crate) const PREFIXES: [&[u8]; 3] = [b"/a/", b"/b/", b""];
pub(crate) const TENANTS: usize = 2;
pub(crate) const DIRECT: usize = 2;

/// One party does something.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) party: usize,
    pub(crate) action: Action,
}

/// In requests, revisions are places in the history.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    Range(RangeRequest),
    RangeStream(RangeRequest),
    Put(PutRequest),
    Delete(DeleteRangeRequest),
    Txn(TxnRequest),
    Compact(i64),
    Grant {
        id: i64,
        ttl: i64,
    },
    Revoke(i64),
    /// On one stream.
    KeepAlive(Vec<i64>),
    TimeToLive {
        id: i64,
        keys: bool,
    },
    Leases,
    /// Create requests on one of the party's streams, sent together.
    Watch {
        stream: usize,
        creates: Vec<WatchCreateRequest>,
    },
    /// Cancels one of the stream's watches, or one that is not there.
    Cancel {
        stream: usize,
        index: usize,
    },
    Progress {
        stream: usize,
    },
    Describe(Describe),
    /// What tenants may not do.
    Forbidden(Forbidden),
}

/// Requests about the etcd as such.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Describe {
    Members,
    Status,
    Alarms,
    AuthStatus,
    Users,
    Roles,
    HashKv,
    Snapshot,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Forbidden {
    AddMember,
    RemoveMember,
    Defragment,
    Hash,
    MoveLeader,
    RaiseAlarm,
    AddUser,
    DeleteRole,
    EnableAuth,
    Authenticate,
}

/// The steps of one case.
pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => tenant_action().prop_map(|action| Step { party: 0, action }),
        4 => tenant_action().prop_map(|action| Step { party: 1, action }),
        3 => direct_action().prop_map(|action| Step { party: DIRECT, action }),
    ];
    vec(step, 1..60)
}

/// At most ten keys, so that they meet, a RangeStream has one part, and sorting is stable.
fn tenant_space() -> Space {
    Space {
        keys: vec![b"a", b"a", b"a", b"b", b"b", b"c", b"c", b"\0", b"\xff", b"", b"/b/k", b"/a/k", b"dir/1"],
        ends: vec![
            b"",
            b"",
            b"",
            b"\0",
            b"\0",
            b"b",
            b"c",
            b"d",
            b"\xff\xff",
            b"\0\0",
            b"a",
            b"0",
            b"/b0",
            b"\xff\xff\xff\xff",
        ],
        leases: vec![0, 0, 0, 7, 7, 8, -9, 99, i64::MIN],
        wrong_sorts: true,
        sorts: true,
        lease_order: true,
    }
}

/// The shared etcd's own keys lie around those of the tenants and among them, and never where the meta keys are.
fn direct_space() -> Space {
    Space {
        keys: vec![b"/", b"/a", b"/a.", b"/a0", b"/ab/k", b"/b", b"/a/a", b"/a/b", b"/b/a", b"/b/c", b"", b"/b/b"],
        ends: vec![b"", b"", b"", b"/b/", b"/a0", b"/b0", b"/b/b"],
        leases: vec![0],
        wrong_sorts: true,
        sorts: false,
        lease_order: true,
    }
}

fn tenant_action() -> BoxedStrategy<Action> {
    let space = tenant_space();
    let lease = || select(vec![7i64, 8, -9, 99, 0, i64::MIN, i64::MAX]);
    let ttl = prop_oneof![8 => 1000i64..5000, 1 => Just(9_000_000_001i64)];
    prop_oneof![
        4 => prop_oneof![4 => 1i64..30, 1 => place()].prop_map(Action::Compact),
        3 => (select(vec![7i64, 8, -9, i64::MIN]), ttl).prop_map(|(id, ttl)| Action::Grant { id, ttl }),
        2 => lease().prop_map(Action::Revoke),
        2 => vec(lease(), 1..4).prop_map(Action::KeepAlive),
        3 => (lease(), any::<bool>()).prop_map(|(id, keys)| Action::TimeToLive { id, keys }),
        1 => Just(Action::Leases),
        1 => select(vec![
            Describe::Members, Describe::Status, Describe::Alarms, Describe::AuthStatus, Describe::Users,
            Describe::Roles, Describe::HashKv, Describe::Snapshot,
        ]).prop_map(Action::Describe),
        1 => select(vec![
            Forbidden::AddMember, Forbidden::RemoveMember, Forbidden::Defragment, Forbidden::Hash,
            Forbidden::MoveLeader, Forbidden::RaiseAlarm, Forbidden::AddUser, Forbidden::DeleteRole,
            Forbidden::EnableAuth, Forbidden::Authenticate,
        ]).prop_map(Action::Forbidden),
        32 => key_value_action(&space),
        12 => watch_action(&space),
    ]
    .boxed()
}

fn direct_action() -> BoxedStrategy<Action> {
    let space = direct_space();
    prop_oneof![
        1 => place().prop_map(Action::Compact),
        8 => key_value_action(&space),
        2 => watch_action(&space),
    ]
    .boxed()
}

fn key_value_action(space: &Space) -> BoxedStrategy<Action> {
    prop_oneof![
        8 => space.range().prop_map(Action::Range),
        3 => space.range().prop_map(Action::RangeStream),
        11 => space.put().prop_map(Action::Put),
        4 => space.delete().prop_map(Action::Delete),
        8 => space.txn().prop_map(Action::Txn),
    ]
    .boxed()
}

fn watch_action(space: &Space) -> BoxedStrategy<Action> {
    let id = prop_oneof![4 => Just(0i64), 2 => select(vec![1i64, 5, -7])];
    let filters = prop_oneof![4 => Just(vec![]), 1 => vec(0..3i32, 1..3)];
    let create = (space.key(), space.end(), place(), id, filters, any::<[bool; 3]>()).prop_map(
        |(key, range_end, start_revision, watch_id, filters, [prev_kv, progress_notify, fragment])| {
            WatchCreateRequest { key, range_end, start_revision, watch_id, filters, prev_kv, progress_notify, fragment }
        },
    );
    prop_oneof![
        4 => (0..2usize, vec(create, 1..4)).prop_map(|(stream, creates)| Action::Watch { stream, creates }),
        2 => (0..2usize, 0..6usize).prop_map(|(stream, index)| Action::Cancel { stream, index }),
        2 => (0..2usize).prop_map(|stream| Action::Progress { stream }),
    ]
    .boxed()
}
