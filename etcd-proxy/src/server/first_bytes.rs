//! Noticing that a connection has said enough to be served.
//!
//! Until HTTP/1.1 and HTTP/2 can be told apart no timeout of hyper's runs: a client that connects and stays silent would
//! hold its place for ever.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Length of HTTP/2's connection preface; with as many bytes HTTP/1.1 is known to be spoken, or its own timeout runs.
const PREFACE: usize = 24;

/// A stream that tells when its first bytes have arrived.
#[derive(Debug)]
pub(super) struct FirstBytes<S> {
    stream: S,
    missing: usize,
    arrived: Arc<AtomicBool>,
}

/// Tells whether the first bytes have arrived.
#[derive(Clone, Debug)]
pub(super) struct Arrived(Arc<AtomicBool>);

impl Arrived {
    pub(super) fn yet(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl<S> FirstBytes<S> {
    pub(super) fn new(stream: S) -> (Self, Arrived) {
        let arrived = Arc::new(AtomicBool::new(false));
        (Self { stream, missing: PREFACE, arrived: arrived.clone() }, Arrived(arrived))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for FirstBytes<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.missing == 0 {
            return Pin::new(&mut this.stream).poll_read(cx, buf);
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(cx, buf))?;
        this.missing = this.missing.saturating_sub(buf.filled().len().saturating_sub(before));
        if this.missing == 0 {
            this.arrived.store(true, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for FirstBytes<S> {
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
