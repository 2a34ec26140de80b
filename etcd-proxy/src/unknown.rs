//! The look at a request's bytes before it is decoded: is it well formed, and does it hold a field that this proxy does
//! not know?
//!
//! A field that a newer etcd has added to a request may carry a key (`Compare.range_end` once was such a field). Decoding
//! would drop it, passing it on could leave the prefix; so the request is refused. What is well formed is decided as Go's
//! protobuf decides it (`google.golang.org/protobuf/internal/impl/decode.go`), where a known field with a wrong wire type
//! is an unknown field. The scan does not recurse, so nesting costs no stack.
//!
//! Decoding does recurse, and prost's own limit is off, since Txns may nest further than it allows. So nothing that comes from
//! outside is decoded unseen: where unknown fields are harmless, [`Schema::check`] takes the look, and at the upstream's answers
//! `depth` does.

use std::{collections::HashMap, sync::LazyLock};

use prost::Message as _;
use prost_types::{
    DescriptorProto, FileDescriptorSet,
    field_descriptor_proto::{Label, Type},
};
use thiserror::Error;
use tonic::Status;

use crate::health;

/// Field numbers below this are found by index.
const DIRECT: usize = 32;
/// Go's limit for nested messages (`protowire.DefaultRecursionLimit`).
const GO_DEPTH: usize = 10_000;
/// The greatest field number there is (`protowire.MaxValidNumber`).
const MAX_FIELD: u64 = (1 << 29) - 1;

const VARINT: u8 = 0;
const FIXED64: u8 = 1;
const LEN: u8 = 2;
const START_GROUP: u8 = 3;
const FIXED32: u8 = 5;

/// The fields of all messages of the API, and of the services beside it.
#[derive(Debug)]
pub struct Schema {
    messages: Vec<MessageFields>,
    by_name: HashMap<String, MessageId>,
    /// What methods answer with, by path.
    responses: HashMap<String, MessageId>,
}

/// A message of a [`Schema`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageId(usize);

/// The descriptors that were compiled in do not hold together.
#[derive(Clone, Debug, Error)]
pub enum SchemaError {
    /// They are not a `FileDescriptorSet`.
    #[error("the descriptors of the etcd API cannot be decoded")]
    Descriptors(#[from] prost::DecodeError),
    /// They are not what reflection needs.
    #[error("the descriptors of the etcd API cannot be shown by reflection: {0}")]
    Reflection(String),
    /// A message is used that is not described.
    #[error("the descriptors of the etcd API lack the message {0}")]
    Missing(String),
}

/// Why a request is refused before it is decoded.
#[derive(Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Not a protocol buffer, by Go's rules.
    Malformed,
    /// A field that is not in the schema, or not with this wire type.
    Unknown {
        /// Full name of the message.
        message: String,
        /// The field's number.
        field: u64,
    },
    /// More levels of nested messages than allowed, yet fewer than Go refuses.
    TooDeep,
    /// More messages than allowed.
    TooMany,
}

/// How much of a request is decoded. An empty message takes two bytes, and a hundred times as many when it is decoded.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Levels of messages below the request.
    pub depth: usize,
    /// Messages on all of these levels together.
    pub messages: usize,
}

#[derive(Debug)]
struct MessageFields {
    name: String,
    direct: [Option<Field>; DIRECT],
    others: Vec<(u64, Field)>,
}

#[derive(Clone, Copy, Debug)]
struct Field {
    kind: Kind,
    repeated: bool,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Scalar(u8),
    Bytes,
    Message(MessageId),
}

/// What becomes of a field that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unknown {
    Refused,
    Skipped,
}

/// A position in the bytes of a request.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// The schema of the etcd API that this crate was built with.
///
/// # Errors
/// When the compiled-in descriptors do not hold together.
pub fn schema() -> Result<&'static Schema, SchemaError> {
    static SCHEMA: LazyLock<Result<Schema, SchemaError>> = LazyLock::new(Schema::load);
    SCHEMA.as_ref().map_err(Clone::clone)
}

// === impl Schema ===

impl Schema {
    fn load() -> Result<Self, SchemaError> {
        let mut all = FileDescriptorSet::default();
        for set in [
            proto::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
        ] {
            all.merge(set)?;
        }
        all.file.extend(health::descriptors()?.file);
        Self::from_descriptors(&all)
    }

    fn from_descriptors(set: &FileDescriptorSet) -> Result<Self, SchemaError> {
        let mut found = Vec::new();
        for file in &set.file {
            for message in &file.message_type {
                collect(file.package(), message, &mut found);
            }
        }
        let by_name: HashMap<String, MessageId> =
            found.iter().enumerate().map(|(index, (name, _))| (name.clone(), MessageId(index))).collect();
        let messages = found
            .into_iter()
            .map(|(name, message)| MessageFields::new(name, message, &by_name))
            .collect::<Result<_, _>>()?;
        let mut responses = HashMap::new();
        for file in &set.file {
            for service in &file.service {
                for method in &service.method {
                    let name = method.output_type().trim_start_matches('.');
                    let id = *by_name.get(name).ok_or_else(|| SchemaError::Missing(name.to_owned()))?;
                    responses.insert(format!("/{}.{}/{}", file.package(), service.name(), method.name()), id);
                }
            }
        }
        Ok(Self { messages, by_name, responses })
    }

    /// The message with this full name.
    ///
    /// # Errors
    /// When there is none.
    pub fn message(&self, name: &str) -> Result<MessageId, SchemaError> {
        self.by_name.get(name).copied().ok_or_else(|| SchemaError::Missing(name.to_owned()))
    }

    /// The message that a method answers with.
    pub(crate) fn response(&self, path: &str) -> Option<MessageId> {
        self.responses.get(path).copied()
    }

    /// The message that a field of a message holds, if it holds one.
    pub(crate) fn inner(&self, id: MessageId, number: u64) -> Option<MessageId> {
        match self.messages.get(id.0)?.field(number)?.kind {
            Kind::Message(inner) => Some(inner),
            Kind::Scalar(_) | Kind::Bytes => None,
        }
    }

    /// Looks through an encoded message of type `root`, with at most so many messages below it.
    ///
    /// # Errors
    /// The first reason to refuse it.
    pub fn scan(&self, root: MessageId, bytes: &[u8], bounds: Bounds) -> Result<(), Refusal> {
        self.walk(root, bytes, bounds, Unknown::Refused)
    }

    /// The same for a message in which an unknown field does no harm. Groups, which no message here has, are malformed: they
    /// may nest to any depth.
    ///
    /// # Errors
    /// The first reason not to decode it.
    pub fn check(&self, root: MessageId, bytes: &[u8], bounds: Bounds) -> Result<(), Refusal> {
        self.walk(root, bytes, bounds, Unknown::Skipped)
    }

    fn walk(&self, root: MessageId, bytes: &[u8], bounds: Bounds, unknown: Unknown) -> Result<(), Refusal> {
        let mut cursor = Cursor { bytes, at: 0 };
        let mut current = (root, bytes.len());
        let mut parents: Vec<(MessageId, usize)> = Vec::new();
        let mut too_deep = false;
        let mut messages = 0;
        loop {
            let (id, end) = current;
            if cursor.at == end {
                match parents.pop() {
                    Some(parent) => current = parent,
                    None if too_deep => return Err(Refusal::TooDeep),
                    None if messages > bounds.messages => return Err(Refusal::TooMany),
                    None => return Ok(()),
                }
                continue;
            }
            let tag = cursor.varint(end)?;
            let (number, wire) = (tag >> 3, (tag & 7) as u8);
            if number == 0 || number > MAX_FIELD {
                return Err(Refusal::Malformed);
            }
            let message = self.messages.get(id.0).ok_or(Refusal::Malformed)?;
            let field = message.field(number);
            match (wire, field) {
                (VARINT, Some(Field { kind: Kind::Scalar(VARINT), .. })) => {
                    cursor.varint(end)?;
                }
                (FIXED64, Some(Field { kind: Kind::Scalar(FIXED64), .. })) => cursor.skip(8, end)?,
                (FIXED32, Some(Field { kind: Kind::Scalar(FIXED32), .. })) => cursor.skip(4, end)?,
                (LEN, Some(Field { kind: Kind::Bytes, .. })) => {
                    let length = cursor.length(end)?;
                    cursor.skip(length, end)?;
                }
                (LEN, Some(Field { kind: Kind::Scalar(scalar), repeated: true })) => {
                    let length = cursor.length(end)?;
                    cursor.packed(scalar, length)?;
                }
                (LEN, Some(Field { kind: Kind::Message(child), .. })) => {
                    let length = cursor.length(end)?;
                    parents.push(current);
                    if parents.len() >= GO_DEPTH {
                        return Err(Refusal::Malformed);
                    }
                    too_deep |= parents.len() > bounds.depth;
                    messages += 1;
                    current = (child, cursor.at + length);
                }
                (VARINT, _) if unknown == Unknown::Skipped => {
                    cursor.varint(end)?;
                }
                (FIXED64, _) if unknown == Unknown::Skipped => cursor.skip(8, end)?,
                (FIXED32, _) if unknown == Unknown::Skipped => cursor.skip(4, end)?,
                (LEN, _) if unknown == Unknown::Skipped => {
                    let length = cursor.length(end)?;
                    cursor.skip(length, end)?;
                }
                (VARINT | FIXED64 | LEN | START_GROUP | FIXED32, _) if unknown == Unknown::Refused => {
                    return Err(Refusal::Unknown { message: message.name.clone(), field: number });
                }
                _ => return Err(Refusal::Malformed),
            }
        }
    }
}

/// Collects a message and those declared inside it under their full names.
fn collect<'a>(scope: &str, message: &'a DescriptorProto, found: &mut Vec<(String, &'a DescriptorProto)>) {
    let name = format!("{scope}.{}", message.name());
    for nested in &message.nested_type {
        collect(&name, nested, found);
    }
    found.push((name, message));
}

// === impl MessageFields ===

impl MessageFields {
    fn new(name: String, message: &DescriptorProto, ids: &HashMap<String, MessageId>) -> Result<Self, SchemaError> {
        let mut fields = Self { name, direct: [None; DIRECT], others: Vec::new() };
        for field in &message.field {
            let kind = match field.r#type() {
                Type::Message | Type::Group => {
                    let name = field.type_name().trim_start_matches('.');
                    Kind::Message(*ids.get(name).ok_or_else(|| SchemaError::Missing(name.to_owned()))?)
                }
                Type::Bytes | Type::String => Kind::Bytes,
                Type::Double | Type::Fixed64 | Type::Sfixed64 => Kind::Scalar(FIXED64),
                Type::Float | Type::Fixed32 | Type::Sfixed32 => Kind::Scalar(FIXED32),
                _ => Kind::Scalar(VARINT),
            };
            let entry = Field { kind, repeated: field.label() == Label::Repeated };
            let number = u64::from(field.number().unsigned_abs());
            match usize::try_from(number).ok().and_then(|index| fields.direct.get_mut(index)) {
                Some(slot) => *slot = Some(entry),
                None => fields.others.push((number, entry)),
            }
        }
        Ok(fields)
    }

    fn field(&self, number: u64) -> Option<Field> {
        match usize::try_from(number).ok().and_then(|index| self.direct.get(index)) {
            Some(slot) => *slot,
            None => self.others.iter().find(|(other, _)| *other == number).map(|(_, field)| *field),
        }
    }
}

// === impl Cursor ===

impl Cursor<'_> {
    /// Reads a varint of at most 64 bits, as `protowire.ConsumeVarint` does: overlong forms are fine, overflow is not.
    fn varint(&mut self, end: usize) -> Result<u64, Refusal> {
        let mut value = 0u64;
        for index in 0..10 {
            let byte = self.bytes.get(self.at).filter(|_| self.at < end).copied().ok_or(Refusal::Malformed)?;
            self.at += 1;
            if index == 9 && byte > 1 {
                return Err(Refusal::Malformed);
            }
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Refusal::Malformed)
    }

    /// Reads the length of a field that must end by `end`.
    fn length(&mut self, end: usize) -> Result<usize, Refusal> {
        let length = usize::try_from(self.varint(end)?).map_err(|_| Refusal::Malformed)?;
        if length > end - self.at { Err(Refusal::Malformed) } else { Ok(length) }
    }

    fn skip(&mut self, length: usize, end: usize) -> Result<(), Refusal> {
        if length > end - self.at {
            return Err(Refusal::Malformed);
        }
        self.at += length;
        Ok(())
    }

    fn packed(&mut self, scalar: u8, length: usize) -> Result<(), Refusal> {
        let end = self.at + length;
        while self.at < end {
            match scalar {
                FIXED64 => self.skip(8, end)?,
                FIXED32 => self.skip(4, end)?,
                _ => {
                    self.varint(end)?;
                }
            }
        }
        Ok(())
    }
}

// === impl Refusal ===

impl Refusal {
    /// The answer to a unary request.
    pub fn in_unary(self) -> Status {
        // grpc-go's words (`server.go`, `processUnaryRPC`) and those of Go's protobuf.
        self.with("grpc: error unmarshalling request: proto: cannot parse invalid wire-format data")
    }

    /// The end of a stream, or the answer to a request that is to be answered by one.
    pub fn in_stream(self) -> Status {
        // grpc-go has words of its own for them (`rpc_util.go`, `recv`).
        self.with("grpc: failed to unmarshal the received message: proto: cannot parse invalid wire-format data")
    }

    fn with(self, malformed: &'static str) -> Status {
        match self {
            Self::Malformed | Self::TooDeep => Status::internal(malformed),
            Self::TooMany => Status::resource_exhausted(
                "etcd-proxy: the request holds more messages than any that makes sense, and is refused before it is decoded",
            ),
            Self::Unknown { message, field } => Status::unimplemented(format!(
                "etcd-proxy: field {field} of {message} is unknown here and may carry a key, so the request is refused; a newer etcd-proxy may know it"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use bytes::Bytes;
    use proptest::{
        prelude::*,
        test_runner::{Config, TestRunner},
    };
    use prost::Message;
    use proto::etcdserverpb::{
        Compare, PutRequest, RangeRequest, RequestOp, TxnRequest, WatchCreateRequest, WatchRequest,
        compare::TargetUnion, request_op::Request, watch_request::RequestUnion,
    };

    use super::*;
    use crate::rewrite::tests::generated::{self, encoded, mutated};

    fn scan(name: &str, bytes: &[u8]) -> Result<(), Refusal> {
        let schema = schema().unwrap();
        schema.scan(schema.message(name).unwrap(), bytes, Bounds { depth: 300, messages: 1000 })
    }

    fn unknown(message: &str, field: u64) -> Result<(), Refusal> {
        Err(Refusal::Unknown { message: message.into(), field })
    }

    #[test]
    fn passes_what_it_knows() {
        let txn = TxnRequest {
            compare: vec![Compare {
                key: "k".into(),
                range_end: "l".into(),
                target_union: Some(TargetUnion::Lease(-1)),
                ..Default::default()
            }],
            success: vec![RequestOp {
                request: Some(Request::RequestTxn(TxnRequest {
                    failure: vec![RequestOp {
                        request: Some(Request::RequestPut(PutRequest {
                            key: "k".into(),
                            lease: i64::MIN,
                            ..Default::default()
                        })),
                    }],
                    ..Default::default()
                })),
            }],
            ..Default::default()
        };
        assert_eq!(scan("etcdserverpb.TxnRequest", &txn.encode_to_vec()), Ok(()));
        let watch = WatchRequest {
            request_union: Some(RequestUnion::CreateRequest(WatchCreateRequest {
                key: "k".into(),
                filters: vec![0, 1],
                ..Default::default()
            })),
        };
        assert_eq!(scan("etcdserverpb.WatchRequest", &watch.encode_to_vec()), Ok(()));
    }

    #[test]
    fn names_message_and_field() {
        // Field 99, varint 1.
        let extra = [0x98, 0x06, 0x01];
        assert_eq!(scan("etcdserverpb.RangeRequest", &extra), unknown("etcdserverpb.RangeRequest", 99));
        let compare = [[0x0a, 0x03].as_slice(), &extra].concat();
        assert_eq!(scan("etcdserverpb.TxnRequest", &compare), unknown("etcdserverpb.Compare", 99));
        // A oneof member that is not there yet: RequestOp field 5.
        assert_eq!(
            scan("etcdserverpb.TxnRequest", &[0x12, 0x03, 0x2a, 0x01, 0x00]),
            unknown("etcdserverpb.RequestOp", 5)
        );
        // key as varint, and as a group: Go keeps both as unknown fields.
        assert_eq!(scan("etcdserverpb.RangeRequest", &[0x08, 0x01]), unknown("etcdserverpb.RangeRequest", 1));
        assert_eq!(scan("etcdserverpb.RangeRequest", &[0x0b, 0x0c]), unknown("etcdserverpb.RangeRequest", 1));
        let status = scan("etcdserverpb.RangeRequest", &extra).unwrap_err().in_unary();
        assert_eq!(status.code(), tonic::Code::Unimplemented);
        assert!(status.message().contains("field 99 of etcdserverpb.RangeRequest"), "{}", status.message());
    }

    #[test]
    fn refuses_what_go_refuses() {
        let malformed: [&[u8]; 8] = [
            &[0x0a],                                                                // no length
            &[0x0a, 0x05, b'a'],                                                    // too short
            &[0x00, 0x00],                                                          // field 0
            &[0x0c],                                                                // end of a group that did not begin
            &[0x0e, 0x00],                                                          // wire type 6
            &[0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02],    // 65 bits
            &[0x18, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0], // 11 bytes
            &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],    // length of 2^64-1
        ];
        for bytes in malformed {
            assert_eq!(scan("etcdserverpb.RangeRequest", bytes), Err(Refusal::Malformed), "{bytes:?}");
        }
        // Overlong, repeated and packed forms are fine.
        assert_eq!(
            scan("etcdserverpb.RangeRequest", &[0x18, 0x81, 0x80, 0x00, 0x18, 0x01, 0x8a, 0x00, 0x01, b'a']),
            Ok(())
        );
        assert_eq!(scan("etcdserverpb.WatchCreateRequest", &[0x2a, 0x02, 0x00, 0x01, 0x28, 0x01]), Ok(()));
    }

    #[test]
    fn what_does_no_harm_is_passed_over_but_for_groups() {
        let check = |bytes: &[u8]| {
            let schema = schema().unwrap();
            let bounds = Bounds { depth: 1, messages: 1 };
            schema.check(schema.message("grpc.health.v1.HealthCheckRequest").unwrap(), bytes, bounds)
        };
        // Field 15: a varint, eight bytes, some bytes, four bytes; and the known one.
        for bytes in [&[0x78, 1][..], &[0x79, 1, 2, 3, 4, 5, 6, 7, 8], &[0x7a, 1, 0x7b], &[0x7d, 1, 2, 3, 4], &[10, 0]]
        {
            assert_eq!(check(bytes), Ok(()), "{bytes:?}");
        }
        for bytes in [&[0x7b, 0x7c][..], &[0x0b, 0x0c], &[0x7c], &[0x7a, 2, 0], &[0x79, 1]] {
            assert_eq!(check(bytes), Err(Refusal::Malformed), "{bytes:?}");
        }
    }

    #[test]
    fn depth_is_bounded_without_a_deep_stack() {
        let nest = |levels: usize| {
            (0..levels).fold(Vec::new(), |inner, _| {
                let mut op = vec![0x22];
                prost::encode_length_delimiter(inner.len(), &mut op).unwrap();
                op.extend(inner);
                let mut txn = vec![0x12];
                prost::encode_length_delimiter(op.len(), &mut txn).unwrap();
                txn.extend(op);
                txn
            })
        };
        assert_eq!(scan("etcdserverpb.TxnRequest", &nest(150)), Ok(()));
        assert_eq!(scan("etcdserverpb.TxnRequest", &nest(151)), Err(Refusal::TooDeep));
        assert_eq!(scan("etcdserverpb.TxnRequest", &nest(4_990)), Err(Refusal::TooDeep));
        assert_eq!(scan("etcdserverpb.TxnRequest", &nest(6_000)), Err(Refusal::Malformed));
    }

    #[test]
    fn messages_are_counted_on_all_levels() {
        let ops = |count: usize| [0x12, 0].repeat(count);
        let nested = |inner: Vec<u8>| {
            let mut op = vec![0x22];
            prost::encode_length_delimiter(inner.len(), &mut op).unwrap();
            op.extend(inner);
            let mut txn = vec![0x1a];
            prost::encode_length_delimiter(op.len(), &mut txn).unwrap();
            txn.extend(op);
            txn
        };
        assert_eq!(scan("etcdserverpb.TxnRequest", &ops(1000)), Ok(()));
        assert_eq!(scan("etcdserverpb.TxnRequest", &ops(1001)), Err(Refusal::TooMany));
        assert_eq!(scan("etcdserverpb.TxnRequest", &nested(ops(998))), Ok(()));
        assert_eq!(scan("etcdserverpb.TxnRequest", &nested(ops(999))), Err(Refusal::TooMany));
        // Fields of one message that come again and again are merged, one by one.
        assert_eq!(scan("etcdserverpb.RequestOp", &[0x0a, 0].repeat(1001)), Err(Refusal::TooMany));
        // What is malformed is found first, wherever it is.
        assert_eq!(scan("etcdserverpb.TxnRequest", &[ops(2000), vec![0x12]].concat()), Err(Refusal::Malformed));
    }

    /// What the scan passes the decoder understands, and what the scan calls malformed no encoder makes.
    #[test]
    fn what_it_passes_can_be_decoded() {
        fn check<M: Message + Default>(name: &str, messages: impl Strategy<Value = Bytes>) {
            const CASES: u32 = 3000;
            let (passed, refused) = (Cell::new(0), Cell::new(0));
            let mut runner = TestRunner::new(Config { cases: CASES, failure_persistence: None, ..Config::default() });
            let outcome = runner.run(&messages, |bytes| {
                if scan(name, &bytes).is_ok() {
                    passed.set(passed.get() + 1);
                    let decoded = M::decode(bytes.clone());
                    prop_assert!(decoded.is_ok(), "{}", bytes.escape_ascii());
                } else {
                    refused.set(refused.get() + 1);
                    // Of what is refused as malformed nothing could be made; what is unknown would have been dropped.
                    if let (Err(Refusal::Malformed), Ok(decoded)) = (scan(name, &bytes), M::decode(bytes.clone())) {
                        let again = decoded.encode_to_vec();
                        prop_assert!(again != bytes, "{}", bytes.escape_ascii());
                    }
                }
                Ok(())
            });
            outcome.unwrap_or_else(|error| panic!("{name}: {error}"));
            let (passed, refused) = (passed.get(), refused.get());
            assert!(passed > CASES / 4 && refused > CASES / 10, "{name}: {passed} passed, {refused} refused");
        }
        check::<TxnRequest>("etcdserverpb.TxnRequest", mutated(encoded(generated::txn())));
        check::<RangeRequest>("etcdserverpb.RangeRequest", mutated(encoded(generated::range())));
        check::<WatchRequest>("etcdserverpb.WatchRequest", mutated(encoded(generated::watch())));
    }
}
