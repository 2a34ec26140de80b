//! `etcd-proxy claim --adopt-leases`: marks for leases that were granted past the proxy, so that they are the tenant's.
//!
//! Ids of leases are global on an etcd, and a tenant sees them through its permutation. So an adopted lease goes on for its
//! keys, and bears another id from now on: a client that knew the old one finds it as if it had expired, and finds the new
//! one in the lease of its keys.

use std::io::{self, Write};

use futures::{StreamExt as _, TryStreamExt as _};
use proto::etcdserverpb::{
    LeaseLeasesRequest, LeaseTimeToLiveRequest, PutRequest, RequestOp, TxnRequest, lease_client::LeaseClient,
    request_op::Request,
};
use tonic::{Code, Status};

use super::table::{Align, table};
use crate::{
    compare,
    meta::{self, Held, MetaLayout, TenantKeys},
    prefix::Prefix,
    tenant,
    upstream::Upstream,
    words::counted,
};

/// Leases that are asked about at a time.
const AT_A_TIME: usize = 16;

/// What became of the leases that keys under a prefix hang on.
#[derive(Debug, Default)]
pub(super) struct Adoption {
    adopted: Vec<Adopted>,
    /// Leases that keys outside of the prefix hang on as well.
    shared: Vec<i64>,
    /// Leases that were the tenant's already.
    known: usize,
}

#[derive(Clone, Copy, Debug)]
struct Adopted {
    before: i64,
    now: i64,
    keys: usize,
}

/// How a lease stands to a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    /// No key of the tenant hangs on it, or it has ended.
    None,
    /// It is the tenant's.
    Known,
    /// It could be the tenant's; so many keys hang on it.
    Adoptable(usize),
    /// It could not: whoever can revoke it would delete keys of others.
    Shared,
}

/// Adopts the leases that keys of `prefix`, and no others, hang on, under the claim that `held` is.
pub(super) async fn adopt(
    upstream: &Upstream,
    layout: &MetaLayout,
    prefix: &Prefix,
    held: &Held,
) -> Result<Adoption, Status> {
    let keys = layout.tenant(prefix);
    let mut client = LeaseClient::new(upstream.unary()).max_decoding_message_size(usize::MAX);
    let leases = client.lease_leases(LeaseLeasesRequest {}).await?.into_inner().leases;
    let relation = |id: i64| {
        let (mut client, keys) = (client.clone(), &keys);
        async move {
            let request = LeaseTimeToLiveRequest { id, keys: true };
            match client.lease_time_to_live(request).await.map(tonic::Response::into_inner) {
                Ok(lease) if lease.ttl < 0 => Ok((id, Relation::None)),
                Ok(lease) => Ok((id, Relation::of(&lease.keys, prefix, &keys.lease_mark(id)))),
                // Somebody else's, whom this user may not see; or gone.
                Err(status) if matches!(status.code(), Code::PermissionDenied | Code::NotFound) => {
                    Ok((id, Relation::None))
                }
                Err(status) => Err(status),
            }
        }
    };
    let mut relations =
        futures::stream::iter(leases.iter().map(|lease| lease.id)).map(relation).buffer_unordered(AT_A_TIME);
    let mut adoption = Adoption::default();
    while let Some((id, relation)) = relations.try_next().await? {
        match relation {
            Relation::None => {}
            Relation::Known => adoption.known += 1,
            Relation::Shared => adoption.shared.push(id),
            Relation::Adoptable(count) => {
                // Made if it is not there, at the first lease, as by a proxy.
                let cipher = tenant::lease_cipher(upstream, &keys).await?;
                if mark(upstream, layout, held, &keys, id).await? {
                    let now = cipher.to_tenant(id).map_err(|error| Status::internal(error.to_string()))?;
                    adoption.adopted.push(Adopted { before: id, now, keys: count });
                }
            }
        }
    }
    Ok(adoption)
}

/// Gives a lease its mark. Returns whether it has one now: it may have ended meanwhile.
async fn mark(
    upstream: &Upstream,
    layout: &MetaLayout,
    held: &Held,
    keys: &TenantKeys,
    id: i64,
) -> Result<bool, Status> {
    let key = keys.lease_mark(id);
    let unmarked = compare::absent(key.clone());
    let put = PutRequest { key, value: meta::encode_presence(), lease: id, ..Default::default() };
    let request = TxnRequest {
        compare: vec![held.stands(layout), unmarked],
        success: vec![RequestOp { request: Some(Request::RequestPut(put)) }],
        ..Default::default()
    };
    match upstream.kv().txn(request).await {
        Ok(answer) if answer.get_ref().succeeded => Ok(true),
        Ok(_) => Err(Status::aborted(
            "the claim has changed hands, or somebody else adopts leases of this prefix at the same time",
        )),
        Err(status) if status.code() == Code::NotFound => Ok(false),
        Err(status) => Err(status),
    }
}

// === impl Relation ===

impl Relation {
    /// The relation of a lease that `keys` hang on, and which would have this mark.
    fn of(keys: &[bytes::Bytes], prefix: &Prefix, mark: &[u8]) -> Self {
        let own = keys.iter().filter(|key| key.starts_with(prefix.as_bytes())).count();
        let marked = keys.iter().any(|key| key == mark);
        match (own, marked) {
            (_, true) => Self::Known,
            (0, false) => Self::None,
            (own, false) if own == keys.len() => Self::Adoptable(own),
            (_, false) => Self::Shared,
        }
    }
}

// === impl Adoption ===

impl Adoption {
    /// Says what was done, with ids in hexadecimal as etcdctl has them.
    pub(super) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let verb = |count: usize, one: &'static str, many: &'static str| if count == 1 { one } else { many };
        writeln!(
            out,
            "{} {} adopted; {} {} the tenant's already",
            counted(self.adopted.len(), "lease"),
            verb(self.adopted.len(), "is", "are"),
            self.known,
            verb(self.known, "was", "were")
        )?;
        if !self.adopted.is_empty() {
            let head = [("ID BEFORE", Align::Left), ("ID NOW", Align::Left), ("KEYS", Align::Right)];
            let rows: Vec<_> = self
                .adopted
                .iter()
                .map(|lease| [format!("{:016x}", lease.before), format!("{:016x}", lease.now), lease.keys.to_string()])
                .collect();
            out.write_all(table(head, &rows).as_bytes())?;
        }
        for id in &self.shared {
            writeln!(
                out,
                "lease {id:016x} is not adopted: keys outside of the prefix hang on it, too, which the tenant could delete by revoking it"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whose_a_lease_is() {
        let prefix = Prefix::new("/a/").unwrap();
        let of = |keys: &[&'static str]| {
            let keys: Vec<_> = keys.iter().map(|key| bytes::Bytes::from_static(key.as_bytes())).collect();
            Relation::of(&keys, &prefix, b"/m/1")
        };
        assert_eq!(of(&[]), Relation::None);
        assert_eq!(of(&["/b/k"]), Relation::None);
        assert_eq!(of(&["/a/k", "/a/l"]), Relation::Adoptable(2));
        assert_eq!(of(&["/a/k", "/b/k"]), Relation::Shared);
        // The mark of another tenant is a key outside, too.
        assert_eq!(of(&["/a/k", "/m/2"]), Relation::Shared);
        assert_eq!(of(&["/a/k", "/m/1"]), Relation::Known);
        assert_eq!(of(&["/m/1"]), Relation::Known);
    }
}
