//! Everything that somebody can read in the cluster, and what of it is of use.

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use futures::{StreamExt, stream};
use kube::Client;
use serde_json::Value;
use x509_parser::pem::Pem;
use xtask::cluster::Endpoint;

/// What a connection gets.
const PATIENCE: Duration = Duration::from_secs(10);

/// Requests at a time.
const AT_ONCE: usize = 16;

/// What was read.
pub(crate) struct Loot {
    /// How many lists were answered, and how many were refused.
    pub(crate) answered: usize,
    pub(crate) refused: usize,
    /// Certificates with their keys.
    pub(crate) pairs: Vec<Pair>,
    /// All texts in it, encoded ones decoded, without white space.
    texts: String,
}

/// A certificate chain and its key.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    /// The Secret, for people.
    pub(crate) secret: String,
    pub(crate) cert: String,
    pub(crate) key: String,
}

impl Loot {
    /// Reads all that `client` may: every kind of resource in every one of the namespaces and in all of them together, and
    /// each of the objects at `paths`.
    pub(crate) async fn gather(client: &Client, namespaces: &[&str], paths: &[String]) -> Result<Self> {
        let mut lists: Vec<String> = paths.to_vec();
        for (root, resource, namespaced) in resources(client).await? {
            lists.push(format!("{root}/{resource}"));
            if namespaced {
                lists.extend(namespaces.iter().map(|namespace| format!("{root}/namespaces/{namespace}/{resource}")));
            }
        }
        let answers = stream::iter(lists).map(|path| async move {
            let (code, body) = e2e::get(client, &path).await?;
            Ok::<_, anyhow::Error>((path, code, body))
        });
        let answers: Vec<_> = answers.buffer_unordered(AT_ONCE).collect().await;
        let mut loot = Self { answered: 0, refused: 0, pairs: Vec::new(), texts: String::new() };
        for answer in answers {
            let (path, code, body) = answer?;
            match code {
                200 => loot.answered += 1,
                403 => {
                    loot.refused += 1;
                    continue;
                }
                // Some resources cannot be listed so.
                404 | 405 => continue,
                _ => anyhow::bail!("{path}: {code} {body}"),
            }
            let value: Value = serde_json::from_str(&body).with_context(|| path.clone())?;
            collect(&value, &mut loot.texts);
            let items = value.get("items").and_then(Value::as_array).cloned().unwrap_or_else(|| vec![value]);
            loot.pairs.extend(items.iter().filter_map(pair));
        }
        Ok(loot)
    }

    /// Whether a text is in it, white space or none.
    pub(crate) fn holds(&self, text: &str) -> bool {
        self.texts.contains(&packed(text))
    }
}

/// Every resource that can be listed: where, its name, and whether it is namespaced.
async fn resources(client: &Client) -> Result<Vec<(String, String, bool)>> {
    let mut roots = vec!["/api/v1".to_owned()];
    let json = async |path: &str| -> Result<Value> {
        let (code, body) = e2e::get(client, path).await?;
        ensure!(code == 200, "{path}: {code} {body}");
        Ok(serde_json::from_str(&body)?)
    };
    let groups = json("/apis").await?;
    for group in groups.get("groups").and_then(Value::as_array).into_iter().flatten() {
        for version in group.get("versions").and_then(Value::as_array).into_iter().flatten() {
            let version = version.get("groupVersion").and_then(Value::as_str).context("no version")?;
            roots.push(format!("/apis/{version}"));
        }
    }
    let mut found = Vec::new();
    for root in roots {
        for resource in json(&root).await?.get("resources").and_then(Value::as_array).into_iter().flatten() {
            let verbs = resource.get("verbs").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            let name = resource.get("name").and_then(Value::as_str).unwrap_or_default();
            if verbs.iter().any(|verb| verb == "list") {
                let namespaced = resource.get("namespaced").is_some_and(|yes| yes == true);
                found.push((root.clone(), name.to_owned(), namespaced));
            }
        }
    }
    ensure!(found.iter().any(|(_, name, _)| name == "secrets"), "{found:?}");
    Ok(found)
}

/// All texts of an object, as they are and decoded.
fn collect(value: &Value, texts: &mut String) {
    match value {
        Value::String(text) => {
            texts.push_str(&packed(text));
            texts.push('\n');
            if let Ok(bytes) = STANDARD.decode(text) {
                texts.push_str(&packed(&String::from_utf8_lossy(&bytes)));
                texts.push('\n');
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect(value, texts)),
        Value::Object(values) => values.iter().for_each(|(key, value)| {
            texts.push_str(key);
            texts.push('\n');
            collect(value, texts);
        }),
        _ => {}
    }
}

fn packed(text: &str) -> String {
    text.split_whitespace().collect()
}

/// The files of a Secret or ConfigMap.
pub(crate) fn files(object: &Value) -> Vec<(String, String)> {
    let data = object.get("data").and_then(Value::as_object).into_iter().flatten();
    let decoded = data.filter_map(|(key, value)| {
        let bytes = STANDARD.decode(value.as_str()?).ok()?;
        Some((key.clone(), String::from_utf8_lossy(&bytes).into_owned()))
    });
    decoded.collect()
}

fn pair(secret: &Value) -> Option<Pair> {
    let files = files(secret);
    let file = |name: &str| files.iter().find(|(key, _)| key == name).map(|(_, content)| content.clone());
    let text = |path: &str| secret.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let name = format!("{}/{}", text("/metadata/namespace"), text("/metadata/name"));
    Some(Pair { secret: name, cert: file("tls.crt")?, key: file("tls.key")? })
}

/// The PEM blocks in a text: what each is, and its content without white space.
pub(crate) fn blocks(text: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    for part in text.split("-----BEGIN ").skip(1) {
        if let Some((label, rest)) = part.split_once("-----")
            && let Some((body, _)) = rest.split_once("-----END")
        {
            blocks.push((label.to_owned(), packed(body)));
        }
    }
    blocks
}

/// The common names in a certificate chain's first certificate.
pub(crate) fn common_names(chain: &str) -> Result<BTreeSet<String>> {
    let pem = Pem::iter_from_buffer(chain.as_bytes()).next().context("no certificate")??;
    let certificate = pem.parse_x509()?;
    let names = certificate.subject().iter_common_name();
    Ok(names.filter_map(|name| name.as_str().ok()).map(str::to_owned).collect())
}

/// Nothing was said: neither yes nor no.
pub(crate) const TIMED_OUT: &str = "no answer in time";

/// Whether an etcd, at its own address or behind that door, answers a question.
pub(crate) async fn opens(endpoint: &Endpoint, door: Option<SocketAddr>) -> Result<()> {
    let ask = async {
        let mut client = match door {
            None => e2e::etcd_client(endpoint).await?,
            Some(door) => e2e::etcd_client_at(endpoint, door).await?,
        };
        client.get("a", None).await?;
        Ok(())
    };
    tokio::time::timeout(PATIENCE, ask).await.context(TIMED_OUT)?
}
