//! What the store in etcd promises beyond the suite: the layout, the ways to connect, and what it asks of etcd.

use std::{fs, path::Path, sync::Arc, time::Duration};

use apiserver::storage::{
    Event, Expected, Freshness, ListRange, Revision, Storage, StorageError, WatchRange, Written,
    compactor::Compactor,
    etcd3::{Etcd3, Etcd3Options, OptionsError},
    testing::PATIENCE,
};
use bytes::Bytes;
use futures::StreamExt as _;
use proto::{
    etcdserverpb::{
        DeleteRangeRequest, LeaseTimeToLiveRequest, RangeRequest, kv_client::KvClient, lease_client::LeaseClient,
    },
    mvccpb::KeyValue,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use super::etcd::{Etcd, EtcdStore, connect};

pub(super) async fn create(store: &Etcd3, key: &str, value: impl Into<Bytes>) -> Revision {
    match store.put(key, Expected::Absent, value.into(), None).await.unwrap() {
        Written::Done(revision) => revision,
        Written::Conflict(kv) => panic!("{kv:?}"),
    }
}

async fn raw(etcd: &Etcd) -> Channel {
    Channel::from_shared(etcd.url.clone()).unwrap().connect().await.unwrap()
}

async fn raw_get(etcd: &Etcd, key: &str) -> Option<KeyValue> {
    let request = RangeRequest { key: Bytes::copy_from_slice(key.as_bytes()), ..RangeRequest::default() };
    KvClient::new(raw(etcd).await).range(request).await.unwrap().into_inner().kvs.into_iter().next()
}

#[tokio::test]
async fn keys_lie_under_the_prefix_however_it_is_written() {
    let EtcdStore { etcd, .. } = Etcd::start().await.store().await;
    for (prefix, root) in [
        ("/registry/pizza", "/registry/pizza"),
        ("registry/plain", "/registry/plain"),
        ("/registry/slash/", "/registry/slash"),
        ("", ""),
    ] {
        let store = connect(Etcd3Options { prefix: prefix.to_owned(), ..etcd.options() }).await;
        let revision = create(&store, "/group/things/a", prefix.to_owned()).await;
        let there = raw_get(&etcd, &format!("{root}/group/things/a")).await.unwrap();
        assert_eq!(&*there.value, prefix.as_bytes());
        assert_eq!(u64::try_from(there.mod_revision).unwrap(), revision.0);
        let range = ListRange { prefix: "/group/things/", start: None, limit: 0, at: Freshness::Latest };
        let page = store.list(range).await.unwrap();
        assert_eq!(page.items.iter().map(|kv| &*kv.key).collect::<Vec<_>>(), ["/group/things/a"]);
    }
}

#[tokio::test]
async fn keys_of_about_the_same_ttl_share_a_lease() {
    let EtcdStore { storage, etcd } = Etcd::start().await.store().await;
    let mut leases = Vec::new();
    for (name, seconds) in [("a", 200), ("b", 200), ("c", 50)] {
        let ttl = Some(Duration::from_secs(seconds));
        storage.put(&format!("/t/{name}"), Expected::Absent, Bytes::new(), ttl).await.unwrap();
        leases.push(raw_get(&etcd, &format!("/registry/t/{name}")).await.unwrap().lease);
    }
    assert!(leases[0] != 0 && leases[0] == leases[1] && leases[1] != leases[2], "{leases:?}");
    let request = LeaseTimeToLiveRequest { id: leases[0], keys: false };
    let granted = LeaseClient::new(raw(&etcd).await).lease_time_to_live(request).await.unwrap().into_inner();
    assert_eq!(granted.granted_ttl, 210, "5 % more than asked for");
}

#[tokio::test]
async fn a_lease_that_is_gone_is_replaced() {
    let EtcdStore { storage, etcd } = Etcd::start().await.store().await;
    let ttl = Some(Duration::from_secs(200));
    storage.put("/t/a", Expected::Absent, Bytes::new(), ttl).await.unwrap();
    let id = raw_get(&etcd, "/registry/t/a").await.unwrap().lease;
    let request = proto::etcdserverpb::LeaseRevokeRequest { id };
    LeaseClient::new(raw(&etcd).await).lease_revoke(request).await.unwrap();
    let written = storage.put("/t/b", Expected::Absent, Bytes::new(), ttl).await.unwrap();
    assert!(matches!(written, Written::Done(_)));
    assert_ne!(raw_get(&etcd, "/registry/t/b").await.unwrap().lease, id);
}

#[tokio::test]
async fn the_compactor_keeps_its_state_where_kube_apiserver_does() {
    let EtcdStore { storage, etcd } = Etcd::start().await.store().await;
    let old = create(&storage, "/t/a", "1").await;
    create(&storage, "/t/b", "1").await;
    let stop = CancellationToken::new();
    let compactor = Compactor::new(Arc::<Etcd3>::clone(&storage), Duration::from_millis(50));
    let mut compacted = compactor.compacted();
    let running = tokio::spawn(compactor.run(stop.clone()));
    let revision = timeout(PATIENCE, compacted.wait_for(|revision| *revision > old)).await.unwrap().unwrap().0;
    let key = raw_get(&etcd, "compact_rev_key").await.unwrap();
    assert!(key.version >= 2, "the version is the compaction time: {key:?}");
    let noted: u64 = std::str::from_utf8(&key.value).unwrap().parse().unwrap();
    assert!(noted >= revision);
    let past = storage.get("/t/a", Freshness::Exact(old)).await;
    assert!(matches!(past, Err(StorageError::Compacted { .. })), "{past:?}");
    stop.cancel();
    timeout(PATIENCE, running).await.unwrap().unwrap();
}

#[tokio::test]
async fn no_interval_is_no_compaction() {
    let EtcdStore { storage, etcd } = Etcd::start().await.store().await;
    let stop = CancellationToken::new();
    let running = tokio::spawn(Compactor::new(storage, Duration::ZERO).run(stop.clone()));
    sleep(Duration::from_millis(100)).await;
    stop.cancel();
    timeout(PATIENCE, running).await.unwrap().unwrap();
    assert_eq!(raw_get(&etcd, "compact_rev_key").await, None);
}

#[tokio::test]
async fn an_event_without_its_previous_state_ends_the_watch() {
    let EtcdStore { storage, etcd: _etcd } = Etcd::start().await.store().await;
    let revision = create(&storage, "/t/a", "1").await;
    let Written::Done(gone) = storage.delete("/t/a", revision).await.unwrap() else { panic!() };
    storage.compact(gone).await.unwrap();
    // etcd still has the removal, which is at the compacted revision, and no longer what was removed.
    let mut watch = storage.watch(WatchRange::Prefix("/t/"), Revision(gone.0 - 1)).await.unwrap();
    match timeout(PATIENCE, watch.events.next()).await.unwrap() {
        Some(Err(StorageError::Internal(why))) => {
            let expected = format!(
                r#"etcd event received with PrevKv=nil (key="/registry/t/a", modRevision={}, type=DELETE)"#,
                gone.0
            );
            assert_eq!(why, expected);
        }
        other => panic!("{other:?}"),
    }
    assert!(timeout(PATIENCE, watch.events.next()).await.unwrap().is_none());
}

#[tokio::test]
async fn a_dropped_watch_is_gone_from_etcd_whatever_is_kept_of_it() {
    let EtcdStore { storage, etcd } = Etcd::start().await.store().await;
    let mut kept = Vec::new();
    let mut open = Vec::new();
    for _ in 0..5 {
        let watch = storage.watch(WatchRange::Prefix("/t/"), Revision(0)).await.unwrap();
        kept.push(watch.progress);
        open.push(watch.events);
    }
    watchers_become(&etcd, 5).await;
    drop(open);
    watchers_become(&etcd, 0).await;
    kept.iter().for_each(|progress| progress());
}

/// Waits until etcd's own count of watchers is that.
async fn watchers_become(etcd: &Etcd, expected: u32) {
    let line = format!("etcd_debugging_mvcc_watcher_total {expected}");
    let deadline = Instant::now() + PATIENCE;
    loop {
        let address = etcd.url.strip_prefix("http://").unwrap();
        let mut connection = tokio::net::TcpStream::connect(address).await.unwrap();
        connection.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").await.unwrap();
        let mut metrics = String::new();
        connection.read_to_string(&mut metrics).await.unwrap();
        if metrics.lines().any(|found| found == line) {
            return;
        }
        assert!(Instant::now() < deadline, "{line} in time");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn answers_larger_than_a_message_usually_is_arrive_whole() {
    let EtcdStore { storage, etcd } = Etcd::start().await.store().await;
    let mut watch = storage.watch(WatchRange::Prefix("/t/"), Revision(0)).await.unwrap();
    for number in 0..8 {
        create(&storage, &format!("/t/{number}"), vec![number; 1_400_000]).await;
    }
    let range = ListRange { prefix: "/t/", start: None, limit: 0, at: Freshness::Latest };
    let page = storage.list(range).await.unwrap();
    assert_eq!(page.items.iter().map(|kv| kv.value.len()).sum::<usize>(), 8 * 1_400_000);

    // Eight removals with the states before them, in one revision: etcd sends fragments.
    let all = DeleteRangeRequest {
        key: Bytes::from_static(b"/registry/t/"),
        range_end: Bytes::from_static(b"/registry/t0"),
        prev_kv: false,
    };
    let gone = KvClient::new(raw(&etcd).await).delete_range(all).await.unwrap().into_inner();
    let gone = Revision(gone.header.unwrap().revision.try_into().unwrap());
    let mut removed = Vec::new();
    while removed.len() < 8 {
        match timeout(PATIENCE, watch.events.next()).await.unwrap() {
            Some(Ok(Event::Put { .. })) => {}
            Some(Ok(Event::Deleted { previous, revision })) => {
                assert_eq!((previous.value.len(), revision), (1_400_000, gone));
                removed.push(previous.key);
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(removed, (0..8).map(|number| format!("/t/{number}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_full_etcd_says_so() {
    let etcd = Etcd::start_with(|port, _| format!("http://127.0.0.1:{port}"), &["--quota-backend-bytes=4000000"]).await;
    let EtcdStore { storage, etcd: _etcd } = etcd.store().await;
    for number in 0..20 {
        match storage.put(&format!("/t/{number}"), Expected::Absent, vec![0; 1_000_000].into(), None).await {
            Ok(Written::Done(_)) => {}
            Err(StorageError::NoSpace(why)) => {
                assert!(number > 0 && why.contains("space"), "{why}");
                return;
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("20 MB fit into 4 MB");
}

#[tokio::test]
async fn a_unix_socket_serves_as_well() {
    // etcd makes the socket in its working directory, under the name that looks like a host and a port.
    let etcd = Etcd::start_with(|port, _| format!("unix://localhost:{port}"), &[]).await;
    let socket = etcd.dir.path().join(etcd.url.strip_prefix("unix://").unwrap());
    for form in ["unix:", "unix://"] {
        let servers = vec![format!("{form}{}", socket.display())];
        let store = connect(Etcd3Options { servers, ..Etcd3Options::default() }).await;
        create(&store, &format!("/t/{}", form.len()), "1").await;
    }
}

/// A CA with a server's and a client's certificate, as PEM files in a directory.
fn make_certificates(dir: &Path) {
    let mut params = CertificateParams::new([]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    fs::write(dir.join("ca.crt"), ca.pem()).unwrap();
    for (name, names) in [("server", vec!["127.0.0.1".to_owned(), "localhost".to_owned()]), ("client", vec![])] {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &ca).unwrap();
        fs::write(dir.join(format!("{name}.crt")), certificate.pem()).unwrap();
        fs::write(dir.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

#[tokio::test]
async fn tls_is_verified_on_both_sides_and_its_files_are_renewed() {
    let (files, others) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    make_certificates(files.path());
    make_certificates(others.path());
    let flag = |flag: &str, file: &str| format!("--{flag}={}", files.path().join(file).display());
    let flags = [
        flag("cert-file", "server.crt"),
        flag("key-file", "server.key"),
        flag("trusted-ca-file", "ca.crt"),
        "--client-cert-auth=true".to_owned(),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut etcd = Etcd::start_with(|port, _| format!("https://127.0.0.1:{port}"), &flags).await;
    let options = |ca: &Path, identity: Option<&Path>| Etcd3Options {
        ca_file: Some(ca.join("ca.crt")),
        cert_file: identity.map(|dir| dir.join("client.crt")),
        key_file: identity.map(|dir| dir.join("client.key")),
        dial_timeout: Duration::from_secs(2),
        ..etcd.options()
    };
    let right = options(files.path(), Some(files.path()));
    let store = connect(right).await;
    create(&store, "/t/a", "1").await;

    for (wrong, why) in [
        (options(others.path(), Some(files.path())), "certificate"),
        (options(files.path(), Some(others.path())), ""),
        (options(files.path(), None), ""),
    ] {
        // A client's certificate is refused after the handshake, so that connecting may seem to work.
        let refused = match wrong.connect().await {
            Err(OptionsError::Unreachable(error)) => error,
            Err(other) => panic!("{other:?}"),
            Ok(store) => store.current_revision().await.unwrap_err().to_string(),
        };
        assert!(refused.contains(why), "{refused}");
    }

    // Everything is renewed under the same names, a new CA included.
    etcd.kill();
    make_certificates(files.path());
    etcd.restart();
    let deadline = Instant::now() + PATIENCE;
    loop {
        match store.get("/t/a", Freshness::Latest).await {
            Ok(got) => break assert_eq!(&*got.kv.unwrap().value, b"1"),
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    }
}

#[tokio::test]
async fn wrong_options_are_told_before_anything_is_dialled() {
    let good = || Etcd3Options { servers: vec!["http://127.0.0.1:1".to_owned()], ..Etcd3Options::default() };
    let dir = tempfile::tempdir().unwrap();
    make_certificates(dir.path());
    let file = |name: &str| Some(dir.path().join(name));
    for (options, why) in [
        (Etcd3Options { servers: vec![], ..good() }, "--etcd-servers"),
        (Etcd3Options { cert_file: file("client.crt"), ..good() }, "--etcd-keyfile"),
        (Etcd3Options { cert_file: file("client.crt"), key_file: file("client.key"), ..good() }, "--etcd-cafile"),
        (Etcd3Options { ca_file: file("ca.crt"), ..good() }, "no server is https"),
        (Etcd3Options { ca_file: file("none.crt"), servers: vec!["https://a:1".into()], ..good() }, "none.crt"),
        (Etcd3Options { ca_file: file("client.key"), servers: vec!["https://a:1".into()], ..good() }, "no certificate"),
        (Etcd3Options { keepalive_interval: Duration::from_secs(1), ..good() }, "5 s"),
    ] {
        let error = options.build().await.err().expect("an error").to_string();
        assert!(error.contains(why), "{error}");
    }
    good().build().await.unwrap();
}
