//! `etcd-proxy usage`: what every tenant of an upstream stores.

use std::{
    collections::BTreeMap,
    io::{self, IsTerminal as _, Write},
    os::unix::ffi::OsStringExt as _,
    time::Duration,
};

use bytes::Bytes;
use proto::etcdserverpb::RangeRequest;
use serde::Serialize;
use tokio::time::{Instant, timeout};
use tonic::{Code, Status};

use super::{
    ToolError,
    table::{Align, human, table},
};
use crate::{
    cli::{OutputFormat, UsageArgs},
    config::{ConfigError, UpstreamSettings},
    limits::{Amount, measure},
    meta::{self, MetaLayout, TenantKeys, read_claims},
    prefix::Prefix,
    upstream::Upstream,
    words::counted,
};

/// How often the line of progress changes at most.
const TICK: Duration = Duration::from_millis(200);

/// What `usage` finds.
#[derive(Clone, Debug, Serialize)]
struct Report {
    tenants: Vec<Row>,
    /// Keys that are neither a tenant's nor meta keys; not there if the user may not count them.
    #[serde(skip_serializing_if = "Option::is_none")]
    elsewhere: Option<Elsewhere>,
}

/// One tenant.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    /// Its prefix; bytes that are no text are escaped.
    prefix: String,
    /// Whether the prefix is claimed. One that is not has left meta keys behind.
    claimed: bool,
    owner: Option<String>,
    uid: Option<String>,
    keys: i64,
    /// Σ (length of key and value) of live keys, without the prefix; `null` if it was not asked for.
    bytes: Option<i64>,
    leases: i64,
    /// The lowest revision that the tenant may read; `null` if it never compacted.
    watermark: Option<i64>,
    /// The revision at which keys and bytes were so.
    revision: i64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Elsewhere {
    keys: i64,
}

/// Who holds a prefix, as far as it can be known.
#[derive(Clone, Debug, Default)]
struct Holder {
    claimed: bool,
    owner: Option<String>,
    uid: Option<String>,
}

/// A line on a terminal that tells how far it is.
struct Progress {
    shown: bool,
    tenants: usize,
    done: usize,
    last: Option<Instant>,
}

/// `etcd-proxy usage`.
///
/// # Errors
/// When the upstream cannot be asked, or refuses.
pub async fn usage(args: UsageArgs) -> Result<(), ToolError> {
    let meta_prefix = prefix(args.count.meta_prefix.into_vec(), "--meta-prefix")?;
    let wanted: Vec<Prefix> =
        args.count.prefix.into_iter().map(|text| prefix(text.into_vec(), "--prefix")).collect::<Result<_, _>>()?;
    let upstream = Upstream::new(UpstreamSettings::try_from(args.upstream)?.load()?);
    let layout = MetaLayout::new(meta_prefix);
    let work = count(&upstream, &layout, &wanted, args.count.bytes);
    let report = match args.count.command_timeout {
        Duration::ZERO => work.await?,
        limit => timeout(limit, work).await.map_err(|_| ToolError::Timeout(limit))??,
    };
    let mut out = io::stdout().lock();
    match args.output.output {
        OutputFormat::Json => writeln!(out, "{}", serde_json::to_string_pretty(&report).unwrap_or_default())?,
        OutputFormat::Table => out.write_all(report.table().as_bytes())?,
    }
    Ok(())
}

/// A prefix that somebody else may have laid out: it need not end in `/`.
pub(super) fn prefix(bytes: Vec<u8>, flag: &'static str) -> Result<Prefix, ConfigError> {
    Prefix::unterminated(bytes.clone()).map_err(|source| match flag {
        "--meta-prefix" => ConfigError::MetaPrefix { prefix: bytes.escape_ascii().to_string(), source },
        _ => ConfigError::Prefix { prefix: bytes.escape_ascii().to_string(), source, hint: "" },
    })
}

async fn count(upstream: &Upstream, layout: &MetaLayout, wanted: &[Prefix], bytes: bool) -> Result<Report, Status> {
    let tenants = tenants(upstream, layout, wanted).await?;
    let mut progress = Progress::new(tenants.len());
    let mut rows = Vec::with_capacity(tenants.len());
    for (prefix, holder) in tenants {
        rows.push(row(upstream, layout, &prefix, holder, bytes, &mut progress).await?);
        progress.done += 1;
    }
    progress.clear();
    let elsewhere = if wanted.is_empty() { elsewhere(upstream, layout, &rows).await? } else { None };
    Ok(Report { tenants: rows, elsewhere })
}

/// The wanted tenants, or all that are claimed or have meta keys, in the order of their prefixes.
async fn tenants(
    upstream: &Upstream,
    layout: &MetaLayout,
    wanted: &[Prefix],
) -> Result<BTreeMap<Prefix, Holder>, Status> {
    let mut kv = upstream.kv();
    let mut tenants = BTreeMap::new();
    if wanted.is_empty() {
        for held in read_claims(&mut kv, layout).await?.claims {
            if let Ok(prefix) = Prefix::unterminated(held.prefix.clone()) {
                tenants.insert(prefix, Holder::of(&held));
            }
        }
        for prefix in with_meta_keys(upstream, layout).await? {
            tenants.entry(prefix).or_default();
        }
        return Ok(tenants);
    }
    for prefix in wanted {
        let held = meta::read_claim(&mut kv, layout, prefix).await?;
        tenants.insert(prefix.clone(), held.as_ref().map_or_else(Holder::default, Holder::of));
    }
    Ok(tenants)
}

/// The prefixes that have meta keys. Each takes one question, however many keys it has.
async fn with_meta_keys(upstream: &Upstream, layout: &MetaLayout) -> Result<Vec<Prefix>, Status> {
    let (mut key, range_end) = layout.tenants();
    let mut found = Vec::new();
    loop {
        let request = RangeRequest {
            key: key.clone(),
            range_end: range_end.clone(),
            limit: 1,
            keys_only: true,
            ..Default::default()
        };
        let answer = upstream.kv().range(request).await?.into_inner();
        let Some(first) = answer.kvs.into_iter().next() else { return Ok(found) };
        match layout.tenant_of(&first.key).map(Prefix::unterminated) {
            Some(Ok(prefix)) => {
                key = layout.tenant(&prefix).all().1;
                found.push(prefix);
            }
            _ => {
                tracing::warn!(key = %first.key.escape_ascii(), "a key among the tenants' meta keys names no prefix and is passed over");
                key = [&first.key[..], b"\0"].concat().into();
            }
        }
    }
}

async fn row(
    upstream: &Upstream,
    layout: &MetaLayout,
    prefix: &Prefix,
    holder: Holder,
    bytes: bool,
    progress: &mut Progress,
) -> Result<Row, Status> {
    let keys = layout.tenant(prefix);
    let (stored, revision) = measure(upstream, prefix, bytes, &mut |part| progress.show(prefix, part)).await?;
    let (leases, _) = count_only(upstream, keys.lease_marks()).await?;
    Ok(Row {
        prefix: prefix.to_string(),
        claimed: holder.claimed,
        owner: holder.owner,
        uid: holder.uid,
        keys: stored.keys,
        bytes: bytes.then_some(stored.bytes),
        leases,
        watermark: watermark(upstream, &keys).await?,
        revision,
    })
}

async fn watermark(upstream: &Upstream, keys: &TenantKeys) -> Result<Option<i64>, Status> {
    let request = RangeRequest { key: keys.watermark(), ..Default::default() };
    let answer = upstream.kv().range(request).await?.into_inner();
    let Some(stored) = answer.kvs.first() else { return Ok(None) };
    match meta::decode_watermark(&stored.value) {
        Ok(revision) => Ok(Some(revision)),
        Err(error) => {
            tracing::warn!(%error, "a watermark cannot be read and is left out");
            Ok(None)
        }
    }
}

/// Keys outside of all that was counted. `None` if the user may not count everything.
async fn elsewhere(upstream: &Upstream, layout: &MetaLayout, rows: &[Row]) -> Result<Option<Elsewhere>, Status> {
    let everything = (Bytes::from_static(b"\0"), Bytes::from_static(b"\0"));
    let (all, _) = match count_only(upstream, everything).await {
        Err(status) if status.code() == Code::PermissionDenied => return Ok(None),
        counted => counted?,
    };
    let (meta_keys, _) = count_only(upstream, layout.prefix().all()).await?;
    let tenants: i64 = rows.iter().map(|row| row.keys).sum();
    // Counted one after the other, so that it need not come out even while somebody writes.
    Ok(Some(Elsewhere { keys: (all - meta_keys - tenants).max(0) }))
}

async fn count_only(upstream: &Upstream, (key, range_end): (Bytes, Bytes)) -> Result<(i64, i64), Status> {
    let request = RangeRequest { key, range_end, count_only: true, ..Default::default() };
    let answer = upstream.kv().range(request).await?.into_inner();
    Ok((answer.count, answer.header.map_or(0, |header| header.revision)))
}

// === impl Holder ===

impl Holder {
    fn of(held: &meta::Held) -> Self {
        let (owner, uid) = held.names();
        Self { claimed: true, owner: Some(owner), uid: (!uid.is_empty()).then_some(uid) }
    }
}

// === impl Report ===

impl Report {
    fn table(&self) -> String {
        use Align::{Left, Right};
        let head = [
            ("PREFIX", Left),
            ("OWNER", Left),
            ("KEYS", Right),
            ("BYTES", Right),
            ("", Left),
            ("LEASES", Right),
            ("WATERMARK", Right),
        ];
        let number = |number: Option<i64>| number.map_or_else(|| "-".to_owned(), |number| number.to_string());
        let size = |bytes: Option<i64>| bytes.map_or_else(String::new, |bytes| format!("({})", human(bytes)));
        let mut rows: Vec<_> = self
            .tenants
            .iter()
            .map(|row| {
                [
                    row.prefix.clone(),
                    row.owner.clone().unwrap_or_else(|| "(not claimed)".to_owned()),
                    row.keys.to_string(),
                    number(row.bytes),
                    size(row.bytes),
                    row.leases.to_string(),
                    number(row.watermark),
                ]
            })
            .collect();
        let line = |title: &str, keys: i64, bytes: Option<i64>, leases: Option<i64>| {
            [
                title.to_owned(),
                String::new(),
                keys.to_string(),
                number(bytes),
                size(bytes),
                number(leases),
                "-".to_owned(),
            ]
        };
        if let Some(elsewhere) = self.elsewhere {
            rows.push(line("(elsewhere)", elsewhere.keys, None, None));
        }
        let (keys, leases) = self.tenants.iter().fold((0, 0), |sum, row| (sum.0 + row.keys, sum.1 + row.leases));
        let bytes: Option<i64> = self.tenants.iter().map(|row| row.bytes).sum();
        rows.push(line(&counted(self.tenants.len(), "tenant"), keys, bytes, Some(leases)));
        table(head, &rows)
    }
}

// === impl Progress ===

impl Progress {
    fn new(tenants: usize) -> Self {
        Self { shown: io::stderr().is_terminal(), tenants, done: 0, last: None }
    }

    fn show(&mut self, prefix: &Prefix, counted: Amount) {
        if !self.shown || self.last.is_some_and(|last| last.elapsed() < TICK) {
            return;
        }
        self.last = Some(Instant::now());
        let (number, tenants) = (self.done + 1, self.tenants);
        let text = format!("\r\x1b[K{number}/{tenants} {prefix}: {} keys, {}", counted.keys, human(counted.bytes));
        // Nobody misses it.
        let _shown = io::stderr().write_all(text.as_bytes());
    }

    fn clear(&self) {
        if self.last.is_some() {
            let _shown = io::stderr().write_all(b"\r\x1b[K");
        }
    }
}
