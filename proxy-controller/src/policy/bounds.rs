//! Limits, replicas and compute resources: what applies, and what is too much.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::{ResourceExt as _, core::Duration};

use super::{Fault, Reason, Refusal, Value, quantity::Amount};
use crate::api::{EtcdProxy, EtcdUpstream, Limits, Mode, Resources, Tls};

/// The compute resources that anybody may name.
const COMPUTE: [&str; 2] = ["cpu", "memory"];

/// The least of each that a tenant may name, unless the EtcdUpstream's default request is less. 0 would be no limit at all to
/// Kubernetes, and next to nothing makes a pod that takes from others what it has not reserved.
const LEAST: [(&str, &str); 2] = [("cpu", "10m"), ("memory", "16Mi")];

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
/// default. So a tenant cannot rid itself of a default limit by naming another. What is too little counts as not named. A request
/// never exceeds its limit.
pub fn resources(proxy: &EtcdProxy, upstream: &EtcdUpstream) -> Resources {
    let wish = proxy.spec.resources.clone().unwrap_or_default();
    let mut applied = upstream.spec.defaults.resources.clone();
    for name in COMPUTE {
        let max = most(upstream, name);
        for (wishes, applied) in [(&wish.requests, &mut applied.requests), (&wish.limits, &mut applied.limits)] {
            if let Some(wish) = wishes.get(name).filter(|wish| !is_too_little(wish, least(upstream, name).as_ref())) {
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
        refusals.extend(check_validity(proxy, upstream));
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

/// The validities of certificates that apply: the wish, at least what the EtcdUpstream says.
pub fn tls(proxy: &EtcdProxy, upstream: &EtcdUpstream) -> Tls {
    let (wish, min) = (&proxy.spec.tls, upstream.spec.min_validity);
    if seconds(wish.validity) >= seconds(min) {
        return wish.clone();
    }
    let ca_validity = if seconds(wish.ca_validity) < seconds(min) { min } else { wish.ca_validity };
    Tls { validity: min, ca_validity, ..wish.clone() }
}

fn seconds(duration: Duration) -> f64 {
    std::time::Duration::from(duration).as_secs_f64()
}

fn check_validity(proxy: &EtcdProxy, upstream: &EtcdUpstream) -> Option<Refusal> {
    let (wish, min) = (proxy.spec.tls.validity, upstream.spec.min_validity);
    (seconds(wish) < seconds(min)).then(|| {
        let message = format!("EtcdUpstream {} allows no less than {min}", upstream.name_any());
        let value = Value::text(&wish.to_string());
        Refusal::new("spec.tls.validity", Reason::ValidityNotAllowed, Fault::Invalid(value), message)
    })
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
            } else if let Some(least) = least(upstream, name).filter(|least| is_too_little(value, Some(least))) {
                refuse(field, value, format!("must be at least {}: a proxy needs that much", least.0));
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

/// The least of one compute resource that a tenant may name.
fn least(upstream: &EtcdUpstream, name: &str) -> Option<Quantity> {
    let least = LEAST.iter().find(|(of, _)| *of == name).map(|(_, least)| Quantity((*least).to_owned()))?;
    let default = upstream.spec.defaults.resources.requests.get(name);
    let less =
        default.filter(|default| Amount::parse(default).is_some_and(|it| it.units() > 0) && exceeds(&least, default));
    Some(less.cloned().unwrap_or(least))
}

/// Whether a quantity is less than the least. What is no quantity is not too little: it is refused, and cut, as too much.
fn is_too_little(quantity: &Quantity, least: Option<&Quantity>) -> bool {
    match (Amount::parse(quantity), least.and_then(Amount::parse)) {
        (Some(amount), Some(least)) => amount < least,
        _ => false,
    }
}

/// Whether one quantity is greater than another. What is no quantity is too much, and no bound that can be kept.
fn exceeds(quantity: &Quantity, bound: &Quantity) -> bool {
    match (Amount::parse(quantity), Amount::parse(bound)) {
        (Some(amount), Some(bound)) => amount > bound,
        _ => true,
    }
}
