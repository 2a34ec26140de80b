//! What `/version` tells.

use serde::Serialize;

/// The version of a server (k8s.io/apimachinery `pkg/version/types.go`).
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VersionInfo {
    /// For example `1`.
    pub major: String,
    /// For example `0`.
    pub minor: String,
    /// For example `v1.0.0`.
    pub git_version: String,
    /// The commit that was built.
    pub git_commit: String,
    /// `clean` or `dirty`.
    pub git_tree_state: String,
    /// When it was built.
    pub build_date: String,
    /// Of Go servers the version of Go; of this one the compiler's name.
    pub go_version: String,
    /// The compiler.
    pub compiler: String,
    /// For example `linux/amd64`.
    pub platform: String,
}

// === impl VersionInfo ===

impl VersionInfo {
    /// The version of a server whose crate has this version, for example `0.1.0`.
    pub fn of_crate(version: &str) -> Self {
        let mut numbers = version.split('.').map(str::to_owned);
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self {
            major: numbers.next().unwrap_or_default(),
            minor: numbers.next().unwrap_or_default(),
            git_version: format!("v{version}"),
            compiler: "rustc".to_owned(),
            platform: format!("{}/{architecture}", std::env::consts::OS),
            ..Self::default()
        }
    }
}
