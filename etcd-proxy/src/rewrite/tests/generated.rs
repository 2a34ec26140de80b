//! Requests as a client might send them, and as nobody should: well-formed ones, and the same with bytes changed. Random bytes
//! hardly ever are a message.

use bytes::Bytes;
use proptest::{prelude::*, sample::Index};
use prost::Message;
use proto::etcdserverpb::{
    Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, WatchCreateRequest, WatchRequest,
    compare::TargetUnion, request_op::Request, watch_request::RequestUnion,
};

/// A change to an encoded message.
#[derive(Clone, Debug)]
enum Mutation {
    Flip(Index, u8),
    Remove(Index),
    Insert(Index, u8),
    /// A part of the message a second time, elsewhere.
    Repeat(Index, Index, usize),
    /// A field with bytes in it, in the middle of something or well placed.
    Field(Index, u8, Bytes),
}

/// An encoded message of which a few bytes may have been changed.
pub(crate) fn mutated(message: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Bytes> {
    let mutation = prop_oneof![
        (any::<Index>(), 0..8u8).prop_map(|(at, bit)| Mutation::Flip(at, bit)),
        any::<Index>().prop_map(Mutation::Remove),
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Mutation::Insert(at, byte)),
        (any::<Index>(), any::<Index>(), 1..12usize).prop_map(|(from, to, length)| Mutation::Repeat(from, to, length)),
        (any::<Index>(), 0..5u8, bytes()).prop_map(|(at, number, bytes)| Mutation::Field(at, number, bytes)),
    ];
    let mutations = prop_oneof![2 => Just(Vec::new()), 3 => prop::collection::vec(mutation, 1..4)];
    (message, mutations).prop_map(|(mut message, mutations)| {
        for mutation in mutations {
            mutation.apply(&mut message);
        }
        message.into()
    })
}

pub(crate) fn range() -> impl Strategy<Value = RangeRequest> {
    (bytes(), bytes(), -1..9i64, any::<[bool; 3]>()).prop_map(
        |(key, range_end, revision, [serializable, keys_only, count_only])| RangeRequest {
            key,
            range_end,
            revision,
            serializable,
            keys_only,
            count_only,
            ..Default::default()
        },
    )
}

pub(crate) fn put() -> impl Strategy<Value = PutRequest> {
    let lease = prop_oneof![Just(0), any::<i64>()];
    (bytes(), bytes(), lease).prop_map(|(key, value, lease)| PutRequest { key, value, lease, ..Default::default() })
}

pub(crate) fn delete() -> impl Strategy<Value = DeleteRangeRequest> {
    (bytes(), bytes()).prop_map(|(key, range_end)| DeleteRangeRequest { key, range_end, prev_kv: true })
}

pub(crate) fn watch() -> impl Strategy<Value = WatchRequest> {
    (bytes(), bytes(), -1..9i64).prop_map(|(key, range_end, start_revision)| WatchRequest {
        request_union: Some(RequestUnion::CreateRequest(WatchCreateRequest {
            key,
            range_end,
            start_revision,
            ..Default::default()
        })),
    })
}

/// Txns in Txns, with everything that carries a key.
pub(crate) fn txn() -> impl Strategy<Value = TxnRequest> {
    let leaf = prop_oneof![
        range().prop_map(Request::RequestRange),
        put().prop_map(Request::RequestPut),
        delete().prop_map(Request::RequestDeleteRange),
    ];
    txn_of(leaf.boxed()).prop_recursive(3, 16, 3, |inner| {
        let op = prop_oneof![
            2 => inner.prop_map(Request::RequestTxn),
            1 => delete().prop_map(Request::RequestDeleteRange),
            1 => put().prop_map(Request::RequestPut),
        ];
        txn_of(op.boxed())
    })
}

fn txn_of(op: BoxedStrategy<Request>) -> impl Strategy<Value = TxnRequest> {
    let op = op.prop_map(|request| RequestOp { request: Some(request) });
    (prop::collection::vec(compare(), 0..3), prop::collection::vec(op.clone(), 0..3), prop::collection::vec(op, 0..3))
        .prop_map(|(compare, success, failure)| TxnRequest { compare, success, failure })
}

fn compare() -> impl Strategy<Value = Compare> {
    let target = prop_oneof![
        (0..3i64).prop_map(|version| (0, TargetUnion::Version(version))),
        bytes().prop_map(|value| (3, TargetUnion::Value(value))),
        any::<i64>().prop_map(|lease| (4, TargetUnion::Lease(lease))),
    ];
    (bytes(), bytes(), prop::sample::select(vec![0, 3]), target).prop_map(
        |(key, range_end, result, (target, union))| Compare {
            key,
            range_end,
            result,
            target,
            target_union: Some(union),
        },
    )
}

/// Keys and ends that might lead out of a prefix; hardly ever the empty one, which no request may have for a key.
fn bytes() -> impl Strategy<Value = Bytes> {
    let telling: [&'static [u8]; 8] = [b"\0", b"\0\0", b"a", b"/t/", b"/t0", b"/u/k", b"\xff", b"\xff\xff\xff"];
    prop_oneof![
        12 => prop::sample::select(telling.to_vec()).prop_map(Bytes::from_static),
        4 => prop::collection::vec(any::<u8>(), 1..6).prop_map(Bytes::from),
        1 => Just(Bytes::new()),
    ]
}

impl Mutation {
    fn apply(self, message: &mut Vec<u8>) {
        if message.is_empty() {
            return;
        }
        match self {
            Self::Flip(at, bit) => {
                let at = at.index(message.len());
                message[at] ^= 1 << bit;
            }
            Self::Remove(at) => {
                message.remove(at.index(message.len()));
            }
            Self::Insert(at, byte) => message.insert(at.index(message.len() + 1), byte),
            Self::Repeat(from, to, length) => {
                let from = from.index(message.len());
                let part = message[from..message.len().min(from + length)].to_vec();
                let to = to.index(message.len() + 1);
                message.splice(to..to, part);
            }
            Self::Field(at, number, bytes) => {
                let mut field = vec![number << 3 | 2, u8::try_from(bytes.len()).unwrap()];
                field.extend(bytes);
                // At the end it is a field of the message itself, which wins over the one before.
                let at = if number % 2 == 0 { message.len() } else { at.index(message.len() + 1) };
                message.splice(at..at, field);
            }
        }
    }
}

/// Encodes what a strategy makes.
pub(crate) fn encoded<M: Message>(messages: impl Strategy<Value = M>) -> impl Strategy<Value = Vec<u8>> {
    messages.prop_map(|message| message.encode_to_vec())
}
