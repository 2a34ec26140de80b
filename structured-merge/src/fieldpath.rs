//! Paths to fields, and sets of them: who owns what.

mod element;
mod filter;
mod set;
mod wire;

pub use self::{
    element::{Path, PathElement},
    filter::{Filter, Pattern},
    set::{Entry, Set},
    wire::ParseError,
};

#[cfg(test)]
mod tests;
