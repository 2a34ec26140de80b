//! What tools there are, and where each one's version is pinned.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use super::foreign::{self, ForeignTests};

/// A program that tests and the demo run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "each is the program of its name")]
pub enum Tool {
    Etcd,
    Etcdctl,
    Etcdutl,
    Etcd35,
    Etcd36,
    EtcdBenchmark,
    KubeApiserver,
    KubeControllerManager,
    Kubectl,
    SampleApiserver,
    Descriptors,
    OpenapiMeta,
    Informer,
    Writers,
    EtcdIntegration,
    StorageSuite,
    CargoDeny,
}

/// How a tool is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// From a package of another project, at the version that a go.mod requires.
    GoModule {
        /// The folder below `tools/` with the go.mod.
        folder: &'static str,
        /// The module whose version is the tool's.
        module: &'static str,
        /// The package of the program.
        package: &'static str,
    },
    /// From a program of this project.
    GoProgram {
        /// The folder below `tools/`, a module of its own.
        folder: &'static str,
    },
    /// The tests of another project, as a list of programs.
    ForeignTests(&'static ForeignTests),
    /// From the crate registry.
    Crate {
        /// The crate.
        name: &'static str,
        /// The exact version.
        version: &'static str,
    },
}

const KUBERNETES: &str = "k8s.io/kubernetes";

impl Tool {
    /// All of them.
    pub const ALL: [Self; 17] = [
        Self::Etcd,
        Self::Etcdctl,
        Self::Etcdutl,
        Self::Etcd35,
        Self::Etcd36,
        Self::EtcdBenchmark,
        Self::KubeApiserver,
        Self::KubeControllerManager,
        Self::Kubectl,
        Self::SampleApiserver,
        Self::Descriptors,
        Self::OpenapiMeta,
        Self::Informer,
        Self::Writers,
        Self::EtcdIntegration,
        Self::StorageSuite,
        Self::CargoDeny,
    ];

    /// The name on the command line, and of the file.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Etcdctl => "etcdctl",
            Self::Etcdutl => "etcdutl",
            Self::Etcd35 => "etcd-3.5",
            Self::Etcd36 => "etcd-3.6",
            Self::EtcdBenchmark => "etcd-benchmark",
            Self::KubeApiserver => "kube-apiserver",
            Self::KubeControllerManager => "kube-controller-manager",
            Self::Kubectl => "kubectl",
            Self::SampleApiserver => "sample-apiserver",
            Self::Descriptors => "descriptors",
            Self::OpenapiMeta => "openapi-meta",
            Self::Informer => "informer",
            Self::Writers => "writers",
            Self::EtcdIntegration => "etcd-integration",
            Self::StorageSuite => "storage-suite",
            Self::CargoDeny => "cargo-deny",
        }
    }

    /// What it is built from.
    pub const fn source(self) -> Source {
        const fn kubernetes(module: &'static str, package: &'static str) -> Source {
            Source::GoModule { folder: "kubernetes", module, package }
        }
        const ETCD: &str = "go.etcd.io/etcd/server/v3";
        match self {
            Self::Etcd => kubernetes(ETCD, ETCD),
            Self::Etcdctl => kubernetes("go.etcd.io/etcd/etcdctl/v3", "go.etcd.io/etcd/etcdctl/v3"),
            Self::Etcdutl => kubernetes("go.etcd.io/etcd/etcdutl/v3", "go.etcd.io/etcd/etcdutl/v3"),
            Self::Etcd35 => Source::GoModule { folder: "etcd-3.5", module: ETCD, package: ETCD },
            Self::Etcd36 => Source::GoModule { folder: "etcd-3.6", module: ETCD, package: ETCD },
            Self::EtcdBenchmark => Source::GoModule {
                folder: "etcd-benchmark",
                module: "go.etcd.io/etcd/v3",
                package: "go.etcd.io/etcd/v3/tools/benchmark",
            },
            Self::KubeApiserver => kubernetes(KUBERNETES, "k8s.io/kubernetes/cmd/kube-apiserver"),
            Self::KubeControllerManager => kubernetes(KUBERNETES, "k8s.io/kubernetes/cmd/kube-controller-manager"),
            Self::Kubectl => kubernetes(KUBERNETES, "k8s.io/kubernetes/cmd/kubectl"),
            Self::SampleApiserver => kubernetes("k8s.io/sample-apiserver", "k8s.io/sample-apiserver"),
            Self::Descriptors => Source::GoProgram { folder: "descriptors" },
            Self::OpenapiMeta => Source::GoProgram { folder: "openapi-meta" },
            Self::Informer => Source::GoProgram { folder: "informer" },
            Self::Writers => Source::GoProgram { folder: "writers" },
            Self::EtcdIntegration => Source::ForeignTests(&foreign::ETCD_INTEGRATION),
            Self::StorageSuite => Source::ForeignTests(&foreign::STORAGE_SUITE),
            Self::CargoDeny => Source::Crate { name: "cargo-deny", version: "0.20.2" },
        }
    }

    /// The arguments with which the program tells its version; none where it cannot be asked, and then a copy found
    /// somewhere is never taken for the pinned one.
    pub(super) const fn version_arguments(self) -> Option<&'static [&'static str]> {
        match self {
            Self::Etcd
            | Self::Etcd35
            | Self::Etcd36
            | Self::KubeApiserver
            | Self::KubeControllerManager
            | Self::CargoDeny => Some(&["--version"]),
            Self::Etcdctl | Self::Etcdutl => Some(&["version"]),
            Self::Kubectl => Some(&["version", "--client"]),
            Self::EtcdBenchmark
            | Self::SampleApiserver
            | Self::Descriptors
            | Self::OpenapiMeta
            | Self::Informer
            | Self::Writers
            | Self::EtcdIntegration
            | Self::StorageSuite => None,
        }
    }

    /// The variable in which `cargo xtask test` hands a tool's path to the tests.
    pub fn variable(self) -> String {
        let name = self.name().replace(['-', '.'], "_").to_ascii_uppercase();
        format!("TEST_{name}")
    }

    /// The pinned version, with its `v` as Go writes it; `local` for the project's own programs.
    ///
    /// # Errors
    /// When the go.mod cannot be read or does not require the module.
    pub fn version(self) -> Result<String> {
        match self.source() {
            Source::GoModule { folder, module, .. } => required(folder, module),
            Source::GoProgram { .. } => Ok("local".to_owned()),
            Source::ForeignTests(tests) => required(tests.folder, tests.module),
            Source::Crate { version, .. } => Ok(version.to_owned()),
        }
    }
}

impl std::str::FromStr for Tool {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|tool| tool.name() == name);
        found
            .with_context(|| format!("no tool is called {name:?}; there are: {}", Self::ALL.map(Self::name).join(", ")))
    }
}

impl std::fmt::Display for Tool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

/// The folder of a Go module below `tools/`.
pub(super) fn folder(name: &str) -> PathBuf {
    crate::root().join("tools").join(name)
}

/// The version at which the go.mod in `tools/<folder>` requires `module`.
fn required(folder_name: &str, module: &str) -> Result<String> {
    let path = folder(folder_name).join("go.mod");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    version_in(&text, module).with_context(|| format!("{} does not require {module}", path.display()))
}

fn version_in(go_mod: &str, module: &str) -> Result<String> {
    for line in go_mod.lines() {
        let mut words = line.split_whitespace().skip_while(|word| *word == "require");
        if words.next() == Some(module)
            && let Some(version) = words.next()
            && version.starts_with('v')
        {
            return Ok(version.to_owned());
        }
    }
    bail!("no line requires it")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_go_mod() {
        let text = "module x\nreplace k8s.io/api => k8s.io/api v0.37.2\nrequire (\n\tk8s.io/kubernetes v1.37.2\n)\nrequire a.b/c v0.1.0 // indirect\n";
        assert_eq!(version_in(text, "k8s.io/kubernetes").unwrap(), "v1.37.2");
        assert_eq!(version_in(text, "a.b/c").unwrap(), "v0.1.0");
        assert!(version_in(text, "k8s.io/api").is_err(), "a replace line requires nothing");
    }

    #[test]
    fn every_pinned_module_is_required_somewhere() {
        for tool in Tool::ALL {
            assert!(!tool.version().unwrap().is_empty(), "{tool}");
            assert_eq!(tool.name().parse::<Tool>().unwrap(), tool);
        }
    }

    #[test]
    fn variables_are_names_a_shell_takes() {
        assert_eq!(Tool::Etcd35.variable(), "TEST_ETCD_3_5");
        assert_eq!(Tool::KubeApiserver.variable(), "TEST_KUBE_APISERVER");
    }
}
