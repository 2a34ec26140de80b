//! The real components: found where a developer keeps them, else built from the pinned Go modules in `tools/`.

mod build;
mod catalog;
mod foreign;
mod lookup;

pub use self::{
    catalog::{Source, Tool},
    foreign::{ForeignTests, TestPackage, packages},
    lookup::{Found, Tools},
};
