//! One case for each thing that can be wrong with an EtcdProxy, refused at apply with the field that is at fault.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use xtask::{cluster::Kubectl, poll};

use crate::{WAIT, claims, cluster, proxy, refusal};

/// Each of the specs is refused in the namespace, with all of the texts.
fn refused(kubectl: &Kubectl, namespace: &str, cases: &[(Value, &[&str])]) -> Result<()> {
    let mut wrong = Vec::new();
    for (spec, texts) in cases {
        let said = refusal(kubectl, &proxy(namespace, "refused", spec))?;
        for text in *texts {
            if !said.contains(text) {
                wrong.push(format!("{spec}\n  {text:?} is not in\n  {said}"));
            }
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    let stored = kubectl.run(&["get", "etcdproxy", "refused", "--namespace", namespace])?;
    ensure!(stored.stderr.contains("not found"), "{stored:?}");
    Ok(())
}

fn accepted(kubectl: &Kubectl, namespace: &str, name: &str, spec: &Value) -> Result<()> {
    kubectl.apply(&[proxy(namespace, name, spec)]).map(drop)
}

fn wish(prefix: &str) -> Value {
    json!({"upstreamRef": {"name": "wishes"}, "prefix": prefix})
}

#[test]
fn an_upstream_that_is_unknown_or_not_for_the_namespace() -> Result<()> {
    let kubectl = cluster()?.kubectl();
    refused(
        kubectl,
        "tenants",
        &[(
            json!({"upstreamRef": {"name": "nobodys"}}),
            &[
                "EtcdProxy",
                "\"refused\" is invalid",
                "spec.upstreamRef: Not found: \"nobodys\": there is no EtcdUpstream of this name",
            ],
        )],
    )?;
    refused(
        kubectl,
        "strangers",
        &[(
            json!({}),
            &[
                "spec.upstreamRef: Forbidden: EtcdUpstream default does not list namespace strangers in its allowedNamespaces",
            ],
        )],
    )?;
    // The operator lists it, and yet.
    refused(
        kubectl,
        "etcd-proxy-system",
        &[(json!({}), &["spec.upstreamRef: Forbidden: namespace etcd-proxy-system is the controller's own"])],
    )
}

#[test]
fn a_prefix_that_is_somebody_elses() -> Result<()> {
    let cluster = cluster()?;
    let kubectl = cluster.kubectl();
    accepted(kubectl, "rivals", "holder", &wish("/wish/held/here/"))?;
    poll::until("the claim", WAIT, || {
        ensure!(claims(cluster, "/wish/held/here/")?.len() == 1, "there is none");
        Ok(())
    })?;
    let theirs =
        "spec.prefix: Forbidden: is claimed already, or overlaps a prefix that is; wish for another, or for none";
    refused(
        kubectl,
        "tenants",
        &[
            (wish("/wish/held/here/"), &[theirs]),
            (wish("/wish/held/"), &[theirs]),
            (wish("/wish/"), &[theirs]),
            (wish("/wish/held/here/below/"), &[theirs]),
            (wish("/registry/"), &["spec.prefix", "overlaps /registry/, where kube-apiserver keeps its data"]),
            (wish("/registry/pods/"), &["spec.prefix", "overlaps /registry/, where kube-apiserver keeps its data"]),
            (wish("/etcd-proxy.meta/claims/"), &["spec.prefix: Forbidden: overlaps /etcd-proxy.meta/"]),
            (
                wish("/etcd-proxies/"),
                &["spec.prefix: Forbidden: overlaps /etcd-proxies/, where prefixes are allocated"],
            ),
            (wish("/etcd-proxies/rivals/"), &["spec.prefix: Forbidden: overlaps /etcd-proxies/"]),
            (
                wish("/elsewhere/"),
                &["spec.prefix: Forbidden: EtcdUpstream wishes allows prefixes that begin with /wish/"],
            ),
            (json!({"prefix": "/wish/mine/"}), &["spec.prefix: Forbidden: EtcdUpstream default allows no wishes"]),
            (wish("/"), &["spec.prefix: Invalid value"]),
            (wish("/wish/mine"), &["spec.prefix: Invalid value"]),
            (wish("/wish//mine/"), &["spec.prefix: Invalid value"]),
            (wish("wish/mine/"), &["spec.prefix: Invalid value: \"wish/mine/\": must begin and end with /"]),
            (wish("/wish/mi ne/"), &["spec.prefix: Invalid value"]),
        ],
    )?;
    // Beside it, with a name that begins alike.
    accepted(kubectl, "tenants", "beside", &wish("/wish/held/here2/"))
}

#[test]
fn retained_data_without_the_operators_word() -> Result<()> {
    let cluster = cluster()?;
    let kubectl = cluster.kubectl();
    accepted(kubectl, "retained", "left", &wish("/wish/left/"))?;
    poll::until("the claim", WAIT, || {
        ensure!(claims(cluster, "/wish/left/")?.len() == 1, "there is none");
        Ok(())
    })?;
    kubectl.ok(&["delete", "etcdproxy", "left", "--namespace=retained", "--timeout=90s"])?;
    for (namespace, name) in [("tenants", "left"), ("retained", "left"), ("retained", "other")] {
        let said = refusal(kubectl, &proxy(namespace, name, &wish("/wish/left/")))?;
        ensure!(
            said.contains(
                "spec.prefix: Forbidden: holds what an object that is gone has left; only the operator can give it away, in EtcdUpstream wishes (spec.adoptions)"
            ),
            "{said}"
        );
        // Around it and in it, neither.
        for prefix in ["/wish/left/in/", "/wish/left/in/deep/"] {
            let said = refusal(kubectl, &proxy(namespace, name, &wish(prefix)))?;
            ensure!(said.contains("spec.prefix: Forbidden: is claimed already, or overlaps a prefix that is; wish for another, or for none"), "{said}");
        }
    }
    Ok(())
}

#[test]
fn more_than_the_operator_permits() -> Result<()> {
    let kubectl = cluster()?.kubectl();
    let limit = |name: &str, value: Value| json!({"limits": {name: value}});
    refused(
        kubectl,
        "tenants",
        &[
            (
                limit("storage", json!("513Mi")),
                &["spec.limits.storage: Invalid value: \"513Mi\": EtcdUpstream default allows at most 512Mi"],
            ),
            (
                limit("keys", json!(200_001)),
                &["spec.limits.keys: Invalid value: 200001: EtcdUpstream default allows at most 200000"],
            ),
            (
                limit("requestsPerSecond", json!(501)),
                &["spec.limits.requestsPerSecond: Invalid value: 501: EtcdUpstream default allows at most 500"],
            ),
            (
                limit("burst", json!(1001)),
                &["spec.limits.burst: Invalid value: 1001: EtcdUpstream default allows at most 1000"],
            ),
            (
                limit("concurrentRequests", json!(201)),
                &["spec.limits.concurrentRequests: Invalid value: 201: EtcdUpstream default allows at most 200"],
            ),
            (
                limit("watches", json!(10_001)),
                &["spec.limits.watches: Invalid value: 10001: EtcdUpstream default allows at most 10000"],
            ),
            (
                limit("leases", json!(10_001)),
                &["spec.limits.leases: Invalid value: 10001: EtcdUpstream default allows at most 10000"],
            ),
            (limit("storage", json!("0")), &["spec.limits.storage", "must be greater than 0"]),
            (limit("storage", json!("-1")), &["spec.limits.storage", "must be a number of bytes, such as 512Mi"]),
            (limit("storage", json!("much")), &["spec.limits.storage", "must be a number of bytes, such as 512Mi"]),
            (limit("storage", json!(1024)), &["spec.limits.storage", "must be a number of bytes, such as 512Mi"]),
            (limit("keys", json!(0)), &["spec.limits.keys: Invalid value: 0"]),
            (json!({"replicas": 4}), &["spec.replicas: Invalid value: 4: EtcdUpstream default allows at most 3"]),
            (json!({"replicas": 0}), &["spec.replicas: Invalid value: 0"]),
            (
                json!({"resources": {"limits": {"memory": "257Mi"}}}),
                &["spec.resources.limits[memory]: Invalid value: \"257Mi\": EtcdUpstream default allows at most 256Mi"],
            ),
            (
                json!({"resources": {"requests": {"cpu": "1"}}}),
                &["spec.resources.requests[cpu]: Invalid value: \"1\": EtcdUpstream default allows at most 50m"],
            ),
            (
                json!({"resources": {"limits": {"example.com/gpu": "1"}}}),
                &["spec.resources.limits", "only cpu and memory may be named"],
            ),
            // To Kubernetes a limit of 0 is none.
            (
                json!({"resources": {"limits": {"memory": "0", "cpu": "0"}}}),
                &["spec.resources.limits", "must be greater than 0"],
            ),
            (
                json!({"resources": {"requests": {"memory": "0"}}}),
                &["spec.resources.requests", "must be greater than 0"],
            ),
            (
                json!({"resources": {"limits": {"cpu": "1n"}}}),
                &["spec.resources.limits[cpu]: Invalid value: \"1n\": must be at least 10m"],
            ),
            // Several at once are told at once.
            (
                json!({"replicas": 9, "limits": {"keys": 200_001, "leases": 10_001}}),
                &["spec.replicas:", "spec.limits.keys:", "spec.limits.leases:"],
            ),
        ],
    )?;
    let most = json!({
        "replicas": 3, "resources": {"limits": {"memory": "256Mi"}, "requests": {"cpu": "50m"}},
        "limits": {
            "storage": "512Mi", "keys": 200_000, "requestsPerSecond": 500, "burst": 1000, "concurrentRequests": 200,
            "watches": 10_000, "leases": 10_000,
        },
    });
    accepted(kubectl, "tenants", "most", &most)?;
    let generous = json!({"upstreamRef": {"name": "generous"}, "replicas": 5, "limits": {"keys": 1_000_000}});
    accepted(kubectl, "tenants", "more", &generous)
}

#[test]
fn a_placement_that_is_not_permitted() -> Result<()> {
    let kubectl = cluster()?.kubectl();
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["tenants"]}]},
    ]}}});
    let spread = json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}]);
    let toleration = |key: &str| json!([{"key": key, "operator": "Exists"}]);
    let placement = |placement: Value| json!({"placement": placement});
    let generous = |placement: Value| json!({"upstreamRef": {"name": "generous"}, "placement": placement});
    refused(
        kubectl,
        "tenants",
        &[
            (
                placement(json!({"nodeSelector": {"pool": "tenants"}})),
                &["spec.placement.nodeSelector[pool]: Forbidden: EtcdUpstream default does not allow this label"],
            ),
            (
                placement(json!({"tolerations": toleration("tenants")})),
                &[
                    "spec.placement.tolerations[0]: Forbidden: EtcdUpstream default does not allow tolerating taint tenants:all effects",
                ],
            ),
            (
                placement(json!({"affinity": affinity})),
                &["spec.placement.affinity: Forbidden: EtcdUpstream default does not allow it"],
            ),
            (
                placement(json!({"topologySpreadConstraints": spread})),
                &["spec.placement.topologySpreadConstraints: Forbidden: EtcdUpstream default does not allow it"],
            ),
            (
                generous(json!({"nodeSelector": {"pool": "no label"}})),
                &["spec.placement.nodeSelector", "must be values of labels"],
            ),
            (
                generous(json!({"nodeSelector": {"pool": "control-plane"}})),
                &[
                    "spec.placement.nodeSelector[pool]: Invalid value: \"control-plane\": EtcdUpstream generous allows tenants",
                ],
            ),
            (
                generous(json!({"tolerations": toleration("node-role.kubernetes.io/control-plane")})),
                &["spec.placement.tolerations[0]: Forbidden"],
            ),
            (
                generous(json!({"tolerations": [{"operator": "Exists"}]})),
                &["spec.placement.tolerations[0].key: Required value"],
            ),
        ],
    )?;
    let permitted = json!({
        "nodeSelector": {"pool": "tenants"}, "tolerations": toleration("tenants"), "affinity": affinity,
        "topologySpreadConstraints": spread,
    });
    accepted(kubectl, "tenants", "placed", &generous(permitted))
}

#[test]
fn clients_in_namespaces_that_did_not_consent() -> Result<()> {
    let kubectl = cluster()?.kubectl();
    let client = json!({"name": "a", "namespace": "consenting", "secretName": "s"});
    let missing = "spec.clients[1].namespace: Forbidden: namespace consenting has not consented to Secret s: it needs an EtcdProxyGrant from namespace tenants, etcdProxy refused, with this target";
    let clients = |clients: Value| json!({"clients": clients});
    let asked = clients(json!([{"name": "own"}, client]));
    refused(kubectl, "tenants", &[(asked.clone(), &[missing])])?;
    // Consents that are beside the point.
    let grant = |name: &str, namespace: &str, from: (&str, &str), target: (&str, &str)| {
        json!({
            "apiVersion": "etcd.programming-kubernetes.info/v1alpha1", "kind": "EtcdProxyGrant",
            "metadata": {"namespace": namespace, "name": name},
            "spec": {
                "from": [{"namespace": from.0, "etcdProxy": from.1}],
                "targets": [{"kind": target.0, "name": target.1}],
            },
        })
    };
    kubectl.apply(&[
        grant("other-name", "consenting", ("tenants", "another"), ("Secret", "s")),
        grant("other-namespace", "consenting", ("rivals", "refused"), ("Secret", "s")),
        grant("other-target", "consenting", ("tenants", "refused"), ("Secret", "s2")),
        grant("other-kind", "consenting", ("tenants", "refused"), ("ConfigMap", "s")),
        grant("elsewhere", "tenants", ("tenants", "refused"), ("Secret", "s")),
    ])?;
    refused(
        kubectl,
        "tenants",
        &[
            (asked.clone(), &[missing]),
            (
                clients(json!([{"name": "a", "namespace": "etcd-proxy-system", "secretName": "etcd-upstream-client"}])),
                &[
                    "spec.clients[0].namespace: Forbidden: nothing is written for tenants into the controller's own namespace",
                ],
            ),
            (
                clients(json!([{"name": "a", "secretName": "s"}, {"name": "b", "secretName": "s"}])),
                &["spec.clients[1].secretName: Duplicate value: \"s\": client a is written there already"],
            ),
            (
                clients(json!([{"name": "a", "secretName": "refused-etcd-client"}])),
                &[
                    "spec.clients[0].secretName: Duplicate value: \"refused-etcd-client\": client default is written there already",
                ],
            ),
            (clients(json!([{"name": "a"}, {"name": "a"}])), &["spec.clients[1]: Duplicate value"]),
            (
                clients(json!([{"name": "default"}])),
                &["spec.clients[0].name", "'default' is the client that every EtcdProxy has"],
            ),
            (clients(json!([{"name": "Upper"}])), &["spec.clients[0].name: Invalid value: \"Upper\""]),
            (clients(json!([{"name": "a/b"}])), &["spec.clients[0].name: Invalid value: \"a/b\""]),
            (clients(json!([{"name": "a".repeat(41)}])), &["spec.clients[0].name: Too long"]),
            (clients(json!([{"name": "a", "secretName": "a".repeat(254)}])), &["spec.clients[0].secretName: Too long"]),
            (
                clients(json!([{"name": "a", "secretName": "a..b"}])),
                &["spec.clients[0].secretName", "must be the name of an object"],
            ),
            (
                clients(json!([{"name": "a", "configMapName": "a-.b"}])),
                &["spec.clients[0].configMapName", "must be the name of an object"],
            ),
        ],
    )?;
    kubectl.apply(&[grant("consent", "consenting", ("tenants", "permitted"), ("Secret", "s"))])?;
    accepted(kubectl, "tenants", "permitted", &asked)
}

#[test]
fn names_that_services_cannot_have() -> Result<()> {
    let kubectl = cluster()?.kubectl();
    for name in [&*"a".repeat(41), "1st", "a.b", "Upper"] {
        let said = refusal(kubectl, &proxy("tenants", name, &json!({})))?;
        ensure!(said.contains("metadata.name"), "{name}: {said}");
    }
    accepted(kubectl, "tenants", &"a".repeat(40), &json!({}))
}

/// kube-apiserver takes thousands, and then needs seconds for each patch.
#[test]
fn metadata_without_measure() -> Result<()> {
    let kubectl = cluster()?.kubectl();
    let many = |n: usize| (0..n).map(|n| (format!("example.com/{n}"), json!("x"))).collect::<serde_json::Map<_, _>>();
    let hung = |field: &str, what: Value| {
        let mut object = proxy("tenants", "laden", &json!({}));
        object["metadata"][field] = what;
        object
    };
    let finalizers: Vec<_> = (0..17).map(|n| format!("example.com/{n}")).collect();
    for (field, what) in
        [("labels", json!(many(65))), ("annotations", json!(many(65))), ("finalizers", json!(finalizers))]
    {
        let said = kubectl.run_with_input(&["create", "-f", "-"], &hung(field, what).to_string())?;
        ensure!(!said.status.success(), "accepted: {field}");
        ensure!(said.stderr.contains(&format!("metadata.{field}: Too many")), "{}", said.stderr);
    }
    let said = kubectl.run_with_input(&["create", "-f", "-"], &hung("labels", json!(many(64))).to_string())?;
    ensure!(said.status.success(), "{}", said.stderr);
    Ok(())
}

#[test]
fn certificates_that_outlive_their_ca_or_nobody() -> Result<()> {
    let kubectl = cluster()?.kubectl();
    let tls = |validity: &str, ca: &str| json!({"tls": {"validity": validity, "caValidity": ca}});
    refused(
        kubectl,
        "tenants",
        &[
            (tls("2h", "1h"), &["spec.tls.validity: Invalid value", "may not exceed caValidity"]),
            (json!({"tls": {"caValidity": "24h"}}), &["spec.tls.validity: Invalid value", "may not exceed caValidity"]),
            (tls("9m59s", "1h"), &["spec.tls.validity: Invalid value", "EtcdUpstream default allows no less than"]),
            (tls("59s", "1h"), &["spec.tls.validity: Invalid value", "must be between 60s and 87600h"]),
            (tls("60s", "4m59s"), &["spec.tls.caValidity: Invalid value", "must be between 5m and 262800h"]),
            (
                tls("20d", "1h"),
                &[
                    "spec.tls.validity: Invalid value: \"20d\": must be made of hours, minutes and seconds, such as 2160h",
                ],
            ),
            (tls("1h", "400 days"), &["spec.tls.caValidity: Invalid value: \"400 days\": must be made of hours"]),
            (json!({"tls": {"caRotation": -1}}), &["spec.tls.caRotation: Invalid value: -1"]),
        ],
    )?;
    accepted(kubectl, "tenants", "shortest", &tls("10m", "10m"))?;
    let mut shorter = tls("60s", "5m");
    shorter["upstreamRef"] = json!({"name": "generous"});
    accepted(kubectl, "tenants", "shorter", &shorter)
}

#[test]
fn a_sidecar_where_tenants_are_not_trusted_with_the_whole_etcd() -> Result<()> {
    let kubectl = cluster()?.kubectl();
    let because = "spec.mode: Forbidden: mode Sidecar would put a credential for the whole etcd into this namespace, which EtcdUpstream default does not allow (allowSidecarCredentials); use mode Deployment";
    let trusted =
        |further: (&str, Value)| json!({"mode": "Sidecar", "upstreamRef": {"name": "racing"}, further.0: further.1});
    refused(
        kubectl,
        "tenants",
        &[
            (json!({"mode": "Sidecar"}), &[because]),
            (json!({"mode": "DaemonSet"}), &["spec.mode: Unsupported value: \"DaemonSet\""]),
            (trusted(("replicas", json!(1))), &["spec.replicas: Forbidden: has no meaning in mode Sidecar"]),
            (trusted(("resources", json!({}))), &["spec.resources: Forbidden: has no meaning in mode Sidecar"]),
            (trusted(("placement", json!({}))), &["spec.placement: Forbidden: has no meaning in mode Sidecar"]),
            (
                trusted(("clients", json!([{"name": "a"}]))),
                &["spec.clients: Forbidden: has no meaning in mode Sidecar"],
            ),
        ],
    )?;
    // Nor may one that is there become such a one.
    accepted(kubectl, "tenants", "no-sidecar", &json!({}))?;
    let said = refusal(kubectl, &proxy("tenants", "no-sidecar", &json!({"mode": "Sidecar"})))?;
    ensure!(said.contains(because), "{said}");
    Ok(())
}

#[test]
fn fields_that_tenants_do_not_have() -> Result<()> {
    let kubectl = cluster()?.kubectl();
    for field in ["image", "command", "env", "volumes", "serviceAccountName", "labels", "securityContext", "auth"] {
        let said = refusal(kubectl, &proxy("tenants", "refused", &json!({field: "x"})))?;
        ensure!(said.contains(&format!("unknown field \"spec.{field}\"")), "{said}");
    }
    Ok(())
}

#[test]
fn changes_of_what_cannot_be_changed() -> Result<()> {
    let kubectl = cluster()?.kubectl();
    let moved = "may not be changed: the data does not move; make another EtcdProxy";
    accepted(kubectl, "tenants", "wished", &wish("/wish/fixed/"))?;
    let mut rotated = json!({"tls": {"caRotation": 2}});
    accepted(kubectl, "tenants", "fixed", &rotated)?;
    for (name, spec, texts) in [
        ("wished", wish("/wish/other/"), ["spec.prefix: Invalid value", moved]),
        ("wished", json!({"upstreamRef": {"name": "wishes"}}), ["spec.prefix: Invalid value", moved]),
        (
            "wished",
            json!({"upstreamRef": {"name": "generous"}, "prefix": "/wish/fixed/"}),
            ["spec.upstreamRef: Invalid value", moved],
        ),
        ("wished", json!({"prefix": "/wish/fixed/"}), ["spec.upstreamRef: Invalid value", moved]),
        ("fixed", json!({"tls": {"caRotation": 2}, "prefix": "/wish/late/"}), ["spec.prefix: Invalid value", moved]),
        ("fixed", json!({"tls": {"caRotation": 1}}), ["spec.tls.caRotation: Invalid value", "may not become smaller"]),
    ] {
        let said = refusal(kubectl, &proxy("tenants", name, &spec))?;
        for text in texts {
            ensure!(said.contains(text), "{name} {spec}: {text:?} is not in\n{said}");
        }
    }
    // That the default is said in as many words is no change.
    rotated["upstreamRef"] = json!({"name": "default"});
    accepted(kubectl, "tenants", "fixed", &rotated)
}

#[test]
fn what_was_permitted_before_may_be_made_better_bit_by_bit() -> Result<()> {
    let kubectl = cluster()?.kubectl();
    let default = kubectl.json(&["get", "etcdupstream", "generous"])?;
    let mut shrinking = default["spec"].clone();
    let mut upstream = |most: i64| {
        shrinking["maxReplicas"] = most.into();
        json!({
            "apiVersion": "etcd.programming-kubernetes.info/v1alpha1", "kind": "EtcdUpstream",
            "metadata": {"name": "shrinking"}, "spec": shrinking.clone(),
        })
    };
    let spec = |replicas: i64, keys: i64| json!({"upstreamRef": {"name": "shrinking"}, "replicas": replicas, "limits": {"keys": keys}});
    kubectl.apply(&[upstream(5)])?;
    accepted(kubectl, "tenants", "shrinking", &spec(5, 10))?;
    kubectl.apply(&[upstream(2)])?;
    // Too much as it was, and told: another change goes through with a warning.
    let outcome =
        kubectl.run_with_input(&["apply", "-f", "-"], &proxy("tenants", "shrinking", &spec(5, 11)).to_string())?;
    ensure!(outcome.status.success(), "{outcome:?}");
    ensure!(outcome.stderr.contains("Warning: still not permitted: spec.replicas"), "{outcome:?}");
    let said = refusal(kubectl, &proxy("tenants", "shrinking", &spec(4, 11)))?;
    ensure!(said.contains("spec.replicas: Invalid value: 4: EtcdUpstream shrinking allows at most 2"), "{said}");
    accepted(kubectl, "tenants", "shrinking", &spec(2, 11))
}
