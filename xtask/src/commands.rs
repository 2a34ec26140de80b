//! The commands, one file each.

pub mod bench;
pub mod demo;
pub mod down;
pub mod mutations;
pub mod node;
pub mod soak;
pub mod test;
pub mod tidy;
pub mod tools;
