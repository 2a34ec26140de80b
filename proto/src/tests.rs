use bytes::Bytes;
use prost::Message;

use crate::{authpb, etcdserverpb as pb, meta_v1, mvccpb, restaurant::v1beta1, v3lockpb};

/// Encodes to these bytes, and decodes back from them. But for the one order that is remarked on,
/// they are what the Go packages of etcd and Kubernetes write.
fn assert_wire<M: Message + Default + PartialEq + std::fmt::Debug>(message: &M, wire: &[u8]) {
    assert_eq!(message.encode_to_vec(), wire);
    assert_eq!(&M::decode(wire).unwrap(), message);
}

#[test]
fn zero_values_are_not_written() {
    assert_wire(&pb::RangeRequest::default(), b"");
    assert_wire(
        &pb::RangeRequest { key: "a".into(), range_end: Bytes::from_static(b"\0"), limit: -1, ..Default::default() },
        b"\x0a\x01a\x12\x01\x00\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    );
}

#[test]
fn oneof_members_are_written_even_when_zero() {
    // What clientv3 sends for "the key does not exist".
    let compare = pb::Compare {
        target: pb::compare::CompareTarget::Create as i32,
        key: "k".into(),
        range_end: "l".into(),
        target_union: Some(pb::compare::TargetUnion::CreateRevision(0)),
        ..Default::default()
    };
    // Field 64 takes a tag of two bytes. Go writes oneofs last and prost does not; both are valid.
    let from_go: &[u8] = b"\x10\x01\x1a\x01k\x82\x04\x01l\x28\x00";
    assert_eq!(pb::Compare::decode(from_go).unwrap(), compare);
    assert_wire(&compare, b"\x10\x01\x1a\x01k\x28\x00\x82\x04\x01l");
}

#[test]
fn transactions_nest() {
    let put = pb::RequestOp {
        request: Some(pb::request_op::Request::RequestPut(pb::PutRequest { key: "k".into(), ..Default::default() })),
    };
    let inner = pb::TxnRequest { success: vec![put], ..Default::default() };
    let outer = pb::TxnRequest {
        failure: vec![pb::RequestOp { request: Some(pb::request_op::Request::RequestTxn(inner)) }],
        ..Default::default()
    };
    assert_wire(&outer, b"\x1a\x09\x22\x07\x12\x05\x12\x03\x0a\x01k");
}

#[test]
fn filters_are_packed_and_events_are_field_11() {
    assert_wire(&pb::WatchCreateRequest { filters: vec![0, 1], ..Default::default() }, b"\x2a\x02\x00\x01");
    assert_wire(
        &pb::WatchResponse {
            watch_id: -1,
            events: vec![mvccpb::Event { r#type: mvccpb::event::EventType::Delete as i32, ..Default::default() }],
            ..Default::default()
        },
        b"\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x5a\x02\x08\x01",
    );
}

#[test]
fn bytes_are_slices_of_the_buffer() {
    let wire = Bytes::from(
        mvccpb::KeyValue { key: "key".into(), value: Bytes::from(vec![7; 4096]), ..Default::default() }.encode_to_vec(),
    );
    let decoded = mvccpb::KeyValue::decode(wire.clone()).unwrap();
    assert!(wire.as_ptr_range().contains(&decoded.value.as_ptr()));
}

#[test]
fn services_have_etcds_names() {
    assert_eq!(pb::kv_server::SERVICE_NAME, "etcdserverpb.KV");
    assert_eq!(pb::watch_server::SERVICE_NAME, "etcdserverpb.Watch");
    assert_eq!(pb::maintenance_server::SERVICE_NAME, "etcdserverpb.Maintenance");
    assert_eq!(v3lockpb::lock_server::SERVICE_NAME, "v3lockpb.Lock");
}

#[test]
fn go_non_pointers_are_written_when_zero() {
    // Encoded by Kubernetes, `metav1.ObjectMeta{Name: "a"}` has all of these.
    let metadata = meta_v1::ObjectMeta {
        name: Some("a".into()),
        generate_name: Some(String::new()),
        namespace: Some(String::new()),
        self_link: Some(String::new()),
        uid: Some(String::new()),
        resource_version: Some(String::new()),
        generation: Some(0),
        creation_timestamp: Some(meta_v1::Time::default()),
        ..Default::default()
    };
    let wire = b"\x0a\x01a\x12\x00\x1a\x00\x22\x00\x2a\x00\x32\x00\x38\x00\x42\x00";
    assert_wire(&metadata, wire);

    let mut pizza = vec![0x0a, 17];
    pizza.extend_from_slice(wire);
    pizza.extend_from_slice(b"\x12\x09\x0a\x07\x0a\x03egg\x10\x02");
    assert_wire(
        &v1beta1::Pizza {
            metadata: Some(metadata),
            spec: Some(v1beta1::PizzaSpec {
                toppings: vec![v1beta1::PizzaTopping { name: Some("egg".into()), quantity: Some(2) }],
            }),
            status: None,
        },
        &pizza,
    );
}

#[test]
fn secrets_do_not_show() {
    let secret = "hunter2";
    let shown = [
        format!("{:?}", authpb::User { name: "ann".into(), password: secret.into(), ..Default::default() }),
        format!("{:?}", pb::AuthenticateRequest { name: "ann".into(), password: secret.into() }),
        format!("{:?} ann", pb::AuthenticateResponse { header: None, token: secret.into() }),
        format!(
            "{:#?}",
            pb::AuthUserAddRequest {
                name: "ann".into(),
                password: secret.into(),
                options: None,
                hashed_password: secret.into(),
            }
        ),
        format!(
            "{:?}",
            pb::AuthUserChangePasswordRequest {
                name: "ann".into(),
                password: secret.into(),
                hashed_password: secret.into(),
            }
        ),
    ];
    for shown in shown {
        assert!(!shown.contains(secret), "{shown}");
        assert!(shown.contains("ann") && shown.contains("<redacted>"), "{shown}");
    }
    let empty = format!("{:?}", pb::AuthenticateRequest::default());
    assert!(empty.contains("<empty>"), "{empty}");
}
