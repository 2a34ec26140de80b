//! Answers in their encoded form: what has no meaning of its own to a tenant is copied as it came, fields that are not known here
//! among it unless they hold keys as they are upstream; keys lose the prefix, leases get the tenant's ids. A short answer is gone through once, for what is to be changed in
//! it. A long one is gone through twice, once for what it will be long, and once to write that piece by piece as the client takes
//! it, so that besides the answer as it came there is never more than a piece.

use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::encoding::encoded_len_varint;
use tonic::Status;

use super::{
    Interrupt, View,
    wire::{self, Field, Value, malformed},
};
use crate::lease_id::LeaseCipher;

/// Bytes of a piece, about.
const PIECE: usize = 64 * 1024;
/// Levels of messages: 128 Txns nest by way of as many operations, with what stands in the last.
pub(super) const MAX_DEPTH: usize = 2 * 128 + 4;
/// Compressed flag and length.
const FRAME: usize = 5;

/// A message that is, or stands in, an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `RangeResponse`.
    Range,
    /// `RangeStreamResponse`.
    RangePart,
    /// `PutResponse`.
    Put,
    /// `DeleteRangeResponse`.
    DeleteRange,
    /// `TxnResponse`.
    Txn,
    /// `ResponseOp`.
    Op,
    /// `WatchResponse`.
    Watch,
    /// `Event`.
    Event,
    /// `Event`, of a key whose former value was compacted away.
    EventAlone,
    /// `LeaseTimeToLiveResponse`.
    TimeToLive,
    /// `LeaseKeepAliveResponse`.
    KeepAlive,
    /// `KeyValue`.
    KeyValue,
}

/// The tenant's frame of an answer, piece by piece.
#[derive(Debug)]
pub struct LongAnswer {
    /// The upstream's answer.
    message: Bytes,
    /// The meta key of the lease that it is about.
    mark: Option<Bytes>,
    /// The mapping of leases that it was measured by. By another one lengths may differ.
    leases: Option<Arc<LeaseCipher>>,
    /// Likewise.
    never_granted: bool,
    /// How far it has been gone through.
    at: usize,
    /// The messages that it stands in there, with their ends.
    open: Vec<(Shape, usize)>,
    /// What the messages in it will be long, other than keys with their values, as they come.
    lengths: std::vec::IntoIter<usize>,
    /// The changes of one key with its value.
    edits: Vec<Edit>,
    /// What is ready of the frame.
    ready: BytesMut,
}

/// A field in the tenant's view.
enum Mapped<'a> {
    Nothing,
    Same(&'a [u8]),
    Number(u64, u64),
    Bytes(u64, &'a [u8]),
    Message(u64, Shape, &'a [u8]),
}

/// A change of an encoded message: so many bytes are left out there, and this stands in their place.
#[derive(Clone, Copy, Debug)]
struct Edit {
    at: usize,
    skipped: usize,
    put: Put,
}

#[derive(Clone, Copy, Debug)]
enum Put {
    Nothing,
    /// Tag and length of a field of bytes, which begin behind what is left out.
    Begin(u64, usize),
    Number(u64, u64),
}

/// What is found when an answer is looked through.
enum Found<'a> {
    /// All changes, in their order: of short answers.
    Edits(&'a mut Vec<Edit>),
    /// How long the messages in it will be, other than keys with their values, of which a long answer has many.
    Lengths(&'a mut Vec<usize>),
}

// === impl Shape ===

impl Shape {
    /// Appends the tenant's frame of an upstream's answer of this shape to `out`. Nothing of it gets out if it holds a key of
    /// somebody else.
    ///
    /// # Errors
    /// Whatever keeps the answer from being passed on; `out` is then unchanged.
    pub fn rewrite(self, view: &View<'_>, message: &[u8], out: &mut BytesMut) -> Result<(), Interrupt> {
        let mut edits = Vec::new();
        let mark = self.mark(view, message)?;
        let length = look(view, mark.as_ref(), (self, message), 0, &mut Found::Edits(&mut edits), 0)?;
        let header = header(length)?;
        out.reserve(FRAME + length);
        out.put_slice(&header);
        edit(message, &edits, out);
        Ok(())
    }

    /// The meta key of the lease that the answer is about, if it is about one.
    fn mark(self, view: &View<'_>, message: &[u8]) -> Result<Option<Bytes>, Interrupt> {
        const ID: u64 = 2;
        match self {
            // It bears the upstream's id.
            Self::TimeToLive => Ok(Some(view.meta.lease_mark(wire::number(message, ID)?.cast_signed()))),
            _ => Ok(None),
        }
    }

    /// A field of such a message as the tenant sees it.
    #[inline]
    fn map<'a>(self, view: &View<'_>, mark: Option<&Bytes>, field: &Field<'a>) -> Result<Mapped<'a>, Interrupt> {
        let number = field.number;
        Ok(match (self, number, &field.value) {
            (Self::Range | Self::Put, 2, Value::Bytes(kv))
            | (Self::DeleteRange, 3, Value::Bytes(kv))
            | (Self::Event, 2 | 3, Value::Bytes(kv))
            | (Self::EventAlone, 2, Value::Bytes(kv)) => Mapped::Message(number, Self::KeyValue, kv),
            (Self::EventAlone, 3, Value::Bytes(_)) => Mapped::Nothing,
            (Self::RangePart, 1, Value::Bytes(range)) => Mapped::Message(number, Self::Range, range),
            (Self::Txn, 3, Value::Bytes(op)) => Mapped::Message(number, Self::Op, op),
            (Self::Op, 1, Value::Bytes(range)) => Mapped::Message(number, Self::Range, range),
            (Self::Op, 2, Value::Bytes(put)) => Mapped::Message(number, Self::Put, put),
            (Self::Op, 3, Value::Bytes(delete)) => Mapped::Message(number, Self::DeleteRange, delete),
            (Self::Op, 4, Value::Bytes(txn)) => Mapped::Message(number, Self::Txn, txn),
            (Self::Watch, 11, Value::Bytes(event)) => Mapped::Message(number, Self::of_event(view, event)?, event),
            (Self::KeyValue, 1, Value::Bytes(key)) => Mapped::Bytes(number, view.prefix.strip(key)?),
            (Self::KeyValue, 6, Value::Varint(lease)) => {
                Mapped::Number(number, view.lease_to_tenant(lease.cast_signed())?.cast_unsigned())
            }
            (Self::TimeToLive | Self::KeepAlive, 2, Value::Varint(id)) => {
                Mapped::Number(number, view.repeated_lease(id.cast_signed())?.cast_unsigned())
            }
            (Self::TimeToLive, 5, Value::Bytes(key)) if mark.is_some_and(|mark| mark == key) => Mapped::Nothing,
            (Self::TimeToLive, 5, Value::Bytes(key)) => Mapped::Bytes(number, view.prefix.strip(key)?),
            (Self::Watch, 6, Value::Bytes(reason)) if view.hides_keys(reason) => return Err(malformed()),
            (_, 1, Value::Bytes(header)) if self.has_header() => {
                check_header(view, header)?;
                Mapped::Same(field.raw)
            }
            (_, _, value) => match self.knows(field) {
                // Values, and numbers that mean the same to everybody.
                Some(true) => Mapped::Same(field.raw),
                // An answer to something else, of which keys or leases might get out as they are.
                Some(false) => return Err(malformed()),
                None if matches!(value, Value::Bytes(bytes) if view.names_keys(bytes)) => Mapped::Nothing,
                // What a newer etcd has added.
                None => Mapped::Same(field.raw),
            },
        })
    }

    /// Whether its first field is a `ResponseHeader`.
    fn has_header(self) -> bool {
        !matches!(self, Self::RangePart | Self::Op | Self::Event | Self::EventAlone | Self::KeyValue)
    }

    /// Whether a field has the encoding that the API says; `None` of one that is unknown here.
    fn knows(self, field: &Field<'_>) -> Option<bool> {
        // By their numbers, as bits: fields of bytes and messages, and those of numbers.
        let (bytes, numbers): (u16, u16) = match self {
            Self::Range => (0b110, 0b1_1000),
            Self::RangePart => (0b10, 0),
            Self::Put => (0b110, 0),
            Self::DeleteRange | Self::Txn => (0b1010, 0b100),
            Self::Op => (0b1_1110, 0),
            Self::Watch => (0b1000_0100_0010, 0b1011_1100),
            Self::Event | Self::EventAlone => (0b1100, 0b10),
            Self::TimeToLive => (0b10_0010, 0b1_1100),
            Self::KeepAlive => (0b10, 0b1100),
            Self::KeyValue => (0b10_0010, 0b101_1100),
        };
        let bit = u32::try_from(field.number).ok().and_then(|number| 1u16.checked_shl(number))?;
        (bit & (bytes | numbers) != 0).then_some(match field.value {
            Value::Varint(_) => bit & numbers != 0,
            Value::Bytes(_) => bit & bytes != 0,
            Value::Fixed => false,
        })
    }

    /// What an event is to the tenant. What the key held before is compacted away where etcd would not find it: it reads that at
    /// the revision before the event's when it sends the event (`v3rpc/watch.go`), while the shared history still has it. A
    /// watermark that is not loaded yet concerns no event: a watch that begins in the past has loaded it, and another sees later
    /// revisions alone.
    fn of_event(view: &View<'_>, event: &[u8]) -> Result<Self, Interrupt> {
        // Those that never compacted have -1, and no event is of revision 0.
        let Some(watermark) = view.watermark.filter(|watermark| *watermark > 0) else { return Ok(Self::Event) };
        Ok(if mod_revision(event)? <= watermark { Self::EventAlone } else { Self::Event })
    }
}

/// Looks whether a message can be a `ResponseHeader`, of which nothing is any tenant's.
fn check_header(view: &View<'_>, mut header: &[u8]) -> Result<(), Interrupt> {
    while let Some(field) = wire::next(&mut header)? {
        let fits = match (field.number, &field.value) {
            (1..=4, Value::Varint(_)) => true,
            (1..=4, _) => false,
            (_, value) => !matches!(value, Value::Bytes(bytes) if view.names_keys(bytes)),
        };
        if !fits {
            return Err(malformed());
        }
    }
    Ok(())
}

/// The revision of an encoded event; 0 of one without a key.
pub(super) fn mod_revision(event: &[u8]) -> Result<i64, Interrupt> {
    const KV: u64 = 2;
    const MOD_REVISION: u64 = 3;
    match wire::bytes(event, KV)? {
        Some(kv) => Ok(wire::number(kv, MOD_REVISION)?.cast_signed()),
        None => Ok(0),
    }
}

/// Looks through a message, which begins at `base` of the answer. Returns how long it will be.
fn look(
    view: &View<'_>,
    mark: Option<&Bytes>,
    (shape, mut message): (Shape, &[u8]),
    base: usize,
    found: &mut Found<'_>,
    depth: usize,
) -> Result<usize, Interrupt> {
    if depth == MAX_DEPTH {
        return Err(malformed());
    }
    let end = base + message.len();
    let (mut length, mut keyed) = (message.len(), shape != Shape::KeyValue);
    while let Some(field) = wire::next(&mut message)? {
        keyed |= field.number == 1;
        let mapped = shape.map(view, mark, &field)?;
        if let Mapped::Same(_) = mapped {
            continue;
        }
        let (before, at) = (field.raw.len(), end - message.len() - field.raw.len());
        let (skipped, put, after) = match mapped {
            Mapped::Same(_) => continue,
            Mapped::Nothing | Mapped::Number(_, 0) => (before, Put::Nothing, 0),
            Mapped::Number(number, value) => (before, Put::Number(number, value), 1 + encoded_len_varint(value)),
            Mapped::Bytes(number, bytes) => {
                (before - bytes.len(), Put::Begin(number, bytes.len()), wire::length(bytes.len()))
            }
            Mapped::Message(number, shape, message) => {
                let place = found.reserve(shape);
                let base = at + before - message.len();
                let inner = look(view, mark, (shape, message), base, found, depth + 1)?;
                found.message(place, Edit { at, skipped: base - at, put: Put::Begin(number, inner) }, inner);
                length = length - before + wire::length(inner);
                continue;
            }
        };
        length = length - before + after;
        if let Found::Edits(edits) = found {
            edits.push(Edit { at, skipped, put });
        }
    }
    // An empty key is nobody's of this tenant.
    if keyed { Ok(length) } else { Err(Interrupt::Foreign) }
}

/// Writes a message with these changes.
fn edit(message: &[u8], edits: &[Edit], out: &mut BytesMut) {
    let mut from = 0;
    for edit in edits {
        out.put_slice(message.get(from..edit.at).unwrap_or_default());
        match edit.put {
            Put::Nothing => {}
            Put::Begin(number, length) => wire::begin(number, length, out),
            Put::Number(number, value) => wire::put_number(number, value, out),
        }
        from = edit.at + edit.skipped;
    }
    out.put_slice(message.get(from..).unwrap_or_default());
}

/// The header of the frame of a message that is so long.
fn header(length: usize) -> Result<[u8; FRAME], Interrupt> {
    let announced = u32::try_from(length)
        .map_err(|_| Interrupt::Refused(Status::resource_exhausted("etcd-proxy: message longer than 4 GiB")))?;
    let [a, b, c, d] = announced.to_be_bytes();
    Ok([0, a, b, c, d])
}

// === impl Found ===

impl Found<'_> {
    /// A place for a message that is about to be looked through.
    fn reserve(&mut self, shape: Shape) -> Option<usize> {
        match self {
            Self::Edits(edits) => {
                edits.push(Edit { at: 0, skipped: 0, put: Put::Nothing });
                Some(edits.len() - 1)
            }
            Self::Lengths(lengths) => (shape != Shape::KeyValue).then(|| {
                lengths.push(0);
                lengths.len() - 1
            }),
        }
    }

    /// What was found of it.
    fn message(&mut self, place: Option<usize>, edit: Edit, length: usize) {
        let Some(place) = place else { return };
        match self {
            Self::Edits(edits) => edits.get_mut(place).into_iter().for_each(|place| *place = edit),
            Self::Lengths(lengths) => lengths.get_mut(place).into_iter().for_each(|place| *place = length),
        }
    }
}

// === impl LongAnswer ===

impl LongAnswer {
    /// Looks through an upstream's answer of this shape. Nothing of it gets out if it holds a key of somebody else.
    ///
    /// # Errors
    /// Whatever keeps the answer from being passed on.
    pub fn new(view: &View<'_>, shape: Shape, message: &Bytes) -> Result<Self, Interrupt> {
        let mut lengths = Vec::new();
        let mark = shape.mark(view, message)?;
        let length = look(view, mark.as_ref(), (shape, message), 0, &mut Found::Lengths(&mut lengths), 0)?;
        let header = header(length)?;
        let mut ready = BytesMut::with_capacity(PIECE);
        ready.put_slice(&header);
        Ok(Self {
            message: message.clone(),
            mark,
            leases: view.leases.cloned(),
            never_granted: view.never_granted,
            at: 0,
            open: vec![(shape, message.len())],
            lengths: lengths.into_iter(),
            edits: Vec::new(),
            ready,
        })
    }

    /// The next piece of the frame. Leases are mapped as when it began, whatever has become of the mapping since.
    ///
    /// # Errors
    /// As [`LongAnswer::new`], which has seen to it that there are none.
    pub fn next(&mut self, view: &View<'_>) -> Result<Option<Bytes>, Interrupt> {
        let leases = self.leases.clone();
        let view = &View { leases: leases.as_ref(), never_granted: self.never_granted, ..*view };
        while self.ready.len() < PIECE
            && let Some(&(shape, end)) = self.open.last()
        {
            let mut rest = self.message.get(self.at..end).unwrap_or_default();
            let Some(field) = wire::next(&mut rest)? else {
                self.open.pop();
                continue;
            };
            self.at += field.raw.len();
            match shape.map(view, self.mark.as_ref(), &field)? {
                Mapped::Message(number, shape, message) => {
                    if shape == Shape::KeyValue {
                        self.edits.clear();
                        let found = &mut Found::Edits(&mut self.edits);
                        let length = look(view, None, (shape, message), 0, found, 0)?;
                        wire::begin(number, length, &mut self.ready);
                        edit(message, &self.edits, &mut self.ready);
                    } else {
                        wire::begin(number, self.lengths.next().unwrap_or_default(), &mut self.ready);
                        self.open.push((shape, self.at));
                        self.at -= message.len();
                    }
                }
                mapped => mapped.put(&mut self.ready),
            }
        }
        if self.ready.is_empty() {
            return Ok(None);
        }
        let ready = std::mem::replace(&mut self.ready, BytesMut::with_capacity(PIECE));
        Ok(Some(ready.freeze()))
    }
}

// === impl Mapped ===

impl Mapped<'_> {
    fn put(&self, out: &mut BytesMut) {
        match self {
            Self::Nothing | Self::Number(_, 0) => {}
            Self::Same(raw) => out.put_slice(raw),
            Self::Number(number, value) => wire::put_number(*number, *value, out),
            Self::Bytes(number, bytes) | Self::Message(number, _, bytes) => {
                wire::begin(*number, bytes.len(), out);
                out.put_slice(bytes);
            }
        }
    }
}
