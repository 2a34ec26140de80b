//! What Go does with fields that are repeated, unknown, too long or wrong.

use k8s_openapi::apimachinery::pkg::{
    api::resource::Quantity,
    apis::meta::v1::{Condition, DeleteOptions, FieldsV1, ManagedFieldsEntry, MicroTime, ObjectMeta, Status, Time},
    runtime::RawExtension,
    util::intstr::IntOrString,
};
use serde_json::json;

use super::{ConfigMap, ListOptions, Tree};
use crate::codec::protobuf::{
    Error, FieldName, MAX_DEPTH, Message, Reader, Value, WatchEvent, decode, encode, wire::write_varint, write_nested,
};

fn text<M: Message>(bytes: &[u8]) -> String {
    match decode::<M>(bytes) {
        Ok(_) => "ok".to_owned(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn keys() {
    // Unknown fields of each wire type, a group with groups in it among them.
    let unknown: &[&[u8]] = &[
        b"\xf8\x01\xff\x01",
        b"\xf9\x0112345678",
        b"\xfa\x01\x03abc",
        b"\xfd\x011234",
        b"\xfb\x01\x03\x08\x01\x04\x12\x01x\xfc\x01",
    ];
    for field in unknown {
        let bytes = [field, b"\x20\x01".as_slice()].concat();
        assert_eq!(decode::<ConfigMap>(&bytes).unwrap().immutable, Some(true), "{field:?}");
        for length in 1..field.len() {
            if length != 2 || field[0] != 0xf8 {
                assert_eq!(text::<ConfigMap>(&field[..length]), "unexpected EOF", "{field:?} {length}");
            }
        }
    }
    assert_eq!(text::<ConfigMap>(b"\xfe\x01"), "proto: illegal wireType 6");
    assert_eq!(text::<ConfigMap>(b"\x0f"), "proto: wrong wireType = 7 for field ObjectMeta");
    assert_eq!(text::<ConfigMap>(b"\x0c"), "proto: ConfigMap: wiretype end group for non-group");
    assert_eq!(text::<ConfigMap>(b"\x00"), "proto: ConfigMap: illegal tag 0 (wire type 0)");
    // The number is cut to 32 bits, and is negative here.
    assert_eq!(
        text::<ConfigMap>(b"\xfa\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00"),
        "proto: ConfigMap: illegal tag -1 (wire type 18446744073709551610)"
    );
    assert_eq!(text::<ConfigMap>(b"\x12\x01\x1c"), "proto: unexpected end of group");
    assert_eq!(text::<ConfigMap>(b"\x0a\x02\x08\x01"), "proto: wrong wireType = 0 for field Name");
    assert_eq!(text::<ObjectMeta>(b"\x28\x01"), "proto: wrong wireType = 0 for field UID");
    assert_eq!(text::<ManagedFieldsEntry>(b"\x38\x01"), "proto: wrong wireType = 0 for field FieldsV1");
    assert_eq!(text::<ManagedFieldsEntry>(b"\x18\x01"), "proto: wrong wireType = 0 for field APIVersion");
    assert_eq!(text::<Status>(b"\x08\x01"), "proto: wrong wireType = 0 for field ListMeta");
}

#[test]
fn lengths_and_varints() {
    let endless = [0xff; 12];
    assert_eq!(text::<ConfigMap>(&endless[..10]), "proto: integer overflow");
    assert_eq!(text::<ConfigMap>(&endless[..9]), "unexpected EOF");
    assert_eq!(text::<ConfigMap>(&[b"\x20".as_slice(), &endless].concat()), "proto: integer overflow");
    // Lengths beyond the input reserve nothing.
    for length in [4_u64, 1 << 40, i64::MAX as u64] {
        let mut bytes = vec![0x12];
        write_varint(&mut bytes, length);
        bytes.extend_from_slice(b"abc");
        assert_eq!(text::<ConfigMap>(&bytes), "unexpected EOF");
    }
    let mut bytes = vec![0x12];
    write_varint(&mut bytes, 1 << 63);
    assert_eq!(text::<ConfigMap>(&bytes), "proto: negative length found during unmarshaling");

    // Varints may be longer than they must, and are cut to the type.
    let tree: Tree = decode(b"\x18\x81\x80\x80\x80\x10\x40\x82\x80\x00").unwrap();
    assert_eq!((tree.small, tree.flag), (1, true));
    for value in [0, 1, 127, 128, 300, 1 << 35, u64::MAX] {
        let mut bytes = Vec::new();
        write_varint(&mut bytes, value);
        assert_eq!(Reader::new(&bytes).varint().unwrap(), value);
    }
    for length in [0, 1, 127, 128, 16_383, 16_384] {
        let mut bytes = b"x".to_vec();
        write_nested(&mut bytes, |out| out.resize(out.len() + length, 7));
        assert_eq!(Reader::new(&bytes[1..]).delimited().unwrap(), vec![7; length]);
    }
}

#[test]
fn repeated_fields() {
    // Scalars: the last. Messages: both. Lists: all. Maps: the last of each key.
    let bytes = b"\x0a\x03\x0a\x01a\x0a\x03\x12\x01b\x20\x01\x20\x00\x12\x06\x0a\x01k\x12\x01v\x12\x06\x0a\x01k\x12\x01w\x12\x00";
    let this: ConfigMap = decode(bytes).unwrap();
    assert_eq!(this.metadata.name.as_deref(), Some("a"));
    assert_eq!(this.metadata.generate_name.as_deref(), Some("b"));
    assert_eq!(this.immutable, Some(false));
    let data: Vec<_> = this.data.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    assert_eq!(data, [("", ""), ("k", "w")]);

    // Zero is absent where Go has no pointer, however it is written, and takes back what was said before.
    for zero in [b"\x0a\x01x\x0a\x00".as_slice(), b"\x0a\x80\x00", b"\x38\x00", b"\x38\x80\x00", b"\x42\x00"] {
        assert_eq!(decode::<ObjectMeta>(zero).unwrap(), ObjectMeta::default(), "{zero:?}");
    }
    let options: DeleteOptions = decode(b"\x08\x00\x18\x00\x22\x00").unwrap();
    assert_eq!(options.grace_period_seconds, Some(0));
    assert_eq!(options.orphan_dependents, Some(false));
    assert_eq!(options.propagation_policy.as_deref(), Some(""));
}

#[test]
fn lists_of_numbers_may_be_packed() {
    let tree: Tree = decode(b"\x10\x01\x12\x03\x02\xac\x02\x10\x03\x2a\x04\x00\x00\x80\x3f").unwrap();
    assert_eq!(tree.numbers, [1, 2, 300, 3]);
    assert_eq!(tree.floats, [1.0]);
    assert_eq!(&encode(&tree)[..10], b"\x10\x01\x10\x02\x10\xac\x02\x10\x03\x18");
    assert_eq!(text::<Tree>(b"\x12\x02\x02\xac"), "unexpected EOF");
    assert_eq!(text::<Tree>(b"\x11\x02"), "proto: wrong wireType = 1 for field Numbers");
}

#[test]
fn every_way_of_being_there() {
    let empty = Tree { not_sent: "x".to_owned(), ..Tree::default() };
    let bytes = b"\x18\x00\x21\0\0\0\0\0\0\0\0\x39\0\0\0\0\0\0\0\0\x40\x00\x48\x00\x52\x00\x85\x01\0\0\0\0";
    assert_eq!(encode(&empty), bytes);
    assert_eq!(decode::<Tree>(bytes).unwrap(), Tree::default());
    let full = Tree {
        children: vec![Tree::default(), Tree { small: -1, ..Tree::default() }],
        by_number: [(7, Tree { flag: true, ..Tree::default() }), (2, Tree::default())].into(),
        float: 1.5,
        maybe: Some(-2.5),
        large: u64::MAX,
        names: vec!["a".to_owned(), String::new()],
        ratio: Some(0.5),
        ..Tree::default()
    };
    assert_eq!(decode::<Tree>(&encode(&full)).unwrap(), full);
}

#[test]
fn nesting_is_bounded() {
    let nested = |depth: usize| {
        let mut bytes = Vec::new();
        for _ in 0..depth {
            let inner = std::mem::take(&mut bytes);
            bytes.push(0x0a);
            write_nested(&mut bytes, |out| out.extend_from_slice(&inner));
        }
        bytes
    };
    assert_eq!(text::<Tree>(&nested(MAX_DEPTH)), "ok");
    assert_eq!(decode::<Tree>(&nested(MAX_DEPTH + 1)), Err(Error::TooDeep));
    assert_eq!(decode::<Tree>(&nested(20_000)), Err(Error::TooDeep));
    // Groups nest as deep as they like, and take no stack.
    let groups = 1_000_000;
    let mut bytes = [0xfb, 0x01].repeat(groups);
    assert_eq!(text::<Tree>(&bytes), "unexpected EOF");
    bytes.extend([0xfc, 0x01].repeat(groups));
    assert_eq!(text::<Tree>(&bytes), "ok");
}

#[test]
fn what_a_field_cannot_hold() {
    assert_eq!(text::<ObjectMeta>(b"\x2a\x01\xff"), "proto: field UID contains invalid UTF-8");
    assert_eq!(text::<ConfigMap>(b"\x12\x03\x0a\x01\xff"), "proto: field Data contains invalid UTF-8");
    assert_eq!(text::<ConfigMap>(b"\x1a\x05\x0a\x00\x12\x01\xff"), "ok");
    assert_eq!(text::<ListOptions>(b"\x52\x05Exact"), "ok");
    assert!(text::<ListOptions>(b"\x52\x01x").starts_with("proto: field ResourceVersionMatch: unknown variant `x`"));
    let entry = b"\x22\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x10";
    assert_eq!(text::<ManagedFieldsEntry>(entry), "unexpected EOF");
    assert!(text::<ManagedFieldsEntry>(b"\x22\x0a\x08\xff\xff\xff\xff\xff\xff\xff\xff\x7f").contains("field Time: "));
    assert!(text::<ManagedFieldsEntry>(b"\x3a\x03\x0a\x01{").starts_with("proto: field FieldsV1: EOF"));
    let deep = [b"[".repeat(5_000), b"]".repeat(5_000)].concat();
    let mut bytes = vec![0x3a];
    write_nested(&mut bytes, |out| {
        out.push(0x0a);
        write_nested(out, |out| out.extend_from_slice(&deep));
    });
    assert!(text::<ManagedFieldsEntry>(&bytes).contains("recursion limit"));
}

#[test]
fn documents() {
    let round = |document: serde_json::Value| {
        let mut out = Vec::new();
        RawExtension(document.clone()).write(&mut out);
        let mut read = RawExtension::zero();
        read.merge(&mut Reader::new(&out), FieldName::new("object")).unwrap();
        assert_eq!(read.0, document);
        out
    };
    assert_eq!(round(json!(null)), b"\x00");
    assert_eq!(round(json!({"a": 1})), b"\x09\x0a\x07{\"a\":1}");
    let mut fields = FieldsV1(json!({"f:x": {}}));
    fields.merge(&mut Reader::new(b"\x02\x0a\x00"), FieldName::new("fields_v1")).unwrap();
    assert_eq!(fields.0, json!(null));
}

#[test]
fn times() {
    let write = |value: &dyn Fn(&mut Vec<u8>)| {
        let mut out = Vec::new();
        value(&mut out);
        out
    };
    // Rounded down, before 1970 too.
    let time = Time("1969-12-31T23:59:58.5Z".parse().unwrap());
    assert_eq!(write(&|out| time.write(out)), b"\x0d\x08\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x10\x00");
    let micro = MicroTime("1969-12-31T23:59:59.0000019Z".parse().unwrap());
    assert_eq!(write(&|out| micro.write(out)), b"\x0e\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x10\xe8\x07");
    // Nanoseconds are no part of a Time, whoever writes them.
    let read = |bytes: &[u8]| {
        let condition: Condition = decode(bytes).unwrap();
        condition.last_transition_time.0.to_string()
    };
    assert_eq!(read(b"\x22\x06\x08\x01\x10\x80\x94\x6b"), "1970-01-01T00:00:01Z");
    assert_eq!(read(b"\x22\x00"), "0001-01-01T00:00:00Z");
    assert_eq!(read(b""), "0001-01-01T00:00:00Z");
    let mut micro = MicroTime::zero();
    micro.merge(&mut Reader::new(b"\x05\x08\x01\x10\xff\x0f"), FieldName::new("time")).unwrap();
    assert_eq!(micro.0.to_string(), "1970-01-01T00:00:01.000002Z");
}

#[test]
fn events_without_an_object() {
    let event = WatchEvent { type_: "ADDED".to_owned(), ..WatchEvent::default() };
    assert_eq!(encode(&event), b"\x0a\x05ADDED\x12\x00");
    assert!(WatchEvent::from_stream(b"\0\0\0\x01\x00").is_err());
}

/// The bytes are Go's.
#[test]
fn numbers_and_quantities() {
    fn check<T: Value + PartialEq + std::fmt::Debug>(value: &T, bytes: &[u8]) {
        let mut out = Vec::new();
        value.write(&mut out);
        assert_eq!(out, bytes, "{value:?}");
        assert_eq!(&read::<T>(bytes).unwrap(), value);
    }
    fn read<T: Value>(bytes: &[u8]) -> Result<T, Error> {
        let mut value = T::zero();
        value.merge(&mut Reader::new(bytes), FieldName::new("value")).map(|()| value)
    }
    check(&IntOrString::Int(0), b"\x06\x08\x00\x10\x00\x1a\x00");
    check(&IntOrString::Int(5), b"\x06\x08\x00\x10\x05\x1a\x00");
    check(&IntOrString::Int(-1), b"\x0f\x08\x00\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x1a\x00");
    check(&IntOrString::String("a%".to_owned()), b"\x08\x08\x01\x10\x00\x1a\x02a%");
    check(&IntOrString::String(String::new()), b"\x06\x08\x01\x10\x00\x1a\x00");
    assert_eq!(read::<IntOrString>(b"\x00"), Ok(IntOrString::Int(0)));
    assert_eq!(read::<IntOrString>(b"\x05\x08\x00\x1a\x01x"), Ok(IntOrString::Int(0)));
    let error = read::<IntOrString>(b"\x02\x08\x02").unwrap_err();
    assert_eq!(error.to_string(), "proto: field Value: impossible IntOrString.Type");

    check(&Quantity("1500m".to_owned()), b"\x07\x0a\x051500m");
    check(&Quantity("10Gi".to_owned()), b"\x06\x0a\x0410Gi");
    assert_eq!(read::<Quantity>(b"\x00"), Ok(Quantity("0".to_owned())));
    for zero in [|out: &mut Vec<u8>| Quantity(String::new()).write(out), |out: &mut Vec<u8>| Quantity::write_zero(out)]
    {
        let mut out = Vec::new();
        zero(&mut out);
        assert_eq!(out, b"\x03\x0a\x010");
    }
}
