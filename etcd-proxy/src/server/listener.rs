//! Binding TCP addresses and unix sockets.

use std::{
    fmt, fs, io,
    net::SocketAddr,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    pin::Pin,
    task::{Context, Poll},
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
};

use crate::config::{ListenAddress, ListenUrl};

/// A bound listener. A unix socket's file goes with it.
#[derive(Debug)]
pub struct Listener {
    url: ListenUrl,
    socket: Socket,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener, #[expect(dead_code, reason = "removes the file when it is dropped")] SocketFile),
}

/// The file of a bound unix socket; removed in the end, unless another process has put its own in its place.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    inode: u64,
}

/// Where a connection comes from, for the log.
#[derive(Clone, Copy, Debug)]
pub enum Peer {
    /// Its IP address and port.
    Tcp(SocketAddr),
    /// The process at the other end of a unix socket.
    Unix {
        /// Its process id, if the system tells.
        pid: Option<i32>,
    },
}

/// A connection on either kind of socket.
#[derive(Debug)]
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// An address that cannot be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The system refuses.
    #[error("cannot listen on {url}: {source}")]
    Bind {
        /// The address.
        url: ListenUrl,
        /// Why.
        source: io::Error,
    },
    /// A file that is no socket is in the place of the socket.
    #[error("cannot listen on {url}: the file exists and is not a socket; remove it or choose another path")]
    NotASocket {
        /// The address.
        url: ListenUrl,
    },
    /// A socket is in its place, and connecting to it tells neither that somebody listens nor that nobody does.
    #[error(
        "cannot listen on {url}: there is a socket already, and it cannot be told whether somebody listens on it: {source}; stop who does, or remove the file if nobody does"
    )]
    Unclear {
        /// The address.
        url: ListenUrl,
        /// What came of connecting.
        source: io::Error,
    },
    /// Another process listens there.
    #[error("cannot listen on {url}: another process is listening there")]
    InUse {
        /// The address.
        url: ListenUrl,
    },
}

// === impl Listener ===

impl Listener {
    /// Binds `url`. A unix socket gets the permissions `unix_mode` and takes the place of one that nobody listens on.
    ///
    /// # Errors
    /// Names the address and what is in its way.
    pub async fn bind(url: ListenUrl, unix_mode: u32) -> Result<Self, BindError> {
        let refuse = |url: &ListenUrl, source| BindError::Bind { url: url.clone(), source };
        match url.address.clone() {
            ListenAddress::Tcp(address) => {
                let listener = TcpListener::bind(address).await.map_err(|source| refuse(&url, source))?;
                let address = listener.local_addr().map_err(|source| refuse(&url, source))?;
                let url = ListenUrl { address: ListenAddress::Tcp(address), tls: url.tls };
                Ok(Self { url, socket: Socket::Tcp(listener) })
            }
            ListenAddress::Unix(path) => {
                remove_stale(&url, &path).await?;
                let (listener, file) = bind_unix(path, unix_mode).map_err(|source| refuse(&url, source))?;
                Ok(Self { url, socket: Socket::Unix(listener, file) })
            }
        }
    }

    /// Whether connections speak TLS.
    pub fn is_tls(&self) -> bool {
        self.url.tls
    }

    pub(super) async fn accept(&self) -> io::Result<(Stream, Peer)> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, address) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok((Stream::Tcp(stream), Peer::Tcp(address)))
            }
            Socket::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                let pid = stream.peer_cred().ok().and_then(|peer| peer.pid());
                Ok((Stream::Unix(stream), Peer::Unix { pid }))
            }
        }
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.url.fmt(f)
    }
}

/// Removes the socket that a process left behind, and nothing else.
async fn remove_stale(url: &ListenUrl, path: &Path) -> Result<(), BindError> {
    let refuse = |source| BindError::Bind { url: url.clone(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(refuse(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => Err(BindError::NotASocket { url: url.clone() }),
        Ok(_) => match UnixStream::connect(path).await {
            Ok(_) => Err(BindError::InUse { url: url.clone() }),
            // The file is there, and nobody has it open.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path).map_err(refuse),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            // Somebody who has more to accept than there is room for, or lets nobody connect.
            Err(source) => Err(BindError::Unclear { url: url.clone(), source }),
        },
    }
}

/// Binds beside the final path and moves the socket there once its permissions are right, so that nobody connects before.
fn bind_unix(path: PathBuf, mode: u32) -> io::Result<(UnixListener, SocketFile)> {
    // A short name: the path of a socket may have about a hundred bytes.
    let beside = path.with_file_name(format!(".{}", std::process::id()));
    let listener = UnixListener::bind(&beside)?;
    let moved = fs::set_permissions(&beside, fs::Permissions::from_mode(mode))
        .and_then(|()| fs::symlink_metadata(&beside))
        .and_then(|metadata| fs::rename(&beside, &path).map(|()| metadata.ino()));
    match moved {
        Ok(inode) => Ok((listener, SocketFile { path, inode })),
        Err(error) => {
            _ = fs::remove_file(&beside);
            Err(error)
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|metadata| metadata.ino() == self.inode) {
            _ = fs::remove_file(&self.path);
        }
    }
}

// === impl Peer ===

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix { pid: Some(pid) } => write!(f, "process {pid}"),
            Self::Unix { pid: None } => f.write_str("unix socket"),
        }
    }
}

// === impl Stream ===

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Self::Unix(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
