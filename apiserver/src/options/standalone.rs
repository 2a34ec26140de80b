//! A server that stands alone: no etcd, no cluster, only for the person at this machine.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use clap::Args;
use serde_json::json;

use super::{OptionsError, RecommendedConfig, RecommendedOptions, etcd::Backend, flag};
use crate::{
    authentication::{CaBundle, DelegatingAuthenticator, Trust},
    authorization::{SYSTEM_MASTERS, Union},
    server::{
        Config, VersionInfo,
        certificates::{self, EphemeralCa, KeyPairFiles, PemPair},
    },
};

/// The user of the client certificate.
const USER: &str = "standalone-admin";

/// A server that stands alone.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Standalone")]
pub struct StandaloneOptions {
    /// Run alone, with --storage-backend=memory: listen on a loopback address only, make a CA, and write a kubeconfig with a
    /// client certificate. No etcd and no cluster is needed. Any namespace exists.
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_parser = flag)]
    pub standalone: bool,

    /// Where to write the kubeconfig of a server that stands alone.
    #[arg(long, default_value = "apiserver.local.config/standalone.kubeconfig", value_name = "FILE")]
    pub standalone_kubeconfig: PathBuf,
}

// === impl StandaloneOptions ===

impl StandaloneOptions {
    pub(super) fn validate(&self, options: &RecommendedOptions, errors: &mut Vec<String>) {
        if !self.standalone {
            return;
        }
        if options.etcd.storage_backend != Backend::Memory {
            errors.push("--standalone needs --storage-backend=memory".to_owned());
        }
        if let Some(address) = options.secure_serving.bind_address
            && !address.is_loopback()
        {
            errors
                .push(format!("--standalone listens on loopback addresses only, and --bind-address={address} is none"));
        }
        let authentication = &options.authentication;
        for (flag, given) in [
            ("--kubeconfig", options.core_api.kubeconfig.is_some()),
            ("--authentication-kubeconfig", authentication.authentication_kubeconfig.is_some()),
            ("--authorization-kubeconfig", options.authorization.authorization_kubeconfig.is_some()),
            ("--client-ca-file", authentication.client_ca_file.is_some()),
            ("--requestheader-client-ca-file", authentication.requestheader_client_ca_file.is_some()),
            ("--tls-cert-file", options.secure_serving.tls_cert_file.is_some()),
        ] {
            if given {
                errors.push(format!("{flag} has no meaning with --standalone"));
            }
        }
    }
}

/// Opens a server that stands alone.
pub(super) async fn config(
    options: &RecommendedOptions,
    version: VersionInfo,
) -> Result<RecommendedConfig, OptionsError> {
    let ca = EphemeralCa::new("standalone-ca")?;
    let mut serving_options = options.secure_serving.clone();
    let bind_address = *serving_options.bind_address.get_or_insert(IpAddr::V4(Ipv4Addr::LOCALHOST));
    serving_options.secure_port.get_or_insert(0);
    let ips = [IpAddr::V4(Ipv4Addr::LOCALHOST), bind_address];
    let files = write_pair(&options.standalone.standalone_kubeconfig, &ca.serving(&["localhost".to_owned()], &ips)?)?;

    let trust = Arc::new(Trust::default());
    let bundle =
        CaBundle::from_pem(ca.pem().as_bytes()).map_err(|error| OptionsError::Kubeconfig(error.to_string()))?;
    trust.set_client_ca(bundle);
    let serving = serving_options.serving_with(files, trust.clone()).await?;
    let address = serving.listener.local_addr().map_err(|error| OptionsError::Kubeconfig(error.to_string()))?;
    let path = options.standalone.standalone_kubeconfig.clone();
    write_kubeconfig(&path, address, &ca)?;
    tracing::info!(kubeconfig = %path.display(), %address, "standing alone: any namespace exists, NamespaceLifecycle is off, and only the holder of the kubeconfig is let in");

    let config = Config::new(version)
        .serving(serving)
        .authenticator(Arc::new(DelegatingAuthenticator::new(trust, None, true)))
        .authorizer(Arc::new(Union::new(options.authorization.local()?)));
    options.with_storage(config, None, Some(path)).await
}

/// Writes the serving certificate beside the kubeconfig.
fn write_pair(kubeconfig: &Path, pair: &PemPair) -> Result<KeyPairFiles, OptionsError> {
    let directory = kubeconfig.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(directory)
        .map_err(|error| OptionsError::Kubeconfig(format!("{}: {error}", directory.display())))?;
    let files = KeyPairFiles {
        certificate: kubeconfig.with_extension("serving.crt"),
        key: kubeconfig.with_extension("serving.key"),
    };
    certificates::write(&files.certificate, pair.certificate.as_bytes(), 0o644)?;
    certificates::write(&files.key, pair.key.as_bytes(), 0o600)?;
    Ok(files)
}

fn write_kubeconfig(path: &Path, address: SocketAddr, ca: &EphemeralCa) -> Result<(), OptionsError> {
    let client = ca.client(USER, SYSTEM_MASTERS)?;
    let data = |pem: &str| BASE64_STANDARD.encode(pem);
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "standalone",
            "cluster": {"server": format!("https://{address}"), "certificate-authority-data": data(ca.pem())},
        }],
        "users": [{
            "name": USER,
            "user": {"client-certificate-data": data(&client.certificate), "client-key-data": data(&client.key)},
        }],
        "contexts": [{
            "name": "standalone",
            "context": {"cluster": "standalone", "user": USER, "namespace": "default"},
        }],
        "current-context": "standalone",
    });
    // JSON is YAML, with each value on one line: YAML writers fold long ones, and tools that read lines lose the rest.
    let mut text =
        serde_json::to_string_pretty(&kubeconfig).map_err(|error| OptionsError::Kubeconfig(error.to_string()))?;
    text.push('\n');
    certificates::write(path, text.as_bytes(), 0o600)?;
    Ok(())
}
