//! The events of a watch: `metav1.WatchEvent` without envelope in a frame, the object in it with envelope
//! (k8s.io/apimachinery `pkg/util/framer`).

use k8s_openapi::ByteString;

use super::{
    Error, WireType, decode,
    wire::{write_delimited, write_key, write_nested},
};
use crate::protobuf;

/// An event as it stands in a frame.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WatchEvent {
    /// `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK` or `ERROR`.
    pub type_: String,
    /// The object.
    pub object: RawExtension,
}

/// What is in an event: bytes, which are an [envelope](super::Unknown).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawExtension {
    /// The envelope.
    pub raw: Option<ByteString>,
}

protobuf! {
    WatchEvent {
        type_ = 1,
        object = 2,
    }
    RawExtension {
        raw = 1,
    }
}

/// A watch event in its frame: four bytes of length, most significant first, and the event. `object` is an envelope already.
///
/// # Errors
/// When the length does not fit.
pub fn watch_frame(event_type: &str, object: &[u8]) -> Result<Vec<u8>, Error> {
    let mut frame = Vec::with_capacity(object.len() + event_type.len() + 24);
    frame.extend_from_slice(&[0; 4]);
    write_key(&mut frame, 1, WireType::Delimited);
    write_delimited(&mut frame, event_type.as_bytes());
    write_key(&mut frame, 2, WireType::Delimited);
    write_nested(&mut frame, |out| {
        write_key(out, 1, WireType::Delimited);
        write_delimited(out, object);
    });
    let length = u32::try_from(frame.len() - 4).map_err(|_| Error::FrameTooLong)?;
    if let Some(place) = frame.first_chunk_mut::<4>() {
        *place = length.to_be_bytes();
    }
    Ok(frame)
}

// === impl WatchEvent ===

impl WatchEvent {
    /// Takes the first frame from the beginning of a stream: the event, and how many bytes it took. `None` when there is not all of
    /// it yet.
    ///
    /// # Errors
    /// When what is in the frame is no event.
    pub fn from_stream(stream: &[u8]) -> Result<Option<(Self, usize)>, Error> {
        let Some((length, rest)) = stream.split_first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        let Some(event) = rest.get(..length) else { return Ok(None) };
        Ok(Some((decode(event)?, 4 + length)))
    }
}
