//! GET of one object, or of its status.

use http::StatusCode;

use super::{Reply, Request, ResourceHandler};
use crate::{
    query,
    registry::{store::parse_resource_version, strategy::Strategy},
    status::Status,
    storage::{Freshness, Revision},
};

impl<S: Strategy> ResourceHandler<S> {
    pub(super) async fn get(&self, request: &Request) -> Reply {
        let format = request.output()?;
        if query::first(&request.query, "export").is_some_and(|v| query::parse_bool(&v) != Some(false)) {
            return Err(Status::bad_request("the export parameter, deprecated since v1.14, is no longer supported"));
        }
        let text = query::first(&request.query, "resourceVersion").unwrap_or_default();
        let at = match (&*text, parse_resource_version(&text)?) {
            ("", _) => Freshness::Latest,
            (_, Revision(0)) => Freshness::Any,
            (_, revision) => Freshness::NotOlderThan(revision),
        };
        let info = &request.context.info;
        let object = self.store.get(&info.namespace, &info.name, at).await?;
        self.object_reply(request, StatusCode::OK, &format, &object)
    }
}
