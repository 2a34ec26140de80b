//! The types that all APIs share: k8s.io/apimachinery `pkg/apis/meta/v1/generated.proto`.

use k8s_openapi::{
    apimachinery::pkg::{
        apis::meta::v1::{
            APIGroup, APIResource, APIResourceList, Condition, DeleteOptions, FieldsV1, GroupVersionForDiscovery,
            LabelSelector, LabelSelectorRequirement, ListMeta, ManagedFieldsEntry, MicroTime, ObjectMeta,
            OwnerReference, Preconditions, ServerAddressByClientCIDR, ShardInfo, Status, StatusCause, StatusDetails,
            Time,
        },
        runtime::RawExtension,
    },
    jiff,
};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::{
    Error, Field, FieldName, Message, Reader, Value, WireType,
    wire::{write_delimited, write_key, write_nested},
};
use crate::{codec, protobuf};

/// An object of which only the metadata is asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PartialObjectMetadata {
    /// The object's metadata.
    pub metadata: ObjectMeta,
}

/// A list of such objects.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PartialObjectMetadataList {
    /// The list's metadata.
    pub metadata: ListMeta,
    /// The objects.
    pub items: Vec<PartialObjectMetadata>,
}

/// A time as both kinds of time write it.
struct Timestamp {
    seconds: i64,
    nanos: i32,
}

/// The seconds of Go's zero time, the beginning of the year 1, which is written as an empty message.
const GO_ZERO: jiff::Timestamp = jiff::Timestamp::constant(-62_135_596_800, 0);

const NANOS: i128 = 1_000_000_000;

protobuf! {
    ObjectMeta {
        name = 1 always,
        generate_name = 2 always,
        namespace = 3 always,
        self_link = 4 always,
        uid = 5 always,
        resource_version = 6 always,
        generation = 7 always,
        creation_timestamp = 8 always,
        deletion_timestamp = 9,
        deletion_grace_period_seconds = 10,
        labels = 11,
        annotations = 12,
        owner_references = 13,
        finalizers = 14,
        managed_fields = 17,
    }
    OwnerReference {
        kind = 1,
        name = 3,
        uid = 4,
        api_version = 5,
        controller = 6,
        block_owner_deletion = 7,
    }
    ManagedFieldsEntry {
        manager = 1 always,
        operation = 2 always,
        api_version = 3 always,
        time = 4,
        fields_type = 6 always,
        fields_v1 = 7,
        subresource = 8 always,
    }
    ListMeta {
        self_link = 1 always,
        resource_version = 2 always,
        continue_ = 3 always,
        remaining_item_count = 4,
        shard_info = 5,
    }
    ShardInfo {
        selector = 1,
    }
    PartialObjectMetadata {
        metadata = 1,
    }
    PartialObjectMetadataList {
        metadata = 1,
        items = 2,
    }
    Condition {
        type_ = 1,
        status = 2,
        observed_generation = 3 always,
        last_transition_time = 4,
        reason = 5,
        message = 6,
    }
    LabelSelector {
        match_labels = 1,
        match_expressions = 2,
    }
    LabelSelectorRequirement {
        key = 1,
        operator = 2,
        values = 3,
    }
    Status {
        metadata = 1,
        status = 2 always,
        message = 3 always,
        reason = 4 always,
        details = 5,
        code = 6 always,
    }
    StatusDetails {
        name = 1 always,
        group = 2 always,
        kind = 3 always,
        causes = 4,
        retry_after_seconds = 5 always,
        uid = 6 always,
    }
    StatusCause {
        reason = 1 always,
        message = 2 always,
        field = 3 always,
    }
    DeleteOptions {
        grace_period_seconds = 1,
        preconditions = 2,
        orphan_dependents = 3,
        propagation_policy = 4,
        dry_run = 5,
        ignore_store_read_error_with_cluster_breaking_potential = 6;
        skip api_version, kind
    }
    Preconditions {
        uid = 1,
        resource_version = 2,
    }
    APIGroup {
        name = 1,
        versions = 2,
        preferred_version = 3 always,
        server_address_by_client_cidrs = 4,
    }
    GroupVersionForDiscovery {
        group_version = 1,
        version = 2,
    }
    ServerAddressByClientCIDR {
        client_cidr = 1,
        server_address = 2,
    }
    APIResourceList {
        group_version = 1,
        resources = 2,
    }
    APIResource {
        name = 1,
        namespaced = 2,
        kind = 3,
        verbs = 4 wrapped,
        short_names = 5,
        singular_name = 6,
        categories = 7,
        group = 8 always,
        version = 9 always,
        storage_version_hash = 10 always,
    }
    Timestamp {
        seconds = 1,
        nanos = 2,
    }
}

/// Writes the fields of an object of which only the metadata is asked for.
pub fn write_partial(metadata: &ObjectMeta, out: &mut Vec<u8>) {
    metadata.write_field(1, out);
}

// === impl Timestamp ===

impl Timestamp {
    /// Only the nanoseconds up to this precision are written. Seconds are rounded down, also before 1970.
    fn write(time: jiff::Timestamp, precision: i128, out: &mut Vec<u8>) {
        if time == GO_ZERO {
            return write_delimited(out, b"");
        }
        let nanos = time.as_nanosecond();
        let fraction = nanos.rem_euclid(NANOS);
        let this = Self { seconds: nanos.div_euclid(NANOS) as i64, nanos: (fraction - fraction % precision) as i32 };
        Value::write(&this, out);
    }

    /// Reads a time; nanoseconds are cut to this precision.
    fn read(reader: &mut Reader<'_>, field: FieldName, precision: i128) -> Result<jiff::Timestamp, Error> {
        let mut fields = reader.nested()?;
        if fields.is_empty() {
            return Ok(GO_ZERO);
        }
        let mut this = Self::empty();
        this.merge_fields(&mut fields)?;
        let fraction = i128::from(this.nanos);
        let nanos = i128::from(this.seconds) * NANOS + fraction - fraction % precision;
        jiff::Timestamp::from_nanosecond(nanos).map_err(|error| Error::Unsuitable { field, message: error.to_string() })
    }
}

macro_rules! times {
    ($($type:ident, $precision:expr;)*) => {$(
        impl Value for $type {
            const WIRE_TYPE: WireType = WireType::Delimited;

            fn zero() -> Self {
                Self(GO_ZERO)
            }

            fn write(&self, out: &mut Vec<u8>) {
                Timestamp::write(self.0, $precision, out);
            }

            fn merge(&mut self, reader: &mut Reader<'_>, field: FieldName) -> Result<(), Error> {
                self.0 = Timestamp::read(reader, field, $precision)?;
                Ok(())
            }
        }
    )*};
}

times! {
    Time, NANOS;
    MicroTime, 1_000;
}

// === impl FieldsV1, RawExtension ===

/// Messages with JSON in their only field, which is not there for `null`.
macro_rules! documents {
    ($($type:ident;)*) => {$(
        impl Value for $type {
            const WIRE_TYPE: WireType = WireType::Delimited;

            fn zero() -> Self {
                Self(Json::Null)
            }

            fn write(&self, out: &mut Vec<u8>) {
                write_nested(out, |out| {
                    if !self.0.is_null() {
                        write_key(out, 1, WireType::Delimited);
                        write_nested(out, |out| codec::push_value(out, &self.0));
                    }
                });
            }

            fn merge(&mut self, reader: &mut Reader<'_>, field: FieldName) -> Result<(), Error> {
                let mut fields = reader.nested()?;
                while let Some(key) = fields.key(stringify!($type))? {
                    if key.number() != 1 {
                        fields.skip(key)?;
                        continue;
                    }
                    key.expect(WireType::Delimited, FieldName::new("raw"))?;
                    self.0 = match fields.delimited()? {
                        [] => Json::Null,
                        json => serde_json::from_slice(json)
                            .map_err(|error| Error::Unsuitable { field, message: error.to_string() })?,
                    };
                }
                Ok(())
            }
        }
    )*};
}

documents! {
    FieldsV1;
    RawExtension;
}
