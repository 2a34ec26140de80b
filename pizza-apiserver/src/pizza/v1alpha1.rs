//! Pizza in v1alpha1: a list of names, in which repetition means extra portions.
//!
//! The list keeps its multiset through the hub, while interleaved repetitions are brought together:
//! `[tomato, salami, tomato]` is read back as `[tomato, tomato, salami]`.

use apiserver::{meta::ObjectMeta, scheme::Version};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{DEFAULT_TOPPINGS, MAX_PORTIONS, v1beta1::PizzaStatus};

/// Pizza is a pizza as a guest orders it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Pizza {
    /// Standard object's metadata.
    pub metadata: ObjectMeta,
    /// What is ordered.
    pub spec: PizzaSpec,
    /// What the restaurant says of it. Written by the restaurant.
    pub status: PizzaStatus,
}

/// PizzaSpec is what is ordered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PizzaSpec {
    /// The names of the toppings; repetition means extra portions. None at all means salami, mozzarella and tomato.
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub toppings: Vec<String>,
}

// === impl Pizza ===

impl Version<super::Pizza> for Pizza {
    const VERSION: &'static str = "v1alpha1";

    fn set_defaults(&mut self) {
        if self.spec.toppings.is_empty() {
            self.spec.toppings = DEFAULT_TOPPINGS.iter().map(|n| (*n).into()).collect();
        }
    }

    fn into_hub(self) -> super::Pizza {
        let mut toppings: Vec<super::PizzaTopping> = Vec::new();
        let mut seen = std::collections::HashMap::new();
        for name in self.spec.toppings {
            let at = *seen.entry(name).or_insert_with_key(|name| {
                toppings.push(super::PizzaTopping { name: name.clone(), quantity: 0 });
                toppings.len() - 1
            });
            if let Some(topping) = toppings.get_mut(at) {
                topping.quantity += 1;
            }
        }
        super::Pizza {
            metadata: self.metadata,
            spec: super::PizzaSpec { toppings },
            status: super::PizzaStatus { cost: self.status.cost, conditions: self.status.conditions },
        }
    }

    fn from_hub(hub: &super::Pizza) -> Self {
        // What is stored has at most MAX_PORTIONS in all; the bound here keeps anything else from filling memory.
        let portions = hub.spec.toppings.iter().flat_map(|t| {
            let quantity = usize::try_from(t.quantity.min(MAX_PORTIONS)).unwrap_or(0);
            std::iter::repeat_n(t.name.clone(), quantity)
        });
        Self {
            metadata: hub.metadata.clone(),
            spec: PizzaSpec { toppings: portions.collect() },
            status: PizzaStatus { cost: hub.status.cost, conditions: hub.status.conditions.clone() },
        }
    }
}
