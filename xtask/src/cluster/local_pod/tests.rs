use serde_json::json;

use super::*;
use crate::cluster::mounts::{Item, Kind, Source};

/// A Deployment as the API server shows it, defaults and all.
fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"namespace": "system", "name": "base", "uid": "1", "managedFields": []},
        "spec": {
            "replicas": 1, "strategy": {"type": "RollingUpdate"}, "selector": {},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {
                    "serviceAccountName": "base", "serviceAccount": "base", "automountServiceAccountToken": false,
                    "dnsPolicy": "ClusterFirst", "restartPolicy": "Always", "schedulerName": "default-scheduler",
                    "terminationGracePeriodSeconds": 30, "securityContext": {"runAsNonRoot": true},
                    "containers": [{
                        "name": "etcd-proxy", "image": "etcd-proxy:0.1.0", "imagePullPolicy": "IfNotPresent",
                        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                        "args": [
                            "serve",
                            "--endpoints=https://127.0.0.1:2379",
                            "--cacert=/etc/etcd-proxy/upstream-ca/ca.crt",
                            "--prefix=/etc/etcd-proxy/serving/is-a-prefix/",
                            "--listen-client-urls=https://0.0.0.0:2379",
                            "--listen-metrics-urls=http://0.0.0.0:2381",
                            "--advertise-client-urls=https://base.system.svc:2379",
                            "--cert-file=/etc/etcd-proxy/serving/tls.crt",
                            "--client-cert-auth",
                            "--name=$(POD_NAME).$(POD_NAMESPACE)",
                        ],
                        "env": [
                            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
                            {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}},
                        ],
                        "ports": [
                            {"name": "client", "containerPort": 2379, "protocol": "TCP"},
                            {"name": "metrics", "containerPort": 2381, "protocol": "TCP"},
                        ],
                        "readinessProbe": {"httpGet": {"path": "/readyz", "port": "metrics", "scheme": "HTTP"}, "periodSeconds": 5},
                        "volumeMounts": [
                            {"name": "serving", "mountPath": "/etc/etcd-proxy/serving", "readOnly": true},
                            {"name": "upstream-ca", "mountPath": "/etc/etcd-proxy/upstream-ca", "readOnly": true},
                        ],
                    }],
                    "volumes": [
                        {"name": "serving", "secret": {"secretName": "base-serving", "defaultMode": 288}},
                        {"name": "upstream-ca", "secret": {"secretName": "upstream", "items": [{"key": "ca", "path": "ca.crt"}]}},
                    ],
                },
            },
        },
    })
}

fn place() -> Place {
    Place {
        pod: "base-0".to_owned(),
        volumes: "/site/volumes/base-0".into(),
        listen: "192.0.2.2:4001".parse().unwrap(),
        metrics: "127.0.0.1:4002".parse().unwrap(),
        advertise: None,
    }
}

fn run(deployment: &Value) -> Result<LocalPod> {
    local_pod(deployment, &ETCD_PROXY, &place())
}

/// The Deployment with one value put at a path, which must be refused with these words.
fn refused(path: &str, key: &str, value: Value, why: &[&str]) {
    let mut changed = deployment();
    let parent = changed.pointer_mut(path).unwrap_or_else(|| panic!("{path}"));
    match parent {
        Value::Array(list) => list.push(value),
        parent => parent[key] = value,
    }
    let error = format!("{:#}", run(&changed).expect_err(path));
    assert!(error.contains("Deployment system/base"), "{error}");
    for words in why {
        assert!(error.contains(words), "{path}: {error}");
    }
}

const POD: &str = "/spec/template/spec";
const CONTAINER: &str = "/spec/template/spec/containers/0";
const ARGS: &str = "/spec/template/spec/containers/0/args";

#[test]
fn only_addresses_and_folders_are_replaced() {
    let pod = run(&deployment()).unwrap();
    assert_eq!(
        pod.args,
        [
            "serve",
            "--endpoints=https://127.0.0.1:2379",
            "--cacert=/site/volumes/base-0/upstream-ca/ca.crt",
            "--prefix=/etc/etcd-proxy/serving/is-a-prefix/",
            "--listen-client-urls=https://192.0.2.2:4001",
            "--listen-metrics-urls=http://127.0.0.1:4002",
            "--advertise-client-urls=https://base.system.svc:2379",
            "--cert-file=/site/volumes/base-0/serving/tls.crt",
            "--client-cert-auth",
            "--name=base-0.system",
        ]
    );
    assert_eq!(pod.env, [("POD_NAME", "base-0"), ("POD_NAMESPACE", "system")].map(|(a, b)| (a.into(), b.into())));
    assert_eq!((pod.namespace.as_str(), pod.name.as_str(), pod.service_account.as_str()), ("system", "base-0", "base"));
    assert_eq!(pod.image, "etcd-proxy:0.1.0");
    assert_eq!(pod.readiness.as_deref(), Some("http://127.0.0.1:4002/readyz"));
    for (port, address) in [("client", "192.0.2.2:4001"), ("2379", "192.0.2.2:4001"), ("metrics", "127.0.0.1:4002")] {
        assert_eq!(pod.ports[port], address.parse().unwrap(), "{port}");
    }
}

#[test]
fn the_advertised_url_is_replaced_if_wanted() {
    let place = Place { advertise: Some("https://192.0.2.2:4001".to_owned()), ..place() };
    let pod = local_pod(&deployment(), &ETCD_PROXY, &place).unwrap();
    assert!(pod.args.contains(&"--advertise-client-urls=https://192.0.2.2:4001".to_owned()), "{:?}", pod.args);
}

#[test]
fn volumes_hold_what_the_pod_would_see() {
    let mut deployment = deployment();
    let volumes = deployment.pointer_mut("/spec/template/spec/volumes").unwrap().as_array_mut().unwrap();
    volumes.push(json!({"name": "both", "projected": {"defaultMode": 256, "sources": [
        {"secret": {"name": "s"}}, {"configMap": {"name": "c", "optional": true}},
    ]}}));
    volumes.push(json!({"name": "ca", "configMap": {"name": "ca", "defaultMode": 420}}));
    volumes.push(json!({"name": "empty", "emptyDir": {"medium": "Memory"}}));
    let mounts = deployment.pointer_mut(&format!("{CONTAINER}/volumeMounts")).unwrap().as_array_mut().unwrap();
    for name in ["both", "ca", "empty"] {
        mounts.push(json!({"name": name, "mountPath": format!("/{name}")}));
    }
    let source = |kind, name: &str, optional| Source { kind, name: name.to_owned(), items: None, optional };
    let objects = |sources, mode| Content::Objects(Projection { namespace: "system".to_owned(), sources, mode });
    let items = vec![Item { key: "ca".to_owned(), path: "ca.crt".to_owned(), mode: None }];
    let expected = [
        ("serving", objects(vec![source(Kind::Secret, "base-serving", false)], 0o440)),
        ("upstream-ca", objects(vec![Source { items: Some(items), ..source(Kind::Secret, "upstream", false) }], 0o644)),
        ("both", objects(vec![source(Kind::Secret, "s", false), source(Kind::ConfigMap, "c", true)], 0o400)),
        ("ca", objects(vec![source(Kind::ConfigMap, "ca", false)], 0o644)),
        ("empty", Content::Empty),
    ];
    let expected = expected.map(|(name, content)| (PathBuf::from("/site/volumes/base-0").join(name), content));
    assert_eq!(run(&deployment).unwrap().volumes, expected);
}

#[test]
fn unknown_arguments_are_named() {
    for (argument, why) in [
        ("--surprise=1", "not known"),
        ("--surprise", "not known"),
        ("extra", "no flag"),
        ("serve", "no flag"),
        ("-v", "no flag"),
        ("--cert-file=/elsewhere/tls.crt", "no volume is mounted there"),
        ("--key-file=/etc/etcd-proxy/serving-not/tls.key", "no volume is mounted there"),
        ("--key-file", "no value"),
        ("--allow-plaintext=perhaps", "neither true nor false"),
        ("--listen-client-urls=https://0.0.0.0:2379", "twice"),
        ("--listen-client-urls=https://127.0.0.1:99", "all of the pod's addresses"),
        ("--listen-client-urls=https://0.0.0.0:98,https://0.0.0.0:99", "not one address"),
        ("--listen-client-urls=unix:///run/etcd.sock", "not one address"),
    ] {
        refused(ARGS, "", json!(argument), &[argument, why]);
    }
}

#[test]
fn unknown_variables_are_named() {
    let env = format!("{CONTAINER}/env");
    refused(&env, "", json!({"name": "LD_PRELOAD", "value": "x"}), &["LD_PRELOAD"]);
    let node = json!({"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}});
    refused(&env, "", node, &["POD_NAME", "spec.nodeName"]);
    let secret = json!({"name": "POD_NAME", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}});
    refused(&env, "", secret, &["secretKeyRef"]);
    refused(CONTAINER, "envFrom", json!([]), &["envFrom"]);
}

#[test]
fn unknown_volumes_and_mounts_are_named() {
    let volumes = format!("{POD}/volumes");
    refused(&volumes, "", json!({"name": "disk", "hostPath": {"path": "/"}}), &["hostPath"]);
    refused(&volumes, "", json!({"name": "extra", "emptyDir": {}}), &["\"extra\"", "not mounted"]);
    refused(&format!("{volumes}/0"), "configMap", json!({"name": "c"}), &["\"serving\"", "exactly one"]);
    let token = json!({"sources": [{"serviceAccountToken": {"path": "token"}}]});
    refused(&volumes, "", json!({"name": "token", "projected": token}), &["serviceAccountToken"]);
    let mounts = format!("{CONTAINER}/volumeMounts");
    refused(&mounts, "", json!({"name": "none", "mountPath": "/none"}), &["\"none\""]);
    refused(&format!("{mounts}/0"), "subPath", json!("tls.crt"), &["subPath"]);
}

#[test]
fn unknown_fields_are_named() {
    refused(POD, "initContainers", json!([]), &["initContainers"]);
    refused(POD, "hostNetwork", json!(true), &["hostNetwork"]);
    refused(CONTAINER, "lifecycle", json!({}), &["lifecycle"]);
    refused(CONTAINER, "command", json!(["/bin/sh", "-c"]), &["/bin/sh"]);
    refused(CONTAINER, "name", json!("sidecar"), &["sidecar"]);
    refused(CONTAINER, "readinessProbe", json!({"exec": {"command": []}}), &["readinessProbe"]);
    let sidecar = json!({"name": "second", "image": "x"});
    refused(&format!("{POD}/containers"), "", sidecar, &["2 containers"]);
    let port = json!({"name": "extra", "containerPort": 1});
    refused(&format!("{CONTAINER}/ports"), "", port, &["port 1"]);
}

#[test]
fn the_programs_own_name_may_be_the_command() {
    let mut deployment = deployment();
    deployment.pointer_mut(CONTAINER).unwrap()["command"] = json!(["/usr/local/bin/etcd-proxy"]);
    assert!(run(&deployment).is_ok());
}
