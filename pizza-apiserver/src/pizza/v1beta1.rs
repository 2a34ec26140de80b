//! Pizza in v1beta1, the preferred version and the one that is stored.

use apiserver::{meta::ObjectMeta, scheme::Version};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::DEFAULT_TOPPINGS;

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
    /// The toppings, each named once. None at all means salami, mozzarella and tomato.
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub toppings: Vec<PizzaTopping>,
}

/// PizzaTopping is a topping and how many portions of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("required" = ["name"]))]
pub struct PizzaTopping {
    /// The name of a topping of the restaurant.
    pub name: String,
    /// Portions. Absent or zero means one.
    pub quantity: i64,
}

/// PizzaStatus is what the restaurant says of a pizza.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PizzaStatus {
    /// The price: the sum of quantity times the topping's cost.
    #[serde(with = "apiserver::number::option", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "f64")]
    pub cost: Option<f64>,
    /// The latest observations, `Priced` among them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

// === impl Pizza ===

impl Version<super::Pizza> for Pizza {
    const VERSION: &'static str = "v1beta1";

    fn set_defaults(&mut self) {
        if self.spec.toppings.is_empty() {
            self.spec.toppings =
                DEFAULT_TOPPINGS.iter().map(|n| PizzaTopping { name: (*n).into(), quantity: 1 }).collect();
        }
        for topping in &mut self.spec.toppings {
            if topping.quantity == 0 {
                topping.quantity = 1;
            }
        }
    }

    fn into_hub(self) -> super::Pizza {
        let toppings = self.spec.toppings.into_iter();
        super::Pizza {
            metadata: self.metadata,
            spec: super::PizzaSpec {
                toppings: toppings.map(|t| super::PizzaTopping { name: t.name, quantity: t.quantity }).collect(),
            },
            status: super::PizzaStatus { cost: self.status.cost, conditions: self.status.conditions },
        }
    }

    fn from_hub(hub: &super::Pizza) -> Self {
        let toppings = hub.spec.toppings.iter();
        Self {
            metadata: hub.metadata.clone(),
            spec: PizzaSpec {
                toppings: toppings.map(|t| PizzaTopping { name: t.name.clone(), quantity: t.quantity }).collect(),
            },
            status: PizzaStatus { cost: hub.status.cost, conditions: hub.status.conditions.clone() },
        }
    }
}
