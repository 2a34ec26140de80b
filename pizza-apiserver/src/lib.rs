//! The pizza restaurant: a complete aggregated API server, and an example of how to write one.
//!
//! Each resource has a folder: [`pizza`] and [`topping`]. What is particular about the restaurant stands beside them: the
//! [`menu`], the [`orders`], the [`pricing`] and the [`admission`] plugin.

pub mod admission;
mod cost;
pub mod menu;
pub mod orders;
pub mod pizza;
pub mod pricing;
pub mod restaurant;
pub mod topping;

/// The API group.
pub const GROUP: &str = "restaurant.programming-kubernetes.info";
