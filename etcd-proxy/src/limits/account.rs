//! The account of a tenant's storage, or of its leases, as requests meet it.

use std::time::Duration;

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};
use tonic::{Code, Status};

use super::ledger::{Amount, Exceeded, Ledger, Outcome, Quota, Verdict};

/// How long the first count is waited for.
const UNCOUNTED: Duration = Duration::from_secs(5);
/// How long a write waits for others that are on their way to be stored, if it would fit without them.
const CROWDED: Duration = Duration::from_secs(1);

/// An account that requests are held against.
#[derive(Debug)]
pub(crate) struct Account {
    ledger: Mutex<Ledger>,
    /// Something was counted or seen.
    changed: Notify,
    quota: Quota,
    refused: Refused,
    started: Instant,
}

/// Counts refusals by the quota that they are because of.
#[derive(Clone, Debug)]
pub(super) struct Refused {
    pub(super) keys: Counter,
    pub(super) bytes: Counter,
}

/// Why something was not let in.
#[derive(Debug)]
pub(crate) enum NotAdmitted {
    /// The quota.
    Exceeded,
    /// What is stored could not be found out.
    Unknown(Status),
}

/// The place of something that is to be stored. What becomes of it is told by [`Place::settle`]; dropped without that, it
/// counts for a while as something that may still be carried out.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    account: &'a Account,
    growth: Amount,
    outcome: Option<Outcome>,
}

// === impl Account ===

fn uncounted() -> NotAdmitted {
    NotAdmitted::Unknown(Status::unavailable(
        "etcd-proxy: what this tenant has stored is not counted yet, so nothing says whether its quota holds more",
    ))
}

impl Account {
    pub(super) fn new(quota: Quota, refused: Refused) -> Self {
        let ledger = Mutex::new(Ledger::new(quota));
        Self { ledger, changed: Notify::new(), quota, refused, started: Instant::now() }
    }

    /// What is stored, once that is known.
    pub(crate) fn stored(&self) -> Option<Amount> {
        self.counted().map(|(stored, _)| stored)
    }

    /// Whether what grows is being refused.
    pub(crate) fn exhausted(&self) -> bool {
        self.ledger.lock().exhausted()
    }

    pub(super) fn counted(&self) -> Option<(Amount, i64)> {
        self.ledger.lock().counted()
    }

    pub(super) fn recounted(&self, stored: Amount, revision: i64) {
        self.ledger.lock().recounted(stored, revision);
        self.changed.notify_waiters();
    }

    /// What was counted and written was of a store that is no more.
    pub(super) fn forget(&self) {
        self.ledger.lock().forget();
    }

    pub(super) fn changed(&self, change: Amount, revision: i64) {
        self.ledger.lock().changed(change, revision);
        self.changed.notify_waiters();
    }

    /// A place for something that grows the store by `worst` at most. If that does not fit, `exact` is asked by how much it
    /// really does.
    ///
    /// # Errors
    /// When it does not fit, or nobody knows whether it does.
    pub(crate) async fn admit(
        &self,
        worst: Amount,
        exact: impl Future<Output = Result<Amount, Status>>,
    ) -> Result<Place<'_>, NotAdmitted> {
        match self.reserve(worst) {
            Verdict::Fits => return Ok(self.place(worst)),
            Verdict::Unknown => self.first_count().await.ok_or_else(uncounted)?,
            Verdict::Crowded | Verdict::Beyond(_) => {}
        }
        if let Verdict::Fits = self.reserve(worst) {
            return Ok(self.place(worst));
        }
        let growth = exact.await.map_err(NotAdmitted::Unknown)?;
        let patience = Instant::now() + CROWDED;
        loop {
            // Listening begins before the look, so that no change in between is missed.
            let changed = self.changed.notified();
            let exceeded = match self.reserve(growth) {
                Verdict::Fits => return Ok(self.place(growth)),
                Verdict::Beyond(exceeded) => Some(exceeded),
                Verdict::Crowded | Verdict::Unknown => None,
            };
            match exceeded {
                None if timeout_at(patience, changed).await.is_ok() => {}
                exceeded => {
                    let mut ledger = self.ledger.lock();
                    ledger.refused(growth);
                    drop(ledger);
                    match exceeded {
                        Some(Exceeded::Keys) => self.refused.keys.inc(),
                        Some(Exceeded::Bytes) => self.refused.bytes.inc(),
                        None if self.quota.bytes.is_none() => self.refused.keys.inc(),
                        None => self.refused.bytes.inc(),
                    };
                    return Err(NotAdmitted::Exceeded);
                }
            }
        }
    }

    /// Waits for the first count, for a while.
    pub(super) async fn first_count(&self) -> Option<()> {
        let patience = Instant::now() + UNCOUNTED;
        loop {
            let changed = self.changed.notified();
            if self.counted().is_some() {
                return Some(());
            }
            timeout_at(patience, changed).await.ok()?;
        }
    }

    fn reserve(&self, growth: Amount) -> Verdict {
        self.ledger.lock().reserve(growth, self.second())
    }

    fn place(&self, growth: Amount) -> Place<'_> {
        Place { account: self, growth, outcome: None }
    }

    fn second(&self) -> u64 {
        self.started.elapsed().as_secs()
    }
}

// === impl Place ===

impl Place<'_> {
    /// It was written, at this revision.
    pub(crate) fn written(mut self, revision: i64) {
        self.outcome = Some(Outcome::Written(revision));
    }

    /// Nothing was written.
    pub(crate) fn nothing(mut self) {
        self.outcome = Some(Outcome::Nothing);
    }

    /// It ended with an error, which says that nothing was written or does not say.
    pub(crate) fn failed(self, code: Code) {
        if !is_doubtful(code) {
            self.nothing();
        }
    }
}

/// Whether what failed so may have been carried out.
pub(crate) fn is_doubtful(code: Code) -> bool {
    matches!(code, Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown | Code::Internal)
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let outcome = self.outcome.unwrap_or_else(|| Outcome::Doubtful(self.account.second()));
        if self.growth.most(Amount::NOTHING) != Amount::NOTHING {
            self.account.ledger.lock().settle(self.growth, outcome);
            self.account.changed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    fn account(bytes: i64) -> Account {
        let refused = Refused { keys: Counter::default(), bytes: Counter::default() };
        Account::new(Quota { keys: None, bytes: Some(bytes) }, refused)
    }

    fn bytes(bytes: i64) -> Amount {
        Amount { keys: 1, bytes }
    }

    async fn never() -> Result<Amount, Status> {
        panic!("nothing is looked up")
    }

    #[tokio::test(start_paused = true)]
    async fn what_surely_fits_is_not_looked_up() {
        let account = account(100);
        account.recounted(bytes(50), 10);
        account.admit(bytes(50), never()).await.unwrap().nothing();
        // What it really adds is nothing.
        account.admit(bytes(51), ready(Ok(bytes(0)))).await.unwrap().nothing();
        let refused = account.admit(bytes(51), ready(Ok(bytes(51)))).await;
        assert!(matches!(refused, Err(NotAdmitted::Exceeded)), "{refused:?}");
        assert_eq!(account.refused.bytes.get(), 1);
        assert!(account.exhausted());
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_count_is_waited_for_and_not_for_ever() {
        let account = account(100);
        let started = Instant::now();
        let answer = account.admit(bytes(1), never()).await;
        assert!(
            matches!(&answer, Err(NotAdmitted::Unknown(status)) if status.code() == Code::Unavailable),
            "{answer:?}"
        );
        assert_eq!(started.elapsed(), UNCOUNTED);
        account.admit(bytes(0) - bytes(0), never()).await.unwrap().nothing();
        let (counted, ()) = tokio::join!(account.admit(bytes(1), never()), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            account.recounted(bytes(1), 10);
        });
        counted.unwrap().nothing();
        assert_eq!(started.elapsed(), UNCOUNTED + Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_on_its_way_is_waited_for() {
        let account = account(100);
        account.recounted(bytes(10), 10);
        account.admit(bytes(90), never()).await.unwrap().written(11);
        let (admitted, ()) = tokio::join!(account.admit(bytes(20), ready(Ok(bytes(20)))), async {
            tokio::time::sleep(Duration::from_millis(500)).await;
            // Those 90 bytes replaced 90 others.
            account.changed(Amount::NOTHING, 11);
        });
        admitted.unwrap().nothing();
        let started = Instant::now();
        account.admit(bytes(90), never()).await.unwrap().failed(Code::Unavailable);
        let refused = account.admit(bytes(20), ready(Ok(bytes(20)))).await;
        assert!(matches!(refused, Err(NotAdmitted::Exceeded)), "it may still be carried out: {refused:?}");
        assert_eq!(started.elapsed(), CROWDED);
        tokio::time::sleep(Duration::from_secs(20)).await;
        account.admit(bytes(90), never()).await.unwrap().failed(Code::InvalidArgument);
        account.admit(bytes(90), never()).await.unwrap().nothing();
    }
}
