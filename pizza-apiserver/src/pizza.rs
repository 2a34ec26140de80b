//! Pizzas: namespaced, with toppings and a price.
//!
//! The hub version counts each topping once with its quantity. v1beta1 looks the same; v1alpha1 is a list of names in
//! which repetition means extra portions.

pub mod strategy;
#[cfg(test)]
mod tests;
pub mod v1alpha1;
pub mod v1beta1;
mod validation;

use apiserver::meta::{Object, ObjectMeta};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

/// A pizza, in the hub version.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pizza {
    /// Name, namespace and the like.
    pub metadata: ObjectMeta,
    /// What was ordered.
    pub spec: PizzaSpec,
    /// What the restaurant says of it.
    pub status: PizzaStatus,
}

/// What was ordered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PizzaSpec {
    /// The toppings, each named once.
    pub toppings: Vec<PizzaTopping>,
}

/// A topping and how many portions of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PizzaTopping {
    /// The name of a [`Topping`](crate::topping::Topping).
    pub name: String,
    /// Portions, at least one.
    pub quantity: i64,
}

/// What the restaurant says of a pizza.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PizzaStatus {
    /// The price: the sum of quantity times the topping's cost. `None` until it is known.
    pub cost: Option<f64>,
    /// `Priced` among them.
    pub conditions: Vec<Condition>,
}

/// What a pizza without toppings gets, one portion each.
pub(crate) const DEFAULT_TOPPINGS: [&str; 3] = ["salami", "mozzarella", "tomato"];

/// The most portions that one pizza carries. A v1alpha1 pizza spells out each of them.
pub(crate) const MAX_PORTIONS: i64 = 1000;

/// The most different toppings on one pizza.
pub(crate) const MAX_TOPPINGS: usize = 100;

// === impl Pizza ===

impl Object for Pizza {
    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl PizzaSpec {
    /// The names of the toppings, in order.
    pub fn topping_names(&self) -> impl Iterator<Item = &str> {
        self.toppings.iter().map(|t| t.name.as_str())
    }
}
