//! What happens to each request, from its head to the last byte of its answer
//! (k8s.io/apiserver `pkg/server/config.go`, `DefaultBuildHandlerChain`).

use std::{
    net::SocketAddr,
    panic::AssertUnwindSafe,
    sync::{Arc, LazyLock},
    time::Duration,
};

use futures::FutureExt as _;
use http::{
    HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version,
    header::{ACCEPT, AUTHORIZATION, CACHE_CONTROL, CONNECTION, RETRY_AFTER, STRICT_TRANSPORT_SECURITY, USER_AGENT},
    request::Parts,
};
use http_body::Body as _;
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    activity::{Active, Activity},
    body, impersonation,
    inflight::{Admission, InFlight},
    lifecycle::Lifecycle,
    metrics::{Metrics, Target},
    respond,
    router::{Route, Router},
    version::VersionInfo,
};
use crate::{
    authentication::{AUTHENTICATED, Authenticator, Evidence, Peer, RequestHeaderNames, is_anonymous},
    authorization::{AuthorizationAttributes, Authorizer, Decision, SYSTEM_MASTERS},
    endpoint::{Delivery, RequestBody, ResponseBody, response},
    meta::GroupResource,
    options::duration::{self, DurationError},
    query,
    request::{RequestContext, RequestInfo, UserInfo, Warnings},
    status::Status,
};

/// The header that carries a request's id.
const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
/// The name under which the server calls itself (k8s.io/apiserver `pkg/authentication/user`, `APIServerUser`).
const LOOPBACK_USER: &str = "system:apiserver";

/// The headers of Kubernetes' aggregator, which are removed whether or not they are believed.
static STANDARD_HEADERS: LazyLock<RequestHeaderNames> = LazyLock::new(RequestHeaderNames::standard);

/// Paths that are served until the very end (k8s.io/apiserver `pkg/server/filters/with_retry_after.go`).
const EXEMPT_FROM_RETRY_AFTER: [&str; 4] = ["/readyz", "/livez", "/healthz", "/metrics"];
/// The beginning of the `User-Agent` that is exempt too.
const EXEMPT_AGENT: &str = "kube-apiserver/";
/// Up to this length, in bytes, an answer is delivered without counting among the requests in flight. Their bound is one of
/// work and of memory, and a client that does not read makes no work.
const SMALL: u64 = 64 * 1024;
/// How long a client may take to read that its request took too long.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Where a request comes from.
pub struct Origin {
    peer: Peer,
    address: Option<SocketAddr>,
    /// Whether it comes from this process itself.
    loopback: bool,
    close: CancellationToken,
    activity: Activity,
}

/// Limits and habits of a server.
#[derive(Clone, Debug)]
pub struct Manners {
    /// How many requests are worked on at one time.
    pub in_flight: InFlight,
    /// How long a request may take unless it is a long-running one.
    pub request_timeout: Duration,
    /// Whether, once no new requests are wanted, those that still come are told to try again elsewhere.
    pub send_retry_after: bool,
    /// Which fraction of HTTP/2 requests ends its connection, so that clients spread over replicas.
    pub goaway_chance: f64,
    /// The `Strict-Transport-Security` header.
    pub strict_transport_security: Option<HeaderValue>,
}

/// Answers requests.
pub struct Handler {
    pub(super) router: Router,
    pub(super) authenticator: Arc<dyn Authenticator>,
    pub(super) authorizer: Arc<dyn Authorizer>,
    pub(super) manners: Manners,
    pub(super) version: VersionInfo,
    pub(super) metrics: Metrics,
    pub(super) lifecycle: Lifecycle,
    /// Requests that are being worked on, other than long-running ones.
    pub(super) requests: TaskTracker,
    /// Long-running ones.
    pub(super) watches: TaskTracker,
}

/// One request on its way.
struct Exchange {
    handler: Arc<Handler>,
    origin: Arc<Origin>,
    delivery: Delivery,
    audit_id: String,
    warnings: Warnings,
    received: Instant,
}

// === impl Origin ===

impl Origin {
    /// A connection.
    pub(super) fn connection(peer: Peer, address: SocketAddr) -> Self {
        let (close, activity) = (CancellationToken::new(), Activity::default());
        Self { peer, address: Some(address), loopback: false, close, activity }
    }

    /// This process itself, as a user who may do everything.
    pub(crate) fn loopback() -> Self {
        let (close, activity) = (CancellationToken::new(), Activity::default());
        Self { peer: Peer::default(), address: None, loopback: true, close, activity }
    }

    /// Completes when the connection is to end after the requests that it has.
    pub(super) async fn closing(&self) {
        self.close.cancelled().await;
    }

    /// What goes on on the connection.
    pub(super) fn activity(&self) -> &Activity {
        &self.activity
    }
}

// === impl Handler ===

impl Handler {
    /// Answers one request. `delivery` is the answer's way to the client; whoever calls this ends it when told to.
    pub(crate) async fn handle(
        self: Arc<Self>,
        origin: Arc<Origin>,
        delivery: Delivery,
        request: Request<RequestBody>,
    ) -> Response<ResponseBody> {
        let exchange = Exchange {
            delivery,
            audit_id: audit_id(request.headers()),
            warnings: Warnings::default(),
            received: Instant::now(),
            handler: self.clone(),
            origin,
        };
        let (audit_id, warnings) = (exchange.audit_id.clone(), exchange.warnings.clone());
        let detached = !matches!(*request.method(), http::Method::GET | http::Method::HEAD);
        let answer = AssertUnwindSafe(exchange.answer(request)).catch_unwind();
        let outcome = if detached {
            // A write goes on to its end even if the client does not wait for it.
            self.requests.spawn(answer).await.unwrap_or_else(|error| Err(Box::new(error.to_string())))
        } else {
            answer.await
        };
        let mut response = outcome.unwrap_or_else(|panic| {
            tracing::error!(audit_id, panic = panic_text(&*panic), "a handler panicked");
            let text = "This request caused apiserver to panic. Look in the logs for details.";
            response::status(&HeaderMap::new(), None, &Status::internal_error(text))
        });
        self.finish(&mut response, &audit_id, &warnings);
        response
    }

    fn finish(&self, response: &mut Response<ResponseBody>, audit_id: &str, given: &Warnings) {
        let headers = response.headers_mut();
        if let Ok(value) = HeaderValue::from_str(audit_id) {
            headers.entry(AUDIT_ID).or_insert(value);
        }
        headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
        if let Some(directives) = &self.manners.strict_transport_security {
            headers.insert(STRICT_TRANSPORT_SECURITY, directives.clone());
        }
        response::add_warnings(headers, &given.take());
    }
}

// === impl Exchange ===

impl Exchange {
    async fn answer(self, request: Request<RequestBody>) -> Response<ResponseBody> {
        let (parts, body) = request.into_parts();
        let (handler, delivery) = (self.handler.clone(), self.delivery.clone());
        let active = Activity::begin(self.origin.clone());
        let info = match RequestInfo::parse(&parts.method, &parts.uri) {
            Ok(info) => info,
            Err(error) => return self.at_once(refuse(&Status::bad_request(error.to_string()), &parts), active),
        };
        let exempt = self.origin.loopback || is_exempt(&parts);
        if handler.manners.send_retry_after && handler.lifecycle.not_accepting.is_cancelled() && !exempt {
            // Over HTTP/2 there is no such header as `Connection`: Go's server makes a GOAWAY of it.
            self.origin.close.cancel();
            return self.at_once(try_elsewhere(), active);
        }
        if handler.manners.goaway_chance > 0.0
            && parts.version == Version::HTTP_2
            && rand::random::<f64>() < handler.manners.goaway_chance
        {
            self.origin.close.cancel();
        }
        let (route, target) = handler.router.route(&parts.method, &info);
        let query = parts.uri.query().unwrap_or_default();
        let dry_run = query::first(query, "dryRun").is_some();
        let long_running = info.is_long_running();
        let deadline = match self.deadline(long_running, query) {
            Ok(deadline) => deadline,
            Err(status) => return self.at_once(refuse(&status, &parts), active),
        };
        let accept = parts.headers.get(ACCEPT).cloned();
        let counted = long_running.then(|| handler.metrics.long_running(&target));
        // Whoever waits for the last request does not wait for probes, which never end.
        let tracked = (!exempt).then(|| if long_running { handler.watches.token() } else { handler.requests.token() });
        let received = self.received;
        let work = self.authenticated(route, &target, info, deadline, parts, body);
        let (response, permit) = match deadline {
            None => work.await,
            Some(deadline) => match tokio::time::timeout_at(deadline, work).await {
                Ok(outcome) => {
                    delivery.end_at(deadline);
                    outcome
                }
                Err(_) => {
                    delivery.end_at(Instant::now() + LAST_WORDS);
                    handler.metrics.terminated(&target, StatusCode::GATEWAY_TIMEOUT);
                    let status = Status::timeout("request did not complete within the allotted timeout", 0);
                    let accept = accept.map(|value| (ACCEPT, value)).into_iter().collect();
                    (response::status(&accept, None, &status), None)
                }
            },
        };
        let code = response.status();
        let metrics = handler.metrics.clone();
        response.map(|body| {
            let permit = permit.filter(|_| body.size_hint().upper().is_none_or(|size| size > SMALL));
            body::track(body, delivery, (counted, tracked, permit, active), move |size| {
                let took = (!long_running).then(|| received.elapsed());
                metrics.finished(&target, dry_run, code, took, size);
            })
        })
    }

    /// An answer that is no work.
    fn at_once(&self, response: Response<ResponseBody>, active: Active) -> Response<ResponseBody> {
        let delivery = self.delivery.clone();
        delivery.end_at(self.received + self.handler.manners.request_timeout);
        response.map(|body| body::track(body, delivery, active, |_| {}))
    }

    /// When the request must be answered: never for a long-running one, else after the server's time or the shorter one
    /// that the client asks for (k8s.io/apiserver `pkg/endpoints/filters/request_deadline.go`).
    fn deadline(&self, long_running: bool, query: &str) -> Result<Option<Instant>, Status> {
        if long_running {
            return Ok(None);
        }
        let mut timeout = self.handler.manners.request_timeout;
        if let Some(text) = query::first(query, "timeout").filter(|text| !text.is_empty()) {
            let asked = match duration::parse(&text) {
                // A time that lies in the past asks for nothing, as zero does.
                Err(DurationError::Negative(_)) => Duration::ZERO,
                parsed => parsed.map_err(|error| {
                    Status::bad_request(format!("invalid timeout specified in the request URL - {error}"))
                })?,
            };
            if !asked.is_zero() && asked < timeout {
                timeout = asked;
            }
        }
        Ok(Some(self.received + timeout))
    }

    /// Authentication, limits, authorisation, and then the work itself.
    async fn authenticated(
        self,
        route: Route<'_>,
        target: &Target,
        info: RequestInfo,
        deadline: Option<Instant>,
        mut parts: Parts,
        body: RequestBody,
    ) -> (Response<ResponseBody>, Option<(tokio::sync::OwnedSemaphorePermit, super::metrics::Gauged)>) {
        let user = match self.authenticate(&mut parts).await {
            Ok(user) => user,
            Err(status) => return (refuse(&status, &parts), None),
        };
        let handler = self.handler;
        let user = if self.origin.loopback {
            user
        } else {
            match impersonation::resolve(&*handler.authorizer, user, &mut parts.headers).await {
                Ok(user) => user,
                Err(status) => return (refuse(&status, &parts), None),
            }
        };
        let permit = match handler.manners.in_flight.admit(&info, &user) {
            Admission::Go(permit) => permit.map(|permit| (permit, handler.metrics.in_flight(info.is_read_only()))),
            Admission::TooMany => {
                handler.metrics.terminated(target, StatusCode::TOO_MANY_REQUESTS);
                return (too_many_requests(), None);
            }
        };
        let context = RequestContext {
            user,
            info,
            audit_id: self.audit_id,
            warnings: self.warnings,
            deadline,
            shutdown: handler.lifecycle.not_accepting.clone(),
            delivery: self.delivery,
        };
        // The server may do what it likes with its own objects.
        if !self.origin.loopback
            && let Err(status) = handler.authorize(&context).await
        {
            return (refuse(&status, &parts), permit);
        }
        tracing::debug!(
            audit_id = context.audit_id,
            verb = context.info.verb,
            path = context.info.path,
            user = context.user.name,
            address = self.origin.address.map(tracing::field::display),
            "request"
        );
        (handler.serve(route, context, parts, body).await, permit)
    }

    async fn authenticate(&self, parts: &mut Parts) -> Result<UserInfo, Status> {
        if self.origin.loopback {
            let groups = vec![AUTHENTICATED.to_owned(), SYSTEM_MASTERS.to_owned()];
            return Ok(UserInfo { name: LOOPBACK_USER.to_owned(), groups, ..UserInfo::default() });
        }
        let Handler { authenticator, metrics, .. } = &*self.handler;
        let evidence = Evidence { peer: &self.origin.peer, headers: &parts.headers, warnings: &self.warnings };
        let outcome = authenticator.authenticate(&evidence).await;
        let user = match outcome {
            Ok(Some(user)) => Ok(user),
            Ok(None) => Err("failure"),
            Err(error) => {
                let address = self.origin.address.map(tracing::field::display);
                tracing::warn!(%error, audit_id = self.audit_id, address, "unable to authenticate the request");
                Err("error")
            }
        };
        metrics.authenticated(user.as_ref().err().copied().unwrap_or("success"));
        // Strangers are not to hold HTTP/2 connections open: these are dear (CVE-2023-44487).
        if parts.version == Version::HTTP_2 && user.as_ref().map_or(true, is_anonymous) {
            self.origin.close.cancel();
        }
        let user = user.map_err(|_| Status::unauthorized("Unauthorized"))?;
        parts.headers.remove(AUTHORIZATION);
        STANDARD_HEADERS.remove(&mut parts.headers);
        if let Some(trust) = authenticator.identity_headers() {
            trust.names.remove(&mut parts.headers);
        }
        Ok(user)
    }
}

// === impl Handler ===

impl Handler {
    async fn authorize(&self, context: &RequestContext) -> Result<(), Status> {
        let attributes = AuthorizationAttributes::of(context);
        let decision = self.authorizer.authorize(&attributes).await;
        self.metrics.authorized(match &decision {
            Decision::Allow => "allowed",
            Decision::Deny { .. } => "denied",
            Decision::NoOpinion { .. } => "no-opinion",
            Decision::Error(_) => "error",
        });
        match decision {
            Decision::Allow => Ok(()),
            Decision::Deny { reason } | Decision::NoOpinion { reason } => {
                tracing::debug!(audit_id = context.audit_id, path = context.info.path, reason, "forbidden");
                let RequestInfo { group, resource, name, .. } = &context.info;
                let resource = GroupResource { group: group.clone(), resource: resource.clone() };
                Err(Status::forbidden(&resource, name, attributes.refusal(&reason)))
            }
            Decision::Error(error) => Err(Status::internal_error(error)),
        }
    }

    async fn serve(
        &self,
        route: Route<'_>,
        context: RequestContext,
        parts: Parts,
        body: RequestBody,
    ) -> Response<ResponseBody> {
        let query = parts.uri.query().unwrap_or_default();
        match route {
            Route::Endpoint(endpoint) => endpoint.serve(context, parts, body).await,
            Route::Path(handler) => match handler.serve(&parts).await {
                Some(response) => response,
                None => self.index(StatusCode::NOT_FOUND),
            },
            Route::Health(checks, None) => checks.serve_all(query).await,
            Route::Health(checks, Some(check)) => match checks.serve_one(&check).await {
                Some(response) => response,
                None => self.index(StatusCode::NOT_FOUND),
            },
            Route::Version => respond::raw_json(StatusCode::OK, &self.version),
            Route::Metrics => self.metrics.serve(),
            Route::Index => self.index(StatusCode::OK),
            Route::NoSuchPath => self.index(StatusCode::NOT_FOUND),
            Route::NoSuchResource => refuse(&Status::page_not_found(), &parts),
            Route::NotAllowed => refuse(&Status::method_not_allowed(), &parts),
        }
    }

    fn index(&self, code: StatusCode) -> Response<ResponseBody> {
        #[derive(serde::Serialize)]
        struct RootPaths<'a> {
            paths: Vec<&'a str>,
        }
        respond::raw_json(code, &RootPaths { paths: self.router.paths() })
    }
}

fn refuse(status: &Status, parts: &Parts) -> Response<ResponseBody> {
    response::status(&parts.headers, parts.uri.query(), status)
}

fn too_many_requests() -> Response<ResponseBody> {
    let mut response =
        respond::plain_error(StatusCode::TOO_MANY_REQUESTS, "Too many requests, please try again later.");
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// Whether the request is served also when others are sent elsewhere.
fn is_exempt(parts: &Parts) -> bool {
    let agent = parts.headers.get(USER_AGENT).map(HeaderValue::as_bytes).unwrap_or_default();
    agent.starts_with(EXEMPT_AGENT.as_bytes())
        || EXEMPT_FROM_RETRY_AFTER.iter().any(|path| parts.uri.path().starts_with(path))
}

/// The answer of a server that is about to go (k8s.io/apiserver `pkg/server/filters/with_retry_after.go`).
fn try_elsewhere() -> Response<ResponseBody> {
    let text = "The apiserver is shutting down, please try again later.";
    let mut response = respond::plain_error(StatusCode::TOO_MANY_REQUESTS, text);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
    response
}

/// The client's id for the request, or a new one.
fn audit_id(headers: &HeaderMap) -> String {
    let given = headers.get(AUDIT_ID).and_then(|value| value.to_str().ok()).filter(|id| !id.is_empty());
    given.map_or_else(|| uuid::Uuid::new_v4().to_string(), str::to_owned)
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("unknown panic")
}
