//! Flags of etcd, etcdctl and `etcd grpc-proxy start` that are known and not honoured: refused with the reason, never
//! ignored. One that asks for what is so anyway (`--auto-tls=false`) is no reason to refuse.

use std::ffi::OsString;

use super::{ENVIRONMENT, argv::Argv, values};

/// Flags that are refused for the same reason.
struct Group {
    reason: &'static str,
    /// Names; those that take a value end in `=`.
    flags: &'static [&'static str],
    /// Values besides "off" that ask for what is so anyway.
    idle: &'static [&'static str],
}

const fn group(reason: &'static str, flags: &'static [&'static str]) -> Group {
    Group { reason, flags, idle: &[] }
}

const fn group_except(reason: &'static str, flags: &'static [&'static str], idle: &'static [&'static str]) -> Group {
    Group { reason, flags, idle }
}

const REFUSED: &[Group] = &[
    group(
        "generated certificates cannot be verified by clients; give --cert-file and --key-file",
        &["auto-tls", "self-signed-cert-validity="],
    ),
    group("the proxy stores nothing on disk; remove the flag", &["data-dir="]),
    group(
        "members are not looked up in DNS; name the members with --endpoints",
        &["discovery-srv=", "discovery-srv-name=", "insecure-discovery"],
    ),
    group("the upstream's members are not looked up; name them with --endpoints", &["endpoints-auto-sync-interval="]),
    group("unverified upstreams are refused; give the CA with --cacert", &["insecure-skip-tls-verify"]),
    group("write http:// or https:// in --endpoints", &["insecure-transport"]),
    group(
        "revocation lists are not read; use short-lived certificates or --client-cert-allowed-cn",
        &["client-crl-file="],
    ),
    group("there is no Go runtime to profile", &["enable-pprof"]),
    group("the proxy caches nothing, on purpose", &["experimental-leasing-prefix="]),
    group("serializable reads are passed through; ask for linearizable ones", &["experimental-serializable-ordering"]),
    group(
        "the proxy never writes into the tenant's key space; use a Kubernetes Service or DNS",
        &["resolver-prefix=", "resolver-ttl="],
    ),
    group_except(
        "answers of the upstream are not limited in size; remove the flag",
        &["max-recv-bytes="],
        &["2147483647"],
    ),
    group("clients that ping often are bounded by HTTP/2 itself; remove the flag", &["grpc-keepalive-min-time="]),
    group(
        "a token ends while the proxy runs; give --user and --password, or a client certificate with the user's name",
        &["auth-jwt-token="],
    ),
    group("there is no JSON gateway; use gRPC", &["enable-grpc-gateway"]),
    group("HTTP and gRPC share the URLs of --listen-client-urls", &["listen-client-http-urls="]),
    group_except("there is one logger; --log-level and --log-format set it up", &["logger="], &["zap"]),
    group_except(
        "logs go to standard error; let the service manager keep them",
        &["log-outputs="],
        &["default", "stderr"],
    ),
    group(
        "logs go to standard error; let the service manager keep them",
        &["enable-log-rotation", "log-rotation-config-json="],
    ),
    group_except("all metrics are always served; remove the flag", &["metrics="], &["basic", "extensive"]),
    group(
        "slow requests are not logged apart; see grpc_server_handling_seconds, or log all with --access-log",
        &["warning-unary-request-duration=", "warning-apply-duration="],
    ),
    group("one process serves each port; run several behind a Service", &["socket-reuse-port"]),
    group("it is always on, as everywhere but in Go; remove the flag", &["socket-reuse-address"]),
    group_except(
        "there is no JSON gateway that a web page could ask, so origins and host names do not matter",
        &["cors=", "host-whitelist="],
        &["*"],
    ),
    group("the store is the upstream's; a tenant's quota is --quota-bytes", &["quota-backend-bytes="]),
    group(
        "etcd's users are the upstream's and are administered there",
        &["auth-token=", "auth-token-ttl=", "bcrypt-cost="],
    ),
    group("the proxy shows its peers no certificate but --cert", &["client-cert-file=", "client-key-file="]),
    group(
        "how often idle watches report progress is up to the upstream; set it there",
        &["watch-progress-notify-interval="],
    ),
    group(
        "the proxy is no member of the cluster and stores nothing; set it on the upstream",
        &[
            "auto-compaction-mode=",
            "auto-compaction-retention=",
            "backend-batch-interval=",
            "backend-batch-limit=",
            "backend-bbolt-freelist-type=",
            "bootstrap-defrag-threshold-megabytes=",
            "compact-hash-check-time=",
            "compaction-batch-limit=",
            "compaction-sleep-interval=",
            "corrupt-check-time=",
            "discovery=",
            "discovery-cacert=",
            "discovery-cert=",
            "discovery-dial-timeout=",
            "discovery-endpoints=",
            "discovery-fallback=",
            "discovery-insecure-skip-tls-verify",
            "discovery-insecure-transport",
            "discovery-keepalive-time=",
            "discovery-keepalive-timeout=",
            "discovery-key=",
            "discovery-password=",
            "discovery-proxy=",
            "discovery-request-timeout=",
            "discovery-token=",
            "discovery-user=",
            "downgrade-check-time=",
            "election-timeout=",
            "feature-gates=",
            "force-new-cluster",
            "heartbeat-interval=",
            "initial-advertise-peer-urls=",
            "initial-cluster=",
            "initial-cluster-state=",
            "initial-cluster-token=",
            "initial-election-tick-advance",
            "listen-peer-urls=",
            "max-learners=",
            "max-snapshots=",
            "max-wals=",
            "memory-mlock",
            "peer-auto-tls",
            "peer-cert-allowed-cn=",
            "peer-cert-allowed-hostname=",
            "peer-cert-file=",
            "peer-client-cert-auth",
            "peer-client-cert-file=",
            "peer-client-key-file=",
            "peer-crl-file=",
            "peer-key-file=",
            "peer-skip-client-san-verification",
            "peer-trusted-ca-file=",
            "pre-vote",
            "raft-read-timeout=",
            "raft-write-timeout=",
            "snapshot-catchup-entries=",
            "snapshot-count=",
            "strict-reconfig-check",
            "unsafe-no-fsync",
            "v2-deprecation=",
            "wal-dir=",
        ],
    ),
];

/// What etcd and its grpc-proxy (3.5 to 3.7) take where a flag is not given. Spelled out it changes nothing there and asks for
/// nothing here.
const DEFAULTS: &[(&str, &[&str])] = &[
    ("auth-token", &["simple"]),
    ("auth-token-ttl", &["300"]),
    ("auto-compaction-mode", &["periodic"]),
    ("backend-bbolt-freelist-type", &["map"]),
    ("bcrypt-cost", &["10"]),
    ("compact-hash-check-time", &["1m"]),
    ("compaction-batch-limit", &["1000"]),
    ("compaction-sleep-interval", &["10ms"]),
    ("data-dir", &["default.etcd", "default.proxy"]),
    ("discovery-dial-timeout", &["2s"]),
    ("discovery-fallback", &["exit", "proxy"]),
    ("discovery-insecure-transport", &["true"]),
    ("discovery-keepalive-time", &["2s"]),
    ("discovery-keepalive-timeout", &["6s"]),
    ("discovery-request-timeout", &["5s"]),
    ("downgrade-check-time", &["5s"]),
    ("election-timeout", &["1000"]),
    ("grpc-keepalive-min-time", &["5s"]),
    ("heartbeat-interval", &["100"]),
    ("initial-advertise-peer-urls", &["http://localhost:2380"]),
    ("initial-cluster", &["default=http://localhost:2380"]),
    ("initial-cluster-state", &["new"]),
    ("initial-cluster-token", &["etcd-cluster"]),
    ("initial-election-tick-advance", &["true"]),
    ("listen-peer-urls", &["http://localhost:2380"]),
    (
        "log-rotation-config-json",
        &[r#"{"maxsize": 100, "maxage": 0, "maxbackups": 0, "localtime": false, "compress": false}"#],
    ),
    ("max-learners", &["1"]),
    ("max-snapshots", &["5"]),
    ("max-wals", &["5"]),
    ("pre-vote", &["true"]),
    ("raft-read-timeout", &["5s"]),
    ("raft-write-timeout", &["5s"]),
    ("self-signed-cert-validity", &["1"]),
    ("snapshot-catchup-entries", &["5000"]),
    ("snapshot-count", &["10000", "100000"]),
    ("strict-reconfig-check", &["true"]),
    ("v2-deprecation", &["not-yet", "write-only"]),
    ("warning-apply-duration", &["100ms"]),
    ("warning-unary-request-duration", &["300ms"]),
    ("watch-progress-notify-interval", &["10m"]),
];

/// Flags of `grpc-proxy start` that have no effect there unless another one is given that is refused here. A deployment may
/// bear them for nothing.
const IDLE_IN_GRPC_PROXY: &[&str] =
    &["data-dir", "self-signed-cert-validity", "discovery-srv-name", "insecure-discovery"];

/// A flag that is known and not honoured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given} is refused: {reason}")]
pub(super) struct Refusal {
    given: String,
    reason: &'static str,
}

/// What becomes of a flag that is known and not honoured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// It asks for what is so anyway.
    Idle,
    /// It is refused, for this reason.
    Refused(&'static str),
}

/// Looks at a flag by its name without dashes; `None` if it is not known here. A flag without a value is one that is switched
/// on.
pub(super) fn judge(flag: &str, value: Option<&str>) -> Option<Judgement> {
    let (group, takes_value) = find(flag)?;
    let idle = value.is_some_and(|value| is_off(value) || group.idle.contains(&value))
        || value.or((!takes_value).then_some("true")).is_some_and(|value| is_default(flag, value));
    Some(if idle { Judgement::Idle } else { Judgement::Refused(group.reason) })
}

/// Looks for refused flags on the command line and in the environment. Those that are idle are taken away.
pub(super) fn check(argv: &mut Argv, environment: &[(OsString, OsString)]) -> Result<(), Refusal> {
    let idle_here: &[&str] = if argv.grpc_proxy { IDLE_IN_GRPC_PROXY } else { &[] };
    argv.try_retain(takes_value, |flag, value| match judge(flag, value) {
        None => Ok(true),
        Some(Judgement::Idle) => Ok(false),
        Some(Judgement::Refused(_)) if idle_here.contains(&flag) => Ok(false),
        // The value stays out of the message: it may be a password.
        Some(Judgement::Refused(reason)) => Err(Refusal { given: format!("--{flag}"), reason }),
    })?;
    for (variable, value) in environment {
        let Some(name) = variable.to_str().and_then(|name| name.strip_prefix(ENVIRONMENT)) else { continue };
        let flag = name.to_ascii_lowercase().replace('_', "-");
        if let Some(Judgement::Refused(reason)) = judge(&flag, value.to_str()) {
            return Err(Refusal { given: format!("{ENVIRONMENT}{name}"), reason });
        }
    }
    Ok(())
}

/// Whether a value asks for nothing.
fn is_off(value: &str) -> bool {
    matches!(value, "" | "0s") || values::boolean(value) == Ok(false)
}

/// Whether a value is the one that the flag has without being given, however it is spelled.
fn is_default(flag: &str, value: &str) -> bool {
    let same = |default: &str| {
        let durations = (values::duration(default), values::duration(value));
        let booleans = (values::boolean(default), values::boolean(value));
        default == value
            || matches!(durations, (Ok(default), Ok(value)) if default == value)
            || matches!(booleans, (Ok(true), Ok(true)))
    };
    DEFAULTS.iter().any(|(known, defaults)| *known == flag && defaults.iter().any(|default| same(default)))
}

fn takes_value(flag: &str) -> bool {
    find(flag).is_some_and(|(_, takes_value)| takes_value)
}

/// The group of a flag, and whether the flag takes a value.
fn find(flag: &str) -> Option<(&'static Group, bool)> {
    REFUSED.iter().find_map(|group| {
        let known = group.flags.iter().find(|known| known.trim_end_matches('=') == flag)?;
        Some((group, known.ends_with('=')))
    })
}

#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    REFUSED.iter().flat_map(|group| group.flags).map(|name| name.trim_end_matches('='))
}
