//! What makes a pizza one that can be baked. Checked on the hub version, for creations and updates alike.

use std::collections::HashSet;

use apiserver::validation::{ErrorList, FieldError, Path, names};

use super::{MAX_PORTIONS, MAX_TOPPINGS, Pizza, PizzaSpec, PizzaStatus};

/// Checks a pizza's spec.
pub(super) fn spec(pizza: &Pizza) -> ErrorList {
    let PizzaSpec { toppings } = &pizza.spec;
    let path = Path::new("spec").child("toppings");
    let mut errors = ErrorList::new();
    if toppings.len() > MAX_TOPPINGS {
        errors.push(FieldError::too_many(&path, toppings.len(), MAX_TOPPINGS));
        return errors;
    }
    let mut seen = HashSet::new();
    for (index, topping) in toppings.iter().enumerate() {
        let at = path.index(index);
        if topping.quantity <= 0 {
            errors.push(FieldError::invalid(&at.child("quantity"), topping.quantity, "cannot be negative or zero"));
        }
        let name = at.child("name");
        if topping.name.is_empty() {
            errors.push(FieldError::invalid(&name, topping.name.as_str(), "cannot be empty"));
        } else {
            errors.extend(
                names::dns_subdomain(&topping.name)
                    .into_iter()
                    .map(|rule| FieldError::invalid(&name, topping.name.as_str(), rule)),
            );
        }
        if !seen.insert(&topping.name) {
            errors.push(FieldError::invalid(&name, topping.name.as_str(), "must be unique"));
        }
    }
    let portions = toppings.iter().fold(0_i64, |sum, t| sum.saturating_add(t.quantity.max(0)));
    if portions > MAX_PORTIONS {
        let rule = format!("must not be more than {MAX_PORTIONS} portions in all");
        errors.push(FieldError::invalid(&path, portions, rule));
    }
    errors
}

/// Checks a pizza's status.
pub(super) fn status(pizza: &Pizza) -> ErrorList {
    let PizzaStatus { cost, conditions } = &pizza.status;
    let path = Path::new("status");
    let mut errors = ErrorList::new();
    if let Some(cost) = cost {
        errors.extend(crate::cost::validate(&path.child("cost"), *cost));
    }
    let mut seen = HashSet::new();
    for (index, condition) in conditions.iter().enumerate() {
        let kind = path.child("conditions").index(index).child("type");
        if condition.type_.is_empty() {
            errors.push(FieldError::required(&kind, "a condition has a type"));
        } else if !seen.insert(&condition.type_) {
            errors.push(FieldError::duplicate(&kind, condition.type_.as_str()));
        }
    }
    errors
}
