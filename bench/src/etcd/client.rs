//! A client for long ranges and many watches. It reads and counts, and keeps nothing.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use futures::future::try_join_all;
use proto::etcdserverpb::{
    PutRequest, RangeRequest, RangeResponse, RequestOp, TxnRequest, WatchCreateRequest, WatchRequest, WatchResponse,
    kv_client::KvClient, request_op, watch_client::WatchClient, watch_request,
};
use tokio::{sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Status, Streaming,
    transport::{Channel, Endpoint},
};

/// How long anything may take before the run is given up.
const LIMIT: Duration = Duration::from_secs(120);

/// The size of each value of a long range.
const VALUE: usize = 8 * 1024;

/// Values in one transaction: below etcd's limits of size and number.
const BATCH: usize = 100;

/// Connections that streams of watches share.
const CONNECTIONS: usize = 10;

/// Connects.
///
/// # Errors
/// When nothing answers.
pub(crate) async fn connect(url: &str) -> Result<Channel> {
    let endpoint = Endpoint::from_shared(url.to_owned())?
        .connect_timeout(LIMIT)
        // Large windows, as etcd's own clients have them after a while: a window is not what is measured.
        .initial_stream_window_size(16 << 20)
        .initial_connection_window_size(32 << 20);
    endpoint.connect().await.with_context(|| format!("connecting to {url}"))
}

fn kv(channel: &Channel) -> KvClient<Channel> {
    KvClient::new(channel.clone()).max_decoding_message_size(usize::MAX)
}

/// Writes one key.
///
/// # Errors
/// When the server refuses.
pub(crate) async fn put(channel: &Channel, key: &str, value: Bytes) -> Result<()> {
    let request = PutRequest { key: key.to_owned().into(), value, ..PutRequest::default() };
    kv(channel).put(request).await.with_context(|| format!("writing {key}"))?;
    Ok(())
}

/// Writes so many bytes, in values below `prefix`, which a range of [`range`] then reads.
///
/// # Errors
/// When the server refuses.
pub(crate) async fn seed(channel: &Channel, prefix: &str, bytes: usize) -> Result<()> {
    let value = Bytes::from(vec![b'v'; VALUE]);
    let mut client = kv(channel);
    let count = bytes.div_ceil(VALUE);
    for start in (0..count).step_by(BATCH) {
        let put = |index: usize| PutRequest {
            key: format!("{prefix}{index:08}").into(),
            value: value.clone(),
            ..PutRequest::default()
        };
        let success = (start..count.min(start + BATCH))
            .map(|index| RequestOp { request: Some(request_op::Request::RequestPut(put(index))) })
            .collect();
        client.txn(TxnRequest { success, ..TxnRequest::default() }).await.context("writing what ranges read")?;
    }
    Ok(())
}

fn below(prefix: &str) -> RangeRequest {
    let mut end = prefix.as_bytes().to_vec();
    // Prefixes here end in a slash.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    RangeRequest { key: prefix.to_owned().into(), range_end: end.into(), ..RangeRequest::default() }
}

fn bytes(response: &RangeResponse) -> usize {
    response.kvs.iter().map(|pair| pair.value.len()).sum()
}

/// Reads everything below a prefix by one request and one answer, and tells the bytes of its values; none when the
/// server does not serve answers of that size.
///
/// # Errors
/// When it fails otherwise.
pub(crate) async fn range(channel: &Channel, prefix: &str) -> Result<Option<usize>> {
    match timeout(LIMIT, kv(channel).range(below(prefix))).await.context("a long range")? {
        Ok(response) => Ok(Some(bytes(response.get_ref()))),
        Err(status) => lacking(status).context("a long range"),
    }
}

/// Reads everything below a prefix as a stream of parts, and tells the bytes of its values; none when the server does
/// not serve such streams.
///
/// # Errors
/// When it fails otherwise.
pub(crate) async fn range_stream(channel: &Channel, prefix: &str) -> Result<Option<usize>> {
    let read = async {
        let mut stream = match kv(channel).range_stream(below(prefix)).await {
            Ok(response) => response.into_inner(),
            Err(status) => return lacking(status),
        };
        let mut sum = 0;
        loop {
            match stream.message().await {
                Ok(Some(part)) => sum += part.range_response.as_ref().map_or(0, bytes),
                Ok(None) => return Ok(Some(sum)),
                Err(status) => return lacking(status),
            }
        }
    };
    timeout(LIMIT, read).await.context("a RangeStream")?.context("a RangeStream")
}

fn lacking(status: Status) -> Result<Option<usize>> {
    match status.code() {
        Code::Unimplemented | Code::ResourceExhausted | Code::OutOfRange => Ok(None),
        _ => Err(status.into()),
    }
}

/// Watches, on streams that share a few connections.
pub(crate) struct Watchers {
    streams: Vec<Stream>,
}

struct Stream {
    // Its end would end the stream.
    _requests: mpsc::Sender<WatchRequest>,
    responses: Streaming<WatchResponse>,
    watches: usize,
}

impl Watchers {
    /// Opens watches of the keys that `key` names and waits until the server confirms all of them.
    ///
    /// # Errors
    /// When the server refuses one.
    pub(crate) async fn open(url: &str, watches: usize, streams: usize, key: impl Fn(usize) -> String) -> Result<Self> {
        let open = async {
            let channels = try_join_all((0..streams.min(CONNECTIONS)).map(|_| connect(url))).await?;
            let each = watches / streams.max(1);
            let opened = (0..streams).map(|stream| {
                let channel = channels.get(stream % channels.len().max(1)).cloned();
                let keys = (stream * each..(stream + 1) * each).map(&key).collect();
                async move { Stream::open(channel.context("no stream is wanted")?, keys).await }
            });
            Ok::<_, anyhow::Error>(Self { streams: try_join_all(opened).await? })
        };
        timeout(LIMIT, open).await.context("opening watches")?
    }

    /// Reads until each watch has told of so many events, and answers when the last one came.
    ///
    /// # Errors
    /// When a watch ends before.
    pub(crate) async fn receive(&mut self, events: usize) -> Result<Instant> {
        let all = self.streams.iter_mut().map(|stream| stream.receive(events * stream.watches));
        timeout(LIMIT, try_join_all(all)).await.context("not all events came")??;
        Ok(Instant::now())
    }
}

impl Stream {
    async fn open(channel: Channel, keys: Vec<String>) -> Result<Self> {
        let (requests, receiver) = mpsc::channel(64);
        let mut client = WatchClient::new(channel).max_decoding_message_size(usize::MAX);
        let watches = keys.len();
        let send = async {
            for key in keys {
                let create = WatchCreateRequest { key: key.into(), ..WatchCreateRequest::default() };
                let request = WatchRequest { request_union: Some(watch_request::RequestUnion::CreateRequest(create)) };
                requests.send(request).await.context("the stream ended")?;
            }
            Ok::<_, anyhow::Error>(())
        };
        let read = async {
            let mut responses = client.watch(ReceiverStream::new(receiver)).await?.into_inner();
            let mut created = 0;
            while created < watches {
                let response = responses.message().await?.context("the stream ended")?;
                ensure!(!response.canceled, "a watch was refused: {}", response.cancel_reason);
                created += usize::from(response.created);
            }
            Ok(responses)
        };
        let (_, responses) = futures::try_join!(send, read)?;
        Ok(Self { _requests: requests, responses, watches })
    }

    async fn receive(&mut self, events: usize) -> Result<()> {
        let mut seen = 0;
        while seen < events {
            match self.responses.message().await? {
                Some(response) if response.canceled => bail!("a watch was cancelled: {}", response.cancel_reason),
                Some(response) => seen += response.events.len(),
                None => bail!("a stream of watches ended"),
            }
        }
        Ok(())
    }
}
