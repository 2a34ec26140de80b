//! Watchers through the proxies, which go on where they were when a watch ends, and a member's own history at the end.

use std::{
    ops::ControlFlow,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use proptest::prelude::RngExt as _;
use proto::{
    etcdserverpb::{
        WatchCreateRequest, WatchRequest, WatchResponse, watch_client::WatchClient, watch_create_request::FilterType,
        watch_request::RequestUnion,
    },
    mvccpb::{self, event::EventType},
};
use tokio::time::sleep;
use tonic::transport::Channel;

use crate::{
    clients::{Shared, pair},
    cluster,
    events::{Asked, Event, Response, Truth, Watch, Without},
    history::Revision,
};

/// Between two watches of a watcher.
const PAUSE: Duration = Duration::from_millis(50);
/// Responses after which a watcher that likes the past begins anew.
const RESTART: usize = 40;

/// Who watches what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watcher {
    /// The proxy's number.
    proxy: usize,
    asked: Asked,
    /// Whether it begins in the past again and again.
    past: bool,
}

/// Everything, one key, keys of which two change at once, and both filters; one begins at old revisions.
pub(crate) const WATCHERS: [Watcher; 6] = {
    let all = Asked { prefix: "", start: 0, without: None, before: true };
    [
        Watcher { proxy: 0, asked: all, past: false },
        Watcher { proxy: 1, asked: Asked { prefix: "register/0", before: false, ..all }, past: false },
        Watcher { proxy: 2, asked: Asked { without: Some(Without::Puts), ..all }, past: false },
        Watcher { proxy: 0, asked: Asked { without: Some(Without::Deletes), before: false, ..all }, past: false },
        Watcher { proxy: 1, asked: all, past: true },
        Watcher { proxy: 2, asked: Asked { prefix: "pair/", ..all }, past: false },
    ]
};

// === impl Watcher ===

impl Watcher {
    /// Watches until it has been told of everything up to `Shared::end`.
    pub(crate) async fn run(self, number: usize, shared: Arc<Shared>) -> Vec<Watch> {
        let mut rng = shared.rng(100 + u8::try_from(number).unwrap());
        let mut client = WatchClient::new(cluster::channel(&shared.urls[self.proxy]));
        let mut watches: Vec<Watch> = Vec::new();
        let mut told = 0;
        while told < shared.end.load(Ordering::SeqCst) {
            if shared.hold.load(Ordering::SeqCst) {
                sleep(PAUSE).await;
                continue;
            }
            let start = match told {
                0 => self.asked.start,
                told if self.past => rng.random_range(1..=told + 1),
                told => told + 1,
            };
            let mut watch = Watch { asked: Asked { start, ..self.asked }, responses: Vec::new() };
            follow(&mut client, "", &shared, &mut watch, |watch| {
                let enough = self.past && watch.responses.len() >= RESTART && watch.told() >= told;
                let last = shared.end.load(Ordering::SeqCst);
                if enough || watch.told() >= last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .await;
            told = told.max(watch.told());
            watches.push(watch);
            sleep(PAUSE).await;
        }
        watches
    }
}

/// Every event up to a revision, from a member itself.
pub(crate) async fn truth(url: &str, prefix: &str, shared: &Shared, last: Revision) -> Result<Truth, String> {
    let asked = Asked { prefix: "", start: 1, without: None, before: true };
    let mut watch = Watch { asked, responses: Vec::new() };
    let mut client = WatchClient::new(cluster::channel(url));
    follow(&mut client, prefix, shared, &mut watch, |watch| {
        if watch.told() >= last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .await;
    if watch.told() < last {
        return Err(format!("the member at {url} ended a watch of its own at {} before {last}", watch.told()));
    }
    Truth::new(watch.responses.into_iter().flat_map(|response| response.events).collect())
}

/// Writes down what a watch tells until it ends, or `enough` has come. `place` is where the keys lie.
async fn follow(
    client: &mut WatchClient<Channel>,
    place: &str,
    shared: &Shared,
    watch: &mut Watch,
    enough: impl Fn(&Watch) -> ControlFlow<()>,
) {
    let (sender, requests) = tokio::sync::mpsc::channel(1);
    sender.try_send(create(&watch.asked, place)).unwrap();
    let requests = tokio_stream::wrappers::ReceiverStream::new(requests);
    let Ok(answers) = client.watch(requests).await else { return };
    let mut answers = answers.into_inner();
    while let Ok(Some(answer)) = answers.message().await {
        if answer.canceled {
            return;
        }
        if answer.created {
            continue;
        }
        watch.responses.push(response(answer, place, shared));
        if enough(watch).is_break() {
            return;
        }
    }
}

fn create(asked: &Asked, place: &str) -> WatchRequest {
    let key = format!("{place}{}", asked.prefix).into_bytes();
    let (key, range_end) = match key.split_last() {
        // No prefix here ends in the greatest byte.
        Some((last, rest)) => (key.clone(), [rest, &[last + 1]].concat()),
        None => (vec![0], vec![0]),
    };
    let filter = asked.without.map(|without| match without {
        Without::Puts => FilterType::Noput,
        Without::Deletes => FilterType::Nodelete,
    });
    let create = WatchCreateRequest {
        key: key.into(),
        range_end: range_end.into(),
        start_revision: asked.start,
        progress_notify: true,
        filters: filter.map(i32::from).into_iter().collect(),
        prev_kv: asked.before,
        ..Default::default()
    };
    WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
}

fn response(answer: WatchResponse, place: &str, shared: &Shared) -> Response {
    let events = answer.events.into_iter().map(|event| event_of(event, place)).collect();
    Response { at: shared.start.elapsed(), revision: answer.header.unwrap().revision, events }
}

fn event_of(event: mvccpb::Event, place: &str) -> Event {
    let put = event.r#type == i32::from(EventType::Put);
    let kv = event.kv.unwrap();
    let key = std::str::from_utf8(&kv.key).unwrap().strip_prefix(place).unwrap().to_owned();
    Event { revision: kv.mod_revision, key, put: put.then(|| pair(kv)), before: event.prev_kv.map(pair) }
}
