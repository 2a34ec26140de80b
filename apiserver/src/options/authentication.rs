//! Whom to believe (k8s.io/apiserver `pkg/server/options/authentication.go`).

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::Args;
use tokio_util::sync::CancellationToken;

use super::{OptionsError, duration, flag};
use crate::{
    authentication::{
        CaBundle, DelegatingAuthenticator, RequestHeaderNames, RequestHeaderTrust, TokenReviewer, Trust,
        cluster::{self, Wanted},
    },
    delegation,
    server::tls::RELOAD_INTERVAL,
};

/// How long one TokenReview may take.
const TOKEN_REVIEW_TIMEOUT: Duration = Duration::from_secs(10);

/// Whom to believe.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Authentication")]
pub struct DelegatingAuthenticationOptions {
    /// The kubeconfig of the cluster that is asked about tokens (with the right to create
    /// tokenreviews.authentication.k8s.io) and that tells which front proxies and client CA to believe. Without it, the
    /// cluster in whose pod this runs.
    #[arg(long, value_name = "FILE")]
    pub authentication_kubeconfig: Option<PathBuf>,

    /// How long the answers about tokens are remembered.
    #[arg(long, default_value = "10s", value_parser = duration::parse, value_name = "DURATION")]
    pub authentication_token_webhook_cache_ttl: Duration,

    /// The CA (PEM) of client certificates: the common name is the user, the organisations are the groups. Without it, the
    /// client-ca-file of the cluster's ConfigMap kube-system/extension-apiserver-authentication. Read again when it changes.
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,

    /// The CA (PEM) of front proxies, whose headers are believed. Without it, all of --requestheader-... is read from the
    /// cluster's ConfigMap kube-system/extension-apiserver-authentication. Read again when it changes.
    #[arg(long, value_name = "FILE")]
    pub requestheader_client_ca_file: Option<PathBuf>,

    /// The common names of front proxies, separated by commas. Empty: any that --requestheader-client-ca-file signed.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    pub requestheader_allowed_names: Vec<String>,

    /// Headers for the user's name, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "x-remote-user", value_name = "HEADERS")]
    pub requestheader_username_headers: Vec<String>,

    /// Headers for the user's unique id, separated by commas. Only X-Remote-Uid is of use, and only behind aggregators that
    /// remove it from their clients' requests (Kubernetes 1.32 and later).
    #[arg(long, value_delimiter = ',', value_name = "HEADERS")]
    pub requestheader_uid_headers: Vec<String>,

    /// Headers for the user's groups, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "x-remote-group", value_name = "HEADERS")]
    pub requestheader_group_headers: Vec<String>,

    /// What headers for further attributes of the user begin with, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "x-remote-extra-", value_name = "PREFIXES")]
    pub requestheader_extra_headers_prefix: Vec<String>,

    /// Do not read the cluster's ConfigMap.
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_parser = flag)]
    pub authentication_skip_lookup: bool,

    /// Start even if the cluster's ConfigMap cannot be read. Until it can, nobody is believed whom it tells of.
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_parser = flag)]
    pub authentication_tolerate_lookup_failure: bool,
}

/// The authenticator, and what keeps it up to date.
pub(super) struct Authentication {
    pub(super) authenticator: Arc<DelegatingAuthenticator>,
    pub(super) trust: Arc<Trust>,
    lookup: Option<(kube::Client, Wanted)>,
    files: Files,
}

/// CAs that come from files.
#[derive(Clone)]
struct Files {
    client_ca: Option<PathBuf>,
    request_header: Option<(PathBuf, Vec<String>, RequestHeaderNames)>,
}

// === impl DelegatingAuthenticationOptions ===

impl DelegatingAuthenticationOptions {
    pub(super) fn validate(&self, errors: &mut Vec<String>) {
        for (flag, values) in [
            ("--requestheader-username-headers", &self.requestheader_username_headers),
            ("--requestheader-uid-headers", &self.requestheader_uid_headers),
            ("--requestheader-group-headers", &self.requestheader_group_headers),
            ("--requestheader-extra-headers-prefix", &self.requestheader_extra_headers_prefix),
            ("--requestheader-allowed-names", &self.requestheader_allowed_names),
        ] {
            if values.iter().any(|value| value.trim().is_empty()) {
                errors.push(format!("{flag} has an empty value"));
            }
        }
        let uid = &self.requestheader_uid_headers;
        if !uid.is_empty() && !uid.iter().any(|header| header.eq_ignore_ascii_case("x-remote-uid")) {
            errors
                .push("--requestheader-uid-headers does not name X-Remote-Uid, which API aggregation sends".to_owned());
        }
    }

    /// Makes the authenticator; asks the cluster whom to believe unless flags say all of it.
    pub(super) async fn authentication(&self) -> Result<Authentication, OptionsError> {
        let trust = Arc::new(Trust::default());
        let names = RequestHeaderNames {
            user: trimmed(&self.requestheader_username_headers),
            uid: trimmed(&self.requestheader_uid_headers),
            group: trimmed(&self.requestheader_group_headers),
            extra_prefix: trimmed(&self.requestheader_extra_headers_prefix),
        };
        let files = Files {
            client_ca: self.client_ca_file.clone(),
            request_header: self
                .requestheader_client_ca_file
                .clone()
                .map(|file| (file, self.requestheader_allowed_names.clone(), names)),
        };
        files.load(&trust)?;
        let client = delegation::client(self.authentication_kubeconfig.as_deref())
            .await
            .map_err(|error| OptionsError::Delegation { flag: "--authentication-kubeconfig", error })?;
        let wanted = Wanted {
            client_ca: files.client_ca.is_none() && !self.authentication_skip_lookup,
            request_header: files.request_header.is_none() && !self.authentication_skip_lookup,
        };
        let lookup = (wanted.client_ca || wanted.request_header).then(|| (client.clone(), wanted));
        if let Some((client, wanted)) = &lookup
            && let Err(error) = cluster::look_up(client, *wanted, &trust).await
        {
            if !self.authentication_tolerate_lookup_failure {
                return Err(error.into());
            }
            tracing::warn!(%error, "going on without: all requests may count as anonymous");
        }
        let tokens = TokenReviewer::new(client, TOKEN_REVIEW_TIMEOUT, self.authentication_token_webhook_cache_ttl);
        let authenticator = Arc::new(DelegatingAuthenticator::new(trust.clone(), Some(tokens), true));
        Ok(Authentication { authenticator, trust, lookup, files })
    }
}

fn trimmed(names: &[String]) -> Vec<String> {
    names.iter().map(|name| name.trim().to_owned()).collect()
}

// === impl Authentication ===

impl Authentication {
    /// Follows the ConfigMap and the files until told to stop.
    pub(super) async fn follow(self, stop: CancellationToken) {
        let Self { trust, lookup, files, .. } = self;
        let from_cluster = async {
            match lookup {
                Some((client, wanted)) => cluster::follow(client, wanted, trust.clone()).await,
                None => std::future::pending().await,
            }
        };
        let from_files = async {
            loop {
                tokio::time::sleep(RELOAD_INTERVAL).await;
                if let Err(error) = files.load(&trust) {
                    tracing::error!(%error, "cannot reload a CA; the last one stays in force");
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = from_cluster => {}
            () = from_files => {}
        }
    }
}

// === impl Files ===

impl Files {
    fn load(&self, trust: &Trust) -> Result<(), OptionsError> {
        if let Some(path) = &self.client_ca {
            trust.set_client_ca(ca(path)?);
        }
        if let Some((path, allowed_names, names)) = &self.request_header {
            let (allowed_names, names) = (allowed_names.clone(), names.clone());
            trust.set_request_header(RequestHeaderTrust { ca: ca(path)?, allowed_names, names });
        }
        Ok(())
    }
}

fn ca(path: &std::path::Path) -> Result<CaBundle, OptionsError> {
    let wrap = |why: String| OptionsError::Ca { path: path.to_owned(), why };
    let pem = std::fs::read(path).map_err(|error| wrap(error.to_string()))?;
    CaBundle::from_pem(&pem).map_err(|error| wrap(error.to_string()))
}
