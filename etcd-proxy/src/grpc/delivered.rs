//! Short answers that are made here and are no unary calls' of the tenant.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::sync::oneshot;

use super::untaken;

/// A body that ends no sooner than its client has taken it, so that its call can be ended until then.
///
/// Of a body that has ended HTTP/2 would keep what does not fit in the client's window, for as long as the client likes.
pub(crate) struct Delivered<B, K> {
    body: B,
    /// Ends when what was handed over last is on its way.
    delivery: Option<oneshot::Receiver<()>>,
    /// What is kept until all has been taken.
    kept: Option<K>,
}

/// Goes with bytes that were handed over.
struct Undelivered {
    bytes: Bytes,
    _delivery: oneshot::Sender<()>,
}

// === impl Delivered ===

impl<B, K> Delivered<B, K> {
    /// The body of the call that is being polled, which its client may leave for so long; `None` for ever.
    pub(crate) fn new(body: B, patience: Option<Duration>, kept: K) -> Self {
        untaken::waits(patience);
        Self { body, delivery: None, kept: Some(kept) }
    }
}

impl<B: Body<Data = Bytes> + Unpin, K: Unpin> Body for Delivered<B, K> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        if let Some(delivery) = &mut this.delivery {
            // It only ends, with the bytes.
            let _ended = ready!(Pin::new(delivery).poll(cx));
            this.delivery = None;
        }
        let polled = ready!(Pin::new(&mut this.body).poll_frame(cx));
        let frame = match polled {
            Some(Ok(frame)) if frame.is_data() => frame.map_data(|bytes| {
                let (delivered, delivery) = oneshot::channel();
                this.delivery = Some(delivery);
                Bytes::from_owner(Undelivered { bytes, _delivery: delivered })
            }),
            ended => {
                untaken::taken();
                this.kept = None;
                return Poll::Ready(ended);
            }
        };
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.delivery.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl AsRef<[u8]> for Undelivered {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
