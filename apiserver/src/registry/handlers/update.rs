//! PUT of an object, or of its status.

use http::StatusCode;

use super::{Reply, Request, ResourceHandler, check_name, read};
use crate::{
    endpoint::RequestBody,
    list_options::WriteOptions,
    meta::{Object as _, Scope},
    negotiate::InputFormat,
    registry::{
        metadata::{self, Stage},
        store::Preconditions,
        strategy::Strategy,
    },
};

impl<S: Strategy> ResourceHandler<S> {
    pub(super) async fn update(&self, request: &Request, body: RequestBody) -> Reply {
        let format = request.output()?;
        let body = read(body).await?;
        let options = WriteOptions::for_update(&request.query)?;
        let input = InputFormat::negotiate(&request.headers)?;
        let mut object = self.decode(request, &body, input, options.strictness)?;

        let info = &request.context.info;
        let namespace = match self.description.names.scope {
            Scope::Namespaced => info.namespace.as_str(),
            Scope::Cluster => "",
        };
        metadata::ensure_namespace(namespace, object.metadata_mut())?;
        check_name(&object, &info.name)?;
        if let Some(warning) = metadata::deduplicate_owner_references(object.metadata_mut(), Stage::Request) {
            request.context.warnings.add(warning);
        }

        let (store, context) = (self.store.clone(), request.context.clone());
        let dry_run = options.dry_run;
        let updated = self
            .to_the_end(&request.context, async move {
                let write = super::write(&context, dry_run);
                let uid = object.metadata().uid.clone().filter(|uid| !uid.is_empty());
                let preconditions = Preconditions { uid, resource_version: None };
                store.update(&write, &context.info.name, &preconditions, |_| Ok(object.clone())).await
            })
            .await?;
        let code = if updated.created { StatusCode::CREATED } else { StatusCode::OK };
        self.object_reply(request, code, &format, &updated.object)
    }
}
