//! The commands, one file each.

pub mod demo;
pub mod down;
pub mod test;
pub mod tidy;
pub mod tools;
