//! gRPC reflection: the descriptors of what is served here, and of nothing else.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use prost::Message as _;
use prost_types::FileDescriptorSet;
use tokio_util::sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned};
use tonic::{Code, Status, body::Body};
use tonic_reflection::server::Builder;
use tower::{Service as _, util::BoxCloneSyncService};

use crate::{
    grpc::{
        Deadline, Fault, Patient, Seen,
        until_closing::UntilClosing,
        until_end::{OnEnd, watched},
    },
    health,
    metrics::Call,
    tenant::Tenant,
    unknown::SchemaError,
};

/// A version of the reflection service.
#[derive(Debug)]
pub(super) struct Reflection {
    service: BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>,
    /// Full name of its requests.
    request: &'static str,
}

/// Paths and services of both versions. Most clients ask for the newer one first, older ones know only the other.
pub(super) fn services(serves: impl Fn(&str) -> bool) -> Result<[(&'static str, Reflection); 2], SchemaError> {
    let malformed = |error: &dyn std::fmt::Display| SchemaError::Reflection(error.to_string());
    let etcd = FileDescriptorSet::decode(proto::FILE_DESCRIPTOR_SET)?;
    let etcd = described(etcd, serves);
    let health = health::descriptors()?;
    let builder =
        || Builder::configure().register_file_descriptor_set(etcd.clone()).register_file_descriptor_set(health.clone());
    let v1 = builder().build_v1().map_err(|error| malformed(&error))?;
    let v1alpha = builder().build_v1alpha().map_err(|error| malformed(&error))?;
    Ok([
        (
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            Reflection { service: BoxCloneSyncService::new(v1), request: "grpc.reflection.v1.ServerReflectionRequest" },
        ),
        (
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            Reflection {
                service: BoxCloneSyncService::new(v1alpha),
                request: "grpc.reflection.v1alpha.ServerReflectionRequest",
            },
        ),
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

/// The requests of a call, up to the end of its answers: the service has a task for them that would go on otherwise, in no
/// place of the tenant's.
struct Requests {
    /// Gone once the call is over.
    seen: Option<Seen>,
    over: Pin<Box<WaitForCancellationFutureOwned>>,
    tenant: Tenant,
    /// Whether they count against the tenant's rate of requests.
    limited: bool,
    /// One that waits for its turn.
    waiting: Option<(Frame<Bytes>, Turn)>,
}

type Turn = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What ends with the answers.
struct Answers {
    call: Call,
    requests: Option<DropGuard>,
}

/// Answers a call, which ends at the latest with the process.
pub(super) async fn serve(
    reflection: &Reflection,
    request: Request<Body>,
    deadline: Deadline,
    call: Call,
    tenant: &Tenant,
    limited: bool,
) -> Response<Body> {
    let (mut fault, over) = (Fault::default(), CancellationToken::new());
    let request = request.map(|body| {
        let seen = Seen::new(body, reflection.request);
        fault = seen.fault();
        let over = Box::pin(over.clone().cancelled_owned());
        Body::new(Requests { seen: Some(seen), over, tenant: tenant.clone(), limited, waiting: None })
    });
    let answers = Answers { call, requests: Some(over.drop_guard()) };
    let response = match reflection.service.clone().call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    let stop = tenant.stop().clone();
    // The service ends well with whatever request it cannot read.
    let response = watched(response.map(|body| UntilClosing::new(body, stop, deadline).unless(fault)), answers);
    response.map(|body| Body::new(Patient::new(body, tenant.stream_patience())))
}

// === impl Requests ===

impl http_body::Body for Requests {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        if this.over.as_mut().poll(cx).is_ready() {
            (this.seen, this.waiting) = (None, None);
        }
        let Some(seen) = &mut this.seen else { return Poll::Ready(None) };
        if this.waiting.is_none() {
            let frame = match ready!(Pin::new(seen).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                other => return Poll::Ready(other),
            };
            if !frame.is_data() || !this.limited || this.tenant.limits().message() {
                return Poll::Ready(Some(Ok(frame)));
            }
            let tenant = this.tenant.clone();
            this.waiting = Some((frame, Box::pin(async move { tenant.limits().turn().await })));
        }
        if let Some((_, turn)) = &mut this.waiting {
            ready!(turn.as_mut().poll(cx));
        }
        Poll::Ready(this.waiting.take().map(|(frame, _)| Ok(frame)))
    }
}

// === impl Answers ===

impl OnEnd for Answers {
    fn end(&mut self, code: Code) {
        self.call.end(code);
        self.requests = None;
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
