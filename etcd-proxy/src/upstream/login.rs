//! Sending by name and password: each request with a token, and once more with a new one where the token was refused.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body_util::BodyExt as _;
use prost::Message;
use proto::etcdserverpb::{AuthenticateRequest, AuthenticateResponse, RangeRequest};
use tonic::Status;

use super::{
    UpstreamBody,
    credentials::{self, Credentials, Ticket},
    dial::Traffic,
    payload::Payload,
    pool::Pool,
};
use crate::grpc::{self, UpstreamHeaders, framing::put_message};

/// How often a request gets another token. One more than one: users and roles may change while it is under way.
const TOKENS: usize = 3;

impl Pool {
    /// Sends a request as `user`.
    pub(super) async fn send_as(
        self: &Arc<Self>,
        user: &Arc<Credentials>,
        request: Request<Payload>,
    ) -> Result<Response<UpstreamBody>, Status> {
        match self.traffic() {
            Traffic::Streams => self.open_as(user, request).await,
            Traffic::Unary | Traffic::Ranges => {
                let (parts, payload) = request.into_parts();
                // One message, of which nothing is copied.
                let frame = payload.into_frame().await?;
                self.ask_as(user, || Request::from_parts(parts.clone(), Payload::Frame(frame.clone()))).await
            }
        }
    }

    /// Sends a request, again where its token was refused: it was not carried out then.
    async fn ask_as(
        self: &Arc<Self>,
        user: &Arc<Credentials>,
        request: impl Fn() -> Request<Payload>,
    ) -> Result<Response<UpstreamBody>, Status> {
        for _ in 0..TOKENS {
            let ticket = self.ticket(user).await?;
            let response = self.deliver(request(), Some(ticket.clone())).await?;
            if !is_refused(&response) {
                return Ok(response);
            }
            ticket.refused();
        }
        Err(credentials::not_logged_in())
    }

    /// Opens a stream. Its token is that of its beginning, and what etcd refuses on it later comes as an answer among
    /// others: so the token is tried first.
    async fn open_as(
        self: &Arc<Self>,
        user: &Arc<Credentials>,
        request: Request<Payload>,
    ) -> Result<Response<UpstreamBody>, Status> {
        // Read from the member's own store; that it may not be read is an answer as good as any.
        let probe =
            RangeRequest { key: Bytes::from_static(b"\0"), serializable: true, count_only: true, ..Default::default() };
        let probe = frame(&probe)?;
        let probed = self.ask_as(user, || message("/etcdserverpb.KV/Range", probe.clone())).await?;
        // Read to its end, so that the stream is not reset.
        probed.into_body().collect().await?;
        let ticket = self.ticket(user).await?;
        let response = self.deliver(request, Some(ticket.clone())).await?;
        if is_refused(&response) {
            ticket.refused();
            return Err(credentials::expired());
        }
        Ok(response)
    }

    async fn ticket(self: &Arc<Self>, user: &Arc<Credentials>) -> Result<Ticket, Status> {
        let pool = self.clone();
        user.ticket(self.dialer().metrics(), |request| async move { pool.authenticate(&request).await }).await
    }

    async fn authenticate(&self, request: &AuthenticateRequest) -> Result<AuthenticateResponse, Status> {
        let request = message("/etcdserverpb.Auth/Authenticate", frame(request)?);
        let answer = grpc::read_answer(self.deliver(request, None).await?, None).await?;
        AuthenticateResponse::decode(answer.message)
            .map_err(|error| Status::internal(format!("the answer to Authenticate cannot be decoded: {error}")))
    }
}

/// Whether the head of a response, which is all that etcd sends of a refused request, refuses the token.
fn is_refused(response: &Response<UpstreamBody>) -> bool {
    Status::from_header_map(response.headers()).is_some_and(|status| credentials::is_refusal(&status))
}

fn message(path: &'static str, frame: Bytes) -> Request<Payload> {
    UpstreamHeaders::default().request(path, Payload::Frame(frame))
}

fn frame(message: &impl Message) -> Result<Bytes, Status> {
    let mut frame = BytesMut::new();
    put_message(message, &mut frame)?;
    Ok(frame.freeze())
}
