//! Long answers, which go out piece by piece.

use super::*;

fn cipher(fill: u8) -> Arc<LeaseCipher> {
    Arc::new(LeaseCipher::new(&LeaseSecret::from_bytes([fill; SECRET_LEN])).unwrap())
}

/// The upstream may go back to before the tenant's leases while a client takes its time: ids of the new mapping are shorter or
/// longer, and the frame's length is out already.
#[test]
fn an_answer_goes_on_by_the_mapping_that_it_began_with() {
    const KEYS: usize = 20_000;
    let fixture = Fixture::new();
    let lease = |id: usize| fixture.leases.to_upstream(id as i64 + 1).unwrap();
    let kvs = |lease: &dyn Fn(usize) -> i64, key: &'static str| (0..KEYS).map(|id| kv(key, lease(id))).collect();
    let message: Bytes = RangeResponse { kvs: kvs(&lease, "/t/k"), ..Default::default() }.encode_to_vec().into();
    let expected = RangeResponse { kvs: kvs(&|id| id as i64 + 1, "k"), ..Default::default() };

    let view = fixture.view(-1);
    let mut answer = LongAnswer::new(&view, Shape::Range, &message).unwrap();
    let mut out = BytesMut::new();
    out.extend_from_slice(&answer.next(&view).unwrap().unwrap());
    let (other, mut pieces) = (cipher(4), 1);
    for leases in [Some(&other), None].into_iter().cycle() {
        let Some(piece) = answer.next(&View { leases, ..view }).unwrap() else { break };
        out.extend_from_slice(&piece);
        pieces += 1;
    }
    assert!(pieces > 3, "{pieces}");
    assert_eq!(RangeResponse::decode(frames(out)[0].clone()).unwrap(), expected);
}
