//! The developer's commands, and what they are made of: real components found or built, certificates, processes, and
//! a whole cluster of them. `cargo xtask` is the command line; the `e2e` crate uses the same pieces as a library.
//!
//! Nothing here depends on a crate that needs `protoc` to build: etcd and Kubernetes are spoken to through their own
//! command-line tools.

// A command-line program: standard output is its result, standard error its progress.
#![allow(clippy::print_stdout, clippy::print_stderr)]

pub mod cargo;
pub mod cluster;
pub mod commands;
pub mod pki;
pub mod poll;
pub mod process;
pub mod progress;
pub mod site;
pub mod tools;

use std::path::{Path, PathBuf};

/// The root of the source tree.
pub fn root() -> PathBuf {
    // Cargo sets the variable when it runs something; the compiled-in path serves a binary started by hand.
    let manifest =
        std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    manifest.parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}
