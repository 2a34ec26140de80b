//! What a tenant uses of its limits, for `/usage` and for the metrics.

use std::{fmt, sync::Arc};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeLabelValue},
    metrics::{MetricType, counter::Counter},
};
use proto::etcdserverpb::RangeRequest;
use serde::Serialize;
use tonic::Status;

use super::{LimitSettings, Limits};
use crate::{
    meta::TenantKeys,
    prefix::Prefix,
    upstream::{Upstream, in_time},
};

/// How often each limit was hit.
#[derive(Clone, Debug, Default)]
pub(super) struct Hits {
    pub(super) quota_bytes: Counter,
    pub(super) quota_keys: Counter,
    pub(super) requests_per_second: Counter,
    pub(super) concurrent_requests: Counter,
    pub(super) streams: Counter,
    pub(super) watches: Counter,
    pub(super) leases: Counter,
}

/// What a tenant uses: the body of `/usage`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// The tenant's prefix; bytes that are no text are escaped.
    pub prefix: String,
    /// Live keys of the tenant. `null` if they could not be counted.
    pub keys: Option<i64>,
    /// Bytes of live keys and their values. `null` without a quota, since nobody counts them then.
    pub bytes: Option<i64>,
    /// Live leases of the tenant. `null` if they could not be counted.
    pub leases: Option<i64>,
    /// Watches in this process.
    pub watches: usize,
    /// Open streams in this process, calls that wait for a lock or in an election among them.
    pub streams: usize,
    /// Unary requests under way in this process.
    pub requests_in_flight: usize,
    /// Whether writes that grow the tenant are being refused.
    pub quota_exceeded: bool,
    /// The limits.
    pub limits: LimitsInForce,
    /// How often each of them was hit, in this process.
    pub hits: HitCounts,
}

/// The limits in force; `null` for what is not limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names of the flags")]
pub struct LimitsInForce {
    pub quota_bytes: Option<usize>,
    pub quota_keys: Option<usize>,
    pub max_requests_per_second: Option<u32>,
    pub max_requests_burst: Option<u32>,
    pub max_concurrent_requests: Option<usize>,
    pub max_streams: Option<usize>,
    pub max_watches: Option<usize>,
    pub max_leases: Option<usize>,
}

/// How often each limit was hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names of the flags")]
pub struct HitCounts {
    pub quota_bytes: u64,
    pub quota_keys: u64,
    pub max_requests_per_second: u64,
    pub max_concurrent_requests: u64,
    pub max_streams: u64,
    pub max_watches: u64,
    pub max_leases: u64,
}

/// Tells Prometheus, when it asks.
#[derive(Debug)]
pub(super) struct LimitsCollector(Arc<Limits>);

#[derive(Clone, Copy, Debug, EncodeLabelSet)]
struct Labels {
    limit: LimitName,
}

#[derive(Clone, Copy, Debug, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "label values are lower case")]
enum LimitName {
    quota_bytes,
    quota_keys,
    requests_per_second,
    concurrent_requests,
    streams,
    watches,
    leases,
}

/// A limit as the metrics show it.
struct Shown {
    name: LimitName,
    limit: Option<i64>,
    used: Option<i64>,
    hits: u64,
}

// === impl Limits ===

impl Limits {
    /// What the tenant uses. What no limit makes this process follow is counted on the upstream.
    pub(crate) async fn usage(&self, upstream: &Upstream, prefix: &Prefix, keys: &TenantKeys) -> Usage {
        let count_keys = async {
            match self.storage() {
                Some(storage) => storage.stored().map(|stored| stored.keys),
                None => count(upstream, prefix.keys()).await.ok(),
            }
        };
        let count_leases = async {
            match self.leases() {
                Some(leases) => leases.stored().map(|stored| stored.keys),
                None => count(upstream, keys.lease_marks()).await.ok(),
            }
        };
        let (keys, leases) = tokio::join!(count_keys, count_leases);
        Usage {
            prefix: prefix.to_string(),
            keys,
            bytes: self.storage().and_then(|storage| storage.stored()).map(|stored| stored.bytes),
            leases,
            watches: self.watches.present(),
            streams: self.streams.present(),
            requests_in_flight: self.in_flight.present(),
            quota_exceeded: self.storage().is_some_and(|storage| storage.exhausted()),
            limits: LimitsInForce::from(&self.settings),
            hits: HitCounts::from(&self.hits),
        }
    }

    fn shown(&self) -> [Shown; 7] {
        let stored = self.storage().and_then(|storage| storage.stored());
        let leases = self.leases().and_then(|leases| leases.stored());
        let LimitsInForce {
            quota_bytes,
            quota_keys,
            max_requests_per_second: _,
            max_requests_burst,
            max_concurrent_requests,
            max_streams,
            max_watches,
            max_leases,
        } = LimitsInForce::from(&self.settings);
        let (hits, number) = (HitCounts::from(&self.hits), |number: usize| i64::try_from(number).unwrap_or(i64::MAX));
        let shown = |name, limit: Option<usize>, used, hits| Shown { name, limit: limit.map(number), used, hits };
        [
            shown(LimitName::quota_bytes, quota_bytes, stored.map(|stored| stored.bytes), hits.quota_bytes),
            shown(LimitName::quota_keys, quota_keys, stored.map(|stored| stored.keys), hits.quota_keys),
            // Of a rate it is the burst that is used up and comes back.
            Shown {
                name: LimitName::requests_per_second,
                limit: max_requests_burst.map(i64::from),
                used: self.rate.as_ref().map(|rate| i64::try_from(rate.taken()).unwrap_or(i64::MAX)),
                hits: hits.max_requests_per_second,
            },
            shown(
                LimitName::concurrent_requests,
                max_concurrent_requests,
                Some(number(self.in_flight.present())),
                hits.max_concurrent_requests,
            ),
            shown(LimitName::streams, max_streams, Some(number(self.streams.present())), hits.max_streams),
            shown(LimitName::watches, max_watches, Some(number(self.watches.present())), hits.max_watches),
            shown(LimitName::leases, max_leases, leases.map(|leases| leases.keys), hits.max_leases),
        ]
    }
}

async fn count(upstream: &Upstream, (key, range_end): (bytes::Bytes, bytes::Bytes)) -> Result<i64, Status> {
    let request = RangeRequest { key, range_end, count_only: true, ..Default::default() };
    Ok(in_time(upstream.kv().range(request)).await?.into_inner().count)
}

// === impl LimitsInForce, HitCounts ===

impl From<&LimitSettings> for LimitsInForce {
    fn from(settings: &LimitSettings) -> Self {
        let number = |number: Option<std::num::NonZeroUsize>| number.map(std::num::NonZeroUsize::get);
        Self {
            quota_bytes: number(settings.quota_bytes),
            quota_keys: number(settings.quota_keys),
            max_requests_per_second: settings.requests_per_second.map(|rate| rate.per_second.get()),
            max_requests_burst: settings.requests_per_second.map(|rate| rate.burst.get()),
            max_concurrent_requests: number(settings.concurrent_requests),
            max_streams: number(settings.streams),
            max_watches: number(settings.watches),
            max_leases: number(settings.leases),
        }
    }
}

impl From<&Hits> for HitCounts {
    fn from(hits: &Hits) -> Self {
        Self {
            quota_bytes: hits.quota_bytes.get(),
            quota_keys: hits.quota_keys.get(),
            max_requests_per_second: hits.requests_per_second.get(),
            max_concurrent_requests: hits.concurrent_requests.get(),
            max_streams: hits.streams.get(),
            max_watches: hits.watches.get(),
            max_leases: hits.leases.get(),
        }
    }
}

// === impl LimitsCollector ===

impl LimitsCollector {
    pub(super) fn new(limits: Arc<Limits>) -> Self {
        Self(limits)
    }
}

impl Collector for LimitsCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let shown = self.0.shown();
        gauges(
            &mut encoder,
            "limit",
            "Limits of the tenant that are set; of requests_per_second the burst",
            shown.iter().filter_map(|shown| Some((shown.name, shown.limit?))),
        )?;
        gauges(
            &mut encoder,
            "limit_used",
            "What the tenant uses of what can be limited, as far as it is known; of requests_per_second what is missing from the burst",
            shown.iter().filter_map(|shown| Some((shown.name, shown.used?))),
        )?;
        let mut family = encoder.encode_descriptor(
            "limit_hits",
            "Requests that were refused because of a limit",
            None,
            MetricType::Counter,
        )?;
        for shown in &shown {
            family
                .encode_family(&Labels { limit: shown.name })?
                .encode_counter::<Labels, u64, u64>(&shown.hits, None)?;
        }
        let exceeded = self.0.storage().is_some_and(|storage| storage.exhausted());
        let mut gauge = encoder.encode_descriptor(
            "quota_exceeded",
            "1 while writes that grow the tenant are refused",
            None,
            MetricType::Gauge,
        )?;
        gauge.encode_gauge(&i64::from(exceeded))
    }
}

fn gauges(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: impl Iterator<Item = (LimitName, i64)>,
) -> Result<(), fmt::Error> {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (limit, value) in values {
        family.encode_family(&Labels { limit })?.encode_gauge(&value)?;
    }
    Ok(())
}
