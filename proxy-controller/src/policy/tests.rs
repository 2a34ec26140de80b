use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;
use crate::api::Limits;

const CONTROLLER: &str = "etcd-proxy-system";

fn upstream(spec: Json) -> EtcdUpstream {
    let mut object = json!({
        "apiVersion": "etcd.programming-kubernetes.info/v1alpha1", "kind": "EtcdUpstream",
        "metadata": {"name": "default"},
        "spec": {"endpoints": ["https://etcd:2379"], "allowedNamespaces": ["a"]},
    });
    merge(&mut object["spec"], spec);
    serde_json::from_value(object).unwrap()
}

fn bare() -> EtcdUpstream {
    upstream(json!({}))
}

fn proxy(spec: Json) -> EtcdProxy {
    serde_json::from_value(json!({
        "apiVersion": "etcd.programming-kubernetes.info/v1alpha1", "kind": "EtcdProxy",
        "metadata": {"name": "x", "namespace": "a", "uid": "u1"},
        "spec": spec,
    }))
    .unwrap()
}

fn grant(namespace: &str, from: (&str, &str), targets: Json) -> EtcdProxyGrant {
    serde_json::from_value(json!({
        "apiVersion": "etcd.programming-kubernetes.info/v1alpha1", "kind": "EtcdProxyGrant",
        "metadata": {"name": "g", "namespace": namespace},
        "spec": {"from": [{"namespace": from.0, "etcdProxy": from.1}], "targets": targets},
    }))
    .unwrap()
}

fn merge(into: &mut Json, from: Json) {
    if let (Json::Object(into), Json::Object(from)) = (into, from) {
        into.extend(from);
    }
}

fn held(prefix: &str, owner: &str, uid: &str, alive: bool) -> HeldPrefix {
    HeldPrefix { prefix: prefix.into(), owner: Some(owner.to_owned()), uid: uid.to_owned(), alive }
}

fn facts<'a>(upstream: &'a EtcdUpstream, claims: &'a [HeldPrefix]) -> Facts<'a> {
    Facts { upstream: Some(upstream), grants: &[], claims: Some(claims), controller_namespace: CONTROLLER }
}

/// What is refused, as a person reads it.
fn refused(proxy: &EtcdProxy, upstream: &EtcdUpstream) -> Vec<String> {
    check(proxy, &facts(upstream, &[])).iter().map(|refusal| format!("{} ({})", refusal, refusal.reason)).collect()
}

#[test]
fn an_empty_wish_is_permitted() {
    assert_eq!(refused(&proxy(json!({})), &upstream(json!({}))), [""; 0]);
}

#[test]
fn an_upstream_must_exist_and_list_the_namespace() {
    let known = upstream(json!({}));
    let refusals =
        check(&proxy(json!({"upstreamRef": {"name": "nope"}})), &Facts { upstream: None, ..facts(&known, &[]) });
    assert_eq!(
        refusals.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["spec.upstreamRef: Not found: \"nope\": there is no EtcdUpstream of this name"]
    );
    // Nothing else is told about an upstream that is not theirs.
    let wish = proxy(json!({"mode": "Sidecar", "replicas": 99}));
    for (namespaces, allowed) in [(json!(["b"]), false), (json!([]), false), (json!(["a"]), true), (json!(["*"]), true)]
    {
        let refusals = check(&wish, &facts(&upstream(json!({"allowedNamespaces": namespaces})), &[]));
        assert_eq!(refusals.iter().any(|r| r.reason == Reason::NamespaceNotAllowed), !allowed, "{namespaces}");
        assert_eq!(refusals.len() == 1, !allowed, "{namespaces}");
    }
}

#[test]
fn the_controllers_own_namespace_is_nobodys() {
    let mut proxy = proxy(json!({}));
    proxy.metadata.namespace = Some(CONTROLLER.to_owned());
    let refusals = check(&proxy, &facts(&upstream(json!({"allowedNamespaces": ["*"]})), &[]));
    assert_eq!(refusals.iter().map(|r| r.reason).collect::<Vec<_>>(), [Reason::NamespaceNotAllowed]);
}

#[test]
fn an_upstream_must_not_contradict_itself() {
    let upstream = upstream(json!({"prefixRoot": "/p/", "metaPrefix": "/p/meta/"}));
    let reasons: Vec<_> = check(&proxy(json!({})), &facts(&upstream, &[])).iter().map(|r| r.reason).collect();
    assert_eq!(reasons, [Reason::UpstreamInvalid]);
}

#[test]
fn a_sidecar_takes_trust() {
    let sidecar = proxy(json!({"mode": "Sidecar"}));
    assert_eq!(
        refused(&sidecar, &upstream(json!({}))),
        [
            "spec.mode: Forbidden: mode Sidecar would put a credential for the whole etcd into this namespace, which EtcdUpstream default does not allow (allowSidecarCredentials); use mode Deployment (UpstreamAuthRequired)"
        ]
    );
    let trusting = upstream(json!({"allowSidecarCredentials": true}));
    assert_eq!(refused(&sidecar, &trusting), [""; 0]);
    let pods = json!({"mode": "Sidecar", "replicas": 1, "resources": {}, "placement": {}, "clients": [{"name": "b", "namespace": "b"}]});
    let fields: Vec<_> = check(&proxy(pods), &facts(&trusting, &[])).into_iter().map(|r| r.field).collect();
    assert_eq!(fields, ["spec.replicas", "spec.resources", "spec.placement", "spec.clients"]);
}

#[test]
fn wished_prefixes_are_checked_against_the_upstream() {
    let upstream = upstream(json!({
        "allowedPrefixes": ["/tenants/", "/registry/", "/etcd-proxies/", "/etcd-proxy.meta/"],
        "adoptions": [
            {"prefix": "/etcd-proxies/b/y/u0/", "namespace": "a", "name": "x"},
            {"prefix": "/registry/a/", "namespace": "a", "name": "x"},
            {"prefix": "/etcd-proxies/b/y/u9/", "namespace": "a", "name": "other"},
        ],
    }));
    for (wish, expected) in [
        ("/tenants/", ""),
        ("/tenants/a/", ""),
        ("/tenants", "spec.prefix: Invalid value: \"/tenants\": the prefix does not end in '/' (PrefixNotAllowed)"),
        (
            "/other/",
            "spec.prefix: Forbidden: EtcdUpstream default allows prefixes that begin with /tenants/, /registry/, /etcd-proxies/, /etcd-proxy.meta/ (PrefixNotAllowed)",
        ),
        (
            "/registry/a/",
            "spec.prefix: Forbidden: overlaps /registry/, where kube-apiserver keeps its data (PrefixNotAllowed)",
        ),
        ("/", "spec.prefix: Forbidden: overlaps /registry/, where kube-apiserver keeps its data (PrefixNotAllowed)"),
        (
            "/etcd-proxy.meta/x/",
            "spec.prefix: Forbidden: overlaps /etcd-proxy.meta/, where the proxies keep their own records (PrefixNotAllowed)",
        ),
        (
            "/etcd-proxies/",
            "spec.prefix: Forbidden: overlaps /etcd-proxies/, where prefixes are allocated (PrefixNotAllowed)",
        ),
        (
            "/etcd-proxies/b/y/u9/",
            "spec.prefix: Forbidden: overlaps /etcd-proxies/, where prefixes are allocated (PrefixNotAllowed)",
        ),
        // The operator's word for this very object.
        ("/etcd-proxies/b/y/u0/", ""),
    ] {
        let refusals = refused(&proxy(json!({"prefix": wish})), &upstream);
        assert_eq!(refusals.join("\n"), expected, "{wish}");
    }
    let none = bare();
    assert_eq!(
        refused(&proxy(json!({"prefix": "/tenants/a/"})), &none),
        [
            "spec.prefix: Forbidden: EtcdUpstream default allows no wishes; leave it out, and a prefix is allocated (PrefixNotAllowed)"
        ]
    );
}

#[test]
fn claims_are_respected() {
    let upstream = upstream(json!({
        "allowedPrefixes": ["/t/"],
        "adoptions": [{"prefix": "/t/a/", "namespace": "a", "name": "x"}],
    }));
    for (wish, claim, expected) in [
        ("/t/a/", held("/t/b/", "b/y", "u2", true), None),
        ("/t/a/", held("/t/a/", "a/x", "u1", true), None),
        // The same name is not the same object.
        ("/t/b/", held("/t/b/", "a/x", "u0", false), Some(Reason::PrefixHoldsData)),
        ("/t/b/", held("/t/b/", "by hand", "", false), Some(Reason::PrefixHoldsData)),
        // An adoption takes from the dead alone, and this very prefix.
        ("/t/a/", held("/t/a/", "b/y", "u2", false), None),
        ("/t/a/", held("/t/a/", "b/y", "u2", true), Some(Reason::PrefixTaken)),
        ("/t/a/", held("/t/a/b/", "b/y", "u2", false), Some(Reason::PrefixTaken)),
        ("/t/a/", held("/t/", "b/y", "u2", false), Some(Reason::PrefixTaken)),
        // Not even its own uid makes two prefixes one.
        ("/t/a/", held("/t/a/b/", "a/x", "u1", true), Some(Reason::PrefixTaken)),
    ] {
        let claims = [claim];
        let reasons: Vec<_> =
            check(&proxy(json!({"prefix": wish})), &facts(&upstream, &claims)).iter().map(|r| r.reason).collect();
        assert_eq!(reasons, Vec::from_iter(expected), "{wish} {claims:?}");
    }
    let claims = [held("/t/", "b/y", "u2", true)];
    let refusals = check(&proxy(json!({"prefix": "/t/c/"})), &facts(&upstream, &claims));
    assert_eq!(
        refusals[0].to_string(),
        "spec.prefix: Forbidden: is claimed already, or overlaps a prefix that is; wish for another, or for none"
    );
}

#[test]
fn what_is_allocated_is_checked_too() {
    let upstream = upstream(json!({}));
    let claims = [held("/etcd-proxies/", "by hand", "", false)];
    let reasons: Vec<_> = check(&proxy(json!({})), &facts(&upstream, &claims)).iter().map(|r| r.reason).collect();
    assert_eq!(reasons, [Reason::PrefixTaken]);
    assert_eq!(wanted_prefix(&proxy(json!({})), &upstream).unwrap().as_bytes(), b"/etcd-proxies/a/x/u1/");
    let mut unborn = proxy(json!({}));
    unborn.metadata.uid = None;
    assert!(wanted_prefix(&unborn, &upstream).is_err());
}

#[test]
fn limits_are_bounded_by_the_upstream() {
    let upstream = upstream(json!({"maxLimits": {"keys": 500_000, "storage": "1Gi"}}));
    let wish = json!({"limits": {
        "storage": "1.1Gi", "keys": 500_000, "requestsPerSecond": 501, "burst": 1000, "concurrentRequests": 201,
        "watches": 10_001, "leases": 10_001,
    }});
    assert_eq!(
        refused(&proxy(wish.clone()), &upstream),
        [
            "spec.limits.storage: Invalid value: \"1.1Gi\": EtcdUpstream default allows at most 1Gi (LimitsNotAllowed)",
            "spec.limits.requestsPerSecond: Invalid value: 501: EtcdUpstream default allows at most 500 (LimitsNotAllowed)",
            "spec.limits.concurrentRequests: Invalid value: 201: EtcdUpstream default allows at most 200 (LimitsNotAllowed)",
            "spec.limits.watches: Invalid value: 10001: EtcdUpstream default allows at most 10000 (LimitsNotAllowed)",
            "spec.limits.leases: Invalid value: 10001: EtcdUpstream default allows at most 10000 (LimitsNotAllowed)",
        ]
    );
    let applied = limits(&proxy(wish), &upstream);
    assert_eq!(applied.storage.unwrap().0, "1Gi");
    assert_eq!((applied.keys, applied.requests_per_second, applied.watches), (Some(500_000), Some(500), Some(10_000)));
    assert_eq!(limits(&proxy(json!({})), &upstream), upstream.spec.defaults.limits);
}

#[test]
fn a_default_that_is_not_named_stays() {
    let upstream = upstream(json!({"defaults": {"limits": {"keys": 5}}, "maxLimits": {"storage": "1Gi", "leases": 7}}));
    let applied = limits(&proxy(json!({})), &upstream);
    assert_eq!(applied.storage.unwrap().0, "512Mi");
    assert_eq!((applied.keys, applied.leases, applied.watches), (Some(5), Some(10_000), Some(10_000)));
}

#[test]
fn replicas_are_bounded() {
    let upstream = upstream(json!({"maxReplicas": 2}));
    assert_eq!(refused(&proxy(json!({"replicas": 2})), &upstream), [""; 0]);
    assert_eq!(
        refused(&proxy(json!({"replicas": 3})), &upstream),
        ["spec.replicas: Invalid value: 3: EtcdUpstream default allows at most 2 (ReplicasNotAllowed)"]
    );
    assert_eq!(replicas(&proxy(json!({"replicas": 3})), &upstream), 2);
    assert_eq!(replicas(&proxy(json!({})), &upstream), 1);
}

#[test]
fn resources_are_bounded() {
    let upstream = upstream(json!({"maxResources": {"memory": "512Mi"}}));
    for (resources, expected) in [
        (json!({"limits": {"memory": "0.5Gi", "cpu": "50m"}}), ""),
        (json!({"requests": {"memory": "100Mi"}}), ""),
        (
            json!({"limits": {"memory": "513Mi"}}),
            "spec.resources.limits[memory]: Invalid value: \"513Mi\": EtcdUpstream default allows at most 512Mi (ResourcesNotAllowed)",
        ),
        // A limit of its own is a request, too.
        (
            json!({"limits": {"cpu": "1"}}),
            "spec.resources.limits[cpu]: Invalid value: \"1\": EtcdUpstream default allows at most 50m (ResourcesNotAllowed)",
        ),
        (
            json!({"requests": {"memory": "300Mi"}}),
            "spec.resources.requests[memory]: Invalid value: \"300Mi\": must be less than or equal to the memory limit of 256Mi (ResourcesNotAllowed)",
        ),
        // To Kubernetes, a limit of 0 is none.
        (
            json!({"limits": {"memory": "0"}}),
            "spec.resources.limits[memory]: Invalid value: \"0\": must be at least 16Mi: a proxy needs that much (ResourcesNotAllowed)",
        ),
        (
            json!({"limits": {"cpu": "1n"}}),
            "spec.resources.limits[cpu]: Invalid value: \"1n\": must be at least 10m: a proxy needs that much (ResourcesNotAllowed)",
        ),
        (
            json!({"requests": {"memory": "0Gi"}}),
            "spec.resources.requests[memory]: Invalid value: \"0Gi\": must be at least 16Mi: a proxy needs that much (ResourcesNotAllowed)",
        ),
        (
            json!({"requests": {"memory": "-1"}}),
            "spec.resources.requests[memory]: Invalid value: \"-1\": must be a quantity that is not negative (ResourcesNotAllowed)",
        ),
        (
            json!({"limits": {"nvidia.com/gpu": "1"}}),
            "spec.resources.limits[nvidia.com/gpu]: Invalid value: \"1\": only cpu and memory may be named (ResourcesNotAllowed)",
        ),
    ] {
        assert_eq!(refused(&proxy(json!({"resources": resources})), &upstream).join("\n"), expected);
    }
}

#[test]
fn a_tenant_cannot_shed_a_default_limit() {
    let upstream = upstream(json!({}));
    let applied = |wish: Json| serde_json::to_value(resources(&proxy(json!({"resources": wish})), &upstream)).unwrap();
    let defaults = json!({"requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}});
    let zero = json!({"cpu": "0", "memory": "0"});
    let little = json!({"cpu": "1n", "memory": "1"});
    for nothing in [
        json!({}),
        json!({"limits": {}}),
        json!({"limits": {"nvidia.com/gpu": "1"}}),
        json!({"requests": zero, "limits": zero}),
        json!({"requests": little, "limits": little}),
    ] {
        assert_eq!(applied(nothing), defaults);
    }
    assert_eq!(
        applied(json!({"requests": {"memory": "300Mi"}, "limits": {"memory": "16Mi", "cpu": "-5"}})),
        json!({"requests": {"cpu": "50m", "memory": "16Mi"}, "limits": {"memory": "16Mi", "cpu": "50m"}})
    );
}

#[test]
fn certificates_live_as_long_as_the_operator_says_at_least() {
    let asked = proxy(json!({"tls": {"validity": "60s", "caValidity": "5m"}}));
    let refusals = refused(&asked, &upstream(json!({})));
    let [refusal] = refusals.as_slice() else { panic!("{refusals:?}") };
    assert!(refusal.starts_with("spec.tls.validity: Invalid value"), "{refusal}");
    assert!(refusal.ends_with("(ValidityNotAllowed)"), "{refusal}");
    let seconds = |tls: crate::api::Tls| {
        (std::time::Duration::from(tls.validity).as_secs(), std::time::Duration::from(tls.ca_validity).as_secs())
    };
    assert_eq!(seconds(tls(&asked, &upstream(json!({})))), (600, 600));
    let quick = upstream(json!({"minValidity": "60s"}));
    assert_eq!(refused(&asked, &quick), [""; 0]);
    assert_eq!(seconds(tls(&asked, &quick)), (60, 300));
    assert_eq!(refused(&proxy(json!({})), &upstream(json!({}))), [""; 0]);
}

#[test]
fn placement_is_what_the_operator_allows() {
    let upstream = upstream(json!({"allowedPlacement": {
        "nodeSelector": {"zone": ["a", "b"], "disk": ["*"]},
        "tolerations": [{"key": "tenants", "values": ["yes"], "effects": ["NoSchedule"]}, {"key": "any"}],
        "topologySpreadConstraints": true,
    }}));
    let allowed = json!({
        "nodeSelector": {"zone": "b", "disk": "ssd"},
        "tolerations": [
            {"key": "tenants", "value": "yes", "effect": "NoSchedule"},
            {"key": "any", "operator": "Exists"},
            {"key": "any", "operator": "Equal", "value": "v", "effect": "NoExecute", "tolerationSeconds": 5},
        ],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
    });
    assert_eq!(refused(&proxy(json!({"placement": allowed})), &upstream), [""; 0]);
    let not = json!({
        "nodeSelector": {"zone": "c", "kubernetes.io/hostname": "control-plane"},
        "tolerations": [
            {"key": "tenants", "value": "yes"},
            {"key": "tenants", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "tenants", "value": "no", "effect": "NoSchedule"},
            {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "any", "operator": "Lt", "value": "5"},
        ],
        "affinity": {},
    });
    let fields: Vec<_> =
        check(&proxy(json!({"placement": not})), &facts(&upstream, &[])).into_iter().map(|r| r.field).collect();
    assert_eq!(
        fields,
        [
            "spec.placement.nodeSelector[kubernetes.io/hostname]",
            "spec.placement.nodeSelector[zone]",
            "spec.placement.tolerations[0]",
            "spec.placement.tolerations[1]",
            "spec.placement.tolerations[2]",
            "spec.placement.tolerations[3]",
            "spec.placement.tolerations[4]",
            "spec.placement.affinity",
        ]
    );
    // Nothing by default.
    assert_eq!(refused(&proxy(json!({"placement": allowed})), &bare()).len(), 6);
}

fn client_refusals(spec: Json, grants: &[&EtcdProxyGrant]) -> Vec<(String, Reason, Option<String>)> {
    let upstream = upstream(json!({}));
    check(&proxy(spec), &Facts { grants, ..facts(&upstream, &[]) })
        .into_iter()
        .map(|r| (r.field, r.reason, r.client))
        .collect()
}

#[test]
fn other_namespaces_must_consent() {
    let wish = json!({"clients": [
        {"name": "own"},
        {"name": "b", "namespace": "b", "secretName": "s", "configMapName": "c"},
    ]});
    let both = json!([{"kind": "Secret", "name": "s"}, {"kind": "ConfigMap", "name": "c"}]);
    let missing =
        |n: usize| vec![("spec.clients[1].namespace".to_owned(), Reason::GrantMissing, Some("b".to_owned())); n];
    assert_eq!(client_refusals(wish.clone(), &[]), missing(2));
    assert_eq!(client_refusals(wish.clone(), &[&grant("b", ("a", "x"), both.clone())]), []);
    // Each of these is almost a grant.
    for (grant, refusals) in [
        (grant("c", ("a", "x"), both.clone()), 2),
        (grant("b", ("a", "y"), both.clone()), 2),
        (grant("b", ("c", "x"), both.clone()), 2),
        (grant("b", ("a", "*"), both.clone()), 2),
        (grant("b", ("a", "x"), json!([{"kind": "Secret", "name": "s"}])), 1),
        (grant("b", ("a", "x"), json!([{"kind": "Secret", "name": "c"}, {"kind": "ConfigMap", "name": "s"}])), 2),
    ] {
        assert_eq!(client_refusals(wish.clone(), &[&grant]), missing(refusals), "{grant:?}");
    }
    let mut leaving = grant("b", ("a", "x"), both.clone());
    leaving.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(jiff::Timestamp::UNIX_EPOCH));
    assert_eq!(client_refusals(wish, &[&leaving]), missing(2));
    // Not even a grant opens the controller's own namespace.
    let inside = json!({"clients": [{"name": "b", "namespace": CONTROLLER, "secretName": "s"}]});
    assert_eq!(
        client_refusals(inside, &[&grant(CONTROLLER, ("a", "x"), both)]),
        [("spec.clients[0].namespace".to_owned(), Reason::TargetNotAllowed, Some("b".to_owned()))]
    );
}

#[test]
fn no_object_is_two_clients() {
    let refusals = client_refusals(
        json!({"clients": [
            // Would be x-etcd-client, which is the default client's.
            {"name": "client"},
            {"name": "one", "secretName": "same"},
            {"name": "two", "secretName": "same", "configMapName": "x-etcd-ca"},
            // A ConfigMap is no Secret.
            {"name": "three", "configMapName": "same"},
        ]}),
        &[],
    );
    let duplicate = |field: &str, client: &str| (field.to_owned(), Reason::DuplicateTarget, Some(client.to_owned()));
    assert_eq!(
        refusals,
        [
            duplicate("spec.clients[0].secretName", "client"),
            duplicate("spec.clients[2].secretName", "two"),
            duplicate("spec.clients[2].configMapName", "two"),
        ]
    );
}

#[test]
fn everything_is_told_at_once() {
    let wish = proxy(json!({
        "replicas": 50, "prefix": "/registry/x/", "limits": {"keys": 1_000_000},
        "clients": [{"name": "b", "namespace": "b"}],
    }));
    let fields: Vec<_> = check(&wish, &facts(&upstream(json!({})), &[])).into_iter().map(|r| r.field).collect();
    assert_eq!(fields, ["spec.limits.keys", "spec.replicas", "spec.prefix", "spec.clients[0].namespace"]);
}

// Few letters, so that prefixes meet often.
fn any_prefix() -> impl Strategy<Value = String> {
    proptest::collection::vec("[ab]{1,2}", 1..4).prop_map(|parts| format!("/t/{}/", parts.join("/")))
}

fn any_limits() -> impl Strategy<Value = Limits> {
    let number = || proptest::option::of(1_i64..100);
    let storage = proptest::option::of((1_u64..2_000, prop_oneof![Just(""), Just("k"), Just("Ki"), Just("M")]));
    (number(), number(), number(), number(), number(), number(), storage).prop_map(
        |(keys, requests_per_second, burst, concurrent_requests, watches, leases, storage)| Limits {
            storage: storage
                .map(|(n, suffix)| k8s_openapi::apimachinery::pkg::api::resource::Quantity(format!("{n}{suffix}"))),
            keys,
            requests_per_second,
            burst,
            concurrent_requests,
            watches,
            leases,
        },
    )
}

proptest! {
    /// Whatever is permitted shares no key with what others hold: told by keys, not by the prefixes' own arithmetic.
    #[test]
    fn what_is_permitted_shares_no_key(wish in any_prefix(), others in proptest::collection::vec(any_prefix(), 0..4)) {
        let upstream = upstream(json!({"allowedPrefixes": ["/t/"]}));
        let claims: Vec<_> = others.iter().map(|prefix| held(prefix, "b/y", "u2", true)).collect();
        let permitted = check(&proxy(json!({"prefix": wish})), &facts(&upstream, &claims)).is_empty();
        let owns = |prefix: &str, key: &str| key.starts_with(prefix);
        let shared = others.iter().any(|other| {
            [format!("{wish}k"), format!("{other}k")].iter().any(|key| owns(&wish, key) && owns(other, key))
        });
        prop_assert_eq!(permitted, !shared);
    }

    /// The order of two wishes does not matter: if one may have it beside the other, the other may beside the one.
    #[test]
    fn overlap_is_mutual(one in any_prefix(), other in any_prefix()) {
        let upstream = upstream(json!({"allowedPrefixes": ["/t/"]}));
        let beside = |wish: &str, held_by: &str| {
            let claims = [held(held_by, "b/y", "u2", true)];
            check(&proxy(json!({"prefix": wish})), &facts(&upstream, &claims)).is_empty()
        };
        prop_assert_eq!(beside(&one, &other), beside(&other, &one));
    }

    /// What applies is itself permitted, and a permitted wish applies as it stands.
    #[test]
    fn applied_limits_are_permitted(wish in any_limits(), default in any_limits(), max in any_limits()) {
        let upstream = upstream(json!({"defaults": {"limits": default}, "maxLimits": max}));
        let wished = proxy(json!({"limits": wish}));
        let applied = limits(&wished, &upstream);
        let named = |wish: Option<i64>, applied: Option<i64>| wish.and(applied);
        // The operator's default may be above what tenants may name; only what was named is bounded.
        let again = Limits {
            storage: wish.storage.as_ref().and(applied.storage.clone()),
            keys: named(wish.keys, applied.keys),
            requests_per_second: named(wish.requests_per_second, applied.requests_per_second),
            burst: named(wish.burst, applied.burst),
            concurrent_requests: named(wish.concurrent_requests, applied.concurrent_requests),
            watches: named(wish.watches, applied.watches),
            leases: named(wish.leases, applied.leases),
        };
        prop_assert_eq!(check(&proxy(json!({"limits": again.clone()})), &facts(&upstream, &[])), vec![]);
        if check(&wished, &facts(&upstream, &[])).is_empty() {
            prop_assert_eq!(again, wish);
        }
    }
}
