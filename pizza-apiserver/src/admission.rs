//! The admission plugin `PizzaToppings`: a pizza names only toppings that the restaurant has.

use std::{collections::HashSet, sync::Arc, time::Duration};

use apiserver::{
    admission::{Attributes, Operation, Plugin},
    meta::Object as _,
    status::Status,
};
use async_trait::async_trait;

use crate::{menu::Menu, pizza::Pizza};

/// How long a request waits for the toppings to be known, right after the server's start.
const PATIENCE: Duration = Duration::from_secs(10);

/// Refuses pizzas with unknown toppings. On update only newly named toppings are checked, and an object that is being
/// deleted is not checked at all: whoever only removes a finalizer must not fail for a topping that went away.
pub struct PizzaToppings {
    menu: Arc<Menu>,
}

// === impl PizzaToppings ===

impl PizzaToppings {
    /// The plugin's name.
    pub const NAME: &str = "PizzaToppings";

    /// Looks toppings up in this menu.
    pub fn new(menu: Arc<Menu>) -> Self {
        Self { menu }
    }
}

#[async_trait]
impl Plugin for PizzaToppings {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    async fn validate(&self, attributes: &Attributes<'_>) -> Result<(), Status> {
        let Some(pizza) = attributes.object::<Pizza>().filter(|_| attributes.subresource.is_empty()) else {
            return Ok(());
        };
        let forbidden = |why: String| Status::forbidden(&attributes.resource, attributes.name, why);
        let old = attributes.old_object::<Pizza>();
        if pizza.metadata().deletion_timestamp.is_some() {
            return Ok(());
        }
        let known: HashSet<&str> = old.into_iter().flat_map(|old| old.spec.topping_names()).collect();
        let named: Vec<&str> = pizza.spec.topping_names().filter(|name| !known.contains(name)).collect();
        if named.is_empty() {
            return Ok(());
        }
        if tokio::time::timeout(PATIENCE, self.menu.ready()).await.is_err() {
            return Err(forbidden("not yet ready to handle request".to_owned()));
        }
        let costs = self.menu.costs(named.iter().copied()).await?;
        match named.into_iter().find(|name| !costs.contains_key(*name)) {
            Some(unknown) => Err(forbidden(format!("unknown topping: {unknown}"))),
            None => Ok(()),
        }
    }
}
