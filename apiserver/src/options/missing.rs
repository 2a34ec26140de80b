//! Flags of k8s.io/apiserver whose feature is not here. They are recognised, so that a deployment that uses one is told what
//! it would lose, instead of losing it silently.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, error::Error};

/// A flag, the values that ask for nothing that is not so anyway, and what is missing.
struct Feature {
    flag: &'static str,
    harmless: &'static [&'static str],
    missing: &'static str,
}

const fn feature(flag: &'static str, harmless: &'static [&'static str], missing: &'static str) -> Feature {
    Feature { flag, harmless, missing }
}

const AUDIT: &str =
    "this server writes no audit log; kube-apiserver's own has every request that comes through the aggregator";
const ENCRYPTION: &str = "this server stores objects unencrypted; encrypt the disks of etcd instead";
const WATCH_CACHE: &str = "there is no watch cache yet; reads go to the storage";
const SOCKETS: &str = "listening sockets are not shared";
const VERSIONS: &str = "there are no versions to emulate";

const FEATURES: &[Feature] = &[
    feature("admission-control-config-file", &[""], "admission plugins take no configuration yet"),
    feature("audit-policy-file", &[""], AUDIT),
    feature("audit-log-path", &[""], AUDIT),
    feature("audit-log-maxage", &["0"], AUDIT),
    feature("audit-log-maxbackup", &["0"], AUDIT),
    feature("audit-log-maxsize", &["0"], AUDIT),
    feature("audit-log-format", &[], AUDIT),
    feature("audit-log-version", &[], AUDIT),
    feature("audit-log-compress", &["false"], AUDIT),
    feature("audit-log-mode", &[], AUDIT),
    feature("audit-log-batch-buffer-size", &[], AUDIT),
    feature("audit-log-batch-max-size", &[], AUDIT),
    feature("audit-log-batch-max-wait", &[], AUDIT),
    feature("audit-log-batch-throttle-enable", &[], AUDIT),
    feature("audit-log-batch-throttle-qps", &[], AUDIT),
    feature("audit-log-batch-throttle-burst", &[], AUDIT),
    feature("audit-log-truncate-enabled", &["false"], AUDIT),
    feature("audit-log-truncate-max-batch-size", &[], AUDIT),
    feature("audit-log-truncate-max-event-size", &[], AUDIT),
    feature("audit-webhook-config-file", &[""], AUDIT),
    feature("audit-webhook-initial-backoff", &[], AUDIT),
    feature("audit-webhook-batch-initial-backoff", &[], AUDIT),
    feature("audit-webhook-version", &[], AUDIT),
    feature("audit-webhook-mode", &[], AUDIT),
    feature("audit-webhook-batch-buffer-size", &[], AUDIT),
    feature("audit-webhook-batch-max-size", &[], AUDIT),
    feature("audit-webhook-batch-max-wait", &[], AUDIT),
    feature("audit-webhook-batch-throttle-enable", &[], AUDIT),
    feature("audit-webhook-batch-throttle-qps", &[], AUDIT),
    feature("audit-webhook-batch-throttle-burst", &[], AUDIT),
    feature("audit-webhook-truncate-enabled", &["false"], AUDIT),
    feature("audit-webhook-truncate-max-batch-size", &[], AUDIT),
    feature("audit-webhook-truncate-max-event-size", &[], AUDIT),
    feature("encryption-provider-config", &[""], ENCRYPTION),
    feature("encryption-provider-config-automatic-reload", &["false"], ENCRYPTION),
    feature("egress-selector-config-file", &[""], "connections to the outside cannot be redirected"),
    feature("tracing-config-file", &[""], "traces are not exported yet"),
    feature("feature-gates", &[""], "there are no feature gates"),
    feature("emulated-version", &[""], VERSIONS),
    feature("min-compatibility-version", &[""], VERSIONS),
    feature("emulation-forward-compatible", &["false"], VERSIONS),
    feature("runtime-config-emulation-forward-compatible", &["false"], VERSIONS),
    feature("runtime-config", &[""], "API versions cannot be switched off"),
    feature(
        "enable-priority-and-fairness",
        &["false"],
        "this server does not order requests by priority; --max-requests-inflight and --max-mutating-requests-inflight bound the load",
    ),
    feature("v", &["0", "1", "2", "3"], "logs are not chosen by a number; see the program's own flags for logs"),
    feature("vmodule", &[""], "logs are not chosen by file; see the program's own flags for logs"),
    feature("profiling", &["false"], "there are no profiles to read"),
    feature("contention-profiling", &["false"], "there are no profiles to read"),
    feature("debug-socket-path", &[""], "there are no profiles to read"),
    feature("watch-cache", &["false"], WATCH_CACHE),
    feature("watch-cache-sizes", &[""], WATCH_CACHE),
    feature("default-watch-cache-size", &["0"], WATCH_CACHE),
    feature("storage-media-type", &["application/json"], "objects are stored as JSON only"),
    feature("delete-collection-workers", &["1"], "a collection is deleted by one worker"),
    feature(
        "enable-garbage-collector",
        &["true"],
        "finalizers for the garbage collector are always set as clients ask",
    ),
    feature("etcd-servers-overrides", &[""], "all resources are kept in one storage"),
    feature("etcd-count-metric-poll-period", &["0", "0s"], "objects are not counted for metrics"),
    feature("etcd-db-metric-poll-interval", &["0", "0s"], "the size of etcd is not measured"),
    feature("lease-reuse-duration-seconds", &[], "leases are shared in a way of their own"),
    feature("storage-initialization-timeout", &[], "the server waits for its storage before it serves"),
    feature("tls-sni-cert-key", &[""], "there is one serving certificate only"),
    feature("tls-curve-preferences", &[""], "key exchange mechanisms cannot be chosen"),
    feature("permit-port-sharing", &["false"], SOCKETS),
    feature("permit-address-sharing", &["false"], SOCKETS),
    feature("cors-allowed-origins", &[""], "cross-origin requests are not allowed"),
    feature("external-hostname", &[""], "discovery tells the address that is listened on"),
    feature("advertise-address", &[""], "discovery tells the address that is listened on"),
    feature(
        "shutdown-watch-termination-grace-period",
        &["0", "0s"],
        "all watches end at once, and the server waits for them",
    ),
];

/// The flags that were given although their feature is missing.
#[derive(Clone, Debug, Default)]
pub struct MissingFeatures {
    given: Vec<(&'static str, &'static str)>,
}

// === impl MissingFeatures ===

impl MissingFeatures {
    pub(super) fn validate(&self, errors: &mut Vec<String>) {
        errors.extend(self.given.iter().map(|(flag, missing)| format!("--{flag}: {missing}; leave the flag out")));
    }
}

impl Args for MissingFeatures {
    fn augment_args(command: Command) -> Command {
        command.args(FEATURES.iter().map(|feature| {
            Arg::new(feature.flag)
                .long(feature.flag)
                .hide(true)
                .action(ArgAction::Append)
                .num_args(0..=1)
                .default_missing_value("true")
                .help(feature.missing)
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for MissingFeatures {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let asks = |feature: &&Feature| {
            let mut values = matches.get_many::<String>(feature.flag).into_iter().flatten();
            values.any(|value| !feature.harmless.contains(&value.as_str()))
        };
        Ok(Self { given: FEATURES.iter().filter(asks).map(|feature| (feature.flag, feature.missing)).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
