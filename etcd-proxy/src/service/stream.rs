//! The way of a stream: one client stream is one upstream stream, rewritten frame by frame.
//!
//! No task stands between the two. The upstream's connection pulls requests through [`RequestStream`], the client's
//! connection pulls responses through [`ResponseStream`], so whoever is slow slows its peer and nobody else, and nothing is
//! queued here. A long message takes a share of the tenant's memory before it is read on, and keeps it until the client has
//! it; a client that reads nothing at all loses its stream.

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use http::{HeaderMap, Response};
use http_body::Frame;
use http_body_util::{Full, StreamBody};
use prometheus_client::metrics::gauge::Gauge;
use proto::etcdserverpb::{RangeRequest, WatchRequest};
use tokio::{
    sync::{OwnedSemaphorePermit, oneshot},
    time::Sleep,
};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::{Code, Status, body::Body};
use tower::Service as _;

use super::{ClientCall, grpc_response, methods::Stream, unary};
use crate::{
    error::EtcdError,
    grpc::{
        self, Abandon, Arrived, Deadline, Incoming, LONG, NoShare, Patient, Share, UpstreamHeaders,
        framing::{Frames, put_message},
    },
    metrics::{Call, add_bytes},
    rewrite::{Interrupt, KeepAliveStream, RangeParts, Rewriter, View, WatchStream},
    tenant::Tenant,
    unknown::{self, SchemaError},
    upstream::{self, UpstreamBody, UpstreamChannel},
};

/// How much is collected of messages that have arrived already before it is passed on.
const BATCH: usize = 16 * 1024;

/// Text of the status of a stream that has waited in vain for a share of the memory for long answers.
const NO_MEMORY: &str = "etcd-proxy: no memory got free for a long message of this stream";

/// The client's messages on their way to the upstream.
struct RequestStream {
    path: &'static str,
    client: Incoming<Body>,
    rewriter: Arc<dyn Rewriter>,
    tenant: Tenant,
    /// Whether its messages count against the tenant's rate of requests.
    limited: bool,
    /// A message that waits for something: its turn, or what has to be loaded.
    waiting: Option<(Bytes, Loading)>,
    /// What is wrong with the message after those that have been passed on.
    refused: Option<Status>,
    /// Tells the response side why the stream ends.
    failure: Option<oneshot::Sender<Status>>,
    /// Whether the upstream gets to answer what came before the failure.
    ending: Ending,
}

/// How a stream ends because of its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// At once, as etcd's watch does: it goes on with the messages beside reading them.
    AtOnce,
    /// Once the upstream has answered the messages before, as etcd's keep-alive does: it reads a message when it has answered
    /// the one before.
    Answered,
}

/// The upstream's messages on their way to the client.
struct ResponseStream {
    path: &'static str,
    /// Gone once the stream has ended.
    upstream: Option<UpstreamBody>,
    frames: Frames,
    rewriter: Arc<dyn Rewriter>,
    tenant: Tenant,
    /// The status in the response's headers, which holds if no trailers come.
    head: Option<Status>,
    /// A message that waits for something to be loaded.
    waiting: Option<(Bytes, Loading)>,
    memory: Memory,
    /// The status that follows what has been passed on.
    ending: Option<Status>,
    watched: Watched,
    /// None of a stream that is no call of a client's.
    call: Option<Call>,
    _open: Option<Open>,
}

/// What a stream has of the memory for long answers.
enum Memory {
    /// It takes none: how many such streams there are is bounded.
    Unasked,
    /// None at the moment.
    Nothing,
    /// It waits for a share, and reads nothing meanwhile.
    Wanted(Pin<Box<dyn Future<Output = Result<Share, NoShare>> + Send>>),
    /// A share for a message that arrives.
    Arriving(Share),
    /// A share for a message that the client takes.
    Leaving(#[expect(dead_code, reason = "dropping it is what counts")] Share),
}

/// Ends with whether the tenant has never been granted a lease.
type Loading = Pin<Box<dyn Future<Output = Result<bool, Status>> + Send>>;

/// What can end a stream besides its two ends.
pub(super) struct Watched {
    failure: Option<Failure>,
    /// The end of the tenant. A range ends by itself and is waited for.
    stop: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    deadline: Deadline,
    expiry: Option<Pin<Box<Sleep>>>,
}

/// What the request side has to say about the end.
struct Failure {
    failed: oneshot::Receiver<Status>,
    ending: Ending,
}

/// Counts an open stream.
struct Open {
    gauge: Gauge,
    _place: Option<OwnedSemaphorePermit>,
}

/// Opens a stream. Returns once the upstream has answered with headers, as etcd sends its own with the first message.
pub(super) async fn serve(
    tenant: &Tenant,
    kind: &Stream,
    client: ClientCall,
    call: Call,
) -> Result<Response<Body>, Status> {
    Ok(grpc_response(respond(tenant, kind, client, Some(call)).await?))
}

/// A watch stream of this process's own with one request. It counts among the tenant's watches, and not among its calls.
pub(super) async fn own_watch(
    tenant: &Tenant,
    headers: UpstreamHeaders,
    request: &WatchRequest,
) -> Result<Body, Status> {
    let mut frame = BytesMut::new();
    put_message(request, &mut frame)?;
    let frame = Frame::data(frame.freeze());
    // The stream of requests stays open: not everything that may stand between bears a half-closed watch.
    let requests = futures::stream::iter([Ok::<_, Status>(frame)]).chain(futures::stream::pending());
    let client = ClientCall {
        path: "/etcdserverpb.Watch/Watch",
        headers,
        deadline: Deadline::never(),
        incoming: Incoming::new(
            Body::new(StreamBody::new(requests)),
            Frames::new(tenant.max_message_bytes()),
            tenant.request_budget().clone(),
        ),
    };
    respond(tenant, &Stream::Watch, client, None).await
}

async fn respond(tenant: &Tenant, kind: &Stream, client: ClientCall, mut call: Option<Call>) -> Result<Body, Status> {
    let (deadline, path) = (client.deadline, client.path);
    let opened = deadline.limit(pin!(open(tenant, kind, client, call.is_some()))).await;
    let checked = opened.and_then(|opened| {
        grpc::check_response(opened.upstream.status(), opened.upstream.headers())?;
        Ok(opened)
    });
    match checked {
        Ok(Opened { upstream, rewriter, watched, open }) => {
            let (parts, upstream) = upstream.into_parts();
            let stream = ResponseStream {
                path,
                upstream: Some(upstream),
                frames: Frames::trusted(),
                rewriter,
                tenant: tenant.clone(),
                head: grpc::status_of(&parts.headers),
                waiting: None,
                memory: if let Stream::Range = kind { Memory::Unasked } else { Memory::Nothing },
                ending: None,
                watched,
                call,
                _open: open,
            };
            Ok(match (kind, stream.call.is_some()) {
                (Stream::Range, _) => Body::new(Patient::new(stream, tenant.answer_patience())),
                (Stream::Watch | Stream::KeepAlive, true) => Body::new(Patient::new(stream, tenant.stream_patience())),
                // Who reads it is this process, which looks after its own client.
                (Stream::Watch | Stream::KeepAlive, false) => Body::new(stream),
            })
        }
        Err(status) => {
            if let Some(call) = &mut call {
                call.end(status.code());
            }
            Err(status)
        }
    }
}

/// A stream that the upstream has answered.
struct Opened {
    upstream: Response<UpstreamBody>,
    rewriter: Arc<dyn Rewriter>,
    watched: Watched,
    open: Option<Open>,
}

async fn open(tenant: &Tenant, kind: &Stream, client: ClientCall, limited: bool) -> Result<Opened, Status> {
    let ClientCall { path, headers, deadline, incoming } = client;
    // Large ranges keep to a connection of their own, so that nobody waits for their readers.
    let mut channel = match kind {
        Stream::Range => tenant.upstream().ranges(),
        _ => tenant.upstream().streams(),
    };
    let (rewriter, request, failure, open): (Arc<dyn Rewriter>, _, _, _) = match kind {
        Stream::Range => {
            let rewriter = unknown::schema().and_then(RangeParts::new).map_err(internal)?;
            let Arrived { message, share: _held } = incoming.only().await?;
            let frame =
                match unary::rewritten(tenant, path, &mut false, |view, out| rewriter.request(view, &message, out))
                    .await
                {
                    Ok(frame) => frame,
                    Err(refused) => return Err(refused_range(channel, path, headers, tenant, refused).await),
                };
            tenant.check_length(&frame)?;
            add_bytes(&tenant.metrics().rewritten_requests, frame.len());
            let place = tenant.range_stream_place().await?;
            let open = Open { gauge: counted(&tenant.metrics().range_streams), _place: Some(place) };
            (Arc::new(rewriter), Body::new(Full::new(frame.freeze())), None, Some(open))
        }
        Stream::Watch => {
            let watches = tenant.limits().watches().clone();
            let by_token = tenant.upstream().user().is_some();
            let rewriter = unknown::schema().and_then(|schema| WatchStream::new(schema, watches));
            let rewriter = Arc::new(rewriter.map_err(internal)?.by_token(by_token));
            let (request, failure) =
                RequestStream::open(path, incoming, rewriter.clone(), tenant, Ending::AtOnce, limited);
            (rewriter, request, Some(failure), Some(Open::new(&tenant.metrics().watch_streams)))
        }
        Stream::KeepAlive => {
            let rewriter = Arc::new(unknown::schema().and_then(KeepAliveStream::new).map_err(internal)?);
            let (request, failure) =
                RequestStream::open(path, incoming, rewriter.clone(), tenant, Ending::Answered, limited);
            let open = Open::new(&tenant.metrics().keep_alive_streams);
            (rewriter, request, Some(failure), Some(open))
        }
    };
    let stop = match kind {
        Stream::Range => None,
        _ => Some(Box::pin(tenant.stop().clone().cancelled_owned())),
    };
    let mut watched = Watched { failure, stop, deadline, expiry: deadline.sleep().map(Box::pin) };
    // This process decodes what its own watches are told.
    let headers = if limited { headers.undecoded() } else { headers };
    let answer = channel.call(headers.request(path, request));
    tokio::select! {
        biased;
        status = std::future::poll_fn(|cx| watched.poll(cx)) => Err(status),
        answer = answer => Ok(Opened { upstream: answer?, rewriter, watched, open }),
    }
}

/// The answer to a RangeStream that is refused here. An upstream without RangeStream would refuse it otherwise, and clients
/// fall back on that answer alone: so it is asked first, for nothing.
async fn refused_range(
    channel: UpstreamChannel,
    path: &'static str,
    headers: UpstreamHeaders,
    tenant: &Tenant,
    refused: Status,
) -> Status {
    let nothing = RangeRequest { key: tenant.watermark_key(), count_only: true, ..Default::default() };
    let mut frame = BytesMut::new();
    if put_message(&nothing, &mut frame).is_err() {
        return refused;
    }
    match channel.ask(headers.request(path, frame.freeze())).await {
        Ok(answer) => match grpc::check_response(answer.status(), answer.headers()) {
            Err(status) if status.code() == Code::Unimplemented => status,
            _ => refused,
        },
        Err(_) => refused,
    }
}

// === impl RequestStream ===

impl RequestStream {
    /// The body for the upstream, and what tells why it broke off.
    fn open(
        path: &'static str,
        client: Incoming<Body>,
        rewriter: Arc<dyn Rewriter>,
        tenant: &Tenant,
        ending: Ending,
        limited: bool,
    ) -> (Body, Failure) {
        let (failure, failed) = oneshot::channel();
        let (tenant, failure) = (tenant.clone(), Some(failure));
        let stream = Self { path, client, rewriter, tenant, limited, waiting: None, refused: None, failure, ending };
        (Body::new(stream), Failure { failed, ending })
    }

    /// The frames for the upstream of the messages that have arrived. Sets `waiting` or `refused` where that cannot go on.
    fn rewrite(&mut self) -> BytesMut {
        let mut out = BytesMut::new();
        while out.len() < BATCH && self.waiting.is_none() && self.refused.is_none() {
            match self.client.message() {
                Ok(Some(Arrived { message, share })) if self.limited && !self.tenant.limits().message() => {
                    let tenant = self.tenant.clone();
                    let turn = async move {
                        // What there is of the message goes on taking memory.
                        let _held = share;
                        tenant.limits().turn().await;
                        Ok(false)
                    };
                    self.waiting = Some((message, Box::pin(turn)));
                }
                Ok(Some(arrived)) => self.rewrite_one(arrived.message, false, &mut out),
                Ok(None) => break,
                Err(status) => self.refused = Some(status),
            }
        }
        out
    }

    fn rewrite_one(&mut self, message: Bytes, never_granted: bool, out: &mut BytesMut) {
        let before = out.len();
        match self.rewriter.request(&View { never_granted, ..self.tenant.view() }, &message, out) {
            Ok(()) => {
                let frame = out.get(before..).unwrap_or_default();
                match self.tenant.check_length(frame) {
                    Ok(()) => add_bytes(&self.tenant.metrics().rewritten_requests, frame.len()),
                    Err(too_long) => {
                        out.truncate(before);
                        self.refused = Some(too_long.into());
                    }
                }
            }
            Err(interrupt) => {
                let (tenant, path) = (self.tenant.clone(), self.path);
                self.waiting = Some((message, Box::pin(async move { tenant.resolve(interrupt, path).await })));
            }
        }
    }

    /// Ends the upstream's side: broken off, or with nothing more to come.
    fn fail(&mut self, status: Status) -> Option<Result<Frame<Bytes>, Status>> {
        if let Some(failure) = self.failure.take() {
            // Nobody listens once the response has ended.
            let _gone = failure.send(status.clone());
        }
        match self.ending {
            Ending::AtOnce => Some(Err(status)),
            Ending::Answered => None,
        }
    }
}

impl http_body::Body for RequestStream {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            if let Some((_, loading)) = &mut self.waiting {
                let loaded = ready!(loading.as_mut().poll(cx));
                if let Some((message, _)) = self.waiting.take() {
                    let mut out = BytesMut::new();
                    match loaded {
                        Ok(never_granted) => self.rewrite_one(message, never_granted, &mut out),
                        Err(status) => self.refused = Some(status),
                    }
                    if !out.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(out.freeze()))));
                    }
                }
                continue;
            }
            if let Some(status) = self.refused.take() {
                return Poll::Ready(self.fail(status));
            }
            let out = self.rewrite();
            if !out.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(out.freeze()))));
            }
            if self.waiting.is_some() || self.refused.is_some() {
                continue;
            }
            match ready!(self.client.poll_more(cx)) {
                Some(Ok(())) => {}
                Some(Err(status)) => return Poll::Ready(self.fail(status)),
                None => return Poll::Ready(None),
            }
        }
    }
}

// === impl ResponseStream ===

impl ResponseStream {
    /// Appends the client's frames of the messages that have arrived. Sets `waiting` or `ending` where that cannot go on.
    fn rewrite(&mut self, out: &mut BytesMut) {
        while out.len() < BATCH && self.waiting.is_none() && self.ending.is_none() {
            match self.frames.message() {
                Ok(Some(message)) => self.rewrite_one(message, out),
                Ok(None) => break,
                Err(status) => self.ending = Some(status),
            }
        }
    }

    /// Whether what has been collected goes to the client before more is read: there is enough of it, what comes next has to wait,
    /// or it has a share of the memory or needs one.
    fn has_to_leave(&self, collected: usize) -> bool {
        collected >= BATCH
            || self.waiting.is_some()
            || self.ending.is_some()
            || !matches!(self.memory, Memory::Nothing | Memory::Unasked)
            || self.frames.pending().is_some_and(|length| length >= LONG)
    }

    fn rewrite_one(&mut self, message: Bytes, out: &mut BytesMut) {
        let before = out.len();
        match self.rewriter.response(&self.tenant.view(), &message, out) {
            Ok(()) if out.len() == before => {
                // The client gets nothing of it, and so does not come for more.
                if let Memory::Arriving(_) = self.memory {
                    self.memory = Memory::Nothing;
                }
            }
            Ok(()) => add_bytes(&self.tenant.metrics().rewritten_responses, out.len().saturating_sub(before)),
            Err(Interrupt::LoginEnded) => {
                self.upstream.iter().for_each(UpstreamBody::refused);
                self.ending = Some(upstream::expired());
            }
            Err(interrupt) => {
                let (tenant, path) = (self.tenant.clone(), self.path);
                self.waiting = Some((message, Box::pin(async move { tenant.resolve(interrupt, path).await })));
            }
        }
    }

    /// Ready when what is announced may be read on.
    fn poll_memory(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), NoShare>> {
        if let Memory::Nothing = self.memory
            && let Some(length) = self.frames.pending().filter(|length| *length >= LONG)
        {
            let tenant = self.tenant.clone();
            // The message, and the frame that is made of it.
            let bytes = length.saturating_mul(2);
            self.memory = Memory::Wanted(Box::pin(async move { tenant.budget().share_or_all(bytes).await }));
        }
        if let Memory::Wanted(share) = &mut self.memory {
            let share = ready!(share.as_mut().poll(cx));
            self.memory = Memory::Nothing;
            self.memory = Memory::Arriving(share?);
        }
        Poll::Ready(Ok(()))
    }

    /// The client takes this. What it has of the memory is given back when it comes for more.
    fn leave(&mut self, out: BytesMut) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.memory = match std::mem::replace(&mut self.memory, Memory::Nothing) {
            Memory::Arriving(share) => Memory::Leaving(share),
            other => other,
        };
        Poll::Ready(Some(Ok(Frame::data(out.freeze()))))
    }

    fn end(&mut self, status: Status) -> HeaderMap {
        if let Some(call) = &mut self.call {
            call.end(status.code());
        }
        // Dropping the upstream's side cancels it there.
        self.upstream = None;
        self.waiting = None;
        self.memory = Memory::Nothing;
        grpc::trailers(&status)
    }
}

impl Abandon for ResponseStream {
    fn abandon(mut self, status: &Status) {
        self.end(status.clone());
    }
}

impl http_body::Body for ResponseStream {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if this.upstream.is_none() {
            return Poll::Ready(None);
        }
        if let Poll::Ready(status) = this.watched.poll(cx) {
            return Poll::Ready(Some(Ok(Frame::trailers(this.end(status)))));
        }
        if let Memory::Leaving(_) = this.memory {
            this.memory = Memory::Nothing;
        }
        // What is collected here leaves before anything is waited for.
        let mut out = BytesMut::new();
        loop {
            if out.is_empty() {
                if let Some((_, loading)) = &mut this.waiting {
                    match ready!(loading.as_mut().poll(cx)) {
                        Ok(_) => {
                            if let Some((message, _)) = this.waiting.take() {
                                this.rewrite_one(message, &mut out);
                            }
                        }
                        Err(status) => {
                            this.waiting = None;
                            this.ending = Some(status);
                        }
                    }
                    continue;
                }
                if let Some(status) = this.ending.take() {
                    return Poll::Ready(Some(Ok(Frame::trailers(this.end(status)))));
                }
            }
            this.rewrite(&mut out);
            if !out.is_empty() && this.has_to_leave(out.len()) {
                return this.leave(out);
            }
            if this.waiting.is_some() || this.ending.is_some() {
                continue;
            }
            if ready!(this.poll_memory(cx)).is_err() {
                // Clients resume a stream that ends so.
                this.ending = Some(Status::unavailable(NO_MEMORY));
                continue;
            }
            let Some(upstream) = &mut this.upstream else { return Poll::Ready(None) };
            let frame = match Pin::new(upstream).poll_frame(cx) {
                Poll::Ready(frame) => frame,
                // A frame of the upstream's is mostly one short message, and many have come when many watches see one change.
                Poll::Pending if !out.is_empty() => return this.leave(out),
                Poll::Pending => return Poll::Pending,
            };
            match frame {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.frames.push(data),
                    Err(frame) => {
                        this.ending = this.watched.failed().or_else(|| frame.trailers_ref().and_then(grpc::status_of));
                    }
                },
                Some(Err(status)) => this.ending = Some(this.watched.explain(status)),
                None => {
                    let head = this.watched.failed().or_else(|| this.head.take());
                    this.ending = Some(head.unwrap_or_else(|| {
                        Status::unavailable("etcd-proxy: the upstream ended the stream without a status")
                    }));
                }
            }
        }
    }
}

// === impl Watched ===

impl Watched {
    /// For a stream without requests that could fail.
    pub(super) fn new(tenant: &Tenant, deadline: Deadline) -> Self {
        Self {
            failure: None,
            stop: Some(Box::pin(tenant.stop().clone().cancelled_owned())),
            deadline,
            expiry: deadline.sleep().map(Box::pin),
        }
    }

    /// See [`Deadline::explain`].
    pub(super) fn explain(&self, status: Status) -> Status {
        self.deadline.explain(status)
    }

    /// Ready with the status that ends the stream.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Status> {
        if let Some(Failure { failed, ending: Ending::AtOnce }) = &mut self.failure {
            match Pin::new(failed).poll(cx) {
                Poll::Ready(Ok(status)) => {
                    self.failure = None;
                    return Poll::Ready(status);
                }
                // The client has sent all it wanted to.
                Poll::Ready(Err(_)) => self.failure = None,
                Poll::Pending => {}
            }
        }
        if let Some(expiry) = &mut self.expiry
            && expiry.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(grpc::deadline_exceeded());
        }
        match &mut self.stop {
            Some(stop) => stop.as_mut().poll(cx).map(|()| EtcdError::Stopped.into()),
            None => Poll::Pending,
        }
    }

    /// What the request side has said by now.
    fn failed(&mut self) -> Option<Status> {
        self.failure.take().and_then(|mut failure| failure.failed.try_recv().ok())
    }
}

// === impl Open ===

impl Open {
    fn new(gauge: &Gauge) -> Self {
        Self { gauge: counted(gauge), _place: None }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}

fn internal(error: SchemaError) -> Status {
    Status::internal(error.to_string())
}

fn counted(gauge: &Gauge) -> Gauge {
    gauge.inc();
    gauge.clone()
}
