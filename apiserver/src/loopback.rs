//! A client for the server itself, without a network in between: for admission plugins and controllers that live inside
//! (k8s.io/apiserver `pkg/server/config_selfclient.go`).
//!
//! Requests go through the whole chain, from their path to the metrics, as the user `system:apiserver` of the group
//! `system:masters`.

use std::{
    convert::Infallible,
    sync::{Arc, OnceLock, Weak},
};

use http::{HeaderMap, Request, Response};
use kube::client::Body;

use crate::{
    endpoint::{Delivery, RequestBody, ResponseBody, response},
    server::chain::{Handler, Origin},
    status::Status,
};

/// The way to a server's own handler. It may be handed out before there is one; clones are the same way.
#[derive(Clone, Default)]
pub struct Loopback {
    handler: Arc<OnceLock<Weak<Handler>>>,
}

// === impl Loopback ===

impl Loopback {
    /// A client whose default namespace is `default`. Must be called within a tokio runtime.
    pub fn client(&self) -> kube::Client {
        let handler = self.handler.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let handler = handler.get().and_then(Weak::upgrade);
            async move { Ok::<_, Infallible>(send(handler, request).await) }
        });
        kube::Client::new(service, "default")
    }

    pub(crate) fn connect(&self, handler: &Arc<Handler>) {
        // A second server on the same way is impossible: a configuration makes one.
        let _ = self.handler.set(Arc::downgrade(handler));
    }
}

async fn send(handler: Option<Arc<Handler>>, request: Request<Body>) -> Response<ResponseBody> {
    match handler {
        Some(handler) => {
            // Nobody needs to end this way: who asks has the answer itself in hand.
            let delivery = Delivery::default();
            handler.handle(Arc::new(Origin::loopback()), delivery, request.map(RequestBody::new)).await
        }
        None => {
            let status = Status::service_unavailable("the server does not run yet, or not any more");
            response::status(&HeaderMap::new(), None, &status)
        }
    }
}
