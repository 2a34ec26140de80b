//! The end of a case: what everybody has and had, and that the shared etcd holds exactly that.

use bytes::Bytes;
use proto::{
    etcdserverpb::{AlarmRequest, AuthStatusRequest, MemberListRequest, RangeRequest},
    mvccpb::KeyValue,
};

use super::{ASIDE, META, World};
use crate::{
    http,
    steps::{DIRECT, PREFIXES, TENANTS},
    store::Change,
    support::watch_all,
};

// === impl World ===

impl World {
    /// Compares what there is at the end of a case.
    pub(super) async fn compare(&mut self) -> Result<(), String> {
        self.finish().await?;
        for party in 0..=DIRECT {
            let all = RangeRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() };
            let answer = self.clients[party].range(all).await.map_err(|status| format!("{status:?}"))?;
            let got: Vec<KeyValue> = answer.kvs.into_iter().filter(|kv| party != DIRECT || !is_meta(&kv.key)).collect();
            let wanted = self.stores[party].at(b"\0", b"\0", i64::MAX);
            same(&format!("the keys of party {party}"), &got, &wanted)?;
            let got = self.leases(party).await.map_err(|status| format!("{status:?}"))?;
            let mut wanted: Vec<i64> = match party {
                DIRECT => self
                    .upstream_ids
                    .iter()
                    .zip(&self.stores)
                    .flat_map(|(ids, store)| store.leases.keys().map(|id| ids.get(id).copied().unwrap_or_default()))
                    .collect(),
                tenant => self.stores[tenant].leases.keys().copied().collect(),
            };
            wanted.sort_unstable();
            same(&format!("the leases of party {party}"), &got, &wanted)?;
        }
        self.compare_history().await?;
        self.compare_rest().await
    }

    /// The shared etcd's history is the union of what the parties did, and of bookkeeping where that belongs.
    async fn compare_history(&mut self) -> Result<(), String> {
        let store = &self.stores[DIRECT];
        let from = store.compacted.max(self.base + 1);
        let mut wanted: Vec<Change> = store.history.iter().filter(|change| change.revision >= from).cloned().collect();
        let direct = &mut self.clients[DIRECT];
        let end = direct.put(ASIDE, "").await;
        let kv =
            KeyValue { key: ASIDE.into(), create_revision: end, mod_revision: end, version: 1, ..Default::default() };
        wanted.push(Change { revision: end, key: ASIDE.into(), kv: Some(kv) });
        let mut watching = direct.watch([watch_all(from)]).await;
        let mut got = Vec::new();
        while got.last().is_none_or(|change: &Change| change.revision < end) {
            let answer = watching.next().await.map_err(|status| format!("{status:?}"))?;
            for event in answer.events {
                let kv = event.kv.unwrap_or_default();
                if is_meta(&kv.key) {
                    bookkeeping(&kv.key)?;
                    continue;
                }
                let (revision, key) = (kv.mod_revision, kv.key.clone());
                got.push(Change { revision, key, kv: (event.r#type == 0).then_some(kv) });
            }
        }
        same("the history of the shared etcd", &got, &wanted)
    }

    /// Nothing about the etcd itself was changed, nobody saw a foreign key, and everybody is still there.
    async fn compare_rest(&mut self) -> Result<(), String> {
        let direct = &mut self.clients[DIRECT];
        let failed = |status: tonic::Status| format!("{status:?}");
        let members = direct.cluster.member_list(MemberListRequest { linearizable: true }).await.map_err(failed)?;
        same("the members", &members.get_ref().members.len(), &1)?;
        let alarms = direct.maintenance.alarm(AlarmRequest::default()).await.map_err(failed)?;
        same("the alarms", &alarms.get_ref().alarms.len(), &0)?;
        let auth = direct.auth.auth_status(AuthStatusRequest {}).await.map_err(failed)?;
        same("authentication", &auth.get_ref().enabled, &false)?;
        for proxy in &self.proxies {
            let metrics = http::get(&format!("{}/metrics", proxy.metrics)).await.ok_or("the proxy is gone")?;
            if !metrics.body.contains("etcd_proxy_foreign_keys_total 0\n") {
                return Err("a proxy has met a foreign key".to_owned());
            }
        }
        Ok(())
    }

    /// All cases are over.
    pub(crate) async fn end(&mut self) {
        for proxy in &mut self.proxies {
            assert!(proxy.program.child.try_wait().unwrap().is_none(), "a proxy has ended");
            let log = proxy.program.log();
            assert!(!log.contains("panicked"), "{log}");
        }
        assert!(http::get(&format!("{}/health", self.etcd.url)).await.is_some_and(|answer| answer.status == 200));
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: &T, wanted: &T) -> Result<(), String> {
    if got == wanted { Ok(()) } else { Err(format!("{what}:\n  {got:?}\nwhere due is\n  {wanted:?}")) }
}

fn is_meta(key: &Bytes) -> bool {
    key[..] >= *META.0 && key[..] < *META.1
}

/// Whether a meta key is one that a tenant's proxy may write.
fn bookkeeping(key: &Bytes) -> Result<(), String> {
    let allowed = PREFIXES.iter().take(TENANTS).any(|prefix| {
        let base = format!("/etcd-proxy.meta/tenants/{}/", hex::encode(prefix));
        key.strip_prefix(base.as_bytes())
            .is_some_and(|rest| rest == b"secret" || rest == b"watermark" || rest.starts_with(b"leases/"))
    });
    if allowed { Ok(()) } else { Err(format!("a meta key that nobody should write: {key:?}")) }
}
