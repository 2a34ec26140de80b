//! etcd's `benchmark`: run with a number of requests, its summary read.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use xtask::{cluster::Endpoint, process};

/// How a load reaches its server.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    url: String,
    tls: Vec<OsString>,
}

/// What is asked, over and over.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    /// Writes keys of 64 bytes, one after the other.
    Put {
        /// The size of the values in bytes.
        value: usize,
    },
    /// Reads one key, linearizably.
    Get {
        /// The key.
        key: String,
    },
}

/// Requests by so many clients at once.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    /// What is asked.
    pub(crate) request: Request,
    /// Clients, each with one request at a time.
    pub(crate) clients: usize,
    /// Connections, which the clients share.
    pub(crate) connections: usize,
}

/// What the tool says of a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Outcome {
    /// Requests a second.
    pub(crate) rate: f64,
    /// The time of the middle request.
    pub(crate) p50: Duration,
    /// The time that one in a hundred exceeds.
    pub(crate) p99: Duration,
}

/// How many different keys are written, so that the store does not grow without end.
const KEYS: usize = 10_000;

impl Access {
    /// Without TLS.
    pub(crate) fn plaintext(url: &str) -> Self {
        Self { url: url.to_owned(), tls: Vec::new() }
    }

    /// With TLS and a client's certificate.
    pub(crate) fn tls(endpoint: &Endpoint) -> Self {
        let flag = |name: &str, path: &Path| {
            let mut flag = OsString::from(format!("--{name}="));
            flag.push(path);
            flag
        };
        let Endpoint { url, ca, client, .. } = endpoint;
        Self { url: url.clone(), tls: vec![flag("cacert", ca), flag("cert", &client.cert), flag("key", &client.key)] }
    }
}

impl Load {
    /// Sends so many requests.
    ///
    /// # Errors
    /// When a request fails, or it takes longer than `limit`.
    pub(crate) fn run(&self, tool: &PathBuf, access: &Access, requests: usize, limit: Duration) -> Result<Outcome> {
        let mut command = Command::new(tool);
        command.arg(format!("--endpoints={}", access.url)).args(&access.tls).arg("--precise");
        command.arg(format!("--clients={}", self.clients)).arg(format!("--conns={}", self.connections));
        match &self.request {
            Request::Put { value } => command.args([
                "put".to_owned(),
                "--key-size=64".into(),
                format!("--val-size={value}"),
                format!("--key-space-size={KEYS}"),
                "--sequential-keys".into(),
                format!("--total={requests}"),
            ]),
            Request::Get { key } => command.args(["range".to_owned(), key.clone(), format!("--total={requests}")]),
        };
        let text = process::run(&mut command, b"", limit)?.success().context("etcd's benchmark tool")?;
        parse(&text).with_context(|| format!("etcd's benchmark tool wrote:\n{text}"))
    }

    /// Warms up and finds how many requests take about as long as wanted, within reason.
    ///
    /// # Errors
    /// As [`Load::run`].
    pub(crate) fn calibrate(&self, tool: &PathBuf, access: &Access, warm_up: usize, wanted: Duration) -> Result<usize> {
        let requests = warm_up * self.clients.isqrt().max(1);
        let outcome = self.run(tool, access, requests, Duration::from_secs(120))?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded on the same line")]
        let wanted = (outcome.rate * wanted.as_secs_f64()).clamp(1.0, 1e7) as usize;
        Ok(wanted.max(requests))
    }
}

fn parse(text: &str) -> Result<Outcome> {
    if let Some((_, errors)) = text.split_once("Error distribution:") {
        bail!("requests failed: {}", errors.trim());
    }
    let number = |text: &str| text.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
    let after = |mark: &str| text.lines().find_map(|line| number(line.trim_start().strip_prefix(mark)?));
    let time = |mark: &str| {
        let seconds = after(mark).with_context(|| format!("no line begins with {mark:?}"))?;
        ensure!(seconds.is_finite() && seconds >= 0.0, "{mark} {seconds}");
        Ok(Duration::from_secs_f64(seconds))
    };
    let rate = after("Requests/sec:").context("it tells no rate")?;
    // Of fewer than a hundred requests the tool tells no 99th percentile: it is the slowest.
    Ok(Outcome { rate, p50: time("50% in")?, p99: time("99% in").or_else(|_| time("Slowest:"))? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUMMARY: &str = "\nSummary:\n  Total:\t0.81 secs.\n  Requests/sec:\t2466.5\n\nLatency distribution:\n  10% in 0.0002 secs.\n  50% in 0.00035 secs.\n  99% in 0.0012 secs.\n  99.9% in 0.002 secs.\n";

    #[test]
    fn summaries_are_read() {
        let outcome = parse(SUMMARY).unwrap();
        assert_eq!((outcome.rate, outcome.p50.as_micros(), outcome.p99.as_micros()), (2466.5, 350, 1200));
    }

    #[test]
    fn failed_requests_are_no_figures() {
        let text = format!("{SUMMARY}\nError distribution:\n  [3]\tetcdserver: request timed out.\n");
        assert!(parse(&text).unwrap_err().to_string().contains("timed out"));
        assert!(parse("nothing").is_err());
    }
}
