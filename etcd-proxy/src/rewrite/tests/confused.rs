//! Answers that are not what they should be.

use super::*;

/// An upstream's answer to something else is none.
#[test]
fn answers_to_something_else_are_refused() {
    const SHAPES: [Shape; 8] = [
        Shape::Range,
        Shape::RangePart,
        Shape::Put,
        Shape::DeleteRange,
        Shape::Txn,
        Shape::Watch,
        Shape::TimeToLive,
        Shape::KeepAlive,
    ];
    let fixture = Fixture::new();
    let header = Some(ResponseHeader { cluster_id: 1, member_id: 2, revision: 3, raft_term: 4 });
    let kvs = vec![KeyValue { key: "/other/a".into(), value: "v".into(), ..Default::default() }];
    let range = RangeResponse { header, kvs, more: true, count: 1 };
    let part = RangeStreamResponse { range_response: Some(range.clone()) }.encode_to_vec();
    for (answer, own) in [(range.encode_to_vec(), Shape::Range), (part, Shape::RangePart)] {
        for shape in SHAPES {
            let mut out = BytesMut::new();
            let refused = shape.rewrite(&fixture.view(0), &answer, &mut out).unwrap_err();
            // A Put that shows its key's former value has that where a Range has its keys.
            let foreign = shape == own || (shape, own) == (Shape::Put, Shape::Range);
            assert_eq!(matches!(refused, Interrupt::Foreign), foreign, "{own:?} as {shape:?}");
            assert!(out.is_empty());
        }
    }
}

/// A newer etcd may name keys where nobody here looks for them.
#[test]
fn unknown_fields_that_hold_keys_are_left_out() {
    const FIELD: u8 = 15;
    let fixture = Fixture::new();
    let header = ResponseHeader { revision: 3, ..Default::default() };
    let put = |extra: &[u8]| {
        let length = u8::try_from(extra.len()).unwrap();
        let put = PutResponse { header: Some(header), prev_kv: None }.encode_to_vec();
        Bytes::from([&put[..], &[FIELD << 3 | 2, length], extra].concat())
    };
    let seen = |message: &Bytes| {
        let mut out = BytesMut::new();
        Shape::Put.rewrite(&fixture.view(0), message, &mut out).unwrap();
        let whole = frames(out).remove(0);
        assert_eq!(frames(in_pieces(&fixture.view(0), Shape::Put, message).unwrap()).remove(0), whole);
        whole
    };
    let bare = PutResponse { header: Some(header), prev_kv: None }.encode_to_vec();
    for hidden in [&b"/t/a"[..], b"\n\x04/t/a", b"in /etcd-proxy.meta/claims/2f742f"] {
        assert_eq!(seen(&put(hidden)), bare, "{hidden:?}");
    }
    for kept in [&b""[..], b"/t", b"anything", &[0xff, 0]] {
        assert_eq!(seen(&put(kept)), put(kept), "{kept:?}");
    }
    let header = Bytes::from([&[10, 6, FIELD << 3 | 2, 4][..], b"/t/a"].concat());
    let refused = Shape::Put.rewrite(&fixture.view(0), &header, &mut BytesMut::new()).unwrap_err();
    assert!(matches!(refused, Interrupt::Refused(status) if status.code() == Code::Internal));
}
