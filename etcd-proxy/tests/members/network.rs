//! The network between the proxies and the members, and among the members, which can be partitioned.
//!
//! Every connection passes a relay. A link that is cut loses its connections and has no new ones; one that is silent carries nothing, and tells
//! nobody so: what was sent meanwhile arrives when it is mended, as it does when TCP sends again.

use std::{
    collections::HashMap,
    net::{SocketAddr, TcpListener as StdListener},
    sync::{Arc, OnceLock},
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinSet,
};

/// By this a member says who it is when it connects to another.
const FROM: &[u8] = b"X-Server-From: ";
/// The longest that stands between the begin of that and the end of the line: a number of 64 bits, in hex.
const LINE: usize = FROM.len() + 16 + 2;
/// How many members there are.
pub(crate) const MEMBERS: usize = 3;

/// Who is at an end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Party {
    Proxies,
    Member(usize),
}

/// How a link is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    Cut,
    Silent,
}

/// All relays. They end with it.
pub(crate) struct Network {
    shared: Arc<Shared>,
    relays: JoinSet<()>,
}

struct Shared {
    state: watch::Sender<State>,
    /// The members by the ids that they call themselves by.
    ids: Mutex<HashMap<u64, usize>>,
}

/// What is wrong now.
#[derive(Clone, Debug, Default)]
struct State {
    /// Links, by who connects and to which member.
    broken: Vec<(Party, usize, Manner)>,
    /// Members that do not run, so that their addresses refuse connections.
    down: [bool; MEMBERS],
}

/// One connection, or what leads to a member's address.
#[derive(Clone)]
struct Link {
    shared: Arc<Shared>,
    /// Known from the start of proxies only.
    from: Arc<OnceLock<Party>>,
    to: usize,
}

// === impl Network ===

impl Network {
    pub(crate) fn new() -> Self {
        let shared = Shared { state: watch::Sender::new(State::default()), ids: Mutex::default() };
        Self { shared: Arc::new(shared), relays: JoinSet::new() }
    }

    /// Leads from `listener` to a member's address; `from` whom, where the connections themselves do not say.
    pub(crate) fn relay(&mut self, listener: StdListener, from: Option<Party>, to: usize, target: SocketAddr) {
        let shared = self.shared.clone();
        self.relays.spawn(async move { relay(shared, listener, from, to, target).await });
    }

    /// Tells which member has which id.
    pub(crate) fn know(&self, member: usize, id: u64) {
        self.shared.ids.lock().insert(id, member);
    }

    /// Whether a member runs.
    pub(crate) fn runs(&self, member: usize, runs: bool) {
        self.shared.state.send_modify(|state| state.down[member] = !runs);
    }

    /// Parts a member from the others.
    pub(crate) fn isolate(&self, member: usize, manner: Manner) {
        let others = (0..MEMBERS).filter(|other| *other != member);
        let links = others
            .flat_map(|other| [(Party::Member(member), other, manner), (Party::Member(other), member, manner)])
            .collect();
        self.shared.state.send_modify(|state| state.broken = links);
    }

    /// Parts a member from the proxies.
    pub(crate) fn hide(&self, member: usize, manner: Manner) {
        self.shared.state.send_modify(|state| state.broken = vec![(Party::Proxies, member, manner)]);
    }

    /// Makes every link whole.
    pub(crate) fn mend(&self) {
        self.shared.state.send_modify(|state| state.broken.clear());
    }
}

/// Accepts connections, while somebody would.
async fn relay(shared: Arc<Shared>, listener: StdListener, from: Option<Party>, to: usize, target: SocketAddr) {
    let link = || Link { shared: shared.clone(), from: Arc::new(from.map_or_else(OnceLock::new, OnceLock::from)), to };
    let (address, gate) = (listener.local_addr().unwrap(), link());
    listener.set_nonblocking(true).unwrap();
    let mut listener = TcpListener::from_std(listener).unwrap();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let (stream, _) = accepted.unwrap();
                connections.spawn(connection(link(), stream, target));
            }
            Some(_) = connections.join_next() => {}
            () = gate.until(|state| gate.refuses(state)) => {
                drop(listener);
                gate.until(|state| !gate.refuses(state)).await;
                listener = TcpListener::bind(address).await.unwrap();
            }
        }
    }
}

/// Carries a connection until either side ends it, or it is cut.
async fn connection(link: Link, near: TcpStream, target: SocketAddr) {
    let Ok(far) = TcpStream::connect(target).await else { return };
    near.set_nodelay(true).unwrap();
    far.set_nodelay(true).unwrap();
    let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
    tokio::select! {
        () = pump(&link, near_read, far_write, true) => {}
        () = pump(&link, far_read, near_write, false) => {}
        () = link.until(|state| link.manner(state) == Some(Manner::Cut)) => {}
    }
}

/// Carries one direction of a connection.
async fn pump(link: &Link, mut read: OwnedReadHalf, mut write: OwnedWriteHalf, identify: bool) {
    let mut buffer = vec![0; 32 << 10];
    // The end of what was read before, where the line by which a member is known may have begun.
    let mut before = Vec::new();
    loop {
        let length = read.read(&mut buffer).await.unwrap_or(0);
        if identify && link.from.get().is_none() {
            before.extend_from_slice(&buffer[..length]);
            link.identify(&before);
            before.drain(..before.len().saturating_sub(LINE));
        }
        link.until(|state| link.manner(state) != Some(Manner::Silent)).await;
        let cut = link.manner(&link.shared.state.borrow()).is_some();
        if length == 0 || cut || write.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

// === impl Link ===

impl Link {
    /// Finds out who connects, if the bytes say so.
    fn identify(&self, bytes: &[u8]) {
        let Some(at) = bytes.windows(FROM.len()).position(|window| window == FROM) else { return };
        let rest = &bytes[at + FROM.len()..];
        let Some(end) = rest.iter().position(|byte| *byte == b'\r') else { return };
        let id = std::str::from_utf8(&rest[..end]).ok().and_then(|id| u64::from_str_radix(id, 16).ok());
        if let Some(member) = id.and_then(|id| self.shared.ids.lock().get(&id).copied()) {
            _ = self.from.set(Party::Member(member));
        }
    }

    /// How the link is broken, if it is. Who has not said who it is gets through where anybody does.
    fn manner(&self, state: &State) -> Option<Manner> {
        let of = |from: Party| {
            state.broken.iter().find(|(a, b, _)| *a == from && *b == self.to).map(|(_, _, manner)| *manner)
        };
        match self.from.get() {
            Some(from) => of(*from),
            None => {
                let others = (0..MEMBERS).filter(|other| *other != self.to);
                others.map(|other| of(Party::Member(other))).reduce(|one, other| one.and(other)).flatten()
            }
        }
    }

    /// Whether nobody listens.
    fn refuses(&self, state: &State) -> bool {
        state.down[self.to] || self.from.get().is_some() && self.manner(state) == Some(Manner::Cut)
    }

    async fn until(&self, mut holds: impl FnMut(&State) -> bool) {
        let mut states = self.shared.state.subscribe();
        // The other end of the channel is held by the link.
        _ = states.wait_for(|state| holds(state)).await;
    }
}
