//! What is shipped in `manifests/`, on the real kube-apiserver and without the controller: everything is accepted, and the
//! walls that need no controller stand.

use std::{path::PathBuf, sync::OnceLock, time::Duration};

use anyhow::{Context, Result, anyhow, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use e2e::Shared;
use serde_json::{Value, json};
use xtask::{
    cluster::Kubectl,
    pki::{Ca, Request},
    poll,
};

static CLUSTER: Shared = Shared::new("manifests", Ok);

const WAIT: Duration = Duration::from_secs(60);

/// Who the controller is.
const CONTROLLER: &str = "--as=system:serviceaccount:etcd-proxy-system:proxy-controller";

fn folder(name: &str) -> Result<String> {
    let path = xtask::root().join("manifests").join(name);
    path.to_str().map(str::to_owned).context("the path of the manifests is no text")
}

/// kubectl as an administrator, with the types, the controller's manifests and two EtcdUpstreams applied. There is no
/// controller, so the webhook is taken away.
fn installed() -> Result<&'static Kubectl> {
    static INSTALLED: OnceLock<Result<(), String>> = OnceLock::new();
    let kubectl = CLUSTER.get()?.kubectl();
    let install = || {
        kubectl.ok(&["apply", "--server-side", "-k", &folder("crds")?])?;
        kubectl.ok(&["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"])?;
        let apply = || without_warning(kubectl, &["apply", "-k", &folder("controller")?]);
        poll::until("the controller's manifests to be accepted", WAIT, apply)?;
        for namespace in ["restaurant", "team-c", "reporting"] {
            kubectl.apply(&[json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})])?;
        }
        without_warning(kubectl, &["apply", "-k", &folder("upstream")?])?;
        let allowed = json!({"spec": {"allowedNamespaces": ["restaurant", "team-c"]}}).to_string();
        kubectl.ok(&["patch", "etcdupstream", "default", "--type=merge", "--patch", &allowed])?;
        // Nobody answers the webhook: what it guards cannot be made.
        let refused =
            kubectl.run_with_input(&["create", "-f", "-"], &proxy("restaurant", "early", json!({})).to_string())?;
        ensure!(refused.stderr.contains("failed calling webhook"), "{refused:?}");
        kubectl.ok(&["delete", "validatingwebhookconfiguration", "proxy-controller"])?;
        kubectl.apply(&[upstream("everybodys", &["*"])])?;
        // The webhook's absence and the EtcdUpstreams may take a moment to be known to admission.
        poll::until("the policy to know the EtcdUpstreams", WAIT, || {
            let outcome = dry_run(kubectl, &proxy("default", "probe", json!({})))?;
            ensure!(outcome.is_err_and(|error| error.contains("allowedNamespaces")));
            dry_run(kubectl, &proxy("restaurant", "probe", json!({})))?.map_err(|error| anyhow!(error))
        })
    };
    let installed = INSTALLED.get_or_init(|| install().map_err(|error: anyhow::Error| format!("{error:#}")));
    installed.as_ref().map(|()| kubectl).map_err(|error| anyhow!("{error}"))
}

fn proxy(namespace: &str, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "etcd.programming-kubernetes.info/v1alpha1", "kind": "EtcdProxy",
        "metadata": {"namespace": namespace, "name": name}, "spec": spec,
    })
}

fn upstream(name: &str, namespaces: &[&str]) -> Value {
    json!({
        "apiVersion": "etcd.programming-kubernetes.info/v1alpha1", "kind": "EtcdUpstream", "metadata": {"name": name},
        "spec": {"endpoints": ["https://etcd:2379"], "allowedNamespaces": namespaces},
    })
}

/// What kube-apiserver says to an object, as whoever `args` say.
fn ask(kubectl: &Kubectl, args: &[&str], object: &Value) -> Result<Result<(), String>> {
    let outcome = kubectl.run_with_input(&[args, &["-f", "-"]].concat(), &object.to_string())?;
    Ok(if outcome.status.success() { Ok(()) } else { Err(outcome.stderr) })
}

fn dry_run(kubectl: &Kubectl, object: &Value) -> Result<Result<(), String>> {
    ask(kubectl, &["create", "--dry-run=server"], object)
}

/// Runs a command, with whose objects kube-apiserver has nothing to find fault: no pod is against the level that its namespace
/// enforces.
fn without_warning(kubectl: &Kubectl, args: &[&str]) -> Result<()> {
    let outcome = kubectl.run(args)?;
    let stderr = outcome.stderr.clone();
    outcome.success()?;
    ensure!(!stderr.contains("Warning:"), "{stderr}");
    Ok(())
}

#[test]
fn everything_is_accepted() -> Result<()> {
    let kubectl = installed()?;
    for name in
        ["pizza-apiserver/base", "pizza-apiserver/overlays/insecure", "pizza-apiserver/overlays/sidecar-trusted"]
    {
        without_warning(kubectl, &["apply", "--dry-run=server", "-k", &folder(name)?])?;
    }
    let examples = folder("examples/etcdproxy")?;
    for name in ["minimal.yaml", "limits.yaml"] {
        let file = format!("{examples}/{name}");
        without_warning(kubectl, &["apply", "--dry-run=server", "--namespace=restaurant", "-f", &file])?;
    }
    without_warning(kubectl, &["apply", "--dry-run=server", "-f", &format!("{examples}/clients.yaml")])
}

#[test]
fn the_serving_certificate_becomes_the_ca_bundle() -> Result<()> {
    let kubectl = installed()?;
    // A kustomization may not reach out of its own folder, and the certificates are nothing for the source tree.
    let site = &CLUSTER.get()?.site;
    let copy = site.path("pizza-apiserver");
    let component = copy.join("components/serving-certificate");
    copy_folder(&PathBuf::from(folder("pizza-apiserver")?), &copy)?;
    let ca = Ca::create(&site.pki("restaurant")?, "restaurant-serving-ca")?;
    let name = "api.restaurant.svc";
    let serving = ca.issue(&Request {
        file: "tls",
        common_name: name,
        organization: None,
        server_names: &[name],
        client: false,
    })?;
    std::fs::copy(&serving.cert, component.join("tls.crt"))?;
    std::fs::copy(&serving.key, component.join("tls.key"))?;
    std::fs::write(component.join("ca.crt"), ca.pem())?;
    let bundle = STANDARD.encode(ca.pem());
    let built = |component: &str| {
        let overlay = copy.join("overlays/mine");
        std::fs::create_dir_all(&overlay)?;
        let text = format!("resources: [../../base]\ncomponents: [../../components/{component}]\n");
        std::fs::write(overlay.join("kustomization.yaml"), text)?;
        let overlay = overlay.to_str().context("the path is no text")?;
        kubectl.ok(&["create", "--dry-run=client", "--validate=false", "-o", "json", "-k", overlay])
    };
    // One document after the other.
    let objects = |text: &str| {
        serde_json::Deserializer::from_str(text).into_iter::<Value>().collect::<Result<Vec<_>, _>>().context("no JSON")
    };
    let of_kind = |objects: &[Value], kind: &str| -> Vec<Value> {
        let all = objects.iter().flat_map(|object| match object.get("items").and_then(Value::as_array) {
            Some(items) => items.clone(),
            None => vec![object.clone()],
        });
        all.filter(|object| object.get("kind").is_some_and(|found| found == kind)).collect()
    };
    let with_openssl = objects(&built("serving-certificate")?)?;
    let services = of_kind(&with_openssl, "APIService");
    ensure!(services.len() == 2, "{services:?}");
    for service in services {
        // kustomize breaks the lines; kube-apiserver does not mind.
        let found = service.pointer("/spec/caBundle").and_then(Value::as_str).context("there is no caBundle")?;
        ensure!(found.replace('\n', "") == bundle, "{service}");
    }
    let secrets = of_kind(&with_openssl, "Secret");
    ensure!(secrets.iter().all(|secret| secret.pointer("/data/ca.key").is_none()) && secrets.len() == 1, "{secrets:?}");
    // cert-manager is no part of this cluster; what its injector reads is there, and nothing that fights it.
    let output = kubectl.run(&["kustomize", copy.join("overlays/mine").to_str().context("no text")?])?.success()?;
    ensure!(output.contains("caBundle"));
    std::fs::write(
        copy.join("overlays/mine/kustomization.yaml"),
        "resources: [../../base]\ncomponents: [../../components/cert-manager]\n",
    )?;
    let output = kubectl.run(&["kustomize", copy.join("overlays/mine").to_str().context("no text")?])?.success()?;
    ensure!(!output.contains("caBundle"), "{output}");
    ensure!(
        output.matches("cert-manager.io/inject-ca-from: restaurant/pizza-apiserver-serving").count() == 2,
        "{output}"
    );
    Ok(())
}

fn copy_folder(from: &std::path::Path, to: &std::path::Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from).with_context(|| from.display().to_string())? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            std::fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

#[test]
fn only_listed_namespaces_may_refer_to_an_upstream() -> Result<()> {
    let kubectl = installed()?;
    let asked = |namespace: &str, reference: Option<&str>| {
        let spec = reference.map_or(json!({}), |name| json!({"upstreamRef": {"name": name}}));
        dry_run(kubectl, &proxy(namespace, "asked", spec))
    };
    for (namespace, reference, permitted) in [
        ("restaurant", None, true),
        ("restaurant", Some("default"), true),
        ("kube-public", None, false),
        ("kube-public", Some("default"), false),
        ("kube-public", Some("everybodys"), true),
        // That there is none is told by the webhook, which is not asked here.
        ("kube-public", Some("nobodys"), true),
    ] {
        let answer = asked(namespace, reference)?;
        match answer {
            Ok(()) => ensure!(permitted, "{namespace} {reference:?}"),
            Err(error) => ensure!(
                !permitted
                    && error.contains(&format!(
                        "spec.upstreamRef: Forbidden: EtcdUpstream default does not list namespace {namespace} in its allowedNamespaces"
                    )),
                "{namespace} {reference:?}: {error}"
            ),
        }
    }
    // Taking the permission back stops changes of spec, and nothing else.
    kubectl.ok(&["create", "namespace", "leaving"])?;
    kubectl.apply(&[upstream("temporary", &["leaving"])])?;
    let object = proxy("leaving", "one", json!({"upstreamRef": {"name": "temporary"}}));
    kubectl.apply(std::slice::from_ref(&object))?;
    kubectl.apply(&[upstream("temporary", &[])])?;
    let patch = |patch: Value, further: &[&str]| {
        let patch = patch.to_string();
        let args = ["patch", "etcdproxy", "one", "--namespace=leaving", "--type=merge", "--patch", &patch];
        kubectl.run(&[&args, further].concat())
    };
    poll::until("the policy to know that the permission is gone", WAIT, || {
        let refused = patch(json!({"spec": {"deletionPolicy": "Delete"}}), &["--dry-run=server"])?;
        ensure!(refused.stderr.contains("allowedNamespaces"), "{refused:?}");
        Ok(())
    })?;
    patch(json!({"metadata": {"labels": {"a": "b"}, "finalizers": ["example.com/wait"]}}), &[])?.success()?;
    patch(json!({"status": {"prefix": "/x/"}}), &["--subresource=status"])?.success()?;
    kubectl.ok(&["delete", "etcdproxy", "one", "--namespace=leaving", "--wait=false"])?;
    patch(json!({"metadata": {"finalizers": null}}), &[])?.success()?;
    poll::until("the object to be gone", WAIT, || {
        let found = kubectl.ok(&["get", "etcdproxies", "--namespace=leaving", "-o", "name"])?;
        ensure!(found.is_empty(), "{found}");
        Ok(())
    })
}

#[test]
fn an_upstream_that_is_referred_to_is_not_deleted() -> Result<()> {
    let kubectl = installed()?;
    kubectl.apply(&[upstream("in-use", &[])])?;
    let counted = |count: u32| {
        let status = json!({"status": {"tenants": count}}).to_string();
        let args = ["patch", "etcdupstream", "in-use", "--subresource=status", "--type=merge", "--patch", &status];
        kubectl.ok(&args).map(drop)
    };
    counted(2)?;
    poll::until("the policy to be at work", WAIT, || {
        let refused = kubectl.run(&["delete", "etcdupstream", "in-use", "--dry-run=server"])?;
        ensure!(refused.stderr.contains("EtcdProxies that refer to EtcdUpstream in-use: 2"), "{refused:?}");
        Ok(())
    })?;
    counted(0)?;
    kubectl.ok(&["delete", "etcdupstream", "in-use"])?;
    // One that nobody ever looked at, too.
    kubectl.apply(&[upstream("in-use", &[])])?;
    kubectl.ok(&["delete", "etcdupstream", "in-use"]).map(drop)
}

#[test]
fn the_webhook_stands_in_the_way_of_nothing_else() -> Result<()> {
    let kubectl = installed()?;
    kubectl.ok(&["create", "namespace", "unanswered"])?;
    let object = proxy("unanswered", "one", json!({"upstreamRef": {"name": "everybodys"}}));
    kubectl.apply(std::slice::from_ref(&object))?;
    // The same rules under another name, for this namespace: other tests want to create.
    let text =
        kubectl.ok(&["create", "--dry-run=client", "--validate=false", "-o", "json", "-k", &folder("controller")?])?;
    let shipped = serde_json::Deserializer::from_str(&text)
        .into_iter::<Value>()
        .filter_map(Result::ok)
        .flat_map(|object| object.get("items").and_then(Value::as_array).cloned().unwrap_or_else(|| vec![object]))
        .find(|object| object.get("kind").is_some_and(|kind| kind == "ValidatingWebhookConfiguration"));
    let mut webhook = shipped.context("there is no ValidatingWebhookConfiguration")?;
    *webhook.pointer_mut("/metadata").context("no metadata")? = json!({"name": "unanswered"});
    *webhook.pointer_mut("/webhooks/0").and_then(|w| w.get_mut("matchPolicy")).context("no matchPolicy")? =
        "Exact".into();
    webhook
        .pointer_mut("/webhooks/0")
        .and_then(Value::as_object_mut)
        .context("no webhook")?
        .insert("namespaceSelector".to_owned(), json!({"matchLabels": {"kubernetes.io/metadata.name": "unanswered"}}));
    kubectl.apply(&[webhook])?;
    let patch = |patch: Value, further: &[&str]| {
        let patch = patch.to_string();
        let args = ["patch", "etcdproxy", "one", "--namespace=unanswered", "--type=merge", "--patch", &patch];
        kubectl.run(&[&args, further].concat())
    };
    poll::until("the webhook to be asked about changes of spec", WAIT, || {
        let refused = patch(json!({"spec": {"deletionPolicy": "Delete"}}), &["--dry-run=server"])?;
        ensure!(refused.stderr.contains("failed calling webhook"), "{refused:?}");
        Ok(())
    })?;
    let another = proxy("unanswered", "two", json!({"upstreamRef": {"name": "everybodys"}}));
    ensure!(dry_run(kubectl, &another)?.is_err_and(|error| error.contains("failed calling webhook")));
    patch(json!({"metadata": {"labels": {"a": "b"}, "finalizers": ["example.com/wait"]}}), &[])?.success()?;
    patch(json!({"status": {"prefix": "/x/"}}), &["--subresource=status"])?.success()?;
    kubectl.ok(&["delete", "etcdproxy", "one", "--namespace=unanswered", "--wait=false"])?;
    patch(json!({"metadata": {"finalizers": null}}), &[])?.success()?;
    kubectl.ok(&["delete", "validatingwebhookconfiguration", "unanswered"]).map(drop)
}

#[test]
fn the_controller_writes_only_what_it_made() -> Result<()> {
    let kubectl = installed()?;
    kubectl.ok(&["create", "namespace", "tenant"])?;
    let of = |kind: &str, name: &str, labelled: bool, further: Value| {
        let mut object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"namespace": "tenant", "name": name}});
        if labelled {
            object["metadata"]["labels"] = json!({"app.kubernetes.io/managed-by": "proxy-controller"});
        }
        if let (Some(object), Value::Object(further)) = (object.as_object_mut(), further) {
            object.extend(further);
        }
        object
    };
    let create = |object: &Value| ask(kubectl, &["create", CONTROLLER], object);
    let applied = |object: &Value| {
        ask(
            kubectl,
            &["apply", "--server-side", "--force-conflicts", "--field-manager=proxy-controller", CONTROLLER],
            object,
        )
    };
    let refused = |answer: Result<(), String>, why: &str| {
        let error = answer.err().context("it was permitted")?;
        ensure!(error.contains(why), "{error}");
        Ok(())
    };
    // As administrators know it from the start of the test: the policy may take a moment.
    poll::until("the policy to be at work", WAIT, || {
        refused(
            ask(kubectl, &["create", "--dry-run=server", CONTROLLER], &of("ConfigMap", "probe", false, json!({})))?,
            "labelled",
        )
    })?;
    for kind in ["ConfigMap", "Secret"] {
        refused(create(&of(kind, "unlabelled", false, json!({})))?, "labelled")?;
        // Somebody else's, also when it would be labelled in the same breath.
        kubectl.apply(&[of(kind, "foreign", false, json!({}))])?;
        refused(applied(&of(kind, "foreign", true, json!({})))?, "only objects that it made")?;
        let delete = kubectl.run(&["delete", kind, "foreign", "--namespace=tenant", CONTROLLER])?;
        ensure!(delete.stderr.contains("only objects that it made"), "{delete:?}");
    }
    let mut token = of("Secret", "token", true, json!({"type": "kubernetes.io/service-account-token"}));
    token["metadata"]["annotations"] = json!({"kubernetes.io/service-account.name": "default"});
    refused(create(&token)?, "kubernetes.io/tls or Opaque")?;
    let takeover = json!({"spec": {"selector": {"app": "victim"}, "ports": [{"port": 443}]}});
    refused(create(&of("Service", "takeover", true, takeover))?, "ExternalName")?;
    // Its own, also after somebody has taken the label off.
    let own = of("Secret", "own", true, json!({"data": {"a": "YQ=="}}));
    let address = of("Service", "own", true, json!({"spec": {"type": "ExternalName", "externalName": "a.b.svc"}}));
    for object in [&own, &address] {
        applied(object)?.map_err(|error| anyhow!(error))?;
    }
    for kind in ["secret", "service"] {
        kubectl.ok(&["label", kind, "own", "--namespace=tenant", "app.kubernetes.io/managed-by-"])?;
    }
    for object in [&own, &address] {
        applied(object)?.map_err(|error| anyhow!(error))?;
    }
    kubectl.ok(&["delete", "secret,service", "own", "--namespace=tenant", CONTROLLER])?;
    // Its own namespace is not the policy's matter.
    let mut inside = of("Secret", "inside", false, json!({}));
    inside["metadata"]["namespace"] = "etcd-proxy-system".into();
    create(&inside)?.map_err(|error| anyhow!(error))
}

#[test]
fn rights_are_what_they_should_be() -> Result<()> {
    let kubectl = installed()?;
    kubectl.ok(&["create", "namespace", "editors"])?;
    kubectl.ok(&["create", "rolebinding", "jane", "--clusterrole=edit", "--user=jane", "--namespace=editors"])?;
    kubectl.ok(&["create", "rolebinding", "joe", "--clusterrole=view", "--user=joe", "--namespace=editors"])?;
    let can = |who: &str, verb: &str, resource: &str, namespace: &str| {
        // A subresource is a flag; after a slash comes the name.
        let resource: Vec<_> = resource.split(' ').collect();
        let outcome = kubectl.run(&[&["auth", "can-i", verb, "--namespace", namespace, who], &*resource].concat())?;
        Ok::<_, anyhow::Error>(outcome.stdout.trim() == "yes")
    };
    let group = "etcd.programming-kubernetes.info";
    let proxies = format!("etcdproxies.{group}");
    poll::until("the roles to be aggregated", WAIT, || {
        ensure!(can("--as=jane", "create", &proxies, "editors")? && can("--as=joe", "list", &proxies, "editors")?);
        Ok(())
    })?;
    let grants = format!("etcdproxygrants.{group}");
    let upstreams = format!("etcdupstreams.{group}");
    let status = format!("etcdproxies.{group} --subresource=status");
    for (who, verb, resource, namespace, expected) in [
        ("--as=jane", "delete", proxies.as_str(), "editors", true),
        ("--as=jane", "create", &grants, "editors", true),
        ("--as=jane", "create", &proxies, "default", false),
        ("--as=jane", "patch", &status, "editors", false),
        ("--as=jane", "get", &upstreams, "editors", false),
        ("--as=jane", "create", &upstreams, "editors", false),
        ("--as=joe", "create", &proxies, "editors", false),
        ("--as=joe", "get", &upstreams, "editors", false),
        (CONTROLLER, "create", &proxies, "editors", false),
        (CONTROLLER, "delete", &proxies, "editors", false),
        (CONTROLLER, "patch", &upstreams, "editors", false),
        (CONTROLLER, "create", "pods", "etcd-proxy-system", false),
        (CONTROLLER, "create", "pods --subresource=exec", "etcd-proxy-system", false),
        (CONTROLLER, "create", "deployments.apps", "editors", false),
        (CONTROLLER, "create", "deployments.apps", "etcd-proxy-system", true),
        (CONTROLLER, "create", "serviceaccounts --subresource=token", "etcd-proxy-system", false),
        (CONTROLLER, "update", "secrets", "editors", false),
        (CONTROLLER, "create", "rolebindings.rbac.authorization.k8s.io", "etcd-proxy-system", false),
        (CONTROLLER, "patch", "validatingwebhookconfigurations.admissionregistration.k8s.io", "editors", false),
        (
            CONTROLLER,
            "patch",
            "validatingwebhookconfigurations.admissionregistration.k8s.io/proxy-controller",
            "editors",
            true,
        ),
    ] {
        ensure!(
            can(who, verb, resource, namespace)? == expected,
            "{who} {verb} {resource} in {namespace}: not {expected}"
        );
    }
    Ok(())
}
