//! Answers as an upstream might send them to the tenant `/t/`.

use bytes::Bytes;
use proptest::prelude::*;
use proto::{
    etcdserverpb::{
        DeleteRangeResponse, LeaseTimeToLiveResponse, PutResponse, RangeResponse, ResponseHeader, ResponseOp,
        TxnResponse, response_op::Response,
    },
    mvccpb::KeyValue,
};

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![Just(0_i64), any::<i64>()]
}

fn header() -> impl Strategy<Value = Option<ResponseHeader>> {
    let header = (any::<u64>(), any::<u64>(), number(), any::<u64>());
    proptest::option::of(header.prop_map(|(cluster_id, member_id, revision, raft_term)| ResponseHeader {
        cluster_id,
        member_id,
        revision,
        raft_term,
    }))
}

fn key() -> impl Strategy<Value = Bytes> {
    let key = prop_oneof![
        proptest::collection::vec(any::<u8>(), 1..300),
        // Lengths whose varint is shorter without the prefix.
        (126_usize..=131).prop_map(|length| vec![b'k'; length]),
    ];
    key.prop_map(|key| [b"/t/", &key[..]].concat().into())
}

fn kv() -> impl Strategy<Value = KeyValue> {
    let value = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..200).prop_map(Bytes::from),
        (0_usize..200_000).prop_map(|length| Bytes::from(vec![b'v'; length])),
    ];
    (key(), number(), number(), number(), value, number()).prop_map(
        |(key, create_revision, mod_revision, version, value, lease)| KeyValue {
            key,
            create_revision,
            mod_revision,
            version,
            value,
            lease,
        },
    )
}

pub(crate) fn range() -> impl Strategy<Value = RangeResponse> {
    (header(), proptest::collection::vec(kv(), 0..8), any::<bool>(), number())
        .prop_map(|(header, kvs, more, count)| RangeResponse { header, kvs, more, count })
}

pub(crate) fn put() -> impl Strategy<Value = PutResponse> {
    (header(), proptest::option::of(kv())).prop_map(|(header, prev_kv)| PutResponse { header, prev_kv })
}

pub(crate) fn delete() -> impl Strategy<Value = DeleteRangeResponse> {
    (header(), number(), proptest::collection::vec(kv(), 0..5))
        .prop_map(|(header, deleted, prev_kvs)| DeleteRangeResponse { header, deleted, prev_kvs })
}

pub(crate) fn txn() -> impl Strategy<Value = TxnResponse> {
    let leaf = prop_oneof![
        range().prop_map(Response::ResponseRange),
        put().prop_map(Response::ResponsePut),
        delete().prop_map(Response::ResponseDeleteRange),
    ];
    txn_of(leaf.boxed()).prop_recursive(3, 8, 3, |inner| {
        txn_of(
            prop_oneof![2 => inner.prop_map(Response::ResponseTxn), 1 => put().prop_map(Response::ResponsePut)].boxed(),
        )
    })
}

fn txn_of(op: BoxedStrategy<Response>) -> impl Strategy<Value = TxnResponse> {
    let op = proptest::option::weighted(0.9, op).prop_map(|response| ResponseOp { response });
    (header(), any::<bool>(), proptest::collection::vec(op, 0..4))
        .prop_map(|(header, succeeded, responses)| TxnResponse { header, succeeded, responses })
}

/// Of a lease that has this mark among its keys.
pub(crate) fn time_to_live(id: i64, mark: Bytes) -> impl Strategy<Value = LeaseTimeToLiveResponse> {
    let key = prop_oneof![1 => Just(mark), 4 => key()];
    (header(), number(), number(), proptest::collection::vec(key, 0..6)).prop_map(
        move |(header, ttl, granted_ttl, keys)| LeaseTimeToLiveResponse { header, id, ttl, granted_ttl, keys },
    )
}
