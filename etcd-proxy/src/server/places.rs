//! How many connections there may be: of all clients together, and of one.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Peer;

/// The places that a server has for connections. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Places {
    all: usize,
    per_client: usize,
    makes_room: bool,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    by_client: HashMap<Client, usize>,
    occupants: BTreeMap<u64, Occupant>,
    next: u64,
}

#[derive(Debug)]
struct Occupant {
    client: Client,
    standing: Standing,
}

/// How a connection stands with a server that makes room for new ones ([`super::Server::making_room`]): whether it has been of
/// use, and when. It is among the extensions of the connection's requests.
#[derive(Clone, Debug)]
pub struct Standing {
    opened: Instant,
    useful: Arc<Mutex<Option<Instant>>>,
    evicted: CancellationToken,
}

/// Whom a connection counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Client {
    Address(IpAddr),
    Process(Option<i32>),
}

/// The place of one connection, free again when it is dropped.
#[derive(Debug)]
pub(super) struct Place {
    id: u64,
    standing: Standing,
    taken: Arc<Mutex<Taken>>,
}

/// Which bound leaves no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    All,
    Client,
}

// === impl Places ===

impl Places {
    pub(super) fn new(all: usize, per_client: usize) -> Self {
        Self { all, per_client, makes_room: false, taken: Arc::default() }
    }

    /// The same, where a new connection takes the place of the one that has been of least use.
    pub(super) fn making_room(self) -> Self {
        Self { makes_room: true, ..self }
    }

    pub(super) fn makes_room(&self) -> bool {
        self.makes_room
    }

    /// A place for a connection of `peer`.
    pub(super) fn take(&self, peer: Peer) -> Result<Place, Full> {
        let client = Client::from(peer);
        let mut taken = self.taken.lock();
        let of_client = taken.by_client.get(&client).copied().unwrap_or(0);
        let full = match () {
            () if of_client >= self.per_client => Some(Full::Client),
            () if taken.occupants.len() >= self.all => Some(Full::All),
            () => None,
        };
        if let Some(full) = full {
            let among = (full == Full::Client).then_some(client);
            let least = self.makes_room.then(|| taken.least_useful(among)).flatten().ok_or(full)?;
            taken.leave(least);
        }
        let id = taken.next;
        taken.next += 1;
        *taken.by_client.entry(client).or_default() += 1;
        let standing = Standing::new();
        taken.occupants.insert(id, Occupant { client, standing: standing.clone() });
        Ok(Place { id, standing, taken: self.taken.clone() })
    }
}

// === impl Taken ===

impl Taken {
    /// The connection, of one client or of all, whose last use is longest ago; one that never was of use before all others.
    fn least_useful(&self, of: Option<Client>) -> Option<u64> {
        let among = self.occupants.iter().filter(|(_, occupant)| of.is_none_or(|client| occupant.client == client));
        let least = among.min_by_key(|(_, Occupant { standing, .. })| {
            let useful = *standing.useful.lock();
            (useful.is_some(), useful.unwrap_or(standing.opened))
        });
        least.map(|(id, _)| *id)
    }

    /// Ends a connection, if it has not ended.
    fn leave(&mut self, id: u64) {
        let Some(Occupant { client, standing }) = self.occupants.remove(&id) else { return };
        standing.evicted.cancel();
        if let Some(of_client) = self.by_client.get_mut(&client) {
            *of_client = of_client.saturating_sub(1);
            // Or the map would remember everybody who ever came.
            if *of_client == 0 {
                self.by_client.remove(&client);
            }
        }
    }
}

// === impl Place ===

impl Place {
    pub(super) fn standing(&self) -> &Standing {
        &self.standing
    }
}

// === impl Standing ===

impl Standing {
    fn new() -> Self {
        Self { opened: Instant::now(), useful: Arc::default(), evicted: CancellationToken::new() }
    }

    /// Notes that the connection is of use now: it is among the last to go when a new one needs a place.
    pub fn is_useful(&self) {
        *self.useful.lock() = Some(Instant::now());
    }

    pub(super) fn evicted(&self) -> &CancellationToken {
        &self.evicted
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.taken.lock().leave(self.id);
    }
}

impl From<Peer> for Client {
    fn from(peer: Peer) -> Self {
        match peer {
            Peer::Tcp(address) => Self::Address(address.ip().to_canonical()),
            Peer::Unix { pid } => Self::Process(pid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(address: &str) -> Peer {
        Peer::Tcp(address.parse().unwrap())
    }

    #[test]
    fn one_client_does_not_take_the_places_of_all() {
        let places = Places::new(4, 2);
        let _first = places.take(tcp("10.0.0.1:1")).unwrap();
        // The same address on a socket for both families.
        let second = places.take(tcp("[::ffff:10.0.0.1]:2")).unwrap();
        assert_eq!(places.take(tcp("10.0.0.1:3")).unwrap_err(), Full::Client);
        let _other = places.take(tcp("10.0.0.2:1")).unwrap();
        let process = places.take(Peer::Unix { pid: Some(7) }).unwrap();
        assert_eq!(places.take(tcp("10.0.0.3:1")).unwrap_err(), Full::All);
        drop(second);
        let _again = places.take(tcp("10.0.0.1:4")).unwrap();
        drop(process);
        let _process = places.take(Peer::Unix { pid: None }).unwrap();
    }

    #[test]
    fn who_has_left_is_forgotten() {
        let places = Places::new(4, 2);
        drop(places.take(tcp("10.0.0.1:1")).unwrap());
        let taken = places.taken.lock();
        assert_eq!((taken.occupants.len(), taken.by_client.len()), (0, 0));
    }

    /// Whoever holds on to connections that are of no use keeps nobody out, from however many addresses, nor from the same.
    #[tokio::test(start_paused = true)]
    async fn a_new_connection_takes_the_place_of_the_least_useful() {
        let places = Places::new(4, 2).making_room();
        let api_server = places.take(tcp("10.0.0.1:1")).unwrap();
        api_server.standing().is_useful();
        let mut idle = Vec::new();
        for n in 2..20 {
            tokio::time::advance(std::time::Duration::from_secs(1)).await;
            idle.push(places.take(tcp(&format!("10.0.0.{n}:1"))).unwrap());
            assert!(!idle[n - 2].standing().evicted().is_cancelled());
        }
        let left = idle.iter().filter(|place| !place.standing().evicted().is_cancelled()).count();
        assert_eq!(left, 3);
        assert!(!api_server.standing().evicted().is_cancelled());
        // One client makes room among its own.
        let own: Vec<_> = (2..5).map(|port| places.take(tcp(&format!("10.0.0.1:{port}"))).unwrap()).collect();
        let evicted: Vec<_> = own.iter().map(|place| place.standing().evicted().is_cancelled()).collect();
        assert_eq!(evicted, [true, true, false]);
        assert!(!api_server.standing().evicted().is_cancelled());
        assert_eq!(places.taken.lock().occupants.len(), 4);
        drop((own, idle, api_server));
        let taken = places.taken.lock();
        assert_eq!((taken.occupants.len(), taken.by_client.len()), (0, 0));
    }
}
