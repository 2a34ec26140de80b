//! The price of a pizza: set inside each write, and set again when a topping's cost changes, or it comes or goes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use apiserver::{
    meta::Time,
    registry::{Informer, Part, Store, Write, store::Preconditions},
    request::RequestContext,
    status::{Reason, Status},
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use crate::{
    cost::{self, NoPrice},
    menu::Menu,
    orders::PizzaKey,
    pizza::{Pizza, strategy::PizzaStrategy, v1beta1},
};

/// The condition that tells whether a pizza has a price.
pub const PRICED: &str = "Priced";

/// How long a pizza that could not be priced waits for the next attempt: twice as long each time, up to the second.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// The pizzas whose price may be wrong, each once. Only a leader keeps such a list.
#[derive(Default)]
pub struct Due {
    pizzas: Mutex<Option<BTreeSet<PizzaKey>>>,
    added: Notify,
}

/// Sets prices again when toppings change. Among replicas only the leader does it.
pub struct Pricer {
    due: Arc<Due>,
    menu: Arc<Menu>,
    pizzas: Arc<Informer<Pizza>>,
    store: Store<PizzaStrategy>,
}

// === impl Due ===

impl Due {
    /// Has these pizzas looked at, if this replica is the one that does it.
    pub fn add(&self, pizzas: impl IntoIterator<Item = PizzaKey>) {
        if let Some(due) = self.pizzas.lock().as_mut() {
            due.extend(pizzas);
            self.added.notify_one();
        }
    }

    async fn next(&self) -> PizzaKey {
        loop {
            if let Some(key) = self.pizzas.lock().as_mut().and_then(BTreeSet::pop_first) {
                return key;
            }
            self.added.notified().await;
        }
    }
}

// === impl Pricer ===

impl Pricer {
    /// Prices what is in `due`, by the menu, in this store.
    pub fn new(due: Arc<Due>, menu: Arc<Menu>, pizzas: Arc<Informer<Pizza>>, store: Store<PizzaStrategy>) -> Self {
        Self { due, menu, pizzas, store }
    }

    /// Prices as long as this replica leads: every pizza once, then those whose toppings change. Whoever stops leading
    /// drops the future; the list goes with it.
    pub async fn lead(&self) {
        struct Leading<'a>(&'a Due);
        impl Drop for Leading<'_> {
            fn drop(&mut self) {
                *self.0.pizzas.lock() = None;
            }
        }
        self.menu.ready().await;
        self.pizzas.ready().await;
        *self.due.pizzas.lock() = Some(BTreeSet::new());
        let _leading = Leading(&self.due);
        self.due.add(self.pizzas.all().iter().map(|pizza| crate::orders::key(pizza)));
        // Those that failed wait here, and hold up nobody.
        let mut failed: BTreeMap<(Instant, PizzaKey), Duration> = BTreeMap::new();
        loop {
            let retry = failed.first_key_value().map(|((at, _), _)| *at);
            let (key, pause) = tokio::select! {
                key = self.due.next() => (key, RETRY.0),
                () = wait_until(retry) => match failed.pop_first() {
                    Some(((_, key), pause)) => (key, RETRY.1.min(pause * 2)),
                    None => continue,
                },
            };
            failed.retain(|(_, waiting), _| *waiting != key);
            if let Err(status) = self.price(&key).await {
                tracing::warn!(namespace = key.0, name = key.1, %status, "a pizza could not be priced; trying again in {pause:?}");
                failed.insert((Instant::now() + pause, key), pause);
            }
        }
    }

    /// Writes a price if it differs. What the copies say only tells whether it is worth a closer look: they are fed by two
    /// watches, and a pizza may be known before its topping's new cost is.
    async fn price(&self, (namespace, name): &PizzaKey) -> Result<(), Status> {
        let Some(known) = self.pizzas.get(namespace, name) else { return Ok(()) };
        let mut priced = (*known).clone();
        apply(&mut priced, |topping| self.menu.known_cost(topping));
        if priced == *known || known.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        let costs = self.menu.costs(known.spec.topping_names()).await?;
        let context = RequestContext::internal();
        let write = Write {
            context: &context,
            version: <v1beta1::Pizza as apiserver::scheme::Version<Pizza>>::VERSION,
            namespace,
            part: Part::Status,
            dry_run: false,
        };
        let unconditional = Preconditions::default();
        let updated = self.store.update(&write, name, &unconditional, |pizza| {
            let mut pizza = pizza.cloned().ok_or_else(|| Status::not_found(self.store.resource(), name))?;
            // With other toppings by now, it was priced by whoever wrote it.
            if pizza.spec == known.spec {
                apply(&mut pizza, |topping| costs.get(topping).copied());
            }
            Ok(pizza)
        });
        match updated.await {
            Err(status) if !status.is(Reason::NotFound) => Err(status),
            _ => Ok(()),
        }
    }
}

/// Waits for a moment, or for ever without one.
async fn wait_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

// === the price itself ===

/// Sets `status.cost` and the condition `Priced`. Changes nothing when they are right already.
pub(crate) fn apply(pizza: &mut Pizza, cost_of: impl Fn(&str) -> Option<f64>) {
    let (cost, status, reason, message) = match cost::of_pizza(&pizza.spec.toppings, cost_of) {
        Ok(cost) => (Some(cost), "True", "AllToppingsKnown", "every topping has a cost".to_owned()),
        Err(NoPrice::OutOfRange) => {
            (None, "False", "PriceOutOfRange", "the toppings cost more than a number can hold".to_owned())
        }
        Err(NoPrice::Unknown(missing)) => {
            let noun = if missing.len() == 1 { "topping" } else { "toppings" };
            (None, "False", "UnknownTopping", format!("no such {noun}: {}", missing.join(", ")))
        }
    };
    pizza.status.cost = cost;
    let conditions = &mut pizza.status.conditions;
    match conditions.iter_mut().find(|c| c.type_ == PRICED) {
        Some(condition) => {
            if condition.status != status {
                condition.last_transition_time = now();
                status.clone_into(&mut condition.status);
            }
            reason.clone_into(&mut condition.reason);
            condition.message = message;
        }
        None => conditions.push(Condition {
            type_: PRICED.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message,
            last_transition_time: now(),
            // A price is written with what it is the price of: there is no other generation it could be of.
            observed_generation: None,
        }),
    }
}

fn now() -> Time {
    // Kubernetes' times have no fractions.
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pizza::PizzaTopping;

    fn margherita() -> Pizza {
        let mut pizza = Pizza::default();
        for name in ["mozzarella", "tomato"] {
            pizza.spec.toppings.push(PizzaTopping { name: name.into(), quantity: 1 });
        }
        pizza
    }

    #[test]
    fn a_price_and_its_condition_are_set_together() {
        let mut pizza = margherita();
        apply(&mut pizza, |name| Some(if name == "tomato" { 0.1 } else { 1.0 }));
        assert_eq!(pizza.status.cost, Some(1.1));
        assert_eq!(
            (pizza.status.conditions[0].type_.as_str(), pizza.status.conditions[0].status.as_str()),
            (PRICED, "True")
        );
    }

    #[test]
    fn a_missing_topping_is_named_and_takes_the_price_away() {
        let mut pizza = margherita();
        apply(&mut pizza, |_| Some(1.0));
        apply(&mut pizza, |name| (name == "tomato").then_some(0.1));
        assert_eq!(pizza.status.cost, None);
        assert_eq!(pizza.status.conditions.len(), 1);
        assert_eq!(pizza.status.conditions[0].status, "False");
        assert_eq!(pizza.status.conditions[0].message, "no such topping: mozzarella");
    }

    #[test]
    fn pricing_again_changes_nothing() {
        let mut pizza = margherita();
        apply(&mut pizza, |_| Some(1.0));
        let priced = pizza.clone();
        apply(&mut pizza, |_| Some(1.0));
        assert_eq!(pizza, priced);
    }
}
