//! The group of Go's sample-apiserver, wardle.example.com with its flunders, on this project's library: the same
//! kinds, versions and fields, so that both can be asked the same and answer as much.

use std::{process::ExitCode, sync::Arc};

use anyhow::Context as _;
use apiserver::{
    admission::{Plugins, namespace_lifecycle::NamespaceLifecycle},
    endpoint::ApiGroup,
    meta::{Object, ObjectMeta, ResourceNames, Scope},
    options::{RecommendedConfig, RecommendedOptions},
    registry::{Environment, ResourceHandler, Store, Strategy},
    scheme::{Kind, Version},
    server::{PreparedServer, VersionInfo, shutdown_signal},
    table::Column,
    validation::{ErrorList, FieldError, Path},
};
use async_trait::async_trait;
use clap::Parser;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tracing_subscriber::EnvFilter;

const GROUP: &str = "wardle.example.com";

const FLUNDER: &str = "Flunder";
const FISCHER: &str = "Fischer";

/// Serves wardle.example.com, for measurements beside Go's sample-apiserver.
#[derive(Parser)]
#[command(name = "wardle", max_term_width = 120)]
struct Arguments {
    #[command(flatten)]
    options: RecommendedOptions,
}

/// A flunder as the server works with it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Flunder {
    metadata: ObjectMeta,
    flunder_reference: String,
    fischer_reference: String,
    reference_type: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
struct FlunderStatus {}

mod v1alpha1 {
    use super::{Deserialize, FlunderStatus, JsonSchema, ObjectMeta, Serialize};

    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default)]
    pub(super) struct Flunder {
        pub(super) metadata: ObjectMeta,
        pub(super) spec: FlunderSpec,
        pub(super) status: FlunderStatus,
    }

    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, rename_all = "camelCase")]
    pub(super) struct FlunderSpec {
        /// A name of another flunder or fischer, depending on the reference type.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub(super) reference: String,
        /// What is referred to; a flunder unless it says otherwise.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub(super) reference_type: String,
    }
}

mod v1beta1 {
    use super::{Deserialize, FlunderStatus, JsonSchema, ObjectMeta, Serialize};

    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default)]
    pub(super) struct Flunder {
        pub(super) metadata: ObjectMeta,
        pub(super) spec: FlunderSpec,
        pub(super) status: FlunderStatus,
    }

    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default, rename_all = "camelCase")]
    pub(super) struct FlunderSpec {
        /// A name of another flunder.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub(super) flunder_reference: String,
        /// A name of a fischer.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub(super) fischer_reference: String,
        /// What is referred to.
        #[serde(skip_serializing_if = "String::is_empty")]
        pub(super) reference_type: String,
    }
}

#[derive(Clone, Copy, Debug)]
struct Flunders;

// === impl Flunder ===

impl Object for Flunder {
    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl Version<Flunder> for v1alpha1::Flunder {
    const VERSION: &'static str = "v1alpha1";

    fn set_defaults(&mut self) {
        if self.spec.reference_type.is_empty() && !self.spec.reference.is_empty() {
            self.spec.reference_type = FLUNDER.to_owned();
        }
    }

    fn into_hub(self) -> Flunder {
        let reference = self.spec.reference;
        let (flunder_reference, fischer_reference) =
            if self.spec.reference_type == FISCHER { (String::new(), reference) } else { (reference, String::new()) };
        let reference_type = self.spec.reference_type;
        Flunder { metadata: self.metadata, flunder_reference, fischer_reference, reference_type }
    }

    fn from_hub(hub: &Flunder) -> Self {
        let reference = if hub.reference_type == FISCHER { &hub.fischer_reference } else { &hub.flunder_reference };
        let spec = v1alpha1::FlunderSpec { reference: reference.clone(), reference_type: hub.reference_type.clone() };
        Self { metadata: hub.metadata.clone(), spec, status: FlunderStatus {} }
    }
}

impl Version<Flunder> for v1beta1::Flunder {
    const VERSION: &'static str = "v1beta1";

    fn into_hub(self) -> Flunder {
        let v1beta1::FlunderSpec { flunder_reference, fischer_reference, reference_type } = self.spec;
        Flunder { metadata: self.metadata, flunder_reference, fischer_reference, reference_type }
    }

    fn from_hub(hub: &Flunder) -> Self {
        let hub = hub.clone();
        let spec = v1beta1::FlunderSpec {
            flunder_reference: hub.flunder_reference,
            fischer_reference: hub.fischer_reference,
            reference_type: hub.reference_type,
        };
        Self { metadata: hub.metadata, spec, status: FlunderStatus {} }
    }
}

// === impl Flunders ===

#[async_trait]
impl Strategy for Flunders {
    type Object = Flunder;

    fn names(&self) -> ResourceNames {
        ResourceNames {
            plural: "flunders",
            singular: "flunder",
            kind: FLUNDER,
            short_names: &[],
            categories: &[],
            scope: Scope::Namespaced,
        }
    }

    // sample-apiserver `pkg/apis/wardle/validation/validation.go`.
    fn validate(&self, object: &Flunder) -> ErrorList {
        let at = Path::new("spec");
        let (flunder, fischer) = (!object.flunder_reference.is_empty(), !object.fischer_reference.is_empty());
        let kind = object.reference_type.as_str();
        let mut errors = ErrorList::new();
        let mut invalid = |field: &str, value: &str, why: &str| {
            errors.push(FieldError::invalid(&at.child(field), value, why));
        };
        if flunder && fischer {
            let why = "cannot be set with flunderReference at the same time";
            invalid("fischerReference", &object.fischer_reference, why);
        } else if flunder && kind != FLUNDER {
            invalid("flunderReference", &object.flunder_reference, "cannot be set if referenceType is not Flunder");
        } else if fischer && kind != FISCHER {
            invalid("fischerReference", &object.fischer_reference, "cannot be set if referenceType is not Fischer");
        } else if !fischer && kind == FISCHER {
            invalid("fischerReference", "", "cannot be empty if referenceType is Fischer");
        } else if !flunder && kind == FLUNDER {
            invalid("flunderReference", "", "cannot be empty if referenceType is Flunder");
        }
        if !["", FLUNDER, FISCHER].contains(&kind) {
            invalid("referenceType", kind, "must be Flunder or Fischer");
        }
        errors
    }

    fn validate_update(&self, _object: &Flunder, _old: &Flunder) -> ErrorList {
        ErrorList::new()
    }

    fn columns(&self) -> Vec<Column> {
        vec![Column::name()]
    }

    fn row(&self, object: &Flunder) -> Vec<Value> {
        vec![json!(object.metadata.name.as_deref().unwrap_or_default())]
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(std::io::stderr).init();
    match run(&arguments.options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The log is where its keeper looks.
            let _ = std::io::Write::write_all(&mut std::io::stderr(), format!("error: {error:#}\n").as_bytes());
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn run(options: &RecommendedOptions) -> anyhow::Result<()> {
    let shutdown = shutdown_signal()?;
    server(options).await.context("wardle")?.run(shutdown).await?;
    Ok(())
}

async fn server(options: &RecommendedOptions) -> anyhow::Result<PreparedServer> {
    let RecommendedConfig { mut config, storage, cluster, min_watch_timeout, .. } =
        options.config(VersionInfo::of_crate(env!("CARGO_PKG_VERSION"))).await?;
    let (authorizer, tasks) = (config.authorizer_handle(), config.tasks().clone());
    let mut plugins = Plugins::default();
    let mut namespaces = None;
    if let Some(client) = cluster {
        let (lifecycle, cache) = NamespaceLifecycle::new(client);
        config = config.readiness_check(lifecycle.check());
        plugins = plugins.on(lifecycle);
        namespaces = Some(cache);
    }
    let admission = Arc::new(options.admission.chain(plugins)?);
    let environment = Environment { storage, admission, authorizer, tasks, min_request_timeout: min_watch_timeout };
    // Stored in v1alpha1, as there.
    let kind = Kind::<Flunder>::builder(GROUP, FLUNDER)
        .storage_version::<v1alpha1::Flunder>()
        .version::<v1beta1::Flunder>()
        .build();
    let mut server = config.complete().server();
    server.install(ApiGroup {
        name: GROUP.to_owned(),
        versions: vec!["v1beta1".to_owned(), "v1alpha1".to_owned()],
        endpoints: vec![Arc::new(ResourceHandler::over(Store::new(kind, Flunders, environment)))],
    })?;
    server.add_post_start_hook("start-wardle-informers", move |context| async move {
        if let Some(namespaces) = namespaces {
            context.tasks.spawn(namespaces.run(context.stop.clone()));
        }
        Ok(())
    });
    Ok(server.prepare()?)
}
