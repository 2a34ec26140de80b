//! Answers that are neither a resource nor a status: the few plain texts of the field, and documents about the server.

use http::{
    HeaderValue, Response, StatusCode,
    header::{CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS},
};
use serde::Serialize;

use crate::endpoint::{ResponseBody, full};

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
