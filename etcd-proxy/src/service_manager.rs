//! What systemd is told (`Type=notify`, sd_notify(3)): that the process is ready, what it does, that it stops.

use std::{
    env,
    ffi::OsString,
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            net::{SocketAddr, UnixDatagram},
        },
    },
};

/// Whoever started this process, if it wants to hear how it is.
#[derive(Clone, Debug)]
pub struct ServiceManager {
    socket: Option<OsString>,
}

impl ServiceManager {
    /// The one that `NOTIFY_SOCKET` names.
    pub fn from_environment() -> Self {
        Self { socket: env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) }
    }

    /// Says that clients can connect, and what they meet.
    pub fn ready(&self, status: &str) {
        self.tell(&format!("READY=1\nSTATUS={status}"));
    }

    /// Says what the process does.
    pub fn status(&self, status: &str) {
        self.tell(&format!("STATUS={status}"));
    }

    /// Says that the process is about to end.
    pub fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=finishing requests under way");
    }

    fn tell(&self, state: &str) {
        let Some(socket) = &self.socket else { return };
        // A service manager that does not hear must not keep the process from its work.
        if let Err(error) = send(socket, state) {
            tracing::debug!(error = &error as &dyn std::error::Error, "NOTIFY_SOCKET cannot be written to");
        }
    }
}

fn send(socket: &OsString, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let datagram = UnixDatagram::unbound()?;
    datagram.set_nonblocking(true)?;
    datagram.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_sockets_are_told() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("notify");
        let name = format!("etcd-proxy-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let receivers = [UnixDatagram::bind(&path).unwrap(), UnixDatagram::bind_addr(&address).unwrap()];
        for (socket, receiver) in [path.into_os_string(), format!("@{name}").into()].into_iter().zip(receivers) {
            ServiceManager { socket: Some(socket) }.ready("serving");
            let mut buffer = [0; 100];
            let length = receiver.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"READY=1\nSTATUS=serving");
        }
        // Nobody listens.
        ServiceManager { socket: Some("/nowhere/notify".into()) }.stopping();
        ServiceManager { socket: None }.stopping();
    }
}
