use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value as Json, json};

use super::*;
use crate::api::GROUP;

/// What there is to look up, and how often that was done.
#[derive(Default)]
struct Known {
    upstream: Option<Json>,
    grants: Vec<Json>,
    claims: Claims,
    lookups: AtomicUsize,
}

#[derive(Default)]
enum Claims {
    #[default]
    None,
    Held(&'static str),
    Unreadable,
    Silent,
}

impl Known {
    fn upstream(spec: Json) -> Self {
        let mut object = json!({"metadata": {"name": "default"}, "spec": {
            "endpoints": ["https://etcd:2379"], "allowedNamespaces": ["a"], "allowedPrefixes": ["/t/"],
        }});
        for (name, value) in spec.as_object().into_iter().flatten() {
            object["spec"][name] = value.clone();
        }
        Self { upstream: Some(typed(object, "EtcdUpstream")), ..Self::default() }
    }
}

fn typed(mut object: Json, kind: &str) -> Json {
    object["apiVersion"] = "etcd.programming-kubernetes.info/v1alpha1".into();
    object["kind"] = kind.into();
    object
}

impl Lookup for Arc<Known> {
    async fn upstream(&self, name: &str) -> Result<Option<Arc<EtcdUpstream>>, LookupError> {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        match name {
            "broken" => Err(LookupError("the API server is away".to_owned())),
            "default" => Ok(self.upstream.clone().map(|object| Arc::new(serde_json::from_value(object).unwrap()))),
            _ => Ok(None),
        }
    }

    async fn grants(&self, namespace: &str) -> Result<Vec<Arc<EtcdProxyGrant>>, LookupError> {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        let grants = self.grants.iter().map(|object| serde_json::from_value::<EtcdProxyGrant>(object.clone()).unwrap());
        Ok(grants.filter(|grant| grant.namespace().as_deref() == Some(namespace)).map(Arc::new).collect())
    }

    async fn claims(&self, _: &EtcdUpstream) -> Result<Vec<HeldPrefix>, LookupError> {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        match self.claims {
            Claims::None => Ok(Vec::new()),
            Claims::Held(prefix) => Ok(vec![HeldPrefix {
                prefix: prefix.into(),
                owner: Some("default/other".to_owned()),
                uid: "u2".to_owned(),
                alive: true,
            }]),
            Claims::Unreadable => Err(LookupError("connection refused".to_owned())),
            Claims::Silent => std::future::pending().await,
        }
    }
}

fn object(spec: Json) -> Json {
    typed(json!({"metadata": {"name": "x", "namespace": "a", "uid": "u1"}, "spec": spec}), "EtcdProxy")
}

fn request(operation: &str, new: Json, old: Json) -> AdmissionRequest<EtcdProxy> {
    serde_json::from_value(json!({
        "uid": "r", "name": "x", "namespace": "a", "operation": operation, "userInfo": {},
        "kind": {"group": GROUP, "version": "v1alpha1", "kind": "EtcdProxy"},
        "resource": {"group": GROUP, "version": "v1alpha1", "resource": "etcdproxies"},
        "object": new, "oldObject": old,
    }))
    .unwrap()
}

async fn judge(known: Known, request: AdmissionRequest<EtcdProxy>) -> (Review, usize) {
    let known = Arc::new(known);
    let verdict = Admission::new(known.clone(), "etcd-proxy-system").review(&request).await;
    (verdict, known.lookups.load(Ordering::Relaxed))
}

async fn create(known: Known, spec: Json) -> Review {
    judge(known, request("CREATE", object(spec), Json::Null)).await.0
}

async fn update(known: Known, new: Json, old: Json) -> Review {
    judge(known, request("UPDATE", object(new), object(old))).await.0
}

/// The first reason, and all denials as their author reads them.
#[track_caller]
fn denied(verdict: Review) -> (&'static str, String) {
    match verdict {
        Review::Denied(denials) => {
            let texts: Vec<_> = denials.iter().map(|denial| format!("{}: {}", denial.field, denial.message)).collect();
            (denials[0].reason, texts.join(", "))
        }
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn warnings(verdict: Review) -> Vec<String> {
    match verdict {
        Review::Allowed { warnings } => warnings,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn overlap_is_told_with_its_field() {
    let known = Known { claims: Claims::Held("/t/a/"), ..Known::upstream(json!({})) };
    assert_eq!(
        create(known, json!({"prefix": "/t/a/b/"})).await,
        Review::Denied(vec![Denial {
            field: "spec.prefix".to_owned(),
            reason: "PrefixTaken",
            cause: "FieldValueForbidden",
            message: "Forbidden: is claimed already, or overlaps a prefix that is; wish for another, or for none"
                .to_owned(),
        }])
    );
}

#[tokio::test]
async fn several_refusals_are_told_together() {
    let (reason, texts) = denied(create(Known::upstream(json!({})), json!({"replicas": 9, "prefix": "/u/"})).await);
    assert_eq!(reason, "ReplicasNotAllowed");
    assert_eq!(
        texts,
        "spec.replicas: Invalid value: 9: EtcdUpstream default allows at most 3, spec.prefix: Forbidden: EtcdUpstream default allows prefixes that begin with /t/"
    );
}

#[tokio::test]
async fn a_namespace_that_is_not_listed_is_told_nothing_else() {
    let known = Known::upstream(json!({"allowedNamespaces": ["b"]}));
    let (reason, texts) = denied(create(known, json!({"replicas": 9})).await);
    assert_eq!(reason, "NamespaceNotAllowed");
    assert_eq!(
        texts,
        "spec.upstreamRef: Forbidden: EtcdUpstream default does not list namespace a in its allowedNamespaces"
    );
}

#[tokio::test]
async fn an_unknown_upstream_is_named() {
    let (reason, message) = denied(create(Known::default(), json!({})).await);
    assert_eq!(reason, "UpstreamNotFound");
    assert!(message.contains("spec.upstreamRef: Not found: \"default\""), "{message}");
}

#[tokio::test]
async fn what_cannot_be_looked_up_is_not_guessed() {
    let verdict = create(Known::default(), json!({"upstreamRef": {"name": "broken"}})).await;
    assert_eq!(verdict, Review::Unable("the API server is away".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn claims_that_cannot_be_read_are_left_to_the_claim() {
    for (claims, why) in [(Claims::Unreadable, "connection refused"), (Claims::Silent, "no answer in time")] {
        let known = Known { claims, ..Known::upstream(json!({})) };
        assert_eq!(
            warnings(create(known, json!({"prefix": "/t/a/"})).await),
            [format!("spec.prefix: EtcdUpstream default could not be asked who holds what ({why}); status will tell")]
        );
    }
}

#[tokio::test]
async fn only_wishes_are_looked_up_among_the_claims() {
    let known = Known { claims: Claims::Unreadable, ..Known::upstream(json!({})) };
    assert_eq!(warnings(create(known, json!({})).await), [""; 0]);
}

#[tokio::test]
async fn grants_of_the_named_namespaces_count() {
    let wish = json!({"clients": [{"name": "b", "namespace": "b", "secretName": "s"}]});
    let grant = json!({"metadata": {"name": "g", "namespace": "b"}, "spec": {
        "from": [{"namespace": "a", "etcdProxy": "x"}], "targets": [{"kind": "Secret", "name": "s"}],
    }});
    let (reason, message) = denied(create(Known::upstream(json!({})), wish.clone()).await);
    assert_eq!(reason, "GrantMissing");
    assert!(
        message.contains("spec.clients[0].namespace: Forbidden: namespace b has not consented to Secret s"),
        "{message}"
    );
    let known = Known { grants: vec![typed(grant, "EtcdProxyGrant")], ..Known::upstream(json!({})) };
    assert_eq!(warnings(create(known, wish).await), [""; 0]);
}

#[tokio::test]
async fn nothing_is_looked_up_when_spec_is_the_same_or_the_object_goes() {
    let wrong = json!({"upstreamRef": {"name": "broken"}});
    let allowed = Review::Allowed { warnings: Vec::new() };
    let mut leaving = object(wrong.clone());
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
    let mut labelled = object(wrong.clone());
    labelled["metadata"]["finalizers"] = json!(["f"]);
    let mut status = request("UPDATE", object(wrong.clone()), object(json!({})));
    status.sub_resource = Some("status".to_owned());
    for request in [
        request("UPDATE", labelled, object(wrong.clone())),
        request("UPDATE", leaving, object(json!({}))),
        request("DELETE", Json::Null, object(wrong)),
        status,
    ] {
        assert_eq!(judge(Known::default(), request).await, (allowed.clone(), 0));
    }
}

#[tokio::test]
async fn old_sins_do_not_stand_in_the_way() {
    let old = json!({"replicas": 9, "clients": [{"name": "b", "namespace": "b"}]});
    // A client before it moves the other one, and its grant is gone.
    let new =
        json!({"replicas": 9, "deletionPolicy": "Delete", "clients": [{"name": "c"}, {"name": "b", "namespace": "b"}]});
    let told = warnings(update(Known::upstream(json!({})), new, old.clone()).await);
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].starts_with("still not permitted: spec.replicas: Invalid value: 9"), "{told:?}");
    // But none is added, and none made worse.
    let (reason, _) = denied(update(Known::upstream(json!({})), json!({"replicas": 10}), old.clone()).await);
    assert_eq!(reason, "ReplicasNotAllowed");
    let (reason, message) =
        denied(update(Known::upstream(json!({})), json!({"replicas": 9, "mode": "Sidecar"}), old).await);
    assert_eq!(reason, "UpstreamAuthRequired");
    assert!(!message.contains("at most 3"), "{message}");
}
