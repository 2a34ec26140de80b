//! What the validating webhook says: [`crate::policy`] asked about an object before it is stored.
//!
//! It only saves its author a detour. Two creations at once may both pass, and so does one whose prefix cannot be looked up
//! in time; the claim's Txn decides, and the loser reads `PrefixTaken` in its status. What is *permitted* is never guessed: if
//! the EtcdUpstream or the grants cannot be read, the answer is that it cannot be told now.

use std::{collections::HashSet, sync::Arc, time::Duration};

use kube::{
    ResourceExt as _,
    core::admission::{AdmissionRequest, Operation},
};

use crate::{
    api::{EtcdProxy, EtcdProxyGrant, EtcdUpstream},
    policy::{self, Facts, HeldPrefix, Refusal},
    serving::{Denial, Review},
};

/// For the claims, which lie behind a network and may be slow; the API server waits for ten seconds in all.
const CLAIMS_TIMEOUT: Duration = Duration::from_secs(3);

/// What has to be known besides the object. Each as it is now: what was applied a moment before is to count.
pub trait Lookup: Send + Sync + 'static {
    /// An EtcdUpstream; nothing if there is none of that name.
    fn upstream(&self, name: &str) -> impl Future<Output = Result<Option<Arc<EtcdUpstream>>, LookupError>> + Send;

    /// All grants of one namespace.
    fn grants(&self, namespace: &str) -> impl Future<Output = Result<Vec<Arc<EtcdProxyGrant>>, LookupError>> + Send;

    /// All claims on an upstream.
    fn claims(&self, upstream: &EtcdUpstream) -> impl Future<Output = Result<Vec<HeldPrefix>, LookupError>> + Send;
}

/// Something could not be looked up.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct LookupError(pub String);

/// Judges EtcdProxy objects that are created or changed.
#[derive(Debug)]
pub struct Admission<L> {
    lookup: L,
    controller_namespace: String,
}

impl<L: Lookup> Admission<L> {
    /// Judges with what `lookup` says. `controller_namespace` is where the controller and the proxies run.
    pub fn new(lookup: L, controller_namespace: impl Into<String>) -> Self {
        Self { lookup, controller_namespace: controller_namespace.into() }
    }

    /// Judges one request. Objects that are being deleted, and changes that leave `spec` alone, are allowed without looking
    /// anything up.
    pub async fn review(&self, request: &AdmissionRequest<EtcdProxy>) -> Review {
        let allowed = Review::Allowed { warnings: Vec::new() };
        let Some(object) = &request.object else { return allowed };
        let judged = matches!(request.operation, Operation::Create | Operation::Update);
        if !judged || request.sub_resource.is_some() || object.metadata.deletion_timestamp.is_some() {
            return allowed;
        }
        let old = request.old_object.as_ref().filter(|_| request.operation == Operation::Update);
        if old.is_some_and(|old| old.spec == object.spec) {
            return allowed;
        }
        match self.judge(object, old).await {
            Ok(verdict) => verdict,
            Err(error) => Review::Unable(error.0),
        }
    }

    async fn judge(&self, object: &EtcdProxy, old: Option<&EtcdProxy>) -> Result<Review, LookupError> {
        let upstream = self.lookup.upstream(&object.spec.upstream_ref.name).await?;
        let mut warnings = Vec::new();
        let claims = match upstream.as_deref() {
            // A prefix never changes, and one that is allocated is nobody else's.
            Some(upstream) if old.is_none() && object.spec.prefix.is_some() => {
                let claims = tokio::time::timeout(CLAIMS_TIMEOUT, self.lookup.claims(upstream)).await;
                let claims = claims.unwrap_or_else(|_| Err(LookupError("no answer in time".to_owned())));
                claims.inspect_err(|error| warnings.push(unread(upstream, error))).ok()
            }
            _ => None,
        };
        let grants = self.grants(object).await?;
        let facts = Facts {
            upstream: upstream.as_deref(),
            grants: &grants.iter().map(Arc::as_ref).collect::<Vec<_>>(),
            claims: claims.as_deref(),
            controller_namespace: &self.controller_namespace,
        };
        let refusals = policy::check(object, &facts);
        // As with the schema of a custom resource: what was wrong before and is not made worse does not stand in the way of
        // a change that may be to the better.
        let before: HashSet<_> = old.into_iter().flat_map(|old| policy::check(old, &facts)).map(essence).collect();
        let (known, new): (Vec<_>, Vec<_>) =
            refusals.into_iter().partition(|refusal| before.contains(&essence(refusal.clone())));
        if new.is_empty() {
            warnings.extend(known.iter().map(|refusal| format!("still not permitted: {refusal}")));
            return Ok(Review::Allowed { warnings });
        }
        Ok(Review::Denied(new.iter().map(Denial::from).collect()))
    }

    /// The grants of all namespaces that an object names.
    async fn grants(&self, object: &EtcdProxy) -> Result<Vec<Arc<EtcdProxyGrant>>, LookupError> {
        let own = object.namespace();
        let named = object.spec.clients.iter().filter_map(|client| client.namespace.as_deref());
        let mut namespaces: Vec<_> = named.filter(|namespace| Some(*namespace) != own.as_deref()).collect();
        namespaces.sort_unstable();
        namespaces.dedup();
        let grants = futures::future::try_join_all(namespaces.into_iter().map(|name| self.lookup.grants(name)));
        Ok(grants.await?.into_iter().flatten().collect())
    }
}

/// What is the same about a refusal when a list's order changes.
fn essence(refusal: Refusal) -> Refusal {
    let field = refusal.field.split('[').next().unwrap_or_default().to_owned();
    Refusal { field, ..refusal }
}

impl From<&Refusal> for Denial {
    fn from(refusal: &Refusal) -> Self {
        Self {
            field: refusal.field.clone(),
            reason: refusal.reason.as_str(),
            cause: refusal.fault.cause(),
            message: refusal.body(),
        }
    }
}

fn unread(upstream: &EtcdUpstream, error: &LookupError) -> String {
    let name = upstream.name_any();
    format!("spec.prefix: EtcdUpstream {name} could not be asked who holds what ({error}); status will tell")
}

#[cfg(test)]
mod tests;
