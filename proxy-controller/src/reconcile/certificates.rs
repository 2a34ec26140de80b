//! Certificates of one EtcdProxy: reads what is stored, asks [`crate::pki`] what is to be stored, looks at running proxies where
//! a rotation waits for them.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    time::Duration,
};

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::{core::v1::Secret, discovery::v1::EndpointSlice},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, PostParams},
    runtime::reflector::ObjectRef,
};
use tokio::time::Instant;

use super::{Context, PassError};
use crate::{
    api::{Certificates, DEFAULT_CLIENT, EtcdProxy, MANAGER, RotationPhase, Tls, UID_LABEL},
    objects::{Kind, Names, ObjectId, authority_secret},
    pki::{self, Authority, Identity, Observed, Owner, Phase, PkiError, Plan, Stored, Wanted},
    policy::ClientTargets,
    probe::{self, Answer},
    status::whole_seconds,
};

/// How long one proxy gets to show its certificate.
const LOOK: Duration = Duration::from_secs(3);

/// How many proxies are looked at at a time.
const AT_ONCE: usize = 8;

/// What was read of the CA's Secret.
struct Kept {
    authority: Authority,
    resource_version: String,
    /// Whether it bears the labels by which it is found when it is to go.
    labelled: bool,
}

impl Context {
    /// What certificates there are to be, the authority stored already; and the Secrets of clients that are somebody else's.
    pub(super) async fn certificates(
        &self,
        proxy: &EtcdProxy,
        names: &Names,
        tls: &Tls,
        targets: &[ClientTargets],
    ) -> Result<(Plan, Vec<ObjectId>), PassError> {
        let owner = Owner { namespace: names.namespace.clone(), name: names.name.clone(), uid: names.uid.clone() };
        // It is not applied like the others, and yet is looked at again when somebody changes it.
        self.stores.remember_owner(&authority_id(names), ObjectRef::from_obj(proxy));
        let mut wanted = wanted(tls, names, owner, targets);
        let kept = self.kept(names, &wanted.owner).await?;
        let (stored, foreign) = self.stored(names, targets).await?;
        // Nothing is issued that cannot be handed over: it would be issued again in every pass.
        wanted.clients.retain(|client, _| !foreign.contains_key(client));
        let now = Timestamp::now();
        let authority = kept.as_ref().map(|kept| &kept.authority);
        let mut plan = pki::plan(authority, &stored, &wanted, Observed::default(), now)?;
        if plan.phase.waits_for_proxies()
            && let Some(kept) = &kept
        {
            let identity = plan.clients.get(DEFAULT_CLIENT).map_or(&plan.serving.identity, |leaf| &leaf.identity);
            let observed = self.look(names, &kept.authority, &plan.bundle, identity, now).await?;
            plan = pki::plan(authority, &stored, &wanted, observed, now)?;
        }
        let (new, stripped) = (kept.is_none(), kept.as_ref().is_some_and(|kept| !kept.labelled));
        if plan.authority_changed || stripped {
            // What somebody does to it is no event: what a rotation does is one, and a new CA shows in the certificates.
            let (id, reason) = (authority_id(names), &plan.reason);
            tracing::info!(%id, owner = names.owner(), new, stripped, reason, "the CA's Secret is written");
            self.keep(names, &plan.authority, kept.map(|kept| kept.resource_version)).await?;
        }
        Ok((plan, foreign.into_values().collect()))
    }

    async fn kept(&self, names: &Names, owner: &Owner) -> Result<Option<Kept>, PassError> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &names.controller_namespace);
        let Some(secret) = secrets.get_opt(&names.authority()).await.map_err(PassError::api("read the CA's Secret"))?
        else {
            return Ok(None);
        };
        let resource_version = secret.resource_version().unwrap_or_default();
        let wanted = authority_secret(names, BTreeMap::new());
        let labelled = wanted.labels().iter().all(|(label, value)| secret.labels().get(label) == Some(value))
            && wanted.annotations().iter().all(|(name, value)| secret.annotations().get(name) == Some(value));
        let authority = Authority::decode(&files(secret), owner)?;
        Ok(Some(Kept { authority, resource_version, labelled }))
    }

    /// Stores the authority where it was read: whoever has an old view of it fails and looks again.
    async fn keep(&self, names: &Names, authority: &Authority, read: Option<String>) -> Result<(), PassError> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &names.controller_namespace);
        let mut secret = authority_secret(names, authority.encode());
        let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..Default::default() };
        let stored = match read {
            Some(resource_version) => {
                secret.metadata.resource_version = Some(resource_version);
                secrets.replace(&names.authority(), &params, &secret).await
            }
            None => secrets.create(&params, &secret).await,
        };
        let stored = stored.map_err(PassError::api("store the CA's Secret"))?;
        self.stores.remember_version(&authority_id(names), &stored.resource_version().unwrap_or_default());
        Ok(())
    }

    /// The leaves that are stored, asked of the API server: a cache that is behind would have them issued again. And the
    /// clients whose Secret is somebody else's object.
    async fn stored(
        &self,
        names: &Names,
        targets: &[ClientTargets],
    ) -> Result<(Stored, BTreeMap<String, ObjectId>), PassError> {
        let read = async |id: &ObjectId| {
            let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &id.namespace);
            secrets.get_opt(&id.name).await.map_err(PassError::api("read a certificate's Secret"))
        };
        let id = |namespace: &str, name: String| ObjectId { kind: Kind::Secret, namespace: namespace.to_owned(), name };
        let serving = read(&id(&names.controller_namespace, names.serving())).await?;
        let serving = serving.and_then(|secret| Stored::identity(&files(secret)));
        let (mut stored, mut foreign) = (Stored { serving, ..Default::default() }, BTreeMap::new());
        for target in targets {
            let id = id(&target.namespace, target.secret.clone());
            let Some(secret) = read(&id).await? else { continue };
            let ours = secret.labels().get(UID_LABEL) == Some(&names.uid)
                || secret.metadata.uid.is_some() && secret.metadata.uid == self.applier.made(&id, &names.uid);
            match ours {
                true => {
                    stored.clients.extend(Stored::identity(&files(secret)).map(|leaf| (target.client.clone(), leaf)))
                }
                false => _ = foreign.insert(target.client.clone(), id),
            }
        }
        Ok((stored, foreign))
    }

    /// What every running proxy shows and accepts. `identity` is shown where no next CA waits to be accepted.
    async fn look(
        &self,
        names: &Names,
        authority: &Authority,
        bundle: &str,
        identity: &Identity,
        now: Timestamp,
    ) -> Result<Observed, PassError> {
        let addresses = self.running(names).await?;
        let next = authority.probe_identity(&names.common_name(DEFAULT_CLIENT), now)?;
        let (waits, identity) = (next.is_some(), next.as_ref().unwrap_or(identity));
        let host = names.service_host();
        let looks = stream::iter(addresses).map(|address| {
            let target = probe::Target { address, name: &host, bundle };
            async move { (address, probe::probe(target, identity, Instant::now() + LOOK).await) }
        });
        let looks: Vec<_> = looks.buffer_unordered(AT_ONCE).collect().await;
        for (address, look) in &looks {
            if let Err(error) = look {
                tracing::info!(proxy = %names.owner(), %address, %error, "a proxy could not be looked at; the rotation waits");
            }
        }
        let seen = looks.iter().map(|(_, look)| {
            let look = look.as_ref().ok()?;
            let accepts_next = waits && matches!(look.client, Answer::Accepted(_));
            Some(pki::Seen { leaf: &look.leaf, accepts_next })
        });
        Ok(Observed::of(authority, seen))
    }

    /// Where proxies run, ready or not.
    async fn running(&self, names: &Names) -> Result<BTreeSet<SocketAddr>, PassError> {
        let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &names.controller_namespace);
        let of_service = ListParams::default().labels(&format!("kubernetes.io/service-name={}", names.base));
        let slices = slices.list(&of_service).await.map_err(PassError::api("list the proxies' addresses"))?;
        let mut addresses = BTreeSet::new();
        for slice in slices {
            let ports = slice.ports.unwrap_or_default();
            let etcd = ports.iter().find(|port| port.name.as_deref() == Some("etcd")).and_then(|port| port.port);
            let Some(port) = etcd.and_then(|port| u16::try_from(port).ok()) else { continue };
            for address in slice.endpoints.iter().flatten().flat_map(|endpoint| &endpoint.addresses) {
                if let Ok(ip) = address.parse() {
                    addresses.insert(SocketAddr::new(ip, port));
                }
            }
        }
        Ok(addresses)
    }
}

/// The Secret of the CA.
pub(super) fn authority_id(names: &Names) -> ObjectId {
    ObjectId { kind: Kind::Secret, namespace: names.controller_namespace.clone(), name: names.authority() }
}

fn wanted(tls: &Tls, names: &Names, owner: Owner, targets: &[ClientTargets]) -> Wanted {
    let common_names = targets.iter().map(|target| (target.client.clone(), names.common_name(&target.client)));
    Wanted {
        owner,
        dns_names: names.server_names().into_iter().collect(),
        ip_addresses: BTreeSet::new(),
        clients: common_names.collect(),
        validity: tls.validity.into(),
        ca_validity: tls.ca_validity.into(),
        rotation: tls.ca_rotation,
    }
}

/// What the status says of a plan.
pub(super) fn summary(plan: &Plan) -> Certificates {
    let leaves = std::iter::once(&plan.serving).chain(plan.clients.values());
    let not_after = leaves.map(|leaf| leaf.expires).min().unwrap_or(plan.serving.expires);
    let time = |moment| Time(whole_seconds(moment));
    Certificates {
        not_after: time(not_after),
        ca_not_after: time(plan.ca_expires),
        read_once_until: time(plan.oldest_read_once_until),
        ca_rotation: plan.rotation,
        phase: match plan.phase {
            Phase::Stable => RotationPhase::Stable,
            Phase::Distributing => RotationPhase::Distributing,
            Phase::Replacing => RotationPhase::Replacing,
            Phase::Retiring => RotationPhase::Retiring,
        },
    }
}

/// Whether an error means that certificates cannot be made at all, until somebody does something.
pub(super) fn is_lasting(error: &PkiError) -> bool {
    !matches!(error, PkiError::Crypto(_))
}

fn files(secret: Secret) -> BTreeMap<String, Vec<u8>> {
    let data = secret.data.unwrap_or_default();
    data.into_iter().map(|(name, ByteString(content))| (name, content)).collect()
}
