use super::*;

fn user(name: &str, groups: &[&str]) -> UserInfo {
    UserInfo { name: name.into(), groups: groups.iter().map(|g| (*g).to_owned()).collect(), ..UserInfo::default() }
}

fn path(path: &str) -> RequestInfo {
    RequestInfo { path: path.into(), verb: "get".into(), ..RequestInfo::default() }
}

struct Always(Decision);

#[async_trait]
impl Authorizer for Always {
    async fn authorize(&self, _: &AuthorizationAttributes<'_>) -> Decision {
        self.0.clone()
    }
}

async fn ask(authorizer: &dyn Authorizer, user: &UserInfo, info: &RequestInfo) -> Decision {
    authorizer.authorize(&AuthorizationAttributes { user, verb: &info.verb, info }).await
}

#[tokio::test]
async fn always_allowed_paths_are_exact_or_end_in_a_star() {
    let authorizer = AlwaysAllowPaths::new(&["/healthz".into(), "livez/*".into()]).unwrap();
    let user = user("x", &[]);
    for (asked, allowed) in [
        ("/healthz", true),
        ("/healthz/", false),
        ("/healthz/etcd", false),
        ("/livez", false),
        ("/livez/ping", true),
        ("/", false),
    ] {
        assert_eq!(ask(&authorizer, &user, &path(asked)).await.is_allow(), allowed, "{asked}");
    }
    let resource = RequestInfo { is_resource: true, ..path("/healthz") };
    assert!(!ask(&authorizer, &user, &resource).await.is_allow());
    assert!(AlwaysAllowPaths::new(&["/a*b".into()]).is_err());
    assert!(AlwaysAllowPaths::new(&["/a**".into()]).is_err());
}

#[tokio::test]
async fn an_error_is_a_refusal_unless_another_authorizer_allows() {
    let error =
        || Arc::new(Always(Decision::Error(AuthorizationError { message: "down".into() }))) as Arc<dyn Authorizer>;
    let none = || Arc::new(Always(Decision::NoOpinion { reason: "no rule".into() })) as Arc<dyn Authorizer>;
    let masters = || Arc::new(PrivilegedGroups::new([SYSTEM_MASTERS])) as Arc<dyn Authorizer>;
    let (somebody, admin) = (user("x", &["system:authenticated"]), user("y", &[SYSTEM_MASTERS]));
    let union = Union::new(vec![error(), none(), masters()]);
    assert!(matches!(ask(&union, &somebody, &path("/metrics")).await, Decision::Error(e) if e.message == "down"));
    assert!(ask(&union, &admin, &path("/metrics")).await.is_allow());
    let union = Union::new(vec![none(), masters()]);
    assert!(
        matches!(ask(&union, &somebody, &path("/metrics")).await, Decision::NoOpinion { reason } if reason == "no rule")
    );
    let union = Union::new(vec![Arc::new(Always(Decision::Deny { reason: String::new() })), masters()]);
    assert!(matches!(ask(&union, &admin, &path("/metrics")).await, Decision::Deny { .. }));
}

#[test]
fn refusals_speak_as_kubernetes_does() {
    let user = user("a<b", &[]);
    let mut info = RequestInfo {
        is_resource: true,
        verb: "list".into(),
        group: "restaurant.programming-kubernetes.info".into(),
        resource: "pizzas".into(),
        namespace: "default".into(),
        ..RequestInfo::default()
    };
    let text =
        |info: &RequestInfo, reason| AuthorizationAttributes { user: &user, verb: &info.verb, info }.refusal(reason);
    assert_eq!(
        text(&info, ""),
        r#"User "a&lt;b" cannot list resource "pizzas" in API group "restaurant.programming-kubernetes.info" in the namespace "default""#
    );
    info.namespace.clear();
    info.subresource = "status".into();
    assert_eq!(
        text(&info, "no <role>"),
        r#"User "a&lt;b" cannot list resource "pizzas/status" in API group "restaurant.programming-kubernetes.info" at the cluster scope: no <role>"#
    );
    assert_eq!(text(&path("/metrics"), ""), r#"User "a&lt;b" cannot get path "/metrics""#);
}
