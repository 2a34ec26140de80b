//! What an operator is told when a status changes. Only changes are told: the same again is in the conditions.

use kube::runtime::events::EventType;

use super::{CERTIFICATES_VALID, DEGRADED, QUOTA_EXCEEDED, READY, UPSTREAM_REACHABLE};
use crate::api::{EtcdProxyStatus, RotationPhase};

/// An event that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Normal, or worth a look.
    pub severity: EventType,
    /// The event's reason.
    pub reason: String,
    /// What was being done.
    pub action: &'static str,
    /// For people.
    pub note: String,
}

/// What the change from one status to another tells.
pub fn notices(old: &EtcdProxyStatus, new: &EtcdProxyStatus) -> Vec<Notice> {
    let mut notices = Vec::new();
    if old.prefix.is_none()
        && let Some(prefix) = &new.prefix
    {
        notices.push(Notice::normal("PrefixClaimed", "Claim", format!("claimed prefix {prefix}")));
    }
    for (kind, good, action) in [
        (UPSTREAM_REACHABLE, "True", "Connect"),
        (CERTIFICATES_VALID, "True", "Issue"),
        (QUOTA_EXCEEDED, "False", "Count"),
        (DEGRADED, "False", "Reconcile"),
        (READY, "True", "Reconcile"),
    ] {
        let of = |status: &EtcdProxyStatus| status.conditions.iter().find(|condition| condition.type_ == kind).cloned();
        let (before, Some(after)) = (of(old), of(new)) else { continue };
        let unchanged =
            before.as_ref().is_some_and(|before| before.status == after.status && before.reason == after.reason);
        // What was never otherwise than good is no news, save that it is ready.
        let first_and_good = before.is_none() && after.status == good && kind != READY;
        let pending = matches!(after.reason.as_str(), "Pending" | "NotLookedAt" | "Deleting");
        if unchanged
            || first_and_good
            || pending
            || (after.status == good && before.is_some_and(|before| before.status == good))
        {
            continue;
        }
        let severity = if after.status == good { EventType::Normal } else { EventType::Warning };
        let note = if after.message.is_empty() { format!("{kind} is {}", after.status) } else { after.message };
        notices.push(Notice { severity, reason: after.reason, action, note });
    }
    notices.extend(certificates(old, new));
    notices
}

fn certificates(old: &EtcdProxyStatus, new: &EtcdProxyStatus) -> Option<Notice> {
    let (old, new) = (old.certificates.as_ref()?, new.certificates.as_ref()?);
    if old.phase != new.phase {
        let note = match new.phase {
            RotationPhase::Distributing => "a new CA is in the bundle; certificates follow when every proxy uses it",
            RotationPhase::Replacing => "certificates come from the new CA",
            RotationPhase::Retiring => {
                "every proxy shows a certificate of the new CA; the old one stays until its last certificate has expired"
            }
            RotationPhase::Stable => "the old CA is out of the bundle",
        };
        return Some(Notice::normal("CARotation", "Rotate", note));
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
    fn normal(reason: &str, action: &'static str, note: impl Into<String>) -> Self {
        Self { severity: EventType::Normal, reason: reason.to_owned(), action, note: note.into() }
    }
}
