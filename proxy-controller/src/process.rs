//! The running process: everything put together, and taken apart in order.

use std::{pin::pin, sync::Arc};

use anyhow::{Context as _, Result, bail};
use etcd_proxy::{
    config::ShutdownSettings,
    drain::{Shutdown, Signals},
};
use kube::core::admission::AdmissionRequest;
use tokio::time::timeout;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    admission::Admission,
    api::EtcdProxy,
    cli::Config,
    leader::{Election, Leadership},
    lookup::Live,
    metrics::Metrics,
    reconcile::{self, Settings, stores},
    serving::{Listeners, Probes, Readiness, Serving, Webhook, WebhookCertificate},
};

/// How long requests under way get when the process ends.
const DRAIN: std::time::Duration = std::time::Duration::from_secs(10);

/// Runs until SIGTERM or SIGINT.
///
/// # Errors
/// When it cannot start, and when it loses the lead: what was begun can then be trusted no more, and a fresh process stands
/// for election again.
pub async fn run(config: Config) -> Result<()> {
    let mut signals = Signals::install().context("installing the signal handlers")?;
    let metrics = Metrics::default();
    let kubeconfig = client_config(&config).await?;
    // Reads of every replica, and what the election writes.
    let client = metrics.requests.client(kubeconfig.clone()).context("making a client of the API server")?;
    let shutdown = Shutdown::default();
    let (listening, connections, background) = (TaskTracker::new(), TaskTracker::new(), TaskTracker::new());

    let readiness = Readiness::default();
    let caches = readiness.wait_for("caches");
    let certificate = config
        .webhook
        .as_ref()
        .map(|webhook| WebhookCertificate::new(client.clone(), &webhook.identity, metrics.webhook.clone()));
    let listeners =
        Listeners::bind(config.metrics_listen, config.webhook.as_ref().map(|webhook| webhook.listen)).await?;
    let admission = Arc::new(Admission::new(Live::new(client.clone(), &config.namespace), config.namespace.clone()));
    let review = move |request: AdmissionRequest<EtcdProxy>| {
        let admission = admission.clone();
        async move { admission.review(&request).await }
    };
    let webhook = Webhook::new(review, metrics.webhook.clone());
    let probes = Probes::new(readiness.clone(), Arc::new(metrics.registry()), shutdown.clone());
    let serving = Serving::new(shutdown.clone(), listening.clone(), connections.clone(), metrics.connections.clone());
    serving.serve(listeners, probes, webhook, certificate.clone());
    if let Some(certificate) = certificate.clone() {
        let stop = shutdown.closing().clone();
        background.spawn(async move { certificate.follow(&stop).await });
    }
    let watching = stores::watch(&client, &config.namespace, &background, shutdown.closing());
    {
        let stores = watching.stores.clone();
        background.spawn(async move {
            if stores.filled().await.is_ok() {
                tracing::info!("the caches are filled");
                caches.done();
            }
        });
    }

    let leading = lead(&config, kubeconfig, client, watching, certificate, &metrics, shutdown.leaving());
    let mut leading = pin!(leading);
    let ended = tokio::select! {
        outcome = leading.as_mut() => Some(outcome),
        signal = signals.next() => {
            tracing::info!(signal, "ending");
            None
        }
    };
    let settings = ShutdownSettings { delay: config.shutdown_delay, drain_timeout: DRAIN };
    let finish = async {
        match ended {
            Some(outcome) => outcome,
            // Told to leave, it finishes its passes and gives the lead back: the other replica need not wait for its end.
            None => timeout(config.shutdown_delay + DRAIN, leading).await.unwrap_or(Ok(())),
        }
    };
    let outliving = TaskTracker::new();
    let (outcome, ()) = tokio::join!(finish, shutdown.run(settings, &mut signals, &connections, &outliving));
    background.close();
    background.wait().await;
    outcome
}

/// Stands for election, and acts while it leads.
async fn lead(
    config: &Config,
    kubeconfig: kube::Config,
    client: kube::Client,
    watching: stores::Watching,
    certificate: Option<WebhookCertificate>,
    metrics: &Metrics,
    stop: &CancellationToken,
) -> Result<()> {
    let (leadership, instance) = match &config.election {
        None => (Leadership::unopposed(), "proxy-controller".to_owned()),
        Some(election) => {
            let instance = election.identity.clone();
            let election = Election::new(client, election.clone(), metrics.leader.clone());
            let Some(leadership) = election.lead(stop).await else { return Ok(()) };
            (leadership, instance)
        }
    };
    tracing::info!(instance, "leading");
    let fence = leadership.fence().clone();
    // Writes only while it leads.
    let client = fence.client(kubeconfig, &metrics.requests).context("making a client of the API server")?;
    let acting = stop.child_token();
    let tasks = TaskTracker::new();
    if let (Some(certificate), Some(webhook)) = (certificate, &config.webhook) {
        let (client, name, acting) = (client.clone(), webhook.configuration.clone(), acting.clone());
        tasks.spawn(async move { certificate.keep(client, &name, &acting).await });
    }
    let settings = Settings {
        namespace: config.namespace.clone(),
        cluster_domain: config.cluster_domain.clone(),
        image: config.proxy_image.clone(),
        concurrency: u16::try_from(config.concurrency.get()).unwrap_or(u16::MAX),
        instance,
    };
    let reconciling = reconcile::run(client, settings, watching, metrics.clone(), fence, acting.clone());
    tokio::select! {
        () = leadership.lost().cancelled() => bail!("the lead is lost"),
        () = reconciling => {}
    }
    acting.cancel();
    tasks.close();
    tasks.wait().await;
    leadership.release().await;
    if !stop.is_cancelled() {
        bail!("the loop ended by itself");
    }
    Ok(())
}

async fn client_config(config: &Config) -> Result<kube::Config> {
    let Some(path) = &config.kubeconfig else {
        return kube::Config::infer().await.context("finding the API server: give --kubeconfig outside of a cluster");
    };
    let kubeconfig =
        kube::config::Kubeconfig::read_from(path).with_context(|| format!("reading {}", path.display()))?;
    kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default())
        .await
        .with_context(|| format!("using {}", path.display()))
}
