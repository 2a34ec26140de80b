//! Answers that are not a resource's: statuses, and the few plain texts of the field.

use http::{
    HeaderMap, HeaderValue, Response, StatusCode,
    header::{CONTENT_TYPE, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS},
};
use serde::Serialize;

use crate::{
    codec,
    endpoint::{ResponseBody, full},
    negotiate::OutputFormat,
    status::Status,
};

/// A status as an answer, in a format that the client takes.
pub fn status(status: &Status, headers: &HeaderMap, query: Option<&str>) -> Response<ResponseBody> {
    let format = OutputFormat::for_error(headers, query);
    let (body, content_type) = match codec::render(&format, status.to_json()) {
        Ok(body) => (body, HeaderValue::from_static(format.media.as_str())),
        Err(_) => (status.to_json(), HeaderValue::from_static("application/json")),
    };
    let mut response = Response::new(full(body));
    *response.status_mut() = status.code();
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    if let Some(after) = status.retry_after() {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(after.as_secs()));
    }
    response
}

/// A plain text, as Go's `http.Error` sends it.
pub fn plain_error(code: StatusCode, text: &str) -> Response<ResponseBody> {
    let mut response = plain(format!("{text}\n"));
    *response.status_mut() = code;
    response
}

/// A plain text.
pub fn plain(text: String) -> Response<ResponseBody> {
    let mut response = Response::new(full(text));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// An indented JSON document (k8s.io/apiserver `pkg/endpoints/handlers/responsewriters`, `WriteRawJSON`).
pub fn raw_json<T: Serialize>(code: StatusCode, value: &T) -> Response<ResponseBody> {
    let mut response = match serde_json::to_vec_pretty(value) {
        Ok(body) => Response::new(full(body)),
        Err(error) => return plain_error(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    };
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
