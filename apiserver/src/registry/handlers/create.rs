//! POST to a collection.

use http::StatusCode;

use super::{Reply, Request, ResourceHandler, read};
use crate::{endpoint::RequestBody, list_options::WriteOptions, negotiate::InputFormat, registry::strategy::Strategy};

impl<S: Strategy> ResourceHandler<S> {
    pub(super) async fn create(&self, request: &Request, body: RequestBody) -> Reply {
        let format = request.output()?;
        let input = InputFormat::negotiate(&request.headers)?;
        let body = read(body).await?;
        let options = WriteOptions::for_create(&request.query)?;
        let object = self.decode(request, &body, input, options.strictness)?;

        let (store, context) = (self.store.clone(), request.context.clone());
        let dry_run = options.dry_run;
        let created = self
            .to_the_end(&request.context, async move {
                let write = super::write(&context, dry_run);
                store.create(&write, object).await
            })
            .await?;
        self.object_reply(request, StatusCode::CREATED, &format, &created)
    }
}
