//! The same random operations on two stores give the same observations.

use std::sync::Arc;

use apiserver::storage::{
    Event, Expected, Freshness, KeyValue, ListRange, Revision, Storage, StorageError, WatchRange, Written,
    etcd3::Etcd3Options, memory::Memory, testing::PATIENCE,
};
use bytes::Bytes;
use futures::StreamExt as _;
use proptest::{
    prelude::*,
    test_runner::{Config, TestRunner},
};
use tokio::{runtime::Runtime, time::timeout};

use super::{
    etcd::{Etcd, connect},
    model::Model,
};

const KEYS: [&str; 6] = ["/d/a", "/d/a/b", "/d/ab", "/d/b", "/d", "/e/a"];
const STARTS: [Option<&str>; 5] = [None, Some("/d/a"), Some("/d/a\0"), Some("/d/aa"), Some("/d/zz")];

/// What a write says it has seen.
#[derive(Clone, Copy, Debug)]
enum Seen {
    Absent,
    Current,
    /// A revision that many above the store's first.
    At(u64),
}

/// Revisions are given relative to that of the store before the first operation.
#[derive(Clone, Copy, Debug)]
enum At {
    Latest,
    NotOlderThan(u64),
    Exact(u64),
}

#[derive(Clone, Debug)]
enum Op {
    Put { key: usize, seen: Seen, value: u8 },
    Delete { key: usize, seen: Seen },
    Get { key: usize, at: At },
    List { start: usize, limit: usize, at: At },
    WatchPrefix { after: u64 },
    WatchKey { key: usize, after: u64 },
    Compact { to: u64 },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Observed {
    Key(Option<Seen1>, u64),
    Page(Vec<Seen1>, u64, u64),
    Written(u64),
    Conflict(Option<Seen1>),
    Events(Vec<(Option<Seen1>, Option<Seen1>, u64)>),
    Compacted,
    Future(u64, u64),
    Done,
}

/// A key, its value, and its relative revision.
type Seen1 = (String, Bytes, u64);

fn operations() -> impl Strategy<Value = Vec<Op>> {
    let key = || 0..KEYS.len();
    let at = prop_oneof![
        3 => Just(At::Latest),
        1 => (0..15u64).prop_map(At::NotOlderThan),
        3 => (0..15u64).prop_map(At::Exact),
    ];
    let seen = prop_oneof![
        3 => Just(Seen::Absent),
        5 => Just(Seen::Current),
        1 => (0..15u64).prop_map(Seen::At),
    ];
    let op = prop_oneof![
        6 => (key(), seen.clone(), any::<u8>()).prop_map(|(key, seen, value)| Op::Put { key, seen, value }),
        3 => (key(), seen).prop_map(|(key, seen)| Op::Delete { key, seen }),
        2 => (key(), at.clone()).prop_map(|(key, at)| Op::Get { key, at }),
        3 => (0..STARTS.len(), 0..4usize, at).prop_map(|(start, limit, at)| Op::List { start, limit, at }),
        1 => (0..15u64).prop_map(|after| Op::WatchPrefix { after }),
        1 => (key(), 0..15u64).prop_map(|(key, after)| Op::WatchKey { key, after }),
        1 => (0..15u64).prop_map(|to| Op::Compact { to }),
    ];
    prop::collection::vec(op, 1..40)
}

/// A store under observation.
struct Observer<'a> {
    store: &'a dyn Storage,
    base: u64,
    compacted: u64,
    watches: u64,
}

impl Observer<'_> {
    async fn observe(store: &dyn Storage, operations: &[Op]) -> Vec<Observed> {
        // A revision that nobody has compacted yet, also where others were before.
        let begun = store.put("/begun", Expected::Absent, Bytes::new(), None).await.unwrap();
        let Written::Done(Revision(base)) = begun else { panic!("the root is not empty: {begun:?}") };
        let mut observer = Observer { store, base, compacted: 0, watches: 0 };
        let mut observed = Vec::new();
        for operation in operations {
            observed.push(match observer.apply(operation).await {
                Ok(observed) => observed,
                Err(StorageError::Compacted { .. }) => Observed::Compacted,
                Err(StorageError::Future { requested, current }) => {
                    Observed::Future(observer.relative(requested), observer.relative(current))
                }
                Err(error) => panic!("{error:?} from {operation:?}"),
            });
        }
        observed
    }

    async fn apply(&mut self, operation: &Op) -> Result<Observed, StorageError> {
        let store = self.store;
        match *operation {
            Op::Put { key, seen, value } => {
                let expected = self.expected(KEYS[key], seen).await;
                let written = store.put(KEYS[key], expected, Bytes::from(vec![value]), None).await?;
                Ok(self.written(written))
            }
            Op::Delete { key, seen } => {
                let Expected::At(revision) = self.expected(KEYS[key], seen).await else { return Ok(Observed::Done) };
                let written = store.delete(KEYS[key], revision).await?;
                Ok(self.written(written))
            }
            Op::Get { key, at } => {
                let got = store.get(KEYS[key], self.freshness(at)).await?;
                Ok(Observed::Key(got.kv.map(|kv| self.seen(kv)), self.relative(got.revision)))
            }
            Op::List { start, limit, at } => {
                let range = ListRange { prefix: "/d/", start: STARTS[start], limit, at: self.freshness(at) };
                let page = store.list(range).await?;
                let items = page.items.into_iter().map(|kv| self.seen(kv)).collect();
                Ok(Observed::Page(items, self.relative(page.revision), page.remaining))
            }
            Op::WatchPrefix { after } => {
                self.watches += 1;
                let last = format!("/d/~{}", self.watches);
                self.watch(WatchRange::Prefix("/d/"), after, &last).await
            }
            Op::WatchKey { key, after } => self.watch(WatchRange::Key(KEYS[key]), after, KEYS[key]).await,
            Op::Compact { to } => {
                store.compact(Revision(self.base + to)).await?;
                self.compacted = self.base + to;
                Ok(Observed::Done)
            }
        }
    }

    /// Everything from a revision until one more write, which is made here.
    async fn watch(&self, range: WatchRange<'_>, after: u64, last: &str) -> Result<Observed, StorageError> {
        let after = Revision(self.base + after);
        // What lies ahead would be waited for. What was replaced at the compacted revision itself etcd no longer knows.
        if after > self.store.current_revision().await? || after.0 + 1 == self.compacted {
            return Ok(Observed::Done);
        }
        // A store may refuse at once or on the stream. The write is made either way, for what comes later to be the same.
        let watch = self.store.watch(range, after).await;
        let expected = self.expected(last, Seen::Current).await;
        let Written::Done(end) = self.store.put(last, expected, Bytes::new(), None).await? else {
            panic!("nobody else writes")
        };
        let mut watch = watch?;
        let mut events = Vec::new();
        loop {
            let event = timeout(PATIENCE, watch.events.next()).await.expect("an event in time");
            let (now, before, revision) = match event.expect("the watch should go on")? {
                Event::Put { kv, previous } => (Some(kv.clone()), previous, kv.mod_revision),
                Event::Deleted { previous, revision } => (None, Some(previous), revision),
                Event::Progress(_) => continue,
            };
            let told = (now.map(|kv| self.seen(kv)), before.map(|kv| self.seen(kv)), self.relative(revision));
            events.push(told);
            if revision == end {
                return Ok(Observed::Events(events));
            }
        }
    }

    async fn expected(&self, key: &str, seen: Seen) -> Expected {
        match seen {
            Seen::Absent => Expected::Absent,
            Seen::At(revision) => Expected::At(Revision(self.base + revision)),
            Seen::Current => match self.store.get(key, Freshness::Latest).await.unwrap().kv {
                Some(kv) => Expected::At(kv.mod_revision),
                None => Expected::Absent,
            },
        }
    }

    fn freshness(&self, at: At) -> Freshness {
        match at {
            At::Latest => Freshness::Latest,
            At::NotOlderThan(revision) => Freshness::NotOlderThan(Revision(self.base + revision)),
            At::Exact(revision) => Freshness::Exact(Revision(self.base + revision)),
        }
    }

    fn written(&self, written: Written) -> Observed {
        match written {
            Written::Done(revision) => Observed::Written(self.relative(revision)),
            Written::Conflict(kv) => Observed::Conflict(kv.map(|kv| self.seen(kv))),
        }
    }

    fn seen(&self, kv: KeyValue) -> Seen1 {
        let revision = self.relative(kv.mod_revision);
        (kv.key, kv.value, revision)
    }

    fn relative(&self, revision: Revision) -> u64 {
        revision.0.checked_sub(self.base).expect("nothing is older than the store")
    }
}

fn compare(cases: u32, test: impl Fn(&[Op]) -> (Vec<Observed>, Vec<Observed>)) {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() };
    let outcome = TestRunner::new(config).run(&operations(), |operations| {
        let (one, other) = test(&operations);
        prop_assert_eq!(one, other);
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn memory_does_what_the_model_says() {
    let runtime = Runtime::new().unwrap();
    compare(1000, |operations| {
        runtime.block_on(async {
            (
                Observer::observe(&Model::new(), operations).await,
                Observer::observe(&Memory::default(), operations).await,
            )
        })
    });
}

#[test]
fn memory_and_etcd3_do_the_same() {
    let runtime = Runtime::new().unwrap();
    let etcd = runtime.block_on(async { Etcd::start().await.store().await });
    let rounds = std::sync::atomic::AtomicUsize::new(0);
    compare(60, |operations| {
        runtime.block_on(async {
            // A root of its own for each round, in one etcd.
            let round = rounds.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let options = Etcd3Options { prefix: format!("/round/{round}"), ..etcd.etcd.options() };
            let etcd3: Arc<dyn Storage> = connect(options).await;
            (Observer::observe(&Memory::default(), operations).await, Observer::observe(&*etcd3, operations).await)
        })
    });
}
