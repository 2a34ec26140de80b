//! The way out through an HTTP proxy, if the environment names one: as Go's programs take it.
//!
//! To etcd every client on Go's gRPC, and so every API server in Go, asks the proxy for a tunnel (grpc's
//! internal/resolver/delegatingresolver and internal/transport/proxy.go). The variables mean what they mean to
//! golang.org/x/net/http/httpproxy: loopback and the names in `NO_PROXY` are reached directly.

use std::{net::IpAddr, sync::LazyLock};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::Uri;
use percent_encoding::percent_decode_str;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// The longest answer that a proxy may give before the tunnel, in bytes.
const ANSWER: usize = 16 * 1024;

/// Why no connection came about.
pub(crate) type DialError = Box<dyn std::error::Error + Send + Sync>;

/// What the environment says of proxies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Settings {
    /// `HTTPS_PROXY` or `https_proxy`: gRPC asks for the proxy of https, whatever it speaks to etcd itself.
    proxy: Option<String>,
    /// `NO_PROXY` or `no_proxy`.
    except: String,
}

/// Read once, as Go does: a running program's environment does not change.
static SETTINGS: LazyLock<Settings> = LazyLock::new(|| {
    let either =
        |names: [&str; 2]| names.iter().find_map(|name| std::env::var(name).ok().filter(|text| !text.is_empty()));
    Settings {
        proxy: either(["HTTPS_PROXY", "https_proxy"]),
        except: either(["NO_PROXY", "no_proxy"]).unwrap_or_default(),
    }
});

/// An HTTP proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Proxy {
    /// Host and port.
    authority: String,
    /// What it is told of who asks, in the form of the header.
    credentials: Option<String>,
}

/// Connects to `host:port`, through a tunnel if the environment wants that.
pub(crate) async fn connect(authority: &str) -> Result<TcpStream, DialError> {
    let Some(proxy) = SETTINGS.proxy_for(authority)? else {
        return Ok(TcpStream::connect(authority).await?);
    };
    proxy
        .tunnel(authority)
        .await
        .map_err(|error| format!("through the proxy {} (from HTTPS_PROXY): {error}", proxy.authority).into())
}

/// Whether `host:port` is reached without a proxy, whatever the environment names.
pub(crate) fn is_direct(authority: &str) -> bool {
    SETTINGS.excepts(authority)
}

// === impl Settings ===

impl Settings {
    fn proxy_for(&self, authority: &str) -> Result<Option<Proxy>, DialError> {
        match &self.proxy {
            Some(proxy) if !self.excepts(authority) => Ok(Some(Proxy::parse(proxy)?)),
            _ => Ok(None),
        }
    }

    /// Whether an address is reached directly: loopback always is.
    fn excepts(&self, authority: &str) -> bool {
        let (host, port) = split(authority);
        let host = host.to_ascii_lowercase();
        let address: Option<IpAddr> = host.parse().ok();
        if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
            return true;
        }
        self.except.split(',').map(str::trim).filter(|entry| !entry.is_empty()).any(|entry| {
            let entry = entry.to_ascii_lowercase();
            if entry == "*" {
                return true;
            }
            if let Some((network, bits)) = entry.split_once('/')
                && let (Ok(network), Ok(bits)) = (network.parse(), bits.parse())
            {
                return address.is_some_and(|address| contains(network, bits, address));
            }
            let (name, only) = split(&entry);
            if only.is_some() && only != port {
                return false;
            }
            if let Ok(excepted) = name.parse::<IpAddr>() {
                return address == Some(excepted);
            }
            // A leading dot leaves the name itself out; `*.` is another way to write that.
            let name = name.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(name);
            match name.strip_prefix('.') {
                Some(_) => host.ends_with(name),
                None => host == name || host.strip_suffix(name).is_some_and(|rest| rest.ends_with('.')),
            }
        })
    }
}

/// Host, without brackets, and port.
fn split(authority: &str) -> (&str, Option<&str>) {
    if let Some((host, rest)) = authority.strip_prefix('[').and_then(|text| text.split_once(']')) {
        return (host, rest.strip_prefix(':'));
    }
    match authority.rsplit_once(':') {
        // More than one colon without brackets is an IPv6 address alone.
        Some((host, port)) if !host.contains(':') => (host, Some(port)),
        _ => (authority, None),
    }
}

fn contains(network: IpAddr, bits: u32, address: IpAddr) -> bool {
    let same = |network: u128, address: u128, width: u32| {
        bits <= width && (bits == 0 || (network ^ address) >> (width - bits) == 0)
    };
    match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            same(u32::from(network).into(), u32::from(address).into(), u32::BITS)
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => same(network.into(), address.into(), u128::BITS),
        _ => false,
    }
}

// === impl Proxy ===

impl Proxy {
    fn parse(text: &str) -> Result<Self, DialError> {
        let wrong = |why: &str| DialError::from(format!("HTTPS_PROXY names no proxy that can be used: {why}"));
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        if scheme != "http" {
            // gRPC speaks plain HTTP to proxies, whatever the scheme says; that nobody should be led to believe.
            return Err(wrong("its scheme is not http"));
        }
        let uri: Uri = rest.trim_end_matches('/').parse().map_err(|_| wrong("it is no host with a port"))?;
        let authority = uri.authority().ok_or_else(|| wrong("it has no host"))?.as_str();
        let (user, authority) = match authority.rsplit_once('@') {
            Some((user, authority)) => (Some(user), authority),
            None => (None, authority),
        };
        let (host, port) = split(authority);
        if host.is_empty() {
            return Err(wrong("it has no host"));
        }
        let authority = if port.is_some() { authority.to_owned() } else { format!("{authority}:80") };
        let credentials = user.map(|user| {
            let plain: Vec<u8> = percent_decode_str(user).collect();
            format!("Basic {}", STANDARD.encode(plain))
        });
        Ok(Self { authority, credentials })
    }

    /// Asks for a tunnel by `CONNECT` (RFC 9110, section 9.3.6).
    async fn tunnel(&self, authority: &str) -> Result<TcpStream, DialError> {
        let mut stream = TcpStream::connect(self.authority.as_str()).await?;
        let agent = concat!("apiserver/", env!("CARGO_PKG_VERSION"));
        let mut request = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: {agent}\r\n");
        if let Some(credentials) = &self.credentials {
            request.push_str(&format!("Proxy-Authorization: {credentials}\r\n"));
        }
        request.push_str("\r\n");
        stream.write_all(request.as_bytes()).await?;
        // Byte by byte: what comes behind the answer is the tunnel's. It is a line or two, once a connection.
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            if answer.len() >= ANSWER {
                return Err("its answer does not end".into());
            }
            answer.push(stream.read_u8().await?);
        }
        let line = String::from_utf8_lossy(answer.split(|byte| *byte == b'\r').next().unwrap_or_default()).into_owned();
        let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
        if status.is_some_and(|status| status.starts_with('2')) { Ok(stream) } else { Err(line.into()) }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    fn settings(except: &str) -> Settings {
        Settings { proxy: Some("http://proxy:3128".to_owned()), except: except.to_owned() }
    }

    #[test]
    fn exceptions_are_read_as_go_reads_them() {
        for (except, authority, direct) in [
            ("", "etcd.a.svc:2379", false),
            ("", "localhost:2379", true),
            ("", "127.0.0.2:2379", true),
            ("", "[::1]:2379", true),
            ("*", "etcd:2379", true),
            ("example.com", "example.com:1", true),
            ("example.com", "EU.Example.com:1", true),
            ("example.com", "notexample.com:1", false),
            (".example.com", "example.com:1", false),
            (".example.com", "eu.example.com:1", true),
            ("*.example.com", "eu.example.com:1", true),
            ("a, .svc ,b", "etcd.a.svc:2379", true),
            ("example.com:80", "example.com:81", false),
            ("example.com:80", "example.com:80", true),
            ("192.0.2.1", "192.0.2.1:5", true),
            ("192.0.2.1", "192.0.2.2:5", false),
            ("192.0.2.0/24", "192.0.2.2:5", true),
            ("192.0.2.0/24", "192.0.3.2:5", false),
            ("0.0.0.0/0", "192.0.3.2:5", true),
            ("192.0.2.0/24", "etcd:5", false),
            ("2001:db8::/32", "[2001:db8::7]:5", true),
            ("2001:db8::7", "[2001:db8::7]:5", true),
            ("2001:db8::/32", "[2001:db9::7]:5", false),
        ] {
            let proxy = settings(except).proxy_for(authority).unwrap();
            assert_eq!(proxy.is_none(), direct, "{except:?} for {authority}");
        }
        assert_eq!(Settings::default().proxy_for("etcd:2379").unwrap(), None);
    }

    #[test]
    fn proxies_are_read() {
        let proxy = |text: &str| Proxy::parse(text).map(|proxy| (proxy.authority, proxy.credentials));
        assert_eq!(proxy("http://proxy:3128/").unwrap(), ("proxy:3128".to_owned(), None));
        assert_eq!(proxy("proxy:3128").unwrap(), ("proxy:3128".to_owned(), None));
        assert_eq!(proxy("http://proxy").unwrap(), ("proxy:80".to_owned(), None));
        assert_eq!(
            proxy("http://us%65r:p%40ss@proxy:1").unwrap(),
            ("proxy:1".to_owned(), Some(format!("Basic {}", STANDARD.encode("user:p@ss"))))
        );
        for wrong in ["https://proxy:1", "socks5://proxy:1", "http://", "http:// x"] {
            let error = proxy(wrong).unwrap_err().to_string();
            assert!(error.contains("HTTPS_PROXY"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_tunnel_begins_behind_the_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy =
            Proxy { authority: listener.local_addr().unwrap().to_string(), credentials: Some("Basic x".into()) };
        for (answer, outcome) in [
            ("HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\nfirst", Ok("first")),
            ("HTTP/1.1 502 Bad Gateway\r\n\r\n", Err("502 Bad Gateway")),
            ("SSH-2.0\r\n\r\n", Err("SSH-2.0")),
        ] {
            let serve = async {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    request.push(stream.read_u8().await.unwrap());
                }
                stream.write_all(answer.as_bytes()).await.unwrap();
                String::from_utf8(request).unwrap()
            };
            let (request, tunnel) = tokio::join!(serve, proxy.tunnel("etcd.a.svc:2379"));
            assert!(request.starts_with("CONNECT etcd.a.svc:2379 HTTP/1.1\r\nHost: etcd.a.svc:2379\r\n"), "{request}");
            assert!(request.contains("\r\nProxy-Authorization: Basic x\r\n"), "{request}");
            match outcome {
                Ok(expected) => {
                    let mut heard = String::new();
                    tunnel.unwrap().read_to_string(&mut heard).await.unwrap();
                    assert_eq!(heard, expected);
                }
                Err(words) => {
                    let error = tunnel.unwrap_err().to_string();
                    assert!(error.contains(words), "{error}");
                }
            }
        }
    }
}
