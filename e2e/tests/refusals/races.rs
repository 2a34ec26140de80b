//! Two who want overlapping prefixes at the same instant.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, PostParams},
};
use serde_json::{Value, json};
use xtask::poll;

use crate::{WAIT, claims, cluster, proxy};

const ROUNDS: usize = 100;

/// What became of a wish.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// It has the prefix.
    Holds { uid: String, prefix: String },
    /// The webhook did not let it in.
    Refused,
    /// The claim was another's.
    Taken,
}

/// A wish that was uttered: where the object would be, and whether it was stored.
struct Wish {
    namespace: &'static str,
    name: String,
    prefix: String,
    stored: Result<(), String>,
}

pub(crate) fn api(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("etcd.programming-kubernetes.info", "v1alpha1", "EtcdProxy");
    Api::namespaced_with(client.clone(), namespace, &ApiResource::from_gvk_with_plural(&kind, "etcdproxies"))
}

/// The two of a round: the same prefix, one in the other, the other in the one, the same within one namespace.
fn wishes(round: usize) -> [(&'static str, String, String); 2] {
    let outer = format!("/race/{round:03}/");
    let inner = format!("{outer}in/deep/");
    let name = |who: &str| format!("round-{round:03}-{who}");
    match round % 4 {
        0 => [("race-a", name("x"), outer.clone()), ("race-b", name("x"), outer)],
        1 => [("race-a", name("x"), outer), ("race-b", name("x"), inner)],
        2 => [("race-a", name("x"), inner), ("race-b", name("x"), outer)],
        _ => [("race-a", name("x"), outer.clone()), ("race-a", name("y"), outer)],
    }
}

async fn utter(client: &Client, (namespace, name, prefix): (&'static str, String, String)) -> Result<Wish> {
    let spec = json!({"upstreamRef": {"name": "racing"}, "mode": "Sidecar", "prefix": prefix});
    let object: DynamicObject = serde_json::from_value(proxy(namespace, &name, &spec))?;
    let stored = match api(client, namespace).create(&PostParams::default(), &object).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 422 => Err(status.message),
        Err(error) => return Err(error.into()),
    };
    Ok(Wish { namespace, name, prefix, stored })
}

/// What became of it, once that is decided.
async fn outcome(client: &Client, wish: &Wish) -> Result<Outcome> {
    if let Err(message) = &wish.stored {
        ensure!(message.contains("spec.prefix: Forbidden: is claimed already"), "{message}");
        return Ok(Outcome::Refused);
    }
    let object = api(client, wish.namespace).get(&wish.name).await?;
    let uid = object.metadata.uid.context("it has no uid")?;
    let status = &object.data["status"];
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready").context("not looked at yet")?;
    match (ready["status"].as_str(), ready["reason"].as_str(), status["prefix"].as_str()) {
        (Some("True"), _, Some(prefix)) => {
            ensure!(prefix == wish.prefix, "{prefix} instead of {}", wish.prefix);
            Ok(Outcome::Holds { uid, prefix: prefix.to_owned() })
        }
        (Some("False"), Some("PrefixTaken"), None) => Ok(Outcome::Taken),
        _ => anyhow::bail!("not decided: {status}"),
    }
}

/// The claims on prefixes that begin so, each with the uid that it is for: as [`claims`], and quicker.
async fn held(etcd: &mut etcd_client::Client, beginning: &str) -> Result<Vec<(String, String)>> {
    let prefix = etcd_client::GetOptions::new().with_prefix();
    let answer = etcd.get(claim_key(beginning), Some(prefix)).await?;
    let held = answer.kvs().iter().map(|kv| {
        let claim: Value = serde_json::from_slice(kv.value())?;
        Ok((kv.key_str()?.to_owned(), claim["uid"].as_str().unwrap_or_default().to_owned()))
    });
    held.collect()
}

fn claim_key(prefix: &str) -> String {
    let hex: String = prefix.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("/etcd-proxy.meta/claims/{hex}")
}

/// Kube-apiserver admits both, mostly: the webhook sees no claim yet. Then it is the claims' Txn that decides.
#[test]
#[expect(clippy::print_stdout, reason = "how often the claims decided is told with --nocapture")]
fn of_two_that_overlap_exactly_one_gets_the_prefix_a_hundred_times() -> Result<()> {
    let cluster = cluster()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let client = runtime.block_on(e2e::client(cluster.kubectl().kubeconfig(), &[]))?;
    let endpoint = cluster.etcd.endpoint("races")?;
    let mut etcd = runtime.block_on(e2e::etcd_client(&endpoint))?;
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        let [one, other] = wishes(round);
        // Each by a task of its own, at once.
        let (one, other, held) = runtime.block_on(async {
            let spawn = |wish| {
                let client = client.clone();
                tokio::spawn(async move { utter(&client, wish).await })
            };
            let (one, other) = (spawn(one), spawn(other));
            let (one, other) = (one.await??, other.await??);
            Ok::<_, anyhow::Error>((one, other, held(&mut etcd, &format!("/race/{round:03}/")).await?))
        })?;
        ensure!(one.stored.is_ok() || other.stored.is_ok(), "round {round}: neither was admitted");
        ensure!(held.len() <= 1, "round {round}: {held:?}");
        rounds.push([one, other]);
    }
    let (mut refused, mut taken) = (0, 0);
    for (round, pair) in rounds.iter().enumerate() {
        let beginning = format!("/race/{round:03}/");
        let outcomes = poll::until(&format!("round {round} to be decided"), WAIT, || {
            runtime.block_on(async {
                let held = held(&mut etcd, &beginning).await?;
                ensure!(held.len() <= 1, poll::give_up(format!("two claims: {held:?}")));
                Ok([outcome(&client, &pair[0]).await?, outcome(&client, &pair[1]).await?])
            })
        })?;
        let (uid, prefix) = match &outcomes {
            [Outcome::Holds { uid, prefix }, Outcome::Taken | Outcome::Refused]
            | [Outcome::Taken | Outcome::Refused, Outcome::Holds { uid, prefix }] => (uid, prefix),
            _ => anyhow::bail!("round {round}: {outcomes:?}"),
        };
        let held = runtime.block_on(held(&mut etcd, &beginning))?;
        assert_eq!(held, [(claim_key(prefix), uid.clone())], "round {round}");
        refused += outcomes.iter().filter(|outcome| **outcome == Outcome::Refused).count();
        taken += outcomes.iter().filter(|outcome| **outcome == Outcome::Taken).count();
        // Whoever has nothing has nothing of the upstream's either.
        for (wish, outcome) in pair.iter().zip(&outcomes).filter(|(wish, _)| wish.stored.is_ok()) {
            let secrets: Api<Secret> = Api::namespaced(client.clone(), wish.namespace);
            let found = runtime.block_on(secrets.get_opt(&format!("{}-etcd-sidecar", wish.name)))?;
            ensure!(found.is_some() == matches!(outcome, Outcome::Holds { .. }), "{}", wish.name);
        }
    }
    // After all of it, still.
    assert_eq!(runtime.block_on(held(&mut etcd, "/race/0"))?.len(), ROUNDS);
    assert_eq!(refused + taken, ROUNDS);
    // Else this would show nothing of the Txn.
    ensure!(taken > ROUNDS / 10, "only {taken} were decided by the claim, {refused} by the webhook");
    println!("{taken} decided by the claim, {refused} by the webhook");
    Ok(())
}

/// The winner leaves data behind, and the one that lost against it is waiting for exactly that prefix.
#[test]
fn the_loser_of_a_race_does_not_inherit_the_winners_data() -> Result<()> {
    let cluster = cluster()?;
    let kubectl = cluster.kubectl();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = runtime.block_on(e2e::client(kubectl.kubeconfig(), &[]))?;
    let prefix = "/race/inheritance/";
    // Until the webhook has let both in.
    let (winner, loser) = poll::until("two that are stored", WAIT, || {
        let wish = |namespace: &'static str| (namespace, "inheritance".to_owned(), prefix.to_owned());
        let pair = runtime.block_on(async {
            let (one, other) = tokio::join!(utter(&client, wish("race-a")), utter(&client, wish("race-b")));
            Ok::<_, anyhow::Error>([one?, other?])
        })?;
        if pair.iter().any(|wish| wish.stored.is_err()) {
            for namespace in ["race-a", "race-b"] {
                let patch = json!({"spec": {"deletionPolicy": "Delete"}}).to_string();
                kubectl.run(&[
                    "patch",
                    "etcdproxy",
                    "inheritance",
                    "--namespace",
                    namespace,
                    "--type=merge",
                    "--patch",
                    &patch,
                ])?;
                kubectl.ok(&[
                    "delete",
                    "etcdproxy",
                    "inheritance",
                    "--namespace",
                    namespace,
                    "--ignore-not-found",
                    "--timeout=60s",
                ])?;
            }
            anyhow::bail!("one of them was refused");
        }
        poll::until("a decision", WAIT, || {
            let outcomes = runtime.block_on(async {
                Ok::<_, anyhow::Error>([outcome(&client, &pair[0]).await?, outcome(&client, &pair[1]).await?])
            })?;
            let first = matches!(outcomes[0], Outcome::Holds { .. });
            Ok(if first { ("race-a", "race-b") } else { ("race-b", "race-a") })
        })
    })?;
    let etcdctl = cluster.etcd.etcdctl();
    etcdctl.ok(&["put", &format!("{prefix}secret"), "the winner's"])?;
    kubectl.ok(&["delete", "etcdproxy", "inheritance", "--namespace", winner, "--timeout=60s"])?;
    let ready = |wanted: &str| {
        poll::until(&format!("{wanted} of the loser"), WAIT, || {
            let stamp = kubectl.json(&["get", "etcdproxy", "inheritance", "--namespace", loser])?;
            let version = stamp["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
            // Has it looked at now, and not within a minute.
            let touched = format!("example.com/touched-at={version}");
            kubectl.ok(&["annotate", "--overwrite", "etcdproxy", "inheritance", "--namespace", loser, &touched])?;
            let conditions = stamp.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
            let ready = conditions.iter().find(|condition| condition["type"] == "Ready").context("no condition")?;
            ensure!(ready["reason"] == wanted, "{ready}");
            Ok(())
        })
    };
    ready("PrefixHoldsData")?;
    let before = claims(cluster, prefix)?;
    // For several looks more.
    let began = std::time::Instant::now();
    poll::until("some time", WAIT, || {
        ready("PrefixHoldsData")?;
        ensure!(claims(cluster, prefix)? == before, poll::give_up("the claim changed hands"));
        ensure!(began.elapsed() > Duration::from_secs(3));
        Ok(())
    })?;
    let adoptions = json!({"spec": {"adoptions": [{"prefix": prefix, "namespace": loser, "name": "inheritance"}]}});
    kubectl.ok(&["patch", "etcdupstream", "racing", "--type=merge", "--patch", &adoptions.to_string()])?;
    ready("SidecarConfigured")?;
    let after = claims(cluster, prefix)?;
    ensure!(after.len() == 1 && after != before, "{after:?}");
    ensure!(etcdctl.ok(&["get", &format!("{prefix}secret"), "--print-value-only"])?.trim() == "the winner's");
    Ok(())
}
