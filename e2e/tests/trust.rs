//! Who is believed and who may do what: the aggregator's certificates, forged headers, RBAC, and an authoriser that is away.

use anyhow::{Result, ensure};
use e2e::{client, get};
use serde_json::Value;
use xtask::cluster::{Cluster, Options};

const PIZZAS: &str = "/apis/restaurant.programming-kubernetes.info/v1beta1/namespaces/default/pizzas";

const FORGED: [(&str, &str); 2] = [("x-remote-user", "admin"), ("x-remote-group", "system:masters")];

/// One cluster, in this order: the last part takes kube-apiserver away.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_believed() -> Result<()> {
    let cluster = Cluster::start(Options::of_test("trust")?.with_restaurant()?.with_wardle()?)?;
    verified_certificates(&cluster)?;
    forged_headers(&cluster).await?;
    rights(&cluster)?;
    without_authoriser(&cluster).await?;
    cluster.remove()
}

fn verified_certificates(cluster: &Cluster) -> Result<()> {
    for tenant in [cluster.restaurant()?, cluster.wardle()?] {
        for name in tenant.server.api_services() {
            let object = cluster.kubectl().json(&["get", "apiservice", &name])?;
            ensure!(
                object.pointer("/spec/insecureSkipTLSVerify").is_none_or(|skip| skip == &Value::Bool(false)),
                "{object}"
            );
            ensure!(
                object.pointer("/spec/caBundle").and_then(Value::as_str).is_some_and(|bundle| !bundle.is_empty()),
                "{object}"
            );
        }
        tenant.server.wait_available(cluster.kubectl())?;
    }
    Ok(())
}

async fn forged_headers(cluster: &Cluster) -> Result<()> {
    let server = cluster.restaurant()?.server.server();
    let write = |name: &str, identity| {
        let path = cluster.site.path(format!("{name}-direct.kubeconfig"));
        server.kubeconfig(&path, name, identity).map(|()| path)
    };
    // The real front proxy is believed: the same headers count.
    let front_proxy = client(&write("front-proxy", &cluster.kube_apiserver.front_proxy)?, &FORGED).await?;
    let (status, body) = get(&front_proxy, PIZZAS).await?;
    ensure!(status == 200, "the front proxy is not believed: {status} {body}");
    // A user's certificate makes the user, whatever headers say.
    let mallory = cluster.kube_apiserver.cluster_ca.client("mallory", None)?;
    let (status, body) = get(&client(&write("mallory", &mallory)?, &FORGED).await?, PIZZAS).await?;
    ensure!(status == 403 && body.contains("\"mallory\""), "{status} {body}");
    // The right authority, but a name that is not allowed.
    let other = cluster.kube_apiserver.front_proxy_ca.client("other-proxy", None)?;
    let (status, body) = get(&client(&write("other-proxy", &other)?, &FORGED).await?, PIZZAS).await?;
    ensure!(status == 401 || status == 403, "{status} {body}");
    // The right name, but another authority.
    let impostor = cluster.kube_apiserver.cluster_ca.client(xtask::cluster::FRONT_PROXY, None)?;
    let (status, body) = get(&client(&write("impostor", &impostor)?, &FORGED).await?, PIZZAS).await?;
    ensure!(status == 403 && body.contains("front-proxy-client"), "{status} {body}");
    Ok(())
}

fn rights(cluster: &Cluster) -> Result<()> {
    let jane = cluster.kubectl_as("jane", None)?;
    let refused = jane.run(&["get", "pizzas"])?;
    let expected = "Error from server (Forbidden): pizzas.restaurant.programming-kubernetes.info is forbidden: User \"jane\" cannot \
        list resource \"pizzas\" in API group \"restaurant.programming-kubernetes.info\" in the namespace \"default\"\n";
    ensure!(!refused.status.success() && refused.stderr == expected, "{refused:?}");
    let kubectl = cluster.kubectl();
    kubectl.ok(&[
        "create",
        "role",
        "taster",
        "--verb=get,list",
        "--resource=pizzas.restaurant.programming-kubernetes.info",
    ])?;
    for user in ["jane", "joe"] {
        kubectl.ok(&["create", "rolebinding", user, "--role=taster", &format!("--user={user}")])?;
    }
    // The refusal is remembered for a while.
    xtask::poll::until("jane's new rights", std::time::Duration::from_secs(30), || {
        jane.ok(&["get", "pizzas"]).map(drop)
    })?;
    let refused = jane.run(&["delete", "pizza", "margherita"])?;
    ensure!(refused.stderr.contains("User \"jane\" cannot delete resource"), "{refused:?}");
    let refused = jane.run(&["get", "toppings"])?;
    ensure!(refused.stderr.contains("at the cluster scope"), "{refused:?}");
    Ok(())
}

async fn without_authoriser(cluster: &Cluster) -> Result<()> {
    let server = &cluster.restaurant()?.server;
    let as_user = |name: &str| {
        let path = cluster.site.path(format!("{name}-direct.kubeconfig"));
        let identity = cluster.kube_apiserver.cluster_ca.client(name, None)?;
        server.server().kubeconfig(&path, name, &identity).map(|()| path)
    };
    let (jane, joe) = (client(&as_user("jane")?, &[]).await?, client(&as_user("joe")?, &[]).await?);
    let admin = client(server.direct().kubeconfig(), &[]).await?;
    // Jane's right is in the cache now, Joe's is not, though he has the same.
    ensure!(get(&jane, PIZZAS).await?.0 == 200);
    cluster.kube_apiserver.process.kill9()?;
    ensure!(get(&jane, PIZZAS).await?.0 == 200, "what the cache allows must still be allowed");
    let (status, body) = get(&joe, PIZZAS).await?;
    ensure!(status != 200, "allowed though nobody could be asked: {body}");
    ensure!(
        get(&joe, "/readyz").await?.0 == 200 || get(&joe, "/livez").await?.0 == 200,
        "paths that are always allowed"
    );
    ensure!(get(&admin, PIZZAS).await?.0 == 200, "system:masters need no authoriser");
    // Jane's cached right ends too.
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
    while get(&jane, PIZZAS).await?.0 == 200 {
        ensure!(tokio::time::Instant::now() < deadline, "the cache allows for ever");
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
    cluster.kube_apiserver.process.start()?;
    cluster.kube_apiserver.wait_ready()?;
    server.wait_available(cluster.kubectl())
}
