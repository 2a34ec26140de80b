//! The versions of the upstream's members, as last heard.

use std::time::Duration;

use parking_lot::Mutex;
use proto::etcdserverpb::{StatusRequest, maintenance_client::MaintenanceClient};
use tokio::{
    sync::OnceCell,
    time::{Instant, timeout},
};

use super::Tenant;
use crate::upstream::UpstreamChannel;

/// How long a member is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long an answer is good for. Versions change when somebody upgrades a member.
const GOOD_FOR: Duration = Duration::from_secs(30);

/// What is known of the members' versions.
#[derive(Debug, Default)]
pub(super) struct Versions {
    first: OnceCell<()>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// In the order of the endpoints; `None` for a member that never answered.
    versions: Vec<Option<String>>,
    asked: Option<Instant>,
}

impl Tenant {
    /// The versions of the members that ever answered. They are waited for once; later they are asked again now and then
    /// beside the call, so that a member that hangs holds up nobody, and one that does not answer counts with what it said
    /// last.
    pub(crate) async fn member_versions(&self) -> Vec<String> {
        let versions = &self.0.versions;
        if !versions.first.initialized() {
            versions.first.get_or_init(|| self.ask_versions()).await;
        } else if versions.known.lock().is_stale() {
            let tenant = self.clone();
            // Nobody waits for it when the process ends: it changes nothing, and ends within its patience.
            tokio::spawn(async move { tenant.ask_versions().await });
        }
        versions.known.lock().versions.iter().flatten().cloned().collect()
    }

    async fn ask_versions(&self) {
        let inner = &*self.0;
        inner.versions.known.lock().asked = Some(Instant::now());
        let answers = inner.upstream.members().iter().map(|member| self.version_of(member.clone()));
        let answers = futures::future::join_all(answers).await;
        let mut known = inner.versions.known.lock();
        known.versions.resize(answers.len(), None);
        for (known, answer) in known.versions.iter_mut().zip(answers) {
            if answer.is_some() {
                *known = answer;
            }
        }
    }

    async fn version_of(&self, member: UpstreamChannel) -> Option<String> {
        let mut client = MaintenanceClient::new(member);
        let status = timeout(PATIENCE, client.status(StatusRequest {})).await.ok()?.ok()?.into_inner();
        self.view().check_status(&status).ok()?;
        Some(status.version)
    }
}

impl Known {
    /// Whether it is time to ask again; then the caller has to.
    fn is_stale(&mut self) -> bool {
        let stale = self.asked.is_none_or(|asked| asked.elapsed() >= GOOD_FOR);
        if stale {
            self.asked = Some(Instant::now());
        }
        stale
    }
}
