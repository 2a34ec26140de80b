//! GET of a collection.

use super::{Reply, Request, ResourceHandler};
use crate::{list_options::ListOptions, registry::strategy::Strategy, selector::FieldSelector, status::Status};

impl<S: Strategy> ResourceHandler<S> {
    pub(super) async fn list(&self, request: &Request) -> Reply {
        let format = request.output()?;
        let options = list_options(request)?;
        let list = self.store.list(&request.context.info.namespace, &options).await?;
        self.list_reply(request, &format, &list).await
    }
}

/// The options of a list or watch. A name in the path narrows it to one object.
///
/// # Errors
/// 400 and 422 for options that make no sense.
pub(super) fn list_options(request: &Request) -> Result<ListOptions, Status> {
    let mut options = ListOptions::parse(&request.query)?;
    let name = request.context.info.name.as_str();
    if !name.is_empty() {
        if options.field_selector.is_empty() {
            options.field_selector = FieldSelector::one("metadata.name", name);
        } else if options.field_selector.requires_exact("metadata.name") != Some(name) {
            return Err(Status::bad_request("fieldSelector metadata.name doesn't match requested name"));
        }
    }
    Ok(options)
}
