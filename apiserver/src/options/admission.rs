//! What looks at writes before they happen (k8s.io/apiserver `pkg/server/options/admission.go`).

use clap::Args;

use crate::admission::{Chain, PluginSelectionError, Plugins};

/// What looks at writes before they happen.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Admission")]
pub struct AdmissionOptions {
    /// Admission plugins to switch on besides those that are on by themselves, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub enable_admission_plugins: Vec<String>,

    /// Admission plugins to switch off, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub disable_admission_plugins: Vec<String>,
}

// === impl AdmissionOptions ===

impl AdmissionOptions {
    /// The chain of those plugins that the flags leave on.
    ///
    /// # Errors
    /// When a flag names a plugin that does not exist.
    pub fn chain(&self, plugins: Plugins) -> Result<Chain, PluginSelectionError> {
        plugins.select(&self.enable_admission_plugins, &self.disable_admission_plugins)
    }
}
