//! DELETE of an object or of a collection.

use http::StatusCode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::DeleteOptions;
use tokio_util::sync::CancellationToken;

use super::{Reply, Request, ResourceHandler, read};
use crate::{
    endpoint::{RequestBody, response},
    list_options::{self, ListOptions},
    meta::Object as _,
    registry::strategy::Strategy,
    status::Status,
};

impl<S: Strategy> ResourceHandler<S> {
    pub(super) async fn delete(&self, request: &Request, body: RequestBody) -> Reply {
        let format = request.output()?;
        let options = self.delete_options(request, body).await?;

        let (store, context) = (self.store.clone(), request.context.clone());
        let asked_not_to_orphan = options.orphan_dependents == Some(false);
        let deleted = self
            .to_the_end(&request.context, async move {
                let write = super::write(&context, is_dry_run(&options));
                store.delete(&write, &context.info.name, &options).await
            })
            .await?;
        if !deleted.gone {
            let code = if asked_not_to_orphan { StatusCode::ACCEPTED } else { StatusCode::OK };
            return self.object_reply(request, code, &format, &deleted.object);
        }
        let meta = deleted.object.metadata();
        let name = meta.name.as_deref().unwrap_or_default();
        let status = Status::success(self.store.resource(), name, meta.uid.as_deref());
        Ok(response::json(StatusCode::OK, &format, &request.headers, status.to_json()))
    }

    pub(super) async fn delete_collection(&self, request: &Request, body: RequestBody) -> Reply {
        let format = request.output()?;
        let list = ListOptions::parse(&request.query)?;
        let options = self.delete_options(request, body).await?;

        let (store, context) = (self.store.clone(), request.context.clone());
        // When the client goes away the rest of the collection stays; the deletion on its way comes to its end.
        let gone = CancellationToken::new();
        let (_guard, cancelled) = (gone.clone().drop_guard(), gone);
        let tasks = &self.store.environment().tasks;
        let task = tasks.spawn(async move {
            let write = super::write(&context, is_dry_run(&options));
            store.delete_collection(&write, &options, &list, &cancelled).await
        });
        let collected = task.await.map_err(|error| {
            tracing::error!(%error, "the deletion of a collection ended abnormally");
            Status::internal_error("the deletion ended abnormally")
        })??;
        self.list_reply(request, &format, &collected).await
    }

    /// The options in the body, or, when there is none, in the query.
    async fn delete_options(&self, request: &Request, body: RequestBody) -> Result<DeleteOptions, Status> {
        let body = read(body).await?;
        list_options::delete_options(&request.headers, &request.query, &body)
    }
}

fn is_dry_run(options: &DeleteOptions) -> bool {
    options.dry_run.as_ref().is_some_and(|values| !values.is_empty())
}
