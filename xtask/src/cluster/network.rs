//! The cluster's Services as seen from this machine, where neither the cluster's DNS nor kube-proxy is: an HTTP proxy
//! that connects to Services by the names they have in a cluster.
//!
//! Programs are to verify the name that they would verify in a cluster, such as `pizza-etcd.restaurant.svc`, so that is
//! the name in the URL that they are given. Getting it resolved takes no root and no change to the program: a client on
//! Go's gRPC (etcdctl, clientv3, Kubernetes' API servers) asks the proxy in `HTTPS_PROXY` for a tunnel by `CONNECT`
//! with the unresolved name, and so does pizza-apiserver. TLS passes through the tunnel from end to end. Addresses of
//! loopback are never asked of such a proxy, so that connections to kube-apiserver stay direct. What was weighed else:
//! entries in `/etc/hosts` need root; a mount namespace needs unprivileged user namespaces, which several
//! distributions forbid; static Go programs know no other way to change a resolver; and a certificate for `localhost`
//! would show nothing about the name that counts.
//!
//! For clients that know no such proxy there is [`Network::listen`]: a port on loopback that leads to a Service, to be
//! used with a client that can be told which name to verify.

mod table;
mod tunnel;

use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use parking_lot::{Condvar, Mutex};

pub use self::tunnel::Counts;
use self::{
    table::Table,
    tunnel::{Doors, Tunnels},
};
use super::{Kubectl, follow::Follower};
use crate::{process::Spec, site::Site};

/// Services and their endpoints, followed, and the doors that lead to them. Dropping it cuts every connection.
pub struct Network {
    followers: Vec<Follower>,
    doors: Doors,
    shared: Arc<Shared>,
    proxy: SocketAddr,
}

struct Shared {
    table: Mutex<Table>,
    changed: Condvar,
    tunnels: Tunnels,
}

impl Network {
    /// Begins to follow Services and EndpointSlices as the user of `kubectl`, and opens the proxy on a free port of
    /// loopback, or the one given.
    ///
    /// # Errors
    /// When the port cannot be had.
    pub fn start(site: &Site, kubectl: &Kubectl, port: u16) -> Result<Self> {
        let shared = Arc::new(Shared {
            table: Mutex::new(Table::default()),
            changed: Condvar::new(),
            tunnels: Tunnels::default(),
        });
        let listener =
            TcpListener::bind(("127.0.0.1", port)).with_context(|| format!("listening on 127.0.0.1:{port}"))?;
        let proxy = listener.local_addr()?;
        let follow = |path: &str, hear: fn(&mut Table, super::follow::Change)| {
            let shared = Arc::clone(&shared);
            Follower::start(site, kubectl, "network", path, move |change| {
                hear(&mut shared.table.lock(), change);
                shared.changed.notify_all();
            })
        };
        let followers = vec![
            follow("/api/v1/services", Table::hear_service),
            follow("/apis/discovery.k8s.io/v1/endpointslices", Table::hear_slice),
        ];
        let doors = Doors::default();
        let this = Self { followers, doors, shared, proxy };
        let shared = Arc::clone(&this.shared);
        this.doors.open(listener, move |stream| tunnel::connect(stream, &shared.tunnels, |to| shared.resolve(to)))?;
        Ok(this)
    }

    /// The proxy's address on loopback.
    pub fn proxy(&self) -> SocketAddr {
        self.proxy
    }

    /// Has a program reach Services by their names.
    #[must_use]
    pub fn reached_by(&self, spec: Spec) -> Spec {
        variables(self.proxy).into_iter().fold(spec, |spec, (name, value)| spec.env(name, value))
    }

    /// Opens a port on loopback that leads to a Service, `name.namespace.svc:port`.
    ///
    /// # Errors
    /// When no port is to be had.
    pub fn listen(&self, service: &str) -> Result<SocketAddr> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        let (shared, service) = (Arc::clone(&self.shared), service.to_owned());
        self.doors.open(listener, move |stream| {
            tunnel::lead(stream, &shared.tunnels, &service, |to| shared.resolve(to));
        })?;
        Ok(address)
    }

    /// Where a connection to `name.namespace.svc:port` would lead now.
    ///
    /// # Errors
    /// When there is no such Service, or nothing behind it.
    pub fn resolve(&self, service: &str) -> Result<Vec<SocketAddr>> {
        self.shared.resolve(service)
    }

    /// Waits until a connection to `name.namespace.svc:port` leads somewhere.
    ///
    /// # Errors
    /// When it did not within `limit`: why.
    pub fn wait(&self, service: &str, limit: Duration) -> Result<Vec<SocketAddr>> {
        let deadline = Instant::now() + limit;
        let mut table = self.shared.table.lock();
        loop {
            let error = match table.resolve(service) {
                Ok(addresses) => return Ok(addresses),
                Err(error) => error,
            };
            if self.shared.changed.wait_until(&mut table, deadline).timed_out() {
                return Err(error.context(format!("not within {} s", limit.as_secs())));
            }
        }
    }

    /// Cuts every connection to `name.namespace.svc:port` and answers how many there were. New ones are let through.
    pub fn cut(&self, service: &str) -> usize {
        self.shared.tunnels.cut(service)
    }

    /// The connections to `name.namespace.svc:port`.
    pub fn counts(&self, service: &str) -> Counts {
        self.shared.tunnels.counts(service)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.followers.clear();
        self.doors.close();
        self.shared.tunnels.end();
    }
}

impl Shared {
    fn resolve(&self, service: &str) -> Result<Vec<SocketAddr>> {
        self.table.lock().resolve(service)
    }
}

/// The variables by which programs are told of the proxy. A developer's own settings take no name out again.
pub(super) fn variables(proxy: SocketAddr) -> [(&'static str, String); 3] {
    [("HTTPS_PROXY", format!("http://{proxy}")), ("NO_PROXY", String::new()), ("no_proxy", String::new())]
}

/// An address of this machine that is not loopback, which an EndpointSlice may name.
///
/// # Errors
/// When the machine has none, as without any network.
pub fn machine_address() -> Result<std::net::IpAddr> {
    // Connecting a datagram socket sends nothing; it only asks which address the machine would send from.
    for (own, far) in [("0.0.0.0:0", "203.0.113.1:9"), ("[::]:0", "[2001:db8::1]:9")] {
        let routed = std::net::UdpSocket::bind(own).and_then(|socket| {
            socket.connect(far)?;
            socket.local_addr()
        });
        if let Ok(address) = routed.map(|address| address.ip())
            && is_endpoint(address)
        {
            return Ok(address);
        }
    }
    // Without a route to the world there may still be an interface.
    let table = std::fs::read_to_string(Path::new("/proc/net/fib_trie")).unwrap_or_default();
    if let Some(address) = local_addresses(&table).into_iter().find(|address| is_endpoint(*address)) {
        return Ok(address);
    }
    bail!(
        "this machine has no address but loopback, and Kubernetes refuses loopback addresses in EndpointSlices: connect \
         it to a network, or add one to an interface (`ip address add 198.51.100.1/32 dev lo` as root)"
    )
}

/// What the validation of EndpointSlices accepts (ValidateEndpointIP in pkg/apis/core/validation).
fn is_endpoint(address: std::net::IpAddr) -> bool {
    let link_local = match address {
        std::net::IpAddr::V4(address) => address.is_link_local(),
        std::net::IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(address.is_unspecified() || address.is_loopback() || address.is_multicast() || link_local)
}

/// The machine's own addresses in `/proc/net/fib_trie`: a leaf's address stands on the line before what it is.
fn local_addresses(table: &str) -> Vec<std::net::IpAddr> {
    let mut address: Option<std::net::IpAddr> = None;
    let mut found = Vec::new();
    for line in table.lines().map(str::trim) {
        if let Some(leaf) = line.strip_prefix("|-- ") {
            address = leaf.parse().ok();
        } else if line.starts_with("/32 host LOCAL") {
            found.extend(address.take());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machines_addresses_are_read() {
        let table = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 127.0.0.1\n        /32 host LOCAL\n     |-- 192.0.2.0\n        \
                     /24 link UNICAST\n     |-- 192.0.2.2\n        /32 host LOCAL\n";
        let addresses = local_addresses(table);
        assert_eq!(addresses, ["127.0.0.1", "192.0.2.2"].map(|address| address.parse::<std::net::IpAddr>().unwrap()));
        assert_eq!(addresses.iter().map(|address| is_endpoint(*address)).collect::<Vec<_>>(), [false, true]);
        for address in ["0.0.0.0", "169.254.1.1", "224.0.0.1", "::1", "fe80::1"] {
            assert!(!is_endpoint(address.parse().unwrap()), "{address}");
        }
    }
}
