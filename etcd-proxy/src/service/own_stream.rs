//! Streams of answers that are made here, one when the client has taken the one before.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use http::Response;
use http_body::Frame;
use tonic::{Code, Status, body::Body};

use super::{grpc_response, stream::Watched};
use crate::{
    grpc::{self, Abandon, Deadline, Patience, Patient},
    metrics::Call,
    tenant::Tenant,
};

/// The frames of the answers.
type Answers = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

/// The body of the response.
struct OwnStream {
    /// An answer that is there already.
    first: Option<Bytes>,
    /// Gone once the stream has ended.
    answers: Option<Answers>,
    watched: Watched,
    call: Call,
}

/// Serves the answers that `open` comes to. Returns once there is one, or none to come: grpc-go sends the response's headers with
/// the first message. A client that tries `patience` loses the rest.
pub(super) async fn serve<S>(
    tenant: &Tenant,
    deadline: Deadline,
    mut call: Call,
    patience: Patience,
    open: impl Future<Output = Result<S, Status>>,
) -> Result<Response<Body>, Status>
where
    S: Stream<Item = Result<Bytes, Status>> + Send + 'static,
{
    let mut watched = Watched::new(tenant, deadline);
    let opened = async {
        let mut answers = Box::pin(open.await?);
        let first = answers.next().await.transpose()?;
        Ok((answers, first))
    };
    let opened = tokio::select! {
        biased;
        status = std::future::poll_fn(|cx| watched.poll(cx)) => Err(status),
        opened = opened => opened.map_err(|status| deadline.explain(status)),
    };
    match opened {
        Ok((answers, first)) => {
            let stream = OwnStream { first, answers: Some(answers), watched, call };
            Ok(grpc_response(Body::new(Patient::new(stream, patience))))
        }
        Err(status) => {
            call.end(status.code());
            Err(status)
        }
    }
}

impl Abandon for OwnStream {
    fn abandon(mut self, status: &Status) {
        self.call.end(status.code());
    }
}

impl http_body::Body for OwnStream {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if let Some(first) = this.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        let Some(answers) = &mut this.answers else { return Poll::Ready(None) };
        let status = match this.watched.poll(cx) {
            Poll::Ready(status) => status,
            Poll::Pending => match ready!(answers.as_mut().poll_next(cx)) {
                Some(Ok(frame)) => return Poll::Ready(Some(Ok(Frame::data(frame)))),
                Some(Err(status)) => this.watched.explain(status),
                None => Status::new(Code::Ok, ""),
            },
        };
        this.call.end(status.code());
        this.answers = None;
        Poll::Ready(Some(Ok(Frame::trailers(grpc::trailers(&status)))))
    }
}
