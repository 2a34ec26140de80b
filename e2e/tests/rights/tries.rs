//! What a tenant may try with each field.

use serde_json::{Value, json};

/// What one object with a hostile field comes to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    /// It is refused with a message that holds this: by kube-apiserver where the controller's webhook is asked, and where it is
    /// not, in the object's conditions at the latest.
    Refused(&'static str),
    /// The same, of one client or target alone.
    InPart(&'static str),
    /// It is accepted, and comes to nothing that is not the tenant's.
    Kept,
}

use Outcome::{InPart, Kept, Refused};

/// The tries with one field, or with all fields below it.
pub(crate) struct Case {
    pub(crate) field: &'static str,
    /// Whether it is for all that is below, too: fields as a pod has them.
    pub(crate) below: bool,
    pub(crate) tries: Vec<(Value, Outcome)>,
}

fn case(field: &'static str, tries: Vec<(Value, Outcome)>) -> Case {
    Case { field, below: false, tries }
}

fn wish(prefix: &str, outcome: Outcome) -> (Value, Outcome) {
    (json!({"upstreamRef": {"name": "generous"}, "prefix": prefix}), outcome)
}

fn client(client: Value, outcome: Outcome) -> (Value, Outcome) {
    (json!({"clients": [client]}), outcome)
}

fn limit(name: &str, value: Value) -> Vec<(Value, Outcome)> {
    vec![(json!({"limits": {name: value}}), Refused("allows at most"))]
}

fn toleration(toleration: Value, outcome: Outcome) -> (Value, Outcome) {
    (json!({"placement": {"tolerations": [toleration]}}), outcome)
}

/// Every field of EtcdProxy. `victim` is the prefix of another tenant.
pub(crate) fn of_proxy(victim: &str) -> Vec<Case> {
    let no_toleration = Refused("does not allow tolerating taint");
    let mut cases = vec![
        case(
            "spec.upstreamRef.name",
            vec![
                (json!({"upstreamRef": {"name": "private"}}), Refused("allowedNamespaces")),
                (json!({"upstreamRef": {"name": "nobodys"}}), Refused("no EtcdUpstream of this name")),
                (json!({"upstreamRef": {"name": "../etcdproxies/own"}}), Refused("spec.upstreamRef.name")),
                // Names that would be paths.
                (json!({"upstreamRef": {"name": "default?watch=true"}}), Refused("spec.upstreamRef.name")),
                (json!({"upstreamRef": {"name": "private/status"}}), Refused("spec.upstreamRef.name")),
            ],
        ),
        case(
            "spec.mode",
            vec![
                (json!({"mode": "Sidecar"}), Refused("would put a credential for the whole etcd into this namespace")),
                (
                    json!({"mode": "Sidecar", "upstreamRef": {"name": "generous"}}),
                    Refused("would put a credential for the whole etcd into this namespace"),
                ),
                (json!({"mode": "Privileged"}), Refused("Unsupported value")),
            ],
        ),
        case(
            "spec.replicas",
            vec![
                (json!({"replicas": 100}), Refused("allows at most")),
                (json!({"replicas": 0}), Refused("greater than or equal to 1")),
            ],
        ),
        case(
            "spec.resources.requests{}",
            vec![
                (json!({"resources": {"requests": {"cpu": "1000"}}}), Refused("allows at most")),
                (json!({"resources": {"requests": {"nvidia.com/gpu": "1"}}}), Refused("only cpu and memory")),
            ],
        ),
        case(
            "spec.resources.limits{}",
            vec![
                (json!({"resources": {"limits": {"memory": "1Ti"}}}), Refused("allows at most")),
                (json!({"resources": {"limits": {"ephemeral-storage": "1Gi"}}}), Refused("only cpu and memory")),
            ],
        ),
        case(
            "spec.placement.nodeSelector{}",
            vec![
                (
                    json!({"placement": {"nodeSelector": {"node-role.kubernetes.io/control-plane": ""}}}),
                    Refused("does not allow this label"),
                ),
                (
                    json!({"placement": {"nodeSelector": {"kubernetes.io/hostname": "mine"}}}),
                    Refused("does not allow this label"),
                ),
            ],
        ),
        case(
            "spec.placement.tolerations[].key",
            vec![
                toleration(json!({"key": "node-role.kubernetes.io/control-plane"}), no_toleration),
                toleration(json!({"key": ""}), Refused("tolerations[0].key")),
                toleration(json!({"operator": "Exists"}), Refused("tolerations[0].key")),
            ],
        ),
        case(
            "spec.placement.tolerations[].operator",
            vec![
                toleration(
                    json!({"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}),
                    no_toleration,
                ),
                toleration(json!({"key": "a", "operator": "Any"}), Refused("Unsupported value")),
            ],
        ),
        case(
            "spec.placement.tolerations[].value",
            vec![toleration(json!({"key": "dedicated", "value": "victim"}), no_toleration)],
        ),
        case(
            "spec.placement.tolerations[].effect",
            vec![toleration(json!({"key": "a", "effect": "NoExecute"}), no_toleration)],
        ),
        case(
            "spec.placement.tolerations[].tolerationSeconds",
            vec![toleration(
                json!({"key": "node.kubernetes.io/unreachable", "effect": "NoExecute", "tolerationSeconds": -1}),
                no_toleration,
            )],
        ),
        Case {
            field: "spec.placement.affinity",
            below: true,
            tries: vec![
                (
                    json!({"placement": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                        {"matchExpressions": [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}]},
                    ]}}}}}),
                    Refused("affinity: Forbidden"),
                ),
                (
                    json!({"placement": {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                        {"topologyKey": "kubernetes.io/hostname", "namespaces": ["etcd-proxy-system"], "labelSelector": {}},
                    ]}}}}),
                    Refused("affinity: Forbidden"),
                ),
                (json!({"placement": {"affinity": {}}}), Refused("affinity: Forbidden")),
            ],
        },
        Case {
            field: "spec.placement.topologySpreadConstraints",
            below: true,
            tries: vec![(
                json!({"placement": {"topologySpreadConstraints": [
                    {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "DoNotSchedule"},
                ]}}),
                Refused("topologySpreadConstraints: Forbidden"),
            )],
        },
        case(
            "spec.prefix",
            vec![
                (json!({"prefix": victim}), Refused("where prefixes are allocated")),
                (json!({"prefix": "/wished/mine/"}), Refused("allows no wishes")),
                // Also where wishes are allowed.
                wish(victim, Refused("where prefixes are allocated")),
                wish(&format!("{victim}child/"), Refused("where prefixes are allocated")),
                wish("/etcd-proxies/", Refused("where prefixes are allocated")),
                wish("/etcd-proxies/victim/", Refused("where prefixes are allocated")),
                wish("/wished/victim/", Refused("overlaps")),
                wish("/wished/victim/child/", Refused("overlaps")),
                wish("/wished/", Refused("overlaps")),
                wish("/etcd-proxy.meta/", Refused("where the proxies keep their own records")),
                wish("/etcd-proxy.meta/claims/", Refused("where the proxies keep their own records")),
                wish("/registry/", Refused("/registry/")),
                wish("/registry/secrets/", Refused("/registry/")),
                wish("/", Refused("spec.prefix")),
                wish("//", Refused("spec.prefix")),
                wish("", Refused("spec.prefix")),
                wish("wished/victim/", Refused("spec.prefix")),
                wish("/wished/victim", Refused("spec.prefix")),
                wish("/wished/\u{0}/", Refused("spec.prefix")),
                // Bytes mean nothing but themselves.
                wish("/elsewhere/../wished/victim/", Kept),
                wish("/elsewhere/%2e%2e/", Kept),
            ],
        ),
        case(
            "spec.limits.storage",
            vec![
                (json!({"limits": {"storage": "4Ei"}}), Refused("allows at most")),
                (json!({"limits": {"storage": "0"}}), Refused("greater than 0")),
                (json!({"limits": {"storage": "-1"}}), Refused("spec.limits.storage")),
            ],
        ),
        case(
            "spec.compaction.policy",
            vec![
                (json!({"compaction": {"policy": "Physical"}}), Refused("Unsupported value")),
                (json!({"compaction": {"policy": "Virtual"}}), Kept),
                (json!({"compaction": {"policy": "Deny"}}), Kept),
            ],
        ),
        case(
            "spec.tls.validity",
            vec![
                (json!({"tls": {"validity": "1s"}}), Refused("between 60s and 87600h")),
                (json!({"tls": {"validity": "1000000h"}}), Refused("between 60s and 87600h")),
                (json!({"tls": {"validity": "87600h"}}), Kept),
            ],
        ),
        case(
            "spec.tls.caValidity",
            vec![
                (json!({"tls": {"caValidity": "1s", "validity": "1s"}}), Refused("between 5m and 262800h")),
                (json!({"tls": {"caValidity": "1h"}}), Refused("may not exceed caValidity")),
                (json!({"tls": {"caValidity": "262800h"}}), Kept),
            ],
        ),
        case(
            "spec.tls.caRotation",
            vec![
                (json!({"tls": {"caRotation": -1}}), Refused("caRotation")),
                (json!({"tls": {"caRotation": 1_000_000_000_001_i64}}), Refused("caRotation")),
                // Its own CA, and nobody else's.
                (json!({"tls": {"caRotation": 1_000_000_000}}), Kept),
            ],
        ),
        case(
            "spec.clients[].name",
            vec![
                client(json!({"name": "default"}), Refused("is the client that every EtcdProxy has")),
                client(json!({"name": "../../victim/main/default"}), Refused("clients[0].name")),
                client(json!({"name": "x/O=system:masters"}), Refused("clients[0].name")),
                client(json!({"name": "x,CN=root"}), Refused("clients[0].name")),
                client(json!({"name": "*"}), Refused("clients[0].name")),
                client(json!({"name": ""}), Refused("clients[0].name")),
                // A name in the tenant's own part of the common name.
                client(json!({"name": "root"}), Kept),
                client(json!({"name": "etcd-proxy"}), Kept),
            ],
        ),
        case(
            "spec.clients[].namespace",
            vec![
                client(json!({"name": "x", "namespace": "victim"}), InPart("has not consented")),
                client(json!({"name": "x", "namespace": "kube-system"}), InPart("has not consented")),
                client(json!({"name": "x", "namespace": "default"}), InPart("has not consented")),
                client(
                    json!({"name": "x", "namespace": "etcd-proxy-system"}),
                    InPart("the controller's own namespace"),
                ),
                client(json!({"name": "x", "namespace": "no-such-namespace"}), InPart("has not consented")),
                client(json!({"name": "x", "namespace": "../victim"}), Refused("clients[0].namespace")),
                client(json!({"name": "x", "namespace": "*"}), Refused("clients[0].namespace")),
            ],
        ),
        case(
            "spec.clients[].secretName",
            vec![
                client(
                    json!({"name": "x", "namespace": "victim", "secretName": "main-etcd-client"}),
                    InPart("has not consented"),
                ),
                client(json!({"name": "x", "namespace": "victim", "secretName": "diary"}), InPart("has not consented")),
                client(
                    json!({"name": "x", "namespace": "etcd-proxy-system", "secretName": "etcd-upstream-client"}),
                    InPart("the controller's own namespace"),
                ),
                client(
                    json!({"name": "x", "secretName": "../victim/main-etcd-client"}),
                    Refused("clients[0].secretName"),
                ),
                // Foreign objects of its own namespace are not taken over, and what is its own already is its own.
                client(json!({"name": "x", "secretName": "decoy"}), Kept),
                client(json!({"name": "x", "secretName": "own-etcd-client"}), Kept),
            ],
        ),
        case(
            "spec.clients[].configMapName",
            vec![
                client(
                    json!({"name": "x", "namespace": "victim", "configMapName": "main-etcd-ca"}),
                    InPart("has not consented"),
                ),
                client(
                    json!({"name": "x", "namespace": "kube-system", "configMapName": "extension-apiserver-authentication"}),
                    InPart("has not consented"),
                ),
                client(json!({"name": "x", "configMapName": "kube-root-ca.crt"}), Kept),
                client(json!({"name": "x", "configMapName": "../x"}), Refused("clients[0].configMapName")),
            ],
        ),
        case(
            "spec.deletionPolicy",
            vec![
                (
                    json!({"deletionPolicy": "Delete", "upstreamRef": {"name": "generous"}, "prefix": "/wished/victim/"}),
                    Refused("overlaps"),
                ),
                (json!({"deletionPolicy": "Purge"}), Refused("Unsupported value")),
                (json!({"deletionPolicy": "Delete"}), Kept),
            ],
        ),
    ];
    for (field, name) in [
        ("spec.limits.keys", "keys"),
        ("spec.limits.requestsPerSecond", "requestsPerSecond"),
        ("spec.limits.burst", "burst"),
        ("spec.limits.concurrentRequests", "concurrentRequests"),
        ("spec.limits.watches", "watches"),
        ("spec.limits.leases", "leases"),
    ] {
        let mut tries = limit(name, json!(1_000_000));
        tries.push((json!({"limits": {name: 0}}), Refused("greater than or equal to 1")));
        cases.push(case(field, tries));
    }
    cases
}

/// Every field of EtcdProxyGrant: a namespace may consent to what it likes, and gets nothing by that.
pub(crate) fn of_grant() -> Vec<Case> {
    let grant = |namespace: &str, name: &str, kind: &str, target: &str| json!({"from": [{"namespace": namespace, "etcdProxy": name}], "targets": [{"kind": kind, "name": target}]});
    vec![
        case(
            "spec.from[].namespace",
            vec![
                (grant("victim", "main", "Secret", "main-etcd-client"), Kept),
                (grant("*", "main", "Secret", "main-etcd-client"), Kept),
                (grant("", "main", "Secret", "x"), Refused("from[0].namespace")),
            ],
        ),
        case(
            "spec.from[].etcdProxy",
            vec![
                (grant("victim", "*", "Secret", "main-etcd-client"), Kept),
                (grant("victim", "", "Secret", "x"), Refused("from[0].etcdProxy")),
            ],
        ),
        case(
            "spec.targets[].kind",
            vec![
                (grant("victim", "main", "Pod", "x"), Refused("Unsupported value")),
                (grant("victim", "main", "ConfigMap", "main-etcd-ca"), Kept),
            ],
        ),
        case(
            "spec.targets[].name",
            vec![
                (grant("victim", "main", "Secret", "*"), Kept),
                (grant("victim", "main", "Secret", "../etcd-proxy-system/etcd-upstream-client"), Kept),
                (grant("victim", "main", "Secret", ""), Refused("targets[0].name")),
            ],
        ),
    ]
}
