//! The proxies' pods in mode Deployment.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment},
        core::v1::{
            Capabilities, Container, ContainerPort, EmptyDirVolumeSource, EnvVar, HTTPGetAction, KeyToPath,
            PodSecurityContext, PodSpec, PodTemplateSpec, Probe, ResourceRequirements, SeccompProfile,
            SecretVolumeSource, SecurityContext, ServiceAccount, Toleration, TopologySpreadConstraint, Volume,
            VolumeMount,
        },
    },
    apimachinery::pkg::{
        apis::meta::v1::{LabelSelector, ObjectMeta},
        util::intstr::IntOrString,
    },
};

use super::{Desired, Kind, Names, Settings, labels, metadata, selector};
use crate::api::{EtcdUpstreamSpec, UpstreamTls};

/// The port for the tenant's clients.
pub const CLIENT_PORT: u16 = 2379;

/// The port for probes and Prometheus.
pub const METRICS_PORT: u16 = 2381;

/// How long a pod that ends goes on serving, for endpoints to disappear.
const SHUTDOWN_DELAY: u32 = 5;

/// How long requests under way get after that.
const DRAIN: u32 = 20;

/// Where a proxy finds its files.
#[derive(Clone, Copy, Debug)]
pub struct Paths;

impl Paths {
    /// Serving certificate, key, and the bundle that verifies clients.
    pub const SERVING: &str = "/etc/etcd-proxy/serving";
    /// The bundle that verifies the upstream, as `ca.crt`.
    pub const UPSTREAM_CA: &str = "/etc/etcd-proxy/upstream-ca";
    /// The one place where it may write: the default for temporary files.
    pub const SCRATCH: &str = "/tmp";
    /// The client certificate for the upstream.
    pub const UPSTREAM_CLIENT: &str = "/etc/etcd-proxy/upstream-client";
}

/// The ServiceAccount of the pods: one without any rights.
pub fn service_account(names: &Names) -> Desired {
    Desired::new(
        Kind::ServiceAccount,
        &ServiceAccount {
            metadata: metadata(names, &names.controller_namespace, &names.base),
            automount_service_account_token: Some(false),
            ..Default::default()
        },
    )
}

/// The proxy's command line, `serve` and one `--flag=value` each.
pub fn arguments(
    names: &Names,
    settings: &Settings,
    upstream: &EtcdUpstreamSpec,
    prefix: &str,
    common_names: &[String],
) -> Vec<String> {
    let serving = |file: &str| format!("{}/{file}", Paths::SERVING);
    let mut flags = upstream_flags(upstream, Paths::UPSTREAM_CA, prefix);
    flags.extend([
        ("name", names.base.clone()),
        ("listen-client-urls", format!("https://0.0.0.0:{CLIENT_PORT}")),
        ("listen-metrics-urls", format!("http://0.0.0.0:{METRICS_PORT}")),
        ("advertise-client-urls", names.advertised()),
        ("cert-file", serving("tls.crt")),
        ("key-file", serving("tls.key")),
        ("trusted-ca-file", serving("ca.crt")),
        ("client-cert-auth", "true".to_owned()),
        ("client-cert-allowed-cn", common_names.join(",")),
        ("shutdown-delay", format!("{SHUTDOWN_DELAY}s")),
        ("drain-timeout", format!("{DRAIN}s")),
        ("log-format", "json".to_owned()),
    ]);
    flags.extend(settings.limit_flags(settings.replicas));
    flags.extend(settings.memory_flag());
    let flags = flags.into_iter().map(|(flag, value)| format!("--{flag}={value}"));
    std::iter::once("serve".to_owned()).chain(flags).collect()
}

/// How a proxy reaches its upstream, and what it has of it; the CA's bundle is in the folder `ca`.
pub(super) fn upstream_flags(upstream: &EtcdUpstreamSpec, ca: &str, prefix: &str) -> Vec<(&'static str, String)> {
    let mut flags = vec![
        ("endpoints", upstream.endpoints.join(",")),
        ("prefix", prefix.to_owned()),
        ("meta-prefix", upstream.meta_prefix.clone()),
    ];
    if let Some(tls) = &upstream.tls {
        flags.push(("cacert", format!("{ca}/ca.crt")));
        if tls.client_secret_ref.is_some() {
            flags.push(("cert", format!("{}/tls.crt", Paths::UPSTREAM_CLIENT)));
            flags.push(("key", format!("{}/tls.key", Paths::UPSTREAM_CLIENT)));
        }
    }
    flags
}

/// The Deployment.
pub fn deployment(names: &Names, settings: &Settings, upstream: &EtcdUpstreamSpec, arguments: Vec<String>) -> Desired {
    let mut volumes = vec![secret_volume("serving", &names.serving(), None), scratch_volume()];
    let mut mounts = vec![mount("serving", Paths::SERVING), scratch()];
    if let Some(UpstreamTls { ca_secret_ref: ca, client_secret_ref: client }) = &upstream.tls {
        let items = vec![KeyToPath { key: ca.key.clone(), path: "ca.crt".to_owned(), ..Default::default() }];
        volumes.push(secret_volume("upstream-ca", &ca.name, Some(items)));
        mounts.push(mount("upstream-ca", Paths::UPSTREAM_CA));
        if let Some(client) = client {
            volumes.push(secret_volume("upstream-client", &client.name, None));
            mounts.push(mount("upstream-client", Paths::UPSTREAM_CLIENT));
        }
    }
    let port = |name: &str, port: u16| ContainerPort {
        name: Some(name.to_owned()),
        container_port: i32::from(port),
        protocol: Some("TCP".to_owned()),
        ..Default::default()
    };
    let resources = &settings.resources;
    let some = |map: &super::Quantities| (!map.is_empty()).then(|| map.clone());
    let container = Container {
        name: "etcd-proxy".to_owned(),
        image: Some(settings.image.clone()),
        // What Kubernetes would take it for, said so that a change of it is drift.
        image_pull_policy: Some(pull_policy(&settings.image).to_owned()),
        args: Some(arguments),
        // Backtraces of a crash are for whoever reads the log.
        env: Some(vec![EnvVar {
            name: "RUST_BACKTRACE".to_owned(),
            value: Some("1".to_owned()),
            ..Default::default()
        }]),
        ports: Some(vec![port("etcd", CLIENT_PORT), port("metrics", METRICS_PORT)]),
        resources: Some(ResourceRequirements {
            requests: some(&resources.requests),
            limits: some(&resources.limits),
            ..Default::default()
        }),
        readiness_probe: Some(probe("/readyz", 5, 3)),
        liveness_probe: Some(probe("/livez", 10, 6)),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            run_as_non_root: Some(true),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), ..Default::default() }),
            ..Default::default()
        }),
        volume_mounts: Some(mounts),
        ..Default::default()
    };
    let placement = &settings.placement;
    let pod = PodSpec {
        containers: vec![container],
        service_account_name: Some(names.base.clone()),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        termination_grace_period_seconds: Some(i64::from(SHUTDOWN_DELAY + DRAIN + 5)),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(65532),
            run_as_group: Some(65532),
            fs_group: Some(65532),
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), ..Default::default() }),
            ..Default::default()
        }),
        volumes: Some(volumes),
        node_selector: (!placement.node_selector.is_empty()).then(|| placement.node_selector.clone()),
        tolerations: (!placement.tolerations.is_empty())
            .then(|| placement.tolerations.iter().map(toleration).collect()),
        affinity: placement.affinity.clone(),
        topology_spread_constraints: spread(names, settings),
        ..Default::default()
    };
    let deployment = Deployment {
        metadata: metadata(names, &names.controller_namespace, &names.base),
        spec: DeploymentSpec {
            replicas: Some(settings.replicas),
            revision_history_limit: Some(2),
            selector: LabelSelector { match_labels: Some(selector(names)), ..Default::default() },
            // A new proxy serves before an old one goes: clients reconnect, nothing else.
            strategy: Some(DeploymentStrategy {
                type_: Some("RollingUpdate".to_owned()),
                rolling_update: Some(RollingUpdateDeployment {
                    max_surge: Some(IntOrString::Int(1)),
                    max_unavailable: Some(IntOrString::Int(0)),
                }),
            }),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta { labels: Some(labels(names)), ..Default::default() }),
                spec: Some(pod),
            },
            ..Default::default()
        },
        ..Default::default()
    };
    Desired::new(Kind::Deployment, &deployment)
}

/// The default for an image (`SetDefaults_Container` in `pkg/apis/core/v1/defaults.go`): what moves is pulled each time.
fn pull_policy(image: &str) -> &'static str {
    // A port of the registry is no tag.
    let name = image.rsplit('/').next().unwrap_or_default();
    match name.split_once(':') {
        _ if image.contains('@') => "IfNotPresent",
        None | Some((_, "latest")) => "Always",
        Some(_) => "IfNotPresent",
    }
}

fn probe(path: &str, period: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String("metrics".to_owned()),
            ..Default::default()
        }),
        period_seconds: Some(period),
        // The proxy gives its upstream 5 s.
        timeout_seconds: Some(6),
        failure_threshold: Some(failures),
        ..Default::default()
    }
}

fn secret_volume(name: &str, secret: &str, items: Option<Vec<KeyToPath>>) -> Volume {
    Volume {
        name: name.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret.to_owned()),
            default_mode: Some(0o440),
            items,
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Room for the temporary files of snapshots, two of the tenant's size at most. A limit of its own would have the pod evicted
/// where a full disk refuses a snapshot.
fn scratch_volume() -> Volume {
    Volume { name: "scratch".to_owned(), empty_dir: Some(EmptyDirVolumeSource::default()), ..Default::default() }
}

fn scratch() -> VolumeMount {
    VolumeMount { name: "scratch".to_owned(), mount_path: Paths::SCRATCH.to_owned(), ..Default::default() }
}

fn mount(name: &str, path: &str) -> VolumeMount {
    VolumeMount { name: name.to_owned(), mount_path: path.to_owned(), read_only: Some(true), ..Default::default() }
}

fn toleration(wanted: &crate::api::Toleration) -> Toleration {
    let crate::api::Toleration { key, operator, value, effect, toleration_seconds } = wanted.clone();
    Toleration { key: Some(key), operator, value, effect, toleration_seconds }
}

/// What the tenant says, else over the nodes.
fn spread(names: &Names, settings: &Settings) -> Option<Vec<TopologySpreadConstraint>> {
    let wished = &settings.placement.topology_spread_constraints;
    if !wished.is_empty() {
        return Some(wished.clone());
    }
    (settings.replicas > 1).then(|| {
        vec![TopologySpreadConstraint {
            max_skew: 1,
            topology_key: "kubernetes.io/hostname".to_owned(),
            when_unsatisfiable: "ScheduleAnyway".to_owned(),
            label_selector: Some(LabelSelector {
                match_labels: Some(BTreeMap::from_iter(selector(names))),
                ..Default::default()
            }),
            ..Default::default()
        }]
    })
}
