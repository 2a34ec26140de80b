//! A pool of connections, and the tower service that tonic's clients send through.

use std::{
    fmt,
    future::Future,
    num::NonZeroUsize,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{
    Request, Response, Uri,
    uri::{Authority, Scheme},
};
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};
use tonic::{Status, body::Body};
use tower::Service;

use super::{
    UpstreamBody,
    credentials::Ticket,
    dial::{Dialer, Traffic},
    payload::Payload,
    revocable::revocable,
    sender::{Failure, Sender},
    status,
};
use crate::{
    depth::Depth,
    grpc::{Undecoded, until_end::OnEnd as _},
};

/// How often a request that was surely not sent looks for another connection before its client hears of it.
const ATTEMPTS: usize = 4;

/// A way to the shared etcd, for tonic's generated clients. Cheap to clone.
#[derive(Clone)]
pub struct UpstreamChannel {
    pool: Arc<Pool>,
}

/// Connections for one kind of traffic.
pub(super) struct Pool {
    dialer: Arc<Dialer>,
    traffic: Traffic,
    /// Places that are always there, and further ones for as long as all those are full.
    slots: Mutex<Vec<Arc<Slot>>>,
    /// How many are always there.
    lasting: usize,
}

/// The place of one connection.
struct Slot {
    /// Endpoints in the order in which this place tries them; places start at different ones.
    candidates: Box<[usize]>,
    state: Mutex<State>,
    in_flight: Arc<AtomicUsize>,
}

enum State {
    /// Not connected. Nobody dials until a request needs it.
    Idle,
    /// A dial is under way; whether a connection was made is told here.
    Connecting(watch::Receiver<bool>),
    Ready(Connection),
}

#[derive(Clone)]
struct Connection {
    endpoint: usize,
    sender: Sender,
    scheme: Scheme,
    authority: Authority,
}

/// Counts one request on its connection until it is dropped.
#[derive(Debug)]
pub(super) struct InFlight(Arc<AtomicUsize>);

// === impl UpstreamChannel ===

impl UpstreamChannel {
    pub(super) fn new(pool: Pool) -> Self {
        Self { pool: Arc::new(pool) }
    }

    /// Sends a request of one frame and waits for the head of the response.
    ///
    /// # Errors
    /// `Unavailable` when no endpoint takes it, and when the connection is lost before there is an answer.
    pub async fn ask(&self, request: Request<Bytes>) -> Result<Response<UpstreamBody>, Status> {
        // Apart, so that it has one place in memory however many futures it passes through.
        Box::pin(self.pool.send(request.map(Payload::Frame))).await
    }
}

impl Service<Request<Body>> for UpstreamChannel {
    type Response = Response<UpstreamBody>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Status>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let pool = self.pool.clone();
        Box::pin(async move { pool.send(request.map(Payload::Body)).await })
    }
}

impl fmt::Debug for UpstreamChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamChannel").field("traffic", &self.pool.traffic).finish_non_exhaustive()
    }
}

// === impl Pool ===

impl Pool {
    pub(super) fn unary(dialer: Arc<Dialer>, connections: NonZeroUsize) -> Self {
        Self::new(dialer, connections, Traffic::Unary)
    }

    pub(super) fn ranges(dialer: Arc<Dialer>, connections: NonZeroUsize) -> Self {
        Self::new(dialer, connections, Traffic::Ranges)
    }

    pub(super) fn streams(dialer: Arc<Dialer>, connections: NonZeroUsize) -> Self {
        Self::new(dialer, connections, Traffic::Streams)
    }

    /// What its connections are for.
    pub(super) fn traffic(&self) -> Traffic {
        self.traffic
    }

    pub(super) fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    /// One connection to one endpoint and no other.
    pub(super) fn to_member(dialer: Arc<Dialer>, endpoint: usize) -> Self {
        let slot = Slot::new(Box::new([endpoint]));
        Self { dialer, traffic: Traffic::Unary, slots: Mutex::new(vec![Arc::new(slot)]), lasting: 1 }
    }

    fn new(dialer: Arc<Dialer>, connections: NonZeroUsize, traffic: Traffic) -> Self {
        let lasting = connections.get();
        let slots = (0..lasting).map(|number| Slot::numbered(number, &dialer)).collect();
        Self { dialer, traffic, slots: Mutex::new(slots), lasting }
    }

    async fn send(self: &Arc<Self>, mut request: Request<Payload>) -> Result<Response<UpstreamBody>, Status> {
        let span = self.dialer.tracer().and_then(|tracer| tracer.ask(&mut request));
        let answer = match self.dialer.user() {
            None => self.deliver(request, None).await,
            // Apart: its state is many times that of a request without a user.
            Some(user) => Box::pin(self.send_as(user, request)).await,
        };
        match span {
            None => answer,
            Some(mut span) => match answer {
                Ok(response) => Ok(response.map(|body| body.within(span))),
                Err(status) => {
                    span.end(status.code());
                    Err(status)
                }
            },
        }
    }

    /// Sends a request to whichever endpoint takes it, by `ticket` if there is one.
    pub(super) async fn deliver(
        &self,
        mut request: Request<Payload>,
        ticket: Option<Ticket>,
    ) -> Result<Response<UpstreamBody>, Status> {
        if let Some(ticket) = &ticket {
            ticket.stamp(request.headers_mut());
        }
        let mut listening = None;
        if let Traffic::Streams = self.traffic {
            let (parts, payload) = request.into_parts();
            let (body, guard) = revocable(payload.into_body());
            request = Request::from_parts(parts, Payload::Body(body));
            listening = Some(guard);
        }
        let depth = if Undecoded::is_on(&request) { None } else { Depth::of(request.uri().path()) };
        for _ in 0..ATTEMPTS {
            let (connection, in_flight) = self.connection().await?;
            let mut uri = std::mem::take(request.uri_mut()).into_parts();
            uri.scheme = Some(connection.scheme.clone());
            uri.authority = Some(connection.authority.clone());
            *request.uri_mut() =
                Uri::from_parts(uri).map_err(|_| Status::internal("etcd-proxy: request without a path"))?;
            let sent = Instant::now();
            match connection.sender.send(request).await {
                Ok(response) => {
                    // A stream's head comes with its first message, whenever that is.
                    if let Traffic::Unary = self.traffic {
                        self.dialer.metrics().answered(sent.elapsed());
                    }
                    self.dialer.succeeded(connection.endpoint);
                    return Ok(response.map(|body| UpstreamBody::new(body, depth, in_flight, listening, ticket)));
                }
                Err(Failure::Unsent(unsent)) => request = *unsent,
                Err(Failure::Lost(status)) => return Err(status),
            }
        }
        Err(status::unavailable())
    }

    /// An open connection with room for a request, waiting for one that is being made if there is none.
    async fn connection(&self) -> Result<(Connection, InFlight), Status> {
        let mut attempts = ATTEMPTS;
        while attempts > 0 {
            let (found, missing) = self.look();
            if let Some((connection, in_flight)) = found {
                // Further connections are opened once the open ones are busy, and not waited for.
                if let Some(missing) = missing {
                    self.connecting(&missing);
                }
                return Ok((connection, in_flight));
            }
            let Some(slot) = missing else { break };
            let Some(mut dialled) = self.connecting(&slot) else {
                break;
            };
            // None of the endpoints could be connected to: asking them all once more is the next request's business.
            if dialled.wait_for(|made| *made).await.is_err() {
                break;
            }
            // What was made may be full already, of others that have waited for it, or closed again.
            if !slot.is_ready() {
                attempts -= 1;
            }
        }
        Err(status::unavailable())
    }

    /// The open connection with the fewest requests, of those that are always there if one of them has room; and a place of
    /// one that is wanted.
    fn look(&self) -> (Option<(Connection, InFlight)>, Option<Arc<Slot>>) {
        let room = self.traffic.room();
        let mut slots = self.slots.lock();
        let mut best: Option<(bool, usize, usize, Connection)> = None;
        let mut missing = None;
        for (number, slot) in slots.iter().enumerate() {
            let further = number >= self.lasting;
            match &*slot.state.lock() {
                State::Ready(connection) if !connection.sender.is_closed() => {
                    let load = slot.in_flight.load(Ordering::Relaxed);
                    if load < room && best.as_ref().is_none_or(|best| (further, load) < (best.0, best.1)) {
                        best = Some((further, load, number, connection.clone()));
                    }
                }
                _ => missing = missing.or(Some(number)),
            }
        }
        let Some((_, load, number, connection)) = best else {
            let missing = missing.unwrap_or_else(|| {
                // All are full.
                let number = slots.len();
                slots.push(Slot::numbered(number, &self.dialer));
                number
            });
            return (None, slots.get(missing).cloned());
        };
        let missing = missing.filter(|missing| load > 0 && *missing < self.lasting);
        let missing = missing.and_then(|number| slots.get(number).cloned());
        let in_flight = slots.get(number).map(|slot| InFlight::new(&slot.in_flight));
        // What is not needed any more is closed once its last stream has ended.
        if number < self.lasting {
            while slots.len() > self.lasting && slots.last().is_some_and(|slot| slot.is_idle()) {
                slots.pop();
            }
        }
        (in_flight.map(|in_flight| (connection, in_flight)), missing)
    }

    /// The dial that is under way for `slot`, started if need be. `None` while all its endpoints are to be left alone.
    fn connecting(&self, slot: &Arc<Slot>) -> Option<watch::Receiver<bool>> {
        let mut state = slot.state.lock();
        match &*state {
            // A dial whose task was lost with its runtime is not waited for.
            State::Connecting(dialled) if dialled.has_changed().is_ok() => return Some(dialled.clone()),
            // Made by somebody else since the caller looked: nothing to wait for.
            State::Ready(connection) if !connection.sender.is_closed() => {
                return Some(watch::channel(true).1);
            }
            _ if !self.dialer.may_dial(&slot.candidates) => {
                *state = State::Idle;
                return None;
            }
            _ => {}
        }
        let (done, dialled) = watch::channel(false);
        *state = State::Connecting(dialled.clone());
        drop(state);
        // A task of its own: a client that gives up must not break off the dial that others wait for. It ends within the
        // dial timeout and the endpoints' head starts; who needs its connection waits for that, and nobody at the end of the process.
        let (dialer, traffic, slot) = (self.dialer.clone(), self.traffic, slot.clone());
        tokio::spawn(async move {
            let dialled = dialer.dial(&slot.candidates, traffic, &slot.in_flight).await;
            let connection = dialled.and_then(|dialled| {
                let endpoint = dialer.endpoint(dialled.endpoint)?;
                Some(Connection {
                    endpoint: dialled.endpoint,
                    sender: dialled.sender,
                    scheme: endpoint.scheme(),
                    authority: endpoint.authority().clone(),
                })
            });
            let made = connection.is_some();
            *slot.state.lock() = connection.map_or(State::Idle, State::Ready);
            done.send_replace(made);
        });
        Some(dialled)
    }
}

// === impl Slot ===

impl Slot {
    fn new(candidates: Box<[usize]>) -> Self {
        Self { candidates, state: Mutex::new(State::Idle), in_flight: Arc::default() }
    }

    /// The place of this number, which decides where it begins to look.
    fn numbered(number: usize, dialer: &Dialer) -> Arc<Self> {
        let endpoints = dialer.endpoints();
        let order = (0..endpoints).map(|offset| (number + offset) % endpoints.max(1)).collect();
        Arc::new(Self::new(order))
    }

    fn is_ready(&self) -> bool {
        matches!(&*self.state.lock(), State::Ready(connection) if !connection.sender.is_closed())
    }

    /// Whether there is neither a connection with requests nor a dial.
    fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) == 0 && !matches!(&*self.state.lock(), State::Connecting(_))
    }
}

// === impl InFlight ===

impl InFlight {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
