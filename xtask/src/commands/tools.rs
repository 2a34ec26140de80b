//! `cargo xtask tools`: where the real components are.

use std::io::Write;

use anyhow::Result;
use clap::Args;

use crate::tools::{Tool, Tools};

/// Print the paths of real components, building what is nowhere to be found.
#[derive(Debug, Args)]
pub struct Command {
    /// The tools, by name; none lists all with their places and builds nothing
    names: Vec<Tool>,
    /// Take a tool from this path, as NAME=PATH
    #[arg(long = "tool", value_name = "NAME=PATH")]
    tools: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// When a tool is missing and cannot be built.
pub fn run(command: &Command) -> Result<()> {
    let tools = Tools::with(&command.tools)?;
    // Written, not printed: a reader such as `head` may go away.
    let mut out = std::io::stdout().lock();
    for tool in &command.names {
        writeln!(out, "{}", tools.path(*tool)?.display())?;
    }
    if command.names.is_empty() {
        writeln!(out, "{:<24} {:<10} {:<20} PATH", "NAME", "VERSION", "FOUND BY")?;
        for tool in Tool::ALL {
            let version = tool.version()?;
            match tools.found(tool) {
                Ok(Some(found)) => writeln!(out, "{tool:<24} {version:<10} {:<20} {}", found.by, found.path.display())?,
                Ok(None) => writeln!(out, "{tool:<24} {version:<10} {:<20}", "to be built")?,
                Err(error) => writeln!(out, "{tool:<24} {version:<10} {:<20} {error:#}", "cannot be built")?,
            }
        }
    }
    Ok(())
}
