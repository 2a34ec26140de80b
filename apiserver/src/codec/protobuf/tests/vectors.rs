//! What the Go originals write and read.

use base64::prelude::{BASE64_STANDARD, Engine};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    APIGroup, APIResourceList, Condition, DeleteOptions, LabelSelector, MicroTime, ObjectMeta, Status, Time,
};
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};

use super::{ConfigMap, ConfigMapList, CreateOptions, GetOptions, ListOptions, PatchOptions, UpdateOptions};
use crate::{
    codec::{
        json,
        protobuf::{
            Error, ListWriter, Message, PartialObjectMetadata, PartialObjectMetadataList, Reader, Unknown, Value,
            WatchEvent, decode, encode, is_envelope, object, watch_frame, wire::write_delimited, write_partial,
        },
        typed,
    },
    test_vectors::lines,
};

const OBJECTS: &str = include_str!("../../../../tests/vectors/protobuf/objects.jsonl");
const WATCH: &str = include_str!("../../../../tests/vectors/protobuf/watch.jsonl");
const WIRE: &str = include_str!("../../../../tests/vectors/protobuf/wire.jsonl");
const ERRORS: &str = include_str!("../../../../tests/vectors/protobuf/errors.jsonl");

fn bytes(case: &Json, name: &str) -> Vec<u8> {
    BASE64_STANDARD.decode(case[name].as_str().unwrap()).unwrap()
}

fn text<'a>(case: &'a Json, name: &str) -> &'a str {
    case[name].as_str().unwrap_or_default()
}

/// JSON as the library reads it from clients.
fn from_json<T: DeserializeOwned>(json: &Json) -> T {
    let node = json::parse(json.to_string().as_bytes()).unwrap();
    typed::decode_object(&node, &mut typed::Problems::new(false)).unwrap()
}

/// The object is written as the original writes it, with and without envelope, and read back.
fn check<T: Message + DeserializeOwned + PartialEq + std::fmt::Debug>(case: &Json) {
    let json = &case["json"];
    let this: T = from_json(json);
    let (envelope, raw) = (bytes(case, "envelope"), bytes(case, "raw"));
    assert_eq!(encode(&this), raw, "{case}");
    assert_eq!(object(text(json, "kind"), text(json, "apiVersion"), &this), envelope, "{case}");
    let opened = Unknown::decode(&envelope).unwrap();
    assert_eq!(opened.raw, raw, "{case}");
    assert_eq!(opened.encode(), envelope, "{case}");
    let kind = opened.group_version_kind(None).unwrap();
    assert_eq!(json!({"group": kind.group, "version": kind.version, "kind": kind.kind}), case["gvk"], "{case}");
    let expected: T = from_json(case.get("decodedJSON").unwrap_or(json));
    assert_eq!(decode::<T>(&raw).unwrap(), expected, "{case}");
}

/// A value that stands alone in its vector stands in a field otherwise, with its length.
fn check_field<T: Value + PartialEq + std::fmt::Debug>(this: &T, raw: &[u8]) {
    let mut field = Vec::new();
    write_delimited(&mut field, raw);
    let mut out = Vec::new();
    this.write(&mut out);
    assert_eq!(out, field, "{this:?}");
    let mut read = T::zero();
    read.merge(&mut Reader::new(&field), super::super::FieldName::new("time")).unwrap();
    assert_eq!(&read, this);
}

/// What is read of a time with fractions is what is written of it.
fn time(case: &Json, precision: i64) -> k8s_openapi::jiff::Timestamp {
    let text = case["json"].as_str().unwrap_or("0001-01-01T00:00:00Z");
    let time: k8s_openapi::jiff::Timestamp = text.parse().unwrap();
    assert_eq!(i64::from(time.subsec_nanosecond()) % precision, 0);
    time
}

#[test]
fn objects() {
    let mut count = 0;
    for case in lines(OBJECTS) {
        count += 1;
        match (text(&case["json"], "kind"), text(&case, "type")) {
            ("Status", _) => check::<Status>(&case),
            ("DeleteOptions", _) => check::<DeleteOptions>(&case),
            ("CreateOptions", _) => check::<CreateOptions>(&case),
            ("UpdateOptions", _) => check::<UpdateOptions>(&case),
            ("PatchOptions", _) => check::<PatchOptions>(&case),
            ("GetOptions", _) => check::<GetOptions>(&case),
            ("ListOptions", _) => check::<ListOptions>(&case),
            ("PartialObjectMetadata", _) => check::<PartialObjectMetadata>(&case),
            ("PartialObjectMetadataList", _) => check::<PartialObjectMetadataList>(&case),
            ("ConfigMap", _) => check::<ConfigMap>(&case),
            ("ConfigMapList", _) => check::<ConfigMapList>(&case),
            ("APIGroup", _) => check::<APIGroup>(&case),
            ("APIResourceList", _) => check::<APIResourceList>(&case),
            (_, "Time") => check_field(&Time(time(&case, 1_000_000_000)), &bytes(&case, "raw")),
            (_, "MicroTime") => check_field(&MicroTime(time(&case, 1_000)), &bytes(&case, "raw")),
            (_, "ObjectMeta") => check_field::<ObjectMeta>(&from_json(&case["json"]), &bytes(&case, "raw")),
            _ => {
                let envelope = bytes(&case, "envelope");
                let opened = Unknown::decode(&envelope).unwrap();
                let expected = &case["unknown"];
                assert_eq!(opened.api_version, expected["apiVersion"]);
                assert_eq!(opened.kind, expected["kind"]);
                assert_eq!(opened.content_type, expected["contentType"]);
                assert_eq!(opened.content_encoding, expected["contentEncoding"]);
                assert_eq!(std::str::from_utf8(opened.raw).unwrap(), expected["rawText"]);
                assert_eq!(opened.encode(), envelope);
            }
        }
    }
    assert_eq!(count, 32);
}

#[test]
fn lists_are_written_item_by_item() {
    let mut count = 0;
    for case in lines(OBJECTS) {
        let json = &case["json"];
        let (kind, api_version) = (text(json, "kind"), text(json, "apiVersion"));
        let written = match kind {
            "PartialObjectMetadataList" => {
                let list: PartialObjectMetadataList = from_json(json);
                let mut writer = ListWriter::new(kind, api_version, &list.metadata);
                for item in &list.items {
                    writer.with_item(|out| write_partial(&item.metadata, out));
                }
                writer.finish()
            }
            "ConfigMapList" => {
                let list: ConfigMapList = from_json(json);
                let mut writer = ListWriter::new(kind, api_version, &list.metadata);
                list.items.iter().for_each(|item| writer.item(item));
                writer.finish()
            }
            _ => continue,
        };
        assert_eq!(written, bytes(&case, "envelope"), "{case}");
        count += 1;
    }
    assert_eq!(count, 3);
}

#[test]
fn watch_events() {
    let mut count = 0;
    for case in lines(WATCH) {
        let objects: Vec<Json> = lines(OBJECTS).collect();
        let object = objects.iter().find(|object| object["id"] == case["object"]).unwrap();
        let (envelope, frame) = (bytes(object, "envelope"), bytes(&case, "frame"));
        assert_eq!(watch_frame(text(&case, "type"), &envelope).unwrap(), frame, "{case}");

        let event: WatchEvent = decode(&bytes(&case, "event")).unwrap();
        assert_eq!(event.type_, case["type"]);
        assert_eq!(event.object.raw.as_ref().unwrap().0, envelope, "{case}");
        assert_eq!(encode(&event), bytes(&case, "event"), "{case}");

        let stream = [frame.as_slice(), b"more"].concat();
        assert_eq!(WatchEvent::from_stream(&stream).unwrap(), Some((event, frame.len())));
        for length in 0..frame.len() {
            assert_eq!(WatchEvent::from_stream(&frame[..length]).unwrap(), None);
        }
        count += 1;
    }
    assert_eq!(count, 5);
}

#[test]
fn errors() {
    let mut count = 0;
    for case in lines(ERRORS) {
        count += 1;
        let bytes = bytes(&case, "bytes");
        assert_eq!(is_envelope(&bytes), case["recognized"], "{case}");
        let outcome = Unknown::decode(&bytes).and_then(|opened| {
            let kind = opened.group_version_kind(None)?;
            // Which kinds there are is known to others.
            assert_eq!(kind.kind == "Nope", case["notRegistered"] == true, "{case}");
            decode::<ConfigMap>(opened.raw)
        });
        if case["notRegistered"] == true {
            continue;
        }
        assert_eq!(matches!(outcome, Err(Error::MissingKind(_))), case["missingKind"] == true, "{case}");
        assert_eq!(matches!(outcome, Err(Error::MissingVersion(_))), case["missingVersion"] == true, "{case}");
        match outcome {
            Ok(this) => {
                assert_eq!(case.get("error"), None);
                assert_eq!(this, from_json(&case["json"]));
            }
            Err(error) => assert_eq!(error.to_string(), text(&case, "error"), "{case}"),
        }
    }
    assert_eq!(count, 17);
}

#[test]
fn the_default_kind_fills_in_what_is_left_out() {
    let default =
        crate::meta::GroupVersionKind { group: "g".to_owned(), version: "v1".to_owned(), kind: "Pizza".to_owned() };
    let kind = |api_version: &str, kind: &str| {
        let unknown = Unknown { api_version: api_version.to_owned(), kind: kind.to_owned(), ..Unknown::default() };
        let found = unknown.group_version_kind(Some(&default)).unwrap();
        format!("{} {}", found.api_version(), found.kind)
    };
    assert_eq!(kind("", ""), "g/v1 Pizza");
    assert_eq!(kind("h/v2", ""), "h/v2 Pizza");
    assert_eq!(kind("", "Cake"), "g/v1 Cake");
    assert_eq!(kind("v2", "Cake"), "v2 Cake");
    assert_eq!(kind("a/b/c", "Cake"), "g/v1 Cake");
    assert_eq!(kind("h/", "Cake"), "g/v1 Cake");
}

/// Messages with bytes changed at random: the same is read of them, or the same is wrong with them. In `stricter` stands why they are
/// refused although Go takes them.
#[test]
fn changed_bytes() {
    fn outcome<M: Message>(bytes: &[u8]) -> Result<Vec<u8>, Error> {
        decode::<M>(bytes).map(|message| encode(&message))
    }

    let (mut count, mut stricter) = (0, 0);
    for case in lines(WIRE) {
        count += 1;
        let of_type = match text(&case, "type") {
            "APIGroup" => outcome::<APIGroup>,
            "Condition" => outcome::<Condition>,
            "ConfigMap" => outcome::<ConfigMap>,
            "DeleteOptions" => outcome::<DeleteOptions>,
            "LabelSelector" => outcome::<LabelSelector>,
            "ObjectMeta" => outcome::<ObjectMeta>,
            "PartialObjectMetadataList" => outcome::<PartialObjectMetadataList>,
            "Status" => outcome::<Status>,
            "WatchEvent" => outcome::<WatchEvent>,
            other => unreachable!("{other}"),
        };
        match of_type(&bytes(&case, "bytes")) {
            Ok(encoded) => assert_eq!(encoded, bytes(&case, "encoded"), "{case}"),
            Err(_) if case.get("stricter").is_some() => stricter += 1,
            Err(error) => assert_eq!(error.to_string(), text(&case, "error"), "{case}"),
        }
    }
    assert_eq!((count, stricter), (768, 37));
}
