//! What a client is told when something fails (or succeeds without an object): `metav1.Status`, with the field's codes,
//! reasons and texts (k8s.io/apimachinery `pkg/api/errors/errors.go`).

use std::{fmt, time::Duration};

use http::StatusCode;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{self, StatusCause, StatusDetails};

use crate::{
    meta::{GroupKind, GroupResource},
    quote::quote,
    validation::ErrorList,
};

/// A failure as clients see it. Everything in this library that fails because of a request returns one.
///
/// The message is for the client: it must not hold what the client may not know.
#[derive(Clone, PartialEq)]
pub struct Status(Box<v1::Status>);

/// A machine-readable reason. Clients branch on these, so their texts are part of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The names are the texts.
pub enum Reason {
    Unauthorized,
    Forbidden,
    NotFound,
    AlreadyExists,
    Conflict,
    Gone,
    Invalid,
    ServerTimeout,
    Timeout,
    TooManyRequests,
    BadRequest,
    MethodNotAllowed,
    NotAcceptable,
    RequestEntityTooLarge,
    UnsupportedMediaType,
    InternalError,
    Expired,
    ServiceUnavailable,
}

/// The cause type that marks a status "resource version too large": client-go retries on it.
pub const CAUSE_RESOURCE_VERSION_TOO_LARGE: &str = "ResourceVersionTooLarge";

/// The cause type of a create in a namespace that is going away.
pub const CAUSE_NAMESPACE_TERMINATING: &str = "NamespaceTerminating";

/// What [`Status::conflict`] says when an object was changed by somebody else.
pub const OPTIMISTIC_LOCK_MESSAGE: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

// === impl Reason ===

impl Reason {
    /// The reason's text, as the wire has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Reason::Unauthorized => "Unauthorized",
            Reason::Forbidden => "Forbidden",
            Reason::NotFound => "NotFound",
            Reason::AlreadyExists => "AlreadyExists",
            Reason::Conflict => "Conflict",
            Reason::Gone => "Gone",
            Reason::Invalid => "Invalid",
            Reason::ServerTimeout => "ServerTimeout",
            Reason::Timeout => "Timeout",
            Reason::TooManyRequests => "TooManyRequests",
            Reason::BadRequest => "BadRequest",
            Reason::MethodNotAllowed => "MethodNotAllowed",
            Reason::NotAcceptable => "NotAcceptable",
            Reason::RequestEntityTooLarge => "RequestEntityTooLarge",
            Reason::UnsupportedMediaType => "UnsupportedMediaType",
            Reason::InternalError => "InternalError",
            Reason::Expired => "Expired",
            Reason::ServiceUnavailable => "ServiceUnavailable",
        }
    }
}

// === impl Status ===

impl Status {
    fn failure(code: StatusCode, reason: Option<Reason>, message: impl Into<String>) -> Self {
        Self(Box::new(v1::Status {
            code: Some(i32::from(code.as_u16())),
            reason: reason.map(|r| r.as_str().to_owned()),
            message: some(message.into()),
            status: Some("Failure".to_owned()),
            ..v1::Status::default()
        }))
    }

    fn about(mut self, resource: &GroupResource, name: &str) -> Self {
        self.0.details = Some(StatusDetails {
            group: some(&resource.group),
            kind: some(&resource.resource),
            name: some(name),
            ..StatusDetails::default()
        });
        self
    }

    /// Something succeeded and has no object to show: 200, with what it was about.
    pub fn success(resource: &GroupResource, name: &str, uid: Option<&str>) -> Self {
        let mut status = Self(Box::new(v1::Status { status: Some("Success".to_owned()), ..v1::Status::default() }));
        status = status.about(resource, name);
        status.details_mut().uid = uid.map(str::to_owned);
        status
    }

    /// 404 NotFound.
    pub fn not_found(resource: &GroupResource, name: &str) -> Self {
        let message = format!("{resource} {} not found", quote(name));
        Self::failure(StatusCode::NOT_FOUND, Some(Reason::NotFound), message).about(resource, name)
    }

    /// 409 AlreadyExists.
    pub fn already_exists(resource: &GroupResource, name: &str) -> Self {
        let message = format!("{resource} {} already exists", quote(name));
        Self::failure(StatusCode::CONFLICT, Some(Reason::AlreadyExists), message).about(resource, name)
    }

    /// 409 AlreadyExists: every name that was generated is taken.
    pub fn generate_name_conflict(resource: &GroupResource, name: &str, retry_after_seconds: u32) -> Self {
        let message = format!(
            "{resource} {} already exists, the server was not able to generate a unique name for the object",
            quote(name)
        );
        Self::failure(StatusCode::CONFLICT, Some(Reason::AlreadyExists), message)
            .about(resource, name)
            .with_retry_after(retry_after_seconds)
    }

    /// 401 Unauthorized. An empty message becomes `not authorized`.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        let message = message.into();
        let message = if message.is_empty() { "not authorized".to_owned() } else { message };
        Self::failure(StatusCode::UNAUTHORIZED, Some(Reason::Unauthorized), message)
    }

    /// 403 Forbidden. An empty name, or an empty resource as well, is left out of the message.
    pub fn forbidden(resource: &GroupResource, name: &str, message: impl fmt::Display) -> Self {
        let message = if resource.group.is_empty() && resource.resource.is_empty() {
            format!("forbidden: {message}")
        } else if name.is_empty() {
            format!("{resource} is forbidden: {message}")
        } else {
            format!("{resource} {} is forbidden: {message}", quote(name))
        };
        Self::failure(StatusCode::FORBIDDEN, Some(Reason::Forbidden), message).about(resource, name)
    }

    /// 409 Conflict. For a lost race the message is [`OPTIMISTIC_LOCK_MESSAGE`].
    pub fn conflict(resource: &GroupResource, name: &str, message: impl fmt::Display) -> Self {
        let message = format!("Operation cannot be fulfilled on {resource} {}: {message}", quote(name));
        Self::failure(StatusCode::CONFLICT, Some(Reason::Conflict), message).about(resource, name)
    }

    /// 410 Gone.
    pub fn gone(message: impl Into<String>) -> Self {
        Self::failure(StatusCode::GONE, Some(Reason::Gone), message)
    }

    /// 410 Expired: a resource version or continue token is too old.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::failure(StatusCode::GONE, Some(Reason::Expired), message)
    }

    /// 422 Invalid, with one cause for each error.
    pub fn invalid(kind: &GroupKind, name: &str, errors: &ErrorList) -> Self {
        let mut message = format!("{kind} {} is invalid", quote(name));
        if !errors.is_empty() {
            message.push_str(&format!(": {errors}"));
        }
        let causes: Vec<StatusCause> = errors
            .iter()
            .map(|e| StatusCause {
                reason: Some(e.error_type.reason().to_owned()),
                message: Some(e.body()),
                field: some(&e.field),
            })
            .collect();
        let mut status = Self::failure(StatusCode::UNPROCESSABLE_ENTITY, Some(Reason::Invalid), message);
        status.0.details = Some(StatusDetails {
            group: some(&kind.group),
            kind: some(&kind.kind),
            name: some(name),
            causes: (!causes.is_empty()).then_some(causes),
            ..StatusDetails::default()
        });
        status
    }

    /// 400 BadRequest.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::failure(StatusCode::BAD_REQUEST, Some(Reason::BadRequest), message)
    }

    /// 429 TooManyRequests.
    pub fn too_many_requests(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        Self::failure(StatusCode::TOO_MANY_REQUESTS, Some(Reason::TooManyRequests), message)
            .with_retry_after(retry_after_seconds)
    }

    /// 503 ServiceUnavailable.
    pub fn service_unavailable(message: impl Into<String>) -> Self {
        Self::failure(StatusCode::SERVICE_UNAVAILABLE, Some(Reason::ServiceUnavailable), message)
    }

    /// 405 MethodNotAllowed: the resource does not know this action.
    pub fn method_not_supported(resource: &GroupResource, action: &str) -> Self {
        let message = format!("{action} is not supported on resources of kind {}", quote(&resource.to_string()));
        Self::failure(StatusCode::METHOD_NOT_ALLOWED, Some(Reason::MethodNotAllowed), message).about(resource, "")
    }

    /// 500 ServerTimeout: the storage could not be reached; the client may try again.
    pub fn server_timeout(resource: &GroupResource, operation: &str, retry_after_seconds: u32) -> Self {
        let message = format!(
            "The {operation} operation against {resource} could not be completed at this time, please try again."
        );
        Self::failure(StatusCode::INTERNAL_SERVER_ERROR, Some(Reason::ServerTimeout), message)
            .about(resource, operation)
            .with_retry_after(retry_after_seconds)
    }

    /// 500 InternalError. The message reaches the client.
    pub fn internal_error(message: impl fmt::Display) -> Self {
        let cause = StatusCause { message: some(message.to_string()), ..StatusCause::default() };
        let mut status = Self::failure(
            StatusCode::INTERNAL_SERVER_ERROR,
            Some(Reason::InternalError),
            format!("Internal error occurred: {message}"),
        );
        status.details_mut().causes = Some(vec![cause]);
        status
    }

    /// 500 without a reason: what Go answers for an error that is no status of its own.
    pub fn unknown(message: impl Into<String>) -> Self {
        Self::failure(StatusCode::INTERNAL_SERVER_ERROR, None, message)
    }

    /// 504 Timeout: it took too long, and may have happened nevertheless. `retry_after_seconds` zero says nothing of it.
    pub fn timeout(message: impl fmt::Display, retry_after_seconds: u32) -> Self {
        Self::failure(StatusCode::GATEWAY_TIMEOUT, Some(Reason::Timeout), format!("Timeout: {message}"))
            .with_retry_after(retry_after_seconds)
    }

    /// 504 Timeout with the cause that tells clients to come back: the storage has not reached the revision asked for
    /// (k8s.io/apiserver `pkg/storage/errors.go`, `NewTooLargeResourceVersionError`).
    pub fn too_large_resource_version(requested: u64, current: u64, retry_after_seconds: u32) -> Self {
        let mut status = Self::timeout(
            format_args!("Too large resource version: {requested}, current: {current}"),
            retry_after_seconds,
        );
        status.details_mut().causes = Some(vec![StatusCause {
            reason: Some(CAUSE_RESOURCE_VERSION_TOO_LARGE.to_owned()),
            message: Some("Too large resource version".to_owned()),
            ..StatusCause::default()
        }]);
        status
    }

    /// 413 RequestEntityTooLarge.
    pub fn request_entity_too_large(message: impl fmt::Display) -> Self {
        let message = format!("Request entity too large: {message}");
        Self::failure(StatusCode::PAYLOAD_TOO_LARGE, Some(Reason::RequestEntityTooLarge), message)
    }

    /// 406 NotAcceptable, with the media types that there are.
    pub fn not_acceptable(supported: &[&str]) -> Self {
        let message = format!("only the following media types are accepted: {}", supported.join(", "));
        Self::not_acceptable_because(message)
    }

    /// 406 NotAcceptable, for another reason than the media type.
    pub fn not_acceptable_because(message: impl Into<String>) -> Self {
        Self::failure(StatusCode::NOT_ACCEPTABLE, Some(Reason::NotAcceptable), message)
    }

    /// 415 UnsupportedMediaType, with the media types that are read.
    pub fn unsupported_media_type(supported: &[&str]) -> Self {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            supported.join(", ")
        );
        Self::failure(StatusCode::UNSUPPORTED_MEDIA_TYPE, Some(Reason::UnsupportedMediaType), message)
    }

    /// 404 for a path that is none.
    pub fn page_not_found() -> Self {
        Self::routing(StatusCode::NOT_FOUND, "404: Page Not Found")
    }

    /// 405 for a method that no resource has at this path, HEAD above all.
    pub fn method_not_allowed() -> Self {
        Self::routing(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed")
    }

    /// 406 for a request that accepts none of the media types that there are, whatever their parameters. One that accepts
    /// some, but not in a form that there is, gets [`not_acceptable`](Self::not_acceptable).
    pub fn no_representation(available: &[&str]) -> Self {
        let message = format!("406: Not Acceptable\n\nAvailable representations: {}", available.join(", "));
        Self::routing(StatusCode::NOT_ACCEPTABLE, &message)
    }

    /// 415 for a patch type that the resource does not know, with the text that an unmodified server sends: clients fall
    /// back to another patch type on it.
    pub fn unsupported_patch_type() -> Self {
        Self::routing(StatusCode::UNSUPPORTED_MEDIA_TYPE, "415: Unsupported Media Type")
    }

    /// What the original answers when its router refuses a request, before any handler is asked
    /// (k8s.io/apiserver `pkg/server/handler.go`, `serviceErrorHandler`; github.com/emicklei/go-restful `jsr311.go`).
    fn routing(code: StatusCode, message: &str) -> Self {
        let nothing = GroupResource { group: String::new(), resource: String::new() };
        Self::generic(code, "", &nothing, "", message, 0, false)
    }

    /// What Go makes of an answer by its code alone (`NewGenericServerResponse`). `unexpected` adds the server's message as
    /// a cause.
    pub fn generic(
        code: StatusCode,
        verb: &str,
        resource: &GroupResource,
        name: &str,
        server_message: &str,
        retry_after_seconds: u32,
        unexpected: bool,
    ) -> Self {
        let (reason, mut message) = generic_reason(code, verb, server_message);
        if !(resource.group.is_empty() && resource.resource.is_empty()) {
            let verb = verb.to_lowercase();
            if name.is_empty() {
                message.push_str(&format!(" ({verb} {resource})"));
            } else {
                message.push_str(&format!(" ({verb} {resource} {name})"));
            }
        }
        let mut status =
            Self::failure(code, reason, message).about(resource, name).with_retry_after(retry_after_seconds);
        if unexpected {
            status.details_mut().causes = Some(vec![StatusCause {
                reason: Some("UnexpectedServerResponse".to_owned()),
                message: some(server_message),
                ..StatusCause::default()
            }]);
        }
        status
    }

    /// Adds a cause.
    #[must_use]
    pub fn with_cause(mut self, reason: &str, message: impl Into<String>, field: &str) -> Self {
        self.details_mut().causes.get_or_insert_default().push(StatusCause {
            reason: some(reason),
            message: some(message.into()),
            field: some(field),
        });
        self
    }

    /// Sets the continue token from which an expired list can go on, inconsistently.
    #[must_use]
    pub fn with_continue(mut self, token: String) -> Self {
        self.0.metadata.continue_ = Some(token);
        self
    }

    /// Says when to try again; zero says nothing.
    #[must_use]
    pub fn with_retry_after(mut self, seconds: u32) -> Self {
        self.details_mut().retry_after_seconds = (seconds > 0).then(|| i32::try_from(seconds).unwrap_or(i32::MAX));
        self
    }

    fn details_mut(&mut self) -> &mut StatusDetails {
        self.0.details.get_or_insert_default()
    }

    /// The HTTP code: what the status says, 200 for a success without one, else 500.
    pub fn code(&self) -> StatusCode {
        match self.0.code.and_then(|c| u16::try_from(c).ok()).map(StatusCode::from_u16) {
            Some(Ok(code)) => code,
            _ if self.is_success() => StatusCode::OK,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Whether this tells of a success.
    pub fn is_success(&self) -> bool {
        self.0.status.as_deref() == Some("Success")
    }

    /// The reason's text, empty for none.
    pub fn reason(&self) -> &str {
        self.0.reason.as_deref().unwrap_or_default()
    }

    /// Whether the reason is this one.
    pub fn is(&self, reason: Reason) -> bool {
        self.reason() == reason.as_str()
    }

    /// The message, empty for none.
    pub fn message(&self) -> &str {
        self.0.message.as_deref().unwrap_or_default()
    }

    /// When to try again: the `Retry-After` header.
    pub fn retry_after(&self) -> Option<Duration> {
        let seconds = self.0.details.as_ref()?.retry_after_seconds?;
        u64::try_from(seconds).ok().filter(|s| *s > 0).map(Duration::from_secs)
    }

    /// The value to serialise. It has `apiVersion` and `kind`.
    pub fn as_v1(&self) -> &v1::Status {
        &self.0
    }

    /// The status as JSON, in one line without a line feed at its end.
    pub fn to_json(&self) -> Vec<u8> {
        crate::codec::to_vec(self.as_v1())
            .unwrap_or_else(|_| br#"{"kind":"Status","apiVersion":"v1","status":"Failure","code":500}"#.to_vec())
    }
}

fn generic_reason(code: StatusCode, verb: &str, server_message: &str) -> (Option<Reason>, String) {
    let (reason, message) = match code {
        StatusCode::CONFLICT if verb == "POST" => (Reason::AlreadyExists, "the server reported a conflict"),
        StatusCode::CONFLICT => (Reason::Conflict, "the server reported a conflict"),
        StatusCode::NOT_FOUND => (Reason::NotFound, "the server could not find the requested resource"),
        StatusCode::BAD_REQUEST => (Reason::BadRequest, "the server rejected our request for an unknown reason"),
        StatusCode::UNAUTHORIZED => {
            (Reason::Unauthorized, "the server has asked for the client to provide credentials")
        }
        StatusCode::FORBIDDEN => (Reason::Forbidden, server_message),
        StatusCode::NOT_ACCEPTABLE if server_message.is_empty() || server_message == "unknown" => {
            (Reason::NotAcceptable, "the server was unable to respond with a content type that the client supports")
        }
        StatusCode::NOT_ACCEPTABLE => (Reason::NotAcceptable, server_message),
        StatusCode::UNSUPPORTED_MEDIA_TYPE => (Reason::UnsupportedMediaType, server_message),
        StatusCode::METHOD_NOT_ALLOWED => {
            (Reason::MethodNotAllowed, "the server does not allow this method on the requested resource")
        }
        StatusCode::UNPROCESSABLE_ENTITY => {
            (Reason::Invalid, "the server rejected our request due to an error in our request")
        }
        StatusCode::SERVICE_UNAVAILABLE => {
            (Reason::ServiceUnavailable, "the server is currently unable to handle the request")
        }
        StatusCode::GATEWAY_TIMEOUT => (
            Reason::Timeout,
            "the server was unable to return a response in the time allotted, but may still be processing the request",
        ),
        StatusCode::TOO_MANY_REQUESTS => {
            (Reason::TooManyRequests, "the server has received too many requests and has asked us to try again later")
        }
        code if code.as_u16() >= 500 => {
            let message =
                format!("an error on the server ({}) has prevented the request from succeeding", quote(server_message));
            return (Some(Reason::InternalError), message);
        }
        code => {
            let message = format!(
                "the server responded with the status code {} but did not return more information",
                code.as_u16()
            );
            return (None, message);
        }
    };
    (Some(reason), message.to_owned())
}

/// Go leaves empty texts out.
fn some(text: impl Into<String>) -> Option<String> {
    Some(text.into()).filter(|t| !t.is_empty())
}

impl std::error::Error for Status {}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({} {}: {})", self.code().as_u16(), self.reason(), self.message())
    }
}

impl From<v1::Status> for Status {
    fn from(status: v1::Status) -> Self {
        Self(Box::new(status))
    }
}

#[cfg(test)]
mod tests;
