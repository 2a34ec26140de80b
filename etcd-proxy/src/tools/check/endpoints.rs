//! The members of the upstream: reachable, of a version that is known, in one cluster, with room; and their alarms.

use std::collections::BTreeSet;

use proto::etcdserverpb::{
    AlarmRequest, AlarmType, MemberListRequest, StatusRequest, StatusResponse, cluster_client::ClusterClient,
    maintenance_client::MaintenanceClient,
};
use tonic::{Code, Status};

use super::{Examination, Level, said};
use crate::{
    tools::table::human,
    upstream::{Address, Endpoint},
};

const ENDPOINT: &str = "endpoint";
/// The versions of etcd 3 that this version is tested with.
const TESTED: std::ops::RangeInclusive<u64> = 5..=7;
/// Part of its quota, in percent, from which on a store is said to be nearly full.
const NEARLY_FULL: i64 = 80;
/// What a store must be able to give back for that to be worth a word, in bytes and as a part of the whole.
const WORTH_DEFRAGMENTING: (i64, i64) = (64 << 20, 2);

impl Examination {
    /// Returns whether there is an upstream to ask anything else.
    pub(super) async fn endpoints(&mut self) -> bool {
        let endpoints = self.upstream.endpoints().to_vec();
        let (mut clusters, mut versions, mut reached) = (BTreeSet::new(), BTreeSet::new(), false);
        for (endpoint, channel) in endpoints.iter().zip(self.upstream.members().to_vec()) {
            let subject = endpoint.to_string();
            let mut client = MaintenanceClient::new(channel);
            match self.ask(client.status(StatusRequest {})).await.map(tonic::Response::into_inner) {
                Ok(status) => {
                    reached = true;
                    clusters.extend(status.header.map(|header| header.cluster_id));
                    versions.insert(status.version.clone());
                    self.member(&subject, &status);
                }
                Err(status) => reached |= self.unanswered(endpoint, &subject, &status),
            }
            if !endpoint.tls && !stays_on_this_host(endpoint) {
                let message = "plaintext: keys and values, and a password, can be read and changed on the way";
                self.report.add("tls", &subject, Level::Warning, message);
            }
        }
        let all = "all endpoints";
        if clusters.len() > 1 {
            self.report.add(
                ENDPOINT,
                all,
                Level::Error,
                "they belong to different clusters: each would hold other keys",
            );
        }
        if versions.len() > 1 {
            let versions: Vec<_> = versions.into_iter().collect();
            let message = format!("members of versions {}: tenants see the lowest", versions.join(", "));
            self.report.add(ENDPOINT, all, Level::Warning, message);
        }
        if reached {
            self.unnamed_members(endpoints.len()).await;
        } else {
            self.report.add(ENDPOINT, all, Level::Skipped, "none can be asked, so nothing else is looked at");
        }
        reached
    }

    /// Says why a member did not answer. Returns whether it can be asked other things.
    fn unanswered(&mut self, endpoint: &Endpoint, subject: &str, status: &Status) -> bool {
        let failures = self.upstream.failures();
        let reason = failures.into_iter().find(|(failed, _)| *failed == endpoint).map(|(_, reason)| reason);
        let refused = self.upstream.user().and_then(|user| user.failure());
        match (reason, refused, status.code()) {
            (Some(reason), ..) => self.report.add(ENDPOINT, subject, Level::Error, reason),
            (None, Some(refused), _) => {
                self.report.add("authentication", subject, Level::Error, format!("cannot log in: {refused}"));
            }
            (None, None, Code::InvalidArgument | Code::Unauthenticated | Code::PermissionDenied) => {
                // It wants to know who asks, which is another question.
                self.report.add(ENDPOINT, subject, Level::Warning, format!("answers, but not this: {}", said(status)));
                return true;
            }
            (None, None, _) => self.report.add(ENDPOINT, subject, Level::Error, said(status)),
        }
        false
    }

    fn member(&mut self, subject: &str, status: &StatusResponse) {
        let (level, remark) = version(&status.version);
        let role = match (status.leader, status.header) {
            _ if status.is_learner => ", a learner",
            (0, _) => ", without a leader",
            (leader, Some(header)) if leader == header.member_id => ", the leader",
            _ => "",
        };
        let level = if status.leader == 0 || status.is_learner { Level::Error } else { level };
        self.report.add(ENDPOINT, subject, level, format!("etcd {}{remark}{role}", status.version));
        for error in &status.errors {
            self.report.add(ENDPOINT, subject, Level::Error, error.trim());
        }
        let (level, message) = space(status);
        self.report.add("space", subject, level, message);
    }

    async fn unnamed_members(&mut self, named: usize) {
        let mut client = ClusterClient::new(self.upstream.unary());
        let request = client.member_list(MemberListRequest { linearizable: false });
        // Whoever may not see them need not name them.
        let Ok(list) = self.ask(request).await else { return };
        let members = list.into_inner().members.len();
        if members > named {
            let message = format!(
                "the cluster has {members} members and --endpoints names {named}: while those are down, so is the tenant"
            );
            self.report.add(ENDPOINT, "all endpoints", Level::Warning, message);
        }
    }

    pub(super) async fn alarms(&mut self) {
        let mut client = MaintenanceClient::new(self.upstream.unary());
        let found = self.ask(client.alarm(AlarmRequest::default())).await;
        let (level, message) = match found.map(tonic::Response::into_inner) {
            Ok(found) if found.alarms.is_empty() => (Level::Ok, "none".to_owned()),
            Ok(found) => {
                let name = |alarm: i32| AlarmType::try_from(alarm).map_or("unknown", |alarm| alarm.as_str_name());
                let alarms: Vec<_> = found
                    .alarms
                    .iter()
                    .map(|found| format!("{} of member {:x}", name(found.alarm), found.member_id))
                    .collect();
                (Level::Error, alarms.join(", "))
            }
            Err(status) => (Level::Skipped, said(&status)),
        };
        self.report.add("alarms", "upstream", level, message);
    }
}

/// What there is to say of a version.
fn version(text: &str) -> (Level, &'static str) {
    let mut numbers = text.split('.').map(str::parse::<u64>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(3)), Some(Ok(minor))) if TESTED.contains(&minor) => (Level::Ok, ""),
        (Some(Ok(major)), Some(Ok(minor))) if (major, minor) < (3, *TESTED.start()) => {
            (Level::Error, " (too old: at least 3.5 is needed)")
        }
        _ => (Level::Warning, " (this version of etcd-proxy is tested with 3.5 to 3.7)"),
    }
}

/// What there is to say of a member's space.
fn space(status: &StatusResponse) -> (Level, String) {
    let (size, used, quota) = (status.db_size, status.db_size_in_use, status.db_size_quota);
    let loose = size.saturating_sub(used);
    let remark = match WORTH_DEFRAGMENTING {
        (bytes, part) if used > 0 && loose > bytes && loose > size / part => {
            format!("; a defragmentation would give {} back", human(loose))
        }
        _ => String::new(),
    };
    if quota <= 0 {
        // Members before 3.6 do not tell.
        return (Level::Ok, format!("{} in use, of a quota that the member does not tell{remark}", human(size)));
    }
    let percent = size.saturating_mul(100) / quota;
    let level = match percent {
        _ if size >= quota => Level::Error,
        percent if percent >= NEARLY_FULL => Level::Warning,
        _ => Level::Ok,
    };
    (level, format!("{} of {} in use ({percent}%){remark}", human(size), human(quota)))
}

fn stays_on_this_host(endpoint: &Endpoint) -> bool {
    match &endpoint.address {
        Address::Unix(_) => true,
        Address::Tcp(host, _) => host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        for known in ["3.5.35", "3.6.0", "3.7.3"] {
            assert_eq!(version(known).0, Level::Ok, "{known}");
        }
        for old in ["3.4.33", "2.3.8"] {
            assert_eq!(version(old).0, Level::Error, "{old}");
        }
        for unknown in ["3.8.0-alpha.0", "4.0.0", "kine", ""] {
            assert_eq!(version(unknown).0, Level::Warning, "{unknown}");
        }
    }

    #[test]
    fn room() {
        let status = |db_size, db_size_in_use, db_size_quota| StatusResponse {
            db_size,
            db_size_in_use,
            db_size_quota,
            ..Default::default()
        };
        assert_eq!(space(&status(10 << 20, 10 << 20, 2 << 30)).0, Level::Ok);
        assert_eq!(space(&status(1700 << 20, 1700 << 20, 2 << 30)).0, Level::Warning);
        assert_eq!(space(&status(2 << 30, 2 << 30, 2 << 30)).0, Level::Error);
        assert_eq!(space(&status(10 << 20, 10 << 20, 0)).0, Level::Ok);
        assert!(space(&status(1 << 30, 1 << 20, 4 << 30)).1.contains("defragmentation"));
        assert!(!space(&status(1 << 20, 1 << 10, 4 << 30)).1.contains("defragmentation"));
    }
}
