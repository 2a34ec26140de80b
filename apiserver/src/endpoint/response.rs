//! Making answers: content type, compression, `Warning` and `Retry-After` headers
//! (k8s.io/apiserver `pkg/endpoints/handlers/responsewriters`, `pkg/endpoints/filters/warning.go`).

use std::io::Write as _;

use flate2::{Compression, write::GzEncoder};
use http::{
    HeaderMap, HeaderValue, Response, StatusCode,
    header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER, VARY, WARNING},
};

use super::{ResponseBody, full};
use crate::{codec, negotiate::OutputFormat, status::Status};

/// Answers longer than this are compressed for clients that accept it, in bytes.
const GZIP_THRESHOLD: usize = 128 * 1024;

/// When the texts of all warnings are longer than this, in characters, each is cut.
const WARNINGS_TOTAL: usize = 4 * 1024;
/// To how many characters each is cut then.
const WARNING_CUT: usize = 256;

/// Answers with compact JSON, rendered as the client wants it.
pub fn json(code: StatusCode, format: &OutputFormat, headers: &HeaderMap, json: Vec<u8>) -> Response<ResponseBody> {
    match codec::render(format, json) {
        Ok(body) => bytes(code, format.media.as_str(), headers, body),
        Err(error) => {
            tracing::error!(%error, "an answer could not be rendered");
            let status = Status::internal_error(format_args!("the answer could not be rendered: {error}"));
            bytes(status.code(), "application/json", headers, status.to_json())
        }
    }
}

/// Answers with a status: an error, or a success that has no object. It is written in the form that the request
/// accepts, and in JSON when it accepts none.
pub fn status(headers: &HeaderMap, query: Option<&str>, status: &Status) -> Response<ResponseBody> {
    let format = OutputFormat::for_error(headers, query);
    let mut response = json(status.code(), &format, headers, status.to_json());
    if let Some(delay) = status.retry_after() {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(delay.as_secs()));
    }
    response
}

/// Answers with bytes, compressed when they are many and the client accepts it.
pub fn bytes(
    code: StatusCode,
    content_type: &'static str,
    headers: &HeaderMap,
    body: Vec<u8>,
) -> Response<ResponseBody> {
    let compressed = (body.len() > GZIP_THRESHOLD && accepts_gzip(headers)).then(|| gzip(&body)).flatten();
    let is_compressed = compressed.is_some();
    let mut response = Response::new(full(compressed.unwrap_or(body)));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    if is_compressed {
        headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
    }
    response
}

/// Whether the client lists `gzip`, just so, among the encodings that it accepts.
pub fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accepted.split(',').any(|encoding| encoding.trim() == "gzip")
}

/// Compresses bytes into one gzip member, at the level that Kubernetes uses.
///
/// The data ends in a sync flush before the member ends. Go's reader hands out the data of a *final* block only together
/// with the header of the next member; of a stream of members it would hold back each one until the next comes.
pub(crate) fn gzip(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 4), Compression::fast());
    encoder.write_all(bytes).ok()?;
    encoder.flush().ok()?;
    encoder.finish().ok()
}

/// Adds a `Warning: 299` header for each text, in order. Together they are of bounded length.
pub fn add_warnings(headers: &mut HeaderMap, warnings: &[String]) {
    let too_long = warnings.iter().map(|w| w.chars().count()).sum::<usize>() > WARNINGS_TOTAL;
    let mut written = 0;
    for warning in warnings {
        let text: String = if too_long { warning.chars().take(WARNING_CUT).collect() } else { warning.clone() };
        if text.is_empty() || text.chars().any(char::is_control) {
            continue;
        }
        if written >= WARNINGS_TOTAL {
            break;
        }
        written += text.chars().count();
        let quoted = text.replace('\\', r"\\").replace('"', r#"\""#);
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\""))
            .or_else(|_| HeaderValue::from_bytes(format!("299 - \"{quoted}\"").as_bytes()))
        {
            headers.append(WARNING, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;
    use http_body_util::BodyExt as _;

    use super::*;

    fn accepting(encoding: &'static str) -> HeaderMap {
        HeaderMap::from_iter([(ACCEPT_ENCODING, HeaderValue::from_static(encoding))])
    }

    #[tokio::test]
    async fn long_answers_are_compressed_for_those_who_accept_it() {
        let long = vec![b'x'; GZIP_THRESHOLD + 1];
        for (headers, body, compressed) in [
            (accepting("deflate, gzip"), long.clone(), true),
            (accepting("gzip;q=1"), long.clone(), false),
            (accepting("gzip"), vec![b'x'; GZIP_THRESHOLD], false),
            (HeaderMap::new(), long.clone(), false),
        ] {
            let response = bytes(StatusCode::OK, "application/json", &headers, body.clone());
            assert_eq!(response.headers().contains_key(CONTENT_ENCODING), compressed, "{headers:?}");
            let sent = response.into_body().collect().await.unwrap().to_bytes();
            let mut read = Vec::new();
            if compressed {
                GzDecoder::new(&sent[..]).read_to_end(&mut read).unwrap();
            } else {
                read = sent.to_vec();
            }
            assert_eq!(read, body);
        }
    }

    #[test]
    fn warnings_are_quoted_and_bounded() {
        let mut headers = HeaderMap::new();
        add_warnings(&mut headers, &[r#"unknown field "spec.x""#.to_owned(), "a\nb".to_owned(), r"c\d".to_owned()]);
        let sent: Vec<_> = headers.get_all(WARNING).iter().map(|v| v.to_str().unwrap()).collect();
        assert_eq!(sent, [r#"299 - "unknown field \"spec.x\"""#, r#"299 - "c\\d""#]);

        let mut headers = HeaderMap::new();
        add_warnings(&mut headers, &vec!["é".repeat(300); 20]);
        let sent: Vec<_> = headers.get_all(WARNING).iter().collect();
        assert_eq!(sent.len(), 16);
        assert_eq!(sent[0].as_bytes().len(), 256 * 2 + 8);
    }

    #[test]
    fn a_status_says_when_to_come_back() {
        let busy = Status::too_many_requests("busy", 7);
        let response = status(&HeaderMap::new(), None, &busy);
        assert_eq!((response.status().as_u16(), &response.headers()[RETRY_AFTER]), (429, &HeaderValue::from(7)));
        assert_eq!(response.headers()[CONTENT_TYPE], "application/json");
    }
}
