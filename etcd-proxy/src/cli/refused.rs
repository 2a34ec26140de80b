//! Flags of etcd, etcdctl and `etcd grpc-proxy start` that are known and not honoured: refused with the reason, never
//! ignored.

use std::ffi::{OsStr, OsString};

use super::ENVIRONMENT;

const NO_MEMBER: &str = "the proxy is no member of the cluster and stores nothing; set it on the upstream";
const NO_DISCOVERY: &str = "members are not looked up in DNS; name the members with --endpoints";
const NO_AUTO_TLS: &str = "generated certificates cannot be verified by clients; give --cert-file and --key-file";
const NO_SKIP_VERIFY: &str = "unverified upstreams are refused; give the CA with --cacert";
const NO_CIPHERS: &str = "the cipher suites are those of rustls, all of them modern, and cannot be chosen";
const NO_CRL: &str = "revocation lists are not read; use short-lived certificates or --client-cert-allowed-cn";
const NO_PPROF: &str = "there is no Go runtime to profile";
const NO_LEASING: &str = "the proxy caches nothing, on purpose";
const NO_RESOLVER: &str = "the proxy never writes into the tenant's key space; use a Kubernetes Service or DNS";
const NO_TRACING: &str = "traces are not exported; metrics are on --listen-metrics-urls";
const NO_LOG_FILES: &str = "logs go to standard error; let the service manager keep them";
const NO_GATEWAY: &str = "there is no JSON gateway; use gRPC";

/// Flag and reason.
const REFUSED: &[(&str, &str)] = &[
    ("auto-tls", NO_AUTO_TLS),
    ("self-signed-cert-validity", NO_AUTO_TLS),
    ("data-dir", "the proxy stores nothing on disk; remove the flag"),
    ("wal-dir", NO_MEMBER),
    ("quota-backend-bytes", "the store is the upstream's; a tenant's quota is --quota-bytes"),
    ("auto-compaction-mode", NO_MEMBER),
    ("auto-compaction-retention", NO_MEMBER),
    ("listen-peer-urls", NO_MEMBER),
    ("initial-cluster", NO_MEMBER),
    ("initial-advertise-peer-urls", NO_MEMBER),
    ("initial-cluster-state", NO_MEMBER),
    ("initial-cluster-token", NO_MEMBER),
    ("snapshot-count", NO_MEMBER),
    ("auth-token", NO_MEMBER),
    ("discovery-srv", NO_DISCOVERY),
    ("discovery-srv-name", NO_DISCOVERY),
    ("insecure-discovery", NO_DISCOVERY),
    ("endpoints-auto-sync-interval", "the upstream's members are not looked up; name them with --endpoints"),
    ("insecure-skip-tls-verify", NO_SKIP_VERIFY),
    ("insecure-transport", "write http:// or https:// in --endpoints"),
    ("cipher-suites", NO_CIPHERS),
    ("listen-cipher-suites", NO_CIPHERS),
    ("client-crl-file", NO_CRL),
    ("enable-pprof", NO_PPROF),
    ("experimental-leasing-prefix", NO_LEASING),
    ("experimental-serializable-ordering", "serializable reads are passed through; ask for linearizable ones"),
    ("experimental-enable-grpc-logging", "requests are not logged; the metrics count them"),
    ("resolver-prefix", NO_RESOLVER),
    ("resolver-ttl", NO_RESOLVER),
    ("max-send-bytes", "use --max-request-bytes"),
    ("max-recv-bytes", "answers of the upstream are not limited in size; remove the flag"),
    ("permit-without-stream", "pings are always sent, also on idle connections; remove the flag"),
    ("grpc-keepalive-min-time", "clients that ping often are bounded by HTTP/2 itself; remove the flag"),
    ("enable-grpc-gateway", NO_GATEWAY),
    ("listen-client-http-urls", "HTTP and gRPC share the URLs of --listen-client-urls"),
    ("enable-distributed-tracing", NO_TRACING),
    ("distributed-tracing-address", NO_TRACING),
    ("logger", NO_LOG_FILES),
    ("log-outputs", NO_LOG_FILES),
    ("log-rotation-config-json", NO_LOG_FILES),
    ("enable-log-rotation", NO_LOG_FILES),
    ("socket-reuse-port", "one process serves each port; run several behind a Service"),
    ("socket-reuse-address", "it is always on, as everywhere but in Go; remove the flag"),
    ("config-file", "configuration files are not implemented; use flags or the environment"),
];

/// A flag that is known and not honoured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{given} is refused: {reason}")]
pub(super) struct Refusal {
    given: String,
    reason: &'static str,
}

/// Looks for refused flags among `args` (with two dashes) and in the environment.
pub(super) fn check(
    args: &[OsString],
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<(), Refusal> {
    for arg in args.iter().filter_map(|arg| arg.to_str()) {
        let flag = arg.strip_prefix("--").unwrap_or_default();
        let flag = flag.split_once('=').map_or(flag, |(flag, _)| flag);
        refuse(flag, arg)?;
    }
    for (variable, value) in environment {
        if let Some(name) = variable.to_str().and_then(|name| name.strip_prefix(ENVIRONMENT))
            && value != OsStr::new("")
        {
            refuse(&name.to_ascii_lowercase().replace('_', "-"), &format!("{ENVIRONMENT}{name}"))?;
        }
    }
    Ok(())
}

fn refuse(flag: &str, given: &str) -> Result<(), Refusal> {
    match REFUSED.iter().find(|(name, _)| *name == flag) {
        // The value stays out of the message: it may be a password.
        Some((_, reason)) => {
            let given = given.split_once('=').map_or(given, |(flag, _)| flag).to_owned();
            Err(Refusal { given, reason })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    REFUSED.iter().map(|(name, _)| *name)
}
