//! Costs: what a portion or a pizza is charged.

use apiserver::validation::{ErrorList, FieldError, Path};

use crate::pizza::PizzaTopping;

/// Checks that a cost can be charged.
pub(crate) fn validate(path: &Path, cost: f64) -> ErrorList {
    if !cost.is_finite() {
        FieldError::invalid(path, cost.to_string(), "must be a finite number").into()
    } else if cost < 0.0 {
        FieldError::invalid(path, cost, "cannot be negative").into()
    } else {
        ErrorList::new()
    }
}

/// Why a pizza has no price.
#[derive(Debug, PartialEq)]
pub(crate) enum NoPrice {
    /// The names of the toppings that have no cost, in their order on the pizza.
    Unknown(Vec<String>),
    /// The sum is no finite number.
    OutOfRange,
}

/// What a pizza costs: Σ quantity × the topping's cost.
///
/// # Errors
/// Why it has no price.
pub(crate) fn of_pizza(toppings: &[PizzaTopping], cost_of: impl Fn(&str) -> Option<f64>) -> Result<f64, NoPrice> {
    let mut missing = Vec::new();
    let mut sum = 0.0;
    for topping in toppings {
        match cost_of(&topping.name) {
            // A quantity is at most a thousand: the cast is exact.
            Some(cost) => sum += topping.quantity as f64 * cost,
            None => missing.push(topping.name.clone()),
        }
    }
    if !missing.is_empty() {
        Err(NoPrice::Unknown(missing))
    } else if !sum.is_finite() {
        Err(NoPrice::OutOfRange)
    } else {
        Ok(round(sum))
    }
}

/// Takes off what binary fractions add: 0.1 + 0.2 is 0.3 on a bill. Twelve significant digits are left.
fn round(cost: f64) -> f64 {
    format!("{cost:.11e}").parse().unwrap_or(cost)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn topping(name: &str, quantity: i64) -> PizzaTopping {
        PizzaTopping { name: name.into(), quantity }
    }

    fn menu(name: &str) -> Option<f64> {
        match name {
            "mozzarella" => Some(1.0),
            "salami" => Some(0.2),
            "tomato" => Some(0.1),
            _ => None,
        }
    }

    #[test]
    fn a_pizza_costs_the_sum_of_its_portions() {
        assert_eq!(of_pizza(&[topping("mozzarella", 1), topping("tomato", 1)], menu), Ok(1.1));
        assert_eq!(of_pizza(&[topping("salami", 3), topping("mozzarella", 2)], menu), Ok(2.6));
        assert_eq!(of_pizza(&[topping("tomato", 3)], menu), Ok(0.3));
    }

    #[test]
    fn a_pizza_with_unknown_toppings_has_no_price() {
        let toppings = [topping("ananas", 1), topping("tomato", 1), topping("kiwi", 1)];
        assert_eq!(of_pizza(&toppings, menu), Err(NoPrice::Unknown(vec!["ananas".to_owned(), "kiwi".to_owned()])));
    }

    #[test]
    fn a_pizza_beyond_all_numbers_has_no_price() {
        assert_eq!(of_pizza(&[topping("gold", 1000)], |_| Some(1e308)), Err(NoPrice::OutOfRange));
    }

    #[test]
    fn costs_are_finite_and_not_negative() {
        let path = Path::new("spec").child("cost");
        assert!(validate(&path, 0.0).is_empty());
        assert_eq!(validate(&path, -1.0).to_string(), "spec.cost: Invalid value: -1: cannot be negative");
        assert_eq!(validate(&path, f64::INFINITY).len(), 1);
        assert_eq!(validate(&path, f64::NAN).len(), 1);
    }
}
