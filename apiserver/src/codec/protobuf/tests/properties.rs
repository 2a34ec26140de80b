//! What holds for all objects and for all bytes.

use k8s_openapi::{
    ByteString,
    apimachinery::pkg::apis::meta::v1::{
        APIGroup, APIResourceList, Condition, DeleteOptions, FieldsV1, LabelSelector, LabelSelectorRequirement,
        ManagedFieldsEntry, ObjectMeta, OwnerReference, Status, StatusCause, StatusDetails, Time,
    },
};
use proptest::{
    collection::{btree_map, vec},
    option,
    prelude::*,
};
use serde_json::{Value as Json, json};

use super::{ConfigMap, ListOptions, Tree};
use crate::{
    codec::protobuf::{
        ListWriter, Message, PartialObjectMetadataList, Reader, Unknown, WatchEvent, decode, encode, object,
        watch_frame,
    },
    meta::ListMeta,
};

/// A text that is there: where Go has no pointer, an empty one is absent.
fn some() -> impl Strategy<Value = Option<String>> {
    option::of(".{1,20}")
}

fn time() -> impl Strategy<Value = Time> {
    (-62_000_000_000_i64..250_000_000_000)
        .prop_map(|seconds| Time(k8s_openapi::jiff::Timestamp::from_second(seconds).unwrap()))
}

fn fields() -> impl Strategy<Value = Json> {
    Just(json!({})).prop_recursive(5, 30, 4, |inner| {
        btree_map("[f.k]:.{0,5}", inner, 0..4).prop_map(|fields| Json::Object(fields.into_iter().collect()))
    })
}

fn owner() -> impl Strategy<Value = OwnerReference> {
    (".*", ".*", ".*", ".*", any::<Option<bool>>(), any::<Option<bool>>()).prop_map(
        |(api_version, kind, name, uid, controller, block_owner_deletion)| OwnerReference {
            api_version,
            kind,
            name,
            uid,
            controller,
            block_owner_deletion,
        },
    )
}

fn managed() -> impl Strategy<Value = ManagedFieldsEntry> {
    (some(), some(), some(), option::of(time()), option::of(fields()), some(), some()).prop_map(
        |(manager, operation, api_version, time, fields, fields_type, subresource)| ManagedFieldsEntry {
            manager,
            operation,
            api_version,
            time,
            fields_type,
            fields_v1: fields.map(FieldsV1),
            subresource,
        },
    )
}

fn metadata() -> impl Strategy<Value = ObjectMeta> {
    let texts = (some(), some(), some(), some(), some(), some());
    let numbers = (any::<i64>(), any::<Option<i64>>(), option::of(time()), option::of(time()));
    let labels = || option::of(btree_map(".{0,8}", ".{0,200}", 1..4));
    let lists = (option::of(vec(".{0,9}", 1..4)), option::of(vec(owner(), 1..4)), option::of(vec(managed(), 1..4)));
    (texts, numbers, labels(), labels(), lists).prop_map(|(texts, numbers, labels, annotations, lists)| ObjectMeta {
        name: texts.0,
        generate_name: texts.1,
        namespace: texts.2,
        self_link: texts.3,
        uid: texts.4,
        resource_version: texts.5,
        generation: Some(numbers.0).filter(|&generation| generation != 0),
        deletion_grace_period_seconds: numbers.1,
        creation_timestamp: numbers.2,
        deletion_timestamp: numbers.3,
        labels,
        annotations,
        finalizers: lists.0,
        owner_references: lists.1,
        managed_fields: lists.2,
    })
}

fn config_map() -> impl Strategy<Value = ConfigMap> {
    let data = (btree_map(".*", ".*", 0..4), btree_map(".*", vec(any::<u8>(), 0..300).prop_map(ByteString), 0..4));
    (metadata(), data, any::<Option<bool>>()).prop_map(|(metadata, (data, binary_data), immutable)| ConfigMap {
        metadata,
        data,
        binary_data,
        immutable,
    })
}

fn status() -> impl Strategy<Value = Status> {
    let cause = (some(), some(), some()).prop_map(|(reason, message, field)| StatusCause { reason, message, field });
    let details = (some(), some(), option::of(vec(cause, 1..4)), option::of(1_i32..)).prop_map(
        |(name, uid, causes, retry_after_seconds)| StatusDetails {
            name,
            uid,
            causes,
            retry_after_seconds,
            ..StatusDetails::default()
        },
    );
    (some(), some(), option::of(details), option::of(1_i32..), any::<Option<i64>>()).prop_map(
        |(reason, message, details, code, remaining_item_count)| Status {
            reason,
            message,
            details,
            code,
            metadata: ListMeta { remaining_item_count, ..ListMeta::default() },
            ..Status::default()
        },
    )
}

fn condition() -> impl Strategy<Value = Condition> {
    (".*", ".*", ".*", ".*", option::of(1_i64..), time()).prop_map(
        |(type_, status, reason, message, observed_generation, last_transition_time)| Condition {
            type_,
            status,
            reason,
            message,
            observed_generation,
            last_transition_time,
        },
    )
}

fn selector() -> impl Strategy<Value = LabelSelector> {
    let requirement = (".*", ".*", option::of(vec(".*", 1..4)))
        .prop_map(|(key, operator, values)| LabelSelectorRequirement { key, operator, values });
    (option::of(btree_map(".*", ".*", 1..4)), option::of(vec(requirement, 1..4)))
        .prop_map(|(match_labels, match_expressions)| LabelSelector { match_labels, match_expressions })
}

/// What decodes is written so that it decodes to the same again.
fn settles<M: Message>(bytes: &[u8]) {
    if let Ok(message) = decode::<M>(bytes) {
        let once = encode(&message);
        let again = decode::<M>(&once).unwrap_or_else(|error| panic!("{error}: {once:?} of {bytes:?}"));
        assert_eq!(encode(&again), once, "{bytes:?}");
    }
}

fn anything(bytes: &[u8]) {
    settles::<ConfigMap>(bytes);
    settles::<ObjectMeta>(bytes);
    settles::<PartialObjectMetadataList>(bytes);
    settles::<Status>(bytes);
    settles::<Condition>(bytes);
    settles::<LabelSelector>(bytes);
    settles::<DeleteOptions>(bytes);
    settles::<ListOptions>(bytes);
    settles::<APIGroup>(bytes);
    settles::<APIResourceList>(bytes);
    settles::<Tree>(bytes);
    settles::<WatchEvent>(bytes);
    let _ = WatchEvent::from_stream(bytes);
    if let Ok(opened) = Unknown::decode(bytes) {
        let _ = opened.group_version_kind(None);
        assert_eq!(Unknown::decode(&opened.encode()).as_ref(), Ok(&opened));
    }
}

/// Where the top-level fields end: cut there, a message is a shorter one.
fn ends(bytes: &[u8]) -> Vec<usize> {
    let mut lengths = vec![0];
    let mut reader = Reader::new(bytes);
    while let Some(key) = reader.key("").unwrap() {
        reader.skip(key).unwrap();
        lengths.push(bytes.len() - reader.remaining());
    }
    lengths
}

proptest! {
    #[test]
    fn objects_round_trip(this in config_map()) {
        let envelope = object("ConfigMap", "v1", &this);
        let opened = Unknown::decode(&envelope).unwrap();
        prop_assert_eq!(decode::<ConfigMap>(opened.raw).unwrap(), this);
    }

    #[test]
    fn shared_types_round_trip(status in status(), condition in condition(), selector in selector()) {
        prop_assert_eq!(decode::<Status>(&encode(&status)).unwrap(), status);
        prop_assert_eq!(decode::<Condition>(&encode(&condition)).unwrap(), condition);
        prop_assert_eq!(decode::<LabelSelector>(&encode(&selector)).unwrap(), selector);
    }

    #[test]
    fn what_is_cut_is_refused(this in config_map()) {
        let raw = encode(&this);
        let ends = ends(&raw);
        for length in 0..raw.len() {
            prop_assert_eq!(decode::<ConfigMap>(&raw[..length]).is_ok(), ends.contains(&length), "{}", length);
        }
        let mut list = ListWriter::new("ConfigMapList", "v1", &ListMeta::default());
        list.item(&this);
        let list = list.finish();
        // Cut between its fields, an envelope says less, but is one.
        let ends = self::ends(&list[4..]);
        for length in 0..list.len() {
            let between = length > 4 && ends.contains(&(length - 4));
            prop_assert_eq!(Unknown::decode(&list[..length]).is_ok(), between, "{}", length);
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..200)) {
        anything(&bytes);
        anything(&[b"k8s\0", bytes.as_slice()].concat());
    }

    /// Bytes that are nearly an object come further than those that are none.
    #[test]
    fn nearly_an_object_is_read_or_refused(
        this in config_map(),
        status in status(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>(), 0_u8..3), 1..6),
    ) {
        let frame = watch_frame("ADDED", &object("ConfigMap", "v1", &this)).unwrap();
        for mut bytes in [encode(&this), encode(&this.metadata), encode(&status), frame] {
            for (index, byte, change) in &changes {
                if bytes.is_empty() {
                    break;
                }
                let at = index.index(bytes.len());
                match change {
                    0 => bytes[at] = *byte,
                    1 => bytes.insert(at, *byte),
                    _ => drop(bytes.remove(at)),
                }
            }
            anything(&bytes);
        }
    }
}
