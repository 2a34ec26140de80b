//! Where objects are kept (k8s.io/apiserver `pkg/server/options/etcd.go`).

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::{Args, ValueEnum};

use super::{OptionsError, duration};
use crate::storage::{Storage, compactor::Compactor, etcd3::Etcd3Options, memory::Memory};

/// What keeps the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// An etcd, or a proxy that speaks its protocol.
    Etcd3,
    /// This process's memory: what is in it goes with the process.
    Memory,
}

/// Where objects are kept.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Storage")]
pub struct EtcdOptions {
    /// What keeps the objects: an etcd, or this process's memory, which is empty at each start.
    #[arg(long, value_enum, default_value = "etcd3")]
    pub storage_backend: Backend,

    /// The etcd servers to connect to, separated by commas: https://HOST:PORT, http://HOST:PORT or unix:PATH.
    #[arg(long, value_delimiter = ',', value_name = "URLS")]
    pub etcd_servers: Vec<String>,

    /// What all keys of this server begin with.
    #[arg(long, default_value = "/registry", value_name = "PREFIX")]
    pub etcd_prefix: String,

    /// The CA (PEM) that signed etcd's certificate.
    #[arg(long, value_name = "FILE")]
    pub etcd_cafile: Option<PathBuf>,

    /// The certificate (PEM) to show to etcd.
    #[arg(long, value_name = "FILE")]
    pub etcd_certfile: Option<PathBuf>,

    /// The key (PEM) of that certificate.
    #[arg(long, value_name = "FILE")]
    pub etcd_keyfile: Option<PathBuf>,

    /// How often history is compacted. With 0 this server does not do it, and something else has to.
    #[arg(long, default_value = "5m0s", value_parser = duration::parse, value_name = "DURATION")]
    pub etcd_compaction_interval: Duration,

    /// How long the health check waits for etcd.
    #[arg(long, default_value = "2s", value_parser = duration::parse, value_name = "DURATION")]
    pub etcd_healthcheck_timeout: Duration,

    /// How long the readiness check waits for etcd.
    #[arg(long, default_value = "2s", value_parser = duration::parse, value_name = "DURATION")]
    pub etcd_readycheck_timeout: Duration,
}

// === impl EtcdOptions ===

impl EtcdOptions {
    pub(super) fn validate(&self, errors: &mut Vec<String>) {
        if self.storage_backend == Backend::Etcd3 && self.etcd_servers.is_empty() {
            errors.push("--etcd-servers must be specified (or --storage-backend=memory)".to_owned());
        }
        if self.storage_backend == Backend::Memory && !self.etcd_servers.is_empty() {
            errors.push("--etcd-servers has no meaning with --storage-backend=memory".to_owned());
        }
    }

    /// Opens the store, and says who compacts it.
    pub(super) async fn open(&self) -> Result<(Arc<dyn Storage>, Option<Compactor>), OptionsError> {
        let storage: Arc<dyn Storage> = match self.storage_backend {
            Backend::Memory => {
                tracing::warn!("objects are kept in memory only: they are gone when this process ends");
                return Ok((Arc::new(Memory::default()), None));
            }
            Backend::Etcd3 => {
                let options = Etcd3Options {
                    servers: self.etcd_servers.clone(),
                    prefix: self.etcd_prefix.clone(),
                    ca_file: self.etcd_cafile.clone(),
                    cert_file: self.etcd_certfile.clone(),
                    key_file: self.etcd_keyfile.clone(),
                    ready_timeout: self.etcd_readycheck_timeout.max(self.etcd_healthcheck_timeout),
                    ..Etcd3Options::default()
                };
                Arc::new(options.connect().await?)
            }
        };
        let compactor = Compactor::new(storage.clone(), self.etcd_compaction_interval);
        Ok((storage, Some(compactor)))
    }
}
