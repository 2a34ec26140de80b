mod answers;
mod confused;
pub(crate) mod generated;
mod long;
mod overtaken;
mod seen;

use std::{num::NonZeroUsize, sync::Arc};

use futures::FutureExt as _;
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use prost::Message;
use proto::{
    etcdserverpb::{
        Compare, DeleteRangeRequest, DeleteRangeResponse, LeaseTimeToLiveResponse, PutRequest, PutResponse,
        RangeRequest, RangeResponse, RangeStreamResponse, RequestOp, ResponseHeader, ResponseOp, TxnRequest,
        TxnResponse, WatchCancelRequest, WatchCreateRequest, WatchProgressRequest, WatchRequest, WatchResponse,
        compare::TargetUnion, request_op::Request, response_op::Response, watch_request::RequestUnion,
    },
    mvccpb::{Event, KeyValue},
};
use tonic::Code;

use self::generated::{encoded, mutated};
use super::*;
use crate::{
    grpc::framing::Frames,
    lease_id::{LeaseSecret, SECRET_LEN},
    limits::{LimitSettings, Limits},
    meta::{DEFAULT_META_PREFIX, MetaLayout},
    unknown::schema,
};

struct Fixture {
    prefix: Prefix,
    meta: TenantKeys,
    leases: Arc<LeaseCipher>,
}

impl Fixture {
    fn new() -> Self {
        let prefix = Prefix::new("/t/").unwrap();
        let meta = MetaLayout::new(Prefix::new(DEFAULT_META_PREFIX).unwrap()).tenant(&prefix);
        let leases = Arc::new(LeaseCipher::new(&LeaseSecret::from_bytes([3; SECRET_LEN])).unwrap());
        Self { prefix, meta, leases }
    }

    fn view(&self, watermark: i64) -> View<'_> {
        View {
            prefix: &self.prefix,
            meta: &self.meta,
            leases: Some(&self.leases),
            stand_in: None,
            never_granted: false,
            watermark: Some(watermark),
            compacted_at: 0,
            max_txn_ops: 128,
        }
    }
}

fn frames(out: BytesMut) -> Vec<Bytes> {
    let mut frames = Frames::trusted();
    frames.push(out.freeze());
    std::iter::from_fn(|| frames.message().unwrap()).collect()
}

/// The one message that the upstream gets for a request.
fn up<R: Rpc>(view: &View<'_>, request: &R::Request) -> Result<R::Request, Interrupt> {
    let mut out = BytesMut::new();
    Typed::<R>::new(schema().unwrap()).unwrap().request(view, &request.encode_to_vec().into(), &mut out)?;
    let messages = frames(out);
    assert_eq!(messages.len(), 1);
    Ok(R::Request::decode(messages[0].clone()).unwrap())
}

/// The one message that the client gets for a response.
fn down<R: Rpc>(view: &View<'_>, response: &R::Response) -> Result<R::Response, Interrupt> {
    let mut out = BytesMut::new();
    Typed::<R>::new(schema().unwrap()).unwrap().response(view, &response.encode_to_vec().into(), &mut out)?;
    let messages = frames(out);
    assert_eq!(messages.len(), 1);
    Ok(R::Response::decode(messages[0].clone()).unwrap())
}

fn refusal<T: std::fmt::Debug>(result: Result<T, Interrupt>) -> (Code, String) {
    match result {
        Err(Interrupt::Refused(status)) => (status.code(), status.message().to_owned()),
        other => panic!("expected a refusal, got {other:?}"),
    }
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn kv(key: &'static str, lease: i64) -> KeyValue {
    KeyValue { key: key.into(), lease, value: "v".into(), version: 3, mod_revision: 9, create_revision: 4 }
}

#[test]
fn every_field_of_a_range_but_the_keys_is_passed_on() {
    let fixture = Fixture::new();
    let request = RangeRequest {
        key: "a".into(),
        range_end: "b".into(),
        limit: 1,
        revision: 9,
        sort_order: 1,
        sort_target: 4,
        serializable: true,
        keys_only: true,
        count_only: true,
        min_mod_revision: 2,
        max_mod_revision: 3,
        min_create_revision: 4,
        max_create_revision: 5,
    };
    let expected = RangeRequest { key: "/t/a".into(), range_end: "/t/b".into(), ..request.clone() };
    assert_eq!(up::<Range>(&fixture.view(-1), &request).unwrap(), expected);
    let unordered = |request: RangeRequest| RangeRequest {
        sort_order: 0,
        min_mod_revision: 0,
        max_mod_revision: 0,
        min_create_revision: 0,
        max_create_revision: 0,
        ..request
    };
    assert_eq!(up::<RangeStream>(&fixture.view(-1), &unordered(request)).unwrap(), unordered(expected));
}

#[test]
fn ranges_end_where_the_prefix_ends() {
    let fixture = Fixture::new();
    let all = RangeRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() };
    assert_eq!(up::<Range>(&fixture.view(-1), &all).unwrap().range_end, "/t0");
    let delete = DeleteRangeRequest { key: "\0".into(), range_end: "\0".into(), prev_kv: true };
    let expected = DeleteRangeRequest { key: "/t/\0".into(), range_end: "/t0".into(), prev_kv: true };
    assert_eq!(up::<DeleteRange>(&fixture.view(-1), &delete).unwrap(), expected);
}

#[test]
fn reads_below_the_watermark_are_compacted_and_at_it_are_not() {
    let fixture = Fixture::new();
    let at = |revision| RangeRequest { key: "a".into(), revision, ..Default::default() };
    let compacted = (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted".to_owned());
    assert_eq!(refusal(up::<Range>(&fixture.view(10), &at(9))), compacted);
    assert_eq!(refusal(up::<RangeStream>(&fixture.view(10), &at(9))), compacted);
    for revision in [10, 0, -5] {
        assert_eq!(up::<Range>(&fixture.view(10), &at(revision)).unwrap().revision, revision);
    }
    let unloaded = View { watermark: None, ..fixture.view(10) };
    assert!(matches!(up::<Range>(&unloaded, &at(9)), Err(Interrupt::NeedsWatermark)));
    assert!(up::<Range>(&unloaded, &at(0)).is_ok());
}

#[test]
fn a_txn_is_rewritten_at_every_level() {
    let fixture = Fixture::new();
    let lease = 77;
    let upstream_lease = fixture.leases.to_upstream(lease).unwrap();
    let put =
        |key: &'static str, lease| op(Request::RequestPut(PutRequest { key: key.into(), lease, ..Default::default() }));
    let range = |key: &'static str, end: &'static str, revision| {
        op(Request::RequestRange(RangeRequest {
            key: key.into(),
            range_end: end.into(),
            revision,
            ..Default::default()
        }))
    };
    let delete = |key: &'static str, end: &'static str| {
        op(Request::RequestDeleteRange(DeleteRangeRequest {
            key: key.into(),
            range_end: end.into(),
            ..Default::default()
        }))
    };
    let compare = |key: &'static str, end: &'static str, lease| Compare {
        key: key.into(),
        range_end: end.into(),
        target: 4,
        target_union: Some(TargetUnion::Lease(lease)),
        ..Default::default()
    };
    let txn = |key: [&'static str; 4], end: [&'static str; 2], lease, revision, inner: Vec<RequestOp>| TxnRequest {
        compare: vec![compare(key[0], end[0], lease)],
        success: [vec![put(key[1], lease), range(key[2], end[1], revision)], inner].concat(),
        failure: vec![delete(key[3], end[1])],
    };
    let tenant_keys = ["a", "b", "c", "d"];
    let upstream_keys = ["/t/a", "/t/b", "/t/c", "/t/d"];
    let inner = |keys, ends, lease, revision| vec![op(Request::RequestTxn(txn(keys, ends, lease, revision, vec![])))];
    let request = txn(tenant_keys, ["", "\0"], lease, 9, inner(tenant_keys, ["x", "\0"], lease, 10));
    let expected = txn(
        upstream_keys,
        ["", "/t0"],
        upstream_lease,
        i64::MIN,
        inner(upstream_keys, ["/t/x", "/t0"], upstream_lease, 10),
    );
    assert_eq!(up::<Txn>(&fixture.view(10), &request).unwrap(), expected);
}

#[test]
fn responses_are_stripped_at_every_level() {
    let fixture = Fixture::new();
    let lease = fixture.leases.to_upstream(5).unwrap();
    let header = Some(ResponseHeader { cluster_id: 1, member_id: 2, revision: 3, raft_term: 4 });
    let response = |key: &'static str, lease, inner: Vec<ResponseOp>| TxnResponse {
        header,
        succeeded: true,
        responses: [
            vec![
                ResponseOp {
                    response: Some(Response::ResponseRange(RangeResponse {
                        header,
                        kvs: vec![kv(key, lease)],
                        more: true,
                        count: 9,
                    })),
                },
                ResponseOp {
                    response: Some(Response::ResponsePut(PutResponse { header, prev_kv: Some(kv(key, lease)) })),
                },
                ResponseOp {
                    response: Some(Response::ResponseDeleteRange(DeleteRangeResponse {
                        header,
                        deleted: 1,
                        prev_kvs: vec![kv(key, lease)],
                    })),
                },
            ],
            inner,
        ]
        .concat(),
    };
    let nested = |key, lease| {
        response(key, lease, vec![ResponseOp { response: Some(Response::ResponseTxn(response(key, lease, vec![]))) }])
    };
    assert_eq!(down::<Txn>(&fixture.view(-1), &nested("/t/k", lease)).unwrap(), nested("k", 5));
    assert!(matches!(down::<Txn>(&fixture.view(-1), &nested("/u/k", lease)), Err(Interrupt::Foreign)));
    let part = |key, lease| RangeStreamResponse {
        range_response: Some(RangeResponse { kvs: vec![kv(key, lease)], ..Default::default() }),
    };
    assert_eq!(down::<RangeStream>(&fixture.view(-1), &part("/t/k", lease)).unwrap(), part("k", 5));
    assert!(matches!(down::<RangeStream>(&fixture.view(-1), &part("/t/", 0)), Err(Interrupt::Foreign)));
}

#[test]
fn the_mapping_of_leases_is_asked_for_where_there_is_a_lease() {
    let fixture = Fixture::new();
    let view = View { leases: None, ..fixture.view(-1) };
    let put = |lease| PutRequest { key: "a".into(), lease, ..Default::default() };
    assert!(up::<Put>(&view, &put(0)).is_ok());
    assert!(matches!(up::<Put>(&view, &put(1)), Err(Interrupt::NeedsLeases)));
    let response = |lease| PutResponse { header: None, prev_kv: Some(kv("/t/a", lease)) };
    assert!(down::<Put>(&view, &response(0)).is_ok());
    assert!(matches!(down::<Put>(&view, &response(1)), Err(Interrupt::MeetsLease)));
}

#[test]
fn leases_are_compared_exactly_or_not_at_all() {
    let fixture = Fixture::new();
    let (equal, greater, less, not_equal) = (0, 1, 2, 3);
    let compare = |result, lease| TxnRequest {
        compare: vec![Compare {
            result,
            target: 4,
            key: "a".into(),
            target_union: Some(TargetUnion::Lease(lease)),
            ..Default::default()
        }],
        ..Default::default()
    };
    for (result, lease) in [(equal, 5), (not_equal, 5), (less, 0), (greater, 0), (equal, 0)] {
        let sent = up::<Txn>(&fixture.view(-1), &compare(result, lease)).unwrap();
        let expected = fixture.leases.to_upstream(lease).unwrap();
        assert_eq!(sent.compare[0].target_union, Some(TargetUnion::Lease(expected)));
        assert_eq!(sent.compare[0].result, result);
    }
    for result in [less, greater] {
        let (code, text) = refusal(up::<Txn>(&fixture.view(-1), &compare(result, 5)));
        assert_eq!(code, Code::Unimplemented);
        assert!(text.contains("no order"), "{text}");
    }
}

#[test]
fn a_leases_mark_is_not_among_its_keys() {
    let fixture = Fixture::new();
    let id = fixture.leases.to_upstream(5).unwrap();
    let response = |keys: Vec<Bytes>| LeaseTimeToLiveResponse { header: None, id, ttl: 3, granted_ttl: 9, keys };
    let answer = down::<TimeToLive>(
        &fixture.view(-1),
        &response(vec!["/t/a".into(), fixture.meta.lease_mark(id), "/t/b".into()]),
    )
    .unwrap();
    assert_eq!((answer.id, answer.ttl, answer.granted_ttl), (5, 3, 9));
    assert_eq!(answer.keys, ["a", "b"]);
    let other_mark = fixture.meta.lease_mark(id + 1);
    assert!(matches!(down::<TimeToLive>(&fixture.view(-1), &response(vec![other_mark])), Err(Interrupt::Foreign)));
}

#[test]
fn unknown_fields_are_refused_in_requests_and_kept_in_responses() {
    let fixture = Fixture::new();
    let view = fixture.view(-1);
    let range = Typed::<Range>::new(schema().unwrap()).unwrap();
    // Field 99, whose tag takes two bytes: a number, bytes, and eight and four bytes.
    let extra =
        [&[0x98, 0x06, 1, 0x9a, 0x06, 4][..], b"/x/b", &[0x99, 0x06, 1, 2, 3, 4, 5, 6, 7, 8, 0x9d, 0x06, 1, 2, 3, 4]]
            .concat();
    let with_extra = |message: Vec<u8>| [message.as_slice(), &extra].concat();

    let request = with_extra(RangeRequest { key: "a".into(), ..Default::default() }.encode_to_vec()).into();
    let mut out = BytesMut::new();
    let (code, text) = refusal(range.request(&view, &request, &mut out));
    assert_eq!(code, Code::Unimplemented);
    assert!(text.contains("field 99 of etcdserverpb.RangeRequest"), "{text}");
    assert!(out.is_empty());

    let message = |number: u8, message: Vec<u8>| {
        let mut field = vec![number << 3 | 2];
        prost::encoding::encode_varint(message.len() as u64, &mut field);
        [field, message].concat()
    };
    let header = || with_extra(ResponseHeader { revision: 5, ..Default::default() }.encode_to_vec());
    let pair = |key| with_extra(kv(key, 0).encode_to_vec());
    let ranged = |key| with_extra([message(1, header()), message(2, pair(key))].concat());
    for (rewriter, answer) in [
        (Shape::Range, &ranged as &dyn Fn(&'static str) -> Vec<u8>),
        (Shape::RangePart, &|key| with_extra(message(1, ranged(key)))),
        (Shape::Put, &|key| with_extra([message(1, header()), message(2, pair(key))].concat())),
        (Shape::DeleteRange, &|key| with_extra([message(1, header()), message(3, pair(key))].concat())),
        (Shape::Txn, &|key| with_extra(message(3, with_extra(message(1, ranged(key)))))),
        (Shape::Watch, &|key| with_extra(message(11, with_extra(message(2, pair(key)))))),
        (Shape::TimeToLive, &|key| with_extra([message(1, header()), message(5, key.into())].concat())),
        (Shape::KeepAlive, &|_| with_extra(message(1, header()))),
    ] {
        let (from, expected) = (Bytes::from(answer("/t/a")), answer("a"));
        let mut out = BytesMut::new();
        rewriter.rewrite(&view, &from, &mut out).unwrap();
        assert_eq!(frames(out)[0], expected, "{rewriter:?}");
        assert_eq!(frames(in_pieces(&view, rewriter, &from).unwrap())[0], expected, "{rewriter:?}");
    }
}

/// What holds a key or a lease, and not as it should, does not get out as it is.
#[test]
fn keys_and_leases_in_another_encoding_are_not_passed_on() {
    let fixture = Fixture::new();
    for (shape, numbers) in [
        (Shape::Range, &[2][..]),
        (Shape::RangePart, &[1]),
        (Shape::Put, &[2]),
        (Shape::DeleteRange, &[3]),
        (Shape::Txn, &[3]),
        (Shape::Op, &[1, 2, 3, 4]),
        (Shape::Watch, &[11]),
        (Shape::Event, &[2, 3]),
        (Shape::EventAlone, &[2, 3]),
        (Shape::TimeToLive, &[2, 5]),
        (Shape::KeepAlive, &[2]),
        (Shape::KeyValue, &[1, 6]),
    ] {
        for number in numbers {
            let fixed = [&[number << 3 | 1][..], b"/u/1234x"].concat();
            let mut out = BytesMut::new();
            let (code, _) = refusal(shape.rewrite(&fixture.view(-1), &fixed, &mut out));
            assert_eq!((code, out.len()), (Code::Internal, 0), "{shape:?}, {number}");
        }
    }
}

fn watch(view: &View<'_>, stream: &WatchStream, request: RequestUnion) -> Result<WatchRequest, Interrupt> {
    let mut out = BytesMut::new();
    stream.request(view, &WatchRequest { request_union: Some(request) }.encode_to_vec().into(), &mut out)?;
    Ok(WatchRequest::decode(frames(out)[0].clone()).unwrap())
}

fn watch_answers(
    view: &View<'_>,
    stream: &WatchStream,
    response: &WatchResponse,
) -> Result<Vec<WatchResponse>, Interrupt> {
    let mut out = BytesMut::new();
    stream.response(view, &response.encode_to_vec().into(), &mut out)?;
    Ok(frames(out).into_iter().map(|message| WatchResponse::decode(message).unwrap()).collect())
}

fn created(watch_id: i64) -> WatchResponse {
    let header = Some(ResponseHeader { cluster_id: 1, member_id: 2, revision: 30, raft_term: 4 });
    WatchResponse { header, watch_id, created: true, ..Default::default() }
}

#[test]
fn watch_requests_keep_their_options() {
    let fixture = Fixture::new();
    let stream = WatchStream::new(schema().unwrap(), Arc::default()).unwrap();
    let create = WatchCreateRequest {
        key: "a".into(),
        range_end: "\0".into(),
        start_revision: 20,
        progress_notify: true,
        filters: vec![1, 0],
        prev_kv: true,
        watch_id: -7,
        fragment: true,
    };
    let expected = WatchCreateRequest { key: "/t/a".into(), range_end: "/t0".into(), ..create.clone() };
    let sent = watch(&fixture.view(20), &stream, RequestUnion::CreateRequest(create)).unwrap();
    assert_eq!(sent.request_union, Some(RequestUnion::CreateRequest(expected)));
    let empty = watch(&fixture.view(20), &stream, RequestUnion::CreateRequest(WatchCreateRequest::default())).unwrap();
    let Some(RequestUnion::CreateRequest(empty)) = empty.request_union else { panic!("not a create") };
    assert_eq!((empty.key, empty.range_end), ("/t/\0".into(), "".into()));
    for other in [
        RequestUnion::CancelRequest(WatchCancelRequest { watch_id: 3 }),
        RequestUnion::ProgressRequest(WatchProgressRequest {}),
    ] {
        assert_eq!(watch(&fixture.view(20), &stream, other.clone()).unwrap().request_union, Some(other));
    }
}

#[test]
fn a_watch_below_the_watermark_is_cancelled_once_created() {
    let fixture = Fixture::new();
    let stream = WatchStream::new(schema().unwrap(), Arc::default()).unwrap();
    let create = |start_revision| {
        RequestUnion::CreateRequest(WatchCreateRequest { key: "a".into(), start_revision, ..Default::default() })
    };
    let start = |request: WatchRequest| match request.request_union {
        Some(RequestUnion::CreateRequest(create)) => create.start_revision,
        other => panic!("{other:?}"),
    };
    let view = fixture.view(20);
    for (asked, sent) in [(20, 20), (19, i64::MAX), (0, 0), (-1, -1), (19, i64::MAX), (21, 21)] {
        assert_eq!(start(watch(&view, &stream, create(asked)).unwrap()), sent);
    }
    let cancel = |watch_id| {
        let header = Some(ResponseHeader { cluster_id: 1, member_id: 2, revision: 0, raft_term: 4 });
        WatchResponse { header, watch_id, canceled: true, compact_revision: 20, ..Default::default() }
    };
    assert_eq!(watch_answers(&view, &stream, &created(0)).unwrap(), [created(0)]);
    assert_eq!(watch_answers(&view, &stream, &created(1)).unwrap(), [created(1), cancel(1)]);
    assert_eq!(watch_answers(&view, &stream, &created(2)).unwrap(), [created(2)]);
    // A refused one, as for the negative revision, counts but is not cancelled again.
    let refused = WatchResponse { canceled: true, ..created(-1) };
    assert_eq!(watch_answers(&view, &stream, &refused).unwrap(), std::slice::from_ref(&refused));
    assert_eq!(watch_answers(&view, &stream, &refused).unwrap(), [refused]);
    assert_eq!(watch_answers(&view, &stream, &created(3)).unwrap(), [created(3)]);
}

/// The refusal comes in the order of the creations, as etcd's would.
#[test]
fn a_watch_over_the_limit_is_denied_in_its_turn() {
    let fixture = Fixture::new();
    let settings = LimitSettings { watches: NonZeroUsize::new(2), ..Default::default() };
    let limits = Limits::new(settings, &fixture.prefix, &fixture.meta);
    let stream = WatchStream::new(schema().unwrap(), limits.watches().clone()).unwrap();
    let view = fixture.view(20);
    let ask = |start_revision| {
        let create = WatchCreateRequest { key: "a".into(), start_revision, ..Default::default() };
        let sent = watch(&view, &stream, RequestUnion::CreateRequest(create)).unwrap();
        let Some(RequestUnion::CreateRequest(sent)) = sent.request_union else { panic!("not a create") };
        // The upstream refuses an empty range by itself.
        (sent.key == sent.range_end, sent.start_revision)
    };
    assert_eq!([ask(0), ask(19), ask(19), ask(0)], [(false, 0), (false, i64::MAX), (true, 19), (true, 0)]);
    assert_eq!(limits.watches().present(), 2);
    let upstreams =
        WatchResponse { canceled: true, cancel_reason: "mvcc: watcher range is empty".into(), ..created(-1) };
    let denied = WatchResponse { cancel_reason: "etcdserver: too many requests".into(), ..upstreams.clone() };
    assert_eq!(watch_answers(&view, &stream, &created(0)).unwrap(), [created(0)]);
    assert_eq!(watch_answers(&view, &stream, &created(1)).unwrap().len(), 2);
    assert_eq!(watch_answers(&view, &stream, &upstreams).unwrap(), std::slice::from_ref(&denied));
    assert_eq!(watch_answers(&view, &stream, &upstreams).unwrap(), [denied]);
    assert_eq!(limits.watches().present(), 2);
    // A watch that ends, and one that the upstream refuses, make room.
    let cancelled = WatchResponse { created: false, canceled: true, ..created(0) };
    watch_answers(&view, &stream, &cancelled).unwrap();
    assert_eq!(limits.watches().present(), 1);
    assert_eq!(ask(0), (false, 0));
    assert_eq!(watch_answers(&view, &stream, &upstreams).unwrap(), [upstreams]);
    assert_eq!(limits.watches().present(), 1);
    drop(stream);
    assert_eq!(limits.watches().present(), 0);
}

/// Creations that are denied wait for the answers to those before, without which nothing would bound what is noted of them.
#[test]
fn denied_watches_wait_for_their_answers() {
    let fixture = Fixture::new();
    let settings = LimitSettings { watches: NonZeroUsize::new(1), ..Default::default() };
    let limits = Limits::new(settings, &fixture.prefix, &fixture.meta);
    let stream = WatchStream::new(schema().unwrap(), limits.watches().clone()).unwrap();
    let view = fixture.view(20);
    let ask = || {
        watch(&view, &stream, RequestUnion::CreateRequest(WatchCreateRequest { key: "a".into(), ..Default::default() }))
    };
    let mut sent = 0;
    let waits = loop {
        match ask() {
            Ok(_) => sent += 1,
            Err(interrupt) => break interrupt,
        }
        assert!(sent < 1000, "nothing bounds them");
    };
    let Interrupt::Unanswered(answered) = waits else { panic!("{waits:?}") };
    assert!(answered.notified().now_or_never().is_none());
    // The first one is no denied one.
    watch_answers(&view, &stream, &created(0)).unwrap();
    assert!(answered.notified().now_or_never().is_none() && ask().is_err());
    let refused = WatchResponse { canceled: true, ..created(-1) };
    watch_answers(&view, &stream, &refused).unwrap();
    assert!(answered.notified().now_or_never().is_some() && ask().is_ok() && ask().is_err());
    assert_eq!(limits.watches().present(), 1);
}

/// What a quota goes by: the branch that adds more, without its deletions.
#[test]
fn a_txn_adds_what_its_greater_branch_puts() {
    let put = |key: &'static str, ignore_value| PutRequest { key: key.into(), ignore_value, ..Default::default() };
    let op = |put| RequestOp { request: Some(Request::RequestPut(put)) };
    let nested = |txn| RequestOp { request: Some(Request::RequestTxn(txn)) };
    let delete = RequestOp { request: Some(Request::RequestDeleteRange(DeleteRangeRequest::default())) };
    let inner = TxnRequest {
        success: vec![op(put("a", false)), op(put("b", false))],
        failure: vec![op(put("c", false))],
        ..Default::default()
    };
    let request = TxnRequest {
        success: vec![op(put("d", false)), nested(inner), delete.clone()],
        failure: vec![op(put("e", false)), op(put("f", true)), delete],
        ..Default::default()
    };
    let message = Bytes::from(request.encode_to_vec());
    let rewriter = Typed::<Txn>::new(schema().unwrap()).unwrap();
    let mut asked = Vec::new();
    let adds = rewriter.adds(&message, &mut |put| {
        asked.push(put.key.clone());
        Amount { keys: 1, bytes: if put.key == "e" { 100 } else { 10 } }
    });
    assert_eq!(asked, ["d", "a", "b", "c", "e"]);
    assert_eq!(adds, Amount { keys: 3, bytes: 100 });
    let reads = TxnRequest { success: vec![], ..Default::default() };
    assert_eq!(rewriter.adds(&reads.encode_to_vec().into(), &mut |_| panic!("no put")), Amount::NOTHING);

    let header = Some(ResponseHeader { revision: 7, ..Default::default() });
    let answer = |responses| Bytes::from(TxnResponse { header, responses, ..Default::default() }.encode_to_vec());
    let put_response = ResponseOp { response: Some(Response::ResponsePut(PutResponse::default())) };
    let nested = ResponseOp {
        response: Some(Response::ResponseTxn(TxnResponse { responses: vec![put_response], ..Default::default() })),
    };
    let deleted = ResponseOp { response: Some(Response::ResponseDeleteRange(DeleteRangeResponse::default())) };
    assert_eq!(rewriter.written(&answer(vec![nested])), Some(7));
    assert_eq!(rewriter.written(&answer(vec![deleted])), None);
}

#[test]
fn watch_events_are_stripped() {
    let fixture = Fixture::new();
    let stream = WatchStream::new(schema().unwrap(), Arc::default()).unwrap();
    let lease = fixture.leases.to_upstream(5).unwrap();
    let response = |key: &'static str, prev: &'static str, lease| WatchResponse {
        watch_id: 3,
        fragment: true,
        events: vec![
            Event { r#type: 0, kv: Some(kv(key, lease)), prev_kv: Some(kv(prev, lease)) },
            // The previous pair may have been compacted away.
            Event { r#type: 1, kv: Some(kv(key, 0)), prev_kv: None },
        ],
        ..Default::default()
    };
    let answers = watch_answers(&fixture.view(-1), &stream, &response("/t/k", "/t/k", lease)).unwrap();
    assert_eq!(answers, [response("k", "k", 5)]);
    for (key, prev) in [("/u/k", "/t/k"), ("/t/k", "/u/k")] {
        assert!(matches!(
            watch_answers(&fixture.view(-1), &stream, &response(key, prev, lease)),
            Err(Interrupt::Foreign)
        ));
    }
    let unloaded = View { leases: None, ..fixture.view(-1) };
    assert!(matches!(watch_answers(&unloaded, &stream, &response("/t/k", "/t/k", lease)), Err(Interrupt::MeetsLease)));
}

#[test]
fn txns_nest_as_deep_as_etcd_allows() {
    fn leaf() -> TxnRequest {
        TxnRequest {
            success: vec![op(Request::RequestPut(PutRequest { key: "a".into(), ..Default::default() }))],
            ..Default::default()
        }
    }
    fn nest(inner: TxnRequest) -> TxnRequest {
        TxnRequest { success: vec![op(Request::RequestTxn(inner))], ..Default::default() }
    }
    fn nest_response(inner: TxnResponse) -> TxnResponse {
        TxnResponse {
            responses: vec![ResponseOp { response: Some(Response::ResponseTxn(inner)) }],
            ..Default::default()
        }
    }
    let fixture = Fixture::new();
    let deepest = (1..128).fold(leaf(), |inner, _| nest(inner));
    assert!(up::<Txn>(&fixture.view(-1), &deepest).is_ok());
    // An empty Txn takes no operation: one more level.
    let deepest_empty = (0..128).fold(TxnRequest::default(), |inner, _| nest(inner));
    assert!(up::<Txn>(&fixture.view(-1), &deepest_empty).is_ok());
    let too_many = "etcdserver: too many operations in txn request";
    for levels in [128, 200, 2000] {
        let too_deep = (0..levels).fold(leaf(), |inner, _| nest(inner));
        assert_eq!(refusal(up::<Txn>(&fixture.view(-1), &too_deep)).1, too_many, "{levels}");
    }
    let response = (0..129).fold(TxnResponse::default(), |inner, _| nest_response(inner));
    assert!(down::<Txn>(&fixture.view(-1), &response).is_ok());
}

/// Whether a range that goes upstream stays under the prefix of the [`Fixture`].
fn is_within(key: &[u8], range_end: &[u8]) -> bool {
    key.starts_with(b"/t/") && key.len() > 3 && (range_end.is_empty() || range_end <= &b"/t0"[..])
}

fn all_within(txn: &TxnRequest) -> bool {
    txn.compare.iter().all(|compare| is_within(&compare.key, &compare.range_end))
        && txn.success.iter().chain(&txn.failure).all(|op| match op.request.as_ref().expect("an operation") {
            Request::RequestRange(range) => is_within(&range.key, &range.range_end),
            Request::RequestPut(put) => is_within(&put.key, b""),
            Request::RequestDeleteRange(delete) => is_within(&delete.key, &delete.range_end),
            Request::RequestTxn(txn) => all_within(txn),
        })
}

/// Sends many messages through a rewriter. What gets through must satisfy `within`, and enough must get through for that to
/// say something.
fn nothing_leaves<M: Message + Default>(
    messages: impl Strategy<Value = Bytes>,
    rewriter: impl Fn() -> Box<dyn Rewriter>,
    within: impl Fn(&M) -> bool,
) {
    const CASES: u32 = 2000;
    let fixture = Fixture::new();
    let passed = std::cell::Cell::new(0);
    let mut runner = TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&messages, |message| {
        let mut out = BytesMut::new();
        if rewriter().request(&fixture.view(5), &message, &mut out).is_ok() {
            passed.set(passed.get() + 1);
            let sent = M::decode(frames(out)[0].clone()).unwrap();
            prop_assert!(within(&sent), "{}", message.escape_ascii());
        }
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    // Of the Txns about a quarter, give or take.
    assert!(passed.get() > CASES / 5, "of {CASES} messages {} got through", passed.get());
}

/// Whatever a client sends, what goes upstream stays under the prefix.
#[test]
fn no_message_reaches_beyond_the_prefix() {
    fn typed<R: Rpc>() -> Box<dyn Rewriter> {
        Box::new(Typed::<R>::new(schema().unwrap()).unwrap())
    }
    nothing_leaves(mutated(encoded(generated::txn())), typed::<Txn>, all_within);
    let range = |sent: &RangeRequest| is_within(&sent.key, &sent.range_end);
    nothing_leaves(mutated(encoded(generated::range())), typed::<Range>, range);
    nothing_leaves(mutated(encoded(generated::range())), typed::<RangeStream>, range);
    nothing_leaves(mutated(encoded(generated::put())), typed::<Put>, |sent: &PutRequest| is_within(&sent.key, b""));
    nothing_leaves(mutated(encoded(generated::delete())), typed::<DeleteRange>, |sent: &DeleteRangeRequest| {
        is_within(&sent.key, &sent.range_end)
    });
    nothing_leaves(
        mutated(encoded(generated::watch())),
        || Box::new(WatchStream::new(schema().unwrap(), Arc::default()).unwrap()),
        |sent: &WatchRequest| match &sent.request_union {
            Some(RequestUnion::CreateRequest(create)) => is_within(&create.key, &create.range_end),
            _ => true,
        },
    );
}

/// The frame of an answer, made piece by piece.
fn in_pieces(view: &View<'_>, shape: Shape, message: &Bytes) -> Result<BytesMut, Interrupt> {
    let mut long = LongAnswer::new(view, shape, message)?;
    let mut pieces = BytesMut::new();
    while let Some(piece) = long.next(view)? {
        pieces.extend_from_slice(&piece);
    }
    Ok(pieces)
}

/// Whole and piece by piece, answers are what they are once decoded, changed by `seen` and encoded again.
fn rewritten_as<R: Rpc<Response: std::fmt::Debug + Clone>>(
    answers: impl Strategy<Value = R::Response>,
    seen: impl Fn(&View<'_>, &mut R::Response),
) {
    let fixture = Fixture::new();
    let view = fixture.view(0);
    let mut runner = TestRunner::new(Config::with_cases(200));
    runner
        .run(&answers, |answer| {
            let message = Bytes::from(answer.encode_to_vec());
            let mut expected = answer.clone();
            seen(&view, &mut expected);
            let expected = expected.encode_to_vec();
            let mut whole = BytesMut::new();
            R::ANSWER.rewrite(&view, &message, &mut whole).unwrap();
            prop_assert_eq!(&frames(whole)[0], &expected);
            prop_assert_eq!(&frames(in_pieces(&view, R::ANSWER, &message).unwrap())[0], &expected);
            Ok(())
        })
        .unwrap();
}

#[test]
fn answers_are_rewritten_as_decoded_ones_would_be() {
    rewritten_as::<Range>(answers::range(), seen::range);
    rewritten_as::<Put>(answers::put(), seen::put);
    rewritten_as::<DeleteRange>(answers::delete(), seen::delete);
    rewritten_as::<Txn>(answers::txn(), seen::txn);
    let fixture = Fixture::new();
    let mark = fixture.meta.lease_mark(12);
    rewritten_as::<TimeToLive>(answers::time_to_live(12, mark), seen::time_to_live);
}

/// What must not get out does not.
#[test]
fn answers_hold_back_what_is_foreign() {
    let fixture = Fixture::new();
    let view = fixture.view(0);
    let kv = |key: &'static str| KeyValue { key: key.into(), value: "v".into(), lease: 7, ..Default::default() };
    let range = |keys: &[&'static str]| RangeResponse {
        kvs: keys.iter().map(|key| kv(key)).collect(),
        count: 2,
        ..Default::default()
    };
    let encoded = |keys: &[&'static str]| Bytes::from(range(keys).encode_to_vec());
    let both = |view: &View<'_>, shape: Shape, message: &Bytes| {
        let mut out = BytesMut::new();
        let whole = shape.rewrite(view, message, &mut out);
        assert_eq!(whole.is_ok(), !out.is_empty());
        assert_eq!(whole.is_ok(), in_pieces(view, shape, message).is_ok());
        whole
    };
    for keys in [&["/t/a", "/other/b"][..], &[""], &["/t"], &["/t/"]] {
        assert!(matches!(both(&view, Shape::Range, &encoded(keys)), Err(Interrupt::Foreign)), "{keys:?}");
        let inner = ResponseOp { response: Some(Response::ResponseRange(range(keys))) };
        let txn = TxnResponse { responses: vec![inner], ..Default::default() };
        let op = ResponseOp { response: Some(Response::ResponseTxn(txn)) };
        let txn = TxnResponse { responses: vec![op], ..Default::default() }.encode_to_vec().into();
        assert!(matches!(both(&view, Shape::Txn, &txn), Err(Interrupt::Foreign)), "{keys:?}");
    }
    for keys in [vec!["/t/a".into(), "/other/b".into()], vec!["/t/".into()]] {
        let ttl = LeaseTimeToLiveResponse { id: 7, keys, ..Default::default() }.encode_to_vec().into();
        assert!(matches!(both(&view, Shape::TimeToLive, &ttl), Err(Interrupt::Foreign)));
    }
    let needy = View { leases: None, ..view };
    assert!(matches!(both(&needy, Shape::Range, &encoded(&["/t/a"])), Err(Interrupt::MeetsLease)));
    let good = encoded(&["/t/a"]);
    for torn in 1..good.len() {
        // Cut between two fields it is another answer, anywhere else it is none.
        if let Err(interrupt) = both(&view, Shape::Range, &good.slice(..torn)) {
            assert!(matches!(interrupt, Interrupt::Refused(status) if status.code() == Code::Internal));
        }
    }
}
