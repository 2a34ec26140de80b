//! Whether a shared etcd works, and what it says of itself.

use std::cmp::Ordering;

use etcd_proxy::upstream::{Endpoint, UpstreamChannel};
use futures::future::join_all;
use proto::etcdserverpb::{
    MemberListRequest, RangeRequest, StatusRequest, StatusResponse, cluster_client::ClusterClient,
    maintenance_client::MaintenanceClient,
};

use super::{Shared, SharedError};

/// What a shared etcd says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The lowest version among the members that answered: what all of them can do.
    pub version: String,
    /// How many members the cluster has, whether or not they are endpoints.
    pub members: usize,
    /// Bytes of the largest member's database file.
    pub db_size: i64,
    /// How many of them are in use, the rest being free until the file is defragmented.
    pub db_size_in_use: i64,
    /// How large the database may become, in bytes (`--quota-backend-bytes`); `None` if there is no limit or etcd does not
    /// tell, as before 3.6.
    pub quota: Option<i64>,
    /// What the members complain of (no leader, no space), each once.
    pub complaints: Vec<String>,
    /// Each endpoint in the configured order.
    pub endpoints: Vec<EndpointProbe>,
}

/// One endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointProbe {
    /// Its URL.
    pub endpoint: String,
    /// Its version, or why it does not answer.
    pub version: Result<String, String>,
}

// === impl Shared ===

impl Shared {
    /// Asks every endpoint how it is, and the cluster for an answer that takes a quorum.
    ///
    /// # Errors
    /// When no endpoint answers, or the cluster serves no reads.
    pub async fn probe(&self) -> Result<Probe, SharedError> {
        let asked = self.endpoints.iter().zip(self.upstream.members());
        let statuses = join_all(asked.map(|(endpoint, member)| self.status(endpoint, member.clone()))).await;
        // Only a linearizable read shows that there is a leader and a quorum.
        const READ: &str = "read the claims";
        let generation = RangeRequest { key: self.meta.claims_generation(), ..Default::default() };
        let mut kv = self.upstream.kv();
        let mut cluster = ClusterClient::new(self.upstream.unary());
        let (read, members) = tokio::join!(
            self.call(READ, kv.range(generation)),
            self.call("list the members", cluster.member_list(MemberListRequest { linearizable: false })),
        );
        read?;
        let members = members?.members.len();
        let mut probe = Probe {
            version: String::new(),
            members,
            db_size: 0,
            db_size_in_use: 0,
            quota: None,
            complaints: Vec::new(),
            endpoints: Vec::with_capacity(statuses.len()),
        };
        for (endpoint, status) in self.endpoints.iter().zip(statuses) {
            probe.add(endpoint, status);
        }
        Ok(probe)
    }

    async fn status(&self, endpoint: &Endpoint, member: UpstreamChannel) -> Result<StatusResponse, String> {
        let mut member = MaintenanceClient::new(member);
        let answer = self.within("ask for the status", member.status(StatusRequest {})).await;
        match answer {
            Ok(Ok(status)) => Ok(status.into_inner()),
            Ok(Err(status)) => {
                let failures = self.upstream.failures();
                let known = failures.into_iter().find(|(failed, _)| *failed == endpoint);
                Err(known.map_or_else(|| status.message().to_owned(), |(_, reason)| reason))
            }
            Err(_) => Err(format!("no answer within {:?}", self.config.timeout)),
        }
    }
}

// === impl Probe ===

impl Probe {
    fn add(&mut self, endpoint: &Endpoint, status: Result<StatusResponse, String>) {
        let endpoint = endpoint.to_string();
        let status = match status {
            Ok(status) => status,
            Err(reason) => {
                self.endpoints.push(EndpointProbe { endpoint, version: Err(reason) });
                return;
            }
        };
        if self.version.is_empty() || compare_versions(&status.version, &self.version) == Ordering::Less {
            self.version.clone_from(&status.version);
        }
        if status.db_size > self.db_size {
            (self.db_size, self.db_size_in_use) = (status.db_size, status.db_size_in_use);
        }
        if status.db_size_quota > 0 {
            self.quota = Some(self.quota.map_or(status.db_size_quota, |quota| quota.min(status.db_size_quota)));
        }
        for complaint in status.errors {
            if !self.complaints.contains(&complaint) {
                self.complaints.push(complaint);
            }
        }
        self.endpoints.push(EndpointProbe { endpoint, version: Ok(status.version) });
    }
}

/// Orders versions by their numbers; what is none comes last.
fn compare_versions(a: &str, b: &str) -> Ordering {
    fn numbers(version: &str) -> Option<Vec<u64>> {
        let core = version.split(['-', '+']).next()?;
        core.split('.').map(|part| part.parse().ok()).collect()
    }
    match (numbers(a), numbers(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => Ordering::Equal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(version: &str, db_size: i64, db_size_quota: i64, errors: &[&str]) -> StatusResponse {
        let errors = errors.iter().map(ToString::to_string).collect();
        StatusResponse {
            version: version.into(),
            db_size,
            db_size_in_use: db_size / 2,
            db_size_quota,
            errors,
            ..Default::default()
        }
    }

    #[test]
    fn the_weakest_member_counts() {
        let endpoint = Endpoint::parse("http://etcd:2379", false).unwrap();
        let mut probe = Probe {
            version: String::new(),
            members: 4,
            db_size: 0,
            db_size_in_use: 0,
            quota: None,
            complaints: vec![],
            endpoints: vec![],
        };
        for status in [
            Ok(answered("3.6.10", 100, 2000, &["etcdserver: no leader"])),
            Ok(answered("3.6.9", 300, 1000, &["etcdserver: no leader", "memberID:1 alarm:NOSPACE "])),
            Err("refused".to_owned()),
            Ok(answered("3.7.0-rc.1", 200, 0, &[])),
        ] {
            probe.add(&endpoint, status);
        }
        assert_eq!(
            (probe.version.as_str(), probe.db_size, probe.db_size_in_use, probe.quota),
            ("3.6.9", 300, 150, Some(1000))
        );
        assert_eq!(probe.complaints, ["etcdserver: no leader", "memberID:1 alarm:NOSPACE "]);
        let versions: Vec<_> = probe.endpoints.iter().map(|one| one.version.as_deref()).collect();
        assert_eq!(versions, [Ok("3.6.10"), Ok("3.6.9"), Err(&"refused".to_owned()), Ok("3.7.0-rc.1")]);
    }
}
