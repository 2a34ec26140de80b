//! A client's stream, as hyper has it for the time of a connection.
//!
//! It tells that a connection has said enough to be served: until HTTP/1.1 and HTTP/2 can be told apart no timeout of hyper's
//! runs, and a client that connects and stays silent would hold its place for ever.
//!
//! And it comes back in the end. hyper closes it once the last answer is written; if the client still sends then, be it that
//! it has taken some of that answer and wants more, the system answers with a reset, and what the client has not read yet
//! is lost. So somebody has to listen until the client has heard everything.
//!
//! And it breaks when its client takes nothing at all for long, though there is something to take. What is ready for such a
//! client would stay in memory until a ping finds out, which may be hours.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf},
    sync::oneshot,
    time::{Instant, Sleep, sleep, timeout},
};

/// Length of HTTP/2's connection preface; with as many bytes HTTP/1.1 is known to be spoken, or its own timeout runs.
const PREFACE: usize = 24;
/// How long a client gets to hear the rest and hang up. grpc-go waits as long.
const LINGER: Duration = Duration::from_secs(1);

/// How long a client may take no byte of what is to be written.
const STALLED: Duration = Duration::from_secs(120);

/// A stream that tells when its first bytes have arrived, and comes back when it is dropped.
#[derive(Debug)]
pub(super) struct ClientStream<S> {
    /// Only missing while it is being dropped.
    stream: Option<S>,
    missing: usize,
    arrived: Arc<AtomicBool>,
    back: Option<oneshot::Sender<S>>,
    /// Whether something is to be written that the client does not take.
    stalled: bool,
    /// Made when the client lets something wait for the first time.
    patience: Option<Pin<Box<Sleep>>>,
}

/// Tells whether the first bytes have arrived.
#[derive(Clone, Debug)]
pub(super) struct Arrived(Arc<AtomicBool>);

/// The stream once hyper is through with it.
#[derive(Debug)]
pub(super) struct Back<S>(oneshot::Receiver<S>);

impl Arrived {
    pub(super) fn yet(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Back<S> {
    /// Listens until the client hangs up, but not for long. The stream must have been dropped.
    pub(super) async fn linger(self) {
        let Ok(mut stream) = self.0.await else { return };
        let listening = async {
            // Either may fail: the client may be gone.
            stream.shutdown().await?;
            let mut ignored = [0; 4096];
            while stream.read(&mut ignored).await? > 0 {}
            io::Result::Ok(())
        };
        let _gone = timeout(LINGER, listening).await;
    }
}

// === impl ClientStream ===

impl<S> ClientStream<S> {
    pub(super) fn new(stream: S) -> (Self, Arrived, Back<S>) {
        let arrived = Arc::new(AtomicBool::new(false));
        let (back, returned) = oneshot::channel();
        let stream = Self {
            stream: Some(stream),
            missing: PREFACE,
            arrived: arrived.clone(),
            back: Some(back),
            stalled: false,
            patience: None,
        };
        (stream, Arrived(arrived), Back(returned))
    }

    fn get(&mut self) -> io::Result<&mut S> {
        self.stream.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// What has become of a write; an error if nothing has come of any for too long.
    fn patiently<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = false;
            return written;
        }
        let patience = self.patience.get_or_insert_with(|| Box::pin(sleep(STALLED)));
        if !self.stalled {
            self.stalled = true;
            patience.as_mut().reset(Instant::now() + STALLED);
        }
        patience.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S> Drop for ClientStream<S> {
    fn drop(&mut self) {
        if let (Some(stream), Some(back)) = (self.stream.take(), self.back.take()) {
            // Nobody wants it back if the connection is cut off.
            let _unwanted = back.send(stream);
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ClientStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.missing == 0 {
            return Pin::new(this.get()?).poll_read(cx, buf);
        }
        let before = buf.filled().len();
        ready!(Pin::new(this.get()?).poll_read(cx, buf))?;
        this.missing = this.missing.saturating_sub(buf.filled().len().saturating_sub(before));
        if this.missing == 0 {
            this.arrived.store(true, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ClientStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(this.get()?).poll_write(cx, buf);
        this.patiently(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(this.get()?).poll_write_vectored(cx, bufs);
        this.patiently(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.as_ref().is_some_and(AsyncWrite::is_write_vectored)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(this.get()?).poll_flush(cx);
        this.patiently(cx, flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.get_mut().get()?).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_for_long_is_cut_off() {
        let (server, mut client) = tokio::io::duplex(10);
        let (mut stream, ..) = ClientStream::new(server);
        // A client that is slow, and one that takes nothing.
        let slow = async {
            let mut bytes = [0; 4];
            for _ in 0..5 {
                sleep(STALLED / 2).await;
                client.read_exact(&mut bytes).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(stream.write_all(&[0; 30]), slow);
        written.unwrap();
        let start = Instant::now();
        let cut = stream.write_all(&[0; 30]).await.unwrap_err();
        assert_eq!((cut.kind(), start.elapsed().as_secs()), (io::ErrorKind::TimedOut, STALLED.as_secs()));
    }
}
