//! A kind to test with: two versions, a `/status`, a generation.

use apiserver::{
    meta::{Object, ObjectMeta, ResourceNames, Scope},
    registry::{StatusStrategy, Strategy},
    request::RequestContext,
    scheme::{Kind, Version},
    status::Status,
    table::Column,
    validation::{ErrorList, FieldError, Path},
};
use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub(crate) const GROUP: &str = "wardle.example.com";

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Flunder {
    pub(crate) metadata: ObjectMeta,
    pub(crate) reference: String,
    pub(crate) size: i64,
    pub(crate) phase: String,
}

impl Object for Flunder {
    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct FlunderStatus {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) phase: String,
}

/// In v1alpha1 the size is a text of as many `x`.
pub(crate) mod v1alpha1 {
    use super::*;

    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default)]
    pub(crate) struct Flunder {
        pub(crate) metadata: ObjectMeta,
        pub(crate) spec: FlunderSpec,
        pub(crate) status: FlunderStatus,
    }

    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default)]
    pub(crate) struct FlunderSpec {
        #[serde(skip_serializing_if = "String::is_empty")]
        pub(crate) reference: String,
        #[serde(skip_serializing_if = "String::is_empty")]
        pub(crate) width: String,
    }

    impl Version<super::Flunder> for Flunder {
        const VERSION: &'static str = "v1alpha1";

        fn set_defaults(&mut self) {
            if self.spec.width.is_empty() {
                self.spec.width = "x".to_owned();
            }
        }

        fn into_hub(self) -> super::Flunder {
            super::Flunder {
                metadata: self.metadata,
                reference: self.spec.reference,
                size: self.spec.width.len() as i64,
                phase: self.status.phase,
            }
        }

        fn from_hub(hub: &super::Flunder) -> Self {
            Self {
                metadata: hub.metadata.clone(),
                spec: FlunderSpec { reference: hub.reference.clone(), width: "x".repeat(hub.size as usize) },
                status: FlunderStatus { phase: hub.phase.clone() },
            }
        }
    }
}

pub(crate) mod v1beta1 {
    use super::*;

    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default)]
    pub(crate) struct Flunder {
        pub(crate) metadata: ObjectMeta,
        pub(crate) spec: FlunderSpec,
        pub(crate) status: FlunderStatus,
    }

    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
    #[serde(default)]
    pub(crate) struct FlunderSpec {
        #[serde(skip_serializing_if = "String::is_empty")]
        pub(crate) reference: String,
        pub(crate) size: i64,
    }

    impl Version<super::Flunder> for Flunder {
        const VERSION: &'static str = "v1beta1";

        fn set_defaults(&mut self) {
            if self.spec.size == 0 {
                self.spec.size = 1;
            }
        }

        fn into_hub(self) -> super::Flunder {
            super::Flunder {
                metadata: self.metadata,
                reference: self.spec.reference,
                size: self.spec.size,
                phase: self.status.phase,
            }
        }

        fn from_hub(hub: &super::Flunder) -> Self {
            Self {
                metadata: hub.metadata.clone(),
                spec: FlunderSpec { reference: hub.reference.clone(), size: hub.size },
                status: FlunderStatus { phase: hub.phase.clone() },
            }
        }
    }
}

pub(crate) fn kind() -> Kind<Flunder> {
    Kind::<Flunder>::builder(GROUP, "Flunder")
        .storage_version::<v1beta1::Flunder>()
        .version::<v1alpha1::Flunder>()
        .build()
}

/// How flunders behave; the switches are those that a strategy has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flunders {
    pub(crate) scope: Scope,
    pub(crate) create_on_update: bool,
    pub(crate) unconditional_update: bool,
    pub(crate) without_generation: bool,
}

impl Default for Flunders {
    fn default() -> Self {
        Self {
            scope: Scope::Namespaced,
            create_on_update: false,
            unconditional_update: false,
            without_generation: false,
        }
    }
}

#[async_trait]
impl Strategy for Flunders {
    type Object = Flunder;

    fn names(&self) -> ResourceNames {
        ResourceNames {
            plural: "flunders",
            singular: "flunder",
            kind: "Flunder",
            short_names: &["fl"],
            categories: &[],
            scope: self.scope,
        }
    }

    async fn prepare_for_create(&self, _context: &RequestContext, object: &mut Flunder) -> Result<(), Status> {
        object.phase = "New".to_owned();
        Ok(())
    }

    fn validate(&self, object: &Flunder) -> ErrorList {
        let mut errors = ErrorList::new();
        if object.size < 0 {
            let path = Path::new("spec").child("size");
            errors.push(FieldError::invalid(&path, object.size, "must not be negative"));
        }
        errors
    }

    fn status(&self) -> Option<&dyn StatusStrategy<Flunder>> {
        Some(self)
    }

    fn generation_changes(&self, object: &Flunder, old: &Flunder) -> Option<bool> {
        (!self.without_generation).then_some((&object.reference, object.size) != (&old.reference, old.size))
    }

    async fn warnings_on_delete(&self, _context: &RequestContext, object: &Flunder) -> Vec<String> {
        if object.reference == "in use" { vec!["it was in use".to_owned()] } else { Vec::new() }
    }

    fn warnings(&self, object: &Flunder) -> Vec<String> {
        if object.reference == "deprecated" { vec!["spec.reference: deprecated".to_owned()] } else { Vec::new() }
    }

    fn allow_create_on_update(&self) -> bool {
        self.create_on_update
    }

    fn allow_unconditional_update(&self) -> bool {
        self.unconditional_update
    }

    fn columns(&self) -> Vec<Column> {
        vec![Column::name(), Column::string("Size", "How large it is.")]
    }

    fn row(&self, object: &Flunder) -> Vec<Value> {
        vec![json!(object.metadata.name.as_deref().unwrap_or_default()), json!(object.size.to_string())]
    }
}

impl StatusStrategy<Flunder> for Flunders {
    fn keep_status(&self, object: &mut Flunder, old: Option<&Flunder>) {
        object.phase = old.map(|o| o.phase.clone()).unwrap_or_default();
    }

    fn keep_all_but_status(&self, object: &mut Flunder, old: &Flunder) {
        let phase = std::mem::take(&mut object.phase);
        *object = Flunder { phase, ..old.clone() };
    }

    fn validate(&self, object: &Flunder, _old: &Flunder) -> ErrorList {
        let mut errors = ErrorList::new();
        if object.phase == "impossible" {
            errors.push(FieldError::forbidden(&Path::new("status").child("phase"), "that cannot be"));
        }
        errors
    }
}
