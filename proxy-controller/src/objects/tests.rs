use std::{collections::BTreeSet, ffi::OsString};

use etcd_proxy::{
    cli::{Invocation, command, parse},
    config::Config,
};
use k8s_openapi::{api::apps::v1::Deployment, apimachinery::pkg::api::resource::Quantity};
use serde_json::json;

use super::*;
use crate::{
    api::{EtcdProxy, EtcdUpstream},
    policy,
};

const UID: &str = "0d8a2c53-8c6e-4f8a-9d7c-0123456789ab";

fn names() -> Names {
    Names::new("team-a", "pizza", UID, "etcd-proxy-system", "cluster.local")
}

fn proxy(spec: Value) -> EtcdProxy {
    serde_json::from_value(json!({
        "apiVersion": "etcd.programming-kubernetes.info/v1alpha1",
        "kind": "EtcdProxy",
        "metadata": {"name": "pizza", "namespace": "team-a", "uid": UID},
        "spec": spec,
    }))
    .unwrap()
}

fn upstream(spec: Value) -> EtcdUpstream {
    serde_json::from_value(json!({
        "apiVersion": "etcd.programming-kubernetes.info/v1alpha1",
        "kind": "EtcdUpstream",
        "metadata": {"name": "default"},
        "spec": spec,
    }))
    .unwrap()
}

fn with_tls() -> EtcdUpstream {
    upstream(json!({
        "endpoints": ["https://etcd-0:2379", "https://etcd-1:2379"],
        "tls": {"caSecretRef": {"name": "etcd-ca"}, "clientSecretRef": {"name": "etcd-client"}},
        "maxReplicas": 3,
    }))
}

/// What the controller writes has to be what the proxy reads: flag by flag.
#[test]
fn the_proxy_understands_its_arguments() {
    let upstream = with_tls();
    let settings = Settings::new(&proxy(json!({"replicas": 2})), &upstream, "etcd-proxy:test");
    let names = names();
    let arguments = arguments(&names, &settings, &upstream.spec, "/etcd-proxies/a/", &[names.common_name("default")]);
    let line = std::iter::once("etcd-proxy".to_owned()).chain(arguments.clone()).map(OsString::from);
    let Invocation::Serve(args) = parse(line, []).unwrap() else { panic!("{arguments:?}") };
    let config = Config::try_from(*args).unwrap();
    assert_eq!(config.tenancy.prefix.as_bytes(), b"/etcd-proxies/a/");
    assert!(arguments.contains(&"--max-watches=5000".to_owned()), "counts are shared out: {arguments:?}");
    assert!(arguments.contains(&"--quota-bytes=536870912".to_owned()), "the store is not: {arguments:?}");
}

/// A sidecar is configured by environment; a name that is none would be ignored.
#[test]
fn the_proxy_knows_every_variable_of_a_sidecar() {
    let upstream = with_tls();
    let settings = Settings::new(&proxy(json!({"mode": "Sidecar"})), &upstream, "");
    let Desired { body, .. } = sidecar_config(&names(), &settings, &upstream.spec, "/a/");
    let command = command();
    let known: BTreeSet<_> =
        command.get_subcommands().flat_map(|sub| sub.get_arguments()).filter_map(|arg| arg.get_env()).collect();
    let data = body["data"].as_object().unwrap();
    assert!(data.len() > 10);
    for name in data.keys() {
        assert!(known.contains(std::ffi::OsStr::new(name)), "{name}");
    }
}

#[test]
fn pods_may_do_nothing_that_they_need_not() {
    let upstream = with_tls();
    let settings = Settings::new(&proxy(json!({})), &upstream, "etcd-proxy:test");
    let Desired { body, .. } = deployment(&names(), &settings, &upstream.spec, vec![]);
    let deployment: Deployment = serde_json::from_value(body).unwrap();
    let pod = deployment.spec.template.spec.unwrap();
    assert_eq!(pod.automount_service_account_token, Some(false));
    let container = &pod.containers[0];
    let security = container.security_context.as_ref().unwrap();
    assert_eq!(security.read_only_root_filesystem, Some(true));
    assert_eq!(security.allow_privilege_escalation, Some(false));
    assert_eq!(security.capabilities.as_ref().unwrap().drop.as_deref(), Some(&["ALL".to_owned()][..]));
    let writable: Vec<_> =
        container.volume_mounts.as_ref().unwrap().iter().filter(|mount| mount.read_only != Some(true)).collect();
    assert_eq!(writable.iter().map(|mount| &*mount.mount_path).collect::<Vec<_>>(), [Paths::SCRATCH]);
    let (secrets, others): (Vec<_>, Vec<_>) =
        pod.volumes.unwrap().into_iter().partition(|volume| volume.secret.is_some());
    assert!(others.iter().all(|volume| volume.name == "scratch" && volume.empty_dir.is_some()) && others.len() == 1);
    let secrets: Vec<_> = secrets.into_iter().map(|volume| volume.secret.unwrap().secret_name.unwrap()).collect();
    assert_eq!(secrets, [names().serving(), "etcd-ca".to_owned(), "etcd-client".to_owned()], "and never the CA's key");
}

/// Whatever a tenant writes, only these parts of a pod follow it.
#[test]
fn a_tenant_moves_only_what_it_may() {
    let upstream = with_tls();
    let of = |spec| {
        let settings = Settings::new(&proxy(spec), &upstream, "etcd-proxy:test");
        deployment(&names(), &settings, &upstream.spec, vec![]).body
    };
    let plain = of(json!({}));
    let wished = of(json!({
        "replicas": 3,
        "resources": {"limits": {"memory": "64Mi"}},
        "placement": {"nodeSelector": {"a": "b"}, "tolerations": [{"key": "k"}]},
    }));
    let mut differing = Vec::new();
    difference("", &plain, &wished, &mut differing);
    assert_eq!(
        differing,
        [
            "/spec/replicas",
            "/spec/template/spec/containers/0/resources/limits/memory",
            "/spec/template/spec/nodeSelector",
            "/spec/template/spec/tolerations",
            "/spec/template/spec/topologySpreadConstraints",
        ]
    );
}

/// All that a process may take fits into its pod's memory; see "What is bounded" in docs/etcd-proxy.md.
#[test]
fn what_a_proxy_keeps_of_answers_fits_its_memory_limit() {
    let upstream = with_tls();
    for (limits, flag) in
        [(json!({}), "48348364"), (json!({"memory": "400M"}), "134217728"), (json!({"memory": "64Mi"}), "16777216")]
    {
        let mut upstream = upstream.clone();
        upstream.spec.max_resources = [("memory".to_owned(), Quantity("1Gi".to_owned()))].into();
        let settings = Settings::new(&proxy(json!({"resources": {"limits": limits}})), &upstream, "etcd-proxy:test");
        assert_eq!(settings.memory_flag(), Some(("max-buffered-bytes", flag.to_owned())), "{limits}");
    }
}

fn difference(path: &str, a: &Value, b: &Value, found: &mut Vec<String>) {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            for key in a.keys().chain(b.keys()).collect::<BTreeSet<_>>() {
                let (a, b) = (a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null));
                difference(&format!("{path}/{key}"), a, b, found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (index, (a, b)) in a.iter().zip(b).enumerate() {
                difference(&format!("{path}/{index}"), a, b, found);
            }
        }
        _ if a != b => found.push(path.to_owned()),
        _ => {}
    }
}

#[test]
fn names_are_labels_and_never_come_again() {
    let long = "n".repeat(63);
    for (namespace, name, uid) in [("team-a", "pizza", UID), ("0", "a", "x"), (&long, &long, "y")] {
        let base = base_name(namespace, name, uid);
        assert!(base.len() + "-serving".len() <= 63, "{base}");
        assert!(base.starts_with(|c: char| c.is_ascii_lowercase()), "{base}");
        assert_ne!(base, base_name(namespace, name, "another"));
    }
}

#[test]
fn a_name_that_tenants_use_is_in_the_certificate() {
    let names = names();
    let covered = names.server_names();
    for url in [names.endpoint(), names.advertised()] {
        let host = url.trim_start_matches("https://").trim_end_matches(":2379").to_owned();
        assert!(covered.contains(&host), "{host} is not among {covered:?}");
    }
}

/// Both sides say where a client's things go: the policy that judges, and the objects that are written.
#[test]
fn the_policy_and_the_objects_agree_on_names() {
    let targets = policy::client_targets(&proxy(json!({})));
    let Desired { id, .. } = client_secret(&names(), &targets[0], "chain", "key", "bundle");
    assert_eq!((id.namespace.as_str(), id.name.as_str()), ("team-a", "pizza-etcd-client"));
}

#[test]
fn secrets_are_not_shown() {
    let desired = serving_secret(&names(), "chain", "topsecret", "bundle");
    assert!(!format!("{desired:?}").contains("topsecret"));
}
