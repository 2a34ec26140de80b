//! Length-prefixed messages (gRPC over HTTP/2, "Length-Prefixed-Message").

use std::io::{self, Read as _};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use flate2::bufread::GzDecoder;
use prost::Message;
use tonic::Status;

/// Compressed flag and length.
const HEADER: usize = 5;
/// The part of a gzip header that is always there.
const GZIP_HEADER: usize = 10;
/// Most gzip members of a message. Clients send one; an empty one takes 20 bytes, and its decoder is made anew.
const MEMBERS: usize = 64;
/// Announced bytes for which room is made before they have come, from peers that are not trusted.
const EAGER: usize = 64 * 1024;
/// The same from the upstream: beyond it, room is made as the message comes.
const EAGER_FOR_TRUSTED: usize = 16 << 20;
/// The longest message of the upstream: grpc-go sends none that is longer.
const LONGEST: usize = i32::MAX as usize;

/// Cuts a body into messages. A message that arrives in one piece is not copied.
#[derive(Debug)]
pub struct Frames {
    /// The longest message that is accepted.
    limit: usize,
    /// How compressed messages are compressed.
    encoding: Encoding,
    /// Announced bytes for which room is made before they have come.
    eager: usize,
    /// What has arrived and not been looked at.
    chunk: Bytes,
    /// A message that has arrived in part, header included.
    partial: BytesMut,
}

/// A message as it came, without its frame's header.
#[derive(Debug)]
pub struct Whole {
    /// Whether it is compressed.
    pub packed: bool,
    /// Its bytes.
    pub bytes: Bytes,
}

/// The encodings of compressed messages. etcd's server has gzip and no other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// None: no message may be compressed.
    #[default]
    Identity,
    /// gzip.
    Gzip,
}

/// Appends `message` to `out` as one frame.
///
/// # Errors
/// When it is longer than a frame can be.
pub fn put_message<M: Message>(message: &M, out: &mut BytesMut) -> Result<(), Status> {
    put_header(message.encoded_len(), out)?;
    message.encode(out).map_err(|error| Status::internal(format!("etcd-proxy: {error}")))
}

/// Appends a message that is encoded already to `out` as one frame.
///
/// # Errors
/// When it is longer than a frame can be.
pub fn put_bytes(message: &[u8], out: &mut BytesMut) -> Result<(), Status> {
    put_header(message.len(), out)?;
    out.put_slice(message);
    Ok(())
}

fn put_header(length: usize, out: &mut BytesMut) -> Result<(), Status> {
    let announced =
        u32::try_from(length).map_err(|_| Status::resource_exhausted("etcd-proxy: message longer than 4 GiB"))?;
    out.reserve(HEADER + length);
    out.put_u8(0);
    out.put_u32(announced);
    Ok(())
}

// === impl Frames ===

impl Frames {
    /// For messages of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, encoding: Encoding::Identity, eager: EAGER, chunk: Bytes::new(), partial: BytesMut::new() }
    }

    /// For messages that may be compressed so.
    pub fn with_encoding(self, encoding: Encoding) -> Self {
        Self { encoding, ..self }
    }

    /// For messages of the upstream, which may have up to 2 GiB.
    pub fn trusted() -> Self {
        Self { eager: EAGER_FOR_TRUSTED, ..Self::new(LONGEST) }
    }

    /// Takes the next piece of the body. Everything that the one before held must have been taken by [`Frames::message`].
    pub fn push(&mut self, chunk: Bytes) {
        debug_assert!(self.chunk.is_empty(), "the previous chunk has been used up");
        self.chunk = chunk;
    }

    /// How long the message is whose header ends in `chunk`, if that does not hold all of it. Of one whose header came before
    /// nothing is said.
    pub fn announced(&self, chunk: &Bytes) -> Option<usize> {
        let begun = self.partial.len();
        if begun >= HEADER {
            return None;
        }
        let mut start = [0; HEADER];
        let bytes = self.partial.iter().chain(chunk);
        let there = start.iter_mut().zip(bytes).map(|(to, from)| *to = *from).count();
        let (_, length) = header(start.get(..there)?)?;
        (begun + chunk.len() < HEADER.saturating_add(length)).then_some(length)
    }

    /// How long the message is that has arrived in part, if so much of it has arrived that it is known. A compressed one may be as
    /// long as any.
    pub fn pending(&self) -> Option<usize> {
        header(&self.partial).map(|(flag, length)| if flag == 0 { length } else { self.limit })
    }

    /// What grpc-go says when the body ends in the middle of a message.
    pub fn torn(&self) -> Option<Status> {
        match self.partial.len() {
            0 => None,
            1..HEADER => Some(Status::unknown("EOF")),
            _ => Some(Status::unknown("unexpected EOF")),
        }
    }

    /// The longest message that is accepted.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// The next whole message, without its header.
    ///
    /// # Errors
    /// For messages that are too long or compressed, as grpc-go answers.
    pub fn message(&mut self) -> Result<Option<Bytes>, Status> {
        match self.whole()? {
            Some(Whole { packed: true, bytes }) => self.unpack(&bytes).map(Some),
            whole => Ok(whole.map(|whole| whole.bytes)),
        }
    }

    /// The message in a compressed one.
    ///
    /// # Errors
    /// For what is no gzip, or too long once it is decompressed, as grpc-go answers.
    pub fn unpack(&self, packed: &[u8]) -> Result<Bytes, Status> {
        gunzip(packed, self.limit)
    }

    /// The next whole message as it came.
    ///
    /// # Errors
    /// For messages that are too long, or compressed though they may not be, as grpc-go answers.
    pub fn whole(&mut self) -> Result<Option<Whole>, Status> {
        if self.partial.is_empty() {
            match header(&self.chunk) {
                None => {
                    self.partial.extend_from_slice(&self.chunk);
                    self.chunk.clear();
                    return Ok(None);
                }
                Some((flag, length)) => {
                    self.accept(flag, length)?;
                    if self.chunk.len() >= HEADER + length {
                        self.chunk.advance(HEADER);
                        let bytes = self.chunk.split_to(length);
                        return Ok(Some(Whole { packed: flag != 0, bytes }));
                    }
                    self.partial.reserve(HEADER + length.min(self.eager));
                }
            }
        }
        self.fill(HEADER);
        let Some((flag, length)) = header(&self.partial) else { return Ok(None) };
        self.accept(flag, length)?;
        self.fill(HEADER + length);
        if self.partial.len() < HEADER + length {
            return Ok(None);
        }
        let mut bytes = std::mem::take(&mut self.partial).freeze();
        bytes.advance(HEADER);
        Ok(Some(Whole { packed: flag != 0, bytes }))
    }

    /// Moves bytes from the chunk until the partial message has `wanted` ones.
    fn fill(&mut self, wanted: usize) {
        let missing = wanted.saturating_sub(self.partial.len()).min(self.chunk.len());
        self.partial.extend_from_slice(&self.chunk.split_to(missing));
    }

    fn accept(&self, flag: u8, length: usize) -> Result<(), Status> {
        match (flag, self.encoding) {
            (0, _) | (1, Encoding::Gzip) => {}
            (1, Encoding::Identity) => {
                return Err(Status::internal("grpc: compressed flag set with identity or empty encoding"));
            }
            _ => return Err(Status::internal(format!("grpc: received unexpected payload format {flag}"))),
        }
        if length > self.limit {
            return Err(Status::resource_exhausted(format!(
                "grpc: received message larger than max ({length} vs. {})",
                self.limit
            )));
        }
        Ok(())
    }
}

/// Decompresses, but not beyond the limit by more than a byte: what is small here may be large there.
fn gunzip(compressed: &[u8], limit: usize) -> Result<Bytes, Status> {
    let failed = |reason: &str| Err(Status::internal(format!("grpc: failed to decompress the message: {reason}")));
    match compressed {
        [] => return failed("EOF"),
        [0x1f, 0x8b, 8, ..] if compressed.len() >= GZIP_HEADER => {}
        _ if compressed.len() < GZIP_HEADER => return failed("unexpected EOF"),
        _ => return failed("gzip: invalid header"),
    }
    let unreadable = |reason: &str| Status::internal(format!("grpc: failed to read decompressed data: {reason}"));
    let mut message = Vec::new();
    let mut rest = compressed;
    for _ in 0..MEMBERS {
        let bound = u64::try_from(limit.saturating_sub(message.len())).unwrap_or(u64::MAX).saturating_add(1);
        let mut member = GzDecoder::new(rest).take(bound);
        member.read_to_end(&mut message).map_err(|error| {
            let cut_off = error.kind() == io::ErrorKind::UnexpectedEof;
            unreadable(if cut_off { "unexpected EOF" } else { "flate: corrupt input" })
        })?;
        if message.len() > limit {
            return Err(Status::resource_exhausted(format!(
                "grpc: received message after decompression larger than max {limit}"
            )));
        }
        rest = member.into_inner().into_inner();
        if rest.is_empty() {
            // Room that is left over is not counted.
            message.shrink_to_fit();
            return Ok(message.into());
        }
    }
    Err(unreadable(&format!("etcd-proxy: more than {MEMBERS} gzip members")))
}

fn header(bytes: &[u8]) -> Option<(u8, usize)> {
    let &[flag, a, b, c, d, ..] = bytes else { return None };
    Some((flag, usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame(message: &[u8]) -> Vec<u8> {
        let mut frame = vec![0];
        frame.extend((message.len() as u32).to_be_bytes());
        frame.extend(message);
        frame
    }

    #[test]
    fn a_message_in_one_piece_is_not_copied() {
        let chunk = Bytes::from(frame(b"abc"));
        let mut frames = Frames::new(3);
        frames.push(chunk.clone());
        let message = frames.message().unwrap().unwrap();
        assert_eq!(message, "abc");
        assert_eq!(message.as_ptr(), chunk[5..].as_ptr());
    }

    #[test]
    fn an_upstreams_word_alone_takes_no_memory() {
        let announced = |length: u32| {
            let mut frames = Frames::trusted();
            frames.push([&[0], &length.to_be_bytes()[..], b"abc"].concat().into());
            frames.message().map(|message| (message, frames.partial.capacity()))
        };
        let (message, capacity) = announced(i32::MAX.cast_unsigned()).unwrap();
        assert_eq!(message, None);
        assert!(capacity <= 2 * EAGER_FOR_TRUSTED, "{capacity}");
        assert_eq!(announced(u32::MAX).unwrap_err().code(), tonic::Code::ResourceExhausted);
    }

    #[test]
    fn a_length_is_known_however_its_header_is_cut() {
        let wire = frame(&[7; 1000]);
        for cut in 0..HEADER {
            let (first, rest) = wire.split_at(cut);
            for more in [HEADER, HEADER + 1, HEADER + 999, HEADER + 1000] {
                let mut frames = Frames::trusted();
                let (first, rest) = (Bytes::copy_from_slice(first), Bytes::copy_from_slice(&rest[..more - cut]));
                assert_eq!(frames.announced(&first), None);
                frames.push(first);
                assert_eq!(frames.message().unwrap(), None);
                assert_eq!(frames.announced(&rest), (more < HEADER + 1000).then_some(1000), "{cut} {more}");
                frames.push(rest);
                frames.message().unwrap();
                if more < HEADER + 1000 {
                    assert_eq!(frames.announced(&Bytes::from_static(&[0; 9])), None);
                }
            }
        }
    }

    #[test]
    fn limits_read_as_grpc_gos() {
        let mut frames = Frames::new(2);
        frames.push(Bytes::from(frame(b"abc")));
        let status = frames.message().unwrap_err();
        assert_eq!(
            (status.code(), status.message()),
            (tonic::Code::ResourceExhausted, "grpc: received message larger than max (3 vs. 2)")
        );
        let mut frames = Frames::new(2);
        frames.push(Bytes::from_static(&[1, 0, 0, 0, 0]));
        assert_eq!(frames.message().unwrap_err().code(), tonic::Code::Internal);
    }

    #[test]
    fn members_follow_each_other_but_not_without_end() {
        use std::io::Write as _;
        let member = |content: &[u8]| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(content).unwrap();
            encoder.finish().unwrap()
        };
        assert_eq!(gunzip(&[member(b"one "), member(b""), member(b"two")].concat(), 7).unwrap(), "one two");
        assert_eq!(gunzip(&member(b"x").repeat(MEMBERS), MEMBERS).unwrap().len(), MEMBERS);
        let refused = gunzip(&member(b"").repeat(MEMBERS + 1), 7).unwrap_err();
        let text = "grpc: failed to read decompressed data: etcd-proxy: more than 64 gzip members";
        assert_eq!((refused.code(), refused.message()), (tonic::Code::Internal, text));
        // The limit is that of all together.
        let long = gunzip(&[member(b"one "), member(b"two")].concat(), 6).unwrap_err();
        assert_eq!(long.code(), tonic::Code::ResourceExhausted);
        for (torn, reason) in [(1, "unexpected EOF"), (12, "unexpected EOF")] {
            let mut message = [member(b"one "), member(b"two")].concat();
            message.truncate(message.len() - torn);
            let refused = gunzip(&message, 7).unwrap_err();
            assert_eq!(refused.message(), format!("grpc: failed to read decompressed data: {reason}"));
        }
    }

    #[test]
    fn what_is_small_here_and_large_there_is_not_unpacked() {
        use std::io::Write as _;
        let compress = |length: usize| {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
            encoder.write_all(&vec![b'x'; length]).unwrap();
            let mut framed = frame(&encoder.finish().unwrap());
            framed[0] = 1;
            Bytes::from(framed)
        };
        let mut frames = Frames::new(1000).with_encoding(Encoding::Gzip);
        frames.push(compress(1000));
        assert_eq!(frames.message().unwrap().unwrap().len(), 1000);
        frames.push(compress(1001));
        let status = frames.message().unwrap_err();
        assert_eq!(status.message(), "grpc: received message after decompression larger than max 1000");
        let mut frames = Frames::new(1 << 20).with_encoding(Encoding::Gzip);
        frames.push(compress(100 << 20));
        assert_eq!(frames.message().unwrap_err().code(), tonic::Code::ResourceExhausted);
    }

    proptest! {
        #[test]
        fn messages_do_not_depend_on_how_they_arrive(
            messages in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 0..6),
            cuts in proptest::collection::vec(1usize..12, 1..40),
        ) {
            let mut wire: &[u8] = &messages.iter().flat_map(|message| frame(message)).collect::<Vec<_>>();
            let mut frames = Frames::new(20);
            let mut received = Vec::new();
            for cut in cuts.iter().cycle() {
                if wire.is_empty() {
                    break;
                }
                let (now, later) = wire.split_at((*cut).min(wire.len()));
                wire = later;
                frames.push(Bytes::copy_from_slice(now));
                while let Some(message) = frames.message().unwrap() {
                    received.push(message.to_vec());
                }
            }
            prop_assert!(frames.torn().is_none());
            prop_assert_eq!(received, messages);
        }
    }
}
