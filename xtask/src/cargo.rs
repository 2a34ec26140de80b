//! Running cargo: with a `protoc` for the crates that need one at build time.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::progress::Progress;

/// A cargo command in the root of the source tree.
///
/// # Errors
/// When there is no `protoc` for this platform.
pub fn command() -> Result<Command> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(crate::root());
    // What the outer cargo says of xtask itself would look like a change to crates that ask for it, and rebuild them.
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            command.env_remove(name);
        }
    }
    if std::env::var_os("PROTOC").is_none() && !in_path("protoc") {
        let protoc = protoc_bin_vendored::protoc_bin_path().context(
            "no protoc for this platform comes with the project; install the package protobuf-compiler, or set PROTOC",
        )?;
        command.env("PROTOC", protoc);
    }
    Ok(command)
}

/// Which of cargo's profiles the project's own programs are built with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// Quick to build.
    #[default]
    Dev,
    /// As they are shipped.
    Release,
}

/// Builds the project's own programs and answers their paths, in the order of `programs`. Each is named as its package.
///
/// # Errors
/// When the build fails; cargo has said why on standard error.
pub fn build(programs: &[&str], profile: Profile) -> Result<Vec<PathBuf>> {
    let mut command = command()?;
    command.args(["build", "--quiet", "--bins", "--message-format", "json-render-diagnostics"]);
    for program in programs {
        command.args(["--package", program]);
    }
    if profile == Profile::Release {
        command.arg("--release");
    }
    let progress = Progress::start(format!("building {}", programs.join(", ")));
    let output =
        command.stderr(std::process::Stdio::inherit()).output().with_context(|| format!("starting {command:?}"))?;
    if !output.status.success() {
        bail!("building {}: cargo ended with {}", programs.join(", "), output.status);
    }
    progress.done();
    let executables: Vec<PathBuf> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| message.get("executable")?.as_str().map(PathBuf::from))
        .collect();
    let find = |name: &&str| {
        let path = executables.iter().find(|path| path.file_stem().is_some_and(|stem| stem == *name));
        path.cloned().with_context(|| format!("package {name} has no program of its name"))
    };
    programs.iter().map(find).collect()
}

fn in_path(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder: PathBuf| Path::is_file(&folder.join(name)))
}
