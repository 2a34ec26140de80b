//! Discovery and OpenAPI, as paths of the server.

use std::sync::Arc;

use async_trait::async_trait;
use http::{Response, request::Parts};

use super::{PathHandler, Server};
use crate::{
    discovery::Discovery,
    endpoint::ResponseBody,
    openapi::{Info, OpenApi, OpenApiError},
};

/// Why a server cannot be described.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The discovery documents cannot be written.
    #[error("discovery cannot be written: {0}")]
    Discovery(#[from] serde_json::Error),
    /// The OpenAPI documents cannot be written.
    #[error(transparent)]
    OpenApi(#[from] OpenApiError),
    /// The system does not say where the server listens.
    #[error("the address that is listened on is unknown: {0}")]
    Address(std::io::Error),
}

struct DiscoveryPaths(Discovery);
struct OpenApiPaths(OpenApi);

// === impl Server ===

impl Server {
    pub(super) fn add_documents(&mut self) -> Result<(), PrepareError> {
        let address = self.config.serving.listener.local_addr().map_err(PrepareError::Address)?;
        let discovery = Arc::new(DiscoveryPaths(Discovery::new(&self.groups, &address.to_string())?));
        for path in discovery.0.paths().map(str::to_owned).collect::<Vec<_>>() {
            self.handle(&path, discovery.clone());
        }
        let info = Info { title: self.config.title.clone(), version: self.config.version.git_version.clone() };
        let openapi = Arc::new(OpenApiPaths(OpenApi::new(&info, &self.groups)?));
        for path in ["/openapi/v2", "/openapi/v3", "/openapi/v3/"] {
            self.handle(path, openapi.clone());
        }
        Ok(())
    }
}

#[async_trait]
impl PathHandler for DiscoveryPaths {
    async fn serve(&self, request: &Parts) -> Option<Response<ResponseBody>> {
        self.0.respond(request)
    }
}

#[async_trait]
impl PathHandler for OpenApiPaths {
    async fn serve(&self, request: &Parts) -> Option<Response<ResponseBody>> {
        self.0.respond(request)
    }
}
