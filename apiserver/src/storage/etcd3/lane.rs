//! A connection to one of several etcd servers, and the change to another when it fails.
//!
//! A lane holds one connection. All calls go there until one fails for want of the connection or the server; then the next
//! call dials, beginning with the next server, and the first connection that stands wins. While nothing can be reached,
//! attempts are spaced out, and calls in between are told at once what the last attempt met.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt as _, stream::FuturesUnordered};
use parking_lot::Mutex;
use rand::Rng as _;
use tokio::time::Instant;
use tonic::transport::Channel;

use super::dial::{Target, Transport};

/// How long one server is waited for before the next is dialled as well.
const STAGGER: Duration = Duration::from_millis(300);
const MIN_DELAY: Duration = Duration::from_millis(50);
const MAX_DELAY: Duration = Duration::from_secs(1);

pub(super) struct Lane {
    targets: Arc<[Target]>,
    transport: Transport,
    /// The key whose read shows that a server works.
    proof: Bytes,
    state: Mutex<State>,
    /// Held by the one who dials; the others wait for the outcome.
    dialing: tokio::sync::Mutex<()>,
}

struct State {
    live: Option<Connection>,
    generation: u64,
    /// The server to begin with next time.
    next: usize,
    failure: Option<Failure>,
}

/// A connection to take calls; which one, so that it can be given up once.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) channel: Channel,
    generation: u64,
}

struct Failure {
    until: Instant,
    delay: Duration,
    why: String,
}

impl Lane {
    /// A lane that begins with the server numbered `first`, so that lanes spread over the servers.
    pub(super) fn new(targets: Arc<[Target]>, transport: Transport, proof: Bytes, first: usize) -> Self {
        let state = State { live: None, generation: 0, next: first, failure: None };
        Self { targets, transport, proof, state: Mutex::new(state), dialing: tokio::sync::Mutex::new(()) }
    }

    /// The connection, made if there is none. The error tells what each server answered.
    pub(super) async fn connection(&self) -> Result<Connection, String> {
        if let Some(live) = self.live() {
            return Ok(live);
        }
        let _turn = self.dialing.lock().await;
        if let Some(live) = self.live() {
            return Ok(live);
        }
        let first = {
            let state = self.state.lock();
            match &state.failure {
                Some(failure) if failure.until > Instant::now() => return Err(failure.why.clone()),
                _ => state.next,
            }
        };
        let dialled = self.dial(first).await;

        let mut state = self.state.lock();
        match dialled {
            Ok((server, channel)) => {
                state.generation += 1;
                state.next = server;
                state.failure = None;
                let live = Connection { channel, generation: state.generation };
                state.live = Some(live.clone());
                Ok(live)
            }
            Err(why) => {
                let last = state.failure.as_ref().map_or(MIN_DELAY / 2, |failure| failure.delay);
                let delay = (last * 2).min(MAX_DELAY);
                state.failure = Some(Failure { until: Instant::now() + jittered(delay), delay, why: why.clone() });
                Err(why)
            }
        }
    }

    /// Gives up a connection that failed: the next call dials, another server first. Calls under way on it go on.
    pub(super) fn give_up(&self, failed: &Connection) {
        let mut state = self.state.lock();
        if state.live.as_ref().is_some_and(|live| live.generation == failed.generation) {
            state.live = None;
            state.next = (state.next + 1) % self.targets.len();
        }
    }

    pub(super) fn has_alternatives(&self) -> bool {
        self.targets.len() > 1
    }

    fn live(&self) -> Option<Connection> {
        self.state.lock().live.clone()
    }

    async fn dial(&self, first: usize) -> Result<(usize, Channel), String> {
        let count = self.targets.len();
        let order = self.targets.iter().enumerate().cycle().skip(first % count.max(1)).take(count);
        let mut waiting =
            order.map(|(server, target)| async move { (server, target.dial(self.transport, &self.proof).await) });
        let mut attempts = FuturesUnordered::new();
        let mut failures = Vec::new();
        loop {
            let more = match waiting.next() {
                Some(attempt) => {
                    attempts.push(attempt);
                    true
                }
                None => false,
            };
            if attempts.is_empty() {
                return Err(failures.join("; "));
            }
            tokio::select! {
                Some((server, outcome)) = attempts.next() => match outcome {
                    Ok(channel) => return Ok((server, channel)),
                    Err(why) => failures.push(why),
                },
                () = tokio::time::sleep(STAGGER), if more => {}
            }
        }
    }
}

/// Between half and the whole of a delay, so that many who failed together do not come back together.
pub(super) fn jittered(delay: Duration) -> Duration {
    delay.mul_f64(rand::rng().random_range(0.5..=1.0))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn lane(servers: &[&str]) -> Lane {
        let targets: Arc<[Target]> = servers.iter().map(|server| Target::parse(server, None).unwrap()).collect();
        let transport = Transport {
            dial_timeout: Duration::from_secs(5),
            keepalive_interval: Duration::from_secs(10),
            keepalive_timeout: Duration::from_secs(10),
            stream_window: 1 << 20,
            connection_window: 1 << 20,
        };
        Lane::new(targets, transport, Bytes::from_static(b"/health"), 0)
    }

    #[tokio::test]
    async fn what_failed_is_given_up_once_and_another_server_is_next() {
        let lane = lane(&["http://a:1", "http://b:1"]);
        let channel = tonic::transport::Endpoint::from_static("http://a:1").connect_lazy();
        let connection = |generation| Connection { channel: channel.clone(), generation };
        lane.state.lock().live = Some(connection(2));
        // An older one failed late: that says nothing about this one.
        lane.give_up(&connection(1));
        assert!(lane.live().is_some() && lane.state.lock().next == 0);
        lane.give_up(&connection(2));
        assert!(lane.live().is_none() && lane.state.lock().next == 1);
        lane.give_up(&connection(2));
        assert_eq!(lane.state.lock().next, 1);
    }

    #[tokio::test]
    async fn while_nothing_can_be_reached_few_attempts_are_made_for_many_calls() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let lane = lane(&[&format!("http://{}", listener.local_addr().unwrap())]);
        let attempts = AtomicUsize::new(0);
        let refuse = async {
            while let Ok((connection, _)) = listener.accept().await {
                attempts.fetch_add(1, Ordering::Relaxed);
                drop(connection);
            }
        };
        let calls = futures::future::join_all((0..200).map(|_| lane.connection()));
        let outcomes = tokio::select! {
            () = refuse => panic!("the listener goes on"),
            outcomes = calls => outcomes,
        };
        assert!(outcomes.iter().all(Result::is_err));
        let attempts = attempts.into_inner();
        assert!((1..20).contains(&attempts), "{attempts}");
    }
}
