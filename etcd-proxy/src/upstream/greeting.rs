//! Noticing that an HTTP/2 server has greeted.
//!
//! A server's first frame is SETTINGS, and hyper does not wait for it: a member that hangs, whose kernel still accepts
//! connections, would look like one that works.

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
    greeted: Option<oneshot::Sender<()>>,
}

impl<S> Greeting<S> {
    /// The stream, and what resolves once the peer has greeted. It fails if the stream goes before that.
    pub(super) fn awaited(stream: S) -> (Self, oneshot::Receiver<()>) {
        let (greeted, heard) = oneshot::channel();
        (Self { stream, missing: FRAME_HEADER, greeted: Some(greeted) }, heard)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Greeting<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.greeted.is_none() {
            return Pin::new(&mut this.stream).poll_read(cx, buf);
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        this.missing = this.missing.saturating_sub(buf.filled().len().saturating_sub(before));
        if this.missing == 0
            && let Some(greeted) = this.greeted.take()
        {
            // Nobody waits any more once the dial was given up.
            let _gone = greeted.send(());
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Greeting<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
