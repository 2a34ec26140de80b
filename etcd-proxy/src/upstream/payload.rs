//! What a request upstream carries.

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue,
    header::{CONTENT_TYPE, TE, USER_AGENT},
};
use http_body_util::{BodyExt as _, Full};
use tonic::{Status, body::Body};

/// The body of a request.
#[derive(Debug)]
pub(super) enum Payload {
    /// One frame, which is at hand. Most requests have no other.
    Frame(Bytes),
    /// Whatever comes.
    Body(Body),
}

/// Puts in what all requests to an etcd have in common. Late, so that a request which has nothing else of its own is sent
/// again at no cost.
pub(super) fn complete(headers: &mut HeaderMap) {
    headers.insert(CONTENT_TYPE, const { HeaderValue::from_static("application/grpc") });
    headers.insert(TE, const { HeaderValue::from_static("trailers") });
    headers.insert(USER_AGENT, const { HeaderValue::from_static(concat!("etcd-proxy/", env!("CARGO_PKG_VERSION"))) });
}

// === impl Payload ===

impl Payload {
    /// All of it, as one frame of a unary call.
    pub(super) async fn into_frame(self) -> Result<Bytes, Status> {
        match self {
            Self::Frame(frame) => Ok(frame),
            Self::Body(body) => Ok(body.collect().await?.to_bytes()),
        }
    }

    pub(super) fn into_body(self) -> Body {
        match self {
            Self::Frame(frame) => Body::new(Full::new(frame)),
            Self::Body(body) => body,
        }
    }
}
