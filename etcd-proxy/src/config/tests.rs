//! What makes sense and what is refused.

use super::*;
use crate::cli::{Invocation, parse};

fn config(flags: &str) -> Result<Config, ConfigError> {
    // By default it is where the proxy itself listens by default.
    let endpoints = if flags.contains("--endpoints") { "" } else { "--endpoints=etcd:2379" };
    let words = format!("etcd-proxy {flags} {endpoints}");
    match parse(words.split_whitespace().map(Into::into), []) {
        Ok(Invocation::Serve(args)) => Config::try_from(*args),
        other => panic!("{flags}: {other:?}"),
    }
}

#[test]
fn the_defaults_are_etcds() {
    let config = config("--prefix=/a/").unwrap();
    assert_eq!(
        config.clients,
        [ListenUrl { address: ListenAddress::Tcp("127.0.0.1:2379".parse().unwrap()), tls: false }]
    );
    assert_eq!(config.advertise, ["http://127.0.0.1:2379"]);
    assert_eq!(config.tenancy.meta_prefix.as_bytes(), b"/etcd-proxy.meta/");
    assert_eq!((config.max_request_bytes, config.max_txn_ops), (1_572_864, 128));
    assert!(config.metrics.is_empty());
}

#[test]
fn what_is_unsafe_or_incomplete_is_refused_by_name() {
    for (flags, words) in [
        ("", "--prefix is missing"),
        ("--prefix=", "--prefix is missing"),
        ("--prefix=/a", "add the '/'"),
        ("--prefix=/registry/", "--force"),
        ("--prefix=/registry/a/", "kube-apiserver"),
        ("--prefix=/", "overlaps --meta-prefix"),
        ("--prefix=/ --force", "overlaps --meta-prefix"),
        ("--prefix=/etcd-proxy.meta/a/ --force", "overlaps --meta-prefix"),
        ("--prefix=/a/ --meta-prefix=/m", "--meta-prefix"),
        ("--prefix=/a/ --listen-client-urls=http://0.0.0.0:2379", "--allow-plaintext"),
        (
            "--prefix=/a/ --listen-client-urls=http://0.0.0.0:2379 --allow-plaintext",
            "--advertise-client-urls is missing",
        ),
        ("--prefix=/a/ --listen-client-urls=https://127.0.0.1:2379", "--cert-file"),
        ("--prefix=/a/ --listen-client-urls=", "--listen-client-urls is empty"),
        ("--prefix=/a/ --cert-file=c", "--key-file"),
        ("--prefix=/a/ --key-file=c", "--cert-file"),
        ("--prefix=/a/ --cert-file=c --key-file=k --client-cert-auth", "--trusted-ca-file"),
        ("--prefix=/a/ --cert-file=c --key-file=k --client-cert-allowed-cn=x", "--trusted-ca-file"),
        ("--prefix=/a/ --trusted-ca-file=ca", "--cert-file"),
        ("--prefix=/a/ --client-cert-allowed-cn=x --client-cert-allowed-hostname=y", "exclude each other"),
        ("--prefix=/a/ --tls-min-version=TLS1.3 --tls-max-version=TLS1.2", "leave no version"),
        ("--prefix=/a/ --cert-file=c --key-file=k --cipher-suites=TLS_RSA_WITH_AES_128_CBC_SHA", "_WITH_AES_128_GCM_"),
        ("--prefix=/a/ --cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "--cert-file"),
        (
            "--prefix=/a/ --cert-file=c --key-file=k --tls-min-version=TLS1.3 --cipher-suites=TLS_AES_128_GCM_SHA256",
            "cannot be configured when only TLS1.3",
        ),
        (
            "--prefix=/a/ --cert-file=c --key-file=k --tls-max-version=TLS1.2 --cipher-suites=TLS_AES_128_GCM_SHA256",
            "no suite of TLS1.2",
        ),
        ("--prefix=/a/ --endpoints=https://etcd:2379", "--cacert"),
        ("--prefix=/a/ --endpoints=https://etcd:2379 --cert=c --key=k", "--cacert"),
        ("--prefix=/a/ --cacert=ca --cert=c", "--key"),
        ("--prefix=/a/ --endpoints=etcd", "port is missing"),
        ("--prefix=/a/ --endpoints=", "--endpoints is empty"),
        ("--prefix=/a/ --max-range-streams=0", "between 1 and 512"),
        ("--prefix=/a/ --max-range-streams=513", "between 1 and 512"),
        ("--prefix=/a/ --max-requests-burst=5", "--max-requests-burst needs --max-requests-per-second"),
        ("--prefix=/a/ --max-connections=0", "--max-connections must"),
        ("--prefix=/a/ --max-connections-per-client=0", "--max-connections-per-client must"),
        ("--prefix=/a/ --listen-addr=127.0.0.1:1 --listen-client-urls=http://127.0.0.1:2", "--listen-addr"),
        ("--prefix=/a/ --advertise-client-urls=http://nowhere", "--advertise-client-urls"),
    ] {
        match config(flags) {
            Err(error) => assert!(error.to_string().contains(words), "{flags}: {error}"),
            Ok(_) => panic!("{flags} was accepted"),
        }
    }
}

#[test]
fn a_proxy_is_not_its_own_upstream() {
    for (listens, endpoint, itself) in [
        ("http://localhost:2379", "127.0.0.1:2379", true),
        ("http://127.0.0.1:2379", "http://localhost:2379", true),
        ("http://[::1]:2379", "http://LOCALHOST:2379", true),
        ("http://127.0.0.1:2379", "[::ffff:127.0.0.1]:2379", true),
        ("http://[::1]:2379", "[::1]:2379", true),
        ("http://0.0.0.0:2379", "127.0.0.2:2379", true),
        ("http://[::]:2379", "127.0.0.1:2379", true),
        ("http://127.0.0.1:2379", "0.0.0.0:2379", true),
        ("http://10.0.0.1:2379", "http://10.0.0.2:2379,http://10.0.0.1:2379", true),
        ("unix:///run/a.sock", "unix:///run/a.sock", true),
        ("http://127.0.0.1:12379", "127.0.0.1:2379", false),
        ("http://127.0.0.1:2379", "127.0.0.2:2379", false),
        ("http://127.0.0.1:2379", "[::1]:2379", false),
        ("http://0.0.0.0:2379", "[::1]:2379", false),
        ("http://0.0.0.0:2379", "etcd:2379", false),
        ("http://10.0.0.1:2379", "localhost:2379", false),
        ("http://127.0.0.1:0", "127.0.0.1:2379", false),
        ("unix:///run/a.sock", "unix:///run/b.sock", false),
    ] {
        let flags = format!(
            "--prefix=/a/ --listen-client-urls={listens} --advertise-client-urls=http://h:1 --allow-plaintext --endpoints={endpoint}"
        );
        let refused = matches!(config(&flags), Err(ConfigError::Itself { .. }));
        assert_eq!(refused, itself, "{flags}");
    }
    let both = "--endpoints=127.0.0.1:2381 --listen-metrics-urls=http://0.0.0.0:2381";
    let error = config(&format!("--prefix=/a/ {both}")).unwrap_err().to_string();
    assert!(error.contains("leads to this proxy itself") && error.contains("--listen-metrics-urls"), "{error}");
}

#[test]
fn what_is_forced_is_accepted() {
    assert!(config("--prefix=/registry/ --force").is_ok());
    assert!(config("--prefix=a --allow-unterminated-prefix").is_ok());
    let open = config(
        "--prefix=/a/ --listen-client-urls=http://0.0.0.0:1 --allow-plaintext --advertise-client-urls=http://h:1",
    );
    assert_eq!(open.unwrap().advertise, ["http://h:1"]);
}

#[test]
fn pings_are_as_rare_as_grpc_gos() {
    for (flags, time) in [
        ("", Some(10)),
        ("--keepalive-time=4s", Some(10)),
        ("--dial-keepalive-time=30s", Some(30)),
        ("--keepalive-time=0", None),
    ] {
        let upstream = config(&format!("--prefix=/a/ {flags}")).unwrap().upstream.config;
        assert_eq!(upstream.keepalive_time, time.map(Duration::from_secs), "{flags}");
        assert!(!upstream.keepalive_while_idle);
    }
    assert!(config("--prefix=/a/ --permit-without-stream").unwrap().upstream.config.keepalive_while_idle);
    let connections =
        config("--prefix=/a/ --grpc-keepalive-interval=0 --grpc-keepalive-timeout=0").unwrap().connections;
    assert_eq!((connections.keepalive_interval, connections.keepalive_timeout), (None, Duration::from_secs(20)));
}

/// Whoever reaches the metrics gets no further, so that they may be had on any address, as etcd's.
#[test]
fn metrics_may_be_plaintext_anywhere() {
    let config = config(
        "--prefix=/a/ --listen-client-urls=https://0.0.0.0:2379 --advertise-client-urls=https://h:2379 --cert-file=c --key-file=k \
         --listen-metrics-urls=http://0.0.0.0:2381",
    );
    assert_eq!(config.unwrap().metrics[0].to_string(), "http://0.0.0.0:2381");
}

#[test]
fn the_tenants_use_is_not_limited_unless_asked_for() {
    let of = NonZeroUsize::new;
    let unasked = LimitSettings { streams: of(10_000), ..Default::default() };
    assert_eq!(config("--prefix=/a/").unwrap().limits, unasked);
    assert_eq!(config("--prefix=/a/ --max-streams=0").unwrap().limits, LimitSettings::default());
    let limits = config(
        "--prefix=/a/ --quota-bytes=536870912 --quota-keys=200000 --max-requests-per-second=500 --max-requests-burst=1000 \
         --max-concurrent-requests=200 --max-watches=10000 --max-streams=5000 --max-leases=9000",
    );
    let one = |number| NonZeroU32::new(number).unwrap();
    let expected = LimitSettings {
        quota_bytes: of(536_870_912),
        quota_keys: of(200_000),
        requests_per_second: Some(RateSettings { per_second: one(500), burst: one(1000) }),
        concurrent_requests: of(200),
        streams: of(5000),
        watches: of(10_000),
        leases: of(9000),
    };
    assert_eq!(limits.unwrap().limits, expected);
    let rate = config("--prefix=/a/ --max-requests-per-second=500").unwrap().limits.requests_per_second;
    assert_eq!(rate, Some(RateSettings { per_second: one(500), burst: one(500) }));
}

/// What the etcdproxy-controller of 2018 starts, and the defaults of all that it does not say.
#[test]
fn grpc_proxy_start_has_its_own_defaults() {
    let etcds = config(
        "grpc-proxy start --endpoints=https://etcd:2379 --namespace=/a/ --listen-addr=0.0.0.0:2379 --cacert=/ca --cert=/c --key=/k \
         --trusted-ca-file=/ca --cert-file=/c --key-file=/k",
    )
    .unwrap();
    assert_eq!(etcds.clients[0].to_string(), "https://0.0.0.0:2379");
    assert_eq!(etcds.advertise, ["https://127.0.0.1:23790"]);
    let plain = config("grpc-proxy start --namespace=/a/").unwrap();
    assert_eq!(plain.clients[0].to_string(), "http://127.0.0.1:23790");
    assert_eq!(plain.advertise, ["http://127.0.0.1:23790"]);
    let elsewhere = config("grpc-proxy start --namespace=/a/ --listen-client-urls=http://127.0.0.1:1").unwrap();
    assert_eq!(elsewhere.clients[0].to_string(), "http://127.0.0.1:1");
    let all = config("--namespace=/a/ --listen-addr=:2379 --allow-plaintext --advertise-client-url=h:2379").unwrap();
    assert_eq!(all.clients[0].to_string(), "http://0.0.0.0:2379");
}

#[test]
fn grpc_proxys_flags_mean_what_they_mean_there() {
    let config = config(
        "--namespace=/a/ --listen-addr=127.0.0.1:23790 --advertise-client-url=127.0.0.1:23790 --metrics-addr=http://127.0.0.1:1 \
         --cert-file=c --key-file=k --trusted-ca-file=ca --endpoints=127.0.0.1:2379 --cacert=ca",
    )
    .unwrap();
    assert_eq!(config.clients[0].to_string(), "https://127.0.0.1:23790");
    assert_eq!(config.advertise, ["https://127.0.0.1:23790"]);
    assert_eq!(config.metrics[0].to_string(), "http://127.0.0.1:1");
    assert!(config.upstream.config.endpoints[0].tls);
}
