//! The lock service, which stands in the same queue as the lock libraries. What is expected here of the proxy is expected of
//! an etcd, too, asked directly.

use std::{
    io::{BufRead as _, BufReader},
    num::NonZeroUsize,
    process::{Child, Command, Stdio},
    time::Duration,
};

use bytes::Bytes;
use etcd_proxy::limits::LimitSettings;
use proto::{
    etcdserverpb::{LeaseRevokeRequest, LeaseTimeToLiveRequest},
    v3lockpb::{LockRequest, LockResponse, UnlockRequest},
};
use tokio::{task::JoinHandle, time::timeout};
use tonic::{Code, Status};

use crate::{
    support::{Client, Etcd, PATIENCE, Proxy, binary, eventually, refusal},
    transport::raw,
};

/// An etcd, or a proxy before one.
pub(crate) struct Side {
    pub(crate) etcd: Etcd,
    pub(crate) proxy: Option<Proxy>,
    pub(crate) client: Client,
}

/// A program of etcd's own library, which holds a lock or leads until it is told to stop.
pub(crate) struct Library(Child);

/// An etcd asked directly, and one through a proxy.
pub(crate) async fn sides() -> [Side; 2] {
    let (etcd, shared) = (Etcd::start().await, Etcd::start().await);
    let proxy = Proxy::start(&shared, "/a/").await;
    let clients = [etcd.client().await, proxy.client().await];
    let [direct, proxied] = clients;
    [Side { etcd, proxy: None, client: direct }, Side { etcd: shared, proxy: Some(proxy), client: proxied }]
}

impl Side {
    pub(crate) fn url(&self) -> String {
        self.proxy.as_ref().map_or_else(|| self.etcd.url(), |proxy| format!("http://{}", proxy.address))
    }
}

impl Library {
    pub(crate) fn start(side: &Side, args: &[&str]) -> Self {
        let mut command = Command::new(binary("TEST_ETCDCTL"));
        command.arg("--endpoints").arg(side.url()).args(args);
        Self(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// Waits until it has what it wants. It says so by a line with the key, which is returned.
    pub(crate) async fn has_it(&mut self) -> String {
        let mut output = BufReader::new(self.0.stdout.take().unwrap());
        let line = tokio::task::spawn_blocking(move || {
            let mut line = String::new();
            output.read_line(&mut line).map(|_| (output, line))
        });
        let (output, line) = timeout(PATIENCE, line).await.expect("it waits in vain").unwrap().unwrap();
        self.0.stdout = Some(output.into_inner());
        line.trim_end().to_owned()
    }

    /// Has it give up what it holds.
    pub(crate) async fn stop(mut self) {
        let status = Command::new("kill").arg("-TERM").arg(self.0.id().to_string()).status().unwrap();
        assert!(status.success());
        let ended = tokio::task::spawn_blocking(move || self.0.wait().map(|status| (self, status)));
        let (_ended, status) = timeout(PATIENCE, ended).await.unwrap().unwrap().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

async fn lock(client: &Client, name: impl Into<Bytes>, lease: i64) -> Result<LockResponse, Status> {
    let mut client = client.clone();
    let locked = client.lock.lock(LockRequest { name: name.into(), lease });
    timeout(PATIENCE, locked).await.expect("it waits in vain").map(tonic::Response::into_inner)
}

async fn unlock(client: &Client, key: impl Into<Bytes>) -> i64 {
    let unlocked = client.clone().lock.unlock(UnlockRequest { key: key.into() }).await.unwrap().into_inner();
    unlocked.header.unwrap().revision
}

/// A lock that is waited for, on a connection of its own. Returns when it stands in the queue.
async fn waiting(side: &Side, name: &'static str, lease: i64) -> JoinHandle<Result<LockResponse, Status>> {
    let client = Client::connect(side.url()).await;
    let waiting = tokio::spawn(async move { lock(&client, name, lease).await });
    stands(side, &format!("{name}/{lease:x}")).await;
    waiting
}

pub(crate) async fn stands(side: &Side, key: &str) {
    eventually(key, || async { side.client.clone().get(key.to_owned()).await.is_some() }).await;
}

async fn ended<T>(waiting: JoinHandle<T>) -> T {
    timeout(PATIENCE, waiting).await.expect("it waits in vain").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_a_key_called_after_its_lease() {
    for mut side in sides().await {
        let a = &mut side.client;
        let names: [&[u8]; 6] = [b"n", b"", b"/", b"n/m", b"\0", b"\xff\xfe\xff"];
        for (name, lease) in names.into_iter().flat_map(|name| [(name, 0x1f), (name, -7), (name, 0)]) {
            if lease != 0 {
                a.grant(lease, 600).await.unwrap();
            }
            let locked = lock(a, name, lease).await.unwrap();
            let lease = match lease {
                0 => a.leases().await[0],
                lease => lease,
            };
            let hex = if lease < 0 { format!("-{:x}", -lease) } else { format!("{lease:x}") };
            assert_eq!(locked.key, [name, b"/", hex.as_bytes()].concat());
            let kv = a.get(locked.key.clone()).await.unwrap();
            assert_eq!((&kv.value[..], kv.lease, kv.version), (&b""[..], lease, 1));
            let header = locked.header.unwrap();
            assert_eq!(header.revision, kv.create_revision);
            assert!(header.cluster_id != 0 && header.member_id != 0 && header.raft_term != 0);
            // Who holds it already has it.
            let between = a.put("between", "").await;
            let again = lock(a, name, lease).await.unwrap();
            assert_eq!((again.key, again.header.unwrap().revision), (locked.key.clone(), between));
            let ttl = a.lease.lease_time_to_live(LeaseTimeToLiveRequest { id: lease, keys: true }).await.unwrap();
            assert_eq!(ttl.get_ref().keys, std::slice::from_ref(&locked.key));
            if lease != 0x1f && lease != -7 {
                assert_eq!(ttl.get_ref().granted_ttl, 60);
            }
            let before = unlock(a, locked.key.clone()).await;
            assert_eq!(before, between + 1);
            assert_eq!(a.get(locked.key.clone()).await, None);
            // It is no error that there is nothing, and the lease is the client's to end.
            assert_eq!(unlock(a, locked.key).await, before);
            a.lease.lease_revoke(LeaseRevokeRequest { id: lease }).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_came_first_goes_first() {
    for mut side in sides().await {
        for lease in 1..=4 {
            side.client.grant(lease, 600).await.unwrap();
        }
        let first = lock(&side.client, "n", 1).await.unwrap();
        // A neighbour by name is none.
        assert_eq!(lock(&side.client, "n0", 1).await.unwrap().key, "n0/1");
        let mut queue = Vec::new();
        for lease in [3, 2, 4] {
            queue.push((lease, waiting(&side, "n", lease).await));
        }
        let mut key = first.key;
        for (lease, next) in queue {
            assert!(!next.is_finished());
            let unlocked = unlock(&side.client, key).await;
            let locked = ended(next).await.unwrap();
            assert_eq!(locked.key, format!("n/{lease}"));
            // It says when it was seen that nobody is before it.
            assert_eq!(locked.header.unwrap().revision, unlocked);
            key = locked.key;
        }
        unlock(&side.client, key).await;
        assert_eq!(side.client.keys().await, ["n0/1"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_gives_up_waiting_leaves_the_queue() {
    for mut side in sides().await {
        for lease in 1..=4 {
            side.client.grant(lease, 600).await.unwrap();
        }
        let first = lock(&side.client, "n", 1).await.unwrap();
        // A client that ends, and one whose time is over.
        let gone = waiting(&side, "n", 2).await;
        let behind = waiting(&side, "n", 3).await;
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        let mut late = tonic::Request::new(LockRequest { name: "n".into(), lease: 4 });
        late.set_timeout(Duration::from_secs(1));
        let refused = refusal(side.client.clone().lock.lock(late).await).0;
        assert!([Code::DeadlineExceeded, Code::Cancelled].contains(&refused), "{refused:?}");
        eventually("only those are left that want to be", || async {
            side.client.clone().keys().await == ["n/1", "n/3"]
        })
        .await;
        unlock(&side.client, first.key).await;
        assert_eq!(ended(behind).await.unwrap().key, "n/3");
        assert_eq!(side.client.leases().await, [1, 2, 3, 4], "leases stay");
        if let Some(proxy) = &side.proxy {
            assert_eq!(proxy.tenant.usage().await.watches, 0, "nobody waits any more");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_goes_with_its_lease() {
    for mut side in sides().await {
        side.client.grant(1, 1).await.unwrap();
        for lease in 2..=3 {
            side.client.grant(lease, 600).await.unwrap();
        }
        let expiring = lock(&side.client, "n", 1).await.unwrap();
        let next = waiting(&side, "n", 2).await;
        assert_eq!(ended(next).await.unwrap().key, "n/2");
        assert_eq!(side.client.get(expiring.key).await, None);
        // One whose lease ends while it waits hears of it when its turn has come.
        let next = waiting(&side, "n", 3).await;
        side.client.lease.lease_revoke(LeaseRevokeRequest { id: 3 }).await.unwrap();
        unlock(&side.client, "n/2").await;
        assert_eq!(refusal(ended(next).await), (Code::Unknown, "mutex: session is expired".into()));
    }
}

/// Several work on what bears no company, some lose their patience or their connection, and nobody is ever there with another.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_has_company() {
    for mut side in sides().await {
        side.client.put("count", "0").await;
        let workers: Vec<_> = (0..5).map(|worker| tokio::spawn(work(side.url(), worker))).collect();
        let mut done = 0;
        for worker in workers {
            done += ended(worker).await;
        }
        assert!(done >= 20, "most come to it: {done}");
        assert_eq!(side.client.get("count").await.unwrap().value, done.to_string());
    }
}

/// Counts up by reading and writing, twelve times if it gets there. Returns how often it did.
async fn work(url: String, worker: u64) -> usize {
    let mut client = Client::connect(url).await;
    let mut done = 0;
    for round in 0..12 {
        let lease = client.grant(0, 600).await.unwrap();
        let patience = if (worker + round).is_multiple_of(3) { Duration::from_millis(round) } else { PATIENCE };
        if let Ok(locked) = timeout(patience, lock(&client, "n", lease)).await {
            let count: usize = std::str::from_utf8(&client.get("count").await.unwrap().value).unwrap().parse().unwrap();
            client.put("count", (count + 1).to_string()).await;
            unlock(&client, locked.unwrap().key).await;
            done += 1;
        }
        // What a lock that was given up too early for anybody to notice has left.
        client.lease.lease_revoke(LeaseRevokeRequest { id: lease }).await.unwrap();
    }
    done
}

/// The same to the letter, and with the codes that etcd's lock service loses.
#[tokio::test(flavor = "multi_thread")]
async fn errors_read_the_same() {
    for side in sides().await {
        let not_found = (Code::Unknown, "etcdserver: requested lease not found".to_owned());
        for lease in [7, -7, i64::MAX, i64::MIN] {
            assert_eq!(refusal(lock(&side.client, "n", lease).await), not_found);
        }
        let too_large = lock(&side.client, vec![b'n'; 1600 * 1024], 0).await;
        assert_eq!(refusal(too_large), (Code::Unknown, "etcdserver: request is too large".into()));
        let empty = side.client.clone().lock.unlock(UnlockRequest::default()).await;
        assert_eq!(refusal(empty), (Code::Unknown, "etcdserver: key is not provided".into()));
        for (path, message) in [("/v3lockpb.Lock/Lock", &[0x0a, 9][..]), ("/v3lockpb.Lock/Unlock", &[0x0a, 9])] {
            assert_eq!(refusal(raw(&side.client.channel, path, Bytes::from_static(message)).await).0, Code::Internal);
        }
        // The lease that was granted before is there and nobody's.
        assert_eq!(side.client.clone().leases().await.len(), 1);
        if side.proxy.is_some() {
            let odd = Bytes::from_static(&[0x0a, 1, b'n', 0x7a, 1, b'x']);
            let (code, text) = refusal(raw(&side.client.channel, "/v3lockpb.Lock/Lock", odd).await);
            assert_eq!(code, Code::Unimplemented);
            assert!(text.contains("field 15 of v3lockpb.LockRequest"), "{text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tenants_do_not_meet_at_a_name() {
    let etcd = Etcd::start().await;
    let (a, b) = (Proxy::start(&etcd, "/a/").await, Proxy::start(&etcd, "/b/").await);
    let mut keys = Vec::new();
    for mut client in [a.client().await, b.client().await, etcd.client().await] {
        client.grant(1, 600).await.unwrap();
        let locked = timeout(PATIENCE, lock(&client, "n", 1)).await.expect("nobody is before it").unwrap();
        keys.push(locked.key);
    }
    assert_eq!(keys, ["n/1", "n/1", "n/1"]);
    let mut direct = etcd.client().await;
    let on_upstream: Vec<Bytes> =
        direct.keys().await.into_iter().filter(|key| !key.starts_with(b"/etcd-proxy.meta/")).collect();
    assert_eq!(on_upstream, ["/a/n/1", "/b/n/1", "n/1"]);
    // What looks like the other's key is a key of one's own.
    for key in ["/b/n/1", "../b/n/1", "\0"] {
        unlock(&a.client().await, key).await;
    }
    assert!(b.client().await.get("n/1").await.is_some());
    assert!(!a.saw_foreign_keys() && !b.saw_foreign_keys());
}

/// One lock, held in turn by etcd's library in Go, which knows KV, Watch and Lease, and by a client of the lock service.
#[tokio::test(flavor = "multi_thread")]
async fn service_and_library_stand_in_one_queue() {
    for side in sides().await {
        let held = || async { side.client.clone().keys().await.len() };
        let mut library = Library::start(&side, &["lock", "n"]);
        let key = library.has_it().await;
        assert_eq!(side.client.clone().keys().await, [key]);
        let mut rpc = etcd_client::Client::connect([side.url()], None).await.unwrap();
        let waiting = tokio::spawn(async move { rpc.lock("n", None).await });
        eventually("the service's client waits", || async { held().await == 2 }).await;
        let mut behind = Library::start(&side, &["lock", "n"]);
        eventually("the library waits", || async { held().await == 3 }).await;
        assert!(!waiting.is_finished());
        library.stop().await;
        let locked = ended(waiting).await.unwrap();
        let keys = side.client.clone().keys().await;
        assert!(keys.len() == 2 && keys.iter().any(|key| key == locked.key()), "{keys:?}");
        unlock(&side.client, locked.key().to_vec()).await;
        behind.has_it().await;
        behind.stop().await;
        assert_eq!(held().await, 0);
    }
}

/// Who waits is one of the watches, and none of the requests at a time: or nobody could unlock.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_counts_among_the_watches() {
    let etcd = Etcd::start().await;
    let limits = LimitSettings {
        concurrent_requests: NonZeroUsize::new(2),
        watches: NonZeroUsize::new(2),
        ..Default::default()
    };
    let proxy = Proxy::start_with(&etcd, "/a/", |config| config.limits = limits).await;
    let mut client = proxy.client().await;
    for lease in 1..=4 {
        client.grant(lease, 600).await.unwrap();
    }
    let side = Side { etcd, proxy: Some(proxy), client };
    let (proxy, client) = (side.proxy.as_ref().unwrap(), &side.client);
    let first = lock(client, "n", 1).await.unwrap();
    let (next, last) = (waiting(&side, "n", 2).await, waiting(&side, "n", 3).await);
    eventually("both watch", || async { proxy.tenant.usage().await.watches == 2 }).await;
    assert_eq!(refusal(lock(client, "n", 4).await), (Code::Unknown, "etcdserver: too many requests".into()));
    assert_eq!(client.clone().keys().await, ["n/1", "n/2", "n/3"], "it does not stay in the queue");
    unlock(client, first.key).await;
    let next = ended(next).await.unwrap();
    unlock(client, next.key).await;
    assert_eq!(ended(last).await.unwrap().key, "n/3");
    eventually("nobody watches", || async { proxy.tenant.usage().await.watches == 0 }).await;
    // The requests at a time are bounded nevertheless.
    side.etcd.signal("STOP");
    let many: Vec<_> = (0..3)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { lock(&client, "m", 4).await })
        })
        .collect();
    let refused = || async { proxy.metrics().contains(r#"grpc_method="Lock",grpc_code="ResourceExhausted"} 1"#) };
    eventually("one of three is refused", refused).await;
    side.etcd.signal("CONT");
    let mut answers = Vec::new();
    for one in many {
        answers.push(refusal(ended(one).await).0);
    }
    answers.sort_unstable_by_key(|code| *code as i32);
    assert_eq!(answers, [Code::Ok, Code::Ok, Code::ResourceExhausted]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_quota_holds_for_locks() {
    let etcd = Etcd::start().await;
    let limits = LimitSettings { quota_keys: NonZeroUsize::new(1), ..Default::default() };
    let proxy = Proxy::start_with(&etcd, "/a/", |config| config.limits = limits).await;
    let client = proxy.client().await;
    let first = lock(&client, "n", 0).await.unwrap();
    let full = (Code::Unknown, "etcdserver: mvcc: database space exceeded".to_owned());
    assert_eq!(refusal(lock(&client, "m", 0).await), full);
    unlock(&client, first.key).await;
    eventually("there is room again", || async { lock(&client, "m", 0).await.is_ok() }).await;
}

/// The end of the proxy and that of its upstream end the waiting.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_ends_with_the_proxy_and_with_the_upstream() {
    let mut etcd = Etcd::start().await;
    let (stopping, staying) = (Proxy::start(&etcd, "/a/").await, Proxy::start(&etcd, "/b/").await);
    let mut waiters = Vec::new();
    for proxy in [&stopping, &staying] {
        let mut client = proxy.client().await;
        for lease in 1..=2 {
            client.grant(lease, 600).await.unwrap();
        }
        lock(&client, "n", 1).await.unwrap();
        let next = client.clone();
        waiters.push(tokio::spawn(async move { lock(&next, "n", 2).await }));
        eventually("it waits", || async { proxy.tenant.usage().await.watches == 1 }).await;
    }
    let (upstream_lost, stopped) = (waiters.pop().unwrap(), waiters.pop().unwrap());
    stopping.stop.cancel();
    assert_eq!(refusal(ended(stopped).await), (Code::Unavailable, "etcdserver: server stopped".into()));
    assert_eq!(etcd.client().await.get("/a/n/2").await, None, "it does not stay in the queue");
    assert!(!upstream_lost.is_finished());
    etcd.kill();
    assert_eq!(refusal(ended(upstream_lost).await).0, Code::Unavailable);
}
