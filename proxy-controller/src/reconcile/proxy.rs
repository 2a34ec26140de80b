//! One pass over an EtcdProxy.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use etcd_proxy::prefix::Prefix;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
    runtime::reflector::ObjectRef,
};
use serde_json::json;

use super::{
    Context, PassError, RESYNC,
    apply::{ApplyError, Effort, newer},
    certificates, log_changes, outcome, upstream_of,
};
use crate::{
    api::{EtcdProxy, EtcdProxyGrant, EtcdProxyStatus, EtcdUpstream, FINALIZER, MANAGER, Mode, Usage},
    objects::{self, Desired, Names, ObjectId, Settings, UpstreamFiles},
    pki::Plan,
    policy::{self, ClientTargets, Facts, Reason, Refusal},
    status::{self, Findings, Notice, Problem, Rollout, counted},
    upstream::{Claiming, Heirloom, Holder, Shared, SharedError},
};

/// How soon a rotation looks again whether proxies use what they were given.
const LOOK_AGAIN: Duration = Duration::from_secs(3);

/// How soon it is tried again where somebody else has to do something that is not watched.
const BLOCKED: Duration = Duration::from_secs(60);

/// What one pass is about.
pub(super) struct Pass<'a> {
    pub(super) context: &'a Context,
    pub(super) proxy: &'a EtcdProxy,
    pub(super) owner: ObjectRef<EtcdProxy>,
    pub(super) names: Names,
    pub(super) findings: Findings,
    /// When to look again.
    pub(super) again: Duration,
    /// What was done that is no state.
    pub(super) done: Vec<Notice>,
}

/// Looks at one EtcdProxy. Answers when to look again.
pub(super) async fn reconcile(proxy: Arc<EtcdProxy>, context: &Context) -> Result<Duration, PassError> {
    let owner = ObjectRef::from_obj(proxy.as_ref());
    let counted = context.metrics.reconcile.begin("EtcdProxy");
    let mut pass = Pass {
        context,
        proxy: &proxy,
        owner: owner.clone(),
        names: context.names(&proxy),
        findings: Findings::default(),
        again: RESYNC,
        done: Vec::new(),
    };
    let result = match proxy.metadata.deletion_timestamp {
        Some(_) => pass.clean_up().await,
        None => pass.provide().await,
    };
    let gone = matches!(&result, Ok(true));
    let mut result = result.map(drop);
    let Pass { findings, again, done, .. } = pass;
    context.tell(proxy.as_ref(), done).await;
    if !gone {
        // What was found out is told also when the pass did not come to its end.
        let told = context.report(&proxy, &findings).await;
        result = result.and(told);
    }
    let blocked = findings.refusals.first().map(|refusal| refusal.reason.as_str());
    let (outcome, reason) = outcome(&result, blocked);
    counted.end(outcome, reason);
    result?;
    context.failures.none(&owner);
    // Not all at once.
    Ok(again.mul_f64(1.0 - rand::random::<f64>() / 10.0))
}

/// After a pass that failed: when to try again.
pub(super) fn failed(proxy: &EtcdProxy, error: &PassError, context: &Context) -> Duration {
    let owner = ObjectRef::from_obj(proxy);
    tracing::warn!(proxy = %format!("{}/{}", proxy.namespace().unwrap_or_default(), proxy.name_any()), %error, "a pass failed and is repeated");
    context.failures.after_another(owner)
}

impl Context {
    /// Writes the status if it says something new, and tells what changed.
    async fn report(&self, proxy: &EtcdProxy, findings: &Findings) -> Result<(), PassError> {
        let old = self.last_status(proxy);
        let known = EtcdProxy { status: Some(old.clone()), ..proxy.clone() };
        let new = status::status(&known, findings, Timestamp::now());
        if new == old {
            return Ok(());
        }
        self.write_status(proxy, &new).await?;
        let owner = format!("{}/{}", proxy.namespace().unwrap_or_default(), proxy.name_any());
        for Notice { reason, note, .. } in status::milestones(&old, &new) {
            tracing::info!(proxy = owner, reason, "{note}");
        }
        log_changes("EtcdProxy", &owner, &old.conditions, &new.conditions);
        self.tell(proxy, status::notices(&old, &new)).await;
        Ok(())
    }

    /// The status as it is, also where the cache has not seen yet what this process wrote: nothing is told twice.
    pub(super) fn last_status(&self, proxy: &EtcdProxy) -> EtcdProxyStatus {
        let written = proxy.uid().and_then(|uid| self.written.lock().get(&uid).cloned());
        match written {
            Some((version, status)) if newer(Some(&version), &proxy.resource_version().unwrap_or_default()) => status,
            _ => proxy.status.clone().unwrap_or_default(),
        }
    }

    pub(super) async fn write_status(&self, proxy: &EtcdProxy, status: &EtcdProxyStatus) -> Result<(), PassError> {
        let api: Api<EtcdProxy> = Api::namespaced(self.client.clone(), &proxy.namespace().unwrap_or_default());
        match self.apply_status(&api, proxy, status).await {
            Ok(written) => {
                let version = written.resource_version().unwrap_or_default();
                self.stores.remember_status(ObjectRef::from_obj(proxy), &version);
                self.written.lock().insert(proxy.uid().unwrap_or_default(), (version, status.clone()));
                Ok(())
            }
            // It went meanwhile, or was made anew: what was found out is of another object.
            Err(error) if self.went(proxy.metadata.uid.as_deref(), &error).await? => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Whether a patch of an EtcdProxy failed because the one with this uid is gone. A conflict alone does not say so: it may
    /// be with somebody who wrote at the same time.
    async fn went(&self, uid: Option<&str>, error: &PassError) -> Result<bool, PassError> {
        match (error, uid) {
            (PassError::Api { source: kube::Error::Api(answer), .. }, _) if answer.code == 404 => Ok(true),
            (PassError::Api { source: kube::Error::Api(answer), .. }, Some(uid)) if answer.code == 409 => {
                Ok(!self.is_alive(uid).await?)
            }
            _ => Ok(false),
        }
    }

    /// Whether an EtcdProxy with this uid exists, as the API server says: a cache may not know the newest.
    async fn is_alive(&self, uid: &str) -> Result<bool, PassError> {
        if uid.is_empty() {
            // Claimed by hand, or by a version whose records cannot be read: nobody here knows.
            return Ok(false);
        }
        let of_uid = |proxy: &EtcdProxy| proxy.metadata.uid.as_deref() == Some(uid);
        if self.stores.proxies.find(of_uid).is_some() {
            return Ok(true);
        }
        let proxies: Api<EtcdProxy> = Api::all(self.client.clone());
        let all =
            proxies.list_metadata(&ListParams::default()).await.map_err(PassError::api("list all EtcdProxies"))?;
        Ok(all.items.iter().any(|proxy| proxy.metadata.uid.as_deref() == Some(uid)))
    }
}

impl Pass<'_> {
    /// Provides what is asked for, as far as it is permitted and possible. Answers `false`: the object stays.
    async fn provide(&mut self) -> Result<bool, PassError> {
        if !self.proxy.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
            self.set_finalizer(true).await?;
        }
        // As it is, whatever keeps this pass from its end.
        self.look_at_deployment(None);
        let Some((upstream, clients)) = self.permitted().await? else { return Ok(false) };
        let (shared, files) = match self.context.connected(&upstream).await? {
            Ok(connected) => connected,
            Err(problem) => {
                self.findings.upstream = Some(Err(seen_by_tenant(&upstream, problem.reason)));
                self.again = BLOCKED;
                return Ok(false);
            }
        };
        let Some(prefix) = self.claimed(&upstream, &shared).await? else { return Ok(false) };
        let settings = Settings::new(self.proxy, &upstream, &self.context.settings.image);
        let (desired, kept) = match self.proxy.spec.mode {
            Mode::Deployment => {
                let Some(desired) = self.for_deployment(&upstream, &settings, &prefix, &clients).await? else {
                    return Ok(false);
                };
                (desired, Some(self.names.authority()))
            }
            Mode::Sidecar => (self.for_sidecar(&upstream, &settings, &prefix, &files), None),
        };
        let applied = self.apply(&desired, kept).await;
        self.look_at_deployment(Some(settings.replicas));
        self.count(&settings);
        applied?;
        self.findings.complete = true;
        Ok(false)
    }

    /// The EtcdUpstream and the clients that are permitted; nothing if the whole object is not.
    async fn permitted(&mut self) -> Result<Option<(Arc<EtcdUpstream>, Vec<ClientTargets>)>, PassError> {
        let upstream = self.context.stores.upstreams.get(&ObjectRef::new(upstream_of(self.proxy)));
        let grants = self.context.stores.grants.state();
        let grants: Vec<&EtcdProxyGrant> = grants.iter().map(AsRef::as_ref).collect();
        let facts = Facts {
            upstream: upstream.as_deref(),
            grants: &grants,
            // The claim itself decides.
            claims: None,
            controller_namespace: &self.context.settings.namespace,
        };
        let (of_clients, refusals): (Vec<_>, Vec<_>) =
            policy::check(self.proxy, &facts).into_iter().partition(|refusal| refusal.client.is_some());
        if refusals.iter().any(|refusal| refusal.reason == Reason::UpstreamAuthRequired) {
            // An identity of the upstream that is no longer permitted does not stay beside the tenant.
            self.prune(&BTreeSet::new()).await?;
        }
        self.findings.clients = of_clients.iter().map(problem_of).collect();
        // A bound that was lowered below what an object has asked for cuts it; it keeps nobody from its certificates.
        let provided = self.context.last_status(self.proxy).prefix.is_some();
        let (cut, refusals): (Vec<_>, Vec<_>) =
            refusals.into_iter().partition(|refusal| provided && refusal.reason.is_bound());
        self.findings.cut = cut.iter().map(problem_of).collect();
        let missing = refusals.iter().find(|refusal| refusal.reason == Reason::UpstreamNotFound);
        self.findings.upstream = missing.map(|refusal| Err(problem_of(refusal)));
        self.findings.refusals = refusals;
        let clients = policy::client_targets(self.proxy).into_iter();
        let clients = clients
            .filter(|client| !of_clients.iter().any(|refusal| refusal.client.as_ref() == Some(&client.client)))
            .collect();
        Ok(upstream.filter(|_| self.findings.refusals.is_empty()).map(|upstream| (upstream, clients)))
    }

    /// The prefix, claimed for this object.
    async fn claimed(&mut self, upstream: &EtcdUpstream, shared: &Shared) -> Result<Option<Prefix>, PassError> {
        let prefix = match policy::wanted_prefix(self.proxy, upstream) {
            Ok(prefix) => prefix,
            Err(refusal) => {
                self.findings.refusals.push(refusal);
                return Ok(None);
            }
        };
        let text = String::from_utf8_lossy(prefix.as_bytes()).into_owned();
        let had = self.context.last_status(self.proxy).prefix.as_ref() == Some(&text);
        self.context.fence.check()?;
        // Nobody waits for an etcd that did not answer a moment ago: others have theirs to be looked after.
        let known = self.context.is_reachable(&upstream.name_any());
        let claiming = match known {
            false => None,
            true => match self.claim(shared, &prefix, had).await {
                Ok(claiming) => Some(claiming),
                Err(error) if error.is_unreachable() => {
                    tracing::info!(owner = %self.names.owner(), %error, "the prefix could not be looked at");
                    None
                }
                // What it holds already it goes on holding: certificates are renewed, and objects kept.
                Err(error) if had => {
                    tracing::warn!(owner = %self.names.owner(), %error, "the claim could not be looked at");
                    self.findings.upstream = Some(Err(seen_by_tenant(upstream, "ClaimError")));
                    self.findings.prefix = Some(Ok(text));
                    return Ok(Some(prefix));
                }
                Err(error) => {
                    self.findings.upstream = Some(Ok(()));
                    self.findings.prefix = Some(Err(seen_by_tenant(upstream, "ClaimError")));
                    return Err(error.into());
                }
            },
        };
        let Some(claiming) = claiming else {
            self.findings.upstream = Some(Err(seen_by_tenant(upstream, "UpstreamUnreachable")));
            self.again = BLOCKED;
            self.findings.prefix = had.then_some(Ok(text));
            return Ok(had.then_some(prefix));
        };
        self.findings.upstream = Some(Ok(()));
        let refused = match self.inherited(upstream, shared, &prefix, claiming).await? {
            None => {
                self.findings.prefix = Some(Ok(text));
                return Ok(Some(prefix));
            }
            Some(problem) => problem,
        };
        self.findings.prefix = Some(Err(refused));
        self.again = BLOCKED;
        Ok(None)
    }

    /// Claims the prefix; where it was claimed before, a look at that one claim suffices.
    async fn claim(&self, shared: &Shared, prefix: &Prefix, had: bool) -> Result<Claiming, SharedError> {
        let (owner, uid) = (self.names.owner(), &self.names.uid);
        if had && shared.holds(prefix, &owner, uid).await? {
            return Ok(Claiming::Claimed);
        }
        shared.ensure_claim(prefix, &owner, uid).await
    }

    /// Takes over what somebody left if the operator has said so. Answers why the prefix cannot be had.
    async fn inherited(
        &self,
        upstream: &EtcdUpstream,
        shared: &Shared,
        prefix: &Prefix,
        claiming: Claiming,
    ) -> Result<Option<Problem>, PassError> {
        let left = |what: String| {
            let message = format!(
                "{what}; only the operator can give it away, in EtcdUpstream {} (spec.adoptions)",
                upstream.name_any()
            );
            Ok(Some(Problem::new("PrefixHoldsData", message)))
        };
        let taken = |holder: &Holder| {
            // Who that is, is not this tenant's to know.
            tracing::info!(
                %prefix, holder = holder.owner, holds = %holder.prefix.escape_ascii(), owner = %self.names.owner(),
                "a prefix is not given: it is taken"
            );
            let message =
                format!("prefix {prefix} is claimed already, or overlaps one that is; wish for another, or for none");
            Ok(Some(Problem::new("PrefixTaken", message)))
        };
        let adopts = policy::adopts(upstream, prefix.as_bytes(), self.proxy);
        let heirloom = match claiming {
            Claiming::Claimed => return Ok(None),
            Claiming::Overlaps(holder) => return taken(&holder),
            Claiming::Held(holder) if self.context.is_alive(&holder.uid).await? => return taken(&holder),
            Claiming::Held(_) if !adopts => {
                return left(format!("prefix {prefix} holds what an object that is gone has left"));
            }
            Claiming::HoldsData { keys, meta_keys } if !adopts => {
                let keys = counted(keys, "key", "keys");
                return left(format!(
                    "prefix {prefix} holds {keys} (and {meta_keys} of a proxy's own) that nobody claims"
                ));
            }
            Claiming::Held(holder) if !self.has_left(&holder.uid).await? => {
                let message = format!("prefix {prefix} is given over when what its former owner ran has gone");
                return Ok(Some(Problem::new("Pending", message)));
            }
            Claiming::Held(holder) => Heirloom::Claim(holder),
            Claiming::HoldsData { .. } => Heirloom::Data,
        };
        self.context.fence.check()?;
        match shared.adopt(prefix, &self.names.owner(), &self.names.uid, &heirloom).await? {
            Claiming::Claimed => {
                tracing::info!(%prefix, owner = %self.names.owner(), "took over what was left, as the EtcdUpstream says");
                Ok(None)
            }
            Claiming::Held(holder) | Claiming::Overlaps(holder) => taken(&holder),
            Claiming::HoldsData { .. } => left(format!("prefix {prefix} holds data")),
        }
    }

    /// Whether nothing runs any more for an EtcdProxy that is gone; what was left because somebody took its finalizer away goes
    /// now.
    async fn has_left(&self, uid: &str) -> Result<bool, PassError> {
        if uid.is_empty() {
            return Ok(true);
        }
        let applier = &self.context.applier;
        Ok(applier.remove(applier.made_for(uid).await?).await?.is_nothing())
    }

    /// What there is to be in mode Deployment; nothing if there can be no certificates.
    async fn for_deployment(
        &mut self,
        upstream: &EtcdUpstream,
        settings: &Settings,
        prefix: &Prefix,
        clients: &[ClientTargets],
    ) -> Result<Option<Vec<Desired>>, PassError> {
        let tls = policy::tls(self.proxy, upstream);
        let (plan, foreign) = match self.context.certificates(self.proxy, &self.names, &tls, clients).await {
            Ok(planned) => planned,
            Err(PassError::Pki(error)) if certificates::is_lasting(&error) => {
                self.findings.certificates = Some(Err(Problem::new("CertificateError", error.to_string())));
                self.again = BLOCKED;
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        for id in foreign {
            let error = ApplyError::Exists(id);
            self.findings.clients.push(Problem::new(error.reason(), error.to_string()));
            self.again = self.again.min(BLOCKED);
        }
        self.schedule(&plan);
        self.findings.certificates = Some(Ok(certificates::summary(&plan)));
        self.findings.rotation = Some(plan.reason.clone());
        self.findings.endpoint = Some(self.names.endpoint());
        let names = &self.names;
        let common_names: Vec<_> = clients.iter().map(|client| names.common_name(&client.client)).collect();
        let arguments = objects::arguments(
            names,
            settings,
            &upstream.spec,
            &String::from_utf8_lossy(prefix.as_bytes()),
            &common_names,
        );
        let namespaces: BTreeSet<_> = clients.iter().map(|client| client.namespace.clone()).collect();
        let mut desired = vec![
            objects::service_account(names),
            objects::serving_secret(names, &plan.serving.identity.chain, &plan.serving.identity.key, &plan.bundle),
            objects::service(names),
            objects::network_policy(names, &namespaces),
            objects::deployment(names, settings, &upstream.spec, arguments),
            objects::external_name(names),
        ];
        if settings.replicas > 1 {
            desired.push(objects::disruption_budget(names));
        }
        for client in clients {
            // None where the Secret is somebody else's; the bundle is told all the same.
            if let Some(leaf) = plan.clients.get(&client.client) {
                let identity = &leaf.identity;
                desired.push(objects::client_secret(names, client, &identity.chain, &identity.key, &plan.bundle));
            }
            if let Some(name) = &client.config_map {
                desired.push(objects::bundle_config_map(names, &client.namespace, name, &plan.bundle));
            }
        }
        Ok(Some(desired))
    }

    fn for_sidecar(
        &mut self,
        upstream: &EtcdUpstream,
        settings: &Settings,
        prefix: &Prefix,
        files: &UpstreamFiles,
    ) -> Vec<Desired> {
        self.findings.endpoint = Some(format!("http://127.0.0.1:{}", objects::CLIENT_PORT));
        let prefix = String::from_utf8_lossy(prefix.as_bytes());
        vec![
            objects::sidecar_config(&self.names, settings, &upstream.spec, &prefix),
            objects::sidecar_secret(&self.names, files),
        ]
    }

    /// Wakes up for the certificates.
    fn schedule(&mut self, plan: &Plan) {
        let left = plan.wake.as_millisecond() - Timestamp::now().as_millisecond();
        let wake = Duration::from_millis(u64::try_from(left).unwrap_or(0));
        let wake = if plan.phase.waits_for_proxies() { wake.min(LOOK_AGAIN) } else { wake };
        self.again = self.again.min(wake.max(Duration::from_millis(200)));
    }

    /// Applies everything, and removes what is not wanted any more. One object that cannot be applied keeps no other from it.
    async fn apply(&mut self, desired: &[Desired], kept: Option<String>) -> Result<(), PassError> {
        let applier = &self.context.applier;
        let mut failed = None;
        for object in desired {
            match applier.apply(&self.owner, &self.names.uid, object).await {
                Ok(effort) => self.done.extend(repaired(effort, &object.id, &self.names)),
                Err(error) => {
                    let problem = Problem::new(error.reason(), error.to_string());
                    // A client's things concern that client; everything else concerns all.
                    match object.id.kind {
                        objects::Kind::Secret | objects::Kind::ConfigMap
                            if object.id.namespace != self.names.controller_namespace =>
                        {
                            self.findings.clients.push(problem);
                        }
                        _ => self.findings.objects.push(problem),
                    }
                    match error.is_refusal() {
                        true => self.again = self.again.min(BLOCKED),
                        false => failed = Some(error),
                    }
                }
            }
        }
        if let Some(error) = failed {
            return Err(error.into());
        }
        let authority = kept.map(|name| objects::ObjectId {
            kind: objects::Kind::Secret,
            namespace: self.names.controller_namespace.clone(),
            name,
        });
        let keep = desired.iter().map(|object| object.id.clone()).chain(authority).collect();
        self.prune(&keep).await
    }

    /// Removes what is not among `keep`; as much as one pass may take, and the rest soon.
    async fn prune(&mut self, keep: &BTreeSet<objects::ObjectId>) -> Result<(), PassError> {
        let removal = self.context.applier.prune(&self.names.uid, keep).await?;
        for id in removal.gone {
            tracing::info!(%id, owner = %self.names.owner(), "removed what is not wanted any more");
        }
        if removal.left > 0 {
            self.again = self.again.min(LOOK_AGAIN);
        }
        Ok(())
    }

    /// How the proxies are. `wanted` is known once the settings are.
    fn look_at_deployment(&mut self, wanted: Option<i32>) {
        if self.proxy.spec.mode != Mode::Deployment {
            return;
        }
        let reference = ObjectRef::new(&self.names.base).within(&self.names.controller_namespace);
        self.findings.deployment = format!("{}/{}", self.names.controller_namespace, self.names.base);
        let deployment: Option<Arc<Deployment>> = self.context.stores.deployments.get(&reference);
        let rollout = deployment.map(|deployment| {
            let status = deployment.status.clone().unwrap_or_default();
            Rollout {
                wanted: wanted.or(deployment.spec.replicas).unwrap_or(1),
                replicas: status.replicas.unwrap_or(0),
                updated: status.updated_replicas.unwrap_or(0),
                ready: status.ready_replicas.unwrap_or(0),
                observed: status.observed_generation >= deployment.metadata.generation,
            }
        });
        self.findings.rollout = rollout.or(wanted.map(|wanted| Rollout { wanted, ..Default::default() }));
    }

    fn count(&mut self, settings: &Settings) {
        let Some(usage) = self.context.usages.of(&self.names.uid) else { return };
        let quota = settings.quota();
        let of = quota.map(|quota| format!("/{}", status::human(quota))).unwrap_or_default();
        self.findings.over_quota = quota.is_some_and(|quota| usage.bytes >= quota)
            || settings.limits.keys.is_some_and(|keys| usage.keys >= keys);
        self.findings.usage = Some(Usage {
            keys: usage.keys,
            bytes: usage.bytes,
            summary: format!("{}{of}", status::human(usage.bytes)),
        });
    }

    /// Adds or removes the finalizer, on the object with this uid and no later one.
    pub(super) async fn set_finalizer(&self, wanted: bool) -> Result<(), PassError> {
        let api: Api<EtcdProxy> = Api::namespaced(self.context.client.clone(), &self.names.namespace);
        let finalizers: &[&str] = if wanted { &[FINALIZER] } else { &[] };
        let body = json!({
            "apiVersion": "etcd.programming-kubernetes.info/v1alpha1",
            "kind": "EtcdProxy",
            "metadata": {"name": self.names.name, "uid": self.names.uid, "finalizers": finalizers},
        });
        let params = PatchParams::apply(MANAGER).force();
        let set = api.patch_metadata(&self.names.name, &params, &Patch::Apply(&body)).await;
        match set.map_err(PassError::api("set the finalizer")) {
            Ok(_) => Ok(()),
            // It is gone already.
            Err(error) if !wanted && self.context.went(Some(&self.names.uid), &error).await? => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// What a tenant is told of trouble with the shared etcd; where that is and what it says is the operator's to know.
pub(super) fn seen_by_tenant(upstream: &EtcdUpstream, reason: &'static str) -> Problem {
    let name = upstream.name_any();
    let message = match reason {
        "UpstreamUnreachable" => {
            format!("the shared etcd of EtcdUpstream {name} does not answer; its status says more")
        }
        "ClaimError" => {
            format!("the claims in the etcd of EtcdUpstream {name} cannot be used; the controller's log says more")
        }
        _ => format!("EtcdUpstream {name} cannot be used; its status says why"),
    };
    Problem::new(reason, message)
}

/// What is told of an object that somebody had changed or deleted.
fn repaired(effort: Effort, id: &ObjectId, names: &Names) -> Option<Notice> {
    let owner = names.owner();
    let (action, note) = match effort {
        Effort::Unchanged => return None,
        Effort::Written => {
            tracing::debug!(%id, owner, "written");
            return None;
        }
        Effort::Restored => ("Restore", format!("{id} was changed by somebody else and is again as it is to be")),
        Effort::Remade => ("Remake", format!("{id} was deleted by somebody else and is made again")),
    };
    tracing::warn!(%id, owner, ?effort, "{note}");
    Some(Notice { related: Some(id.reference()), ..Notice::warning("Repaired", action, note) })
}

fn problem_of(refusal: &Refusal) -> Problem {
    Problem::new(refusal.reason.as_str(), refusal.to_string())
}
