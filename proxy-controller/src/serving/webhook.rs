//! The validating webhook: reviews of admission.k8s.io/v1 in, decisions out. What is decided is not decided here.

use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};

use bytes::Bytes;
use etcd_proxy::server::{Handler, Peer, Standing};
use futures::future::BoxFuture;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode,
    header::{ALLOW, CONTENT_TYPE},
};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Incoming;
use kube::{
    Resource,
    core::{
        Status,
        admission::{AdmissionRequest, AdmissionResponse, AdmissionReview, META_API_VERSION_V1, META_KIND},
        response::{StatusCause, StatusDetails},
    },
};
use serde::de::DeserializeOwned;
use tokio::{
    sync::Semaphore,
    time::{Instant, timeout},
};
use tonic::body::Body;

use super::{
    metrics::{DecisionLabel, WebhookMetrics},
    probes::{respond, text},
};

/// Where reviews are sent.
const PATH: &str = "/validate-etcdproxy";
/// The largest review, in bytes: an API server takes no larger object (`MaxRequestBodyBytes`), and an update brings two,
/// but an EtcdProxy is nowhere near that.
const MAX_BODY: usize = 3 << 20;
/// Most reviews at a time, each with its body in memory.
const REVIEWS: usize = 64;
/// For one review, its body included. An API server waits for 10 s unless told otherwise.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);

/// A decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Review {
    /// The object is as it may be.
    Allowed {
        /// What its author should know all the same; shown by kubectl.
        warnings: Vec<String>,
    },
    /// The object must not be so. At least one reason.
    Denied(Vec<Denial>),
    /// It cannot be told now, for this reason. The API server does what the webhook's `failurePolicy` says.
    Unable(String),
}

/// Why an object must not be as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// The path of the field, for example `spec.prefix`.
    pub field: String,
    /// One word for the metrics; where there are several denials, the first one's counts.
    pub reason: &'static str,
    /// The type of the cause in the API server's answer, for example `FieldValueForbidden` (`metav1.CauseType`).
    pub cause: &'static str,
    /// The error without the field, as the API server writes it: `Forbidden: …`.
    pub message: String,
}

/// Answers reviews of objects of the type `T` with what `R`, an async function, decides.
pub struct Webhook<T, R> {
    review: Arc<R>,
    places: Arc<Semaphore>,
    metrics: WebhookMetrics,
    object: PhantomData<fn(T)>,
}

/// Why a request is none that could be decided.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("there is only {PATH}")]
    Path,
    #[error("reviews are POSTed")]
    Method,
    #[error("reviews are application/json")]
    MediaType,
    #[error("the body is larger than {MAX_BODY} bytes")]
    TooLarge,
    #[error("the body could not be read: {0}")]
    Body(String),
    #[error("the body is no AdmissionReview of an object that is known here: {0}")]
    Malformed(#[from] serde_json::Error),
    #[error("expected {META_KIND} of {META_API_VERSION_V1}, not {kind} of {api_version}")]
    Version { api_version: String, kind: String },
    #[error("the AdmissionReview has no request")]
    NoRequest,
    #[error("no decision within {REVIEW_TIMEOUT:?}")]
    TimedOut,
    #[error("cannot decide now: {0}")]
    Unable(String),
}

// === impl Webhook ===

impl<T, R, F> Webhook<T, R>
where
    T: Resource,
    R: Fn(AdmissionRequest<T>) -> F,
    F: Future<Output = Review>,
{
    /// Decides by calling `review`.
    pub fn new(review: R, metrics: WebhookMetrics) -> Self {
        let places = Arc::new(Semaphore::new(REVIEWS));
        Self { review: Arc::new(review), places, metrics, object: PhantomData }
    }
}

impl<T, R> Webhook<T, R> {
    async fn answer<F>(&self, request: Request<Incoming>) -> Response<Body>
    where
        T: Resource + DeserializeOwned,
        R: Fn(AdmissionRequest<T>) -> F,
        F: Future<Output = Review>,
    {
        let standing = request.extensions().get::<Standing>().cloned();
        let answer = timeout(REVIEW_TIMEOUT, self.review(request)).await;
        match answer.unwrap_or(Err(Refusal::TimedOut)) {
            Ok(review) => {
                standing.iter().for_each(Standing::is_useful);
                respond(StatusCode::OK, "application/json", review)
            }
            Err(refusal) => {
                let status = refusal.status();
                self.metrics.refused(status);
                if status.is_server_error() {
                    tracing::warn!(error = %refusal, "a review was not answered");
                } else {
                    tracing::debug!(error = %refusal, "a request to the webhook was refused");
                }
                let mut answer = text(status, format!("{refusal}\n"));
                if status == StatusCode::METHOD_NOT_ALLOWED {
                    answer.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
                }
                answer
            }
        }
    }

    async fn review<F>(&self, request: Request<Incoming>) -> Result<String, Refusal>
    where
        T: Resource + DeserializeOwned,
        R: Fn(AdmissionRequest<T>) -> F,
        F: Future<Output = Review>,
    {
        if request.uri().path() != PATH {
            return Err(Refusal::Path);
        }
        if request.method() != Method::POST {
            return Err(Refusal::Method);
        }
        if !is_json(request.headers()) {
            return Err(Refusal::MediaType);
        }
        // Before the body is read: what waits holds no memory. The semaphore is never closed.
        let _place = self.places.acquire().await.map_err(|closed| Refusal::Unable(closed.to_string()))?;
        let request = parse::<T>(&read(request.into_body()).await?)?;
        let answer = AdmissionResponse::from(&request);
        let (details, operation) = (details(&request), request.operation.clone());
        let namespace = request.namespace.clone().unwrap_or_default();
        let started = Instant::now();
        let review = (self.review)(request).await;
        let (decision, reason) = match &review {
            Review::Allowed { .. } => (DecisionLabel::Allowed, ""),
            Review::Denied(denials) => (DecisionLabel::Denied, denials.first().map_or("", |denial| denial.reason)),
            Review::Unable(_) => (DecisionLabel::Unable, ""),
        };
        self.metrics.decided(decision, reason, started.elapsed());
        match &review {
            Review::Denied(denials) => {
                let errors: Vec<_> =
                    denials.iter().map(|denial| format!("{}: {}", denial.field, denial.message)).collect();
                tracing::info!(
                    ?operation,
                    namespace,
                    name = details.name,
                    reason,
                    errors = errors.join("; "),
                    "refused"
                );
            }
            Review::Allowed { warnings } => {
                tracing::debug!(?operation, namespace, name = details.name, ?warnings, "allowed");
            }
            // Logged with the answer.
            Review::Unable(_) => {}
        }
        Ok(serde_json::to_string(&decided(answer, details, review)?.into_review())?)
    }
}

impl<T, R, F> Handler for Webhook<T, R>
where
    T: Resource + DeserializeOwned + Send + 'static,
    R: Fn(AdmissionRequest<T>) -> F + Send + Sync + 'static,
    F: Future<Output = Review> + Send + 'static,
{
    type Future = BoxFuture<'static, Response<Body>>;

    fn handle(&self, request: Request<Incoming>, _: Peer) -> Self::Future {
        let webhook = self.clone();
        Box::pin(async move { webhook.answer(request).await })
    }
}

impl<T, R> Clone for Webhook<T, R> {
    fn clone(&self) -> Self {
        Self {
            review: self.review.clone(),
            places: self.places.clone(),
            metrics: self.metrics.clone(),
            object: PhantomData,
        }
    }
}

impl<T, R> fmt::Debug for Webhook<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook").finish_non_exhaustive()
    }
}

// === impl Refusal ===

impl Refusal {
    fn status(&self) -> StatusCode {
        match self {
            Self::Path => StatusCode::NOT_FOUND,
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::MediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Body(_) | Self::Malformed(_) | Self::Version { .. } | Self::NoRequest => StatusCode::BAD_REQUEST,
            Self::TimedOut => StatusCode::GATEWAY_TIMEOUT,
            Self::Unable(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next());
    kind.is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

async fn read(body: Incoming) -> Result<Bytes, Refusal> {
    match Limited::new(body, MAX_BODY).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(Refusal::TooLarge),
        Err(error) => Err(Refusal::Body(error.to_string())),
    }
}

fn parse<T: Resource + DeserializeOwned>(body: &[u8]) -> Result<AdmissionRequest<T>, Refusal> {
    let review: AdmissionReview<T> = serde_json::from_slice(body)?;
    if review.types.kind != META_KIND || review.types.api_version != META_API_VERSION_V1 {
        let (api_version, kind) = (review.types.api_version, review.types.kind);
        return Err(Refusal::Version { api_version, kind });
    }
    review.try_into().map_err(|_| Refusal::NoRequest)
}

fn details<T: Resource>(request: &AdmissionRequest<T>) -> StatusDetails {
    StatusDetails {
        name: request.name.clone(),
        group: request.kind.group.clone(),
        kind: request.kind.kind.clone(),
        uid: String::new(),
        causes: Vec::new(),
        retry_after_seconds: 0,
    }
}

/// A denial in the form of `apierrors.NewInvalid`, so that kubectl shows it as it shows the schema's.
fn decided(
    mut answer: AdmissionResponse,
    mut details: StatusDetails,
    review: Review,
) -> Result<AdmissionResponse, Refusal> {
    match review {
        Review::Allowed { warnings } => {
            answer.warnings = (!warnings.is_empty()).then_some(warnings);
            Ok(answer)
        }
        Review::Denied(denials) => {
            let errors: Vec<_> = denials.iter().map(|denial| format!("{}: {}", denial.field, denial.message)).collect();
            let errors = match &*errors {
                [error] => error.clone(),
                errors => format!("[{}]", errors.join(", ")),
            };
            let explained = format!("{}.{} {:?} is invalid: {errors}", details.kind, details.group, details.name);
            details.causes = denials
                .into_iter()
                .map(|Denial { field, cause, message, .. }| StatusCause { reason: cause.to_owned(), message, field })
                .collect();
            answer.allowed = false;
            answer.result = Status::failure(&explained, "Invalid")
                .with_code(StatusCode::UNPROCESSABLE_ENTITY.as_u16())
                .with_details(details);
            Ok(answer)
        }
        Review::Unable(why) => Err(Refusal::Unable(why)),
    }
}
