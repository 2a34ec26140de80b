//! `etcd-proxy check`: whether an upstream, and a tenant's proxy on it, can be expected to work. It changes nothing.

mod claims;
mod compaction;
mod endpoints;
mod permissions;
mod report;

use std::{future::Future, os::unix::ffi::OsStringExt as _, time::Duration};

use tokio::time::timeout;
use tonic::Status;

use self::report::{Level, Report};
use super::{ToolError, usage::prefix};
use crate::{
    cli::{CheckArgs, TenantArgs},
    config::UpstreamSettings,
    meta::MetaLayout,
    prefix::{Prefix, TERMINATOR},
    upstream::Upstream,
};

/// What is being looked at, and what has been found.
struct Examination {
    upstream: Upstream,
    layout: MetaLayout,
    /// Whose proxy is to run here, if that is asked.
    tenant: Option<Prefix>,
    /// How long each answer is waited for.
    patience: Duration,
    report: Report,
}

/// `etcd-proxy check`.
///
/// # Errors
/// When the flags make no sense, and when something was found that keeps a proxy from working.
pub async fn check(args: CheckArgs) -> Result<(), ToolError> {
    let flags = args.check;
    let layout = MetaLayout::new(prefix(args.tenant.meta_prefix.clone().into_vec(), "--meta-prefix")?);
    let tenant = args.tenant.prefix.clone().map(|text| prefix(text.into_vec(), "--prefix")).transpose()?;
    let upstream = Upstream::new(UpstreamSettings::try_from(args.upstream)?.load()?);
    let patience = flags.command_timeout;
    let mut examination = Examination { upstream, layout, tenant, patience, report: Report::default() };
    examination.prefix(&args.tenant, flags.max_request_bytes);
    if examination.endpoints().await {
        let authentication = examination.authentication().await;
        examination.permissions(authentication).await;
        examination.claims().await;
        examination.alarms().await;
        examination.compaction(flags.observe).await;
    }
    examination.report.print(args.output.output)?;
    match examination.report.errors() {
        0 => Ok(()),
        errors => Err(ToolError::Found(errors)),
    }
}

impl Examination {
    /// Waits for an answer, but not for ever.
    async fn ask<T>(&self, question: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        timeout(self.patience, question)
            .await
            .unwrap_or_else(|_| Err(Status::deadline_exceeded(format!("no answer within {:?}", self.patience))))
    }

    /// What can be said of the prefix alone.
    fn prefix(&mut self, flags: &TenantArgs, max_request_bytes: u32) {
        const CHECK: &str = "prefix";
        let Some(prefix) = self.tenant.clone() else { return };
        let subject = prefix.to_string();
        let report = &mut self.report;
        let taken = |taken: bool| if taken { Level::Warning } else { Level::Error };
        let mut wrong = Vec::new();
        if prefix.overlaps(self.layout.prefix().as_bytes()) {
            wrong.push((Level::Error, format!("overlaps the meta prefix {}", self.layout.prefix())));
        }
        if prefix.overlaps_kubernetes() {
            let message = "overlaps /registry/, where kube-apiserver keeps its data; it is served with --force only";
            wrong.push((taken(flags.force), message.to_owned()));
        }
        if prefix.as_bytes().last() != Some(&TERMINATOR) {
            let message = "does not end in /, so it contains others that begin with it; it is served with --allow-unterminated-prefix only";
            wrong.push((taken(flags.allow_unterminated_prefix), message.to_owned()));
        }
        if wrong.is_empty() {
            wrong.push((Level::Ok, "ends in / and is nobody else's by name".to_owned()));
        }
        for (level, message) in wrong {
            report.add(CHECK, &subject, level, message);
        }
        let (limit, longer) = (u64::from(max_request_bytes), prefix.as_bytes().len());
        let rest = limit.saturating_sub(u64::try_from(longer).unwrap_or(u64::MAX));
        let level = if rest * 2 < limit { Level::Warning } else { Level::Ok };
        let message = format!(
            "an upstream whose --max-request-bytes is {limit} takes writes of the tenant of about {rest} bytes, and of {longer} fewer for each further key that they name"
        );
        report.add("request size", &subject, level, message);
    }
}

/// What the upstream says, for a line of the report.
fn said(status: &Status) -> String {
    format!("{:?}: {}", status.code(), status.message())
}
