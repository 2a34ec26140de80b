//! Documents over HTTP: negotiation, entity tags, compression, addresses with a hash
//! (k8s.io/kube-openapi `pkg/handler`, `pkg/handler3`).

use std::sync::OnceLock;

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Response, StatusCode,
    header::{
        ACCEPT, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, EXPIRES, IF_MODIFIED_SINCE, IF_NONE_MATCH,
        LAST_MODIFIED, LOCATION, VARY,
    },
};
use jiff::{Span, Timestamp, fmt::rfc2822, tz::TimeZone};
use serde_json::Value;
use sha2::{Digest as _, Sha512};

use crate::{
    codec,
    endpoint::{ResponseBody, empty, full, response},
    negotiate::{MediaType, clauses},
};

/// A document that is too short to be compressed, in bytes (github.com/NYTimes/gziphandler `DefaultMinSize`).
const GZIP_MINIMUM: usize = 1400;

/// A document, ready to be sent.
#[derive(Debug)]
pub(super) struct Document {
    json: Bytes,
    /// Made at the first request that accepts it. `None`: it does not pay.
    gzip: OnceLock<Option<Bytes>>,
    /// The hash of the JSON, without quotes.
    hash: String,
    modified: Timestamp,
}

// === impl Document ===

impl Document {
    pub(super) fn new(value: &Value, modified: Timestamp) -> Result<Self, serde_json::Error> {
        let json = codec::to_vec(value)?;
        let hash = hex::encode_upper(Sha512::digest(&json));
        Ok(Self { json: json.into(), gzip: OnceLock::new(), hash, modified })
    }

    /// The hash that stands in the document's entity tag and address.
    pub(super) fn hash(&self) -> &str {
        &self.hash
    }

    /// Answers with the document if the client accepts JSON, which it does when it says nothing. Otherwise 406, without a
    /// body as in the original. Protobuf is not among what is served.
    pub(super) fn respond(&self, headers: &HeaderMap) -> Response<ResponseBody> {
        let mut response = if accepts_json(headers) {
            self.send(headers)
        } else {
            let mut response = Response::new(empty());
            *response.status_mut() = StatusCode::NOT_ACCEPTABLE;
            response
        };
        response.headers_mut().append(VARY, HeaderValue::from_static("Accept"));
        response
    }

    /// Answers at the document's `path`, where a `hash` in the query asks for just this document: then the answer may be
    /// kept for good, and another hash is led here.
    pub(super) fn respond_at(&self, path: &str, hash: Option<&str>, headers: &HeaderMap) -> Response<ResponseBody> {
        let mut response = self.respond(headers);
        match hash.filter(|hash| !hash.is_empty()) {
            _ if response.status() == StatusCode::NOT_ACCEPTABLE => {}
            None => {}
            Some(hash) if hash == self.hash => {
                let headers = response.headers_mut();
                headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
                let next_year = Timestamp::now().to_zoned(TimeZone::UTC).checked_add(Span::new().years(1));
                if let Some(date) = next_year.ok().and_then(|next_year| http_date(next_year.timestamp())) {
                    headers.insert(EXPIRES, date);
                }
            }
            Some(_) => {
                *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
                *response.body_mut() = empty();
                let headers = response.headers_mut();
                for header in [CONTENT_ENCODING, LAST_MODIFIED] {
                    headers.remove(header);
                }
                if let Ok(location) = HeaderValue::from_str(&format!("{path}?hash={}", self.hash)) {
                    headers.insert(LOCATION, location);
                }
            }
        }
        response
    }

    /// Answers with the document, whatever the client accepts, or with 304 when the client has it.
    pub(super) fn send(&self, headers: &HeaderMap) -> Response<ResponseBody> {
        let mut response = Response::new(empty());
        if self.client_has_it(headers) {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        } else {
            let gzip = response::accepts_gzip(headers).then(|| self.gzip()).flatten();
            *response.body_mut() = full(gzip.unwrap_or(&self.json).clone());
            if gzip.is_some() {
                response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            }
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(MediaType::Json.as_str()));
        }
        let headers = response.headers_mut();
        if let Ok(tag) = HeaderValue::from_str(&format!("\"{}\"", self.hash)) {
            headers.insert(ETAG, tag);
        }
        if let Some(modified) = http_date(self.modified) {
            headers.insert(LAST_MODIFIED, modified);
        }
        headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
        response
    }

    fn gzip(&self) -> Option<&Bytes> {
        self.gzip
            .get_or_init(|| {
                (self.json.len() >= GZIP_MINIMUM).then(|| response::gzip(&self.json)).flatten().map(Bytes::from)
            })
            .as_ref()
    }

    /// RFC 9110, section 13: the date counts only without entity tags.
    fn client_has_it(&self, headers: &HeaderMap) -> bool {
        if headers.contains_key(IF_NONE_MATCH) {
            return headers.get_all(IF_NONE_MATCH).iter().filter_map(|v| v.to_str().ok()).any(|tags| {
                tags.split(',').map(str::trim).any(|tag| {
                    let tag = tag.strip_prefix("W/").unwrap_or(tag);
                    tag == "*" || tag.strip_prefix('"').and_then(|t| t.strip_suffix('"')) == Some(&self.hash)
                })
            });
        }
        let since = headers.get(IF_MODIFIED_SINCE).and_then(|v| v.to_str().ok());
        let since = since.and_then(|date| rfc2822::DateTimeParser::new().parse_timestamp(date).ok());
        since.is_some_and(|since| self.modified.as_second() <= since.as_second())
    }
}

fn accepts_json(headers: &HeaderMap) -> bool {
    let accept = headers.get(ACCEPT).map_or("", |value| value.to_str().unwrap_or("?"));
    // The original looks at type and subtype alone here, so that `application/*` is JSON too.
    accept.is_empty()
        || clauses(accept)
            .iter()
            .any(|clause| matches!(clause.main, "application" | "*") && matches!(clause.sub, "json" | "*"))
}

fn http_date(time: Timestamp) -> Option<HeaderValue> {
    let date = rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&time).ok()?;
    HeaderValue::from_str(&date).ok()
}
