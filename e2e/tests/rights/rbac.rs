//! Rights, one by one, as they are granted and as they are used.

use std::{collections::BTreeSet, fmt};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use xtask::cluster::{AuditedRequest, Kubectl, SYSTEM};

/// The controller's ServiceAccount.
const ACCOUNT: &str = "proxy-controller";

/// One right.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Right {
    verb: String,
    group: String,
    resource: String,
    /// Granted: nothing means everywhere. Used: nothing means of a cluster-wide request.
    namespace: Option<String>,
    /// Granted: nothing means all. Used: nothing means of a request for no single object.
    name: Option<String>,
}

/// All rights that the controller's account is granted by name.
pub(crate) fn granted(kubectl: &Kubectl) -> Result<Vec<Right>> {
    let mut rights = Vec::new();
    for bindings in ["clusterrolebindings", "rolebindings"] {
        let list = kubectl.json(&["get", bindings, "--all-namespaces"])?;
        for binding in list.get("items").and_then(Value::as_array).context("no list")? {
            let subjects = binding.get("subjects").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            let is_ours = |subject: &Value| {
                subject.get("kind").is_some_and(|kind| kind == "ServiceAccount")
                    && subject.get("name").is_some_and(|name| name == ACCOUNT)
                    && subject.get("namespace").is_some_and(|namespace| namespace == SYSTEM)
            };
            if !subjects.iter().any(is_ours) {
                continue;
            }
            let text = |path: &str| binding.pointer(path).and_then(Value::as_str).map(str::to_owned);
            let namespace = text("/metadata/namespace");
            let (kind, name) = (text("/roleRef/kind").context("no kind")?, text("/roleRef/name").context("no name")?);
            let role = match (kind.as_str(), &namespace) {
                ("ClusterRole", _) => kubectl.json(&["get", "clusterrole", &name])?,
                ("Role", Some(namespace)) => kubectl.json(&["get", "role", &name, "--namespace", namespace])?,
                _ => bail!("{binding}"),
            };
            for rule in role.get("rules").and_then(Value::as_array).context("no rules")? {
                rights.extend(expanded(rule, namespace.as_ref())?);
            }
        }
    }
    Ok(rights)
}

fn expanded(rule: &Value, namespace: Option<&String>) -> Result<Vec<Right>> {
    let list = |field: &str| -> Vec<String> {
        let values = rule.get(field).and_then(Value::as_array).into_iter().flatten();
        values.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    ensure!(list("nonResourceURLs").is_empty(), "{rule}");
    let names: Vec<_> = match list("resourceNames") {
        names if names.is_empty() => vec![None],
        names => names.into_iter().map(Some).collect(),
    };
    let mut rights = Vec::new();
    for group in list("apiGroups") {
        for resource in list("resources") {
            for verb in list("verbs") {
                ensure!(![&group, &resource, &verb].contains(&&"*".to_owned()), "{rule} grants what nobody can list");
                rights.extend(names.iter().map(|name| Right {
                    verb: verb.clone(),
                    group: group.clone(),
                    resource: resource.clone(),
                    namespace: namespace.cloned(),
                    name: name.clone(),
                }));
            }
        }
    }
    Ok(rights)
}

/// What is used and not granted, granted and not used, or granted more widely than it is used.
pub(crate) fn differences(granted: &[Right], requests: &[AuditedRequest]) -> Vec<String> {
    let used: BTreeSet<Right> = requests.iter().flat_map(used).collect();
    let mut differences: Vec<String> = used
        .iter()
        .filter(|used| !granted.iter().any(|right| right.covers(used)))
        .map(|used| format!("used, not granted: {used}"))
        .collect();
    for right in granted {
        let uses: Vec<_> = used.iter().filter(|used| right.covers(used)).collect();
        if uses.is_empty() {
            differences.push(format!("granted, not used: {right}"));
        } else if right.namespace.is_none() && uses.iter().all(|used| used.namespace.as_deref() == Some(SYSTEM)) {
            differences.push(format!("granted everywhere, used in the own namespace alone: {right}"));
        }
        let names: BTreeSet<_> = uses.iter().map(|used| used.name.as_deref()).collect();
        // A creation cannot be granted by name.
        if right.name.is_none()
            && right.verb != "create"
            && names.len() == 1
            && let Some(Some(name)) = names.first()
        {
            differences.push(format!("granted for all names, used for {name} alone: {right}"));
        }
        if granted.iter().filter(|other| other.covers(right)).count() > 1 {
            differences.push(format!("granted twice: {right}"));
        }
    }
    differences
}

fn used(request: &AuditedRequest) -> Vec<Right> {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let right = Right {
        verb: request.verb.clone(),
        group: request.group.clone(),
        resource: request.resource.clone(),
        namespace: some(&request.namespace),
        name: some(&request.name),
    };
    // A server-side apply that makes an object needs the right to create, which the log does not tell
    // (`staging/src/k8s.io/apiserver/pkg/endpoints/handlers/patch.go`, `withAuthorization`).
    let made = request.verb == "patch" && request.code == 201;
    let create = made.then(|| Right { verb: "create".to_owned(), ..right.clone() });
    std::iter::once(right).chain(create).collect()
}

impl Right {
    /// Whether whoever is granted this may do that.
    fn covers(&self, other: &Self) -> bool {
        (&self.verb, &self.group, &self.resource) == (&other.verb, &other.group, &other.resource)
            && (self.namespace.is_none() || self.namespace == other.namespace)
            && (self.name.is_none() || self.name == other.name)
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verb, group, resource, namespace, name } = self;
        let dot = if group.is_empty() { "" } else { "." };
        write!(f, "{verb} {resource}{dot}{group}")?;
        name.iter().try_for_each(|name| write!(f, " {name}"))?;
        write!(f, " in {}", namespace.as_deref().unwrap_or("the whole cluster"))
    }
}
