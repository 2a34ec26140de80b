//! Which pizzas use which topping, kept by a watch of all pizzas.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use apiserver::{
    authorization::{AuthorizationAttributes, Authorizer, Decision},
    meta::Object as _,
    registry::Change,
    request::{RequestContext, RequestInfo},
};
use parking_lot::RwLock;

use crate::pizza::Pizza;

/// How many pizzas a warning names.
const NAMED: usize = 10;

/// How many namespaces a caller without rights in all of them is asked about.
const ASKED: usize = 20;

/// A pizza, by namespace and name.
pub type PizzaKey = (String, String);

/// The pizzas that are ordered, by topping.
pub struct Orders {
    by_topping: RwLock<BTreeMap<String, BTreeSet<PizzaKey>>>,
    authorizer: Arc<dyn Authorizer>,
}

// === impl Orders ===

impl Orders {
    /// Nothing ordered yet. `authorizer` decides of which pizzas a caller hears.
    pub fn new(authorizer: Arc<dyn Authorizer>) -> Self {
        Self { by_topping: RwLock::default(), authorizer }
    }

    /// Follows a change of a pizza.
    pub fn apply(&self, change: &Change<'_, Pizza>) {
        let (old, new) = match change {
            Change::Applied { old, new } => (*old, Some(*new)),
            Change::Deleted { old } => (Some(*old), None),
        };
        let mut by_topping = self.by_topping.write();
        if let Some(old) = old {
            for name in old.spec.topping_names() {
                if let Some(pizzas) = by_topping.get_mut(name) {
                    pizzas.remove(&key(old));
                    if pizzas.is_empty() {
                        by_topping.remove(name);
                    }
                }
            }
        }
        if let Some(new) = new {
            for name in new.spec.topping_names() {
                by_topping.entry(name.to_owned()).or_default().insert(key(new));
            }
        }
    }

    /// How many pizzas use this topping.
    pub fn count(&self, topping: &str) -> usize {
        self.by_topping.read().get(topping).map_or(0, BTreeSet::len)
    }

    /// The pizzas that use this topping.
    pub fn using(&self, topping: &str) -> Vec<PizzaKey> {
        self.by_topping.read().get(topping).into_iter().flatten().cloned().collect()
    }

    /// What to tell whoever deletes a topping that is in use; names only pizzas that the caller may list.
    pub async fn warning_of_use(&self, context: &RequestContext, topping: &str) -> Option<String> {
        let pizzas = self.using(topping);
        let count = pizzas.len();
        if count == 0 {
            return None;
        }
        let visible = self.visible(context, pizzas).await;
        let pizza = if count == 1 { "1 pizza uses".to_owned() } else { format!("{count} pizzas use") };
        let names: Vec<_> = visible.iter().map(|(namespace, name)| format!("{namespace}/{name}")).collect();
        let names = match (names.len(), count) {
            (0, _) => String::new(),
            (n, count) if n == count => format!(": {}", names.join(", ")),
            _ => format!(", among them {}", names.join(", ")),
        };
        Some(format!("{pizza} topping {topping}{names}"))
    }

    async fn visible(&self, context: &RequestContext, pizzas: Vec<PizzaKey>) -> Vec<PizzaKey> {
        if self.may_list(context, "").await {
            return pizzas.into_iter().take(NAMED).collect();
        }
        let mut by_namespace: BTreeMap<String, Vec<PizzaKey>> = BTreeMap::new();
        for pizza in pizzas {
            by_namespace.entry(pizza.0.clone()).or_default().push(pizza);
        }
        let mut visible = Vec::new();
        for (namespace, pizzas) in by_namespace.into_iter().take(ASKED) {
            if visible.len() >= NAMED {
                break;
            }
            if self.may_list(context, &namespace).await {
                visible.extend(pizzas);
            }
        }
        visible.truncate(NAMED);
        visible
    }

    async fn may_list(&self, context: &RequestContext, namespace: &str) -> bool {
        let info = RequestInfo {
            is_resource: true,
            verb: "list".to_owned(),
            group: crate::GROUP.to_owned(),
            version: context.info.version.clone(),
            namespace: namespace.to_owned(),
            resource: "pizzas".to_owned(),
            ..RequestInfo::default()
        };
        let attributes = AuthorizationAttributes { user: &context.user, verb: "list", info: &info };
        matches!(self.authorizer.authorize(&attributes).await, Decision::Allow)
    }
}

/// Where a pizza is.
pub(crate) fn key(pizza: &Pizza) -> PizzaKey {
    let metadata = pizza.metadata();
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}
