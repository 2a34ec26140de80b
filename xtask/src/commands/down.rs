//! `cargo xtask down`: ends what `cargo xtask demo` left running.

use anyhow::Result;
use clap::Args;

use super::demo;
use crate::site;

/// End the demo and remove everything it made, also after a crash.
#[derive(Debug, Args)]
pub struct Command {}

/// Runs the command.
///
/// # Errors
/// When a process or a file resists.
pub fn run(_: &Command) -> Result<()> {
    let dir = demo::dir();
    let was_there = dir.exists();
    let ended = site::clear(&dir)?;
    match (was_there, ended) {
        (false, 0) => println!("There was nothing to end."),
        _ => println!("Ended {ended} processes and removed {}.", dir.display()),
    }
    Ok(())
}
