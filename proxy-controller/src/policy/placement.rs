//! Placement: where the operator lets tenants put pods that run in the controller's namespace. Nothing by default.

use kube::ResourceExt as _;

use super::{Fault, Reason, Refusal, Value};
use crate::api::{AllowedToleration, EtcdProxy, EtcdUpstream, Mode, Toleration};

/// Stands alone in a list of allowed values: any.
const ANY: &str = "*";

pub(super) fn check(proxy: &EtcdProxy, upstream: &EtcdUpstream) -> Vec<Refusal> {
    let spec = &proxy.spec;
    // In mode Sidecar it is refused as such.
    let Some(wish) = spec.placement.as_ref().filter(|_| spec.mode == Mode::Deployment) else { return Vec::new() };
    let (allowed, name) = (&upstream.spec.allowed_placement, upstream.name_any());
    let mut refusals = Vec::new();
    let mut refuse = |field: String, fault: Fault, message: String| {
        refusals.push(Refusal::new(format!("spec.placement.{field}"), Reason::PlacementNotAllowed, fault, message));
    };
    for (label, value) in &wish.node_selector {
        let field = format!("nodeSelector[{label}]");
        match allowed.node_selector.get(label).map(Vec::as_slice) {
            None => refuse(field, Fault::Forbidden, format!("EtcdUpstream {name} does not allow this label")),
            Some([any]) if any == ANY => {}
            Some(values) if values.contains(value) => {}
            Some(values) => {
                let message = format!("EtcdUpstream {name} allows {}", values.join(", "));
                refuse(field, Fault::Invalid(Value::text(value)), message);
            }
        }
    }
    for (index, toleration) in wish.tolerations.iter().enumerate() {
        if !allowed.tolerations.iter().any(|allowed| covers(allowed, toleration)) {
            let message = format!("EtcdUpstream {name} does not allow tolerating taint {}", describe(toleration));
            refuse(format!("tolerations[{index}]"), Fault::Forbidden, message);
        }
    }
    for (wished, allowed, field) in [
        (wish.affinity.is_some(), allowed.affinity, "affinity"),
        (
            !wish.topology_spread_constraints.is_empty(),
            allowed.topology_spread_constraints,
            "topologySpreadConstraints",
        ),
    ] {
        if wished && !allowed {
            refuse(field.to_owned(), Fault::Forbidden, format!("EtcdUpstream {name} does not allow it"));
        }
    }
    refusals
}

/// Whether everything that is tolerated may be. No operator means Equal and no value the empty one, no effect means all
/// effects, as in a pod.
fn covers(allowed: &AllowedToleration, toleration: &Toleration) -> bool {
    let value = match toleration.operator.as_deref() {
        None | Some("Equal") => {
            let value = toleration.value.clone().unwrap_or_default();
            allowed.values.is_empty() || allowed.values.contains(&value)
        }
        Some("Exists") => allowed.values.is_empty(),
        Some(_) => false,
    };
    let effect = match &toleration.effect {
        None => allowed.effects.is_empty(),
        Some(effect) => allowed.effects.is_empty() || allowed.effects.contains(effect),
    };
    allowed.key == toleration.key && value && effect
}

/// A taint as kubectl writes it: `key=value:effect`.
fn describe(toleration: &Toleration) -> String {
    let Toleration { key, operator, value, effect, .. } = toleration;
    let value = match operator.as_deref() {
        Some("Exists") => String::new(),
        _ => format!("={}", value.as_deref().unwrap_or_default()),
    };
    let effect = effect.as_deref().unwrap_or("all effects");
    format!("{key}{value}:{effect}")
}
