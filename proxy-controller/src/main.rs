//! The program: flags, runtime, signals.

fn main() {}
