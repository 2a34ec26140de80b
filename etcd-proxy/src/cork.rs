//! Fewer, larger writes and reads on HTTP/2 connections.
//!
//! A small call costs a proxy more in system calls than in work on it, and each write wakes a peer. Left alone, the HTTP/2
//! stack writes the headers of a request, then its message once the stream has window for it, and the acknowledgement of
//! each ping by itself; and Go's ends ping with every other message to estimate the bandwidth
//! (`grpc/internal/transport/bdp_estimator.go`). [`Corked`] gathers what is written until every task that can run has run,
//! and lets acknowledged pings wait a little for company. And where much comes at once, it takes more of that at a time than the
//! stack asks for, which reads 8 KiB.

#[cfg(test)]
mod tests;

use std::{
    future::Future as _,
    io::{self, IoSlice},
    pin::{Pin, pin},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf as _, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

/// Bytes that are gathered at most. Four of the largest frames that clients take unless they say otherwise, with their heads.
const CAPACITY: usize = 4 * (16 * 1024 + 9);

/// Bytes for which room is kept when they have been written.
const KEPT: usize = 16 * 1024;

/// Writes of more than this many bytes are not copied; they take what was gathered along. Copying a frame costs less than a
/// write of its own.
const DIRECT: usize = CAPACITY / 2;

/// Bytes that are read ahead at most.
const AHEAD: usize = 64 * 1024;

/// Slices of one write.
const SLICES: usize = 64;

/// How long acknowledged pings wait for something else to be written. Much less than anybody waits for one before it takes the
/// connection for dead (grpc-go: 20 s, at least 1 s), and enough for the next request of a busy client.
const PONG_PATIENCE: Duration = Duration::from_millis(5);

/// Head of an acknowledged PING frame (RFC 9113, section 6.7): length 8, type 6, flag ACK, stream 0.
const PONG_HEAD: [u8; 9] = [0, 0, 8, 6, 1, 0, 0, 0, 0];

/// Length of the whole frame.
const PONG: usize = PONG_HEAD.len() + 8;

/// A stream whose writes are gathered until it is flushed, and whose flush waits until the other tasks had their turn.
///
/// Nothing is held back for longer than that, but for [pongs](PONG_PATIENCE). At most [`CAPACITY`] bytes of what is written are
/// kept here, and [`AHEAD`] of what was read.
#[derive(Debug)]
pub(crate) struct Corked<S> {
    stream: S,
    gathered: BytesMut,
    ahead: Ahead,
    flush: Flush,
    /// Made when the first pong has to wait.
    patience: Option<Pin<Box<Sleep>>>,
}

/// What was read before it was asked for.
#[derive(Debug, Default)]
struct Ahead {
    bytes: BytesMut,
    /// Whether the last read got all that it had room for, so that more may have come.
    more: bool,
}

/// What has become of the wish to flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flush {
    /// Nobody wishes it.
    Unasked,
    /// There are only pongs. The time is that of the first.
    Patient,
    /// Others run first.
    Yielded,
    /// It is its turn, and goes on until everything is written.
    Due,
}

impl<S> Corked<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, gathered: BytesMut::new(), ahead: Ahead::default(), flush: Flush::Unasked, patience: None }
    }
}

impl<S: AsyncWrite + Unpin> Corked<S> {
    /// Writes out what was gathered.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.gathered.is_empty() {
            let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.gathered))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.gathered.advance(written);
        }
        self.give_back();
        Poll::Ready(Ok(()))
    }

    /// Gives back the room of what has been written, if it is large: many connections rest.
    fn give_back(&mut self) {
        if self.gathered.is_empty() && self.gathered.capacity() > KEPT {
            self.gathered = BytesMut::new();
        }
    }

    /// Writes `slices`, after what was gathered if there is any, and without copying them.
    fn poll_direct(&mut self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        while !self.gathered.is_empty() {
            let mut together = [IoSlice::new(&[]); SLICES];
            let mut count = 0;
            for (place, slice) in
                together.iter_mut().zip(std::iter::once(IoSlice::new(&self.gathered)).chain(slices.iter().copied()))
            {
                *place = slice;
                count += 1;
            }
            let together = together.get(..count).unwrap_or_default();
            let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, together))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let of_slices = written.saturating_sub(self.gathered.len());
            self.gathered.advance(written - of_slices);
            self.give_back();
            if of_slices > 0 {
                return Poll::Ready(Ok(of_slices));
            }
        }
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    /// Whether it is the time to write out what was gathered.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.flush {
            Flush::Due => return Poll::Ready(()),
            // Whoever had to run before has run: a task that wakes itself goes to the end of the queue.
            Flush::Yielded => {
                self.flush = Flush::Due;
                return Poll::Ready(());
            }
            Flush::Unasked | Flush::Patient if only_pongs(&self.gathered) => {
                let patience = self.patience.get_or_insert_with(|| Box::pin(sleep(PONG_PATIENCE)));
                if self.flush == Flush::Unasked {
                    self.flush = Flush::Patient;
                    patience.as_mut().reset(Instant::now() + PONG_PATIENCE);
                }
                ready!(patience.as_mut().poll(cx));
                self.flush = Flush::Due;
                return Poll::Ready(());
            }
            Flush::Unasked | Flush::Patient => {}
        }
        self.flush = Flush::Yielded;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

fn only_pongs(bytes: &[u8]) -> bool {
    bytes.chunks(PONG).all(|frame| frame.len() == PONG && frame.starts_with(&PONG_HEAD))
}

impl<S: AsyncRead + Unpin> AsyncRead for Corked<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.ahead.bytes.is_empty() {
            if !this.ahead.more {
                let (before, room) = (buf.filled().len(), buf.remaining());
                ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
                this.ahead.more = buf.filled().len() - before == room;
                return Poll::Ready(Ok(()));
            }
            this.ahead.bytes.reserve(AHEAD);
            let read = pin!(this.stream.read_buf(&mut this.ahead.bytes)).poll(cx);
            if !matches!(read, Poll::Ready(Ok(AHEAD..))) {
                this.ahead.more = false;
            }
            if ready!(read)? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
        let length = this.ahead.bytes.len().min(buf.remaining());
        buf.put_slice(&this.ahead.bytes.split_to(length));
        if this.ahead.bytes.is_empty() && !this.ahead.more {
            this.ahead.bytes = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Corked<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let length = slices.iter().map(|slice| slice.len()).sum::<usize>();
        if length > DIRECT || this.gathered.len().saturating_add(length) > CAPACITY {
            return this.poll_direct(cx, slices);
        }
        for slice in slices {
            this.gathered.extend_from_slice(slice);
        }
        Poll::Ready(Ok(length))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.gathered.is_empty() {
            ready!(this.poll_turn(cx));
            ready!(this.poll_drain(cx))?;
        }
        ready!(Pin::new(&mut this.stream).poll_flush(cx))?;
        this.flush = Flush::Unasked;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_drain(cx))?;
        Pin::new(&mut this.stream).poll_shutdown(cx)
    }
}
