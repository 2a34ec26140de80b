//! Where a tool is: a flag, `KUBEBUILDER_ASSETS`, `PATH`, the cache, else it is built into the cache.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;

use super::{Tool, build};

/// The tools of one run: what was given on the command line, and what was found so far.
#[derive(Debug, Default)]
pub struct Tools {
    found: Mutex<BTreeMap<Tool, Found>>,
    build: Build,
}

/// Whether a tool that is nowhere may be built.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Build {
    #[default]
    Allowed,
    /// Tests are handed their tools and never build: a test's time is the test's.
    Never,
}

/// A tool's place and how it was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// The program.
    pub path: PathBuf,
    /// In words, for a table: `flag`, `PATH`, `cache` …
    pub by: &'static str,
}

impl Tools {
    /// Tools with some given as `NAME=PATH`, as the flag `--tool` has them. What is given is taken as it is, whatever its version.
    ///
    /// # Errors
    /// When a name is unknown, or a path is not that of a file.
    pub fn with(given: &[String]) -> Result<Self> {
        let mut found = BTreeMap::new();
        for item in given {
            let (name, path) =
                item.split_once('=').with_context(|| format!("--tool {item:?}: give it as NAME=PATH"))?;
            let path = std::path::absolute(path)?;
            if !path.is_file() {
                bail!("--tool {name}: {} is not a file", path.display());
            }
            found.insert(name.parse()?, Found { path, by: "flag" });
        }
        Ok(Self { found: Mutex::new(found), build: Build::Allowed })
    }

    /// The tools that `cargo xtask test` handed to a test, in variables such as `TEST_ETCD`.
    pub fn of_test() -> Self {
        let given = Tool::ALL.into_iter().filter_map(|tool| {
            let path = std::env::var_os(tool.variable())?.into();
            Some((tool, Found { path, by: "variable" }))
        });
        Self { found: Mutex::new(given.collect()), build: Build::Never }
    }

    /// The path of a tool, which is built if it has to be.
    ///
    /// # Errors
    /// When it is nowhere and cannot be built: what to install, or what the build said.
    pub fn path(&self, tool: Tool) -> Result<PathBuf> {
        if let Some(found) = self.found(tool)? {
            return Ok(found.path);
        }
        if self.build == Build::Never {
            bail!(
                "{} is not set: run this test by `cargo xtask test`, or set it to the path of {tool} (`cargo xtask tools {tool}` prints one)",
                tool.variable()
            );
        }
        let path = build::build(tool)?;
        self.found.lock().insert(tool, Found { path: path.clone(), by: "built" });
        Ok(path)
    }

    /// Where a tool is, without building it.
    ///
    /// # Errors
    /// When the pinned version cannot be told.
    pub fn found(&self, tool: Tool) -> Result<Option<Found>> {
        if let Some(found) = self.found.lock().get(&tool) {
            return Ok(Some(found.clone()));
        }
        if self.build == Build::Never {
            return Ok(None);
        }
        let found = look(tool)?;
        if let Some(found) = &found {
            self.found.lock().insert(tool, found.clone());
        }
        Ok(found)
    }
}

fn look(tool: Tool) -> Result<Option<Found>> {
    let version = tool.version()?;
    if let Some(arguments) = tool.version_arguments() {
        let assets =
            std::env::var_os("KUBEBUILDER_ASSETS").map(PathBuf::from).map(|folder| (folder, "KUBEBUILDER_ASSETS"));
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = assets.into_iter().chain(std::env::split_paths(&path).map(|folder| (folder, "PATH")));
        for (folder, by) in folders {
            let path = folder.join(tool.name());
            if path.is_file() && tells_version(&path, arguments, &version) {
                return Ok(Some(Found { path, by }));
            }
        }
    }
    let cached = build::cached(tool)?;
    Ok(cached.is_file().then_some(Found { path: cached, by: "cache" }))
}

/// Whether the program calls itself by the pinned version: an older kubectl in `PATH` is not the one that tests mean.
fn tells_version(program: &Path, arguments: &[&str], version: &str) -> bool {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    output
        .is_ok_and(|output| output.status.success() && names_version(&String::from_utf8_lossy(&output.stdout), version))
}

fn names_version(output: &str, version: &str) -> bool {
    let bare = version.trim_start_matches('v');
    output.split_whitespace().any(|word| word.trim_start_matches('v') == bare)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_counts_only_as_a_whole_word() {
        assert!(names_version("Client Version: v1.37.2\nKustomize Version: v5.8.0\n", "v1.37.2"));
        assert!(names_version("etcd Version: 3.7.3\nGit SHA: x\n", "v3.7.3"));
        assert!(!names_version("Client Version: v1.37.20\n", "v1.37.2"));
        assert!(!names_version("Client Version: v1.32.4-dispatcher\n", "v1.32.4"));
    }

    #[test]
    fn a_given_tool_must_exist_and_be_known() {
        assert!(Tools::with(&["etcd=/nonexistent/etcd".into()]).is_err());
        assert!(Tools::with(&["oven=/bin/sh".into()]).is_err());
        let tools = Tools::with(&["etcd=/bin/sh".into()]).unwrap();
        assert_eq!(tools.path(Tool::Etcd).unwrap(), Path::new("/bin/sh"));
    }
}
