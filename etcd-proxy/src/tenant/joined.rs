//! A question to the upstream that is asked once for all who wait for its answer.

use std::fmt;

use futures::{
    FutureExt as _,
    future::{BoxFuture, WeakShared},
};
use parking_lot::Mutex;
use tonic::Status;

type Asked<T> = BoxFuture<'static, Result<T, Status>>;

/// The question that is under way, if one is. Whoever comes meanwhile gets the same answer, a failure, too: asked again by one
/// after the other, the last of many would wait for a silent upstream many times as long as the first. It goes on for as long
/// as anybody waits, whoever began it, and whoever comes after a failure asks anew.
pub(super) struct Joined<T>(Mutex<Option<WeakShared<Asked<T>>>>);

// === impl Joined ===

impl<T: Clone> Joined<T> {
    /// The answer to the question that is under way, or to `ask` if none is.
    ///
    /// # Errors
    /// When asking failed.
    pub(super) async fn ask<F>(&self, ask: impl FnOnce() -> F) -> Result<T, Status>
    where
        F: Future<Output = Result<T, Status>> + Send + 'static,
    {
        let answer = {
            let mut asked = self.0.lock();
            let under_way = asked.as_ref().and_then(WeakShared::upgrade);
            // One that is answered may still be there for those that have not looked yet.
            under_way.filter(|under_way| under_way.peek().is_none()).unwrap_or_else(|| {
                let anew = ask().boxed().shared();
                *asked = anew.downgrade();
                anew
            })
        };
        answer.await
    }
}

impl<T> Default for Joined<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T> fmt::Debug for Joined<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Joined").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{future::ready, time::Duration};

    use tokio::time::{Instant, sleep, timeout};
    use tonic::Code;

    use super::*;

    const BIT: Duration = Duration::from_millis(100);
    const PATIENCE: Duration = Duration::from_secs(8);

    async fn given_up() -> Result<u8, Status> {
        sleep(PATIENCE).await;
        Err(Status::unavailable("no answer"))
    }

    /// All that wait hear of it when the first has waited long enough, and the next asks again.
    #[tokio::test(start_paused = true)]
    async fn nobody_waits_longer_than_the_first() {
        let (joined, begun) = (Joined::default(), Instant::now());
        let waiting = (0..100).map(|late| {
            let joined = &joined;
            async move {
                sleep(BIT / 10 * late).await;
                let refused = joined.ask(given_up).await.unwrap_err();
                (refused.code(), begun.elapsed())
            }
        });
        assert_eq!(futures::future::join_all(waiting).await, [(Code::Unavailable, PATIENCE); 100]);
        assert_eq!(joined.ask(|| ready(Ok(7))).await.unwrap(), 7);
    }

    #[tokio::test(start_paused = true)]
    async fn it_goes_on_without_who_began_it_and_ends_with_the_last() {
        let (joined, begun) = (Joined::default(), Instant::now());
        let late = || async {
            sleep(BIT * 2).await;
            Ok(7)
        };
        let first = timeout(BIT, joined.ask(late));
        let second = joined.ask(given_up);
        let (first, second) = tokio::join!(first, second);
        assert!(first.is_err());
        assert_eq!((second.unwrap(), begun.elapsed()), (7, BIT * 2));
        // Nobody waits for this any more when the next one comes.
        assert!(timeout(BIT, joined.ask(given_up)).await.is_err());
        assert_eq!(joined.ask(|| ready(Ok(8))).await.unwrap(), 8);
    }
}
