//! What the webhook has to know, asked of the API server and the shared etcd at that moment: what was applied a moment before
//! is to count.

use std::sync::Arc;

use kube::{Api, Client, api::ListParams};

use crate::{
    admission::{Lookup, LookupError},
    api::{EtcdProxy, EtcdProxyGrant, EtcdUpstream},
    policy::HeldPrefix,
    reconcile::connection::Connector,
};

/// Looks things up.
pub struct Live {
    client: Client,
    connector: Connector,
}

impl Live {
    /// For the controller in `namespace`.
    pub fn new(client: Client, namespace: &str) -> Self {
        Self { connector: Connector::new(client.clone(), namespace), client }
    }
}

impl Lookup for Live {
    async fn upstream(&self, name: &str) -> Result<Option<Arc<EtcdUpstream>>, LookupError> {
        let upstreams: Api<EtcdUpstream> = Api::all(self.client.clone());
        let found = upstreams.get_opt(name).await.map_err(|error| failed("EtcdUpstreams", &error))?;
        Ok(found.map(Arc::new))
    }

    async fn grants(&self, namespace: &str) -> Result<Vec<Arc<EtcdProxyGrant>>, LookupError> {
        let grants: Api<EtcdProxyGrant> = Api::namespaced(self.client.clone(), namespace);
        let found = grants.list(&ListParams::default()).await.map_err(|error| failed("EtcdProxyGrants", &error))?;
        Ok(found.items.into_iter().map(Arc::new).collect())
    }

    async fn claims(&self, upstream: &EtcdUpstream) -> Result<Vec<HeldPrefix>, LookupError> {
        let connected = self.connector.connect(upstream).await.map_err(|error| failed("Secrets", &error))?;
        let (shared, _) = connected.map_err(|problem| LookupError(problem.message))?;
        let claims = shared.claims().await.map_err(|error| LookupError(error.to_string()))?;
        let proxies: Api<EtcdProxy> = Api::all(self.client.clone());
        let living =
            proxies.list_metadata(&ListParams::default()).await.map_err(|error| failed("EtcdProxies", &error))?;
        let alive = |uid: &str| living.items.iter().any(|proxy| proxy.metadata.uid.as_deref() == Some(uid));
        let held = claims.claims.into_iter().map(|held| match held.claim {
            Ok(claim) => {
                HeldPrefix { prefix: held.prefix, alive: alive(&claim.uid), owner: Some(claim.owner), uid: claim.uid }
            }
            // Somebody alive for all that is known.
            Err(_) => HeldPrefix { prefix: held.prefix, owner: None, uid: String::new(), alive: true },
        });
        Ok(held.collect())
    }
}

fn failed(what: &str, error: &kube::Error) -> LookupError {
    LookupError(format!("{what} could not be read: {error}"))
}
