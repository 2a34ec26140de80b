//! What is counted about requests to the API server.

use std::task::{Context, Poll};

use futures::future::BoxFuture;
use http::{Method, Request, Response};
use kube::{Client, client::ClientBuilder};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family},
    registry::Registry,
};
use tower::{Layer, Service};

/// What is counted about requests to the API server; a layer of a client. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct RequestMetrics {
    answered: Family<AnswerLabels, Counter>,
    unanswered: Family<MethodLabel, Counter>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AnswerLabels {
    method: &'static str,
    code: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MethodLabel {
    method: &'static str,
}

/// A service whose answers are counted.
#[derive(Clone, Debug)]
pub struct CountedRequests<S> {
    inner: S,
    metrics: RequestMetrics,
}

impl RequestMetrics {
    /// Registers everything with `registry`.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "api_requests",
            "Requests that the API server answered, by HTTP method and status code",
            self.answered.clone(),
        );
        registry.register(
            "api_requests_failed",
            "Requests to the API server that came to no answer, by HTTP method",
            self.unanswered.clone(),
        );
    }

    /// A client whose requests are counted. It repeats nothing by itself: callers know better for how long an answer is of
    /// use to them.
    ///
    /// # Errors
    /// When the configuration does not make a client.
    pub fn client(&self, mut config: kube::Config) -> Result<Client, kube::Error> {
        config.default_retry = false;
        Ok(ClientBuilder::try_from(config)?.with_layer(self).build())
    }
}

impl<S> Layer<S> for RequestMetrics {
    type Service = CountedRequests<S>;

    fn layer(&self, inner: S) -> CountedRequests<S> {
        CountedRequests { inner, metrics: self.clone() }
    }
}

impl<S, B, R> Service<Request<B>> for CountedRequests<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<R>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let method = name(request.method());
        let answer = self.inner.call(request);
        let metrics = self.metrics.clone();
        Box::pin(async move {
            let answer = answer.await;
            match &answer {
                Ok(answer) => {
                    let code = answer.status().as_u16().into();
                    metrics.answered.get_or_create(&AnswerLabels { method, code }).inc();
                }
                Err(_) => {
                    metrics.unanswered.get_or_create(&MethodLabel { method }).inc();
                }
            }
            answer
        })
    }
}

fn name(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}
