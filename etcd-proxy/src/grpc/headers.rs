//! Headers and trailers: what goes upstream of a client's metadata, and statuses.

use http::{
    HeaderMap, HeaderName, HeaderValue, Request, StatusCode,
    header::{CONTENT_TYPE, TE},
};
use tonic::{Code, Status, body::Body};

/// The metadata of a client that goes upstream. `token` and `authorization` are not among it: the tenant is nobody there,
/// the proxy is.
const FORWARDED: [HeaderName; 5] = [
    // etcd refuses the call without a leader and ends streams when it is lost.
    HeaderName::from_static("hasleader"),
    HeaderName::from_static("grpc-timeout"),
    // Counted by etcd.
    HeaderName::from_static("client-api-version"),
    HeaderName::from_static("traceparent"),
    HeaderName::from_static("tracestate"),
];

/// The headers of an upstream request.
#[derive(Clone, Debug, Default)]
pub struct UpstreamHeaders(HeaderMap);

// === impl UpstreamHeaders ===

impl UpstreamHeaders {
    /// Picks from a client's headers what goes upstream.
    pub fn from_client(client: &HeaderMap) -> Self {
        let mut headers = HeaderMap::with_capacity(4);
        for name in &FORWARDED {
            for value in client.get_all(name) {
                headers.append(name, value.clone());
            }
        }
        Self(headers)
    }

    /// The upstream request with these headers.
    pub fn request(self, path: &'static str, body: Body) -> Request<Body> {
        let mut request = Request::new(body);
        *request.method_mut() = http::Method::POST;
        *request.version_mut() = http::Version::HTTP_2;
        *request.uri_mut() = http::Uri::from_static(path);
        let headers = request.headers_mut();
        *headers = self.0;
        headers.insert(CONTENT_TYPE, const { HeaderValue::from_static("application/grpc") });
        headers.insert(TE, const { HeaderValue::from_static("trailers") });
        request
    }
}

/// The status that an upstream's headers bring when they come without a message ("Trailers-Only"), or that its HTTP status
/// stands for when it does not speak gRPC.
///
/// # Errors
/// Everything but a response whose messages are still to come.
pub fn check_response(status: StatusCode, headers: &HeaderMap) -> Result<(), Status> {
    match status_of(headers) {
        Some(status) if status.code() == Code::Ok => Ok(()),
        Some(status) => Err(status),
        None if status == StatusCode::OK => Ok(()),
        // The table of "HTTP to gRPC Status Code Mapping" in the gRPC documentation.
        None => {
            let code = match status.as_u16() {
                400 => Code::Internal,
                401 => Code::Unauthenticated,
                403 => Code::PermissionDenied,
                404 => Code::Unimplemented,
                429 | 502 | 503 | 504 => Code::Unavailable,
                _ => Code::Unknown,
            };
            Err(Status::new(code, format!("etcd-proxy: the upstream answers HTTP status {status}")))
        }
    }
}

/// The status in headers or trailers, reduced to what a status is; other metadata of the upstream stays inside.
pub fn status_of(headers: &HeaderMap) -> Option<Status> {
    let found = Status::from_header_map(headers)?;
    Some(Status::with_details(found.code(), found.message(), bytes::Bytes::copy_from_slice(found.details())))
}

/// The trailers that carry `status`.
pub fn trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(3);
    if status.add_header(&mut trailers).is_err() {
        trailers.insert(Status::GRPC_STATUS, const { HeaderValue::from_static("13") });
    }
    trailers
}
