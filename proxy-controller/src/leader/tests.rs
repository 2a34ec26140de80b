//! Elections on an API server that can be slow, unreachable or faster than its answers, which a real one is not on demand.
//! Time is paused: it passes when everybody waits.

use std::{collections::VecDeque, convert::Infallible, sync::Arc};

use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::rt::Executor as _;
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::mpsc;
use tower::Layer as _;

use super::{fence::Connections, *};

/// The one Lease of an API server, and what goes wrong.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    lease: Option<Lease>,
    version: u64,
    /// For requests of the client with this name.
    faults: Vec<(&'static str, Fault)>,
    /// Verbs in order, by client.
    requests: VecDeque<(&'static str, Method)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Fault {
    /// Nothing ever comes back, and nothing happens.
    Hang,
    /// What is asked for happens, and the answer is lost.
    LoseAnswer,
    /// 503.
    Refuse,
}

impl Server {
    fn client(&self, name: &'static str) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer(name, request).await) }
        });
        Client::new(service, "control")
    }

    fn fault(&self, client: &'static str, fault: Option<Fault>) {
        let mut state = self.0.lock();
        state.faults.retain(|(name, _)| *name != client);
        state.faults.extend(fault.map(|fault| (client, fault)));
    }

    fn spec(&self) -> k8s_openapi::api::coordination::v1::LeaseSpec {
        self.0.lock().lease.clone().unwrap().spec.unwrap()
    }

    fn holder(&self) -> String {
        self.spec().holder_identity.unwrap_or_default()
    }

    async fn answer(&self, client: &'static str, request: Request<Body>) -> Response<Body> {
        let (head, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let fault = {
            let mut state = self.0.lock();
            state.requests.push_back((client, head.method.clone()));
            state.faults.iter().find(|(name, _)| *name == client).map(|(_, fault)| *fault)
        };
        match fault {
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Refuse) => failure(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable"),
            Some(Fault::LoseAnswer) => {
                self.apply(&head.method, &body);
                std::future::pending().await
            }
            None => self.apply(&head.method, &body),
        }
    }

    fn apply(&self, method: &Method, body: &[u8]) -> Response<Body> {
        let mut state = self.0.lock();
        let sent: Option<Lease> = serde_json::from_slice(body).ok();
        let current = state.lease.clone();
        let mut written = |mut lease: Lease| {
            state.version += 1;
            lease.metadata.resource_version = Some(state.version.to_string());
            respond(StatusCode::OK, &*state.lease.insert(lease))
        };
        match (method, current) {
            (&Method::GET, Some(lease)) => respond(StatusCode::OK, &lease),
            (&Method::GET | &Method::PUT, None) => failure(StatusCode::NOT_FOUND, "NotFound"),
            (&Method::POST, Some(_)) => failure(StatusCode::CONFLICT, "AlreadyExists"),
            (&Method::POST, None) => written(sent.unwrap()),
            (&Method::PUT, Some(lease)) => {
                let sent = sent.unwrap();
                let expected = &sent.metadata.resource_version;
                assert!(expected.is_some(), "an update without a resourceVersion overwrites what others wrote");
                if *expected == lease.metadata.resource_version {
                    written(sent)
                } else {
                    failure(StatusCode::CONFLICT, "Conflict")
                }
            }
            other => panic!("no right to {other:?}"),
        }
    }

    fn stand(&self, name: &'static str) -> Election {
        let config = ElectionConfig {
            namespace: "control".to_owned(),
            name: "proxy-controller".to_owned(),
            identity: name.to_owned(),
            times: Times::default(),
        };
        Election::new(self.client(name), config, LeaderMetrics::default())
    }

    async fn elect(&self, name: &'static str) -> Leadership {
        self.stand(name).lead(&CancellationToken::new()).await.unwrap()
    }

    /// Another client changes the Lease, as `kubectl edit` would.
    fn edit(&self, change: impl FnOnce(&mut Option<Lease>)) {
        let mut state = self.0.lock();
        state.version += 1;
        let version = state.version.to_string();
        change(&mut state.lease);
        if let Some(lease) = &mut state.lease {
            lease.metadata.resource_version = Some(version);
        }
    }
}

fn respond(status: StatusCode, body: &impl serde::Serialize) -> Response<Body> {
    let body = serde_json::to_vec(body).unwrap();
    Response::builder().status(status).body(Body::from(body)).unwrap()
}

fn failure(status: StatusCode, reason: &str) -> Response<Body> {
    let body = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason,
        "message": reason, "code": status.as_u16() });
    respond(status, &body)
}

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn one_leads_and_hands_over() {
    let server = Server::default();
    let a = server.elect("a").await;
    let b = tokio::spawn(server.stand("b").lead_for_test());
    sleep(300 * SECOND).await;
    assert!(!b.is_finished() && a.fence().is_open() && !a.lost().is_cancelled());
    assert_eq!((server.holder().as_str(), server.spec().lease_transitions), ("a", Some(0)));
    let before = Instant::now();
    let fence = a.fence().clone();
    a.release().await;
    assert!(!fence.is_open());
    let spec = server.spec();
    assert_eq!((spec.holder_identity.as_deref(), spec.lease_duration_seconds), (Some(""), Some(1)));
    let _b = b.await.unwrap();
    assert!(before.elapsed() < 5 * SECOND, "{:?}", before.elapsed());
    assert_eq!((server.holder().as_str(), server.spec().lease_transitions), ("b", Some(1)));
    assert_eq!(server.spec().lease_duration_seconds, Some(15));
}

#[tokio::test(start_paused = true)]
async fn who_cannot_renew_stops_before_another_begins() {
    for fault in [Fault::Hang, Fault::Refuse] {
        let server = Server::default();
        let a = server.elect("a").await;
        let b = tokio::spawn(server.stand("b").lead_for_test());
        sleep(31 * SECOND).await;
        server.fault("a", Some(fault));
        let before = Instant::now();
        a.lost().cancelled().await;
        let lost = Instant::now();
        assert!(lost - before <= 10 * SECOND, "{:?}", lost - before);
        assert!(!a.fence().is_open() && !b.is_finished());
        let _b = b.await.unwrap();
        assert!(lost.elapsed() >= 3 * SECOND, "only {:?} between the end and the next beginning", lost.elapsed());
        assert_eq!((server.holder().as_str(), server.spec().lease_transitions), ("b", Some(1)));
        // Back again it does not take the lead from the other, nor release what is not its own.
        server.fault("a", None);
        a.release().await;
        assert_eq!(server.holder(), "b");
    }
}

#[tokio::test(start_paused = true)]
async fn a_short_outage_is_survived() {
    let server = Server::default();
    let a = server.elect("a").await;
    let b = tokio::spawn(server.stand("b").lead_for_test());
    for fault in [Fault::Hang, Fault::Refuse, Fault::LoseAnswer] {
        server.fault("a", Some(fault));
        sleep(4 * SECOND).await;
        server.fault("a", None);
        sleep(60 * SECOND).await;
        assert!(a.fence().is_open() && !b.is_finished());
        assert_eq!((server.holder().as_str(), server.spec().lease_transitions), ("a", Some(0)));
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_write_whose_answer_was_lost_counts() {
    let server = Server::default();
    server.fault("a", Some(Fault::LoseAnswer));
    let a = tokio::spawn(server.stand("a").lead_for_test());
    sleep(SECOND).await;
    server.0.lock().faults.clear();
    let _a = a.await.unwrap();
    assert_eq!((server.holder().as_str(), server.spec().lease_transitions), ("a", Some(0)));
}

#[tokio::test(start_paused = true)]
async fn another_name_in_the_lease_ends_the_lead_at_the_next_look() {
    for name in ["thief", ""] {
        let server = Server::default();
        let a = server.elect("a").await;
        sleep(7 * SECOND).await;
        server.edit(|lease| lease.as_mut().unwrap().spec.as_mut().unwrap().holder_identity = Some(name.to_owned()));
        let before = Instant::now();
        a.lost().cancelled().await;
        assert!(before.elapsed() <= 2 * SECOND, "{:?}", before.elapsed());
        a.release().await;
        assert_eq!(server.holder(), name);
    }
}

#[tokio::test(start_paused = true)]
async fn edits_that_change_nothing_do_not_end_the_lead() {
    let server = Server::default();
    let a = server.elect("a").await;
    let labels = || Some([("team".to_owned(), "pizza".to_owned())].into());
    server.edit(|lease| lease.as_mut().unwrap().metadata.labels = labels());
    sleep(60 * SECOND).await;
    assert!(a.fence().is_open());
    assert_eq!(server.0.lock().lease.as_ref().unwrap().metadata.labels, labels(), "not overwritten");
    // A Lease that somebody deletes is made again.
    server.edit(|lease| *lease = None);
    sleep(60 * SECOND).await;
    assert!(a.fence().is_open());
    assert_eq!(server.holder(), "a");
}

#[tokio::test(start_paused = true)]
async fn of_ten_candidates_one_wins_each_time() {
    let server = Server::default();
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    let (sender, mut elected) = tokio::sync::mpsc::unbounded_channel();
    for name in names {
        let (election, sender) = (server.stand(name), sender.clone());
        tokio::spawn(async move { sender.send((name, election.lead_for_test().await)).unwrap() });
    }
    for turn in 0..names.len() {
        let (name, leadership) = elected.recv().await.unwrap();
        assert_eq!(server.spec().lease_transitions, Some(i32::try_from(turn).unwrap()));
        sleep(40 * SECOND).await;
        assert!(elected.is_empty(), "two at a time");
        assert_eq!(server.holder(), name);
        // In turns: given back, and forgotten as by a crash.
        if turn % 2 == 0 { leadership.release().await } else { drop(leadership) }
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_when_told_to_stop() {
    let server = Server::default();
    let _a = server.elect("a").await;
    let stop = CancellationToken::new();
    let (election, stopped) = (server.stand("b"), stop.clone());
    let b = tokio::spawn(async move { election.lead(&stopped).await.is_none() });
    sleep(20 * SECOND).await;
    stop.cancel();
    assert!(b.await.unwrap());
    assert_eq!(server.holder(), "a");
}

#[tokio::test(start_paused = true)]
async fn the_fence_lets_reads_through_and_stops_writes() {
    let fence = Fence::new(Instant::now() + 10 * SECOND);
    let server = Server::default();
    let inner = {
        let server = server.clone();
        tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move { Ok::<_, Infallible>(server.answer("x", request).await) }
        })
    };
    let leases: Api<Lease> = Api::namespaced(Client::new(fence.layer(inner), "control"), "control");
    let lease: Lease = serde_json::from_value(json!({ "metadata": { "name": "x" } })).unwrap();
    leases.create(&PostParams::default(), &lease).await.unwrap();
    // Under way when the lead is lost.
    let (late, closing) = (leases.clone(), fence.clone());
    let read = leases.get("x").await.unwrap();
    server.fault("x", Some(Fault::Hang));
    let hanging = tokio::spawn(async move { late.replace("x", &PostParams::default(), &read).await.unwrap_err() });
    sleep(SECOND).await;
    closing.close();
    assert!(lost(&hanging.await.unwrap()));
    server.fault("x", None);
    assert!(lost(&leases.create(&PostParams::default(), &lease).await.unwrap_err()));
    leases.get("x").await.unwrap();
    assert_eq!(fence.check(), Err(LeadershipLost));
}

#[tokio::test(start_paused = true)]
async fn a_process_that_slept_past_its_deadline_does_not_write() {
    let server = Server::default();
    let a = server.elect("a").await;
    // No task runs while the clock jumps, as when the process is stopped.
    tokio::time::advance(Duration::from_secs(11)).await;
    assert!(!a.fence().is_open());
}

#[tokio::test(start_paused = true)]
async fn what_waits_to_be_sent_is_not_sent_after_a_sleep() {
    let fence = Fence::new(Instant::now() + 10 * SECOND);
    let (send, mut waiting) = mpsc::unbounded_channel::<&str>();
    let (wire, mut sent) = mpsc::unbounded_channel();
    Connections(fence.clone()).execute(Box::pin(async move {
        while let Some(request) = waiting.recv().await {
            wire.send(request).unwrap();
        }
    }));
    send.send("in time").unwrap();
    assert_eq!(sent.recv().await, Some("in time"));
    // No task runs while the clock jumps, as when the process is stopped.
    send.send("late").unwrap();
    tokio::time::advance(11 * SECOND).await;
    assert_eq!(sent.recv().await, None, "the connection ends, and what it had is gone");
    assert!(send.is_closed());
}

fn lost(error: &kube::Error) -> bool {
    let mut cause: Option<&dyn Error> = Some(error);
    while let Some(error) = cause {
        if error.is::<LeadershipLost>() || error.to_string().contains(&LeadershipLost.to_string()) {
            return true;
        }
        cause = error.source();
    }
    false
}

#[test]
fn times_must_make_sense() {
    let times = |lease, deadline, retry| Times::new(lease * SECOND, deadline * SECOND, retry * SECOND);
    assert_eq!(times(15, 10, 2), Ok(Times::default()));
    assert!(matches!(times(10, 10, 2), Err(TimesError::Deadline { .. })));
    assert!(matches!(times(15, 10, 9), Err(TimesError::Retry { .. })));
    assert!(matches!(times(15, 10, 0), Err(TimesError::Retry { .. })));
    assert!(matches!(times(0, 0, 0), Err(TimesError::Lease(_))));
    assert!(Times::new(Duration::from_millis(1500), SECOND, SECOND / 10).is_err());
}

impl Election {
    /// Waits without end.
    async fn lead_for_test(self) -> Leadership {
        self.lead(&CancellationToken::new()).await.unwrap()
    }
}
