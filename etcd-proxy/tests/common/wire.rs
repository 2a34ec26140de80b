//! HTTP/2 and gRPC by the byte.

use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use tokio::{io::AsyncReadExt as _, net::TcpStream, time::timeout};

/// Longest time for a frame that is due.
const PATIENCE: Duration = Duration::from_secs(20);

/// HTTP/2's preface and empty settings.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The headers of a call, in HPACK without its dynamic table.
pub(crate) fn headers(stream: u32, path: &str) -> Vec<u8> {
    let literal = |value: &str| [&[u8::try_from(value.len()).unwrap()], value.as_bytes()].concat();
    let block = [
        vec![0x83, 0x86, 0x04],
        literal(path),
        vec![0x01],
        literal("etcd"),
        vec![0x0f, 0x10],
        literal("application/grpc"),
        vec![0x00],
        literal("te"),
        literal("trailers"),
    ];
    frame(HEADERS, 4, stream, &block.concat())
}

/// A message as gRPC frames it.
pub(crate) fn grpc_frame(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(5 + message.len());
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap());
    frame.put_slice(message);
    frame.freeze()
}

pub(crate) async fn read_frame(stream: &mut TcpStream) -> (u8, u8, u32, Vec<u8>) {
    let mut head = [0; 9];
    timeout(PATIENCE, stream.read_exact(&mut head)).await.expect("a frame in time").expect("the connection stays");
    let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, l0, l1, l2]) as usize];
    stream.read_exact(&mut payload).await.unwrap();
    (kind, flags, u32::from_be_bytes([s0, s1, s2, s3]), payload)
}
