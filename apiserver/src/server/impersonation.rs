//! Acting as somebody else: `Impersonate-User` and its companions, each of which takes the right to do so
//! (k8s.io/apiserver `pkg/endpoints/filters/impersonation/impersonation.go`).
//!
//! Behind the aggregator these headers are resolved already. Asked directly, a server that overlooked them would do with the
//! caller's own rights what was to be done with somebody else's lesser ones. Only the verb `impersonate` counts here; the
//! narrower rights of constrained impersonation (KEP-5284) alone are not enough.

use http::{HeaderMap, HeaderName};

use crate::{
    authentication::{ANONYMOUS, AUTHENTICATED, RequestHeaderNames, UNAUTHENTICATED},
    authorization::{AuthorizationAttributes, Authorizer, Decision},
    meta::GroupResource,
    request::{RequestInfo, UserInfo},
    status::Status,
};

const USER: &str = "impersonate-user";
const UID: &str = "impersonate-uid";
const GROUP: &str = "impersonate-group";
const EXTRA_PREFIX: &str = "impersonate-extra-";
/// How users of service accounts are named, before `<namespace>:<name>`.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// The user as whom the request is to be done: the caller, or the one whom the headers name, if the caller may. The headers
/// are removed.
pub(super) async fn resolve(
    authorizer: &dyn Authorizer,
    caller: UserInfo,
    headers: &mut HeaderMap,
) -> Result<UserInfo, Status> {
    if !headers.keys().any(|name| name.as_str().starts_with("impersonate-")) {
        return Ok(caller);
    }
    let Some(wanted) = wanted(headers)? else { return Ok(caller) };
    remove(headers);
    for acting in what_to_ask(&wanted) {
        let attributes = AuthorizationAttributes { user: &caller, verb: "impersonate", info: &acting };
        let reason = match authorizer.authorize(&attributes).await {
            Decision::Allow => continue,
            Decision::Deny { reason } | Decision::NoOpinion { reason } => reason,
            Decision::Error(_) => String::new(),
        };
        let resource = GroupResource { group: acting.group.clone(), resource: acting.resource.clone() };
        return Err(Status::forbidden(&resource, &acting.name, attributes.refusal(&reason)));
    }
    tracing::info!(caller = caller.name, as_user = wanted.name, "impersonation");
    Ok(complete(wanted))
}

/// The user whom the headers name, as they name them.
fn wanted(headers: &HeaderMap) -> Result<Option<UserInfo>, Status> {
    let names = RequestHeaderNames {
        user: vec![USER.to_owned()],
        uid: vec![UID.to_owned()],
        group: vec![GROUP.to_owned()],
        extra_prefix: vec![EXTRA_PREFIX.to_owned()],
    };
    let found = names.user(headers).map_err(|error| Status::bad_request(error.to_string()))?;
    let others = |name: &HeaderName| matches!(name.as_str(), UID | GROUP) || name.as_str().starts_with(EXTRA_PREFIX);
    if found.is_none() && headers.keys().any(others) {
        return Err(Status::bad_request(
            "requested impersonation of groups, a uid or extra without impersonating a user",
        ));
    }
    Ok(found)
}

fn remove(headers: &mut HeaderMap) {
    let given: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with("impersonate-")).cloned().collect();
    for name in given {
        headers.remove(name);
    }
}

/// Each thing that the caller must be allowed to impersonate.
fn what_to_ask(wanted: &UserInfo) -> Vec<RequestInfo> {
    let ask = |group: &str, version: &str, resource: &str, name: &str| RequestInfo {
        is_resource: true,
        verb: "impersonate".to_owned(),
        group: group.to_owned(),
        version: version.to_owned(),
        resource: resource.to_owned(),
        name: name.to_owned(),
        ..RequestInfo::default()
    };
    let user = match service_account(&wanted.name) {
        Some((namespace, name)) => {
            RequestInfo { namespace: namespace.to_owned(), ..ask("", "v1", "serviceaccounts", name) }
        }
        None => ask("", "v1", "users", &wanted.name),
    };
    let mut all = vec![user];
    all.extend(wanted.groups.iter().map(|group| ask("", "v1", "groups", group)));
    for (key, values) in &wanted.extra {
        let extra = |value: &String| RequestInfo {
            subresource: key.clone(),
            ..ask("authentication.k8s.io", "v1", "userextras", value)
        };
        all.extend(values.iter().map(extra));
    }
    if !wanted.uid.is_empty() {
        all.push(ask("authentication.k8s.io", "v1", "uids", &wanted.uid));
    }
    all
}

/// Adds the groups that go with the user without being named.
fn complete(mut user: UserInfo) -> UserInfo {
    if user.groups.is_empty()
        && let Some((namespace, _)) = service_account(&user.name)
    {
        user.groups = vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}")];
    }
    let has = |group: &str| user.groups.iter().any(|g| g == group);
    let implied = match user.name.as_str() {
        ANONYMOUS if !has(UNAUTHENTICATED) => Some(UNAUTHENTICATED),
        ANONYMOUS => None,
        _ if !has(AUTHENTICATED) && !has(UNAUTHENTICATED) => Some(AUTHENTICATED),
        _ => None,
    };
    user.groups.extend(implied.map(str::to_owned));
    user
}

fn service_account(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(SERVICE_ACCOUNT)?.split_once(':')?;
    (!namespace.is_empty() && !name.is_empty() && !name.contains(':')).then_some((namespace, name))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use async_trait::async_trait;
    use parking_lot::Mutex;

    use super::*;

    /// Allows what it is told, and keeps what it was asked.
    #[derive(Default)]
    struct Rights {
        refused: Option<&'static str>,
        asked: Mutex<Vec<String>>,
    }

    #[async_trait]
    impl Authorizer for Rights {
        async fn authorize(&self, attributes: &AuthorizationAttributes<'_>) -> Decision {
            let RequestInfo { group, resource, subresource, namespace, name, .. } = attributes.info;
            assert_eq!((attributes.verb, attributes.user.name.as_str()), ("impersonate", "admin"));
            self.asked.lock().push(format!("{group}/{resource}/{subresource} {namespace}/{name}"));
            if self.refused == Some(resource.as_str()) {
                Decision::NoOpinion { reason: String::new() }
            } else {
                Decision::Allow
            }
        }
    }

    async fn act(rights: &Rights, given: &[(&'static str, &'static str)]) -> Result<UserInfo, Status> {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            headers.append(*name, value.parse().unwrap());
        }
        let admin = UserInfo { name: "admin".to_owned(), ..UserInfo::default() };
        let outcome = resolve(rights, admin, &mut headers).await;
        if outcome.is_ok() {
            assert!(headers.is_empty(), "{headers:?}");
        }
        outcome
    }

    #[tokio::test]
    async fn each_part_takes_a_right() {
        let rights = Rights::default();
        let user = act(
            &rights,
            &[
                ("impersonate-user", "jane"),
                ("impersonate-group", "dev"),
                ("impersonate-uid", "7"),
                ("impersonate-extra-example.com%2fscope", "x"),
            ],
        )
        .await
        .unwrap();
        assert_eq!((user.name.as_str(), user.uid.as_str()), ("jane", "7"));
        assert_eq!(user.groups, ["dev", AUTHENTICATED]);
        assert_eq!(user.extra, BTreeMap::from([("example.com/scope".to_owned(), vec!["x".to_owned()])]));
        assert_eq!(
            *rights.asked.lock(),
            [
                "/users/ /jane",
                "/groups/ /dev",
                "authentication.k8s.io/userextras/example.com/scope /x",
                "authentication.k8s.io/uids/ /7"
            ]
        );
        for refused in ["users", "groups", "userextras", "uids"] {
            let rights = Rights { refused: Some(refused), ..Rights::default() };
            let given = [
                ("impersonate-user", "jane"),
                ("impersonate-group", "system:masters"),
                ("impersonate-uid", "7"),
                ("impersonate-extra-a", "x"),
            ];
            let status = act(&rights, &given).await.unwrap_err();
            assert_eq!(status.code(), 403, "{refused}");
            assert!(status.message().contains("User \"admin\" cannot impersonate resource"), "{}", status.message());
        }
    }

    #[tokio::test]
    async fn service_accounts_bring_their_groups() {
        let rights = Rights::default();
        let user = act(&rights, &[("impersonate-user", "system:serviceaccount:ns:sa")]).await.unwrap();
        assert_eq!(user.groups, ["system:serviceaccounts", "system:serviceaccounts:ns", AUTHENTICATED]);
        assert_eq!(*rights.asked.lock(), ["/serviceaccounts/ ns/sa"]);
        let anonymous = act(&rights, &[("impersonate-user", ANONYMOUS)]).await.unwrap();
        assert_eq!(anonymous.groups, [UNAUTHENTICATED]);
    }

    #[tokio::test]
    async fn nobody_in_particular_cannot_be_impersonated() {
        let rights = Rights::default();
        assert_eq!(act(&rights, &[("impersonate-group", "a")]).await.unwrap_err().code(), 400);
        assert_eq!(act(&rights, &[]).await.unwrap().name, "admin");
    }
}
