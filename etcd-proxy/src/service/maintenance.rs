//! Status, Alarm and HashKV.

use std::cmp::Ordering;

use bytes::BytesMut;
use proto::etcdserverpb::{
    AlarmMember, AlarmRequest, AlarmResponse, AlarmType, HashKvRequest, HashKvResponse, ResponseHeader, StatusRequest,
    StatusResponse, alarm_request::AlarmAction,
};
use tonic::Status;

use super::unary::{OwnCall, answer};
use crate::{
    error::{Denied, EtcdError},
    limits::Account,
    snapshot::{self, KvHash},
};

const STATUS: &str = "/etcdserverpb.Maintenance/Status";

/// `Maintenance.Status`: that of the answering member, with the lowest version among the members, since clients decide by
/// it what every member can do. Sizes are the tenant's.
pub(super) async fn status(call: OwnCall<'_>) -> Result<BytesMut, Status> {
    let request: StatusRequest = call.request("etcdserverpb.StatusRequest")?;
    let mut status: StatusResponse = call.ask(&request).await?;
    call.tenant.view().check_status(&status)?;
    if call.tenant.upstream().members().len() > 1 {
        for version in call.tenant.member_versions().await {
            if compare_versions(&version, &status.version) == Ordering::Less {
                status.version = version;
            }
        }
    }
    let limits = call.tenant.limits();
    // Nothing until it was counted: what others have is nobody's business. No etcd's is of size 0, and etcdctl divides by it.
    let bytes = limits.stored().await.unwrap_or_default().bytes.max(1);
    (status.db_size, status.db_size_in_use) = (bytes, bytes);
    if let Some(storage) = limits.storage() {
        if let Some(quota) = limits.settings().quota_bytes {
            status.db_size_quota = i64::try_from(quota.get()).unwrap_or(i64::MAX);
        }
        if storage.exhausted() {
            let member = status.header.map_or(0, |header| header.member_id);
            // etcd prints the message in the text format, with its space at the end.
            status.errors.push(format!("memberID:{member} alarm:NOSPACE "));
        }
    }
    answer(&status)
}

/// `Maintenance.Alarm`: the tenant's own NOSPACE, which goes off by itself. Those of the upstream are not its to touch.
pub(super) async fn alarm(call: OwnCall<'_>) -> Result<BytesMut, Status> {
    let request: AlarmRequest = call.request("etcdserverpb.AlarmRequest")?;
    let wanted = [AlarmType::None as i32, AlarmType::Nospace as i32].contains(&request.alarm);
    let raised = wanted && call.tenant.limits().storage().is_some_and(Account::exhausted);
    if request.action != AlarmAction::Get as i32 {
        let own = raised && request.action == AlarmAction::Deactivate as i32;
        return Err(if own { Denied::OwnNoSpace } else { Denied::Alarm }.into());
    }
    let header = header(&call).await?;
    let member_id = header.map_or(0, |header| header.member_id);
    let alarms = raised.then_some(AlarmMember { member_id, alarm: AlarmType::Nospace as i32 });
    answer(&AlarmResponse { header, alarms: alarms.into_iter().collect() })
}

/// `Maintenance.HashKV`: of the tenant's keys, as if all history before the revision were compacted.
pub(super) async fn hash_kv(call: OwnCall<'_>) -> Result<BytesMut, Status> {
    let request: HashKvRequest = call.request("etcdserverpb.HashKVRequest")?;
    let revision = request.revision;
    if revision > 0 && revision < call.tenant.watermark().await? {
        return Err(EtcdError::Compacted.into());
    }
    let _place = call.tenant.snapshot_place().await?;
    let KvHash { header, hash, revision } = snapshot::hash(call.tenant, revision).await?;
    answer(&HashKvResponse { header, hash, compact_revision: revision, hash_revision: revision })
}

/// A header of the upstream, for answers that it has no part in otherwise.
pub(super) async fn header(call: &OwnCall<'_>) -> Result<Option<ResponseHeader>, Status> {
    Ok(call.ask_by::<StatusResponse>(STATUS, &StatusRequest {}).await?.header)
}

/// Orders versions by their numbers. What is no version is greater than any.
fn compare_versions(a: &str, b: &str) -> Ordering {
    fn numbers(version: &str) -> Option<[u64; 3]> {
        let core = version.split(['-', '+']).next()?;
        let mut parts = core.split('.').map(str::parse);
        let numbers = [parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?];
        parts.next().is_none().then_some(numbers)
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

    #[test]
    fn versions_are_numbers() {
        assert_eq!(compare_versions("3.5.9", "3.5.35"), Ordering::Less);
        assert_eq!(compare_versions("3.8.0-alpha.0", "3.7.3"), Ordering::Greater);
        assert_eq!(compare_versions("3.7.3", "3.7.3"), Ordering::Equal);
        assert_eq!(compare_versions("", "3.7.3"), Ordering::Greater);
    }
}
