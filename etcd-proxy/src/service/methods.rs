//! Every method there is, and what becomes of it.

use std::{
    collections::{HashMap, HashSet},
    fmt,
};

use tonic::Status;
use tonic_health::pb::health_server::SERVICE_NAME as HEALTH;

use super::reflection::{self, Reflection};
use crate::{
    error::Denied,
    metrics::{GrpcType, MethodMetrics, Metrics},
    rewrite::{Call, DeleteRange, KeepAliveStream, Put, Range, RangeParts, TimeToLive, Txn, Typed, WatchStream},
    unknown::{self, SchemaError},
};

/// The methods by path.
#[derive(Debug)]
pub(super) struct Methods {
    by_path: HashMap<&'static str, Method>,
}

/// A method.
#[derive(Debug)]
pub(super) struct Method {
    pub(super) path: &'static str,
    pub(super) action: Action,
    pub(super) metrics: MethodMetrics,
}

/// How a method is carried out.
#[derive(Debug)]
pub(super) enum Action {
    Unary(Unary),
    Stream(Stream),
    /// One request, many responses, which are made here.
    OwnStream(OwnStream),
    /// Answered from the descriptors.
    Reflect(Reflection),
}

/// Methods with one message each way.
pub(super) enum Unary {
    /// Rewritten and passed on.
    Forward(Box<dyn Call>),
    /// Carried out here, with the help of the upstream.
    Own(Own),
    /// Refused.
    Refuse(fn() -> Status),
}

/// Unary methods that are carried out here.
#[derive(Clone, Copy, Debug)]
pub(super) enum Own {
    Compact,
    LeaseGrant,
    LeaseRevoke,
    LeaseLeases,
    MemberList,
    Status,
    HashKv,
    Alarm,
    AuthStatus,
    UserList,
    RoleList,
    Lock,
    Unlock,
    Campaign,
    Proclaim,
    Leader,
    Resign,
}

/// Streams of responses that are made here.
#[derive(Clone, Copy, Debug)]
pub(super) enum OwnStream {
    Observe,
    Snapshot,
}

/// Methods with streams, each of which has a rewriter of its own.
pub(super) enum Stream {
    /// One request, many responses.
    Range,
    /// Many each way.
    Watch,
    /// Many each way.
    KeepAlive,
}

/// A line of the table: method, kind, action.
type Line = (&'static str, Action);

// === impl Methods ===

impl Methods {
    pub(super) fn new(metrics: &Metrics) -> Result<Self, SchemaError> {
        let schema = unknown::schema()?;
        // So that no stream fails for it later.
        schema.message(WatchStream::REQUEST)?;
        KeepAliveStream::new(schema)?;
        RangeParts::new(schema)?;

        let mut by_path = HashMap::new();
        for (path, action) in table(schema)? {
            let Some((service, name)) = split(path) else { continue };
            let grpc_type = match &action {
                Action::Unary(_) => GrpcType::unary,
                Action::Stream(Stream::Watch | Stream::KeepAlive) => GrpcType::bidi_stream,
                Action::Stream(_) | Action::OwnStream(_) => GrpcType::server_stream,
                Action::Reflect(_) => GrpcType::bidi_stream,
            };
            let metrics = metrics.method(grpc_type, service, name);
            by_path.insert(path, Method { path, action, metrics });
        }
        let services: HashSet<&str> =
            by_path.keys().filter_map(|path| split(path)).map(|(service, _)| service).collect();
        for (path, reflection) in reflection::services(|service| services.contains(service))? {
            let Some((service, name)) = split(path) else { continue };
            let metrics = metrics.method(GrpcType::bidi_stream, service, name);
            by_path.insert(path, Method { path, action: Action::Reflect(reflection), metrics });
        }
        Ok(Self { by_path })
    }

    pub(super) fn get(&self, path: &str) -> Option<&Method> {
        self.by_path.get(path)
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = &'static str> {
        self.by_path.keys().copied()
    }

    /// What grpc-go says of a path that leads nowhere.
    pub(super) fn unknown(&self, path: &str) -> Status {
        let serves = |service| {
            service == HEALTH
                || self.by_path.values().any(|known| split(known.path).is_some_and(|(known, _)| known == service))
        };
        match split(path) {
            None => Status::unimplemented(format!("malformed method name: \"{}\"", path.escape_default())),
            Some((service, method)) if serves(service) => {
                Status::unimplemented(format!("unknown method {method} for service {service}"))
            }
            Some((service, _)) => Status::unimplemented(format!("unknown service {service}")),
        }
    }
}

fn table(schema: &'static unknown::Schema) -> Result<Vec<Line>, SchemaError> {
    fn own(own: Own) -> Action {
        Action::Unary(Unary::Own(own))
    }
    fn forward(rewriter: impl Call + 'static) -> Action {
        Action::Unary(Unary::Forward(Box::new(rewriter)))
    }
    fn refuse(status: fn() -> Status) -> Action {
        Action::Unary(Unary::Refuse(status))
    }
    let membership = || refuse(|| Denied::Membership.into());
    let maintenance = || refuse(|| Denied::Maintenance.into());
    let auth = || refuse(|| Denied::Auth.into());
    Ok(vec![
        ("/etcdserverpb.KV/Range", forward(Typed::<Range>::new(schema)?)),
        ("/etcdserverpb.KV/RangeStream", Action::Stream(Stream::Range)),
        ("/etcdserverpb.KV/Put", forward(Typed::<Put>::new(schema)?)),
        ("/etcdserverpb.KV/DeleteRange", forward(Typed::<DeleteRange>::new(schema)?)),
        ("/etcdserverpb.KV/Txn", forward(Typed::<Txn>::new(schema)?)),
        ("/etcdserverpb.KV/Compact", own(Own::Compact)),
        ("/etcdserverpb.Watch/Watch", Action::Stream(Stream::Watch)),
        ("/etcdserverpb.Lease/LeaseGrant", own(Own::LeaseGrant)),
        ("/etcdserverpb.Lease/LeaseRevoke", own(Own::LeaseRevoke)),
        ("/etcdserverpb.Lease/LeaseKeepAlive", Action::Stream(Stream::KeepAlive)),
        ("/etcdserverpb.Lease/LeaseTimeToLive", forward(Typed::<TimeToLive>::new(schema)?)),
        ("/etcdserverpb.Lease/LeaseLeases", own(Own::LeaseLeases)),
        ("/etcdserverpb.Cluster/MemberAdd", membership()),
        ("/etcdserverpb.Cluster/MemberRemove", membership()),
        ("/etcdserverpb.Cluster/MemberUpdate", membership()),
        ("/etcdserverpb.Cluster/MemberList", own(Own::MemberList)),
        ("/etcdserverpb.Cluster/MemberPromote", membership()),
        ("/etcdserverpb.Maintenance/Alarm", own(Own::Alarm)),
        ("/etcdserverpb.Maintenance/Status", own(Own::Status)),
        ("/etcdserverpb.Maintenance/Defragment", maintenance()),
        ("/etcdserverpb.Maintenance/Hash", maintenance()),
        ("/etcdserverpb.Maintenance/HashKV", own(Own::HashKv)),
        ("/etcdserverpb.Maintenance/Snapshot", Action::OwnStream(OwnStream::Snapshot)),
        ("/etcdserverpb.Maintenance/MoveLeader", maintenance()),
        ("/etcdserverpb.Maintenance/Downgrade", maintenance()),
        ("/etcdserverpb.Auth/AuthEnable", auth()),
        ("/etcdserverpb.Auth/AuthDisable", auth()),
        ("/etcdserverpb.Auth/AuthStatus", own(Own::AuthStatus)),
        ("/etcdserverpb.Auth/Authenticate", refuse(|| crate::error::EtcdError::AuthNotEnabled.into())),
        ("/etcdserverpb.Auth/UserAdd", auth()),
        ("/etcdserverpb.Auth/UserGet", refuse(|| crate::error::EtcdError::UserNotFound.into())),
        ("/etcdserverpb.Auth/UserList", own(Own::UserList)),
        ("/etcdserverpb.Auth/UserDelete", auth()),
        ("/etcdserverpb.Auth/UserChangePassword", auth()),
        ("/etcdserverpb.Auth/UserGrantRole", auth()),
        ("/etcdserverpb.Auth/UserRevokeRole", auth()),
        ("/etcdserverpb.Auth/RoleAdd", auth()),
        ("/etcdserverpb.Auth/RoleGet", refuse(|| crate::error::EtcdError::RoleNotFound.into())),
        ("/etcdserverpb.Auth/RoleList", own(Own::RoleList)),
        ("/etcdserverpb.Auth/RoleDelete", auth()),
        ("/etcdserverpb.Auth/RoleGrantPermission", auth()),
        ("/etcdserverpb.Auth/RoleRevokePermission", auth()),
        // Passed on, they would act on the shared etcd's whole key space.
        ("/v3lockpb.Lock/Lock", own(Own::Lock)),
        ("/v3lockpb.Lock/Unlock", own(Own::Unlock)),
        ("/v3electionpb.Election/Campaign", own(Own::Campaign)),
        ("/v3electionpb.Election/Proclaim", own(Own::Proclaim)),
        ("/v3electionpb.Election/Leader", own(Own::Leader)),
        ("/v3electionpb.Election/Observe", Action::OwnStream(OwnStream::Observe)),
        ("/v3electionpb.Election/Resign", own(Own::Resign)),
    ])
}

/// Service and method of a path.
fn split(path: &str) -> Option<(&str, &str)> {
    path.strip_prefix('/')?.rsplit_once('/')
}

// === impl Own ===

impl Own {
    /// Whether it may wait for other clients. Such a call sees itself to the limit of requests at a time, of which it is none
    /// while it waits.
    pub(super) fn waits(self) -> bool {
        matches!(self, Self::Lock | Self::Campaign)
    }
}

// === impl Unary, Stream ===

impl fmt::Debug for Unary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Forward(_) => "Forward",
            Self::Own(_) => "Own",
            Self::Refuse(_) => "Refuse",
        })
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Range => "RangeStream",
            Self::Watch => "Watch",
            Self::KeepAlive => "KeepAlive",
        })
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;
    use prost::Message as _;

    use super::*;

    fn methods() -> Methods {
        Methods::new(&Metrics::new(&mut Registry::default())).unwrap()
    }

    /// A method that a newer etcd has is a decision to be made, not to be missed.
    #[test]
    fn every_method_of_the_api_is_decided_on() {
        let set = prost_types::FileDescriptorSet::decode(proto::FILE_DESCRIPTOR_SET).unwrap();
        let methods = methods();
        let mut count = 0;
        for file in &set.file {
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                    let known = methods.get(&path).unwrap_or_else(|| panic!("{path} is missing"));
                    let streams = (method.client_streaming(), method.server_streaming());
                    let expected = match &known.action {
                        Action::Unary(_) => (false, false),
                        Action::Stream(Stream::Watch | Stream::KeepAlive) | Action::Reflect(_) => (true, true),
                        Action::Stream(_) | Action::OwnStream(_) => (false, true),
                    };
                    assert_eq!(streams, expected, "{path}");
                    count += 1;
                }
            }
        }
        // And the two versions of reflection, of which that API knows nothing.
        assert_eq!(count + 2, methods.by_path.len());
    }

    #[test]
    fn what_is_unknown_is_said_as_grpc_go_says_it() {
        let methods = methods();
        assert_eq!(
            methods.unknown("/etcdserverpb.KV/Nope").message(),
            "unknown method Nope for service etcdserverpb.KV"
        );
        assert_eq!(
            methods.unknown("/grpc.health.v1.Health/Nope").message(),
            "unknown method Nope for service grpc.health.v1.Health"
        );
        assert_eq!(methods.unknown("/foo.Bar/Baz").message(), "unknown service foo.Bar");
        assert_eq!(methods.unknown("/foo").message(), "malformed method name: \"/foo\"");
        assert_eq!(methods.unknown("/foo.Bar/Baz").code(), tonic::Code::Unimplemented);
    }
}
