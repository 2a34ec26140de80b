//! How pizzas are made, changed, priced and shown.

use std::sync::Arc;

use apiserver::{
    meta::{Object as _, ResourceNames, Scope},
    registry::{StatusStrategy, Strategy},
    request::RequestContext,
    status::Status,
    table::{Column, age},
    validation::ErrorList,
};
use async_trait::async_trait;
use serde_json::{Value, json};

use super::{Pizza, validation};
use crate::{menu::Menu, pricing};

/// The strategy of `pizzas`: a pizza is priced while it is written.
pub struct PizzaStrategy {
    menu: Arc<Menu>,
}

/// `/status` is the restaurant's, the main resource the guest's.
struct PizzaStatusStrategy;

// === impl PizzaStrategy ===

impl PizzaStrategy {
    /// Prices pizzas by this menu.
    pub fn new(menu: Arc<Menu>) -> Self {
        Self { menu }
    }

    /// Sets price and condition. A pizza that will be refused is not priced: nobody may have the storage asked for a
    /// hundred thousand toppings, or for one whose name is no name.
    async fn price(&self, pizza: &mut Pizza) -> Result<(), Status> {
        if !validation::spec(pizza).is_empty() {
            return Ok(());
        }
        let costs = self.menu.costs(pizza.spec.topping_names()).await?;
        pricing::apply(pizza, |name| costs.get(name).copied());
        Ok(())
    }
}

#[async_trait]
impl Strategy for PizzaStrategy {
    type Object = Pizza;

    fn names(&self) -> ResourceNames {
        ResourceNames {
            plural: "pizzas",
            singular: "pizza",
            kind: "Pizza",
            short_names: &["pz"],
            categories: &["all", "restaurant"],
            scope: Scope::Namespaced,
        }
    }

    async fn prepare_for_create(&self, _context: &RequestContext, pizza: &mut Pizza) -> Result<(), Status> {
        self.price(pizza).await
    }

    async fn prepare_for_update(
        &self,
        _context: &RequestContext,
        pizza: &mut Pizza,
        old: &Pizza,
    ) -> Result<(), Status> {
        // A pizza on its way out is not priced again: whoever removes its finalizer must not fail for want of a topping.
        if old.metadata().deletion_timestamp.is_some() || pizza.spec == old.spec {
            return Ok(());
        }
        self.price(pizza).await
    }

    fn validate(&self, pizza: &Pizza) -> ErrorList {
        validation::spec(pizza)
    }

    fn status(&self) -> Option<&dyn StatusStrategy<Pizza>> {
        Some(&PizzaStatusStrategy)
    }

    fn generation_changes(&self, pizza: &Pizza, old: &Pizza) -> Option<bool> {
        Some(pizza.spec != old.spec)
    }

    fn columns(&self) -> Vec<Column> {
        vec![
            Column::name(),
            Column::string("Toppings", "The toppings with their quantities."),
            Column::string("Cost", "The price, empty until it is known."),
            Column::age(),
            Column::string("Conditions", "The conditions that hold, or why not.").wide(),
        ]
    }

    fn row(&self, pizza: &Pizza) -> Vec<Value> {
        let toppings: Vec<_> = pizza
            .spec
            .toppings
            .iter()
            .map(|t| match t.quantity {
                1 => t.name.clone(),
                quantity => format!("{quantity} {}", t.name),
            })
            .collect();
        let conditions: Vec<_> = pizza
            .status
            .conditions
            .iter()
            .map(|c| match c.status.as_str() {
                "True" => c.type_.clone(),
                status => format!("{}={status} ({})", c.type_, c.reason),
            })
            .collect();
        vec![
            json!(pizza.metadata.name),
            json!(toppings.join(", ")),
            json!(pizza.status.cost.map(apiserver::number::format_json).unwrap_or_default()),
            json!(age(&pizza.metadata)),
            json!(conditions.join(", ")),
        ]
    }
}

impl StatusStrategy<Pizza> for PizzaStatusStrategy {
    fn keep_status(&self, pizza: &mut Pizza, old: Option<&Pizza>) {
        pizza.status = old.map(|old| old.status.clone()).unwrap_or_default();
    }

    fn keep_all_but_status(&self, pizza: &mut Pizza, old: &Pizza) {
        let status = std::mem::take(&mut pizza.status);
        *pizza = Pizza { status, ..old.clone() };
    }

    fn validate(&self, pizza: &Pizza, _old: &Pizza) -> ErrorList {
        validation::status(pizza)
    }
}
