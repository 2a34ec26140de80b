//! A tenant that has every right in two namespaces, in one of which the webhook is not even asked, against another tenant.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, anyhow, bail, ensure};
use futures::future::join_all;
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use xtask::{
    cluster::{Cluster, Endpoint, Etcdctl, Kubectl, ManagedProxy, Node, SYSTEM, own_program},
    pki::Identity,
    poll,
};

use crate::{
    WORK, conditions,
    loot::{self, Loot, Pair, opens},
    object, schema,
    tries::{self, Case, Outcome},
    upstream, wait_reason,
};

const VICTIM: &str = "victim";
const ROBBER: &str = "robber";
const UNGUARDED: &str = "unguarded";

const UID_LABEL: &str = "etcd.programming-kubernetes.info/uid";

/// The Secret of the webhook's certificate.
const WEBHOOK: &str = "proxy-controller-webhook";

/// The victim's data.
const TREASURE: &str = "pieces-of-eight-and-doubloons";

/// How many keys of it there are.
const PIECES: usize = 20;

/// An object that kube-apiserver took from the robber.
struct Accepted {
    namespace: &'static str,
    name: String,
    outcome: Outcome,
}

struct Scene<'a> {
    cluster: &'a Cluster,
    node: &'a Node,
    admin: &'a Kubectl,
    robber: Kubectl,
    /// The same as the robber.
    client: kube::Client,
    runtime: Runtime,
    victim: ManagedProxy,
}

pub(crate) fn rob(cluster: &Cluster) -> Result<()> {
    let scene = Scene::set(cluster).context("setting the scene")?;
    let before = scene.possessions()?;
    let fields = scene.every_field().context("through every field")?;
    scene.forged().context("forged status, labels and rights")?;
    scene.search(fields).context("what can be read")?;
    scene.at_the_own_proxy().context("at its own proxy")?;
    // Also when all that is deleted, with its data where that was asked for.
    for namespace in [ROBBER, UNGUARDED] {
        scene.robber.ok(&["delete", "etcdproxies", "--all", "--namespace", namespace, "--timeout=110s"])?;
    }
    ensure!(scene.possessions()? == before, "the victim's or the operator's Secrets have changed");
    let left = cluster.etcd.etcdctl().keys(scene.victim.prefix())?;
    ensure!(left.iter().filter(|key| key.contains(TREASURE)).count() == PIECES, "{left:?}");
    Ok(())
}

impl<'a> Scene<'a> {
    fn set(cluster: &'a Cluster) -> Result<Self> {
        let (admin, node) = (cluster.kubectl(), cluster.node()?);
        for namespace in [VICTIM, ROBBER, UNGUARDED] {
            admin.ok(&["create", "namespace", namespace])?;
        }
        upstream(admin, "generous", json!({"allowedPrefixes": ["/"]}))?;
        upstream(admin, "private", json!({"allowedNamespaces": [VICTIM]}))?;
        let wished = json!({"upstreamRef": {"name": "generous"}, "prefix": "/wished/victim/"});
        let diary = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": VICTIM, "name": "diary"},
            "stringData": {"entry": TREASURE},
        });
        // The webhook may have moved a moment ago.
        let objects =
            [object("EtcdProxy", VICTIM, "main", json!({})), object("EtcdProxy", VICTIM, "wished", wished), diary];
        poll::until("the victim's objects to be accepted", WORK, || admin.apply(&objects).map(drop))?;
        for name in ["main", "wished"] {
            wait_reason(admin, VICTIM, name, "Ready", "DeploymentUnavailable")?;
        }
        let victim = ManagedProxy::start(node, &own_program("etcd-proxy")?, VICTIM, "main")?;
        let etcdctl = victim.etcdctl(node, &cluster.tools)?;
        for number in 0..PIECES {
            etcdctl.ok(&["put", &format!("{TREASURE}/{number}"), &format!("{TREASURE}-{number}")])?;
        }
        admin.ok(&["create", "serviceaccount", "admin", "--namespace", ROBBER])?;
        for namespace in [ROBBER, UNGUARDED] {
            let account = format!("--serviceaccount={ROBBER}:admin");
            let args = ["create", "rolebinding", "robber", "--clusterrole=admin", &account, "--namespace", namespace];
            admin.ok(&args)?;
            let decoy = ["create", "secret", "generic", "decoy", "--from-literal=a=decoy", "--namespace", namespace];
            admin.ok(&decoy)?;
        }
        let kubeconfig = cluster.kube_apiserver.service_account_kubeconfig(&cluster.site, ROBBER, "admin")?;
        let robber = Kubectl::new(&cluster.site, &cluster.tools, kubeconfig)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let client = runtime.block_on(e2e::client(robber.kubeconfig(), &[]))?;
        let scene = Self { cluster, node, admin, robber, client, runtime, victim };
        scene.unguard()?;
        for namespace in [ROBBER, UNGUARDED] {
            let own = object("EtcdProxy", namespace, "own", json!({}));
            poll::until("the robber's rights", WORK, || {
                scene
                    .create(&own)?
                    .or_else(|why| if why.contains("AlreadyExists") { Ok(()) } else { Err(anyhow!(why)) })
            })?;
            wait_reason(admin, namespace, "own", "Ready", "DeploymentUnavailable")?;
        }
        Ok(scene)
    }

    /// In one namespace the webhook is not asked: what it would refuse is stored there.
    fn unguard(&self) -> Result<()> {
        let selector = json!({"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [UNGUARDED]}]});
        let patch = json!([{"op": "add", "path": "/webhooks/0/namespaceSelector", "value": selector}]).to_string();
        let configuration =
            ["patch", "validatingwebhookconfiguration", "proxy-controller", "--type=json", "--patch", &patch];
        self.admin.ok(&configuration)?;
        let probe = object("EtcdProxy", UNGUARDED, "probe", json!({"upstreamRef": {"name": "nobodys"}})).to_string();
        poll::until("the webhook to let one namespace be", WORK, || {
            let args = ["create", "--dry-run=server", "--validate=false", "-f", "-"];
            self.admin.run_with_input(&args, &probe)?.success().map(drop)
        })
    }

    /// What kube-apiserver says to an object of the robber's.
    fn create(&self, object: &Value) -> Result<Result<(), String>> {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
        let namespace = text("/metadata/namespace");
        let group = "/apis/etcd.programming-kubernetes.info/v1alpha1";
        let path = match text("/kind") {
            "EtcdProxy" => format!("{group}/namespaces/{namespace}/etcdproxies"),
            "EtcdProxyGrant" => format!("{group}/namespaces/{namespace}/etcdproxygrants"),
            "Secret" => format!("/api/v1/namespaces/{namespace}/secrets"),
            other => bail!("{other} is not known here"),
        };
        let request = http::Request::post(path).header("content-type", "application/json");
        let request = request.body(object.to_string().into_bytes())?;
        match self.runtime.block_on(self.client.request_text(request)) {
            Ok(_) => Ok(Ok(())),
            Err(kube::Error::Api(status)) => Ok(Err(format!("{}: {}", status.reason, status.message))),
            Err(error) => Err(error.into()),
        }
    }

    /// The Secrets of the victim and of the controller's namespace that are not the robber's.
    ///
    /// Of the webhook's own Secret only that it is there: another test of this cluster damages it, and the controller
    /// goes on to the next step of its mending a minute and a half later, in the middle of this.
    fn possessions(&self) -> Result<BTreeMap<String, Value>> {
        let own = self.robbers_uids()?;
        let mut possessions = BTreeMap::new();
        for namespace in [VICTIM, SYSTEM] {
            for secret in self.secrets(namespace)? {
                let of = secret.pointer("/metadata/labels").and_then(|labels| labels.get(UID_LABEL));
                if of.and_then(Value::as_str).is_some_and(|uid| own.contains(uid)) {
                    continue;
                }
                let name = secret.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
                let data = if name == WEBHOOK { None } else { secret.get("data").cloned() };
                possessions.insert(format!("{namespace}/{name}"), data.unwrap_or_default());
            }
        }
        Ok(possessions)
    }

    fn secrets(&self, namespace: &str) -> Result<Vec<Value>> {
        let list = self.admin.json(&["get", "secrets", "--namespace", namespace])?;
        list.get("items").and_then(Value::as_array).cloned().context("no list")
    }

    /// The uids of all EtcdProxies that the robber has, and had.
    fn robbers_uids(&self) -> Result<BTreeSet<String>> {
        let list = self.admin.json(&["get", "etcdproxies", "--all-namespaces"])?;
        let all = list.get("items").and_then(Value::as_array).context("no list")?.iter();
        let text = |proxy: &Value, path: &str| proxy.pointer(path).and_then(Value::as_str).map(str::to_owned);
        let theirs =
            all.filter(|proxy| text(proxy, "/metadata/namespace").is_some_and(|ns| ns == ROBBER || ns == UNGUARDED));
        Ok(theirs.filter_map(|proxy| text(proxy, "/metadata/uid")).collect())
    }

    /// Tries every field of both types, and waits until the controller has judged what was accepted.
    fn every_field(&self) -> Result<Vec<Accepted>> {
        let of_proxy = tries::of_proxy(self.victim.prefix());
        let mut accepted = Vec::new();
        for (kind, definition, cases) in [
            ("EtcdProxy", "etcdproxies.etcd.programming-kubernetes.info", of_proxy),
            ("EtcdProxyGrant", "etcdproxygrants.etcd.programming-kubernetes.info", tries::of_grant()),
        ] {
            let fields = schema::fields(self.admin, definition)?;
            for field in &fields {
                ensure!(
                    cases.iter().any(|case| case.is_for(field)),
                    "{kind}: nobody has tried what {field} is good for"
                );
            }
            let mut number = 0;
            for case in &cases {
                let exists = fields.iter().any(|field| case.is_for(field));
                ensure!(exists, "{kind} has no {}", case.field);
                for (spec, outcome) in &case.tries {
                    let name = format!("try-{number}");
                    number += 1;
                    for namespace in [ROBBER, UNGUARDED] {
                        let taken = self.attempt(kind, namespace, &name, spec, *outcome);
                        if taken.with_context(|| format!("{}: {spec} in {namespace}", case.field))?
                            && kind == "EtcdProxy"
                        {
                            accepted.push(Accepted { namespace, name: name.clone(), outcome: *outcome });
                        }
                    }
                }
            }
            eprintln!("{kind}: {} fields, {number} tries", fields.len());
        }
        for one in &accepted {
            self.judged(one).with_context(|| format!("{}/{}", one.namespace, one.name))?;
        }
        Ok(accepted)
    }

    /// Answers whether the object was accepted.
    fn attempt(&self, kind: &str, namespace: &str, name: &str, spec: &Value, outcome: Outcome) -> Result<bool> {
        match (self.create(&object(kind, namespace, name, spec.clone()))?, outcome) {
            (Ok(()), Outcome::Kept) => Ok(true),
            // There the controller has to refuse it.
            (Ok(()), _) if namespace == UNGUARDED && kind == "EtcdProxy" => Ok(true),
            (Ok(()), _) => bail!("it was accepted"),
            (Err(why), Outcome::Kept) => bail!("{why}"),
            (Err(why), Outcome::Refused(text) | Outcome::InPart(text)) => {
                ensure!(why.contains(text), "refused, but not with {text:?}: {why}");
                Ok(false)
            }
        }
    }

    /// The controller has looked at it, and says what was wrong.
    fn judged(&self, one: &Accepted) -> Result<()> {
        let Accepted { namespace, name, outcome } = one;
        let text = poll::until("the controller's judgement", WORK, || {
            let conditions = conditions(self.admin, namespace, name)?;
            let ready = conditions.iter().find(|one| one.get("type").is_some_and(|t| t == "Ready"));
            let reason = ready.and_then(|ready| ready.get("reason")).and_then(Value::as_str).unwrap_or("Pending");
            ensure!(reason != "Pending", "{conditions:?}");
            Ok(Value::from(conditions).to_string())
        })?;
        let (Outcome::Refused(expected) | Outcome::InPart(expected)) = outcome else { return Ok(()) };
        ensure!(text.contains(expected), "{expected:?} is not among {text}");
        if matches!(outcome, Outcome::Refused(_)) {
            let uid = self.admin.ok(&[
                "get",
                "etcdproxy",
                name,
                "--namespace",
                namespace,
                "-o",
                "jsonpath={.metadata.uid}",
            ])?;
            let selector = format!("{UID_LABEL}={uid}");
            let kinds = "secrets,configmaps,services,deployments";
            let made = self.admin.ok(&["get", kinds, "--all-namespaces", "--selector", &selector, "-o", "name"])?;
            ensure!(made.is_empty(), "it is refused, and there is {made}");
        }
        Ok(())
    }

    /// What stands beside `spec`: status, labels, other namespaces.
    fn forged(&self) -> Result<()> {
        let prefix = self.victim.prefix();
        let mut forged = object("EtcdProxy", ROBBER, "forged", json!({"deletionPolicy": "Delete"}));
        forged["status"] = json!({"prefix": prefix, "conditions": []});
        self.create(&forged)?.map_err(|why| anyhow!(why))?;
        wait_reason(self.admin, ROBBER, "forged", "Ready", "DeploymentUnavailable")?;
        let of =
            self.admin.ok(&["get", "etcdproxy", "forged", "--namespace", ROBBER, "-o", "jsonpath={.status.prefix}"])?;
        ensure!(of.starts_with("/etcd-proxies/robber/forged/"), "{of}");
        let status = json!({"status": {"prefix": prefix}}).to_string();
        let forbidden = |args: &[&str]| {
            let outcome = self.robber.run(args)?;
            ensure!(!outcome.status.success() && outcome.stderr.contains("orbidden"), "{args:?}: {outcome:?}");
            Ok(())
        };
        let patch = ["patch", "etcdproxy", "forged", "--namespace", ROBBER, "--type=merge", "--patch", &status];
        forbidden(&[&patch[..], &["--subresource=status"]].concat())?;
        forbidden(&["patch", "etcdupstream", "default", "--type=merge", "--patch", r#"{"spec":{"maxReplicas":99}}"#])?;
        forbidden(&["get", "etcdupstreams"])?;
        for namespace in [VICTIM, SYSTEM] {
            forbidden(&["get", "etcdproxies", "--namespace", namespace])?;
            forbidden(&["create", "token", "default", "--namespace", namespace])?;
            forbidden(&["auth", "reconcile", "-f", "-", "--namespace", namespace]).or_else(|_| {
                forbidden(&[
                    "create",
                    "rolebinding",
                    "in",
                    "--clusterrole=admin",
                    "--serviceaccount=robber:admin",
                    "--namespace",
                    namespace,
                ])
            })?;
        }
        // An object that looks as if it were the controller's, made for the victim.
        let uid =
            self.admin.ok(&["get", "etcdproxy", "main", "--namespace", VICTIM, "-o", "jsonpath={.metadata.uid}"])?;
        for name in ["main-etcd-client", "bait"] {
            self.create(&json!({
                "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
                "metadata": {
                    "namespace": ROBBER, "name": name,
                    "labels": {UID_LABEL: uid, "app.kubernetes.io/managed-by": "proxy-controller"},
                    "annotations": {"etcd.programming-kubernetes.info/etcdproxy": "victim/main"},
                },
                "data": {"tls.crt": "", "tls.key": ""},
            }))?
            .map_err(|why| anyhow!(why))?;
        }
        Ok(())
    }

    /// Nothing that the robber can read opens anything, or is anybody else's.
    fn search(&self, accepted: Vec<Accepted>) -> Result<()> {
        let mut paths = Vec::new();
        for namespace in [VICTIM, SYSTEM] {
            for secret in self.secrets(namespace)? {
                let name = secret.pointer("/metadata/name").and_then(Value::as_str).context("no name")?;
                paths.push(format!("/api/v1/namespaces/{namespace}/secrets/{name}"));
            }
        }
        let namespaces = [ROBBER, UNGUARDED, VICTIM, SYSTEM, "kube-system", "default", "kube-public"];
        let loot = self.runtime.block_on(Loot::gather(&self.client, &namespaces, &paths))?;
        ensure!(loot.refused > paths.len() && loot.answered > 20, "{} lists, {} refused", loot.answered, loot.refused);
        self.nobody_elses(&loot)?;
        eprintln!(
            "{} EtcdProxies accepted; {} lists read and {} requests refused; {} certificates with keys found",
            accepted.len(),
            loot.answered,
            loot.refused,
            loot.pairs.len()
        );
        // Wherever the controller wrote, it was in namespaces of those for whom it wrote.
        let own = self.robbers_uids()?;
        for kind in ["secrets", "configmaps", "services"] {
            let list = self.admin.json(&["get", kind, "--all-namespaces", "--selector", UID_LABEL])?;
            for object in list.get("items").and_then(Value::as_array).context("no list")? {
                let namespace = object.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or_default();
                let uid = object.pointer("/metadata/labels").and_then(|labels| labels.get(UID_LABEL));
                let theirs = uid.and_then(Value::as_str).is_some_and(|uid| own.contains(uid));
                ensure!(!theirs || [ROBBER, UNGUARDED, SYSTEM].contains(&namespace), "{object}");
            }
        }
        self.runtime.block_on(self.opens_nothing(&loot.pairs))
    }

    fn nobody_elses(&self, loot: &Loot) -> Result<()> {
        let own = self.robbers_uids()?;
        // What it may have, so that the search is known to find something.
        for secret in self.secrets(ROBBER)? {
            for (file, content) in loot::files(&secret) {
                for (what, body) in loot::blocks(&content) {
                    ensure!(loot.holds(&body), "the search does not find the robber's own {file}: {what}");
                }
            }
        }
        ensure!(!loot.holds(TREASURE), "the victim's data");
        let mut searched = 0;
        for namespace in [VICTIM, SYSTEM] {
            for secret in self.secrets(namespace)? {
                let name = secret.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
                let uid = secret.pointer("/metadata/labels").and_then(|labels| labels.get(UID_LABEL));
                let made_for_robber = uid.and_then(Value::as_str).is_some_and(|uid| own.contains(uid));
                for (file, content) in loot::files(&secret) {
                    let blocks = loot::blocks(&content);
                    if blocks.is_empty() && content.len() > 16 && !made_for_robber {
                        ensure!(!loot.holds(&content), "{namespace}/{name}: {file}");
                    }
                    for (what, body) in blocks {
                        // Certificates of its own proxies it knows; their keys, and the keys of its own CAs, it does not.
                        if what.contains("PRIVATE KEY") || !made_for_robber {
                            searched += 1;
                            ensure!(!loot.holds(&body), "{namespace}/{name}: {what} of {file}");
                        }
                    }
                }
            }
        }
        ensure!(searched > 50, "only {searched} keys and certificates were looked for");
        Ok(())
    }

    /// No certificate that was found opens the shared etcd or the victim's proxy, and each is of the robber's own names.
    async fn opens_nothing(&self, pairs: &[Pair]) -> Result<()> {
        let pairs: Vec<_> = pairs.iter().filter(|pair| !pair.key.is_empty()).collect();
        ensure!(pairs.len() > 10, "only {} certificates were found", pairs.len());
        let etcd = self.cluster.etcd.endpoint("etcd-proxy")?;
        let victim = self.victim.endpoint(self.node)?;
        let door = self.node.network.listen(&self.victim.address())?;
        // With the right certificate both are open.
        opens(&etcd, None).await.context("the shared etcd")?;
        opens(&victim, Some(door)).await.context("the victim's proxy")?;
        let folder = self.cluster.site.path("loot");
        std::fs::create_dir_all(&folder)?;
        let tried = pairs.iter().enumerate().map(|(number, pair)| {
            let (etcd, victim, folder) = (&etcd, &victim, &folder);
            async move {
                let names = loot::common_names(&pair.cert)?;
                let own = |name: &String| name.starts_with("robber/") || name.starts_with("unguarded/");
                ensure!(names.len() == 1 && names.iter().all(own), "{}: {names:?}", pair.secret);
                let file = |end: &str| folder.join(format!("{number}.{end}"));
                let client = Identity { cert: file("crt"), key: file("key") };
                std::fs::write(&client.cert, &pair.cert)?;
                std::fs::write(&client.key, &pair.key)?;
                for (what, endpoint, door) in [("etcd", etcd, None), ("the victim's proxy", victim, Some(door))] {
                    let endpoint = Endpoint { client: client.clone(), ..endpoint.clone() };
                    match opens(&endpoint, door).await {
                        Ok(()) => bail!("{} opens {what}", pair.secret),
                        Err(error) => {
                            let error = format!("{error:#}");
                            ensure!(!error.contains(loot::TIMED_OUT), "{what}: {error}");
                        }
                    }
                }
                Ok(())
            }
        });
        join_all(tried).await.into_iter().collect()
    }

    /// With its own certificate at its own proxy it sees its own keys.
    fn at_the_own_proxy(&self) -> Result<()> {
        let own = ManagedProxy::start(self.node, &own_program("etcd-proxy")?, ROBBER, "own")?;
        let etcdctl = own.etcdctl(self.node, &self.cluster.tools)?;
        let theirs = self.victim.etcdctl(self.node, &self.cluster.tools)?;
        let revision = revision(&theirs)?;
        theirs.ok(&["put", &format!("{TREASURE}/0"), &format!("{TREASURE}-anew")])?;
        for number in 0..3 {
            etcdctl.ok(&["put", &format!("mine/{number}"), "x"])?;
        }
        let mine = ["mine/0", "mine/1", "mine/2"];
        ensure!(etcdctl.keys("")? == mine, "{:?}", etcdctl.keys("")?);
        ensure!(
            etcdctl.ok(&["get", "", "--from-key", "--keys-only"])?.split_whitespace().eq(mine),
            "more from the start"
        );
        for key in
            [format!("{}{TREASURE}/0", self.victim.prefix()), format!("../main/{TREASURE}/0"), format!("{TREASURE}/0")]
        {
            ensure!(etcdctl.ok(&["get", &key, "--prefix"])?.is_empty(), "{key}");
        }
        // A snapshot is of its own part alone, not of the whole etcd.
        let file = self.cluster.site.path("loot/snapshot.db");
        let snapshot = etcdctl.run(&["snapshot", "save", file.to_str().context("no text")?])?;
        ensure!(snapshot.status.success(), "{snapshot:?}");
        let saved = String::from_utf8_lossy(&std::fs::read(&file)?).into_owned();
        ensure!(mine.iter().all(|key| saved.contains(key)), "{snapshot:?}");
        for foreign in [TREASURE, self.victim.prefix(), "/etcd-proxy.meta/"] {
            ensure!(!saved.contains(foreign), "{foreign} is in the snapshot");
        }
        // Its compaction takes no history from the other.
        let latest = self::revision(&etcdctl)?.to_string();
        etcdctl.ok(&["compact", &latest])?;
        let old =
            theirs.ok(&["get", &format!("{TREASURE}/0"), "--rev", &revision.to_string(), "--print-value-only"])?;
        ensure!(old.trim() == format!("{TREASURE}-0"), "{old}");
        // Deleting everything deletes its own.
        etcdctl.ok(&["del", "", "--from-key"])?;
        ensure!(theirs.keys(TREASURE)?.len() == PIECES);
        for pod in own.pods() {
            self.node.unpublish(pod)?;
        }
        Ok(())
    }
}

fn revision(etcdctl: &Etcdctl) -> Result<i64> {
    let answer: Value = serde_json::from_str(&etcdctl.ok(&["get", "none", "-w", "json"])?)?;
    answer.pointer("/header/revision").and_then(Value::as_i64).context("no revision")
}

impl Case {
    fn is_for(&self, field: &str) -> bool {
        let below =
            |rest: &str| self.below && (rest.starts_with('.') || rest.starts_with('[') || rest.starts_with('{'));
        field.strip_prefix(self.field).is_some_and(|rest| rest.is_empty() || below(rest))
    }
}
