//! gRPC reflection: the descriptors of what is served here, and of nothing else.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::{Frame, SizeHint};
use prost::Message as _;
use prost_types::FileDescriptorSet;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, body::Body};
use tonic_reflection::server::Builder;
use tower::{Service as _, util::BoxCloneSyncService};

use crate::{grpc::until_closing::UntilClosing, metrics::Call, unknown::SchemaError};

/// A version of the reflection service.
pub(super) type Reflection = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

/// Paths and services of both versions. Most clients ask for the newer one first, older ones know only the other.
pub(super) fn services(serves: impl Fn(&str) -> bool) -> Result<[(&'static str, Reflection); 2], SchemaError> {
    let malformed = |error: &dyn std::fmt::Display| SchemaError::Reflection(error.to_string());
    let etcd = FileDescriptorSet::decode(proto::FILE_DESCRIPTOR_SET)?;
    let etcd = described(etcd, serves);
    let builder = || {
        Builder::configure()
            .register_file_descriptor_set(etcd.clone())
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let v1 = builder().build_v1().map_err(|error| malformed(&error))?;
    let v1alpha = builder().build_v1alpha().map_err(|error| malformed(&error))?;
    Ok([
        ("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", BoxCloneSyncService::new(v1)),
        ("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", BoxCloneSyncService::new(v1alpha)),
    ])
}

/// The files with services that are served, and those that they import.
fn described(set: FileDescriptorSet, serves: impl Fn(&str) -> bool) -> FileDescriptorSet {
    let mut wanted: Vec<String> = Vec::new();
    for file in &set.file {
        let package = file.package();
        if file.service.iter().any(|service| serves(&format!("{package}.{}", service.name()))) {
            wanted.push(file.name().to_owned());
        }
    }
    let mut next = 0;
    while let Some(name) = wanted.get(next).cloned() {
        next += 1;
        let imports = set.file.iter().filter(|file| file.name() == name).flat_map(|file| &file.dependency);
        let new: Vec<String> = imports.filter(|import| !wanted.contains(import)).cloned().collect();
        wanted.extend(new);
    }
    let file = set.file.into_iter().filter(|file| wanted.iter().any(|wanted| wanted == file.name())).collect();
    FileDescriptorSet { file }
}

/// Answers a call, which ends at the latest with the process.
pub(super) async fn serve(
    reflection: &Reflection,
    request: Request<Body>,
    call: Call,
    stop: CancellationToken,
) -> Response<Body> {
    let response = match reflection.clone().call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    response.map(|body| {
        let mut counted = Counted { body: UntilClosing::new(body, stop), call };
        // A refusal has its status in the headers and no body.
        if http_body::Body::is_end_stream(&counted) {
            counted.call.end(Code::Unknown);
        }
        Body::new(counted)
    })
}

/// Counts the end of the call.
struct Counted {
    body: UntilClosing,
    call: Call,
}

impl http_body::Body for Counted {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(status) = frame.trailers_ref().and_then(|trailers| trailers.get(Status::GRPC_STATUS))
        {
            self.call.end(Code::from_bytes(status.as_bytes()));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_served_is_described() {
        let all = FileDescriptorSet::decode(proto::FILE_DESCRIPTOR_SET).unwrap();
        let served = described(all.clone(), |service| service == "etcdserverpb.KV");
        let names: Vec<&str> = served.file.iter().map(|file| file.package()).collect();
        assert!(names.contains(&"mvccpb") && names.contains(&"etcdserverpb"), "{names:?}");
        assert!(!names.iter().any(|name| name.contains("restaurant") || *name == "v3lockpb"), "{names:?}");
        for file in &served.file {
            for import in &file.dependency {
                assert!(served.file.iter().any(|file| file.name() == import), "{import}");
            }
        }
        assert!(served.file.len() < all.file.len());
    }
}
