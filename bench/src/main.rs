//! Measurements beside the originals.
fn main() {}
