//! Which admission plugins run, and in which order.

use std::sync::Arc;

use super::{Attributes, Plugin};
use crate::status::Status;

/// The plugins of a server, in the order in which they run. An empty chain admits everything.
#[derive(Clone, Default)]
pub struct Chain {
    plugins: Vec<Arc<dyn Plugin>>,
}

/// The plugins that a server knows, in the order in which they would run, and which of them are on by themselves.
#[derive(Default)]
pub struct Plugins {
    known: Vec<(Arc<dyn Plugin>, bool)>,
}

/// What is wrong with `--enable-admission-plugins` and `--disable-admission-plugins`.
#[derive(Debug, thiserror::Error)]
pub enum PluginSelectionError {
    /// A name that no plugin has.
    #[error("{flag} names {name:?}, which is no admission plugin of this server; there are: {known}")]
    Unknown {
        /// The flag.
        flag: &'static str,
        /// The name given.
        name: String,
        /// The names that exist.
        known: String,
    },
    /// A name in both flags.
    #[error("the admission plugin {name:?} is in both --enable-admission-plugins and --disable-admission-plugins")]
    Both {
        /// The name given.
        name: String,
    },
}

// === impl Chain ===

impl Chain {
    /// Runs these plugins in this order.
    pub fn new(plugins: Vec<Arc<dyn Plugin>>) -> Self {
        Self { plugins }
    }

    /// The plugins' names, in order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.plugins.iter().map(|p| p.name())
    }

    /// Lets the plugins change the object.
    ///
    /// # Errors
    /// The first refusal.
    pub async fn admit(&self, attributes: &mut Attributes<'_>) -> Result<(), Status> {
        for plugin in &self.plugins {
            if plugin.handles(attributes.operation) {
                plugin.admit(attributes).await?;
            }
        }
        Ok(())
    }

    /// Shows the plugins the final object.
    ///
    /// # Errors
    /// The first refusal.
    pub async fn validate(&self, attributes: &Attributes<'_>) -> Result<(), Status> {
        for plugin in &self.plugins {
            if plugin.handles(attributes.operation) {
                plugin.validate(attributes).await?;
            }
        }
        Ok(())
    }
}

// === impl Plugins ===

impl Plugins {
    /// Adds a plugin that is on unless it is disabled. Plugins run in the order in which they are added.
    #[must_use]
    pub fn on(mut self, plugin: impl Plugin) -> Self {
        self.known.push((Arc::new(plugin), true));
        self
    }

    /// Adds a plugin that is off unless it is enabled.
    #[must_use]
    pub fn off(mut self, plugin: impl Plugin) -> Self {
        self.known.push((Arc::new(plugin), false));
        self
    }

    /// Applies `--enable-admission-plugins` and `--disable-admission-plugins`, and logs what comes of it.
    ///
    /// # Errors
    /// When a name is unknown, or given in both.
    pub fn select(self, enable: &[String], disable: &[String]) -> Result<Chain, PluginSelectionError> {
        for (flag, names) in [("--enable-admission-plugins", enable), ("--disable-admission-plugins", disable)] {
            for name in names {
                if !self.known.iter().any(|(plugin, _)| plugin.name() == name) {
                    let known: Vec<_> = self.known.iter().map(|(plugin, _)| plugin.name()).collect();
                    return Err(PluginSelectionError::Unknown { flag, name: name.clone(), known: known.join(", ") });
                }
            }
        }
        if let Some(name) = enable.iter().find(|name| disable.contains(name)) {
            return Err(PluginSelectionError::Both { name: name.clone() });
        }
        let named = |list: &[String], plugin: &dyn Plugin| list.iter().any(|name| name == plugin.name());
        let plugins = self
            .known
            .into_iter()
            .filter(|(plugin, default)| (*default || named(enable, &**plugin)) && !named(disable, &**plugin));
        let chain = Chain::new(plugins.map(|(plugin, _)| plugin).collect());
        tracing::info!(
            plugins = chain.names().collect::<Vec<_>>().join(","),
            "admission plugins, in the order in which they run"
        );
        Ok(chain)
    }
}

#[cfg(test)]
mod tests;
