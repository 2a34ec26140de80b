//! What an operator is told when a status changes. Only changes are told: the same again is in the conditions.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::runtime::events::EventType;

use super::{CERTIFICATES_VALID, Condition, DEGRADED, QUOTA_EXCEEDED, READY, UPSTREAM_REACHABLE};
use crate::api::{EtcdProxyStatus, RotationPhase};

/// An event that is due.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// Normal, or worth a look.
    pub severity: EventType,
    /// The event's reason.
    pub reason: String,
    /// What was being done. What differs in its note alone counts as the same again (the key of a series,
    /// `staging/src/k8s.io/client-go/tools/events/event_recorder.go`): news have an action of their own.
    pub action: &'static str,
    /// The object that it was done to, where that is another than the one that the event is about.
    pub related: Option<ObjectReference>,
    /// For people.
    pub note: String,
}

/// Which conditions say something new: another status, or another reason.
pub fn changed<'a>(old: &[Condition], new: &'a [Condition]) -> impl Iterator<Item = &'a Condition> {
    new.iter().filter(move |after| {
        let before = old.iter().find(|before| before.type_ == after.type_);
        before.is_none_or(|before| (&before.status, &before.reason) != (&after.status, &after.reason))
    })
}

/// What the change from one status to another tells.
pub fn notices(old: &EtcdProxyStatus, new: &EtcdProxyStatus) -> Vec<Notice> {
    let mut notices = milestones(old, new);
    let mut told: Vec<&Condition> = Vec::new();
    for (kind, good, action) in [
        (UPSTREAM_REACHABLE, "True", "Connect"),
        (CERTIFICATES_VALID, "True", "Issue"),
        (QUOTA_EXCEEDED, "False", "Count"),
        (READY, "True", "Reconcile"),
        (DEGRADED, "False", "Reconcile"),
    ] {
        let Some(after) = new.conditions.iter().find(|condition| condition.type_ == kind) else { continue };
        let is_good = after.status == good;
        // The same trouble shows in several conditions. The first tells it; that of the whole, last, gives the first of many.
        let known =
            told.iter().any(|told| told.reason == after.reason && (told.message == after.message || kind == DEGRADED));
        if !is_good {
            told.push(after);
        }
        let before = old.conditions.iter().find(|condition| condition.type_ == kind);
        let before = before.filter(|before| before.reason != "NotLookedAt");
        let unchanged = before.is_some_and(|before| (&before.status, &before.reason) == (&after.status, &after.reason));
        // What was never otherwise than good is no news, save that it is ready.
        let always_good = is_good && before.map_or(kind != READY, |before| before.status == good);
        let pending = matches!(after.reason.as_str(), "Pending" | "NotLookedAt" | "Deleting");
        if unchanged || always_good || pending || (known && !is_good) {
            continue;
        }
        let severity = if is_good { EventType::Normal } else { EventType::Warning };
        notices.push(Notice { severity, ..Notice::normal(&after.reason, action, after.message.clone()) });
    }
    notices
}

/// What was reached, beside the conditions.
pub fn milestones(old: &EtcdProxyStatus, new: &EtcdProxyStatus) -> Vec<Notice> {
    let claimed = new.prefix.as_ref().filter(|_| old.prefix.is_none());
    let claimed = claimed.map(|prefix| Notice::normal("PrefixClaimed", "Claim", format!("claimed prefix {prefix}")));
    claimed.into_iter().chain(certificates(old, new)).collect()
}

fn certificates(old: &EtcdProxyStatus, new: &EtcdProxyStatus) -> Option<Notice> {
    let (old, new) = (old.certificates.as_ref()?, new.certificates.as_ref()?);
    if old.phase != new.phase {
        let (action, note) = match new.phase {
            RotationPhase::Distributing => {
                ("Distribute", "a new CA is in the bundle; certificates follow when every proxy uses it")
            }
            RotationPhase::Replacing => ("Replace", "certificates come from the new CA"),
            RotationPhase::Retiring => (
                "Retire",
                "every proxy shows a certificate of the new CA; the old one stays until its last certificate has expired",
            ),
            RotationPhase::Stable => ("Settle", "the old CA is out of the bundle"),
        };
        return Some(Notice::normal("CARotation", action, note));
    }
    (old.not_after != new.not_after && old.not_after.0 < new.not_after.0).then(|| {
        Notice::normal(
            "CertificatesRenewed",
            "Issue",
            format!("the first certificate now expires at {}", new.not_after.0),
        )
    })
}

impl Notice {
    /// Of something that is in order.
    pub fn normal(reason: &str, action: &'static str, note: impl Into<String>) -> Self {
        Self { severity: EventType::Normal, reason: reason.to_owned(), action, related: None, note: note.into() }
    }

    /// Of something that is worth a look.
    pub fn warning(reason: &str, action: &'static str, note: impl Into<String>) -> Self {
        Self { severity: EventType::Warning, ..Self::normal(reason, action, note) }
    }
}
