//! `xtask node`: goes on with what a cluster that was left running needs done for it, the delivery of Secrets and
//! ConfigMaps and the way to Services. `cargo xtask demo --no-wait` starts it; `cargo xtask down` ends it.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

use super::demo;
use crate::{cluster::Node, site::Site};

/// Deliver Secrets to the processes of a site, and lead them to Services
#[derive(Debug, Args)]
pub struct Command {
    /// The site's folder
    site: PathBuf,
}

/// Runs the command until a signal.
///
/// # Errors
/// When the folder is no site, or nothing was handed over there.
pub fn run(command: &Command) -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    let node = Node::take_over(&Site::open(&command.site)?, demo::DELIVERY)?;
    let Some(_) = signals.forever().next() else { bail!("signals cannot be waited for") };
    drop(node);
    Ok(())
}
