//! An upstream with authentication on: tokens come and go, and the tenant notices nothing of it.

use std::{fs, path::Path, process::Command, sync::Arc, time::Instant};

use etcd_proxy::upstream::{Credentials, Endpoint, Password, UpstreamConfig};
use proto::etcdserverpb::{
    AlarmRequest, Compare, LeaseKeepAliveRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest, MemberListRequest,
    PutRequest, RangeRequest, StatusRequest, TxnRequest, WatchCreateRequest,
    compare::{CompareResult, CompareTarget, TargetUnion},
    watch_request::RequestUnion,
};
use tokio::time::Duration;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{Code, Status};

use crate::support::{Client, Etcd, Proxy, at_least, binary, delete_op, eventually, put_op, range_op, watch_all};

/// The meta keys of `/a/`.
const CLAIM: &str = "/etcd-proxy.meta/claims/2f612f";
const META: &str = "/etcd-proxy.meta/tenants/2f612f/";
/// Seconds that a token lasts.
const TTL: u64 = 2;
const PASSWORD: &str = "open sesame";

/// An etcd with a user `a` who may do what the proxy of `/a/` needs and nothing else, and with authentication off still.
async fn etcd(flags: &[&str]) -> Etcd {
    let etcd = Etcd::start_with(&[flags, &["--bcrypt-cost=4"]].concat()).await;
    for command in [
        &["user", "add", "root:root"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "a"],
        &["role", "grant-permission", "a", "readwrite", "/a/", "--prefix"],
        &["role", "grant-permission", "a", "read", CLAIM],
        &["role", "grant-permission", "a", "readwrite", META, "--prefix"],
        &["user", "add", &format!("a:{PASSWORD}")],
        &["user", "grant-role", "a", "a"],
    ] {
        admin(&etcd, command);
    }
    etcd
}

/// The same with authentication on, and with tokens of one of etcd's two kinds, of [`TTL`].
async fn secured(kind: Kind, dir: &Path) -> Etcd {
    let key = dir.join("jwt");
    fs::write(&key, "a key of some length for HMAC, the more the better").unwrap();
    let token = match kind {
        Kind::Simple => "simple".to_owned(),
        Kind::Jwt => format!("jwt,sign-method=HS256,priv-key={},ttl={TTL}s", key.display()),
    };
    let etcd = etcd(&["--auth-token", &token, &format!("--auth-token-ttl={TTL}")]).await;
    admin(&etcd, &["auth", "enable"]);
    etcd
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Simple,
    Jwt,
}

/// etcdctl as root, which is nobody's business while authentication is off.
fn admin(etcd: &Etcd, command: &[&str]) {
    let output = Command::new(binary("TEST_ETCDCTL"))
        .args(["--endpoints", &etcd.url(), "--user=root:root"])
        .args(command)
        .output()
        .unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

fn user(etcd: &Etcd, password: Password) -> UpstreamConfig {
    let user = Some(Arc::new(Credentials::new("a", password)));
    UpstreamConfig { user, ..UpstreamConfig::new(vec![Endpoint::parse(&etcd.url(), false).unwrap()], None) }
}

async fn proxy(etcd: &Etcd) -> Proxy {
    Proxy::start_on(user(etcd, Password::Text(PASSWORD.into())), "/a/", |_| {}).await
}

fn logins(proxy: &Proxy, result: &str) -> u64 {
    let metrics = proxy.metrics();
    let name = format!("etcd_proxy_upstream_logins_total{{result=\"{result}\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&name)).map_or(0, |count| count.parse().unwrap())
}

/// What tenants do, all of it.
async fn a_day_in_the_life(client: &mut Client) {
    client.delete_all().await;
    let revision = client.put("k", "1").await;
    let mut watch = client.watch([watch_all(revision)]).await;
    assert!(watch.next().await.unwrap().created);
    assert_eq!(watch.events(1).await[0].kv.as_ref().unwrap().key, "k");
    client.put("k", "2").await;
    assert_eq!(watch.events(1).await[0].prev_kv.as_ref().unwrap().value, "1");
    assert_eq!(client.keys().await, ["k"]);
    if at_least(7) {
        let everything = RangeRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() };
        let mut parts = client.kv.range_stream(everything).await.unwrap().into_inner();
        while parts.message().await.unwrap().is_some() {}
    }
    let operations = TxnRequest {
        success: vec![
            put_op("l", "1"),
            range_op(RangeRequest { key: "k".into(), ..Default::default() }),
            delete_op("m", "n"),
        ],
        ..Default::default()
    };
    assert!(client.kv.txn(operations).await.unwrap().into_inner().succeeded);
    let lease = client.grant(0, 600).await.unwrap();
    client.put_with_lease("leased", lease).await.unwrap();
    assert_eq!(client.keep_alive(lease).await.unwrap().ttl, 600);
    assert!(client.leases().await.contains(&lease));
    let ttl = LeaseTimeToLiveRequest { id: lease, keys: true };
    assert_eq!(client.lease.lease_time_to_live(ttl).await.unwrap().into_inner().keys, ["leased"]);
    client.lease.lease_revoke(LeaseRevokeRequest { id: lease }).await.unwrap();
    assert_eq!(client.get("leased").await, None);
    client.compact(revision).await.unwrap();
    client.cluster.member_list(MemberListRequest { linearizable: true }).await.unwrap();
    client.maintenance.status(StatusRequest {}).await.unwrap();
    client.maintenance.alarm(AlarmRequest::default()).await.unwrap();
}

/// Nothing is asked until every token that there is now has ended.
async fn idle() {
    let since = Instant::now();
    // etcd looks for old ones every second.
    eventually("tokens end", async || since.elapsed() > Duration::from_secs(TTL + 2)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_the_documented_role_does_everything_over_and_over() {
    for kind in [Kind::Simple, Kind::Jwt] {
        let dir = tempfile::tempdir().unwrap();
        let etcd = secured(kind, dir.path()).await;
        let proxy = proxy(&etcd).await;
        let mut client = proxy.client().await;
        for _ in 0..3 {
            a_day_in_the_life(&mut client).await;
            idle().await;
        }
        assert!(logins(&proxy, "ok") >= 3, "{kind:?}: {}", logins(&proxy, "ok"));
        assert!(!proxy.saw_foreign_keys());
        // The user has nothing to do with others' keys.
        let foreign = Proxy::start_on(user(&etcd, Password::Text(PASSWORD.into())), "/b/", |_| {}).await;
        let refused = foreign.client().await.kv.put(PutRequest { key: "k".into(), ..Default::default() }).await;
        assert_eq!(refused.unwrap_err().code(), Code::PermissionDenied);
    }
}

/// Streams keep the token that they began with. Where it is asked for again they end, as if a member had gone; clients come
/// again, and then it works.
#[tokio::test(flavor = "multi_thread")]
async fn streams_outlive_their_token_until_it_is_asked_for() {
    for kind in [Kind::Simple, Kind::Jwt] {
        let dir = tempfile::tempdir().unwrap();
        let etcd = secured(kind, dir.path()).await;
        let proxy = proxy(&etcd).await;
        let mut client = proxy.client().await;
        let revision = client.put("k", "1").await;
        let mut watch = client.watch([watch_all(revision + 1)]).await;
        assert!(watch.next().await.unwrap().created);
        let lease = client.grant(0, 600).await.unwrap();
        let (keep_alive, requests) = tokio::sync::mpsc::unbounded_channel();
        keep_alive.send(LeaseKeepAliveRequest { id: lease }).unwrap();
        let stream = client.lease.lease_keep_alive(UnboundedReceiverStream::new(requests)).await.unwrap();
        let mut kept_alive = stream.into_inner();
        assert_eq!(kept_alive.message().await.unwrap().unwrap().ttl, 600);
        idle().await;
        client.put("k", "2").await;
        assert_eq!(watch.events(1).await[0].kv.as_ref().unwrap().value, "2");

        watch.send(RequestUnion::CreateRequest(WatchCreateRequest { key: "other".into(), ..Default::default() }));
        let ended = watch.next().await.unwrap_err();
        assert_eq!(ended.code(), Code::Unavailable, "{kind:?}: {ended:?}");
        let mut watch = client.watch([watch_all(revision + 1)]).await;
        assert!(watch.next().await.unwrap().created);
        assert_eq!(watch.events(1).await[0].kv.as_ref().unwrap().value, "2");

        keep_alive.send(LeaseKeepAliveRequest { id: lease }).unwrap();
        let ended = kept_alive.message().await.unwrap_err();
        assert_eq!(ended.code(), Code::Unavailable, "{kind:?}: {ended:?}");
        assert_eq!(client.keep_alive(lease).await.unwrap().ttl, 600);

        // A stream that is opened when the last token has ended begins with a new one.
        idle().await;
        let mut watch = client.watch([watch_all(revision + 1)]).await;
        let created = watch.next().await.unwrap();
        assert!(created.created && !created.canceled, "{kind:?}: {created:?}");
    }
}

/// Tokens end under many writers at once: nobody hears of it, no write is carried out twice, and one login serves all.
#[tokio::test(flavor = "multi_thread")]
async fn writes_across_the_end_of_tokens_are_carried_out_once() {
    const WRITERS: usize = 16;
    let dir = tempfile::tempdir().unwrap();
    let etcd = secured(Kind::Jwt, dir.path()).await;
    let proxy = proxy(&etcd).await;
    let began = Instant::now();
    let writers = (0..WRITERS).map(|writer| {
        let (client, proxy, etcd) = (proxy.client(), &proxy, &etcd);
        async move {
            let mut client = client.await;
            let key = format!("counter{writer}");
            let (mut version, mut changes) = (0, 0);
            while logins(proxy, "ok") < 4 || version < 20 {
                // Users and roles change, too: tokens of before are refused, if later.
                if writer == 0 && version % 50 == 10 {
                    admin(etcd, &["role", "add", &format!("role{changes}")]);
                    changes += 1;
                }
                let expected = Compare {
                    result: CompareResult::Equal as i32,
                    target: CompareTarget::Version as i32,
                    key: key.clone().into(),
                    target_union: Some(TargetUnion::Version(version)),
                    ..Default::default()
                };
                let put = PutRequest { key: key.clone().into(), ..Default::default() };
                let put = proto::etcdserverpb::request_op::Request::RequestPut(put);
                let txn = TxnRequest {
                    compare: vec![expected],
                    success: vec![proto::etcdserverpb::RequestOp { request: Some(put) }],
                    ..Default::default()
                };
                let answer = client.kv.txn(txn).await.map(tonic::Response::into_inner);
                assert!(answer.as_ref().is_ok_and(|answer| answer.succeeded), "{version}: {answer:?}");
                version += 1;
            }
            changes
        }
    });
    let changes: u64 = futures::future::join_all(writers).await.into_iter().sum();
    let expected = began.elapsed().as_secs() / TTL + changes + 2;
    assert!(logins(&proxy, "ok") <= expected, "{} logins, {expected} expected", logins(&proxy, "ok"));
}

#[tokio::test(flavor = "multi_thread")]
async fn authentication_may_come_later_and_go_again() {
    let etcd = etcd(&[]).await;
    let proxy = proxy(&etcd).await;
    let mut client = proxy.client().await;
    let revision = client.put("k", "1").await;
    let mut watch = client.watch([watch_all(revision + 1)]).await;
    assert!(watch.next().await.unwrap().created);
    admin(&etcd, &["auth", "enable"]);
    a_day_in_the_life(&mut client).await;
    // The stream began when nobody was asked who he is.
    watch.send(RequestUnion::CreateRequest(watch_all(revision)));
    let ended: Status = loop {
        match watch.next().await {
            Ok(response) => assert!(!response.created, "{response:?}"),
            Err(ended) => break ended,
        }
    };
    assert_eq!(ended.code(), Code::Unavailable, "{ended:?}");
    admin(&etcd, &["auth", "disable"]);
    a_day_in_the_life(&mut client).await;
    admin(&etcd, &["auth", "enable"]);
    a_day_in_the_life(&mut client).await;
}

/// What was read once is not kept: who may not read it any more does not get it.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_is_refused_once_it_is_not_permitted() {
    let dir = tempfile::tempdir().unwrap();
    let etcd = secured(Kind::Simple, dir.path()).await;
    let proxy = proxy(&etcd).await;
    let mut client = proxy.client().await;
    client.put("secret", "1").await;
    let reads =
        [false, true].map(|serializable| RangeRequest { key: "secret".into(), serializable, ..Default::default() });
    for read in &reads {
        assert_eq!(client.range(read.clone()).await.unwrap().count, 1);
    }
    admin(&etcd, &["role", "revoke-permission", "a", "/a/", "--prefix"]);
    for read in reads {
        assert_eq!(client.range(read).await.unwrap_err().code(), Code::PermissionDenied);
    }
}

/// As on etcd: it has no id, and the watch with id 0 is none of its business.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_that_is_not_permitted_leaves_the_others_alone() {
    let dir = tempfile::tempdir().unwrap();
    let etcd = secured(Kind::Simple, dir.path()).await;
    admin(&etcd, &["role", "revoke-permission", "a", "/a/", "--prefix"]);
    admin(&etcd, &["role", "grant-permission", "a", "readwrite", "/a/x/", "--prefix"]);
    let proxy = proxy(&etcd).await;
    let mut client = proxy.client().await;
    let create = |key: &'static str| WatchCreateRequest { key: key.into(), ..Default::default() };
    let mut watching = client.watch([create("x/k")]).await;
    let created = watching.next().await.unwrap();
    assert!(created.created && !created.canceled && created.watch_id == 0, "{created:?}");
    watching.send(RequestUnion::CreateRequest(create("y")));
    let denied = watching.next().await.unwrap();
    assert!(denied.created && denied.canceled && denied.watch_id == -1, "{denied:?}");
    assert!(denied.cancel_reason.ends_with("etcdserver: permission denied"), "{denied:?}");
    client.put("x/k", "v").await;
    assert_eq!(watching.events(1).await[0].kv.as_ref().unwrap().key, "x/k");
}

/// The file is read for each login, so that the password can be changed under the proxy.
#[tokio::test(flavor = "multi_thread")]
async fn a_password_may_change() {
    let dir = tempfile::tempdir().unwrap();
    let etcd = secured(Kind::Simple, dir.path()).await;
    let file = dir.path().join("password");
    fs::write(&file, format!("{PASSWORD}\n")).unwrap();
    let proxy = Proxy::start_on(user(&etcd, Password::File(file.clone())), "/a/", |_| {}).await;
    let mut client = proxy.client().await;
    client.put("k", "1").await;
    let output = Command::new("sh")
        .arg("-c")
        .arg(format!(
            "printf 'another\nanother\n' | \"$0\" --endpoints {} --user root:root user passwd a --interactive=false",
            etcd.url()
        ))
        .arg(binary("TEST_ETCDCTL"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    // The tenant is told that it is not its fault, and nothing of whose it is.
    let refused = client.kv.put(PutRequest { key: "k".into(), ..Default::default() }).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(!refused.message().contains("password"), "{refused:?}");
    assert!(logins(&proxy, "failed") >= 1);
    fs::write(&file, "another").unwrap();
    eventually("the new password is used", async || {
        client.clone().kv.put(PutRequest { key: "k".into(), ..Default::default() }).await.is_ok()
    })
    .await;
    a_day_in_the_life(&mut client).await;
}
