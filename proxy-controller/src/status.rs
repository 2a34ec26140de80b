//! What the status says. Pure: from what a pass found out to conditions, and to what an operator is told when they change.

mod events;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

pub use self::events::{Notice, changed, milestones, notices};
use crate::{
    api::{Certificates, DeletionProgress, EtcdProxy, EtcdProxyStatus, Mode, RotationPhase, Usage},
    policy::Refusal,
};

/// Whether clients can use it.
pub const READY: &str = "Ready";
/// Whether something is under way.
pub const PROGRESSING: &str = "Progressing";
/// Whether the shared etcd answers the controller.
pub const UPSTREAM_REACHABLE: &str = "UpstreamReachable";
/// Whether every client has its certificate.
pub const CERTIFICATES_VALID: &str = "CertificatesValid";
/// Whether writes are refused for the storage quota.
pub const QUOTA_EXCEEDED: &str = "QuotaExceeded";
/// Whether something needs attention though clients can use it.
pub const DEGRADED: &str = "Degraded";

/// All conditions of an EtcdProxy.
pub const ALL: [&str; 6] = [READY, PROGRESSING, UPSTREAM_REACHABLE, CERTIFICATES_VALID, QUOTA_EXCEEDED, DEGRADED];

/// Why something is not as it should be: the reason and message of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// In the form of a condition's reason.
    pub reason: &'static str,
    /// For people: what is wrong, where, and what to do.
    pub message: String,
}

/// How the proxies in mode Deployment are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rollout {
    /// How many are wanted.
    pub wanted: i32,
    /// How many there are.
    pub replicas: i32,
    /// How many are as they are to be now.
    pub updated: i32,
    /// How many are ready.
    pub ready: i32,
    /// Whether these numbers are of the present specification.
    pub observed: bool,
}

/// What one pass found out about an EtcdProxy. What it did not come to know stays `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    /// What is not permitted; the whole object's, not single clients'.
    pub refusals: Vec<Refusal>,
    /// Whether the shared etcd answers.
    pub upstream: Option<Result<(), Problem>>,
    /// The claimed prefix, or why there is none.
    pub prefix: Option<Result<String, Problem>>,
    /// The certificates, or why there are none.
    pub certificates: Option<Result<Certificates, Problem>>,
    /// What keeps single clients from their certificates.
    pub clients: Vec<Problem>,
    /// Why a rotation of the CA waits or what it does, while there is one.
    pub rotation: Option<String>,
    /// Objects that could not be brought to what they are to be.
    pub objects: Vec<Problem>,
    /// How the proxies are, in mode Deployment.
    pub rollout: Option<Rollout>,
    /// Namespace and name of the proxies' Deployment.
    pub deployment: String,
    /// The address for clients.
    pub endpoint: Option<String>,
    /// What the tenant stores.
    pub usage: Option<Usage>,
    /// Whether the quota is reached.
    pub over_quota: bool,
    /// Wishes beyond a bound that was lowered later: they were cut.
    pub cut: Vec<Problem>,
    /// The pass came to its end, with everything as it is to be as far as that is the controller's.
    pub complete: bool,
    /// The object is going.
    pub deleting: Option<Deleting>,
}

/// How far the deletion of an object is.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Deleting {
    /// What is waited for.
    pub message: String,
    /// How much data is left.
    pub progress: Option<DeletionProgress>,
    /// What is in the way.
    pub blocked: Option<Problem>,
}

impl Problem {
    /// A problem.
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

impl Findings {
    /// Whether this generation was judged, though not all of it is done: refused, or without a prefix.
    fn is_decided(&self) -> bool {
        !self.refusals.is_empty() || self.deleting.is_some() || matches!(self.prefix, Some(Err(_)))
    }

    /// Whether the pass ended early for want of something that somebody else has to provide.
    fn is_blocked(&self) -> bool {
        !self.complete
            && (matches!(self.upstream, Some(Err(_)))
                || matches!(self.prefix, Some(Err(_)))
                || matches!(self.certificates, Some(Err(_))))
    }
}

/// The status after a pass. `now` is the time of conditions that changed.
pub fn status(proxy: &EtcdProxy, findings: &Findings, now: Timestamp) -> EtcdProxyStatus {
    let old = proxy.status.clone().unwrap_or_default();
    let generation = proxy.metadata.generation;
    let judged = judge(proxy.spec.mode, findings, old.prefix.is_some());
    let conditions = judged
        .into_iter()
        .map(|(kind, judged)| {
            let before = old.conditions.iter().find(|condition| condition.type_ == kind);
            match (judged, before) {
                (Some(judged), before) => condition(kind, judged, before, generation, now),
                // Not known now is not otherwise than before.
                (None, Some(before)) => before.clone(),
                (None, None) => {
                    condition(kind, unknown("NotLookedAt", "this was not looked at yet"), None, generation, now)
                }
            }
        })
        .collect();
    let prefix = match &findings.prefix {
        Some(Ok(prefix)) => Some(prefix.clone()),
        Some(Err(_)) => None,
        // Not known now is not lost.
        None => old.prefix,
    };
    EtcdProxyStatus {
        conditions,
        observed_generation: match findings.complete || findings.is_decided() {
            true => generation,
            false => old.observed_generation,
        },
        endpoint: findings.endpoint.clone().or(old.endpoint).filter(|_| prefix.is_some()),
        prefix,
        replicas: findings.rollout.map(|rollout| rollout.replicas),
        ready_replicas: findings.rollout.map(|rollout| rollout.ready),
        usage: findings.usage.clone().or(old.usage),
        certificates: match &findings.certificates {
            Some(Ok(certificates)) => Some(certificates.clone()),
            Some(Err(_)) | None => old.certificates.filter(|_| proxy.spec.mode == Mode::Deployment),
        },
        deletion: findings.deleting.as_ref().and_then(|deleting| deleting.progress.clone()),
    }
}

/// Status, reason and message of one condition.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Judged {
    status: &'static str,
    reason: &'static str,
    message: String,
}

fn is(reason: &'static str, message: impl Into<String>) -> Judged {
    Judged { status: "True", reason, message: message.into() }
}

fn is_not(reason: &'static str, message: impl Into<String>) -> Judged {
    Judged { status: "False", reason, message: message.into() }
}

fn unknown(reason: &'static str, message: impl Into<String>) -> Judged {
    Judged { status: "Unknown", reason, message: message.into() }
}

impl From<&Problem> for Judged {
    fn from(Problem { reason, message }: &Problem) -> Self {
        is_not(reason, message)
    }
}

fn judge(mode: Mode, findings: &Findings, had_prefix: bool) -> [(&'static str, Option<Judged>); 6] {
    [
        (READY, Some(ready(mode, findings, had_prefix))),
        (PROGRESSING, Some(progressing(findings))),
        (UPSTREAM_REACHABLE, upstream_reachable(findings)),
        (CERTIFICATES_VALID, certificates_valid(mode, findings)),
        (QUOTA_EXCEEDED, quota_exceeded(findings)),
        (DEGRADED, degraded(findings)),
    ]
}

fn ready(mode: Mode, findings: &Findings, had_prefix: bool) -> Judged {
    if let Some(deleting) = &findings.deleting {
        return match &deleting.blocked {
            Some(problem) => problem.into(),
            None => is_not("Deleting", &deleting.message),
        };
    }
    if let Some(first) = findings.refusals.first() {
        let all: Vec<_> = findings.refusals.iter().map(ToString::to_string).collect();
        return is_not(first.reason.as_str(), all.join("; "));
    }
    match &findings.prefix {
        Some(Err(problem)) => return problem.into(),
        None if !had_prefix => {
            return match &findings.upstream {
                Some(Err(problem)) => problem.into(),
                _ => is_not("Pending", "the prefix is not claimed yet"),
            };
        }
        Some(Ok(_)) | None => {}
    }
    if let Some(Err(problem)) = &findings.certificates {
        return problem.into();
    }
    if let Some(problem) = findings.objects.first() {
        return problem.into();
    }
    match (mode, findings.rollout) {
        (Mode::Sidecar, _) => is("SidecarConfigured", "what a sidecar needs is in this namespace"),
        (Mode::Deployment, Some(Rollout { ready, wanted, .. })) if ready > 0 => {
            is("Serving", format!("{ready} of {} ready", proxies(wanted)))
        }
        (Mode::Deployment, Some(Rollout { wanted, replicas, .. })) => is_not(
            "DeploymentUnavailable",
            format!(
                "0 of {} ready ({replicas} started): the operator sees why at the pods of Deployment {}",
                proxies(wanted),
                findings.deployment
            ),
        ),
        (Mode::Deployment, None) => is_not("DeploymentUnavailable", "there is no Deployment yet"),
    }
}

fn progressing(findings: &Findings) -> Judged {
    let waiting = || is_not("Waiting", "something is in the way: see the other conditions");
    match &findings.deleting {
        Some(Deleting { blocked: Some(_), .. }) => return waiting(),
        Some(deleting) => return is("Deleting", &deleting.message),
        None => {}
    }
    // Whatever the Deployment does by itself, nothing is done for the object.
    if !findings.refusals.is_empty() {
        return is_not("Refused", "nothing is done while the object is not permitted");
    }
    if findings.is_blocked() {
        return waiting();
    }
    if let Some(Ok(certificates)) = &findings.certificates
        && certificates.phase != RotationPhase::Stable
    {
        return is("RotatingCA", findings.rotation.clone().unwrap_or_default());
    }
    match findings.rollout {
        Some(rollout) if !rollout.observed || rollout.updated < rollout.wanted || rollout.ready < rollout.wanted => is(
            "RollingOut",
            format!("{} of {} up to date and ready", rollout.ready.min(rollout.updated), proxies(rollout.wanted)),
        ),
        _ if !findings.complete => waiting(),
        _ => is_not("Settled", "everything is as wanted"),
    }
}

fn upstream_reachable(findings: &Findings) -> Option<Judged> {
    match findings.upstream.as_ref()? {
        Ok(()) => Some(is("Answering", "the shared etcd answers")),
        Err(problem) => Some(problem.into()),
    }
}

fn certificates_valid(mode: Mode, findings: &Findings) -> Option<Judged> {
    match (&findings.certificates, findings.clients.first()) {
        (Some(Err(problem)), _) => Some(problem.into()),
        (_, Some(first)) => {
            let all: Vec<_> = findings.clients.iter().map(|problem| problem.message.as_str()).collect();
            Some(is_not(first.reason, all.join("; ")))
        }
        (Some(Ok(certificates)), None) if findings.complete => Some(is(
            "Issued",
            format!("every client has its certificate, the first expires at {}", certificates.not_after.0),
        )),
        (None, None) if mode == Mode::Sidecar => Some(is("NotUsed", "a sidecar is reached within its pod")),
        (_, None) => None,
    }
}

fn quota_exceeded(findings: &Findings) -> Option<Judged> {
    let usage = findings.usage.as_ref()?;
    Some(match findings.over_quota {
        true => is("QuotaExceeded", format!("writes that grow the tenant are refused: {} used", usage.summary)),
        false => is_not("BelowQuota", format!("{} used", usage.summary)),
    })
}

fn degraded(findings: &Findings) -> Option<Judged> {
    let refused = findings.clients.iter().chain(&findings.objects).chain(&findings.cut).next();
    if let Some(problem) = refused {
        return Some(is(problem.reason, &problem.message));
    }
    match findings.rollout {
        Some(rollout) if rollout.ready > 0 && rollout.ready < rollout.wanted => {
            Some(is("ReplicasMissing", format!("{} of {} ready", rollout.ready, proxies(rollout.wanted))))
        }
        // Whoever did not come to look at everything has not seen that nothing is wrong.
        _ => findings.complete.then(|| is_not("AsExpected", "nothing needs attention")),
    }
}

/// So many proxies, and the verb that fits.
fn proxies(count: i32) -> String {
    if count == 1 { "1 proxy is".to_owned() } else { format!("{count} proxies are") }
}

/// So many of something.
pub fn counted(count: impl Into<i128>, one: &str, more: &str) -> String {
    let count = count.into();
    format!("{count} {}", if count == 1 { one } else { more })
}

fn condition(
    kind: &str,
    judged: Judged,
    before: Option<&Condition>,
    generation: Option<i64>,
    now: Timestamp,
) -> Condition {
    let Judged { status, reason, message } = judged;
    let since = before.filter(|before| before.status == status).map(|before| before.last_transition_time.clone());
    Condition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: bounded(&message, 32_768),
        observed_generation: generation,
        // The API keeps whole seconds.
        last_transition_time: since.unwrap_or_else(|| Time(whole_seconds(now))),
    }
}

/// A time as the API keeps it.
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// The beginning of a text, of at most `most` bytes.
fn bounded(text: &str, most: usize) -> String {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default().to_owned()
}

/// Bytes for people, in binary units.
pub fn human(bytes: i64) -> String {
    const UNITS: [&str; 6] = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];
    let mut unit = 0;
    let mut tenths = i128::from(bytes) * 10;
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    let suffix = UNITS.get(unit).copied().unwrap_or_default();
    match tenths % 10 {
        0 => format!("{}{suffix}", tenths / 10),
        _ if tenths >= 1000 => format!("{}{suffix}", tenths / 10),
        tenth => format!("{}.{tenth}{suffix}", tenths / 10),
    }
}

#[cfg(test)]
mod tests;
