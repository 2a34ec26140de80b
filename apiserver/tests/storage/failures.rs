//! What the store in etcd does when etcd, or the way to it, fails.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use apiserver::storage::{
    Event, Expected, Freshness, KeyValue, Revision, Storage, StorageError, WatchRange, Written,
    etcd3::{Etcd3, Etcd3Options, OptionsError},
    testing::PATIENCE,
};
use bytes::Bytes;
use futures::StreamExt as _;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
    net::{TcpListener, TcpStream},
    sync::Notify,
    time::{Instant, sleep, timeout},
};

use super::{
    etcd::{Etcd, EtcdStore, connect, free_port},
    etcd3::create,
};

/// Writers create keys while etcd is killed and started again, and a follower watches. What was acknowledged is there with
/// its revision, and the follower has seen it all, in order, each once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_etcd_loses_nothing_that_it_acknowledged() {
    let EtcdStore { storage, mut etcd } = Etcd::start().await.store().await;
    let stop = Arc::new(AtomicBool::new(false));
    let acknowledged: Arc<Mutex<BTreeMap<Revision, KeyValue>>> = Arc::default();

    let writers: Vec<_> = (0..3)
        .map(|writer| {
            let (storage, stop, acknowledged) = (Arc::clone(&storage), Arc::clone(&stop), Arc::clone(&acknowledged));
            tokio::spawn(async move {
                let mut number = 0;
                while !stop.load(Ordering::Relaxed) {
                    let (key, value) = (format!("/t/{writer}/{number}"), Bytes::from(number.to_string()));
                    match storage.put(&key, Expected::Absent, value.clone(), None).await {
                        Ok(Written::Done(mod_revision)) => {
                            let kv = KeyValue { key, value, mod_revision };
                            assert!(
                                acknowledged.lock().insert(mod_revision, kv).is_none(),
                                "a revision for two writes"
                            );
                        }
                        // It may have happened or not; the next key is another.
                        Err(StorageError::Unavailable(_) | StorageError::Timeout(_)) => {}
                        other => panic!("{other:?}"),
                    }
                    number += 1;
                }
            })
        })
        .collect();

    let follower = {
        let (storage, stop, acknowledged) = (Arc::clone(&storage), Arc::clone(&stop), Arc::clone(&acknowledged));
        tokio::spawn(async move {
            let (mut last, mut seen, mut breaks) = (Revision(0), BTreeMap::new(), 0);
            loop {
                let Ok(mut watch) = storage.watch(WatchRange::Prefix("/t/"), last).await else { continue };
                loop {
                    // When the writers are done and all is seen, nothing comes any more.
                    let event = match timeout(Duration::from_millis(200), watch.events.next()).await {
                        Err(_) => {
                            let newest = acknowledged.lock().keys().next_back().copied();
                            if stop.load(Ordering::Relaxed) && newest.is_some_and(|newest| newest <= last) {
                                return (seen, breaks);
                            }
                            continue;
                        }
                        Ok(event) => event,
                    };
                    match event {
                        Some(Ok(Event::Put { kv, previous: None })) => {
                            assert!(kv.mod_revision > last, "in order, each once");
                            last = kv.mod_revision;
                            seen.insert(last, kv);
                        }
                        Some(Ok(Event::Progress(revision))) => assert!(revision >= last),
                        Some(Err(StorageError::Unavailable(_))) => {
                            let more = timeout(PATIENCE, watch.events.next()).await.expect("an end in time");
                            assert!(more.is_none(), "nothing comes after an error");
                            breaks += 1;
                            break;
                        }
                        other => panic!("{other:?}"),
                    }
                }
            }
        })
    };

    for round in 1..=4 {
        // Some writes are acknowledged in each life of etcd.
        let enough = acknowledged.lock().len() + 50;
        let deadline = Instant::now() + PATIENCE;
        while acknowledged.lock().len() < enough {
            assert!(Instant::now() < deadline, "writes go on in round {round}");
            sleep(Duration::from_millis(10)).await;
        }
        if round < 4 {
            etcd.kill();
            etcd.restart();
        }
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    let (seen, breaks) = timeout(PATIENCE, follower).await.unwrap().unwrap();
    assert_eq!(breaks, 3, "a broken watch ends with an error");
    let acknowledged = std::mem::take(&mut *acknowledged.lock());
    for (revision, kv) in acknowledged {
        assert_eq!(seen.get(&revision), Some(&kv));
        assert_eq!(storage.get(&kv.key, Freshness::Latest).await.unwrap().kv, Some(kv));
    }
}

/// Connections that died while nobody used them cost no write: those requests were never sent.
#[tokio::test]
async fn a_write_after_a_restart_needs_no_second_try_by_the_caller() {
    let EtcdStore { storage, mut etcd } = Etcd::start().await.store().await;
    for round in 0..3 {
        for connection in 0..4 {
            create(&storage, &format!("/t/{round}/{connection}"), "1").await;
        }
        etcd.kill();
        etcd.restart();
        // Somebody else sees that it is up.
        connect(etcd.options()).await;
    }
}

/// While etcd is away, reads wait for it for a while, and readiness says at once and cheaply that it is away.
#[tokio::test]
async fn reads_wait_for_etcd_and_readiness_does_not() {
    let mut etcd = Etcd::start().await;
    let store = connect(Etcd3Options { retry_for: Duration::from_secs(10), ..etcd.options() }).await;
    create(&store, "/t/a", "1").await;
    store.ready().await.unwrap();
    etcd.kill();
    let asked = Instant::now();
    while store.ready().await.is_ok() {
        assert!(asked.elapsed() < Duration::from_secs(4), "readiness notices");
        sleep(Duration::from_millis(50)).await;
    }
    let asked = Instant::now();
    for _ in 0..1000 {
        let _still_cached = store.ready().await;
    }
    assert!(asked.elapsed() < Duration::from_secs(2), "asking often is cheap: {:?}", asked.elapsed());

    let read = {
        let store = Arc::clone(&store);
        tokio::spawn(async move { store.get("/t/a", Freshness::Latest).await })
    };
    sleep(Duration::from_millis(200)).await;
    assert!(!read.is_finished());
    etcd.restart();
    assert_eq!(&*timeout(PATIENCE, read).await.unwrap().unwrap().unwrap().kv.unwrap().value, b"1");

    etcd.kill();
    let impatient = Etcd3Options { retry_for: Duration::from_millis(300), ..etcd.options() }.build().await.unwrap();
    match impatient.get("/t/a", Freshness::Latest).await {
        Err(StorageError::Unavailable(why)) => assert!(why.contains(&etcd.url) && why.contains("refused"), "{why}"),
        other => panic!("{other:?}"),
    }
    let dial_timeout = Duration::from_millis(300);
    let refused = Etcd3Options { dial_timeout, ..etcd.options() }.connect().await;
    assert!(matches!(refused, Err(OptionsError::Unreachable(why)) if why.contains("refused")));
}

/// Of several servers one that answers is used: past one that refuses, past one that is silent, and when one goes away.
#[tokio::test]
async fn another_server_takes_over() {
    let (one, other) = (Etcd::start().await.store().await, Etcd::start().await.store().await);
    create(&one.storage, "/t/name", "one").await;
    create(&other.storage, "/t/name", "other").await;
    // Accepts connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let servers = vec![
        format!("http://127.0.0.1:{}", free_port()),
        format!("http://{}", silent.local_addr().unwrap()),
        one.etcd.url.clone(),
        other.etcd.url.clone(),
    ];
    let store = connect(Etcd3Options { servers, connections: 1, ..Etcd3Options::default() }).await;
    let name = async || {
        let asked = Instant::now();
        let name = store.get("/t/name", Freshness::Latest).await.unwrap().kv.unwrap().value;
        assert!(asked.elapsed() < Duration::from_secs(5), "it took {:?}", asked.elapsed());
        String::from_utf8(name.to_vec()).unwrap()
    };
    let first = name().await;
    let (mut used, mut unused) = if first == "one" { (one, other) } else { (other, one) };
    used.etcd.kill();
    let second = name().await;
    assert_ne!(first, second);
    used.etcd.restart();
    connect(used.etcd.options()).await;
    unused.etcd.kill();
    assert_eq!(name().await, first);
}

/// A way to etcd that can fail.
struct Relay {
    url: String,
    faults: Arc<Faults>,
}

#[derive(Default)]
struct Faults {
    /// The next answer is lost, with the connection.
    lose_one_answer: AtomicBool,
    /// Nothing goes through any more, and nobody is told.
    silent: AtomicBool,
    /// Ends the connections that there are.
    cut: Notify,
}

impl Relay {
    async fn start(etcd: &Etcd) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let address = etcd.url.strip_prefix("http://").unwrap().to_owned();
        let faults = Arc::new(Faults::default());
        let shared = Arc::clone(&faults);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(&address).await.unwrap();
                tokio::spawn(relay(client, server, Arc::clone(&shared)));
            }
        });
        Self { url, faults }
    }
}

async fn relay(client: TcpStream, server: TcpStream, faults: Arc<Faults>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let requests = tokio::spawn(async move { copy(&mut from_client, &mut to_server).await });
    let mut buffer = vec![0; 65536];
    loop {
        let read = tokio::select! {
            read = from_server.read(&mut buffer) => read,
            () = faults.cut.notified() => break,
        };
        let Ok(length @ 1..) = read else { break };
        if faults.silent.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        if faults.lose_one_answer.swap(false, Ordering::Relaxed) {
            // Long enough for a commit, whose answer comes after frames that acknowledge the request.
            sleep(Duration::from_millis(300)).await;
            break;
        }
        if to_client.write_all(&buffer[..length]).await.is_err() {
            break;
        }
    }
    requests.abort();
}

/// A write whose answer is lost happened once, and the caller is told that nobody knows.
#[tokio::test]
async fn a_write_whose_answer_is_lost_is_not_repeated() {
    let EtcdStore { storage: direct, etcd } = Etcd::start().await.store().await;
    let relay = Relay::start(&etcd).await;
    let options = Etcd3Options { servers: vec![relay.url.clone()], connections: 1, ..Etcd3Options::default() };
    let store = connect(options).await;
    let first = create(&store, "/t/a", "1").await;

    let lost = async |write: &dyn AsyncWrite| {
        let before = direct.current_revision().await.unwrap();
        relay.faults.lose_one_answer.store(true, Ordering::Relaxed);
        // The way is open again at once: a second try would get an answer, and the wrong one.
        let outcome = write.write(&store).await;
        assert!(matches!(outcome, Err(StorageError::Unavailable(_))), "{outcome:?}");
        assert_eq!(direct.current_revision().await.unwrap(), Revision(before.0 + 1), "once");
        // A read says what became of it.
        store.get("/t/a", Freshness::Latest).await.unwrap().kv
    };
    let updated = lost(&Update("/t/a", first)).await.unwrap();
    assert_eq!(&*updated.value, b"2");
    assert_eq!(lost(&Delete("/t/a", updated.mod_revision)).await, None);

    // A read whose answer is lost is repeated.
    relay.faults.lose_one_answer.store(true, Ordering::Relaxed);
    assert_eq!(store.get("/t/a", Freshness::Latest).await.unwrap().kv, None);
    assert!(!relay.faults.lose_one_answer.load(Ordering::Relaxed));
}

/// A server that turns silent is found out by the test of its connection, and not dialled for ever.
#[tokio::test]
async fn a_server_that_turns_silent_is_left() {
    let (one, other) = (Etcd::start().await.store().await, Etcd::start().await.store().await);
    create(&one.storage, "/t/name", "one").await;
    create(&other.storage, "/t/name", "other").await;
    let (first, second) = (Relay::start(&one.etcd).await, Relay::start(&other.etcd).await);
    let options = Etcd3Options {
        servers: vec![first.url.clone(), second.url.clone()],
        connections: 1,
        keepalive_interval: Duration::from_secs(5),
        keepalive_timeout: Duration::from_secs(1),
        ..Etcd3Options::default()
    };
    let store = connect(options).await;
    let name = async || store.get("/t/name", Freshness::Latest).await.unwrap().kv.unwrap().value;
    let before = name().await;
    let mut watch = store.watch(WatchRange::Prefix("/t/"), Revision(u64::MAX)).await.unwrap();
    let silent = if &*before == b"one" { &first } else { &second };
    silent.faults.silent.store(true, Ordering::Relaxed);
    let after = timeout(PATIENCE, name()).await.expect("an answer in time");
    assert_ne!(before, after);
    let end = timeout(PATIENCE, watch.events.next()).await.expect("an end in time");
    assert!(matches!(end, Some(Err(StorageError::Unavailable(_)))), "{end:?}");
}

/// After a connection was lost another server is asked, even if the first one can still be dialled.
#[tokio::test]
async fn a_lost_connection_is_not_made_again_blindly() {
    let (one, other) = (Etcd::start().await.store().await, Etcd::start().await.store().await);
    create(&one.storage, "/t/name", "one").await;
    create(&other.storage, "/t/name", "other").await;
    let (first, second) = (Relay::start(&one.etcd).await, Relay::start(&other.etcd).await);
    let servers = vec![first.url.clone(), second.url.clone()];
    let store = connect(Etcd3Options { servers, connections: 1, ..Etcd3Options::default() }).await;
    let name = async || store.get("/t/name", Freshness::Latest).await.unwrap().kv.unwrap().value;
    let before = name().await;
    let used = if &*before == b"one" { &first } else { &second };
    used.faults.silent.store(true, Ordering::Relaxed);
    used.faults.cut.notify_waiters();
    // The connection's end is noticed while nobody uses it.
    sleep(Duration::from_millis(200)).await;
    let asked = Instant::now();
    assert_ne!(name().await, before);
    assert!(asked.elapsed() < Duration::from_secs(5), "it took {:?}", asked.elapsed());
}

#[async_trait::async_trait]
trait AsyncWrite: Sync {
    async fn write(&self, store: &Etcd3) -> Result<Written, StorageError>;
}

struct Update(&'static str, Revision);
struct Delete(&'static str, Revision);

#[async_trait::async_trait]
impl AsyncWrite for Update {
    async fn write(&self, store: &Etcd3) -> Result<Written, StorageError> {
        store.put(self.0, Expected::At(self.1), Bytes::from_static(b"2"), None).await
    }
}

#[async_trait::async_trait]
impl AsyncWrite for Delete {
    async fn write(&self, store: &Etcd3) -> Result<Written, StorageError> {
        store.delete(self.0, self.1).await
    }
}

/// A call that gets no answer ends in time, and the next one goes another way.
#[tokio::test]
async fn silence_is_a_timeout() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = Etcd3Options {
        servers: vec![format!("http://{}", silent.local_addr().unwrap())],
        request_timeout: Duration::from_millis(500),
        ..Etcd3Options::default()
    };
    let store = options.build().await.unwrap();
    let asked = Instant::now();
    let outcome = store.get("/t/a", Freshness::Latest).await;
    assert!(matches!(outcome, Err(StorageError::Timeout(_))), "{outcome:?}");
    let outcome = store.watch(WatchRange::Prefix("/t/"), Revision(0)).await;
    assert!(matches!(outcome.err(), Some(StorageError::Timeout(_))));
    assert!(asked.elapsed() < PATIENCE);
}
