//! Noticing that an HTTP/2 server has greeted.
//!
//! A server's first frame is SETTINGS, and hyper does not wait for it: a member that hangs, whose kernel still accepts
//! connections, would look like one that works. One that closes the connection instead may have said why: with TLS 1.3 a
//! client learns that its certificate is refused only when its handshake is over and its first frames are under way.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::oneshot,
};

/// Length of a frame's header. What kind of frame it heads is h2's business, which ends the connection over a wrong one.
const FRAME_HEADER: usize = 9;

/// A stream that tells when its peer has sent the header of its first frame.
#[derive(Debug)]
pub(super) struct Greeting<S> {
    stream: S,
    missing: usize,
    greeted: Option<oneshot::Sender<io::Result<()>>>,
}

impl<S> Greeting<S> {
    /// The stream, and what resolves once the peer has greeted, or with the error that came instead.
    pub(super) fn awaited(stream: S) -> (Self, oneshot::Receiver<io::Result<()>>) {
        let (greeted, heard) = oneshot::channel();
        (Self { stream, missing: FRAME_HEADER, greeted: Some(greeted) }, heard)
    }
}

impl<S: AsyncRead + Unpin> Greeting<S> {
    /// The outcome of a write; if it failed because the peer hung up without a greeting, the error that reading shows,
    /// which is the peer's reason if it gave one. What else it may have sent is of no use any more.
    fn explained<T>(&mut self, cx: &mut Context<'_>, outcome: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let Poll::Ready(Err(hung_up)) = outcome else { return outcome };
        if self.greeted.is_none() {
            return Poll::Ready(Err(hung_up));
        }
        let mut unread = [0; 64];
        // The end of the stream is to be read in any case, if not yet. The dial timeout ends a wait that is in vain.
        let error = match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut ReadBuf::new(&mut unread))) {
            Err(reason) => reason,
            Ok(()) => hung_up,
        };
        Poll::Ready(Err(self.failed(error)))
    }

    /// Tells why there was no greeting.
    fn failed(&mut self, error: io::Error) -> io::Error {
        if let Some(greeted) = self.greeted.take() {
            let _gone = greeted.send(Err(io::Error::new(error.kind(), error.to_string())));
        }
        error
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Greeting<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.greeted.is_none() {
            return Pin::new(&mut this.stream).poll_read(cx, buf);
        }
        let before = buf.filled().len();
        if let Err(error) = ready!(Pin::new(&mut this.stream).poll_read(cx, buf)) {
            return Poll::Ready(Err(this.failed(error)));
        }
        this.missing = this.missing.saturating_sub(buf.filled().len().saturating_sub(before));
        if this.missing == 0
            && let Some(greeted) = this.greeted.take()
        {
            // Nobody waits any more once the dial was given up.
            let _gone = greeted.send(Ok(()));
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Greeting<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.explained(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.explained(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.explained(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
