use std::{collections::VecDeque, future::poll_fn};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::advance,
};

use super::*;

/// Takes writes as they come, each as a whole, unless told to take less.
#[derive(Debug, Default)]
struct Peer {
    writes: Vec<Vec<u8>>,
    /// What the next writes take at most; `None` is a full socket.
    takes: VecDeque<Option<usize>>,
    shut_down: bool,
}

impl AsyncWrite for Peer {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut all: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).collect();
        match self.takes.pop_front() {
            Some(None) => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            Some(Some(most)) => all.truncate(most),
            None => {}
        }
        let length = all.len();
        self.writes.push(all);
        Poll::Ready(Ok(length))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shut_down = true;
        Poll::Ready(Ok(()))
    }
}

fn pong(opaque: u8) -> Vec<u8> {
    let mut frame = PONG_HEAD.to_vec();
    frame.extend([opaque; 8]);
    frame
}

/// Asks once for a flush, as a connection does whenever it is polled.
async fn flush_once(stream: &mut Corked<Peer>) -> Poll<()> {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *stream).poll_flush(cx).map(Result::unwrap))).await
}

#[tokio::test]
async fn writes_between_which_nobody_waits_become_one() {
    let mut stream = Corked::new(Peer::default());
    stream.write_all(b"headers ").await.unwrap();
    assert_eq!(flush_once(&mut stream).await, Poll::Pending, "others run first");
    stream.write_all(b"message").await.unwrap();
    stream.flush().await.unwrap();
    assert_eq!(stream.stream.writes, [b"headers message"]);

    stream.write_all(b"next").await.unwrap();
    assert_eq!(flush_once(&mut stream).await, Poll::Pending, "a flush that is done is done");
    stream.flush().await.unwrap();
    assert_eq!(stream.stream.writes, [b"headers message".as_slice(), b"next"]);
}

#[tokio::test]
async fn a_flush_wakes_its_task_by_itself() {
    let (near, mut far) = tokio::io::duplex(64);
    let mut stream = Corked::new(near);
    let writer = tokio::spawn(async move {
        stream.write_all(b"hello").await.unwrap();
        stream.flush().await.unwrap();
        stream
    });
    let mut heard = [0; 5];
    far.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"hello");
    drop(writer.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn pongs_wait_for_company() {
    let mut stream = Corked::new(Peer::default());
    stream.write_all(&pong(1)).await.unwrap();
    assert_eq!(flush_once(&mut stream).await, Poll::Pending);
    advance(PONG_PATIENCE / 2).await;
    assert_eq!(flush_once(&mut stream).await, Poll::Pending);
    stream.write_all(b"request").await.unwrap();
    let asked = Instant::now();
    stream.flush().await.unwrap();
    assert_eq!(asked.elapsed(), Duration::ZERO);
    assert_eq!(stream.stream.writes, [[pong(1), b"request".to_vec()].concat()]);
}

#[tokio::test(start_paused = true)]
async fn pongs_do_not_wait_for_ever() {
    let mut stream = Corked::new(Peer::default());
    for round in 0..2 {
        stream.write_all(&pong(round)).await.unwrap();
        let asked = Instant::now();
        assert_eq!(flush_once(&mut stream).await, Poll::Pending);
        advance(PONG_PATIENCE / 2).await;
        // A second one does not make the first wait longer.
        stream.write_all(&pong(7)).await.unwrap();
        stream.flush().await.unwrap();
        assert!(asked.elapsed() <= PONG_PATIENCE + Duration::from_millis(1), "{:?}", asked.elapsed());
        assert_eq!(stream.stream.writes.pop(), Some([pong(round), pong(7)].concat()));
    }
}

#[test]
fn only_whole_acknowledged_pings_are_pongs() {
    assert!(only_pongs(&pong(3)));
    let ping = [[0, 0, 8, 6, 0, 0, 0, 0, 0].as_slice(), &[3; 8]].concat();
    for other in [&ping[..], &pong(3)[..16], &[pong(3), b"x".to_vec()].concat(), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        assert!(!only_pongs(other), "{other:?}");
    }
}

#[tokio::test]
async fn large_writes_are_passed_on_with_what_was_gathered() {
    let large = vec![b'x'; DIRECT + 1];
    let mut stream = Corked::new(Peer::default());
    stream.write_all(&large).await.unwrap();
    assert_eq!(stream.stream.writes.pop().unwrap(), large);
    stream.write_all(b"head").await.unwrap();
    stream.write_all(&large).await.unwrap();
    assert_eq!(stream.stream.writes.pop().unwrap(), [b"head".to_vec(), large].concat());
    assert!(stream.gathered.is_empty());
}

#[tokio::test]
async fn what_a_socket_takes_bit_by_bit_arrives_once_and_in_order() {
    let (head, large) = (vec![b'h'; 100], vec![b'x'; DIRECT + 1]);
    let takes = [Some(40), None, Some(30), Some(35), Some(1000), None, Some(10)];
    let mut stream = Corked::new(Peer { takes: takes.into(), ..Peer::default() });
    stream.write_all(&head).await.unwrap();
    stream.write_all(&large).await.unwrap();
    stream.write_all(b"tail").await.unwrap();
    stream.flush().await.unwrap();
    assert_eq!(stream.stream.writes.concat(), [head, large, b"tail".to_vec()].concat());
}

#[tokio::test]
async fn what_is_gathered_is_bounded() {
    let mut stream = Corked::new(Peer::default());
    for _ in 0..1000 {
        stream.write_all(&[b'x'; 1000]).await.unwrap();
        assert!(stream.gathered.len() <= CAPACITY);
    }
    stream.flush().await.unwrap();
    assert_eq!(stream.stream.writes.concat().len(), 1_000_000);
}

#[tokio::test]
async fn shutting_down_writes_everything_first() {
    let mut stream = Corked::new(Peer::default());
    stream.write_all(&pong(1)).await.unwrap();
    stream.shutdown().await.unwrap();
    assert_eq!(stream.stream.writes, [pong(1)]);
    assert!(stream.stream.shut_down);
}

/// Has these bytes to be read, so many at a time at most, and tells how much room its readers had.
#[derive(Debug)]
struct Source {
    bytes: BytesMut,
    at_most: usize,
    rooms: Vec<usize>,
}

impl AsyncRead for Source {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let room = buf.remaining();
        self.rooms.push(room);
        let length = self.bytes.len().min(self.at_most).min(room);
        buf.put_slice(&self.bytes.split_to(length));
        Poll::Ready(Ok(()))
    }
}

async fn read_by(stream: &mut Corked<Source>, room: usize) -> Vec<u8> {
    let mut read = Vec::new();
    let mut piece = vec![0; room];
    loop {
        let length = stream.read(&mut piece).await.unwrap();
        if length == 0 {
            return read;
        }
        read.extend_from_slice(&piece[..length]);
        assert!(stream.ahead.bytes.len() <= AHEAD, "{}", stream.ahead.bytes.len());
    }
}

#[tokio::test]
async fn much_is_read_at_a_time_and_arrives_once_and_in_order() {
    let sent: Vec<u8> = (0..1_000_000_u32).map(|number| (number % 251) as u8).collect();
    // At once, in pieces as large as the room for them, and in smaller ones.
    for (at_most, reads) in [(usize::MAX, 20), (8192, 200), (5000, 220)] {
        let source = Source { bytes: sent[..].into(), at_most, rooms: Vec::new() };
        let mut stream = Corked::new(source);
        assert!(read_by(&mut stream, 8192).await == sent, "{at_most}");
        let rooms = &stream.stream.rooms;
        assert!(rooms.len() <= reads, "{at_most}: {} reads", rooms.len());
        // Who rests has nothing here.
        assert_eq!((stream.ahead.bytes.capacity(), stream.ahead.more), (0, false), "{at_most}");
    }
}

#[tokio::test]
async fn little_is_read_as_it_is_asked_for() {
    let source = Source { bytes: b"small"[..].into(), at_most: usize::MAX, rooms: Vec::new() };
    let mut stream = Corked::new(source);
    assert_eq!(read_by(&mut stream, 8192).await, b"small");
    assert_eq!(stream.stream.rooms, [8192, 8192]);
}

#[tokio::test]
async fn large_frames_are_written_together_and_their_room_is_given_back() {
    let frame = vec![b'x'; 16 * 1024 + 9];
    let mut stream = Corked::new(Peer::default());
    for _ in 0..4 {
        stream.write_all(&frame).await.unwrap();
    }
    stream.flush().await.unwrap();
    assert_eq!(stream.stream.writes.len(), 1);
    assert!(stream.gathered.capacity() <= KEPT);
}
