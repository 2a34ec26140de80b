//! Topping in v1alpha1 and v1beta1, which have one shape.

/// Makes a version of the topping. Both are types of their own, so that either can change alone.
macro_rules! version {
    ($module:ident, $name:literal) => {
        #[doc = concat!("Topping in ", $name, ".")]
        pub mod $module {
            use apiserver::{meta::ObjectMeta, scheme::Version};
            use schemars::JsonSchema;
            use serde::{Deserialize, Serialize};

            /// Topping is what can go on a pizza.
            #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
            #[serde(default)]
            pub struct Topping {
                /// Standard object's metadata.
                pub metadata: ObjectMeta,
                /// What the restaurant charges.
                pub spec: ToppingSpec,
            }

            /// ToppingSpec is what the restaurant charges.
            #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
            #[serde(default)]
            pub struct ToppingSpec {
                /// The cost of one portion.
                #[serde(with = "apiserver::number")]
                #[schemars(with = "f64")]
                pub cost: f64,
            }

            impl Version<crate::topping::Topping> for Topping {
                const VERSION: &'static str = $name;

                fn into_hub(self) -> crate::topping::Topping {
                    let spec = crate::topping::ToppingSpec { cost: self.spec.cost };
                    crate::topping::Topping { metadata: self.metadata, spec }
                }

                fn from_hub(hub: &crate::topping::Topping) -> Self {
                    Self { metadata: hub.metadata.clone(), spec: ToppingSpec { cost: hub.spec.cost } }
                }
            }
        }
    };
}

version!(v1alpha1, "v1alpha1");
version!(v1beta1, "v1beta1");
