//! The secret of a tenant's lease ids: made once, at the first lease, by whichever replica comes first.

use std::sync::{Arc, OnceLock};

use proto::etcdserverpb::{
    PutRequest, RangeRequest, RequestOp, TxnRequest, request_op::Request, response_op::Response,
};
use tonic::Status;

use super::joined::Joined;
use crate::{
    compare,
    lease_id::{LeaseCipher, LeaseSecret},
    meta::{self, TenantKeys},
    upstream::Upstream,
};

/// The mapping of a tenant's lease ids, loaded once. It is replaced by the next one where the store went back to before its secret
/// was made; who has a reference to it meanwhile keeps that.
#[derive(Debug, Default)]
pub(super) struct Mapping {
    /// Shared with the answers that are being passed on by it.
    cipher: OnceLock<Arc<LeaseCipher>>,
    loading: Joined<Arc<LeaseCipher>>,
    next: OnceLock<Box<Self>>,
}

/// The mapping that belongs to the stored secret, or none if none is stored: then no lease was ever granted.
pub(super) async fn load(upstream: &Upstream, keys: &TenantKeys) -> Result<Option<LeaseCipher>, Status> {
    let stored = upstream.range(read(keys)).await?.kvs.into_iter().next();
    stored.map(|stored| cipher(&decode(&stored.value)?)).transpose()
}

/// A mapping of this process alone, whose ids nobody was granted.
pub(super) fn stand_in() -> Result<LeaseCipher, Status> {
    cipher(&LeaseSecret::generate().map_err(internal)?)
}

/// The mapping that belongs to the stored secret, or to a new one if none is stored.
pub(crate) async fn load_or_make(upstream: &Upstream, keys: &TenantKeys) -> Result<LeaseCipher, Status> {
    if let Some(stored) = load(upstream, keys).await? {
        return Ok(stored);
    }
    let read = read(keys);
    let made = LeaseSecret::generate().map_err(internal)?;
    let put = PutRequest { key: keys.secret(), value: meta::encode_secret(&made), ..Default::default() };
    let request = TxnRequest {
        compare: vec![compare::absent(keys.secret())],
        success: vec![RequestOp { request: Some(Request::RequestPut(put)) }],
        failure: vec![RequestOp { request: Some(Request::RequestRange(read)) }],
    };
    let answer = upstream.txn(request).await?;
    if answer.succeeded {
        return cipher(&made);
    }
    // Another replica was first.
    match answer.responses.into_iter().next().and_then(|op| op.response) {
        Some(Response::ResponseRange(range)) if !range.kvs.is_empty() => {
            let value = range.kvs.first().map(|kv| kv.value.clone()).unwrap_or_default();
            cipher(&decode(&value)?)
        }
        _ => Err(Status::internal("etcd-proxy: the lease secret is neither there nor can it be made")),
    }
}

// === impl Mapping ===

impl Mapping {
    /// The mapping that holds.
    fn last(&self) -> &Self {
        let mut last = self;
        while let Some(next) = last.next.get() {
            last = next;
        }
        last
    }

    /// The mapping, if it has been loaded.
    pub(super) fn get(&self) -> Option<&Arc<LeaseCipher>> {
        self.last().cipher.get()
    }

    /// The mapping, which is this one if none has been loaded.
    pub(super) fn get_or_init(&self, cipher: LeaseCipher) -> &LeaseCipher {
        self.last().cipher.get_or_init(|| Arc::new(cipher))
    }

    /// The mapping, loaded, or made if there is none.
    pub(super) async fn load_or_make(&self, upstream: &Upstream, keys: &TenantKeys) -> Result<&LeaseCipher, Status> {
        let last = self.last();
        if let Some(cipher) = last.cipher.get() {
            return Ok(cipher);
        }
        let (upstream, keys) = (upstream.clone(), keys.clone());
        let load = || async move { load_or_make(&upstream, &keys).await.map(Arc::new) };
        let cipher = last.loading.ask(load).await?;
        Ok(last.cipher.get_or_init(|| cipher))
    }

    /// Forgets a mapping whose secret is not stored any more: leases that it has named are gone.
    pub(super) async fn check(&self, upstream: &Upstream, keys: &TenantKeys) -> Result<(), Status> {
        let last = self.last();
        let Some(held) = last.cipher.get() else { return Ok(()) };
        let same = match load(upstream, keys).await? {
            Some(stored) => stored.agrees_with(held).map_err(internal)?,
            None => false,
        };
        if !same {
            tracing::error!(
                "the secret of the tenant's lease ids is not the one that this proxy has used: the upstream has gone back to before it was made, or somebody removed it; the stored one counts from here on, and leases that clients hold are gone for them"
            );
            // Of two that notice at once one is enough.
            last.next.get_or_init(Box::default);
        }
        Ok(())
    }
}

fn read(keys: &TenantKeys) -> RangeRequest {
    RangeRequest { key: keys.secret(), ..Default::default() }
}

fn decode(value: &[u8]) -> Result<LeaseSecret, Status> {
    meta::decode_secret(value).map_err(internal)
}

fn cipher(secret: &LeaseSecret) -> Result<LeaseCipher, Status> {
    LeaseCipher::new(secret).map_err(internal)
}

fn internal(error: impl std::error::Error) -> Status {
    tracing::error!(%error, "the lease ids of the tenant cannot be mapped");
    Status::internal(format!("etcd-proxy: {error}"))
}
