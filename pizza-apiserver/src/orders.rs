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

#[cfg(test)]
mod tests {
    use apiserver::meta::ObjectMeta;
    use async_trait::async_trait;

    use super::*;
    use crate::pizza::{PizzaSpec, PizzaTopping};

    /// Lets everybody list pizzas in some namespaces; `""` stands for all of them.
    struct May(&'static [&'static str]);

    #[async_trait]
    impl Authorizer for May {
        async fn authorize(&self, attributes: &AuthorizationAttributes<'_>) -> Decision {
            assert_eq!((attributes.verb, attributes.info.resource.as_str()), ("list", "pizzas"));
            if self.0.contains(&attributes.info.namespace.as_str()) {
                Decision::Allow
            } else {
                Decision::NoOpinion { reason: String::new() }
            }
        }
    }

    fn pizza(namespace: &str, name: &str, topping: &str) -> Pizza {
        Pizza {
            metadata: ObjectMeta {
                namespace: Some(namespace.to_owned()),
                name: Some(name.to_owned()),
                ..ObjectMeta::default()
            },
            spec: PizzaSpec { toppings: vec![PizzaTopping { name: topping.to_owned(), quantity: 1 }] },
            ..Pizza::default()
        }
    }

    fn orders(may: &'static [&'static str], pizzas: &[Pizza]) -> Orders {
        let orders = Orders::new(Arc::new(May(may)));
        for new in pizzas {
            orders.apply(&Change::Applied { old: None, new });
        }
        orders
    }

    async fn warning(orders: &Orders) -> Option<String> {
        orders.warning_of_use(&RequestContext::internal(), "tomato").await
    }

    #[tokio::test]
    async fn a_warning_names_only_what_the_caller_may_list() {
        let pizzas =
            [pizza("kitchen", "one", "tomato"), pizza("vault", "two", "tomato"), pizza("vault", "x", "salami")];
        let all = warning(&orders(&[""], &pizzas)).await;
        assert_eq!(all.as_deref(), Some("2 pizzas use topping tomato: kitchen/one, vault/two"));
        let some = warning(&orders(&["kitchen"], &pizzas)).await;
        assert_eq!(some.as_deref(), Some("2 pizzas use topping tomato, among them kitchen/one"));
        let none = warning(&orders(&[], &pizzas)).await;
        assert_eq!(none.as_deref(), Some("2 pizzas use topping tomato"));
        assert_eq!(warning(&orders(&[""], &[])).await, None);
    }

    #[tokio::test]
    async fn a_warning_names_ten_pizzas_at_most() {
        let pizzas: Vec<_> = (0..25).map(|n| pizza("kitchen", &format!("pizza-{n:02}"), "tomato")).collect();
        let text = warning(&orders(&[""], &pizzas)).await.unwrap();
        assert!(text.starts_with("25 pizzas use topping tomato, among them kitchen/pizza-00, "), "{text}");
        assert_eq!(text.matches("kitchen/").count(), NAMED);
    }

    #[test]
    fn counts_follow_pizzas_that_change_and_go() {
        let (before, after) = (pizza("kitchen", "one", "tomato"), pizza("kitchen", "one", "salami"));
        let orders = orders(&[], std::slice::from_ref(&before));
        assert_eq!((orders.count("tomato"), orders.count("salami")), (1, 0));
        orders.apply(&Change::Applied { old: Some(&before), new: &after });
        assert_eq!((orders.count("tomato"), orders.count("salami")), (0, 1));
        orders.apply(&Change::Deleted { old: &after });
        assert_eq!((orders.count("tomato"), orders.count("salami")), (0, 0));
    }
}
