//! Kinds and their versions: how an object comes from and goes to the wire.
//!
//! Every conversion goes through the hub version, defaulting happens on external versions only, and which conversions
//! exist is a matter of types: [`KindBuilder::version`] does not compile for a type that cannot be converted.

mod decode;
mod kind;

use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};

pub(crate) use self::decode::strict_message;
pub use self::{
    decode::{DecodeError, Decoded, Strictness},
    kind::{Kind, KindBuilder, NoStorageVersion, StoredError, WithStorageVersion},
};
use crate::meta::Object;

/// An external version of the hub type `H`.
///
/// The type has the fields `metadata`, `spec`, … and neither `apiVersion` nor `kind`: the codec writes and reads those.
/// Fields are read leniently where Go's decoder is lenient: `null` counts as absent, so every field wants a default.
pub trait Version<H: Object>: Serialize + DeserializeOwned + JsonSchema + Send + Sync + 'static {
    /// The version's name, for example `v1beta1`.
    const VERSION: &'static str;

    /// Fills in what was left out. Called after each decoding, also of what is read from storage.
    fn set_defaults(&mut self) {}

    /// Converts to the hub version.
    fn into_hub(self) -> H;

    /// Converts from the hub version, which stays as it is.
    fn from_hub(hub: &H) -> Self;
}

#[cfg(test)]
mod tests;
