//! How many connections there may be: of all clients together, and of one.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use parking_lot::Mutex;

use super::Peer;

/// The places that a server has for connections. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Places {
    all: usize,
    per_client: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_client: HashMap<Client, usize>,
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
    client: Client,
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
        Self { all, per_client, taken: Arc::default() }
    }

    /// A place for a connection of `peer`.
    pub(super) fn take(&self, peer: Peer) -> Result<Place, Full> {
        let client = Client::from(peer);
        let mut taken = self.taken.lock();
        if taken.all >= self.all {
            return Err(Full::All);
        }
        let of_client = taken.by_client.get(&client).copied().unwrap_or(0);
        if of_client >= self.per_client {
            return Err(Full::Client);
        }
        taken.all += 1;
        taken.by_client.insert(client, of_client + 1);
        Ok(Place { client, taken: self.taken.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.taken.lock();
        taken.all = taken.all.saturating_sub(1);
        if let Some(of_client) = taken.by_client.get_mut(&self.client) {
            *of_client = of_client.saturating_sub(1);
            // Or the map would remember everybody who ever came.
            if *of_client == 0 {
                taken.by_client.remove(&self.client);
            }
        }
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
        assert_eq!((taken.all, taken.by_client.len()), (0, 0));
    }
}
