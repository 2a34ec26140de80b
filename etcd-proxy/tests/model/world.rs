//! The parties at work: each step is taken on the real thing and in the models, and what comes of it compared.

mod ask;
mod end;
mod watching;

use std::collections::BTreeMap;

use bytes::Bytes;
use proto::etcdserverpb::{
    CompactionRequest, DeleteRangeRequest, LeaseLeasesRequest, LeaseRevokeRequest, RangeRequest, WatchCreateRequest,
};
use tonic::{Code, Status};

use self::{ask::Answer, watching::Open};
use crate::{
    child::{Etcd, Proxy},
    places::{range_at, txn_at},
    steps::{Action, DIRECT, PREFIXES, Step, TENANTS},
    store::{Change, Refusal, Store},
    support::Client,
    txn,
};

/// A key of the shared etcd's client that nothing else touches.
const ASIDE: &[u8] = b"zz";
/// Where the proxies' own keys lie, and the first key after them.
const META: (&[u8], &[u8]) = (b"/etcd-proxy.meta/", b"/etcd-proxy.meta0");

/// The parties, what is real of them and what is expected.
pub(crate) struct World {
    etcd: Etcd,
    proxies: [Proxy; TENANTS],
    clients: [Client; 3],
    stores: [Store; 3],
    /// The upstream's ids of the tenants' leases.
    upstream_ids: [BTreeMap<i64, i64>; TENANTS],
    /// Whether the tenant's mapping of lease ids has been made, which takes a write.
    mapped: [bool; TENANTS],
    streams: [[Option<Open>; 2]; 3],
    /// The revision at which the case began.
    base: i64,
}

/// What an action is answered, by whoever.
type Answered = Result<Answer, (Code, String)>;

// === impl World ===

impl World {
    pub(crate) async fn start() -> Self {
        let flags = ["--watch-progress-notify-interval=100ms".to_owned()];
        let etcd = Etcd::start_with(format!("http://{}", crate::child::free_address()), &flags).await;
        let proxies = [Proxy::start("/a/", &etcd, &[]).await, Proxy::start("/b/", &etcd, &[]).await];
        let clients = [
            Client::connect(proxies[0].url.clone()).await,
            Client::connect(proxies[1].url.clone()).await,
            Client::connect(etcd.url.clone()).await,
        ];
        let stores = [Store::new(0), Store::new(0), Store::new(0)];
        let upstream_ids = [BTreeMap::new(), BTreeMap::new()];
        let mapped = [false; TENANTS];
        Self { etcd, proxies, clients, stores, upstream_ids, mapped, streams: Default::default(), base: 0 }
    }

    /// Takes the steps.
    ///
    /// # Errors
    /// What is not as it should be.
    pub(crate) async fn case(&mut self, steps: &[Step]) -> Result<(), String> {
        self.reset().await.map_err(|status| format!("before the first step: {status:?}"))?;
        for (number, step) in steps.iter().enumerate() {
            self.step(step).await.map_err(|wrong| format!("step {number}: {wrong}\nafter {step:?}"))?;
        }
        self.compare().await.map_err(|wrong| format!("after the last step: {wrong}"))
    }

    /// Everybody has nothing, at a revision that all history was compacted at.
    async fn reset(&mut self) -> Result<(), Status> {
        self.streams = Default::default();
        for tenant in 0..TENANTS {
            for id in self.leases(tenant).await? {
                self.clients[tenant].lease.lease_revoke(LeaseRevokeRequest { id }).await?;
            }
        }
        let direct = &mut self.clients[DIRECT];
        for (key, end) in [(b"\0".as_slice(), META.0), (META.1, b"\0")] {
            let request = DeleteRangeRequest {
                key: Bytes::from_static(key),
                range_end: Bytes::from_static(end),
                ..Default::default()
            };
            direct.kv.delete_range(request).await?;
        }
        direct.put(ASIDE, "").await;
        let request = DeleteRangeRequest { key: ASIDE.into(), ..Default::default() };
        let base = direct.kv.delete_range(request).await?.into_inner().header.unwrap_or_default().revision;
        direct.kv.compact(CompactionRequest { revision: base, physical: true }).await?;
        self.base = base;
        self.stores = [Store::new(base), Store::new(base), Store::new(base)];
        self.upstream_ids = Default::default();
        Ok(())
    }

    async fn step(&mut self, step: &Step) -> Result<(), String> {
        let party = step.party;
        let action = self.with_revisions(&step.action);
        match &action {
            Action::Watch { stream, creates } => return self.watch(party, *stream, creates).await,
            Action::Cancel { stream, index } => return self.cancel(party, *stream, *index).await,
            Action::Progress { stream } => return self.progress(party, *stream).await,
            // What a watch is told of a time before a compaction depends on which of the two comes first.
            Action::Compact(_) => self.drain().await?,
            _ => {}
        }
        let got = ask::ask(&mut self.clients[party], &action).await;
        let told = self.stores[party].history.len();
        let wanted = self.expected(party, &action);
        self.hold(party, &action, &got, &wanted)?;
        if matches!((&action, &wanted), (Action::Grant { .. }, Ok(_))) {
            self.learn(party, &action).await.map_err(|status| format!("{status:?}"))?;
        }
        self.spread(party, told)?;
        self.settle(party, told, &action, wanted.is_ok()).await
    }

    /// Compares an answer with the expected one.
    fn hold(
        &self,
        party: usize,
        action: &Action,
        got: &Answered,
        wanted: &Result<Answer, Refusal>,
    ) -> Result<(), String> {
        match (action, got) {
            (Action::Describe(what), got) => return ask::describe(*what, got, self.proxies.get(party)),
            (Action::Forbidden(what), got) => return ask::forbidden(*what, got),
            _ => {}
        }
        let same = match (got, wanted) {
            (Ok(got), Ok(wanted)) => got == wanted,
            (Err((code, text)), Err(refusal)) => (*code, text.as_str()) == *refusal,
            _ => false,
        };
        if same { Ok(()) } else { Err(format!("answered\n  {got:?}\nwhere due is\n  {wanted:?}")) }
    }

    /// What the party's model answers.
    fn expected(&mut self, party: usize, action: &Action) -> Result<Answer, Refusal> {
        let now = self.stores[party].revision;
        let store = &mut self.stores[party];
        Ok(match action {
            Action::Range(request) => Answer::Range(store.range(request)?),
            Action::RangeStream(request) => Answer::Range(store.range_stream(request)?),
            Action::Put(request) => Answer::Put(store.put(request)?),
            Action::Delete(request) => Answer::Delete(store.delete_range(request)?),
            Action::Txn(request) => Answer::Txn(txn::txn(store, request, party != DIRECT)?),
            Action::Compact(revision) => {
                store.compact(*revision)?;
                if party == DIRECT {
                    for tenant in &mut self.stores {
                        tenant.compacted = tenant.compacted.max(*revision);
                    }
                    return Ok(Answer::Done(now));
                }
                // The watermark is written.
                Answer::Done(now + 1)
            }
            Action::Grant { id, ttl } => {
                store.grant(*id, *ttl)?;
                Answer::Granted { id: *id, ttl: *ttl }
            }
            Action::Revoke(id) => {
                store.revoke(*id)?;
                // The mark goes in any case.
                Answer::Done(now + 1)
            }
            Action::KeepAlive(ids) => {
                let ttl = |id: &i64| store.leases.get(id).copied().unwrap_or(0);
                Answer::KeptAlive(ids.iter().map(|id| (*id, ttl(id), now)).collect())
            }
            Action::TimeToLive { id, keys } => {
                let granted = store.leases.get(id).copied();
                let keys = if *keys && granted.is_some() { store.attached(*id) } else { Vec::new() };
                let (ttl, granted) = granted.map_or((-1, 0), |granted| (granted, granted));
                Answer::TimeToLive { id: *id, ttl, granted, keys, revision: now }
            }
            Action::Leases => Answer::Leases(store.leases.keys().copied().collect(), now),
            Action::Describe(_) | Action::Forbidden(_) => Answer::Done(now),
            Action::Watch { .. } | Action::Cancel { .. } | Action::Progress { .. } => unreachable!("taken before"),
        })
    }

    /// Finds the upstream's id of a lease that was just granted.
    async fn learn(&mut self, tenant: usize, action: &Action) -> Result<(), Status> {
        let Action::Grant { id, .. } = action else { return Ok(()) };
        // A lease of this id may have been there before, and then its upstream id is the same.
        self.upstream_ids[tenant].remove(id);
        let known: Vec<i64> = self.upstream_ids.iter().flat_map(BTreeMap::values).copied().collect();
        let new = self.leases(DIRECT).await?.into_iter().find(|id| !known.contains(id));
        self.upstream_ids[tenant].insert(*id, new.unwrap_or_default());
        Ok(())
    }

    /// Tells the other models what a party has changed.
    fn spread(&mut self, party: usize, told: usize) -> Result<(), String> {
        let changes: Vec<Change> = self.stores[party].history[told..].to_vec();
        if party == DIRECT {
            for (tenant, prefix) in PREFIXES.iter().enumerate().take(TENANTS) {
                // A put that leaves a tenant's key its lease.
                let kept = |lease| self.upstream_ids[tenant].iter().find(|(_, upstream)| **upstream == lease);
                let inside = changes.iter().filter_map(|change| {
                    let key = change.key.strip_prefix(*prefix).filter(|key| !key.is_empty())?;
                    Some(renamed(change, Bytes::copy_from_slice(key), |lease| kept(lease).map_or(0, |(id, _)| *id)))
                });
                let inside: Vec<Change> = inside.collect();
                self.stores[tenant].mirror(inside);
            }
            return Ok(());
        }
        let ids = &self.upstream_ids[party];
        if let Some(lease) = changes
            .iter()
            .filter_map(|change| change.kv.as_ref())
            .map(|kv| kv.lease)
            .find(|lease| *lease != 0 && !ids.contains_key(lease))
        {
            return Err(format!("the upstream has no lease for {lease}"));
        }
        let outside = changes.iter().map(|change| {
            let key = [PREFIXES[party], &change.key].concat();
            renamed(change, key.into(), |lease| ids.get(&lease).copied().unwrap_or(0))
        });
        let outside: Vec<Change> = outside.collect();
        self.stores[DIRECT].mirror(outside);
        Ok(())
    }

    /// Whether the shared revision has moved by what it should have.
    async fn settle(&mut self, party: usize, told: usize, action: &Action, done: bool) -> Result<(), String> {
        let before = self.stores[party].revision;
        let changed = self.stores[party].history.len() > told;
        let bookkeeping = match action {
            Action::Compact(_) | Action::Grant { .. } | Action::Revoke(_) if party != DIRECT && done => 1,
            _ => i64::from(changed),
        };
        let expected = before + bookkeeping;
        let request = RangeRequest { key: ASIDE.into(), count_only: true, ..Default::default() };
        let answer = self.clients[DIRECT].range(request).await.map_err(|status| format!("{status:?}"))?;
        let now = answer.header.unwrap_or_default().revision;
        // The mapping of lease ids is made once.
        let made = party != DIRECT && now == expected + 1 && !std::mem::replace(&mut self.mapped[party], true);
        if now != expected && !made {
            return Err(format!("the shared etcd is at revision {now} where {expected} is due"));
        }
        for store in &mut self.stores {
            store.revision = now;
        }
        Ok(())
    }

    async fn leases(&mut self, party: usize) -> Result<Vec<i64>, Status> {
        let response = self.clients[party].lease.lease_leases(LeaseLeasesRequest {}).await?.into_inner();
        let mut ids: Vec<i64> = response.leases.iter().map(|lease| lease.id).collect();
        ids.sort_unstable();
        Ok(ids)
    }

    /// The revision for a place: a known one or next to those, or one far from all.
    fn revision(&self, place: i64) -> i64 {
        let now = self.stores[DIRECT].revision;
        match place {
            1..1000 => self.base - 1 + (place - 1) % (now - self.base + 3),
            place => place,
        }
    }

    fn with_revisions(&self, action: &Action) -> Action {
        let revision = |place| self.revision(place);
        match action {
            Action::Range(request) => Action::Range(range_at(request, &revision)),
            Action::RangeStream(request) => Action::RangeStream(range_at(request, &revision)),
            Action::Txn(request) => Action::Txn(txn_at(request, &revision)),
            Action::Compact(place) => Action::Compact(self.revision(*place)),
            Action::Watch { stream, creates } => {
                let create = |create: &WatchCreateRequest| WatchCreateRequest {
                    start_revision: self.revision(create.start_revision),
                    ..create.clone()
                };
                Action::Watch { stream: *stream, creates: creates.iter().map(create).collect() }
            }
            other => other.clone(),
        }
    }
}

/// A change as another party sees it.
fn renamed(change: &Change, key: Bytes, lease: impl Fn(i64) -> i64) -> Change {
    let kv = change.kv.clone().map(|kv| proto::mvccpb::KeyValue { key: key.clone(), lease: lease(kv.lease), ..kv });
    Change { revision: change.revision, key, kv }
}
