//! Headers and trailers: what goes upstream of a client's metadata, and statuses.

use std::{pin::Pin, time::Duration};

use http::{
    HeaderMap, HeaderName, HeaderValue, Request, StatusCode,
    header::{CONTENT_TYPE, TE},
};
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};
use tonic::{Code, Status, body::Body};

/// The metadata of a client that goes upstream. `token` and `authorization` are not among it: the tenant is nobody there,
/// the proxy is. Nor is `client-api-version`: etcd makes each value that it meets a label of a metric and never forgets it,
/// so that a tenant could fill the memory that all share.
const FORWARDED: [HeaderName; 3] = [
    // etcd refuses the call without a leader and ends streams when it is lost.
    HeaderName::from_static("hasleader"),
    HeaderName::from_static("grpc-timeout"),
    HeaderName::from_static("traceparent"),
];

/// The headers of an upstream request.
#[derive(Clone, Debug, Default)]
pub struct UpstreamHeaders(HeaderMap);

/// When a call must have ended, by its client's `grpc-timeout`.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Option<Instant>);

/// How far an upstream's clock may be ahead of this one's when both watch over the same deadline.
const TOLERANCE: Duration = Duration::from_millis(20);

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

    /// The same for what goes on without the client: without its deadline, and without its wish for a leader.
    #[must_use]
    pub fn detached(&self) -> Self {
        let mut headers = self.0.clone();
        headers.remove("grpc-timeout");
        headers.remove("hasleader");
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

// === impl Deadline ===

impl Deadline {
    /// None.
    pub const fn never() -> Self {
        Self(None)
    }

    /// The deadline of a call that begins now. A header that is none is no deadline.
    pub fn from_client(client: &HeaderMap) -> Self {
        let timeout = client.get("grpc-timeout").and_then(|value| parse_timeout(value.as_bytes()));
        Self(timeout.and_then(|timeout| Instant::now().checked_add(timeout)))
    }

    /// Does `work` until then. Pinned where it is, since it may be large and would otherwise have two places here.
    ///
    /// # Errors
    /// Those of `work`, and the deadline.
    pub async fn limit<T>(self, work: Pin<&mut impl Future<Output = Result<T, Status>>>) -> Result<T, Status> {
        let Some(deadline) = self.0 else { return work.await };
        match timeout_at(deadline, work).await {
            Ok(result) => result.map_err(|status| self.explain(status)),
            Err(_) => Err(deadline_exceeded()),
        }
    }

    /// What ends a stream at the deadline.
    pub fn sleep(self) -> Option<Sleep> {
        self.0.map(sleep_until)
    }

    /// An upstream that watches over the same deadline resets the stream, which reads as cancelled.
    pub fn explain(self, status: Status) -> Status {
        let passed = self.0.is_some_and(|deadline| Instant::now() + TOLERANCE >= deadline);
        if passed && status.code() == Code::Cancelled { deadline_exceeded() } else { status }
    }
}

/// What grpc-go makes of a deadline.
pub fn deadline_exceeded() -> Status {
    Status::deadline_exceeded("context deadline exceeded")
}

/// At most eight digits and a unit (gRPC over HTTP/2, "Timeout").
fn parse_timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_digits_and_a_unit() {
        assert_eq!(parse_timeout(b"300m"), Some(Duration::from_millis(300)));
        assert_eq!(parse_timeout(b"99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        for bad in ["", "1", "S", "1s", "+1S", "-1S", "100000000S", "1.5S"] {
            assert_eq!(parse_timeout(bad.as_bytes()), None, "{bad}");
        }
    }
}
