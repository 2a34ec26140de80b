//! Headers and trailers: what goes upstream of a client's metadata, and statuses.

use std::{pin::Pin, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri, uri::PathAndQuery};
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
pub struct UpstreamHeaders {
    map: HeaderMap,
    undecoded: bool,
}

/// An upstream request whose answers nobody here decodes: they are passed on in their encoded form. Those to any other are
/// looked at as they come (see `depth`).
#[derive(Clone, Copy, Debug)]
pub struct Undecoded;

/// When a call must have ended, by its client's `grpc-timeout`.
#[derive(Clone, Copy, Debug)]
pub struct Deadline(Option<Instant>);

/// Of `grpc-status`.
const OK: HeaderValue = HeaderValue::from_static("0");

/// How far an upstream's clock may be ahead of this one's when both watch over the same deadline.
const TOLERANCE: Duration = Duration::from_millis(20);

// === impl UpstreamHeaders ===

impl UpstreamHeaders {
    /// Picks from a client's headers what goes upstream.
    pub fn from_client(client: &HeaderMap) -> Self {
        let mut headers = HeaderMap::new();
        for name in &FORWARDED {
            for value in client.get_all(name) {
                headers.append(name, value.clone());
            }
        }
        Self { map: headers, undecoded: false }
    }

    /// The same for a request whose answers nobody here decodes.
    #[must_use]
    pub fn undecoded(self) -> Self {
        Self { undecoded: true, ..self }
    }

    /// The same for what the client's deadline must not break off.
    #[must_use]
    pub fn without_deadline(&self) -> Self {
        let mut headers = self.clone();
        headers.map.remove("grpc-timeout");
        headers
    }

    /// The same for what goes on without the client: without its deadline, and without its wish for a leader.
    #[must_use]
    pub fn detached(&self) -> Self {
        let mut headers = self.without_deadline();
        headers.map.remove("hasleader");
        headers
    }

    /// The upstream request with these headers. What all requests have is put in where they are sent.
    pub fn request<B>(self, path: &'static str, body: B) -> Request<B> {
        let mut request = Request::new(body);
        *request.method_mut() = http::Method::POST;
        *request.version_mut() = http::Version::HTTP_2;
        *request.uri_mut() = http::Uri::from_static(path);
        *request.headers_mut() = self.map;
        if self.undecoded {
            request.extensions_mut().insert(Undecoded);
        }
        request
    }
}

// === impl Undecoded ===

impl Undecoded {
    /// Whether a request is one.
    pub fn is_on<B>(request: &Request<B>) -> bool {
        request.extensions().get::<Self>().is_some()
    }
}

// === impl Deadline ===

impl Deadline {
    /// None.
    pub const fn never() -> Self {
        Self(None)
    }

    /// The deadline of a call that begins now.
    ///
    /// # Errors
    /// grpc-go's, for a header that says none.
    pub fn from_client(client: &HeaderMap) -> Result<Self, Status> {
        let mut deadline = Self::never();
        // Of several the last counts.
        for value in client.get_all("grpc-timeout") {
            let timeout = parse_timeout(value.as_bytes())
                .map_err(|error| Status::internal(format!("malformed grpc-timeout: {error}")))?;
            deadline = Self(Instant::now().checked_add(timeout));
        }
        Ok(deadline)
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

/// What grpc-go looks a method up by: all of `:path`, of which a query is a part like any other.
pub fn whole_path(uri: &Uri) -> &str {
    uri.path_and_query().map_or("", PathAndQuery::as_str)
}

/// What grpc-go makes of a deadline.
pub fn deadline_exceeded() -> Status {
    Status::deadline_exceeded("context deadline exceeded")
}

/// The answer to headers that are none of a call, as grpc-go gives it before it looks at the method.
pub fn malformed(status: Status) -> Response<Body> {
    let mut response = status.into_http();
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response
}

/// At most eight digits and a unit (gRPC over HTTP/2, "Timeout"); what is wrong with others in grpc-go's words
/// (`internal/transport/http_util.go`, `decodeTimeout`).
fn parse_timeout(value: &[u8]) -> Result<Duration, String> {
    let shown = value.escape_ascii();
    let (unit, digits) = match value.split_last() {
        Some((unit, digits)) if !digits.is_empty() => (unit, digits),
        _ => return Err(format!("transport: timeout string is too short: \"{shown}\"")),
    };
    if digits.len() > 8 {
        return Err(format!("transport: timeout string is too long: \"{shown}\""));
    }
    let nanoseconds: u64 = match unit {
        b'H' => 3_600_000_000_000,
        b'M' => 60_000_000_000,
        b'S' => 1_000_000_000,
        b'm' => 1_000_000,
        b'u' => 1_000,
        b'n' => 1,
        _ => return Err(format!("transport: timeout unit is not recognized: \"{shown}\"")),
    };
    let number = digits
        .iter()
        .try_fold(0_u64, |number, digit| digit.is_ascii_digit().then(|| number * 10 + u64::from(digit - b'0')));
    let number =
        number.ok_or_else(|| format!("strconv.ParseUint: parsing \"{}\": invalid syntax", digits.escape_ascii()))?;
    Ok(Duration::from_nanos(nanoseconds).saturating_mul(u32::try_from(number).unwrap_or(u32::MAX)))
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
    // Nearly all of them; by way of tonic each costs half as much as rewriting a small message.
    if headers.get(Status::GRPC_STATUS)? == OK {
        return Some(Status::new(Code::Ok, ""));
    }
    let found = Status::from_header_map(headers)?;
    Some(Status::with_details(found.code(), found.message(), bytes::Bytes::copy_from_slice(found.details())))
}

/// The trailers that carry `status`.
pub fn trailers(status: &Status) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(3);
    if status.code() == Code::Ok {
        trailers.insert(Status::GRPC_STATUS, OK);
    } else if status.add_header(&mut trailers).is_err() {
        trailers.insert(Status::GRPC_STATUS, const { HeaderValue::from_static("13") });
    }
    trailers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_digits_and_a_unit() {
        assert_eq!(parse_timeout(b"300m"), Ok(Duration::from_millis(300)));
        assert_eq!(parse_timeout(b"99999999H"), Ok(Duration::from_secs(99_999_999 * 3600)));
        for (bad, said) in [
            ("", "transport: timeout string is too short: \"\""),
            ("S", "transport: timeout string is too short: \"S\""),
            ("100000000S", "transport: timeout string is too long: \"100000000S\""),
            ("1s", "transport: timeout unit is not recognized: \"1s\""),
            ("+1S", "strconv.ParseUint: parsing \"+1\": invalid syntax"),
            ("1.5S", "strconv.ParseUint: parsing \"1.5\": invalid syntax"),
        ] {
            assert_eq!(parse_timeout(bad.as_bytes()), Err(said.to_owned()));
        }
    }

    #[test]
    fn of_several_timeouts_the_last_counts_and_none_may_be_wrong() {
        let headers = |values: &[&'static str]| {
            values
                .iter()
                .map(|value| (HeaderName::from_static("grpc-timeout"), HeaderValue::from_static(value)))
                .collect()
        };
        let remaining = |values: &[&'static str]| {
            let deadline = Deadline::from_client(&headers(values)).unwrap().0;
            deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()) > Duration::from_secs(60))
        };
        assert_eq!((remaining(&[]), remaining(&["1H"]), remaining(&["1H", "1S"])), (None, Some(true), Some(false)));
        let refused = Deadline::from_client(&headers(&["x", "1S"])).unwrap_err();
        let text = "malformed grpc-timeout: transport: timeout string is too short: \"x\"";
        assert_eq!((refused.code(), refused.message()), (Code::Internal, text));
    }
}
