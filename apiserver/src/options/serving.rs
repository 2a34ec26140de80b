//! The port and its certificates (k8s.io/apiserver `pkg/server/options/serving.go`).

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
};

use clap::Args;
use rustls::crypto::ring::ALL_CIPHER_SUITES;
use tokio::net::TcpListener;

use super::{OptionsError, flag};
use crate::{
    authentication::Trust,
    server::{
        accept::Bounds,
        certificates::KeyPairFiles,
        config::Serving,
        tls::{ServingTls, TlsSettings},
    },
};

/// Where a server listens unless it is told otherwise.
const EVERY_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// The port and its certificates.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Secure serving")]
pub struct SecureServingOptions {
    /// The address to listen on: 0.0.0.0, or with --standalone 127.0.0.1.
    #[arg(long, value_name = "IP")]
    pub bind_address: Option<IpAddr>,

    /// The port on which to serve HTTPS: 443, or with --standalone any that is free. With 0 the system chooses one, which the
    /// log tells.
    #[arg(long, value_name = "PORT")]
    pub secure_port: Option<u16>,

    /// The directory in which a self-signed certificate is kept (apiserver.crt, apiserver.key) if --tls-cert-file and
    /// --tls-private-key-file are not given. It is made if it is not there.
    #[arg(long, default_value = "apiserver.local.config/certificates", value_name = "DIRECTORY")]
    pub cert_dir: PathBuf,

    /// The serving certificate (PEM), followed by those of its CAs. Read again when it changes.
    #[arg(long, value_name = "FILE")]
    pub tls_cert_file: Option<PathBuf>,

    /// The key (PEM) of the serving certificate.
    #[arg(long, value_name = "FILE")]
    pub tls_private_key_file: Option<PathBuf>,

    /// The oldest version of TLS to speak: VersionTLS12 or VersionTLS13.
    #[arg(long, value_name = "VERSION", default_value = "VersionTLS12")]
    pub tls_min_version: String,

    /// The cipher suites to speak, separated by commas, under their IANA names. Those of TLS 1.3 are always among them.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub tls_cipher_suites: Vec<String>,

    /// The most requests at one time on one HTTP/2 connection.
    #[arg(long, default_value_t = 1000, value_name = "NUMBER")]
    pub http2_max_streams_per_connection: u32,

    /// Serve HTTP/1.1 only.
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_parser = flag)]
    pub disable_http2_serving: bool,
}

// === impl SecureServingOptions ===

impl SecureServingOptions {
    pub(super) fn validate(&self, errors: &mut Vec<String>) {
        if self.tls_cert_file.is_some() != self.tls_private_key_file.is_some() {
            errors.push("--tls-cert-file and --tls-private-key-file go together; one is missing".to_owned());
        }
        if self.http2_max_streams_per_connection == 0 {
            errors.push("--http2-max-streams-per-connection must be at least 1".to_owned());
        }
        if let Err(error) = self.settings() {
            errors.push(error);
        }
    }

    /// Binds the port and reads the certificates.
    ///
    /// # Errors
    /// When the port is taken, or a certificate unusable.
    pub async fn serving(&self, trust: Arc<Trust>) -> Result<Serving, OptionsError> {
        let files = match (&self.tls_cert_file, &self.tls_private_key_file) {
            (Some(certificate), Some(key)) => KeyPairFiles { certificate: certificate.clone(), key: key.clone() },
            _ => self.generated_files()?,
        };
        self.serving_with(files, trust).await
    }

    pub(super) async fn serving_with(&self, files: KeyPairFiles, trust: Arc<Trust>) -> Result<Serving, OptionsError> {
        let address = SocketAddr::new(self.bind_address.unwrap_or(EVERY_ADDRESS), self.secure_port.unwrap_or(443));
        let listener = TcpListener::bind(address).await.map_err(|error| OptionsError::Listen { address, error })?;
        let settings = self.settings().map_err(|error| OptionsError::Invalid(vec![error]))?;
        let tls = Arc::new(ServingTls::new(files, settings, trust)?);
        let bounds = Bounds { http2_streams: self.http2_max_streams_per_connection, ..Bounds::default() };
        Ok(Serving { listener, tls, bounds })
    }

    fn generated_files(&self) -> Result<KeyPairFiles, OptionsError> {
        let mut ips = vec![IpAddr::V4(Ipv4Addr::LOCALHOST)];
        ips.extend(self.bind_address.filter(|address| !address.is_unspecified() && *address != Ipv4Addr::LOCALHOST));
        Ok(KeyPairFiles::generated(&self.cert_dir, "apiserver", &["localhost".to_owned()], &ips)?)
    }

    fn settings(&self) -> Result<TlsSettings, String> {
        let versions = match self.tls_min_version.as_str() {
            "VersionTLS12" | "" => TlsSettings::default().versions,
            "VersionTLS13" => vec![&rustls::version::TLS13],
            "VersionTLS10" | "VersionTLS11" => {
                return Err(format!(
                    "--tls-min-version={}: versions before TLS 1.2 are broken and not spoken",
                    self.tls_min_version
                ));
            }
            other => {
                return Err(format!("--tls-min-version={other}: unknown; there are VersionTLS12 and VersionTLS13"));
            }
        };
        let mut cipher_suites: Vec<_> = Vec::new();
        if !self.tls_cipher_suites.is_empty() {
            cipher_suites.extend(ALL_CIPHER_SUITES.iter().filter(|suite| suite.tls13().is_some()));
        }
        for name in &self.tls_cipher_suites {
            // IANA's names begin with TLS_, for TLS 1.3 the library's with TLS13_.
            let found = ALL_CIPHER_SUITES.iter().find(|suite| {
                let known = format!("{:?}", suite.suite());
                known == *name || known.strip_prefix("TLS13_") == name.strip_prefix("TLS_")
            });
            match found {
                Some(suite) if !cipher_suites.contains(suite) => cipher_suites.push(*suite),
                Some(_) => {}
                None => return Err(format!("--tls-cipher-suites: {name:?} is not known or not safe")),
            }
        }
        Ok(TlsSettings { versions, cipher_suites, http2: !self.disable_http2_serving })
    }
}
