//! Toppings: the cluster's, with a cost.

pub mod strategy;
pub mod versions;

use apiserver::meta::{Object, ObjectMeta};

/// A topping, in the hub version.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Topping {
    /// Name and the like.
    pub metadata: ObjectMeta,
    /// What the restaurant charges.
    pub spec: ToppingSpec,
}

/// What the restaurant charges.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToppingSpec {
    /// The cost of one portion, finite and not negative.
    pub cost: f64,
}

// === impl Topping ===

impl Object for Topping {
    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
