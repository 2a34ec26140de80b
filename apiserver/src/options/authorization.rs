//! Who may do what (k8s.io/apiserver `pkg/server/options/authorization.go`).

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::Args;

use super::{OptionsError, duration};
use crate::{
    authorization::{
        AlwaysAllowPaths, Authorizer, PrivilegedGroups, SYSTEM_MASTERS, Union, delegated::DelegatedAuthorizer,
    },
    delegation,
};

/// How long one SubjectAccessReview may take.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);

/// Who may do what.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Authorization")]
pub struct DelegatingAuthorizationOptions {
    /// The kubeconfig of the cluster that is asked who may do what (with the right to create
    /// subjectaccessreviews.authorization.k8s.io). Without it, the cluster in whose pod this runs.
    #[arg(long, value_name = "FILE")]
    pub authorization_kubeconfig: Option<PathBuf>,

    /// How long permissions are remembered.
    #[arg(long, default_value = "10s", value_parser = duration::parse, value_name = "DURATION")]
    pub authorization_webhook_cache_authorized_ttl: Duration,

    /// How long refusals are remembered.
    #[arg(long, default_value = "10s", value_parser = duration::parse, value_name = "DURATION")]
    pub authorization_webhook_cache_unauthorized_ttl: Duration,

    /// Paths that everybody may read, separated by commas; a * at the end stands for anything.
    #[arg(long, value_delimiter = ',', default_value = "/healthz,/readyz,/livez", value_name = "PATHS")]
    pub authorization_always_allow_paths: Vec<String>,
}

// === impl DelegatingAuthorizationOptions ===

impl DelegatingAuthorizationOptions {
    pub(super) fn validate(&self, errors: &mut Vec<String>) {
        if let Err(error) = AlwaysAllowPaths::new(&self.authorization_always_allow_paths) {
            errors.push(error.to_string());
        }
    }

    /// The answers that need no cluster.
    pub(super) fn local(&self) -> Result<Vec<Arc<dyn Authorizer>>, OptionsError> {
        let paths = AlwaysAllowPaths::new(&self.authorization_always_allow_paths)
            .map_err(|error| OptionsError::Invalid(vec![error.to_string()]))?;
        Ok(vec![Arc::new(PrivilegedGroups::new([SYSTEM_MASTERS])), Arc::new(paths)])
    }

    /// Makes the authorizer.
    pub(super) async fn authorizer(&self) -> Result<Arc<dyn Authorizer>, OptionsError> {
        let client = delegation::client(self.authorization_kubeconfig.as_deref())
            .await
            .map_err(|error| OptionsError::Delegation { flag: "--authorization-kubeconfig", error })?;
        let mut authorizers = self.local()?;
        authorizers.push(Arc::new(DelegatedAuthorizer::new(
            client,
            REVIEW_TIMEOUT,
            self.authorization_webhook_cache_authorized_ttl,
            self.authorization_webhook_cache_unauthorized_ttl,
        )));
        Ok(Arc::new(Union::new(authorizers)))
    }
}
