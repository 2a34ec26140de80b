//! Clients that read and write registers through the proxies, and note what they asked and were told.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use proptest::{
    prelude::{Rng as _, RngExt as _},
    test_runner::{RngAlgorithm, TestRng},
};
use proto::{
    etcdserverpb::{
        Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, compare::TargetUnion,
        kv_client::KvClient, request_op::Request as Op, response_op::Response,
    },
    mvccpb::KeyValue,
};
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;

use crate::{
    cluster,
    history::{Answer, Kv, Operation, Register, Request, Revision},
};

/// The registers.
const REGISTERS: u8 = 6;
/// After this, a client gives a call up: later than a fault ends, so that it hears what a member says that was paused.
pub(crate) const LIMIT: Duration = Duration::from_secs(6);
/// After this, a hasty client does, so that it goes on reading while writes get no answer, and would see what a parted member holds.
pub(crate) const HASTE: Duration = Duration::from_millis(500);
/// Between two calls of one client, and after one that failed.
const PAUSE: Duration = Duration::from_millis(15);
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(100);

/// What all clients share.
pub(crate) struct Shared {
    /// The proxies.
    pub(crate) urls: Vec<String>,
    pub(crate) seed: u64,
    /// The clock.
    pub(crate) start: Instant,
    pub(crate) stop: AtomicBool,
    /// While set, nobody calls.
    pub(crate) hold: AtomicBool,
    /// When each value was given out; the first is 1.
    pub(crate) values: Mutex<Vec<Duration>>,
    /// Writes of each client that succeeded.
    pub(crate) writes: Vec<AtomicU64>,
    /// The last revision that watchers are to be told of.
    pub(crate) end: AtomicI64,
}

// === impl Shared ===

impl Shared {
    /// Random numbers of the case's seed; `part` says whose.
    pub(crate) fn rng(&self, part: u8) -> TestRng {
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&self.seed.to_le_bytes());
        seed[8] = part;
        TestRng::from_seed(RngAlgorithm::ChaCha, &seed)
    }

    /// A value that nobody else writes.
    pub(crate) fn value(&self) -> u64 {
        let mut values = self.values.lock();
        values.push(self.start.elapsed());
        u64::try_from(values.len()).unwrap()
    }
}

/// Calls until it is to stop. One client of each proxy is hasty.
pub(crate) async fn client(number: usize, shared: Arc<Shared>) -> Vec<Operation> {
    let mut rng = shared.rng(u8::try_from(number).unwrap());
    let mut kv = KvClient::new(cluster::channel(&shared.urls[number % shared.urls.len()]));
    let limit = if number < shared.urls.len() { HASTE } else { LIMIT };
    let mut found: HashMap<Register, Option<Kv>> = HashMap::new();
    let mut operations = Vec::new();
    while !shared.stop.load(Ordering::SeqCst) {
        if shared.hold.load(Ordering::SeqCst) {
            sleep(PAUSE).await;
            continue;
        }
        let register = Register(rng.random_range(0..REGISTERS));
        let value = shared.value();
        let request = match rng.next_u32() % 10 {
            0..3 => Request::Get,
            3..6 => Request::Put(value),
            6 => Request::Delete,
            _ => Request::Swap { expected: found.get(&register).copied().flatten(), value },
        };
        let called = shared.start.elapsed();
        let answer = timeout(limit, ask(&mut kv, register, request)).await.ok().flatten();
        let answered = answer.map(|answer| (shared.start.elapsed(), answer));
        if let Some((_, answer)) = &answered {
            found.insert(register, answer.after(&request));
            shared.writes[number].fetch_add(u64::from(answer.wrote), Ordering::SeqCst);
        }
        operations.push(Operation { client: number, register, request, called, answered });
        sleep(if answered.is_some() { PAUSE } else { PAUSE_AFTER_FAILURE }).await;
    }
    operations
}

/// Puts both keys of a pair at once, again and again, until it is to stop.
pub(crate) async fn pairs(shared: Arc<Shared>) {
    let mut kv = KvClient::new(cluster::channel(&shared.urls[0]));
    while !shared.stop.load(Ordering::SeqCst) {
        if !shared.hold.load(Ordering::SeqCst) {
            let value = shared.value();
            let put = |key: &str| {
                let put =
                    PutRequest { key: key.to_owned().into(), value: value.to_string().into(), ..Default::default() };
                RequestOp { request: Some(Op::RequestPut(put)) }
            };
            let txn = TxnRequest { success: vec![put("pair/a"), put("pair/b")], ..Default::default() };
            // Whether it happened, the history tells.
            _ = timeout(HASTE, kv.txn(txn)).await;
        }
        sleep(PAUSE_AFTER_FAILURE).await;
    }
}

/// Writes the last of all writes and returns its revision.
///
/// # Errors
/// When that is refused.
pub(crate) async fn finish(shared: &Shared) -> Result<Revision, String> {
    let put = PutRequest { key: "register/0".into(), value: shared.value().to_string().into(), ..Default::default() };
    let answer = KvClient::new(cluster::channel(&shared.urls[0])).put(put).await;
    let answer = answer.map_err(|status| format!("the last write: {status}"))?.into_inner();
    Ok(answer.header.unwrap().revision)
}

/// One call; `None` without an answer.
async fn ask(kv: &mut KvClient<Channel>, register: Register, request: Request) -> Option<Answer> {
    let key = register.to_string();
    let range = || RangeRequest { key: key.clone().into(), ..Default::default() };
    let put = |value: u64| PutRequest {
        key: key.clone().into(),
        value: value.to_string().into(),
        prev_kv: true,
        ..Default::default()
    };
    let (header, before, wrote) = match request {
        Request::Get => {
            let answer = kv.range(range()).await.ok()?.into_inner();
            (answer.header, answer.kvs.into_iter().next(), false)
        }
        Request::Put(value) => {
            let answer = kv.put(put(value)).await.ok()?.into_inner();
            (answer.header, answer.prev_kv, true)
        }
        Request::Delete => {
            let delete = DeleteRangeRequest { key: key.clone().into(), prev_kv: true, ..Default::default() };
            let answer = kv.delete_range(delete).await.ok()?.into_inner();
            (answer.header, answer.prev_kvs.into_iter().next(), answer.deleted > 0)
        }
        Request::Swap { expected, value } => {
            // Equal, to the revision of the last write: 0 for a key that is not there.
            let unchanged = Compare {
                result: 0,
                target: 2,
                key: key.clone().into(),
                target_union: Some(TargetUnion::ModRevision(expected.map_or(0, |kv| kv.modified))),
                ..Default::default()
            };
            let op = |request| vec![RequestOp { request: Some(request) }];
            let txn = TxnRequest {
                compare: vec![unchanged],
                success: op(Op::RequestPut(put(value))),
                failure: op(Op::RequestRange(range())),
            };
            let answer = kv.txn(txn).await.ok()?.into_inner();
            let before = match answer.responses.into_iter().next().and_then(|response| response.response) {
                Some(Response::ResponsePut(put)) => put.prev_kv,
                Some(Response::ResponseRange(range)) => range.kvs.into_iter().next(),
                other => panic!("a Txn of one step answers {other:?}"),
            };
            (answer.header, before, answer.succeeded)
        }
    };
    Some(Answer { revision: header.unwrap().revision, before: before.map(pair), wrote })
}

/// A key whose value is a number.
pub(crate) fn pair(kv: KeyValue) -> Kv {
    let value = std::str::from_utf8(&kv.value).unwrap().parse().unwrap();
    Kv { value, version: kv.version, created: kv.create_revision, modified: kv.mod_revision }
}
