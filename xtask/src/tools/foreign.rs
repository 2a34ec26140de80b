//! Tests of other projects that are run on what is built here: a module of theirs from Go's module cache, with files of
//! `tools/` laid over it, and a test binary of each package.
//!
//! What becomes of it is a folder in the cache with the sources, since tests read files beside them, the binaries, and a
//! list of both.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// How a module's tests are prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForeignTests {
    /// The folder below `tools/`: a go.mod that requires the module and a go.sum that vouches for it, and what is laid
    /// over it, in `overlay/`.
    pub(super) folder: &'static str,
    /// The module.
    pub(super) module: &'static str,
    /// What is taken of it: paths inside, all of it for none.
    keep: &'static [&'static str],
    /// And what of that is left out, since it needs what is not to be had.
    without: &'static [&'static str],
    edits: &'static [Edit],
    /// The packages whose tests are built, as paths inside the module.
    packages: &'static [&'static str],
}

/// A change within a file, where laying one over it would mean to copy it. The text stands there exactly so often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Edit {
    file: &'static str,
    from: &'static str,
    to: &'static str,
    times: usize,
}

/// What the list in the cache holds: one package with tests.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TestPackage {
    /// Its path inside the module.
    pub name: String,
    /// The program with its tests.
    pub binary: PathBuf,
    /// The folder in which its tests expect to run.
    pub folder: PathBuf,
}

/// etcd's integration tests: the client library's packages, and the server's by way of clients.
pub(super) const ETCD_INTEGRATION: ForeignTests = ForeignTests {
    folder: "etcd-integration",
    module: "go.etcd.io/etcd/tests/v3",
    keep: &["fixtures", "framework", "integration"],
    without: &[
        // They need modules of etcd's repository that are not published at this version.
        "framework/e2e",
        "framework/testrunner.go",
        "framework/unit",
        "integration/cache_test.go",
        // etcd's own proxy stands in for ours here.
        "framework/integration/cluster_proxy.go",
        "integration/proxy",
        // Not of the packages below: embedded servers, files, names, and examples without a check.
        "integration/clientv3/connectivity",
        "integration/clientv3/examples",
        "integration/clientv3/naming",
        "integration/clientv3/snapshot",
        "integration/embed",
        "integration/snapshot",
        "integration/v2store",
        // A test of the tests, without an etcd.
        "integration/testing_test.go",
    ],
    edits: &[
        Edit {
            file: "framework/integration/testing.go",
            from: "return clientv3.New(cfg)",
            to: "return newClientV3(cfg)",
            times: 1,
        },
        Edit {
            file: "framework/integration/cluster.go",
            from: "return newClientV3(cfg)",
            to: "return newMemberClient(m, cfg)",
            times: 1,
        },
        Edit {
            file: "framework/integration/cluster.go",
            from: "m.GRPCServerOpts = []grpc.ServerOption{}",
            to: "m.GRPCServerOpts = memberOptions()",
            times: 1,
        },
        Edit {
            file: "integration/clientv3/concurrency/example_election_test.go",
            from: "clientv3.New(",
            to: "newClient(",
            times: 1,
        },
        Edit {
            file: "integration/clientv3/concurrency/example_mutex_test.go",
            from: "clientv3.New(",
            to: "newClient(",
            times: 2,
        },
        Edit {
            file: "integration/clientv3/concurrency/example_stm_test.go",
            from: "clientv3.New(",
            to: "newClient(",
            times: 1,
        },
    ],
    packages: &[
        "integration/clientv3",
        "integration/clientv3/lease",
        "integration/clientv3/watch",
        "integration/clientv3/concurrency",
        "integration/clientv3/experimental/recipes",
        "integration",
    ],
};

/// Kubernetes' tests of its storage layer: directly on etcd, and through the watch cache.
pub(super) const STORAGE_SUITE: ForeignTests = ForeignTests {
    folder: "storage-suite",
    module: "k8s.io/apiserver",
    keep: &[],
    without: &[],
    edits: &[],
    packages: &["pkg/storage/etcd3", "pkg/storage/cacher"],
};

/// What `go mod download -json` tells.
#[derive(Deserialize)]
struct Download {
    #[serde(rename = "Dir")]
    dir: Option<PathBuf>,
    #[serde(rename = "Error")]
    error: Option<String>,
}

impl ForeignTests {
    /// The packages, in order.
    pub(super) const fn packages(&self) -> &'static [&'static str] {
        self.packages
    }

    /// Puts the module together in `target`, from where `download` (the output of `go mod download -json`) says that it is.
    pub(super) fn lay_out(&self, download: &str, tools: &Path, target: &Path) -> Result<()> {
        let download: Download = serde_json::from_str(download).context("reading what `go mod download` answered")?;
        if let Some(error) = download.error {
            bail!("{}: {error}", self.module);
        }
        let module = download.dir.with_context(|| format!("`go mod download` did not say where {} is", self.module))?;
        let without: Vec<PathBuf> = self.without.iter().map(|path| module.join(path)).collect();
        for path in &without {
            if !path.exists() {
                bail!("{} has nothing to leave out at {}", self.module, path.display());
            }
        }
        if self.keep.is_empty() {
            copy(&module, target, &without)?;
        }
        for path in self.keep {
            copy(&module.join(path), &target.join(path), &without)?;
        }
        copy(&tools.join("harness"), &target.join("harness"), &[])?;
        for edit in self.edits {
            edit.apply(target)?;
        }
        copy(&tools.join(self.folder).join("overlay"), target, &[])
    }
}

impl Edit {
    fn apply(&self, target: &Path) -> Result<()> {
        let path = target.join(self.file);
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let found = text.matches(self.from).count();
        if found != self.times {
            bail!(
                "{} holds {:?} {found} times, not {}; the edit has to be looked at",
                self.file,
                self.from,
                self.times
            );
        }
        std::fs::write(&path, text.replace(self.from, self.to)).with_context(|| format!("writing {}", path.display()))
    }
}

/// Copies files and folders, over what is there. The copies can be written, which Go's module cache forbids.
fn copy(from: &Path, to: &Path, without: &[PathBuf]) -> Result<()> {
    if without.iter().any(|path| path == from) {
        return Ok(());
    }
    let context = || format!("copying {} to {}", from.display(), to.display());
    if from.is_dir() {
        std::fs::create_dir_all(to).with_context(context)?;
        for entry in std::fs::read_dir(from).with_context(context)? {
            let entry = entry.with_context(context)?;
            copy(&entry.path(), &to.join(entry.file_name()), without)?;
        }
        return Ok(());
    }
    let content = std::fs::read(from).with_context(context)?;
    std::fs::create_dir_all(to.parent().unwrap_or(to)).with_context(context)?;
    std::fs::write(to, content).with_context(context)
}

/// The packages of a list in the cache.
///
/// # Errors
/// When it cannot be read.
pub fn packages(list: &Path) -> Result<Vec<TestPackage>> {
    let text = std::fs::read(list).with_context(|| format!("reading {}", list.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("{} is no list of packages with tests", list.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_put_together() {
        let dir = std::env::temp_dir().join(format!("xtask-foreign-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = dir.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("module/a/one.go", "say(hello)");
        write("module/a/gone/two.go", "");
        write("module/b/three.go", "");
        write("tools/harness/harness.go", "package harness");
        write("tools/suite/overlay/a/four.go", "ours");
        let edit = Edit { file: "a/one.go", from: "hello", to: "good bye", times: 1 };
        let mut tests = ForeignTests {
            folder: "suite",
            module: "example.com/m",
            keep: &["a"],
            without: &["a/gone"],
            edits: &[],
            packages: &[],
        };
        let edits: &'static [Edit] = Box::leak(vec![edit].into_boxed_slice());
        tests.edits = edits;
        let download = serde_json::json!({ "Dir": dir.join("module") }).to_string();
        let target = dir.join("target");
        tests.lay_out(&download, &dir.join("tools"), &target).unwrap();
        assert_eq!(std::fs::read_to_string(target.join("a/one.go")).unwrap(), "say(good bye)");
        assert_eq!(std::fs::read_to_string(target.join("a/four.go")).unwrap(), "ours");
        assert!(target.join("harness/harness.go").is_file());
        assert!(!target.join("a/gone").exists() && !target.join("b").exists());
        let error = edit.apply(&target).unwrap_err();
        assert!(error.to_string().contains("0 times, not 1"), "{error}");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn what_go_could_not_fetch_is_told() {
        let error = STORAGE_SUITE.lay_out(r#"{"Error": "no such host"}"#, Path::new("."), Path::new(".")).unwrap_err();
        assert!(error.to_string().contains("no such host"), "{error}");
    }
}
