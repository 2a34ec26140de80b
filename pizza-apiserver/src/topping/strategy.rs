//! How toppings are made, changed and shown.

use std::sync::Arc;

use apiserver::{
    meta::{ResourceNames, Scope},
    registry::Strategy,
    request::RequestContext,
    table::{Column, age},
    validation::{ErrorList, Path},
};
use async_trait::async_trait;
use serde_json::{Value, json};

use super::Topping;
use crate::orders::Orders;

/// The strategy of `toppings`. Deleting one that is in use is allowed, with a warning.
pub struct ToppingStrategy {
    orders: Arc<Orders>,
}

// === impl ToppingStrategy ===

impl ToppingStrategy {
    /// Looks up in `orders` which pizzas use a topping.
    pub fn new(orders: Arc<Orders>) -> Self {
        Self { orders }
    }
}

#[async_trait]
impl Strategy for ToppingStrategy {
    type Object = Topping;

    fn names(&self) -> ResourceNames {
        ResourceNames {
            plural: "toppings",
            singular: "topping",
            kind: "Topping",
            short_names: &["tp"],
            categories: &["restaurant"],
            scope: Scope::Cluster,
        }
    }

    fn validate(&self, topping: &Topping) -> ErrorList {
        crate::cost::validate(&Path::new("spec").child("cost"), topping.spec.cost)
    }

    fn generation_changes(&self, topping: &Topping, old: &Topping) -> Option<bool> {
        Some(topping.spec != old.spec)
    }

    async fn warnings_on_delete(&self, context: &RequestContext, topping: &Topping) -> Vec<String> {
        let name = topping.metadata.name.as_deref().unwrap_or_default();
        self.orders.warning_of_use(context, name).await.into_iter().collect()
    }

    fn columns(&self) -> Vec<Column> {
        vec![
            Column::name(),
            Column::string("Cost", "The cost of one portion."),
            Column::age(),
            Column::integer("Used By", "How many pizzas use the topping.").wide(),
        ]
    }

    fn row(&self, topping: &Topping) -> Vec<Value> {
        let name = topping.metadata.name.as_deref().unwrap_or_default();
        vec![
            json!(topping.metadata.name),
            json!(apiserver::number::format_json(topping.spec.cost)),
            json!(age(&topping.metadata)),
            json!(self.orders.count(name)),
        ]
    }
}
