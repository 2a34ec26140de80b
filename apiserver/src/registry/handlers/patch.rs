//! PATCH of an object, or of its status: JSON patch and merge patch. Other patch types are 415, on which clients fall
//! back to these.

use bytes::Bytes;
use http::StatusCode;

use super::{Reply, Request, ResourceHandler, check_name, read};
use crate::{
    endpoint::RequestBody,
    list_options::WriteOptions,
    meta::{Object as _, Scope},
    negotiate::PatchType,
    patch,
    registry::{
        metadata,
        store::{Preconditions, Store},
        strategy::Strategy,
    },
    request::RequestContext,
    scheme::Strictness,
    status::Status,
};

/// A patch on its way.
struct Patcher<S: Strategy> {
    store: Store<S>,
    context: RequestContext,
    patch_type: PatchType,
    patch: Bytes,
    strictness: Strictness,
}

impl<S: Strategy> ResourceHandler<S> {
    pub(super) async fn patch(&self, request: &Request, body: RequestBody) -> Reply {
        let patch_type = PatchType::negotiate(&request.headers)?;
        let format = request.output()?;
        let patch = read(body).await?;
        let options = WriteOptions::for_patch(&request.query)?;
        patch::check(&patch)?;

        let patcher = Patcher {
            store: self.store.clone(),
            context: request.context.clone(),
            patch_type,
            patch,
            strictness: options.strictness,
        };
        let dry_run = options.dry_run;
        let updated = self
            .to_the_end(&request.context, async move {
                let write = super::write(&patcher.context, dry_run);
                let name = &patcher.context.info.name;
                let none = Preconditions::default();
                patcher.store.update(&write, name, &none, |current| patcher.apply(current)).await
            })
            .await?;
        self.object_reply(request, StatusCode::OK, &format, &updated.object)
    }
}

impl<S: Strategy> Patcher<S> {
    fn apply(&self, current: Option<&S::Object>) -> Result<S::Object, Status> {
        let info = &self.context.info;
        // A patch never creates.
        let current = current.ok_or_else(|| Status::not_found(self.store.resource(), &info.name))?;
        let kind = self.store.kind();
        let json = kind
            .encode(&info.version, current)
            .map_err(|e| Status::internal_error(format_args!("the object could not be encoded: {e}")))?;
        let decoded = patch::apply(kind, &info.version, self.patch_type, &json, &self.patch, self.strictness)?;
        for warning in decoded.warnings {
            self.context.warnings.add(warning);
        }
        let mut object = decoded.object;
        let namespace = match self.store.strategy().names().scope {
            Scope::Namespaced => info.namespace.as_str(),
            Scope::Cluster => "",
        };
        metadata::ensure_namespace(namespace, object.metadata_mut())?;
        check_name(&object, &info.name)?;
        Ok(object)
    }
}
