//! What the restaurant offers: toppings and their costs, as the storage has them now.

use std::{collections::HashMap, sync::Arc, time::Duration};

use apiserver::{
    registry::{Informer, Store},
    status::{Reason, Status},
    storage::Freshness,
};
use futures::{StreamExt as _, TryStreamExt as _, stream};

use crate::topping::{Topping, strategy::ToppingStrategy};

/// How long a look-up waits for the cache to catch up with the storage before it reads the storage itself.
const CONFIRMATION: Duration = Duration::from_millis(500);

/// How many toppings are looked up in the storage at one time.
const LOOK_UPS: usize = 16;

/// The toppings, kept at hand by a watch.
///
/// A *hit* counts only after the cache is confirmed at the storage's current revision, so that a topping just deleted
/// is gone. On a *miss* the storage is looked at once more, so that a topping and a pizza may be created in one breath.
pub struct Menu {
    toppings: Arc<Informer<Topping>>,
    store: Store<ToppingStrategy>,
}

// === impl Menu ===

impl Menu {
    /// A menu of the toppings in this store, followed by this informer.
    pub fn new(toppings: Arc<Informer<Topping>>, store: Store<ToppingStrategy>) -> Self {
        Self { toppings, store }
    }

    /// Waits until the toppings are known, right after the start.
    pub async fn ready(&self) {
        self.toppings.ready().await;
    }

    /// The costs of those of `names` that are toppings. What is not in the answer does not exist.
    ///
    /// # Errors
    /// When the storage cannot be asked: nobody may take that for "there is no such topping".
    pub async fn costs<'a>(&self, names: impl Iterator<Item = &'a str>) -> Result<HashMap<String, f64>, Status> {
        let confirmed = self.toppings.confirm(&self.store, CONFIRMATION).await.is_ok();
        let mut costs = HashMap::new();
        let mut missed = Vec::new();
        for name in names {
            match self.toppings.get("", name).filter(|_| confirmed) {
                Some(topping) => drop(costs.insert(name.to_owned(), topping.spec.cost)),
                None => missed.push(name.to_owned()),
            }
        }
        missed.sort_unstable();
        missed.dedup();
        let mut look_ups = stream::iter(missed).map(|name| self.look_up(name)).buffer_unordered(LOOK_UPS);
        while let Some(found) = look_ups.try_next().await? {
            costs.extend(found);
        }
        drop(look_ups);
        Ok(costs)
    }

    /// The cost that the cache knows, for those who are told of every change anyway.
    pub fn known_cost(&self, name: &str) -> Option<f64> {
        self.toppings.get("", name).map(|t| t.spec.cost)
    }

    async fn look_up(&self, name: String) -> Result<Option<(String, f64)>, Status> {
        match self.store.get("", &name, Freshness::Latest).await {
            Ok(topping) => Ok(Some((name, topping.spec.cost))),
            Err(status) if status.is(Reason::NotFound) => Ok(None),
            Err(status) => Err(status),
        }
    }
}
