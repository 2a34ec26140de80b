//! grpc.health.v1, whose calls are nobody's in particular and count as no tenant's: so they have bounds of their own.

mod list;

use std::{pin::pin, sync::Arc, time::Duration};

use futures::{
    FutureExt as _, StreamExt as _,
    stream::{self, BoxStream},
};
use http::{Request, Response};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::timeout,
};
use tokio_stream::wrappers::WatchStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, body::Body};
use tonic_health::pb::{
    HealthCheckRequest, HealthCheckResponse,
    health_check_response::ServingStatus,
    health_server::{Health, HealthServer},
};
use tower::Service as _;

pub use self::list::descriptors;
use crate::{
    error::EtcdError,
    grpc::{
        Deadline, Delivered, Seen, malformed,
        until_closing::UntilClosing,
        until_end::{OnEnd, until_end},
    },
};

/// The paths of the methods.
pub const HEALTH_PATHS: [&str; 3] = [CHECK, WATCH, LIST];
const CHECK: &str = "/grpc.health.v1.Health/Check";
const WATCH: &str = "/grpc.health.v1.Health/Watch";
const LIST: &str = "/grpc.health.v1.Health/List";

/// The whole server, as grpc.health.v1 names it and as etcd reports it.
const WHOLE_SERVER: &str = "";

/// Most Watch streams at a time. They are of balancers and operators, of whom there are few.
const WATCHES: usize = 128;

/// Most Checks and Lists at a time whose request has not come with its headers.
const CHECKS: usize = 256;

/// How long a request, of a few bytes, may take to come: it is all that a Check or List waits for.
const PROMPT: Duration = Duration::from_secs(10);

/// The gRPC health service. Cheap to clone; all clones share its places.
#[derive(Clone, Debug)]
pub struct HealthService {
    reported: Reported,
    server: HealthServer<Reported>,
    watches: Arc<Semaphore>,
    checks: Arc<Semaphore>,
    /// How long a client may leave the answer to a Check or List; `None` for ever.
    patience: Option<Duration>,
}

/// What tells grpc.health.v1 whether the server serves.
#[derive(Debug)]
pub struct HealthReporter(watch::Sender<ServingStatus>);

/// How the whole server does, which is all that there is to tell, as of an etcd. Answers read as grpc-go's (`health/server.go`).
#[derive(Clone, Debug)]
struct Reported(watch::Receiver<ServingStatus>);

/// What a call holds until it has ended.
struct Place(Option<OwnedSemaphorePermit>);

/// Creates the gRPC health service, not serving, and what reports to it. Clients may leave the answer to a Check for so long;
/// `None` for ever.
pub fn grpc_health(patience: Option<Duration>) -> (HealthReporter, HealthService) {
    let (sender, receiver) = watch::channel(ServingStatus::NotServing);
    let reported = Reported(receiver);
    let server = HealthServer::new(reported.clone());
    let (watches, checks) = (Arc::new(Semaphore::new(WATCHES)), Arc::new(Semaphore::new(CHECKS)));
    (HealthReporter(sender), HealthService { reported, server, watches, checks, patience })
}

// === impl HealthReporter ===

impl HealthReporter {
    /// Tells whether the server serves.
    pub fn report(&self, serving: bool) {
        let now = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        self.0.send_if_modified(|status| std::mem::replace(status, now) != now);
    }
}

// === impl Reported ===

impl Reported {
    fn now(&self) -> HealthCheckResponse {
        told(*self.0.borrow())
    }
}

fn told(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl Health for Reported {
    async fn check(
        &self,
        request: tonic::Request<HealthCheckRequest>,
    ) -> Result<tonic::Response<HealthCheckResponse>, Status> {
        match request.get_ref().service.as_str() {
            WHOLE_SERVER => Ok(tonic::Response::new(self.now())),
            _ => Err(Status::not_found("unknown service")),
        }
    }

    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn watch(
        &self,
        request: tonic::Request<HealthCheckRequest>,
    ) -> Result<tonic::Response<Self::WatchStream>, Status> {
        let statuses = match request.get_ref().service.as_str() {
            WHOLE_SERVER => WatchStream::new(self.0.clone()).boxed(),
            // It might come to be known.
            _ => stream::iter([ServingStatus::ServiceUnknown]).chain(stream::pending()).boxed(),
        };
        Ok(tonic::Response::new(statuses.map(|status| Ok(told(status))).boxed()))
    }
}

// === impl HealthService ===

impl HealthService {
    /// Answers a call of one of [`HEALTH_PATHS`], which ends at the latest with the process: Watch does not by itself.
    pub async fn answer(mut self, request: Request<Body>, closing: CancellationToken) -> Response<Body> {
        let deadline = match Deadline::from_client(request.headers()) {
            Ok(deadline) => deadline,
            Err(status) => return malformed(status),
        };
        let watch = request.uri().path() == WATCH;
        // Before the request has come, which it need not.
        let place = match self.place(watch) {
            Ok(place) => place,
            Err(refused) => return Status::from(refused).into_http(),
        };
        let lists = request.uri().path() == LIST;
        let name = if lists { list::REQUEST } else { "grpc.health.v1.HealthCheckRequest" };
        let request = request.map(|body| Body::new(Seen::new(body, name)));
        let answered = async {
            if lists {
                return list::answer(request, self.reported.now()).await;
            }
            match self.server.call(request).await {
                Ok(response) => response,
                Err(never) => match never {},
            }
        };
        let answer = async {
            match timeout(PROMPT, answered).await {
                Ok(response) => Ok(response),
                Err(_) => Err(Status::deadline_exceeded("etcd-proxy: the request did not come in time")),
            }
        };
        let mut answer = pin!(answer);
        let mut answered = pin!(deadline.limit(answer.as_mut()));
        // That of a Check whose request is there already.
        let answered = match answered.as_mut().now_or_never() {
            Some(answered) => answered,
            None => {
                let waiting = if watch { None } else { Some(self.checks.clone().try_acquire_owned()) };
                match waiting.transpose() {
                    Ok(_waiting) => answered.await,
                    Err(_full) => Err(EtcdError::TooManyRequests.into()),
                }
            }
        };
        match answered {
            Ok(response) => {
                let response =
                    until_end(response.map(|body| Body::new(UntilClosing::new(body, closing, deadline))), place);
                if watch { response } else { response.map(|body| Body::new(Delivered::new(body, self.patience, ()))) }
            }
            Err(late) => late.into_http(),
        }
    }

    fn place(&self, watch: bool) -> Result<Place, EtcdError> {
        if !watch {
            return Ok(Place(None));
        }
        let place = self.watches.clone().try_acquire_owned().map_err(|_full| EtcdError::TooManyRequests)?;
        Ok(Place(Some(place)))
    }
}

impl OnEnd for Place {
    fn end(&mut self, _: Code) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::{BodyExt as _, StreamBody};
    use tokio::time::Instant;

    use super::*;

    /// A call whose client does not say what it asks for.
    async fn ask_nothing(health: &HealthService, path: &str, deadline: Option<&str>) -> (Option<Status>, Duration) {
        let nothing = futures::stream::pending::<Result<http_body::Frame<Bytes>, Status>>();
        let mut request = Request::post(path).header("content-type", "application/grpc");
        if let Some(deadline) = deadline {
            request = request.header("grpc-timeout", deadline);
        }
        let request = request.body(Body::new(StreamBody::new(nothing))).unwrap();
        let begun = Instant::now();
        let answer = health.clone().answer(request, CancellationToken::new());
        let answer = timeout(Duration::from_secs(3600), answer).await.expect("an end");
        (Status::from_header_map(answer.headers()), begun.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_do_not_come_are_not_waited_for_for_ever() {
        let (_reporter, health) = grpc_health(None);
        for path in HEALTH_PATHS {
            let (status, after) = ask_nothing(&health, path, None).await;
            assert_eq!(status.unwrap().code(), Code::DeadlineExceeded, "{path}");
            assert!(after < Duration::from_secs(60), "{path}: {after:?}");
            let (status, after) = ask_nothing(&health, path, Some("100m")).await;
            assert_eq!(status.unwrap().message(), "context deadline exceeded", "{path}");
            assert!(after < Duration::from_secs(1), "{path}: {after:?}");
        }
        assert_eq!(health.watches.available_permits(), WATCHES);
    }

    #[tokio::test(start_paused = true)]
    async fn few_checks_wait_for_their_requests_and_those_with_theirs_are_answered() {
        let (_reporter, health) = grpc_health(None);
        let mut waiting: Vec<_> = (0..CHECKS).map(|_| Box::pin(ask_nothing(&health, CHECK, None))).collect();
        assert!(waiting.iter_mut().all(|check| check.as_mut().now_or_never().is_none()));
        let (refused, after) = ask_nothing(&health, CHECK, None).await;
        assert_eq!((refused.unwrap().code(), after), (Code::ResourceExhausted, Duration::ZERO));
        let request = Request::post(CHECK).header("content-type", "application/grpc");
        let request = request.body(Body::new(http_body_util::Full::new(Bytes::from_static(&[0; 5])))).unwrap();
        let answered = health.clone().answer(request, CancellationToken::new()).await;
        // Each frame is let go before the next, as HTTP/2 does: the body waits for that.
        let mut body = answered.into_body();
        drop(body.frame().await.unwrap().unwrap().into_data().unwrap());
        let trailers = body.frame().await.unwrap().unwrap().into_trailers().unwrap();
        assert_eq!(Status::from_header_map(&trailers).unwrap().code(), Code::Ok);
        drop(waiting);
        assert_eq!(health.checks.available_permits(), CHECKS);
    }
}
