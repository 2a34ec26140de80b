//! A relay before an etcd that can keep the answers to some calls back, while everything else on their connection passes.

use std::{
    convert::Infallible,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use futures::stream;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, Empty, StreamBody, combinators::BoxBody};
use hyper::{
    body::Incoming,
    client::conn::http2::{self, SendRequest},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};

use crate::support::Etcd;

/// Windows of the relay's connections: what is kept back must hold up nothing else.
const WINDOW: u32 = 32 << 20;

type Passed = BoxBody<Bytes, hyper::Error>;

/// The relay. Each connection to it is one to the etcd.
pub(crate) struct Relay {
    pub(crate) url: String,
    marked: Arc<Marked>,
}

/// Which calls are marked, and whether they are answered.
struct Marked {
    path: &'static str,
    marker: &'static str,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    now: watch::Sender<bool>,
    for_ever: Vec<watch::Sender<bool>>,
    /// Calls that have been marked.
    seen: usize,
}

/// Set once a call is marked: whether its answer is kept back.
type Mark = OnceLock<watch::Receiver<bool>>;

// === impl Relay ===

impl Relay {
    /// A relay that marks the calls of the method `path` with a request that holds `marker`; all of them if that is empty.
    pub(crate) async fn before(etcd: &Etcd, path: &'static str, marker: &'static str) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let marked = Arc::new(Marked { path, marker, held: Mutex::default() });
        let (shared, etcd) = (marked.clone(), etcd.url().strip_prefix("http://").unwrap().to_owned());
        tokio::spawn(async move {
            loop {
                let (proxy, _) = listener.accept().await.unwrap();
                tokio::spawn(connection(proxy, TcpStream::connect(&etcd).await.unwrap(), shared.clone()));
            }
        });
        Self { url, marked }
    }

    /// From now on marked calls, those under way among them, are told nothing.
    pub(crate) fn hold(&self) {
        self.marked.held.lock().now.send_replace(true);
    }

    /// They are told what was kept back, and go on.
    pub(crate) fn release(&self) {
        self.marked.held.lock().now.send_replace(false);
    }

    /// Those of before are never told anything more, and the next ones are not held.
    pub(crate) fn forsake(&self) {
        let mut held = self.marked.held.lock();
        let now = std::mem::take(&mut held.now);
        held.for_ever.push(now);
    }

    /// How many calls have been marked.
    pub(crate) fn seen(&self) -> usize {
        self.marked.held.lock().seen
    }
}

async fn connection(proxy: TcpStream, etcd: TcpStream, marked: Arc<Marked>) {
    let (sender, driver) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(2 * WINDOW)
        .handshake(TokioIo::new(etcd))
        .await
        .unwrap();
    let driver = tokio::spawn(driver);
    let service = service_fn(|request| pass(request, sender.clone(), marked.clone()));
    // The proxy may hang up.
    let _ended = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(proxy), service)
        .await;
    driver.abort();
}

async fn pass(
    request: Request<Incoming>,
    mut sender: SendRequest<Passed>,
    marked: Arc<Marked>,
) -> Result<Response<Passed>, Infallible> {
    let mark = Arc::new(Mark::new());
    let request = if request.uri().path() == marked.path {
        if marked.marker.is_empty() {
            marked.mark(&mark);
        }
        let mark = mark.clone();
        let look = move |frame: Frame<Bytes>| {
            if frame.data_ref().is_some_and(|data| marked.holds(data)) {
                marked.mark(&mark);
            }
            frame
        };
        request.map(|body| BoxBody::new(body.map_frame(look)))
    } else {
        request.map(BoxBody::new)
    };
    let Ok(answer) = sender.send_request(request).await else {
        let mut lost = Response::new(BoxBody::new(Empty::new().map_err(|never| match never {})));
        *lost.status_mut() = StatusCode::BAD_GATEWAY;
        return Ok(lost);
    };
    let_pass(&mark).await;
    Ok(answer.map(|body| {
        let frames = stream::unfold((body, mark), |(mut body, mark)| async move {
            let frame = body.frame().await?;
            let_pass(&mark).await;
            Some((frame, (body, mark)))
        });
        BoxBody::new(StreamBody::new(frames))
    }))
}

/// Returns at once but for a marked call, and then when it is not held.
async fn let_pass(mark: &Mark) {
    let Some(held) = mark.get() else { return };
    // The other end is never dropped.
    held.clone().wait_for(|held| !held).await.map(drop).unwrap();
}

// === impl Marked ===

impl Marked {
    fn holds(&self, data: &[u8]) -> bool {
        !self.marker.is_empty() && data.windows(self.marker.len()).any(|window| window == self.marker.as_bytes())
    }

    fn mark(&self, mark: &Mark) {
        let mut held = self.held.lock();
        if mark.set(held.now.subscribe()).is_ok() {
            held.seen += 1;
        }
    }
}
