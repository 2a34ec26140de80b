//! `claim` and `release`.

use crate::child::{Etcd, Proxy, etcd_proxy, fails, ok};

fn claim(etcd: &Etcd, prefix: &str, owner: &str) -> std::process::Output {
    etcd_proxy(&["claim", "--prefix", prefix, "--owner", owner, "--endpoints", &etcd.url])
}

fn release(etcd: &Etcd, prefix: &str, flags: &[&str]) -> std::process::Output {
    etcd_proxy(&[&["release", "--prefix", prefix, "--endpoints", &etcd.url], flags].concat())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_keeps_others_away_until_it_is_released() {
    let etcd = Etcd::start().await;
    assert!(fails(etcd_proxy(&["claim", "--prefix=/a/", "--endpoints", &etcd.url])).contains("--owner"));
    ok(claim(&etcd, "/a/", "one"));
    ok(claim(&etcd, "/a/", "one"));
    for prefix in ["/a/", "/a/b/"] {
        let message = fails(claim(&etcd, prefix, "two"));
        assert!(message.contains("/a/") && message.contains("one"), "{message}");
    }
    ok(claim(&etcd, "/b/", "two"));
    assert!(fails(claim(&etcd, "/registry/", "two")).contains("--force"));
    // Which is about that alone: nobody is forced upon another tenant.
    let force = |prefix| etcd_proxy(&["claim", "--force", "--prefix", prefix, "--owner=two", "--endpoints", &etcd.url]);
    ok(force("/registry/crust/"));
    for prefix in ["/a/b/", "/registry/"] {
        let message = fails(force(prefix));
        assert!(message.contains("is held by"), "{message}");
    }
    assert!(fails(release(&etcd, "/c/", &[])).contains("not claimed"));
    assert!(fails(release(&etcd, "/a/", &["--owner=two"])).contains("one"));
    ok(release(&etcd, "/a/", &["--owner=one"]));
    ok(claim(&etcd, "/a/b/", "two"));
}

#[tokio::test(flavor = "multi_thread")]
async fn data_that_is_left_is_not_passed_on_by_accident() {
    let etcd = Etcd::start().await;
    ok(claim(&etcd, "/a/", "one"));
    etcd.ctl(&["put", "/a/x", "1"]);
    let message = fails(release(&etcd, "/a/", &[]));
    assert!(message.contains("1 key and 0 leases") && message.contains("--keep-data"), "{message}");
    ok(release(&etcd, "/a/", &["--keep-data"]));
    let message = ok(claim(&etcd, "/a/", "two"));
    assert!(message.contains("1 key already"), "{message}");
}

/// What a proxy, a restore or a copy leaves for a prefix that nobody claimed.
#[tokio::test(flavor = "multi_thread")]
async fn meta_keys_of_nobody_go_by_claim_and_release() {
    let etcd = Etcd::start().await;
    let proxy = Proxy::start("/a/", &etcd, &[]).await;
    proxy.ctl(&["put", "k", "v"]);
    let lease = proxy.ctl(&["lease", "grant", "600"]);
    proxy.ctl(&["lease", "revoke", lease.split(' ').nth(1).unwrap()]);
    proxy.ctl(&["del", "k"]);
    drop(proxy);
    let listed = || ok(etcd_proxy(&["usage", "--endpoints", &etcd.url])).contains("/a/");
    assert!(listed());
    let message = fails(release(&etcd, "/a/", &[]));
    assert!(message.contains("etcd-proxy claim") && message.contains("released afterwards"), "{message}");
    ok(claim(&etcd, "/a/", "one"));
    ok(release(&etcd, "/a/", &[]));
    assert!(!listed());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_overlapping_claims_at_once_exactly_one_wins_every_time() {
    let etcd = Etcd::start().await;
    for round in 0..100 {
        let (outer, inner) = (format!("/{round}/"), format!("/{round}/x/"));
        let (first, second) = std::thread::scope(|scope| {
            let first = scope.spawn(|| claim(&etcd, &outer, "one"));
            let second = scope.spawn(|| claim(&etcd, &inner, "two"));
            (first.join().unwrap(), second.join().unwrap())
        });
        let won = [&first, &second].iter().filter(|output| output.status.success()).count();
        assert_eq!(won, 1, "{first:?} {second:?}");
    }
    let claims = etcd.ctl(&["get", "/etcd-proxy.meta/claims/", "--prefix", "--keys-only"]);
    assert_eq!(claims.lines().filter(|line| !line.is_empty()).count(), 100, "{claims}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_an_upstream_it_says_so_in_time() {
    let address = crate::child::free_address();
    let flags = ["claim", "--prefix=/a/", "--owner=x", "--endpoints", &address, "--command-timeout=2s"];
    let message = fails(etcd_proxy(&flags));
    assert!(message.contains("there is no connection available") || message.contains("--command-timeout"), "{message}");
}
