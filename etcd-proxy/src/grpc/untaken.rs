//! Calls whose client does not take what it was answered.
//!
//! What hyper has asked a body for HTTP/2 has, for as long as its client leaves it there. So a body can neither take back what it
//! gave nor, while it is asked for nothing more, end itself. What can is the end of the call's task: with it everything goes, and HTTP/2
//! drops what it has of the stream and resets it.
//!
//! A body says by [`waits`] and [`taken`] whose turn it is. Both are for the task that polls it, which is that of the call, so
//! that it takes no lock and, as long as clients take what they get, no timer.

use std::{
    cell::Cell,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use pin_project_lite::pin_project;
use prometheus_client::metrics::counter::Counter;
use tokio::time::{Instant, Sleep, sleep};

thread_local! {
    /// How long the client of the call that is being polled may let its answer wait; `None` while that does not wait for it.
    static WAITS: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// The answer of the call that is being polled waits for its client, at most for so long; `None` for ever.
pub(super) fn waits(patience: Option<Duration>) {
    WAITS.set(patience);
}

/// The client has what there was for it.
pub(super) fn taken() {
    WAITS.set(None);
}

/// Runs calls, and ends those whose clients take nothing for too long.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    /// Counts what is ended.
    pub given_up: Counter,
}

pin_project! {
    struct Call<F> {
        #[pin]
        call: F,
        waits: Option<Duration>,
        // Made when the client lets something wait for the first time.
        patience: Option<Pin<Box<Sleep>>>,
        given_up: Counter,
    }
}

// === impl Calls ===

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for Calls {
    fn execute(&self, call: F) {
        // It ends when its stream is reset, as all are when their connection ends, and that is tracked.
        tokio::spawn(self.of(call));
    }
}

impl Calls {
    fn of<F>(&self, call: F) -> Call<F> {
        Call { call, waits: None, patience: None, given_up: self.given_up.clone() }
    }
}

// === impl Call ===

impl<F: Future<Output = ()>> Future for Call<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        if this.waits.is_some()
            && let Some(patience) = this.patience
            && patience.as_mut().poll(cx).is_ready()
        {
            this.given_up.inc();
            tracing::info!(waited = ?this.waits, "ended a call, because its client does not take the answer");
            return Poll::Ready(());
        }
        WAITS.set(*this.waits);
        let polled = this.call.poll(cx);
        *this.waits = WAITS.take();
        if polled.is_pending()
            && let Some(after) = *this.waits
        {
            let patience = this.patience.get_or_insert_with(|| Box::pin(sleep(after)));
            patience.as_mut().reset(Instant::now() + after);
            // It is not due yet, and is to wake this task.
            let _pending = patience.as_mut().poll(cx);
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};

    use hyper::rt::Executor as _;
    use tokio::{sync::oneshot, time::timeout};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn only_calls_whose_clients_let_them_wait_are_ended() {
        let calls = Calls::default();
        let (held, dropped) = oneshot::channel::<()>();
        let begun = Instant::now();
        calls.execute(async move {
            let _held = held;
            waits(Some(PATIENCE));
            pending().await
        });
        // What another call says is not meant for this one.
        let (other, ended) = oneshot::channel();
        calls.execute(async {
            for _ in 0..30 {
                taken();
                sleep(PATIENCE / 10).await;
            }
            other.send(()).unwrap();
        });
        assert!(dropped.await.is_err());
        assert_eq!((begun.elapsed(), calls.given_up.get()), (PATIENCE, 1));
        ended.await.unwrap();
        assert_eq!((begun.elapsed(), calls.given_up.get()), (3 * PATIENCE, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_something_has_time_again_and_who_has_all_is_not_waited_for() {
        let calls = Calls::default();
        let mut steps = Box::pin(async {
            for _ in 0..5 {
                waits(Some(PATIENCE));
                sleep(PATIENCE / 2).await;
            }
            taken();
            sleep(PATIENCE * 5).await;
        });
        timeout(PATIENCE * 100, calls.of(poll_fn(|cx| steps.as_mut().poll(cx)))).await.unwrap();
        assert_eq!(calls.given_up.get(), 0);
    }
}
