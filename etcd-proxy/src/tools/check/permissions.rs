//! Who the proxy is on the upstream, and whether that is enough. Nothing is written to find that out.

use bytes::Bytes;
use proto::etcdserverpb::{
    AuthStatusRequest, DeleteRangeRequest, RangeRequest, RequestOp, TxnRequest, auth_client::AuthClient,
    request_op::Request,
};
use tonic::{Code, Status};

use super::{Examination, Level, said};
use crate::compare;

const AUTHENTICATION: &str = "authentication";
const PERMISSIONS: &str = "permissions";

/// Whether the upstream looks at who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Authentication {
    Off,
    On,
    Unknown,
}

/// A right that a proxy needs.
struct Needed<'a> {
    what: &'a str,
    range: (Bytes, Bytes),
    write: bool,
    /// What grants it.
    grant: String,
}

impl Examination {
    pub(super) async fn authentication(&mut self) -> Authentication {
        let mut client = AuthClient::new(self.upstream.unary());
        let answer = self.ask(client.auth_status(AuthStatusRequest {})).await;
        let user = self.upstream.user().cloned();
        let named = match &user {
            Some(user) => format!("as user {}", user.name()),
            None => "as the common name of the client certificate, if there is one".to_owned(),
        };
        let (found, level, message) = match answer.map(tonic::Response::into_inner) {
            Ok(answer) if !answer.enabled => {
                let message = match user {
                    Some(_) => "off; --user is not needed until it is on".to_owned(),
                    None => "off: whoever reaches the upstream may do everything there".to_owned(),
                };
                (Authentication::Off, Level::Ok, message)
            }
            Ok(_) => (Authentication::On, Level::Ok, format!("on; this is asked {named}")),
            Err(status) if status.code() == Code::PermissionDenied => {
                (Authentication::On, Level::Ok, format!("on; this is asked {named}"))
            }
            Err(status) => match user.and_then(|user| user.failure()) {
                Some(failure) => (Authentication::On, Level::Error, format!("cannot log in: {failure}")),
                None => (Authentication::Unknown, Level::Error, said(&status)),
            },
        };
        self.report.add(AUTHENTICATION, "upstream", level, message);
        found
    }

    pub(super) async fn permissions(&mut self, authentication: Authentication) {
        let Some(prefix) = self.tenant.clone() else { return };
        if authentication == Authentication::Off {
            self.report.add(PERMISSIONS, &prefix.to_string(), Level::Ok, "nobody is refused anything");
            return;
        }
        let (meta, claim) = (self.layout.tenant(&prefix).all(), self.layout.claim(&prefix));
        let grant = |right, key: &[u8], rest| {
            format!("etcdctl role grant-permission ROLE {right} {}{rest}", key.escape_ascii())
        };
        let (data_grant, meta_grant) =
            (grant("readwrite", prefix.as_bytes(), " --prefix"), grant("readwrite", &meta.0, " --prefix"));
        let needed = [
            Needed { what: "read the tenant's keys", range: prefix.all(), write: false, grant: data_grant.clone() },
            Needed { what: "write the tenant's keys", range: prefix.all(), write: true, grant: data_grant },
            Needed {
                what: "read the tenant's meta keys",
                range: meta.clone(),
                write: false,
                grant: meta_grant.clone(),
            },
            Needed { what: "write the tenant's meta keys", range: meta, write: true, grant: meta_grant },
            Needed {
                what: "read its own claim",
                range: (claim.clone(), Bytes::new()),
                write: false,
                grant: grant("read", &claim, ""),
            },
        ];
        let mut missing = false;
        for needed in needed {
            let (level, message) = match self.may(&needed.range, needed.write).await {
                Ok(true) => continue,
                Ok(false) => (Level::Error, format!("may not {}; grant it by: {}", needed.what, needed.grant)),
                Err(status) => (Level::Error, format!("cannot {}: {}", needed.what, said(&status))),
            };
            missing = true;
            self.report.add(PERMISSIONS, &prefix.to_string(), level, message);
        }
        if !missing {
            self.report.add(PERMISSIONS, &prefix.to_string(), Level::Ok, "may do all that a proxy needs");
        }
        let everything = (Bytes::from_static(b"\0"), Bytes::from_static(b"\0"));
        if let Ok(true) = self.may(&everything, true).await {
            let message = "may do everything, also with other tenants' keys: a proxy needs no more than its tenant's and their meta keys";
            self.report.add(PERMISSIONS, &prefix.to_string(), Level::Warning, message);
        }
    }

    /// Whether the user may read or write a range.
    async fn may(&self, (key, range_end): &(Bytes, Bytes), write: bool) -> Result<bool, Status> {
        let mut kv = self.upstream.kv();
        let (key, range_end) = (key.clone(), range_end.clone());
        let answer = match write {
            true => self.ask(kv.txn(never(key, range_end))).await.map(drop),
            false => {
                let request = RangeRequest { key, range_end, count_only: true, ..Default::default() };
                self.ask(kv.range(request)).await.map(drop)
            }
        };
        match answer {
            Ok(()) => Ok(true),
            Err(status) if status.code() == Code::PermissionDenied => Ok(false),
            Err(status) => Err(status),
        }
    }
}

/// A Txn that deletes a range under a condition that never holds. etcd asks for the permissions of
/// both branches, whichever is taken (`server/etcdserver/txn`, `CheckTxnAuth`).
fn never(key: Bytes, range_end: Bytes) -> TxnRequest {
    let condition = compare::never(key.clone());
    let delete = DeleteRangeRequest { key, range_end, ..Default::default() };
    TxnRequest {
        compare: vec![condition],
        success: vec![RequestOp { request: Some(Request::RequestDeleteRange(delete)) }],
        ..Default::default()
    }
}
