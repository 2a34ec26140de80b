//! `NamespaceLifecycle`: nothing is created in a namespace that is not there or is going away
//! (k8s.io/apiserver `pkg/admission/plugin/namespace/lifecycle/admission.go`).
//!
//! Deletions and updates pass, so that what is left over in a namespace that is gone can be cleaned up.

use std::time::Duration;

use async_trait::async_trait;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    api::Api,
    runtime::{WatchStreamExt as _, reflector, watcher},
};
use tokio_util::sync::CancellationToken;

use super::{Attributes, Operation, Plugin};
use crate::{meta::GroupResource, server::Check, status::Status};

/// How long to wait for a namespace that is not in the cache: it may just have been created.
const MISSING_NAMESPACE_WAIT: Duration = Duration::from_millis(50);
/// How long to wait for the cache at the start.
const READY_WAIT: Duration = Duration::from_secs(10);
/// How long to wait for the cluster's answer about one namespace.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

/// The plugin. It needs [`NamespaceCache::run`] to run.
pub struct NamespaceLifecycle {
    namespaces: Api<Namespace>,
    known: reflector::Store<Namespace>,
}

/// Keeps the plugin's knowledge of namespaces fresh.
pub struct NamespaceCache {
    namespaces: Api<Namespace>,
    writer: reflector::store::Writer<Namespace>,
}

/// What is known of a namespace.
enum Phase {
    Missing,
    Active,
    Terminating,
}

// === impl NamespaceLifecycle ===

impl NamespaceLifecycle {
    /// The plugin, and what has to run beside it, for the cluster that this client reaches. The client needs the right to
    /// get, list and watch namespaces.
    pub fn new(client: kube::Client) -> (Self, NamespaceCache) {
        let (known, writer) = reflector::store();
        let namespaces = Api::all(client);
        (Self { namespaces: namespaces.clone(), known }, NamespaceCache { namespaces, writer })
    }

    /// Passes once the namespaces are known: `informer-sync` of `/readyz`.
    pub fn check(&self) -> Check {
        let known = self.known.clone();
        Check::new("informer-sync", move || {
            let known = known.clone();
            async move {
                match futures::FutureExt::now_or_never(known.wait_until_ready()) {
                    Some(Ok(())) => Ok(()),
                    _ => Err(
                        "1 informers not started yet: [namespaces]; it needs the right to list and watch namespaces"
                            .to_owned(),
                    ),
                }
            }
        })
    }

    fn cached(&self, name: &str) -> Phase {
        let namespace = self.known.get(&reflector::ObjectRef::new(name));
        namespace.map_or(Phase::Missing, |namespace| Phase::of(&namespace))
    }

    /// Asks the cluster itself.
    async fn live(&self, name: &str) -> Result<Phase, Status> {
        match tokio::time::timeout(LOOKUP_TIMEOUT, self.namespaces.get_opt(name)).await {
            Ok(Ok(Some(namespace))) => Ok(Phase::of(&namespace)),
            Ok(Ok(None)) => Ok(Phase::Missing),
            Ok(Err(error)) => Err(Status::internal_error(format!("cannot look up namespace {name}: {error}"))),
            Err(_) => {
                Err(Status::internal_error(format!("no answer about namespace {name} within {LOOKUP_TIMEOUT:?}")))
            }
        }
    }
}

#[async_trait]
impl Plugin for NamespaceLifecycle {
    fn name(&self) -> &'static str {
        "NamespaceLifecycle"
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create)
    }

    async fn admit(&self, attributes: &mut Attributes<'_>) -> Result<(), Status> {
        let namespace = attributes.namespace;
        // Saying whether the namespace exists would tell those who only ask about their own rights.
        let access_review = attributes.resource.group == "authorization.k8s.io"
            && attributes.resource.resource == "localsubjectaccessreviews";
        if namespace.is_empty() || access_review {
            return Ok(());
        }
        if !matches!(tokio::time::timeout(READY_WAIT, self.known.wait_until_ready()).await, Ok(Ok(()))) {
            return Err(forbidden(attributes, "not yet ready to handle request"));
        }
        let mut phase = self.cached(namespace);
        if matches!(phase, Phase::Missing) {
            tokio::time::sleep(MISSING_NAMESPACE_WAIT).await;
            phase = self.cached(namespace);
        }
        if matches!(phase, Phase::Missing) {
            phase = self.live(namespace).await?;
        }
        match phase {
            Phase::Active => Ok(()),
            Phase::Missing => {
                let resource = GroupResource { group: String::new(), resource: "namespaces".to_owned() };
                Err(Status::not_found(&resource, namespace))
            }
            Phase::Terminating => {
                let reason =
                    format!("unable to create new content in namespace {namespace} because it is being terminated");
                let cause = format!("namespace {namespace} is being terminated");
                Err(forbidden(attributes, &reason).with_cause("NamespaceTerminating", cause, "metadata.namespace"))
            }
        }
    }
}

fn forbidden(attributes: &Attributes<'_>, reason: &str) -> Status {
    Status::forbidden(&attributes.resource, attributes.name, reason)
}

// === impl NamespaceCache ===

impl NamespaceCache {
    /// Follows the namespaces until told to stop. What goes wrong is logged, and tried again.
    pub async fn run(self, stop: CancellationToken) {
        let watch = watcher(self.namespaces, watcher::Config::default()).default_backoff();
        let mut events = std::pin::pin!(watch.reflect(self.writer));
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                event = events.next() => match event {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => tracing::warn!(%error, "cannot follow namespaces: that needs the right to list and watch namespaces of the cluster; writes wait for it"),
                    None => return,
                },
            }
        }
    }
}

// === impl Phase ===

impl Phase {
    fn of(namespace: &Namespace) -> Self {
        let phase = namespace.status.as_ref().and_then(|status| status.phase.as_deref());
        if phase == Some("Terminating") { Self::Terminating } else { Self::Active }
    }
}

#[cfg(test)]
mod tests;
