//! The real components: found where a developer keeps them, else built from the pinned Go modules in `tools/`.

mod build;
mod catalog;
mod lookup;

pub use self::{
    catalog::{Source, Tool},
    lookup::{Found, Tools},
};
