//! A life in which the controller has to do everything that it can.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use xtask::{
    cluster::{Cluster, Kubectl, ManagedProxy, ProxyController, SYSTEM, own_program},
    poll,
};

use crate::{WORK, conditions, object, upstream, wait_reason};

/// Here live the EtcdProxies.
const NAMESPACE: &str = "audited";

/// Here a client of another namespace gets its certificate.
const CONSENTING: &str = "consenting";

/// The lease lasts for 15 s, and a candidate looks every 4.4 s at the latest.
const TAKEOVER: Duration = Duration::from_secs(30);

/// Those whose names somebody else has used already.
const STRANGE: [&str; 6] =
    ["foreign-secret", "alien-secret", "foreign-map", "alien-map", "foreign-service", "alien-service"];

/// Without a node this is as far as it gets.
const UNAVAILABLE: &str = "DeploymentUnavailable";

const UID_LABEL: &str = "etcd.programming-kubernetes.info/uid";

struct Life<'a> {
    cluster: &'a Cluster,
    controller: &'a ProxyController,
    kubectl: &'a Kubectl,
}

type Part<'a> = fn(&Life<'a>) -> Result<()>;

/// Everything, once.
pub(crate) fn play(cluster: &Cluster) -> Result<()> {
    let life = Life { cluster, controller: cluster.controller()?, kubectl: cluster.kubectl() };
    for namespace in [NAMESPACE, CONSENTING] {
        life.kubectl.ok(&["create", "namespace", namespace])?;
    }
    upstream(life.kubectl, "trusting", json!({"allowSidecarCredentials": true, "allowedPrefixes": ["/kept/"]}))?;
    let parts: [(&str, Part<'_>); 10] = [
        ("provide", Life::provide),
        ("rotate", Life::rotate),
        ("repair", Life::repair),
        ("take back", Life::take_back),
        ("refuse foreign objects", Life::refuse_foreign),
        ("sidecar", Life::sidecar),
        ("inherit", Life::inherit),
        ("webhook", Life::webhook),
        ("change leaders", Life::change_leaders),
        ("delete", Life::delete),
    ];
    for (name, part) in parts {
        let since = Instant::now();
        part(&life).context(name)?;
        eprintln!("{name}: {:.1?}", since.elapsed());
    }
    Ok(())
}

impl Life<'_> {
    fn apply(&self, name: &str, spec: Value) -> Result<()> {
        let object = object("EtcdProxy", NAMESPACE, name, spec);
        // The webhook may have moved a moment ago.
        poll::until(name, WORK, || self.kubectl.apply(std::slice::from_ref(&object)).map(drop))
    }

    fn patch(&self, what: &[&str], patch: &Value) -> Result<()> {
        let patch = patch.to_string();
        let args = [&["patch"], what, &["--type=merge", "--patch", &patch]].concat();
        poll::until(&args.join(" "), WORK, || self.kubectl.ok(&args).map(drop))
    }

    fn reason(&self, name: &str, reason: &str) -> Result<()> {
        wait_reason(self.kubectl, NAMESPACE, name, "Ready", reason).map(drop)
    }

    fn uid(&self, name: &str) -> Result<String> {
        let path = "jsonpath={.metadata.uid}";
        self.kubectl.ok(&["get", "etcdproxy", name, "--namespace", NAMESPACE, "-o", path])
    }

    /// Everything that was made for an EtcdProxy: kind, namespace, name and uid.
    fn made_for(&self, uid: &str) -> Result<Vec<[String; 4]>> {
        let kinds = "serviceaccounts,secrets,configmaps,services,networkpolicies,poddisruptionbudgets,deployments";
        let selector = format!("{UID_LABEL}={uid}");
        let list = self.kubectl.json(&["get", kinds, "--all-namespaces", "--selector", &selector])?;
        let items = list.get("items").and_then(Value::as_array).context("no list")?;
        let text = |item: &Value, path: &str| item.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let each = |item: &Value| {
            ["/kind", "/metadata/namespace", "/metadata/name", "/metadata/uid"].map(|path| text(item, path))
        };
        Ok(items.iter().map(each).collect())
    }

    /// Two replicas, and a client in another namespace.
    fn provide(&self) -> Result<()> {
        let (from, targets) = (
            json!([{"namespace": NAMESPACE, "etcdProxy": "main"}]),
            json!([{"kind": "Secret", "name": "reporter"}, {"kind": "ConfigMap", "name": "reporter-ca"}]),
        );
        self.kubectl.apply(&[object(
            "EtcdProxyGrant",
            CONSENTING,
            "main",
            json!({"from": from, "targets": targets}),
        )])?;
        let client = json!({
            "name": "reporter", "namespace": CONSENTING, "secretName": "reporter", "configMapName": "reporter-ca",
        });
        self.apply("main", json!({"replicas": 2, "clients": [client], "deletionPolicy": "Delete"}))?;
        self.reason("main", UNAVAILABLE)
    }

    /// A new CA, while proxies run: it waits until they show what they were given.
    fn rotate(&self) -> Result<()> {
        let node = self.cluster.node()?;
        let proxies = ManagedProxy::start(node, &own_program("etcd-proxy")?, NAMESPACE, "main")?;
        let etcdctl = proxies.etcdctl(node, &self.cluster.tools)?;
        etcdctl.ok(&["put", "some", "data"])?;
        self.rotated("main", &["Retiring", "Stable"])?;
        // Their pods are no pods of the cluster: they end before the EtcdProxy does.
        for pod in proxies.pods() {
            node.unpublish(pod)?;
        }
        Ok(())
    }

    /// Asks for a new CA, and waits for a phase that can be reached.
    fn rotated(&self, name: &str, phases: &[&str]) -> Result<()> {
        self.patch(&["etcdproxy", name, "--namespace", NAMESPACE], &json!({"spec": {"tls": {"caRotation": 1}}}))?;
        poll::until("the new CA", WORK, || {
            let proxy = self.kubectl.json(&["get", "etcdproxy", name, "--namespace", NAMESPACE])?;
            let certificates = proxy.pointer("/status/certificates").context("no certificates")?;
            let phase = certificates.get("phase").and_then(Value::as_str).unwrap_or_default();
            ensure!(certificates.get("caRotation").is_some_and(|number| number == 1), "{certificates}");
            ensure!(phases.contains(&phase), "{certificates}");
            Ok(())
        })
    }

    /// Each object is deleted, and comes back.
    fn repair(&self) -> Result<()> {
        let uid = self.uid("main")?;
        let before = self.made_for(&uid)?;
        for [kind, namespace, name, _] in &before {
            // A new CA's key is nothing that a controller could bring back as it was.
            if !name.ends_with("-ca") || namespace != SYSTEM {
                self.kubectl.ok(&["delete", kind, name, "--namespace", namespace, "--wait=false"])?;
            }
        }
        poll::until("all of them to be back", WORK, || {
            let now = self.made_for(&uid)?;
            for [kind, namespace, name, old] in &before {
                let found = now.iter().find(|[k, ns, n, _]| (k, ns, n) == (kind, namespace, name));
                let [.., new] = found.with_context(|| format!("{kind} {namespace}/{name}"))?;
                let stays = name.ends_with("-ca") && namespace == SYSTEM;
                ensure!(stays == (old == new), "{kind} {namespace}/{name}");
            }
            Ok(())
        })
    }

    /// What is no longer wanted goes: a client whose namespace consents no more, the second replica's budget.
    fn take_back(&self) -> Result<()> {
        self.kubectl.ok(&["delete", "etcdproxygrant", "main", "--namespace", CONSENTING])?;
        self.patch(&["etcdproxy", "main", "--namespace", NAMESPACE], &json!({"spec": {"replicas": 1}}))?;
        let uid = self.uid("main")?;
        poll::until("what is not wanted to go", WORK, || {
            let made = self.made_for(&uid)?;
            let left = made.iter().find(|[kind, ns, ..]| ns == CONSENTING || kind == "PodDisruptionBudget");
            left.map_or(Ok(()), |left| bail!("{left:?}"))
        })
    }

    /// Somebody else's objects stand where those of an EtcdProxy would.
    fn refuse_foreign(&self) -> Result<()> {
        let foreign = |kind: &str, name: &str, further: Value| {
            let mut object =
                json!({"apiVersion": "v1", "kind": kind, "metadata": {"namespace": NAMESPACE, "name": name}});
            if let (Some(object), Value::Object(further)) = (object.as_object_mut(), further) {
                object.extend(further);
            }
            object
        };
        let external = json!({"spec": {"type": "ExternalName", "externalName": "example.com"}});
        for (name, objects) in [
            ("foreign-secret", [foreign("Secret", "foreign-secret-etcd-client", json!({"stringData": {"a": "b"}}))]),
            ("alien-secret", [foreign("Secret", "alien-secret-etcd-client", json!({"stringData": {"a": "b"}}))]),
            ("foreign-map", [foreign("ConfigMap", "foreign-map-etcd-ca", json!({"data": {"a": "b"}}))]),
            ("alien-map", [foreign("ConfigMap", "alien-map-etcd-ca", json!({"data": {"a": "b"}}))]),
            ("foreign-service", [foreign("Service", "foreign-service-etcd", external.clone())]),
            ("alien-service", [foreign("Service", "alien-service-etcd", external)]),
        ] {
            self.kubectl.apply(&objects)?;
            self.apply(name, json!({}))?;
        }
        for name in STRANGE {
            poll::until("the conflict to be told of", WORK, || {
                let conditions = Value::from(conditions(self.kubectl, NAMESPACE, name)?).to_string();
                ensure!(conditions.contains("TargetExists"), "{conditions}");
                Ok(())
            })?;
        }
        Ok(())
    }

    /// A sidecar's files; and an event that is told again.
    fn sidecar(&self) -> Result<()> {
        self.apply("beside", json!({"mode": "Sidecar", "upstreamRef": {"name": "trusting"}}))?;
        let uid = self.uid("beside")?;
        poll::until("the sidecar's files", WORK, || {
            let kinds: Vec<_> = self.made_for(&uid)?.into_iter().map(|[kind, ..]| kind).collect();
            ensure!(kinds == ["Secret", "ConfigMap"], "{kinds:?}");
            Ok(())
        })?;
        let trusts = |yes: bool| {
            self.patch(&["etcdupstream", "trusting"], &json!({"spec": {"allowSidecarCredentials": yes}}))?;
            poll::until("the sidecar's files to follow", WORK, || {
                let left = self.made_for(&uid)?;
                ensure!(left.is_empty() != yes, "{left:?}");
                Ok(())
            })?;
            if yes { Ok(()) } else { self.reason("beside", "UpstreamAuthRequired") }
        };
        [false, true, false].into_iter().try_for_each(trusts)?;
        poll::until("the event to be counted twice", WORK, || {
            let events = self.kubectl.json(&["get", "events.events.k8s.io", "--namespace", NAMESPACE])?;
            let events = events.get("items").and_then(Value::as_array).context("no list")?;
            let of_this = events.iter().filter(|event| {
                event.get("reason").is_some_and(|reason| reason == "UpstreamAuthRequired")
                    && event.pointer("/regarding/name").is_some_and(|name| name == "beside")
            });
            let again = of_this.clone().any(|event| event.pointer("/series/count").is_some());
            ensure!(again, "{:?}", of_this.collect::<Vec<_>>());
            Ok(())
        })?;
        trusts(true)
    }

    /// Data is kept, and goes to whom the operator names.
    fn inherit(&self) -> Result<()> {
        let spec = json!({"upstreamRef": {"name": "trusting"}, "prefix": "/kept/data/"});
        self.apply("first", spec.clone())?;
        self.reason("first", UNAVAILABLE)?;
        self.gone("first")?;
        let adoption = json!([{"prefix": "/kept/data/", "namespace": NAMESPACE, "name": "heir"}]);
        self.patch(&["etcdupstream", "trusting"], &json!({"spec": {"adoptions": adoption}}))?;
        self.apply("heir", spec)?;
        self.reason("heir", UNAVAILABLE)?;
        self.rotated("heir", &["Distributing", "Replacing", "Retiring", "Stable"])
    }

    /// Its certificate is lost and damaged, and its bundle is spoilt.
    fn webhook(&self) -> Result<()> {
        let secret = ["secret", "proxy-controller-webhook", "--namespace", SYSTEM];
        let version = |kind: &[&str]| {
            self.kubectl
                .ok(&[&["get"], kind, &["--ignore-not-found", "-o", "jsonpath={.metadata.resourceVersion}"]].concat())
        };
        let repaired = |damage: &dyn Fn() -> Result<()>, path: &str| {
            let before = version(&secret)?;
            damage()?;
            poll::until("a certificate that is whole", WORK, || {
                let now = self.kubectl.json(&[&["get"][..], &secret].concat())?;
                let value = now.pointer(path).and_then(Value::as_str).unwrap_or_default();
                ensure!(value.len() > 100 && version(&secret)? != before, "{path}: {value}");
                Ok(())
            })
        };
        repaired(&|| self.kubectl.ok(&[&["delete"][..], &secret].concat()).map(drop), "/data/tls.crt")?;
        repaired(&|| self.patch(&secret, &json!({"data": {"tls.crt": "eA=="}})), "/data/tls.crt")?;
        let configuration = ["validatingwebhookconfiguration", "proxy-controller"];
        let patch = json!([{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]).to_string();
        self.kubectl.ok(&[&["patch"][..], &configuration, &["--type=json", "--patch", &patch]].concat())?;
        poll::until("the bundle to be back", WORK, || {
            let now = self.kubectl.json(&[&["get"][..], &configuration].concat())?;
            ensure!(now.pointer("/webhooks/0/clientConfig/caBundle").is_some(), "it is not");
            Ok(())
        })
    }

    /// The lead is given back, and taken over; and what was left while nobody led is found.
    fn change_leaders(&self) -> Result<()> {
        self.apply("lost", json!({"replicas": 2}))?;
        self.reason("lost", UNAVAILABLE)?;
        let uid = self.uid("lost")?;
        let holder = || {
            let lease = ["get", "lease", "proxy-controller", "--namespace", SYSTEM];
            self.kubectl.ok(&[&lease[..], &["-o", "jsonpath={.spec.holderIdentity}"]].concat())
        };
        let first = holder()?;
        // Whichever leads: the other one has it after one of the two ends in order.
        self.end_and_start(0)?;
        self.end_and_start(1)?;
        ensure!(holder()? != first, "the lead never changed");
        self.controller.replica(1)?.process.kill9()?;
        self.controller.replica(0)?.process.kill9()?;
        let finalizers = json!({"metadata": {"finalizers": null}});
        self.patch(&["etcdproxy", "lost", "--namespace", NAMESPACE], &finalizers)?;
        self.kubectl.ok(&["delete", "etcdproxy", "lost", "--namespace", NAMESPACE])?;
        ensure!(!self.made_for(&uid)?.is_empty(), "nothing was left");
        for number in [0, 1] {
            self.controller.replica(number)?.process.start()?;
            self.controller.replica(number)?.wait_ready()?;
        }
        poll::until("what was left to be removed", TAKEOVER, || {
            let left = self.made_for(&uid)?;
            ensure!(left.is_empty(), "{left:?}");
            Ok(())
        })
    }

    fn end_and_start(&self, number: usize) -> Result<()> {
        let pod = self.controller.replica(number)?;
        pod.process.terminate(WORK)?;
        self.controller.point_webhook_at(1 - number)?;
        poll::until("a leader", TAKEOVER, || {
            let lease = self.kubectl.json(&["get", "lease", "proxy-controller", "--namespace", SYSTEM])?;
            let holder = lease.pointer("/spec/holderIdentity").and_then(Value::as_str);
            ensure!(holder.is_some_and(|holder| !holder.is_empty()), "{lease}");
            Ok(())
        })?;
        pod.process.start()?;
        pod.wait_ready()
    }

    /// All of them go, one with its data.
    fn delete(&self) -> Result<()> {
        for name in ["main", "beside", "heir"].into_iter().chain(STRANGE) {
            self.gone(name)?;
        }
        Ok(())
    }

    fn gone(&self, name: &str) -> Result<()> {
        let uid = self.uid(name)?;
        self.kubectl.ok(&["delete", "etcdproxy", name, "--namespace", NAMESPACE, "--timeout=60s"])?;
        let left = self.made_for(&uid)?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    }
}
