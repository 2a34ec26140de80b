//! Conversations below HTTP/2: frames that lie, floods, and what is no frame at all.

use std::time::{Duration, Instant};

use proptest::{collection::vec, prelude::*, sample::select};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use crate::{
    child::Proxy,
    wire::{DATA, HEADERS, PING, PREFACE, RST_STREAM, frame, grpc_frame, headers},
    witness::PATIENCE,
};

const PRIORITY: u8 = 2;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// As long as nothing comes before the client hangs up.
const QUIET: Duration = Duration::from_millis(30);
const PATHS: [&str; 6] = [
    "/etcdserverpb.KV/Range",
    "/etcdserverpb.KV/Txn",
    "/etcdserverpb.Watch/Watch",
    "/etcdserverpb.Lease/LeaseKeepAlive",
    "/grpc.health.v1.Health/Watch",
    "/no.such/Method",
];

/// What is sent on one connection.
#[derive(Clone, Debug)]
pub(crate) struct Conversation {
    /// Bytes of the preface.
    preface: usize,
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug)]
enum Piece {
    Frame {
        kind: u8,
        flags: u8,
        stream: u32,
        payload: Vec<u8>,
    },
    /// A frame that is not as long as it says.
    Lying {
        kind: u8,
        flags: u8,
        stream: u32,
        announced: u32,
        payload: Vec<u8>,
    },
    /// A call with bytes for a body.
    Call {
        stream: u32,
        path: &'static str,
        body: Vec<u8>,
        end: bool,
    },
    /// Headers of so many fields of 1 kB.
    HugeHeaders {
        stream: u32,
        fields: usize,
    },
    /// Headers that never end.
    Continuations {
        stream: u32,
        frames: usize,
        length: usize,
    },
    /// Calls that are given up at once.
    RapidReset {
        first: u32,
        calls: u32,
    },
    /// Data of no length, after a call began.
    EmptyData {
        stream: u32,
        frames: usize,
    },
    /// Frames of one kind that ask for an answer, or for nothing.
    Flood {
        kind: u8,
        frames: usize,
    },
    Noise(Vec<u8>),
}

pub(crate) fn conversation() -> impl Strategy<Value = Conversation> {
    let preface = prop_oneof![12 => Just(PREFACE.len()), 1 => 0..PREFACE.len()];
    (preface, vec(piece(), 1..10)).prop_map(|(preface, pieces)| Conversation { preface, pieces })
}

fn piece() -> impl Strategy<Value = Piece> {
    let stream = || prop_oneof![8 => select(vec![1u32, 3, 5, 7]), 1 => 0u32..12, 1 => any::<u32>()];
    let payload = || vec(any::<u8>(), 0..64);
    prop_oneof![
        3 => (0u8..12, any::<u8>(), stream(), payload())
            .prop_map(|(kind, flags, stream, payload)| Piece::Frame { kind, flags, stream, payload }),
        2 => (0u8..12, any::<u8>(), stream(), 0u32..1 << 24, payload())
            .prop_map(|(kind, flags, stream, announced, payload)| {
                Piece::Lying { kind, flags, stream, announced, payload }
            }),
        4 => (stream(), select(PATHS.to_vec()), body(), any::<bool>())
            .prop_map(|(stream, path, body, end)| Piece::Call { stream, path, body, end }),
        1 => (stream(), 1usize..200).prop_map(|(stream, fields)| Piece::HugeHeaders { stream, fields }),
        1 => (stream(), 1usize..2000, 0usize..1024)
            .prop_map(|(stream, frames, length)| Piece::Continuations { stream, frames, length }),
        1 => (1u32..100, 1u32..6000).prop_map(|(first, calls)| Piece::RapidReset { first: 2 * first + 1, calls }),
        1 => (stream(), 1usize..5000).prop_map(|(stream, frames)| Piece::EmptyData { stream, frames }),
        1 => (select(vec![PRIORITY, SETTINGS, PING, WINDOW_UPDATE]), 1usize..5000)
            .prop_map(|(kind, frames)| Piece::Flood { kind, frames }),
        1 => payload().prop_map(Piece::Noise),
    ]
}

/// A body that begins like a message, mostly.
fn body() -> impl Strategy<Value = Vec<u8>> {
    let message = vec(any::<u8>(), 0..48);
    prop_oneof![
        message.clone().prop_map(|message| grpc_frame(&message).to_vec()),
        (0u8..4, any::<u32>(), message.clone())
            .prop_map(|(flag, length, message)| { [&[flag], &length.to_be_bytes()[..], &message].concat() }),
        message,
        // A watch, and a range.
        Just(vec![0, 0, 0, 0, 5, 0x0a, 3, 0x0a, 1, b'k']),
        Just(vec![0, 0, 0, 0, 6, 0x0a, 1, 0, 0x12, 1, 0]),
    ]
}

// === impl Piece ===

impl Piece {
    fn bytes(&self) -> Vec<u8> {
        let repeated = |count: usize, frame: Vec<u8>| frame.repeat(count);
        match self {
            Self::Frame { kind, flags, stream, payload } => frame(*kind, *flags, *stream, payload),
            Self::Lying { kind, flags, stream, announced, payload } => {
                let mut lying = frame(*kind, *flags, *stream, payload);
                lying[..3].copy_from_slice(&announced.to_be_bytes()[1..]);
                lying
            }
            Self::Call { stream, path, body, end } => {
                let flags = if *end { END_STREAM } else { 0 };
                [headers(*stream, path), frame(DATA, flags, *stream, body)].concat()
            }
            Self::HugeHeaders { stream, fields } => {
                // A literal with a name of one byte and a value of 1000.
                let field = [&[0, 1, b'x', 0x7f, 0xe9, 0x06][..], &[b'v'; 1000]].concat();
                let mut bytes = headers(*stream, PATHS[0]);
                // The call's headers go on.
                bytes[4] &= !END_HEADERS;
                for _ in 1..*fields {
                    bytes.extend(frame(CONTINUATION, 0, *stream, &field));
                }
                bytes.extend(frame(CONTINUATION, END_HEADERS, *stream, &field));
                bytes
            }
            Self::Continuations { stream, frames, length } => {
                let first = frame(HEADERS, 0, *stream, &[0x83]);
                [first, repeated(*frames, frame(CONTINUATION, 0, *stream, &vec![0x86; *length]))].concat()
            }
            Self::RapidReset { first, calls } => (0..*calls)
                .flat_map(|call| {
                    let stream = first + 2 * call;
                    [headers(stream, PATHS[0]), frame(RST_STREAM, 0, stream, &8u32.to_be_bytes())].concat()
                })
                .collect(),
            Self::EmptyData { stream, frames } => {
                [headers(*stream, PATHS[2]), repeated(*frames, frame(DATA, 0, *stream, &[]))].concat()
            }
            Self::Flood { kind, frames } => {
                let (stream, payload): (u32, &[u8]) = match *kind {
                    PRIORITY => (1, &[0, 0, 0, 3, 7]),
                    SETTINGS => (0, &[0, 4, 0, 0, 0, 0]),
                    WINDOW_UPDATE => (0, &[0, 0, 0, 1]),
                    _ => (0, b"pinging!"),
                };
                repeated(*frames, frame(*kind, 0, stream, payload))
            }
            Self::Noise(bytes) => bytes.clone(),
        }
    }
}

/// Says it all. Returns what was heard.
pub(crate) async fn hold(proxy: &Proxy, conversation: &Conversation) -> Result<Vec<u8>, String> {
    let mut saying = PREFACE[..conversation.preface].to_vec();
    conversation.pieces.iter().for_each(|piece| saying.extend(piece.bytes()));
    let stream = TcpStream::connect(proxy.url.strip_prefix("http://").unwrap()).await;
    let (mut from, mut to) = stream.map_err(|error| format!("no connection: {error}"))?.into_split();
    let mut heard = Vec::new();
    let mut said = 0;
    let mut moved = Instant::now();
    loop {
        tokio::select! {
            // The proxy may have hung up, and says so to whoever reads.
            written = to.write(&saying[said..]), if said < saying.len() => {
                said = written.map_or(saying.len(), |length| said + length);
                moved = Instant::now();
            }
            read = timeout(QUIET, from.read_buf(&mut heard)) => match read {
                Ok(Ok(1..)) => moved = Instant::now(),
                Ok(Ok(0) | Err(_)) => break,
                Err(_) if said == saying.len() => break,
                Err(_) if moved.elapsed() > PATIENCE => return Err(format!("stuck after {said} bytes")),
                Err(_) => {}
            },
        }
    }
    Ok(heard)
}
