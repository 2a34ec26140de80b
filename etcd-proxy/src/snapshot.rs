//! One tenant at one revision, as a file.

pub mod bbolt;
