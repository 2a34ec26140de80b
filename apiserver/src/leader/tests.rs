use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc;

use super::*;
use crate::storage::memory::Memory;

fn election(identity: &str) -> LeaderElection {
    LeaderElection::new("/leases/test", identity)
}

/// Runs a candidate that tells when it leads and when no more, and leads until it is told not to.
fn stand(
    storage: &Arc<dyn Storage>,
    identity: &'static str,
    told: &mpsc::UnboundedSender<(&'static str, bool)>,
) -> (CancellationToken, tokio::task::JoinHandle<()>) {
    let stop = CancellationToken::new();
    let (storage, stopped, told) = (storage.clone(), stop.clone(), told.clone());
    let task = tokio::spawn(async move {
        let lead = |leading: CancellationToken| {
            let told = told.clone();
            async move {
                told.send((identity, true)).unwrap();
                leading.cancelled().await;
                told.send((identity, false)).unwrap();
            }
        };
        election(identity).run(storage, stopped, lead).await.unwrap();
    });
    (stop, task)
}

#[tokio::test(start_paused = true)]
async fn one_leads_and_hands_over() {
    let storage: Arc<dyn Storage> = Arc::new(Memory::default());
    let (sender, mut told) = mpsc::unbounded_channel();
    let (stop_a, a) = stand(&storage, "a", &sender);
    assert_eq!(told.recv().await.unwrap(), ("a", true));
    let (_stop_b, _b) = stand(&storage, "b", &sender);
    // Much longer than a lease: the leader renews it.
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(told.is_empty());
    let before = Instant::now();
    stop_a.cancel();
    a.await.unwrap();
    assert_eq!(told.recv().await.unwrap(), ("a", false));
    assert_eq!(told.recv().await.unwrap(), ("b", true));
    assert!(before.elapsed() < Duration::from_secs(4), "the lead was not given back");
}

#[tokio::test(start_paused = true)]
async fn a_dead_leader_is_replaced_after_its_lease() {
    let storage: Arc<dyn Storage> = Arc::new(Memory::default());
    let (sender, mut told) = mpsc::unbounded_channel();
    let (_stop, a) = stand(&storage, "a", &sender);
    assert_eq!(told.recv().await.unwrap(), ("a", true));
    let (_stop_b, _b) = stand(&storage, "b", &sender);
    tokio::time::sleep(Duration::from_secs(20)).await;
    a.abort();
    let before = Instant::now();
    assert_eq!(told.recv().await.unwrap(), ("b", true));
    let waited = before.elapsed();
    assert!(waited > Duration::from_secs(12) && waited < Duration::from_secs(20), "{waited:?}");
    let record: Record =
        serde_json::from_slice(&storage.get("/leases/test", Freshness::Latest).await.unwrap().kv.unwrap().value)
            .unwrap();
    assert_eq!((record.holder_identity.as_str(), record.leader_transitions), ("b", 1));
}

#[tokio::test(start_paused = true)]
async fn who_cannot_renew_stops_before_another_begins() {
    let memory: Arc<dyn Storage> = Arc::new(Memory::default());
    let cut = Arc::new(Cut { inner: memory.clone(), failing: Default::default() });
    let (sender, mut told) = mpsc::unbounded_channel();
    let storage: Arc<dyn Storage> = cut.clone();
    let (_stop_a, _a) = stand(&storage, "a", &sender);
    assert_eq!(told.recv().await.unwrap(), ("a", true));
    let (_stop_b, _b) = stand(&memory, "b", &sender);
    tokio::time::sleep(Duration::from_secs(30)).await;
    cut.failing.store(1, Ordering::SeqCst);
    assert_eq!(told.recv().await.unwrap(), ("a", false), "the old leader goes first");
    assert_eq!(told.recv().await.unwrap(), ("b", true));
    // And when it is back it does not lead.
    cut.failing.store(0, Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(told.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_stolen_record_ends_the_lead() {
    let storage: Arc<dyn Storage> = Arc::new(Memory::default());
    let (sender, mut told) = mpsc::unbounded_channel();
    let (_stop, _a) = stand(&storage, "a", &sender);
    assert_eq!(told.recv().await.unwrap(), ("a", true));
    let kv = storage.get("/leases/test", Freshness::Latest).await.unwrap().kv.unwrap();
    let thief = serde_json::to_vec(&election("thief").record(1, 1, 0)).unwrap();
    storage.put("/leases/test", Expected::At(kv.mod_revision), thief.into(), None).await.unwrap();
    assert_eq!(told.recv().await.unwrap(), ("a", false));
}

#[tokio::test]
async fn times_must_make_sense() {
    let storage: Arc<dyn Storage> = Arc::new(Memory::default());
    let short = LeaderElection { lease_duration: Duration::from_secs(10), ..election("a") };
    let run = short.run(storage.clone(), CancellationToken::new(), |_| async {});
    assert!(matches!(run.await, Err(ElectionError::Deadline)));
    let slow = LeaderElection { retry_period: Duration::from_secs(9), ..election("a") };
    assert!(matches!(slow.run(storage, CancellationToken::new(), |_| async {}).await, Err(ElectionError::Retry)));
}

/// A storage that can become unreachable for one candidate.
struct Cut {
    inner: Arc<dyn Storage>,
    failing: AtomicUsize,
}

#[async_trait::async_trait]
impl Storage for Cut {
    async fn get(&self, key: &str, at: Freshness) -> Result<crate::storage::Got, StorageError> {
        self.check()?;
        self.inner.get(key, at).await
    }

    async fn list(&self, range: crate::storage::ListRange<'_>) -> Result<crate::storage::Page, StorageError> {
        self.inner.list(range).await
    }

    async fn put(
        &self,
        key: &str,
        expected: Expected,
        value: Bytes,
        ttl: Option<Duration>,
    ) -> Result<Written, StorageError> {
        self.check()?;
        self.inner.put(key, expected, value, ttl).await
    }

    async fn delete(&self, key: &str, expected: crate::storage::Revision) -> Result<Written, StorageError> {
        self.inner.delete(key, expected).await
    }

    async fn watch(
        &self,
        range: crate::storage::WatchRange<'_>,
        after: crate::storage::Revision,
    ) -> Result<crate::storage::Watch, StorageError> {
        self.inner.watch(range, after).await
    }

    async fn current_revision(&self) -> Result<crate::storage::Revision, StorageError> {
        self.inner.current_revision().await
    }

    async fn compact(&self, revision: crate::storage::Revision) -> Result<(), StorageError> {
        self.inner.compact(revision).await
    }
}

impl Cut {
    fn check(&self) -> Result<(), StorageError> {
        match self.failing.load(Ordering::SeqCst) {
            0 => Ok(()),
            _ => Err(StorageError::Unavailable("as was asked for".to_owned())),
        }
    }
}
