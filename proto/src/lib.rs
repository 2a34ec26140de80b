//! Protocol buffers of etcd v3 and of the restaurant group.
//!
//! The etcd packages carry the messages, fields and services of etcd 3.7 under the same names
//! and numbers; `tests/drift.rs` holds them against etcd's own. Every `bytes` field is a
//! [`bytes::Bytes`], which on decoding is a slice of the receive buffer and no copy.
//!
//! Decoding drops fields that are unknown here (prost keeps none). Who passes messages on has to
//! look for them in the encoded form first.

mod generated {
    #![allow(missing_docs, unreachable_pub, clippy::all, clippy::unwrap_used, clippy::expect_used)]
    include!(concat!(env!("OUT_DIR"), "/packages.rs"));
}
mod redact;
#[cfg(test)]
mod tests;

/// Descriptors of all packages of this crate as an encoded `google.protobuf.FileDescriptorSet`,
/// imports included, without comments.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The services and messages that etcd's clients use.
///
/// For service `KV` there are `kv_server::{Kv, KvServer}` and `kv_client::KvClient`, and so on.
pub mod etcdserverpb {
    pub use crate::generated::etcdserverpb::*;
}

/// Key-value pairs and events.
pub mod mvccpb {
    pub use crate::generated::mvccpb::*;
}

/// etcd's users, roles and permissions.
pub mod authpb {
    pub use crate::generated::authpb::*;
}

/// The lock service.
pub mod v3lockpb {
    pub use crate::generated::v3lockpb::*;
}

/// The election service.
pub mod v3electionpb {
    pub use crate::generated::v3electionpb::*;
}

/// Metadata of objects and lists, and conditions, as Kubernetes adds them to the objects of every
/// group (`k8s.io/apimachinery/pkg/apis/meta/v1/generated.proto`).
pub mod meta_v1 {
    pub use crate::generated::k8s::io::apimachinery::pkg::apis::meta::v1::*;
}

/// The group `restaurant.programming-kubernetes.info`.
pub mod restaurant {
    /// Toppings by name, repeated for an extra portion.
    pub mod v1alpha1 {
        pub use crate::generated::restaurant::v1alpha1::*;
    }

    /// Toppings with a quantity.
    pub mod v1beta1 {
        pub use crate::generated::restaurant::v1beta1::*;
    }
}
