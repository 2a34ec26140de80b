//! Limits, replicas and compute resources: what applies, and what is too much.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt as _;

use super::{Fault, Reason, Refusal, Value, quantity::Amount};
use crate::api::{EtcdProxy, EtcdUpstream, Limits, Mode, Resources};

/// The compute resources that anybody may name.
const COMPUTE: [&str; 2] = ["cpu", "memory"];

/// The limits that apply to a tenant: its own, else the EtcdUpstream's defaults. A wish above what is permitted counts as what
/// is permitted, so that a limit lowered later takes effect.
pub fn limits(proxy: &EtcdProxy, upstream: &EtcdUpstream) -> Limits {
    let wish = proxy.spec.limits.clone().unwrap_or_default();
    let (default, max) = (&upstream.spec.defaults.limits, bound(upstream));
    let number = |wish: Option<i64>, max: Option<i64>, default: Option<i64>| match (wish, max) {
        (Some(wish), Some(max)) => Some(wish.min(max)),
        (Some(wish), None) => Some(wish),
        // Naming none is no way around the most that may be named.
        (None, max) => default.or(max),
    };
    let storage = match (wish.storage, &max.storage) {
        (Some(wish), Some(max)) if exceeds(&wish, max) => Some(max.clone()),
        (Some(wish), _) => Some(wish),
        (None, max) => default.storage.as_ref().or(max.as_ref()).cloned(),
    };
    Limits {
        storage,
        keys: number(wish.keys, max.keys, default.keys),
        requests_per_second: number(wish.requests_per_second, max.requests_per_second, default.requests_per_second),
        burst: number(wish.burst, max.burst, default.burst),
        concurrent_requests: number(wish.concurrent_requests, max.concurrent_requests, default.concurrent_requests),
        watches: number(wish.watches, max.watches, default.watches),
        leases: number(wish.leases, max.leases, default.leases),
    }
}

/// How many proxies run in mode Deployment: the wish, at most what is permitted, else the EtcdUpstream's default.
pub fn replicas(proxy: &EtcdProxy, upstream: &EtcdUpstream) -> i32 {
    let spec = &upstream.spec;
    proxy.spec.replicas.map_or(spec.defaults.replicas, |wish| wish.min(spec.max_replicas))
}

/// The compute resources of one proxy process: for each name the wish, at most what is permitted, else the EtcdUpstream's
/// default. So a tenant cannot rid itself of a default limit by naming another. A request never exceeds its limit.
pub fn resources(proxy: &EtcdProxy, upstream: &EtcdUpstream) -> Resources {
    let wish = proxy.spec.resources.clone().unwrap_or_default();
    let mut applied = upstream.spec.defaults.resources.clone();
    for name in COMPUTE {
        let max = most(upstream, name);
        for (wishes, applied) in [(&wish.requests, &mut applied.requests), (&wish.limits, &mut applied.limits)] {
            if let Some(wish) = wishes.get(name) {
                let value = max.filter(|max| exceeds(wish, max)).unwrap_or(wish);
                applied.insert(name.to_owned(), value.clone());
            }
        }
        if let (Some(request), Some(limit)) = (applied.requests.get(name), applied.limits.get(name))
            && exceeds(request, limit)
        {
            applied.requests.insert(name.to_owned(), limit.clone());
        }
    }
    applied
}

pub(super) fn check(proxy: &EtcdProxy, upstream: &EtcdUpstream) -> Vec<Refusal> {
    let mut refusals = check_limits(proxy, upstream);
    // In mode Sidecar they are refused as such.
    if proxy.spec.mode == Mode::Deployment {
        refusals.extend(check_replicas(proxy, upstream));
        refusals.extend(check_resources(proxy, upstream));
    }
    refusals
}

fn check_limits(proxy: &EtcdProxy, upstream: &EtcdUpstream) -> Vec<Refusal> {
    let Some(wish) = &proxy.spec.limits else { return Vec::new() };
    let max = bound(upstream);
    let mut refusals = Vec::new();
    let mut refuse = |name: &str, value: Value, max: &dyn std::fmt::Display| {
        let message = format!("EtcdUpstream {} allows at most {max}", upstream.name_any());
        let field = format!("spec.limits.{name}");
        refusals.push(Refusal::new(field, Reason::LimitsNotAllowed, Fault::Invalid(value), message));
    };
    if let (Some(wish), Some(max)) = (&wish.storage, &max.storage)
        && exceeds(wish, max)
    {
        refuse("storage", Value::text(&wish.0), &max.0);
    }
    for (name, wish, max) in [
        ("keys", wish.keys, max.keys),
        ("requestsPerSecond", wish.requests_per_second, max.requests_per_second),
        ("burst", wish.burst, max.burst),
        ("concurrentRequests", wish.concurrent_requests, max.concurrent_requests),
        ("watches", wish.watches, max.watches),
        ("leases", wish.leases, max.leases),
    ] {
        if let (Some(wish), Some(max)) = (wish, max)
            && wish > max
        {
            refuse(name, Value::number(wish), &max);
        }
    }
    refusals
}

fn check_replicas(proxy: &EtcdProxy, upstream: &EtcdUpstream) -> Option<Refusal> {
    let (wish, max) = (proxy.spec.replicas?, upstream.spec.max_replicas);
    (wish > max).then(|| {
        let message = format!("EtcdUpstream {} allows at most {max}", upstream.name_any());
        Refusal::new("spec.replicas", Reason::ReplicasNotAllowed, Fault::Invalid(Value::number(wish)), message)
    })
}

fn check_resources(proxy: &EtcdProxy, upstream: &EtcdUpstream) -> Vec<Refusal> {
    let Some(wish) = &proxy.spec.resources else { return Vec::new() };
    let defaults = &upstream.spec.defaults.resources;
    let mut refusals = Vec::new();
    let mut refuse = |field: String, value: &Quantity, message: String| {
        refusals.push(Refusal::new(field, Reason::ResourcesNotAllowed, Fault::Invalid(Value::text(&value.0)), message));
    };
    for (part, wishes) in [("requests", &wish.requests), ("limits", &wish.limits)] {
        for (name, value) in wishes {
            let field = format!("spec.resources.{part}[{name}]");
            if !COMPUTE.contains(&name.as_str()) {
                refuse(field, value, "only cpu and memory may be named".to_owned());
            } else if Amount::parse(value).is_none() {
                refuse(field, value, "must be a quantity that is not negative".to_owned());
            } else if let Some(max) = most(upstream, name).filter(|max| exceeds(value, max)) {
                refuse(field, value, format!("EtcdUpstream {} allows at most {}", upstream.name_any(), max.0));
            } else if part == "requests"
                && let Some(limit) = wish.limits.get(name).or_else(|| defaults.limits.get(name))
                && exceeds(value, limit)
            {
                refuse(field, value, format!("must be less than or equal to the {name} limit of {}", limit.0));
            }
        }
    }
    refusals
}

/// The most that a tenant may set its limits to; what is absent is not bounded.
fn bound(upstream: &EtcdUpstream) -> Limits {
    let (max, default) = (&upstream.spec.max_limits, &upstream.spec.defaults.limits);
    Limits {
        storage: max.storage.clone().or_else(|| default.storage.clone()),
        keys: max.keys.or(default.keys),
        requests_per_second: max.requests_per_second.or(default.requests_per_second),
        burst: max.burst.or(default.burst),
        concurrent_requests: max.concurrent_requests.or(default.concurrent_requests),
        watches: max.watches.or(default.watches),
        leases: max.leases.or(default.leases),
    }
}

/// The most of one compute resource that a tenant may name, for requests and limits alike: a limit without a request is a
/// request, too.
fn most<'a>(upstream: &'a EtcdUpstream, name: &str) -> Option<&'a Quantity> {
    let spec = &upstream.spec;
    let defaults = &spec.defaults.resources;
    spec.max_resources.get(name).or_else(|| defaults.limits.get(name)).or_else(|| defaults.requests.get(name))
}

/// Whether one quantity is greater than another. What is no quantity is too much, and no bound that can be kept.
fn exceeds(quantity: &Quantity, bound: &Quantity) -> bool {
    match (Amount::parse(quantity), Amount::parse(bound)) {
        (Some(amount), Some(bound)) => amount > bound,
        _ => true,
    }
}
