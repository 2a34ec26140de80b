//! Requests as they might come and as nobody should send them. Revisions in them are *places*: whoever sends them puts
//! revisions in their stead.

use bytes::Bytes;
use proptest::{collection::vec, prelude::*, sample::select};
use proto::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, compare::TargetUnion,
    request_op::Request,
};

/// What requests are made of.
#[derive(Clone)]
pub(crate) struct Space {
    /// Keys, each as often as it is likely.
    pub(crate) keys: Vec<&'static [u8]>,
    /// Ends of ranges, likewise.
    pub(crate) ends: Vec<&'static [u8]>,
    /// Leases, likewise. 0 is none.
    pub(crate) leases: Vec<i64>,
    /// Whether there are sort options that do not exist. etcd 3.5 does not survive them.
    pub(crate) wrong_sorts: bool,
    /// Whether results are sorted by anything but keys: with more than twelve keys, Go orders equal ones as it likes.
    pub(crate) sorts: bool,
    /// Whether leases are compared by their order, which they have none of behind a proxy.
    pub(crate) lease_order: bool,
}

/// A place in the history, or something beyond either end.
pub(crate) fn place() -> impl Strategy<Value = i64> + Clone {
    prop_oneof![6 => Just(0i64), 6 => 1i64..30, 1 => Just(-1i64), 1 => Just(i64::MAX), 1 => Just(i64::MIN)]
}

// === impl Space ===

impl Space {
    pub(crate) fn key(&self) -> impl Strategy<Value = Bytes> + Clone + use<> {
        select(self.keys.clone()).prop_map(Bytes::from_static)
    }

    pub(crate) fn end(&self) -> impl Strategy<Value = Bytes> + Clone + use<> {
        select(self.ends.clone()).prop_map(Bytes::from_static)
    }

    pub(crate) fn lease(&self) -> impl Strategy<Value = i64> + Clone + use<> {
        select(self.leases.clone())
    }

    pub(crate) fn range(&self) -> BoxedStrategy<RangeRequest> {
        let (sorts, wrong_sorts) = (self.sorts, self.wrong_sorts);
        let options = (-1i64..4, place(), 0..5i32, 0..6i32, any::<[bool; 3]>());
        let bounds = (0i64..8, 0i64..12);
        (self.key(), self.end(), options, bounds)
            .prop_map(move |(key, range_end, options, (which, bound))| {
                let (limit, revision, order, target, [serializable, keys_only, count_only]) = options;
                // Mostly what is there.
                let sort_order = if order > 3 || (order > 2 && !wrong_sorts) { 0 } else { order };
                let sort_target = if !sorts || (target > 4 && !wrong_sorts) { 0 } else { target };
                RangeRequest {
                    key,
                    range_end,
                    limit,
                    revision,
                    sort_order,
                    sort_target,
                    serializable,
                    keys_only,
                    count_only: count_only && keys_only,
                    min_mod_revision: if which == 1 { bound } else { 0 },
                    max_mod_revision: if which == 2 { bound } else { 0 },
                    min_create_revision: if which == 3 { bound } else { 0 },
                    max_create_revision: if which == 4 { bound } else { 0 },
                }
            })
            .boxed()
    }

    pub(crate) fn put(&self) -> BoxedStrategy<PutRequest> {
        (self.key(), "[a-c]{0,2}", self.lease(), any::<[bool; 3]>(), 0..8u8)
            .prop_map(|(key, value, lease, [prev_kv, ignore_value, ignore_lease], rare)| PutRequest {
                key,
                value: if ignore_value && rare == 0 && prev_kv { Bytes::new() } else { value.into() },
                lease: if ignore_lease && rare == 1 && prev_kv { 0 } else { lease },
                prev_kv,
                ignore_value: ignore_value && rare == 0,
                ignore_lease: ignore_lease && rare == 1,
            })
            .boxed()
    }

    pub(crate) fn delete(&self) -> BoxedStrategy<DeleteRangeRequest> {
        (self.key(), self.end(), any::<bool>())
            .prop_map(|(key, range_end, prev_kv)| DeleteRangeRequest { key, range_end, prev_kv })
            .boxed()
    }

    pub(crate) fn compare(&self) -> BoxedStrategy<Compare> {
        let lease_order = self.lease_order;
        let target = prop_oneof![
            (0i64..4).prop_map(|version| (0, Some(TargetUnion::Version(version)))),
            place().prop_map(|place| (1, Some(TargetUnion::CreateRevision(place)))),
            place().prop_map(|place| (2, Some(TargetUnion::ModRevision(place)))),
            "[a-c]{0,2}".prop_map(|value| (3, Some(TargetUnion::Value(value.into())))),
            self.lease().prop_map(|lease| (4, Some(TargetUnion::Lease(lease)))),
            Just((4, None)),
            Just((4, Some(TargetUnion::Version(1)))),
            Just((3, None)),
        ];
        (self.key(), self.end(), 0..4i32, target)
            .prop_map(move |(key, range_end, result, (target, target_union))| {
                let ordered = matches!(target_union, Some(TargetUnion::Lease(lease)) if lease != 0)
                    && (result == 1 || result == 2);
                let result = if ordered && !lease_order { 0 } else { result };
                Compare { result, target, key, range_end, target_union }
            })
            .boxed()
    }

    /// Txns in Txns, with everything that carries a key.
    pub(crate) fn txn(&self) -> BoxedStrategy<TxnRequest> {
        let op = prop_oneof![
            self.range().prop_map(Request::RequestRange),
            self.put().prop_map(Request::RequestPut),
            self.delete().prop_map(Request::RequestDeleteRange),
        ]
        .prop_map(|request| RequestOp { request: Some(request) })
        .boxed();
        let compare = self.compare();
        let leaf = (vec(compare.clone(), 0..3), vec(op.clone(), 0..4), vec(op.clone(), 0..3))
            .prop_map(|(compare, success, failure)| TxnRequest { compare, success, failure });
        leaf.prop_recursive(3, 24, 3, move |inner| {
            let nested = inner.prop_map(|txn| RequestOp { request: Some(Request::RequestTxn(txn)) });
            let op = prop_oneof![12 => op.clone(), 8 => nested, 1 => Just(RequestOp::default())];
            (vec(compare.clone(), 0..2), vec(op.clone(), 0..4), vec(op, 0..2))
                .prop_map(|(compare, success, failure)| TxnRequest { compare, success, failure })
        })
        .boxed()
    }
}
