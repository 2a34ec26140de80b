//! A tap between the proxy and its etcd: what the etcd answers arrives with something wrong in it.

use std::{
    collections::VecDeque,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::{Buf as _, Bytes, BytesMut};
use http::{Request, Response, header::CONTENT_TYPE};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody, combinators::BoxBody};
use hyper::{
    body::Incoming,
    client::conn::http2::{self, SendRequest},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use proptest::{collection::vec, prelude::*};
use prost::Message as _;
use proto::{
    etcdserverpb::{ResponseHeader, WatchResponse},
    mvccpb::{Event, KeyValue},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinHandle,
};
use tokio_stream::wrappers::ReceiverStream;

use crate::{
    mangled::{Mangle, mangles},
    witness::{KEY, PREFIX},
};

/// As long as the tenant's prefix, so that all lengths stay right.
pub(crate) const FOREIGN: &str = "/frames-tenan0/";
/// Windows that hold up nothing.
const WINDOW: u32 = 16 << 20;

/// What happens to the answers of one case, one after the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    messages: VecDeque<Wrong>,
    heads: VecDeque<Head>,
    /// Whether the proxy's own keys are read wrongly, too.
    bookkeeping: bool,
}

/// What is wrong with a message.
#[derive(Clone, Debug)]
enum Wrong {
    Nothing,
    Bytes(Vec<Mangle>),
    /// Keys of somebody else, in the place of the tenant's.
    Foreign,
    /// No prefix where one should be.
    Bare,
    /// The message before, whatever it answered.
    Swapped,
    Twice,
    /// An event of the tenant's, whatever was asked.
    Event,
    Header(i64),
    Watch {
        id: i64,
        revision: i64,
        created: bool,
        canceled: bool,
    },
    Framed {
        flag: u8,
        lie: i64,
    },
    /// The stream ends before it.
    Cut,
}

/// What is wrong with an answer as a whole.
#[derive(Clone, Copy, Debug)]
enum Head {
    Right,
    Status(u16),
    ContentType,
    NoTrailers,
    WrongTrailers(i32),
}

/// The tap itself.
pub(crate) struct Tap {
    pub(crate) url: String,
    state: Arc<State>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct State {
    plan: Mutex<Plan>,
    last: Mutex<Bytes>,
}

/// One call by the tap.
struct Call {
    state: Arc<State>,
    /// Whether its request is nobody's but the case's.
    exposed: Arc<AtomicBool>,
    watch: bool,
}

pub(crate) fn plan() -> impl Strategy<Value = Plan> {
    let revision = || prop_oneof![-2i64..3, any::<i64>(), Just(i64::MIN), Just(i64::MAX)];
    let wrong = prop_oneof![
        1 => Just(Wrong::Nothing),
        8 => mangles().prop_map(Wrong::Bytes),
        6 => Just(Wrong::Foreign),
        1 => Just(Wrong::Bare),
        3 => Just(Wrong::Swapped),
        1 => Just(Wrong::Twice),
        1 => Just(Wrong::Event),
        2 => revision().prop_map(Wrong::Header),
        2 => (revision(), revision(), any::<bool>(), any::<bool>())
            .prop_map(|(id, revision, created, canceled)| Wrong::Watch { id, revision, created, canceled }),
        2 => (prop_oneof![3 => Just(0u8), 1 => Just(1u8), 1 => any::<u8>()],
              prop_oneof![-9i64..9, Just(1 << 20), Just(i64::from(u32::MAX)), Just(i64::from(i32::MAX))])
            .prop_map(|(flag, lie)| Wrong::Framed { flag, lie }),
        1 => Just(Wrong::Cut),
    ];
    let head = prop_oneof![
        20 => Just(Head::Right),
        1 => (100u16..600).prop_map(Head::Status),
        1 => Just(Head::ContentType),
        1 => Just(Head::NoTrailers),
        1 => (-1i32..40).prop_map(Head::WrongTrailers),
    ];
    (vec(wrong, 1..10), vec(head, 0..6), any::<bool>()).prop_map(|(messages, heads, bookkeeping)| Plan {
        messages: messages.into(),
        heads: heads.into(),
        bookkeeping,
    })
}

// === impl Plan ===

impl Plan {
    /// The answer behind so many others is an event.
    pub(crate) fn event(others: usize) -> Self {
        let messages = std::iter::repeat_n(Wrong::Nothing, others).chain([Wrong::Event]).collect();
        Self { messages, ..Self::default() }
    }
}

// === impl Wrong ===

impl Wrong {
    /// The frames that come in the place of one of this message; `None` for the end.
    fn frames(self, message: &Bytes, last: &Bytes, watch: bool) -> Option<Vec<u8>> {
        let plain = |message: &[u8]| crate::wire::grpc_frame(message).to_vec();
        Some(match self {
            Self::Nothing => plain(message),
            Self::Bytes(mangles) => {
                let mut mangled = message.to_vec();
                mangles.iter().for_each(|mangle| mangle.apply(&mut mangled));
                plain(&mangled)
            }
            Self::Foreign => plain(&replaced(message, FOREIGN.as_bytes())),
            // The length of the key stays right: what was the prefix goes behind it.
            Self::Bare => plain(&replaced(message, b"etcd-proxy.meta")),
            Self::Swapped => plain(last),
            Self::Twice => plain(message).repeat(2),
            Self::Event => plain(&event()),
            Self::Header(revision) => plain(&with_revision(message, revision)),
            Self::Watch { id, revision, created, canceled } if watch => {
                let Ok(mut response) = WatchResponse::decode(message.clone()) else { return None };
                (response.watch_id, response.created, response.canceled) = (id, created, canceled);
                response.compact_revision = revision;
                for kv in response.events.iter_mut().filter_map(|event| event.kv.as_mut()) {
                    kv.mod_revision = revision;
                    kv.lease = revision;
                }
                plain(&response.encode_to_vec())
            }
            Self::Watch { .. } => plain(message),
            Self::Framed { flag, lie } => {
                let announced = i64::try_from(message.len()).unwrap().saturating_add(lie).clamp(0, u32::MAX.into());
                let mut frame = plain(message);
                frame[0] = flag;
                frame[1..5].copy_from_slice(&u32::try_from(announced).unwrap().to_be_bytes());
                frame
            }
            Self::Cut => return None,
        })
    }
}

/// What a watch of one key of the tenant is told.
fn event() -> Vec<u8> {
    let header = Some(ResponseHeader { cluster_id: 1, member_id: 2, revision: 3, raft_term: 4 });
    let kv = KeyValue { key: format!("{PREFIX}b").into(), mod_revision: 3, ..Default::default() };
    let events = vec![Event { kv: Some(kv), ..Default::default() }];
    WatchResponse { header, events, ..Default::default() }.encode_to_vec()
}

/// The message with other bytes where the tenant's prefix stands.
fn replaced(message: &[u8], by: &[u8]) -> Vec<u8> {
    assert_eq!(by.len(), PREFIX.len());
    let mut replaced = message.to_vec();
    let mut at = 0;
    while let Some(found) = message[at..].windows(by.len()).position(|window| window == PREFIX.as_bytes()) {
        replaced[at + found..at + found + by.len()].copy_from_slice(by);
        at += found + by.len();
    }
    replaced
}

/// The message with another revision in its header, which is its first field wherever it has one.
fn with_revision(message: &[u8], revision: i64) -> Vec<u8> {
    let (Some(0x0a), Some(&length)) = (message.first(), message.get(1)) else { return message.to_vec() };
    let (Some(header), rest) = (message.get(2..2 + usize::from(length)), message.get(2 + usize::from(length)..)) else {
        return message.to_vec();
    };
    let Ok(header) = ResponseHeader::decode(header) else { return message.to_vec() };
    let header = ResponseHeader { revision, ..header }.encode_to_vec();
    [&[0x0a, u8::try_from(header.len()).unwrap()], &header[..], rest.unwrap_or_default()].concat()
}

// === impl Tap ===

impl Tap {
    pub(crate) async fn start(etcd: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(State::default());
        let (etcd, shared) = (etcd.strip_prefix("http://").unwrap().to_owned(), state.clone());
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (proxy, _) = listener.accept().await.unwrap();
                connections.spawn(connection(proxy, etcd.clone(), shared.clone()));
            }
        });
        Self { url, state, task }
    }

    /// From now on answers are as planned, until the plan has run out.
    pub(crate) fn follow(&self, plan: Plan) {
        *self.state.plan.lock() = plan;
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn connection(proxy: TcpStream, etcd: String, state: Arc<State>) {
    let upstream = TcpStream::connect(&etcd).await.unwrap();
    let (sender, driver) = http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(4 * WINDOW)
        .handshake(TokioIo::new(upstream))
        .await
        .unwrap();
    let driver = tokio::spawn(driver);
    let service = service_fn(|request| pass(request, sender.clone(), state.clone()));
    // The proxy may hang up, for what it was answered.
    let _ended = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .initial_connection_window_size(WINDOW)
        .serve_connection(TokioIo::new(proxy), service)
        .await;
    driver.abort();
}

type Passed = BoxBody<Bytes, hyper::Error>;

async fn pass(
    request: Request<Incoming>,
    mut sender: SendRequest<Passed>,
    state: Arc<State>,
) -> Result<Response<StreamBody<ReceiverStream<Result<Frame<Bytes>, String>>>>, Infallible> {
    let exposed = Arc::new(AtomicBool::new(true));
    let call = Call { state: state.clone(), exposed: exposed.clone(), watch: request.uri().path().ends_with("/Watch") };
    let request = request.map(|body| {
        let look = move |frame: Frame<Bytes>| {
            let holds = |what: &[u8]| {
                frame.data_ref().is_some_and(|data| data.windows(what.len()).any(|window| window == what))
            };
            if holds(KEY.as_bytes()) || (holds(b"etcd-proxy.meta") && !state.plan.lock().bookkeeping) {
                exposed.store(false, Ordering::SeqCst);
            }
            frame
        };
        BoxBody::new(body.map_frame(look))
    });
    let (frames, body) = mpsc::channel(4);
    let body = StreamBody::new(ReceiverStream::new(body));
    let Ok(answer) = sender.send_request(request).await else {
        let mut lost = Response::new(body);
        *lost.status_mut() = http::StatusCode::BAD_GATEWAY;
        return Ok(lost);
    };
    let (parts, incoming) = answer.into_parts();
    let mut response = Response::from_parts(parts, body);
    let head = call.head();
    match head {
        Head::Status(status) => *response.status_mut() = status.max(200).try_into().unwrap(),
        Head::ContentType => {
            response.headers_mut().insert(CONTENT_TYPE, "text/html".parse().unwrap());
        }
        Head::Right | Head::NoTrailers | Head::WrongTrailers(_) => {}
    }
    tokio::spawn(async move { call.answer(incoming, head, frames).await });
    Ok(response)
}

// === impl Call ===

impl Call {
    fn head(&self) -> Head {
        let next = || self.state.plan.lock().heads.pop_front();
        self.exposed.load(Ordering::SeqCst).then(next).flatten().unwrap_or(Head::Right)
    }

    /// The next message as it arrives.
    fn message(&self, message: &Bytes) -> Option<Vec<u8>> {
        let next = || self.state.plan.lock().messages.pop_front();
        let wrong = self.exposed.load(Ordering::SeqCst).then(next).flatten().unwrap_or(Wrong::Nothing);
        let last = std::mem::replace(&mut *self.state.last.lock(), message.clone());
        wrong.frames(message, &last, self.watch)
    }

    async fn answer(self, mut incoming: Incoming, head: Head, frames: mpsc::Sender<Result<Frame<Bytes>, String>>) {
        let mut bytes = BytesMut::new();
        loop {
            // A proxy that has heard enough is not waited for.
            let frame = tokio::select! {
                frame = incoming.frame() => frame,
                () = frames.closed() => return,
            };
            let frame = match frame {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => {
                    let _gone = frames.send(Err(error.to_string())).await;
                    return;
                }
                None => return,
            };
            match frame.into_data() {
                Ok(data) => {
                    bytes.extend_from_slice(&data);
                    while let Some(message) = cut(&mut bytes) {
                        let Some(wrong) = self.message(&message) else { return };
                        if frames.send(Ok(Frame::data(wrong.into()))).await.is_err() {
                            return;
                        }
                    }
                }
                Err(frame) => {
                    let mut trailers = frame.into_trailers().unwrap_or_default();
                    match head {
                        Head::NoTrailers => return,
                        Head::WrongTrailers(code) => {
                            trailers.insert("grpc-status", code.into());
                        }
                        Head::Right | Head::Status(_) | Head::ContentType => {}
                    }
                    let _gone = frames.send(Ok(Frame::trailers(trailers))).await;
                }
            }
        }
    }
}

/// The next whole message.
fn cut(bytes: &mut BytesMut) -> Option<Bytes> {
    let &[_, a, b, c, d, ..] = &bytes[..] else { return None };
    let length = u32::from_be_bytes([a, b, c, d]) as usize;
    if bytes.len() < 5 + length {
        return None;
    }
    bytes.advance(5);
    Some(bytes.split_to(length).freeze())
}
