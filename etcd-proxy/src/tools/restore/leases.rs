//! The leases of a restored tenant: granted anew, under the ids that the tenant knows, and kept alive until their keys are
//! there.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use proto::etcdserverpb::{LeaseGrantRequest, LeaseKeepAliveRequest, PutRequest, lease_client::LeaseClient};
use tonic::{Code, Status};

use super::RestoreError;
use crate::{lease_id::CipherError, meta, snapshot::TenantLease, tenant::Tenant, upstream::UpstreamChannel};

/// How often it is looked which leases are to be renewed.
const PAUSE: Duration = Duration::from_millis(200);

/// Leases that were granted for a restore.
pub(super) struct Granted<'a> {
    tenant: &'a Tenant,
    client: LeaseClient<UpstreamChannel>,
    /// By the tenant's ids.
    leases: HashMap<i64, Lease>,
    looked: Instant,
}

struct Lease {
    upstream_id: i64,
    /// Renewed after a third of its time.
    period: Duration,
    renewed: Instant,
}

// === impl Granted ===

impl<'a> Granted<'a> {
    pub(super) fn new(tenant: &'a Tenant) -> Self {
        let client = LeaseClient::new(tenant.upstream().unary());
        Self { tenant, client, leases: HashMap::new(), looked: Instant::now() }
    }

    /// Grants the leases for the time they had been granted, and marks them as the tenant's.
    pub(super) async fn grant(&mut self, leases: &[TenantLease]) -> Result<(), RestoreError> {
        let cipher = self.tenant.leases().await?;
        let mut kv = self.tenant.upstream().kv();
        for lease in leases {
            let upstream_id = cipher.to_upstream(lease.id).map_err(internal)?;
            let request = LeaseGrantRequest { id: upstream_id, ttl: lease.ttl };
            let renewed = Instant::now();
            match self.client.lease_grant(request).await {
                Ok(_) => {}
                // By this restore before it was broken off.
                Err(status) if status.code() == Code::FailedPrecondition => self.renew(&[upstream_id]).await?,
                Err(status) => return Err(status.into()),
            }
            let mark = PutRequest {
                key: self.tenant.keys().lease_mark(upstream_id),
                value: meta::encode_presence(),
                lease: upstream_id,
                ..Default::default()
            };
            kv.put(mark).await.map_err(over)?;
            let ttl = Duration::from_secs(u64::try_from(lease.ttl).unwrap_or(1));
            self.leases.insert(lease.id, Lease { upstream_id, period: ttl / 3, renewed });
            self.renew_due().await?;
        }
        Ok(())
    }

    /// The upstream's id of a lease of the tenant.
    pub(super) async fn upstream_id(&self, id: i64) -> Result<i64, RestoreError> {
        match self.leases.get(&id) {
            Some(lease) => Ok(lease.upstream_id),
            // No backup says so of itself.
            None => Err(RestoreError::LeaseOver),
        }
    }

    /// Renews the leases for which it is time.
    pub(super) async fn renew_due(&mut self) -> Result<(), RestoreError> {
        if self.looked.elapsed() < PAUSE {
            return Ok(());
        }
        self.looked = Instant::now();
        self.renew_where(|lease| lease.renewed.elapsed() >= lease.period).await
    }

    /// Renews all of them.
    pub(super) async fn renew_all(&mut self) -> Result<(), RestoreError> {
        self.renew_where(|_| true).await
    }

    async fn renew_where(&mut self, due: impl Fn(&Lease) -> bool) -> Result<(), RestoreError> {
        let now = Instant::now();
        let mut ids = Vec::new();
        for lease in self.leases.values_mut().filter(|lease| due(lease)) {
            ids.push(lease.upstream_id);
            lease.renewed = now;
        }
        self.renew(&ids).await
    }

    async fn renew(&mut self, ids: &[i64]) -> Result<(), RestoreError> {
        if ids.is_empty() {
            return Ok(());
        }
        let requests: Vec<LeaseKeepAliveRequest> = ids.iter().map(|&id| LeaseKeepAliveRequest { id }).collect();
        let mut answers = self.client.lease_keep_alive(futures::stream::iter(requests)).await?.into_inner();
        while let Some(answer) = answers.message().await? {
            if answer.ttl <= 0 {
                return Err(RestoreError::LeaseOver);
            }
        }
        Ok(())
    }
}

fn over(status: Status) -> RestoreError {
    if status.code() == Code::NotFound { RestoreError::LeaseOver } else { status.into() }
}

fn internal(error: CipherError) -> Status {
    Status::internal(format!("etcd-proxy: {error}"))
}
