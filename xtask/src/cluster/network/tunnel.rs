//! Connections that are passed on byte by byte, counted, and cut on demand.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use parking_lot::Mutex;

/// How long a client may take to say where it wants to, and an endpoint to accept.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest request for a tunnel, in bytes.
const REQUEST: u64 = 16 * 1024;

/// How many connections there are and were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Open now.
    pub open: usize,
    /// Opened so far.
    pub opened: usize,
    /// Refused, since nothing answered behind the Service.
    pub refused: usize,
}

/// The connections that are being passed on. Clones are the same ones.
#[derive(Clone, Default)]
pub(super) struct Tunnels(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    next: u64,
    open: HashMap<u64, Tunnel>,
    counts: HashMap<String, Counts>,
    ended: bool,
}

struct Tunnel {
    service: String,
    ends: [TcpStream; 2],
}

/// Listening ports, each with a thread.
#[derive(Default)]
pub(super) struct Doors {
    ended: Arc<AtomicBool>,
    threads: Mutex<Vec<(SocketAddr, JoinHandle<()>)>>,
}

// === impl Doors ===

impl Doors {
    /// Hands each connection to `serve`, on a thread of its own.
    pub(super) fn open(&self, listener: TcpListener, serve: impl Fn(TcpStream) + Clone + Send + 'static) -> Result<()> {
        let address = listener.local_addr()?;
        let ended = Arc::clone(&self.ended);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                // A connection that broke before it was accepted is nobody's loss.
                let Ok(stream) = stream else { continue };
                let serve = serve.clone();
                std::thread::spawn(move || serve(stream));
            }
        });
        self.threads.lock().push((address, thread));
        Ok(())
    }

    /// Closes the ports.
    pub(super) fn close(&self) {
        self.ended.store(true, Ordering::SeqCst);
        for (address, thread) in self.threads.lock().drain(..) {
            // Accepting waits for a connection, and this is one. Where none can be made, nobody waits.
            if TcpStream::connect_timeout(&address, PATIENCE).is_ok() {
                let _ = thread.join();
            }
        }
    }
}

// === impl Tunnels ===

impl Tunnels {
    /// Cuts what leads to a Service, whatever is on its way.
    pub(super) fn cut(&self, service: &str) -> usize {
        let state = self.0.lock();
        state.open.values().filter(|tunnel| tunnel.service == service).map(Tunnel::cut).count()
    }

    pub(super) fn counts(&self, service: &str) -> Counts {
        self.0.lock().counts.get(service).copied().unwrap_or_default()
    }

    /// Cuts everything and lets nothing new through.
    pub(super) fn end(&self) {
        let mut state = self.0.lock();
        state.ended = true;
        state.open.values().for_each(Tunnel::cut);
    }

    fn open(&self, service: &str, client: &TcpStream, endpoint: &TcpStream) -> Result<u64> {
        let ends = [client.try_clone()?, endpoint.try_clone()?];
        let mut state = self.0.lock();
        if state.ended {
            bail!("the network has ended");
        }
        let number = state.next;
        state.next += 1;
        state.open.insert(number, Tunnel { service: service.to_owned(), ends });
        let counts = state.counts.entry(service.to_owned()).or_default();
        counts.open += 1;
        counts.opened += 1;
        Ok(number)
    }

    fn close(&self, number: u64) {
        let mut state = self.0.lock();
        if let Some(tunnel) = state.open.remove(&number)
            && let Some(counts) = state.counts.get_mut(&tunnel.service)
        {
            counts.open -= 1;
        }
    }

    fn refuse(&self, service: &str) {
        self.0.lock().counts.entry(service.to_owned()).or_default().refused += 1;
    }

    /// Passes on what comes, until both sides have ended or one broke.
    fn pass(&self, service: &str, client: &TcpStream, endpoint: &TcpStream) -> Result<()> {
        let number = self.open(service, client, endpoint)?;
        std::thread::scope(|scope| {
            scope.spawn(|| pump(client, endpoint));
            pump(endpoint, client);
        });
        self.close(number);
        Ok(())
    }
}

impl Tunnel {
    fn cut(&self) {
        for end in &self.ends {
            // It may be closed already.
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

/// Serves a client that asks for a tunnel by `CONNECT` (RFC 9110, section 9.3.6).
pub(super) fn connect(mut client: TcpStream, tunnels: &Tunnels, resolve: impl Fn(&str) -> Result<Vec<SocketAddr>>) {
    let outcome = requested(&client).and_then(|target| {
        let endpoint = dial(tunnels, &target, &resolve)?;
        client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")?;
        Ok((target, endpoint))
    });
    match outcome {
        // A tunnel that breaks has nobody to tell but its two ends, and they know.
        Ok((target, endpoint)) => drop(tunnels.pass(&target, &client, &endpoint)),
        Err(error) => {
            let words = format!("{error:#}\n");
            let answer = format!(
                "HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{words}",
                words.len()
            );
            // The client may be gone.
            let _ = client.write_all(answer.as_bytes());
        }
    }
}

/// Passes a connection on to a Service. Where that leads nowhere, the connection is closed.
pub(super) fn lead(
    client: TcpStream,
    tunnels: &Tunnels,
    service: &str,
    resolve: impl Fn(&str) -> Result<Vec<SocketAddr>>,
) {
    if let Ok(endpoint) = dial(tunnels, service, &resolve) {
        // As above.
        drop(tunnels.pass(service, &client, &endpoint));
    }
}

/// Reads the request for a tunnel, and nothing of what comes behind it: clients wait for the answer.
fn requested(client: &TcpStream) -> Result<String> {
    client.set_nodelay(true)?;
    client.set_read_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(client.take(REQUEST));
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut words = line.split_whitespace();
    let (Some("CONNECT"), Some(target)) = (words.next(), words.next()) else {
        bail!("only CONNECT is served here, not {:?}", line.trim_end());
    };
    let target = target.to_owned();
    loop {
        let mut header = String::new();
        if reader.read_line(&mut header)? == 0 {
            bail!("the request for {target} does not end");
        }
        if header.trim_end().is_empty() {
            break;
        }
    }
    if !reader.buffer().is_empty() {
        bail!("the client sent more than its request for {target} before it was answered");
    }
    client.set_read_timeout(None)?;
    Ok(target)
}

/// Connects to the first endpoint that accepts, beginning with another one each time.
fn dial(tunnels: &Tunnels, target: &str, resolve: &impl Fn(&str) -> Result<Vec<SocketAddr>>) -> Result<TcpStream> {
    let attempt = || {
        let mut addresses = resolve(target)?;
        let turn = tunnels.counts(target).opened.checked_rem(addresses.len()).unwrap_or_default();
        addresses.rotate_left(turn);
        let mut last = None;
        for address in addresses {
            match TcpStream::connect_timeout(&address, PATIENCE) {
                Ok(endpoint) => {
                    endpoint.set_nodelay(true)?;
                    return Ok(endpoint);
                }
                Err(error) => last = Some(anyhow::Error::from(error).context(address.to_string())),
            }
        }
        Err(last.context("no address")?.context(format!("nothing answers behind {target}")))
    };
    attempt().inspect_err(|_| tunnels.refuse(target))
}

/// Passes on one direction, with its end.
fn pump(mut from: &TcpStream, mut to: &TcpStream) {
    let (from_end, to_end) = match std::io::copy(&mut from, &mut to) {
        Ok(_) => (Shutdown::Read, Shutdown::Write),
        // It broke: the other direction has no use either.
        Err(_) => (Shutdown::Both, Shutdown::Both),
    };
    // Either may be closed already.
    let _ = from.shutdown(from_end);
    let _ = to.shutdown(to_end);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that sends back what it gets.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
            }
        });
        address
    }

    struct Proxy {
        doors: Doors,
        tunnels: Tunnels,
        address: SocketAddr,
    }

    impl Proxy {
        fn new() -> Self {
            let (doors, tunnels, echo) = (Doors::default(), Tunnels::default(), echo());
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let served = tunnels.clone();
            doors
                .open(listener, move |stream| {
                    connect(stream, &served, |target| {
                        if target == "echo.test.svc:7" { Ok(vec![echo]) } else { bail!("there is no {target}") }
                    });
                })
                .unwrap();
            Self { doors, tunnels, address }
        }

        fn ask(&self, request: &str) -> (TcpStream, String) {
            let mut stream = TcpStream::connect(self.address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            stream.write_all(request.as_bytes()).unwrap();
            let mut answer = Vec::new();
            let mut byte = [0];
            while !answer.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
                answer.extend_from_slice(&byte);
            }
            (stream, String::from_utf8(answer).unwrap())
        }
    }

    impl Drop for Proxy {
        fn drop(&mut self) {
            self.doors.close();
            self.tunnels.end();
        }
    }

    const SERVICE: &str = "echo.test.svc:7";

    fn say(stream: &mut TcpStream, words: &[u8]) -> std::io::Result<Vec<u8>> {
        stream.write_all(words)?;
        let mut heard = vec![0; words.len()];
        stream.read_exact(&mut heard)?;
        Ok(heard)
    }

    #[test]
    fn a_tunnel_passes_on_and_is_cut_on_demand() {
        let proxy = Proxy::new();
        let (mut stream, answer) = proxy.ask(&format!("CONNECT {SERVICE} HTTP/1.1\r\nHost: {SERVICE}\r\n\r\n"));
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert_eq!(say(&mut stream, b"dough").unwrap(), b"dough");
        assert_eq!(proxy.tunnels.counts(SERVICE), Counts { open: 1, opened: 1, refused: 0 });
        assert_eq!(proxy.tunnels.cut("other.test.svc:7"), 0);
        assert_eq!(proxy.tunnels.cut(SERVICE), 1);
        assert_eq!(stream.read(&mut [0]).unwrap(), 0, "the connection has ended");
        crate::poll::until("the tunnel's end", Duration::from_secs(20), || {
            let counts = proxy.tunnels.counts(SERVICE);
            if counts == (Counts { open: 0, opened: 1, refused: 0 }) { Ok(()) } else { bail!("{counts:?}") }
        })
        .unwrap();
        let (mut stream, _) = proxy.ask(&format!("CONNECT {SERVICE} HTTP/1.1\r\n\r\n"));
        assert_eq!(say(&mut stream, b"again").unwrap(), b"again");
    }

    #[test]
    fn the_end_of_one_direction_is_passed_on() {
        let proxy = Proxy::new();
        let (mut stream, _) = proxy.ask(&format!("CONNECT {SERVICE} HTTP/1.1\r\n\r\n"));
        stream.write_all(b"last").unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).unwrap();
        assert_eq!(heard, b"last");
    }

    #[test]
    fn what_cannot_be_served_is_refused_with_words() {
        let proxy = Proxy::new();
        for (request, why) in [
            ("CONNECT none.test.svc:7 HTTP/1.1\r\n\r\n", "there is no none.test.svc:7"),
            ("GET / HTTP/1.1\r\n\r\n", "only CONNECT"),
        ] {
            let (mut stream, answer) = proxy.ask(request);
            assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
            let mut words = String::new();
            stream.read_to_string(&mut words).unwrap();
            assert!(words.contains(why), "{words}");
        }
        assert_eq!(proxy.tunnels.counts("none.test.svc:7").refused, 1);
    }
}
