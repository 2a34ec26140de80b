use kube::runtime::events::EventType;

use super::*;

fn ready_of(findings: &Findings) -> Condition {
    let proxy = EtcdProxy::new("a", Default::default());
    let status = status(&proxy, findings, Timestamp::UNIX_EPOCH);
    status.conditions.into_iter().find(|condition| condition.type_ == READY).unwrap()
}

#[test]
fn without_a_node_it_says_so() {
    let findings = Findings {
        upstream: Some(Ok(())),
        prefix: Some(Ok("/a/".into())),
        rollout: Some(Rollout { wanted: 1, observed: true, ..Default::default() }),
        ..Default::default()
    };
    let ready = ready_of(&findings);
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "DeploymentUnavailable"));
    let serving = Findings { rollout: Some(Rollout { ready: 1, ..findings.rollout.unwrap() }), ..findings };
    assert_eq!(ready_of(&serving).status, "True");
}

#[test]
fn what_is_first_in_the_way_is_the_reason() {
    let problem = |reason| Problem::new(reason, "why");
    let mut findings = Findings { upstream: Some(Err(problem("UpstreamUnreachable"))), ..Default::default() };
    assert_eq!(ready_of(&findings).reason, "UpstreamUnreachable");
    findings.prefix = Some(Err(problem("PrefixTaken")));
    assert_eq!(ready_of(&findings).reason, "PrefixTaken");
    findings.prefix = Some(Ok("/a/".into()));
    findings.certificates = Some(Err(problem("CertificateError")));
    assert_eq!(ready_of(&findings).reason, "CertificateError");
}

#[test]
fn a_transition_keeps_its_time() {
    let findings = Findings::default();
    let mut proxy = EtcdProxy::new("a", Default::default());
    proxy.status = Some(status(&proxy, &findings, Timestamp::UNIX_EPOCH));
    let later = Timestamp::from_second(60).unwrap();
    assert_eq!(status(&proxy, &findings, later), proxy.status.clone().unwrap());
    // What a pass did not come to know stays as it was.
    let reached = Findings { upstream: Some(Ok(())), ..findings.clone() };
    let known = EtcdProxy { status: Some(status(&proxy, &reached, later)), ..proxy.clone() };
    assert_eq!(status(&known, &findings, later), known.status.clone().unwrap());
    let reached = Findings { upstream: Some(Ok(())), ..findings };
    let changed = status(&proxy, &reached, later);
    for condition in &changed.conditions {
        let expected = if condition.type_ == UPSTREAM_REACHABLE { later } else { Timestamp::UNIX_EPOCH };
        assert_eq!(condition.last_transition_time.0, expected, "{}", condition.type_);
    }
}

#[test]
fn only_changes_are_told() {
    let proxy = EtcdProxy::new("a", Default::default());
    let claimed = Findings { upstream: Some(Ok(())), prefix: Some(Ok("/a/".into())), ..Default::default() };
    let first = status(&proxy, &claimed, Timestamp::UNIX_EPOCH);
    assert_eq!(notices(&first, &first), []);
    let reasons: Vec<_> = notices(&Default::default(), &first).into_iter().map(|notice| notice.reason).collect();
    assert_eq!(reasons, ["PrefixClaimed", "DeploymentUnavailable"]);
    let lost = Findings { upstream: Some(Err(Problem::new("UpstreamUnreachable", "refused"))), ..claimed };
    let lost = notices(&first, &status(&proxy, &lost, Timestamp::UNIX_EPOCH));
    assert_eq!(
        lost.iter().map(|notice| (notice.severity, notice.reason.as_str())).collect::<Vec<_>>(),
        [(EventType::Warning, "UpstreamUnreachable")]
    );
}

fn of<'a>(status: &'a EtcdProxyStatus, kind: &str) -> (&'a str, &'a str) {
    let condition = status.conditions.iter().find(|condition| condition.type_ == kind).unwrap();
    (&condition.status, &condition.reason)
}

/// The status after one pass upon another.
fn after(findings: [Findings; 2]) -> EtcdProxyStatus {
    let mut proxy = EtcdProxy::new("a", Default::default());
    for findings in findings {
        proxy.status = Some(status(&proxy, &findings, Timestamp::UNIX_EPOCH));
    }
    proxy.status.unwrap()
}

fn provided() -> Findings {
    Findings {
        upstream: Some(Ok(())),
        prefix: Some(Ok("/a/".into())),
        rollout: Some(Rollout { wanted: 1, replicas: 1, updated: 1, ready: 1, observed: true }),
        complete: true,
        ..Default::default()
    }
}

fn unreached() -> Findings {
    let upstream = Some(Err(Problem::new("UpstreamSecretMissing", "no Secret")));
    Findings { upstream, complete: false, prefix: None, ..provided() }
}

fn not_found() -> Refusal {
    let facts = crate::policy::Facts { upstream: None, grants: &[], claims: None, controller_namespace: "system" };
    crate::policy::check(&EtcdProxy::new("a", Default::default()), &facts).remove(0)
}

#[test]
fn a_pass_that_was_cut_short_gives_no_all_clear() {
    let foreign = Findings { clients: vec![Problem::new("TargetExists", "theirs")], ..provided() };
    let kept = after([foreign.clone(), unreached()]);
    assert_eq!(of(&kept, DEGRADED), ("True", "TargetExists"));
    let told = notices(&after([foreign.clone(), foreign.clone()]), &kept);
    assert!(told.iter().all(|notice| notice.reason != "AsExpected"), "{told:?}");
    assert_eq!(of(&after([foreign, provided()]), DEGRADED), ("False", "AsExpected"));
    assert_eq!(of(&after([Findings::default(), unreached()]), DEGRADED), ("Unknown", "NotLookedAt"));
    // What it did see is said.
    let grant = Findings { clients: vec![Problem::new("GrantMissing", "no grant")], ..unreached() };
    assert_eq!(of(&after([provided(), grant]), DEGRADED), ("True", "GrantMissing"));
}

#[test]
fn what_is_refused_or_blocked_makes_no_progress() {
    let rolling = Some(Rollout { wanted: 2, replicas: 2, updated: 1, ready: 1, observed: true });
    let progressing = |findings: Findings| {
        let status = after([provided(), Findings { rollout: rolling, ..findings }]);
        let (is, reason) = of(&status, PROGRESSING);
        (is.to_owned(), reason.to_owned())
    };
    let expected = |is: &str, reason: &str| (is.to_owned(), reason.to_owned());
    assert_eq!(progressing(provided()), expected("True", "RollingOut"));
    // An error of the API server does not keep the Deployment from rolling out.
    assert_eq!(progressing(Findings { complete: false, ..provided() }), expected("True", "RollingOut"));
    assert_eq!(progressing(unreached()), expected("False", "Waiting"));
    let refused = Findings { refusals: vec![not_found()], complete: false, ..provided() };
    assert_eq!(progressing(refused), expected("False", "Refused"));
    let deleting = |blocked| Findings { deleting: Some(Deleting { blocked, ..Default::default() }), ..provided() };
    assert_eq!(progressing(deleting(None)), expected("True", "Deleting"));
    let blocked = deleting(Some(Problem::new("DeletionBlocked", "no etcd")));
    assert_eq!(progressing(blocked), expected("False", "Waiting"));
}

#[test]
fn one_trouble_is_one_event() {
    let reasons = |before: Findings, now: Findings| {
        let told = notices(&after([provided(), before.clone()]), &after([before, now]));
        told.into_iter().map(|notice| notice.reason).collect::<Vec<_>>()
    };
    let two = vec![Problem::new("TargetExists", "one"), Problem::new("TargetExists", "another")];
    assert_eq!(reasons(provided(), Findings { clients: two, ..provided() }), ["TargetExists"]);
    // For a new object the whole is not ready for that reason, too.
    let told = notices(&Default::default(), &after([Findings::default(), unreached()]));
    assert_eq!(told.iter().map(|notice| &*notice.reason).collect::<Vec<_>>(), ["UpstreamSecretMissing"]);
    // Two that only share the reason are two.
    let both = Findings {
        clients: vec![Problem::new("TargetExists", "a Secret")],
        objects: vec![Problem::new("TargetExists", "a Service")],
        ..provided()
    };
    assert_eq!(reasons(provided(), both), ["TargetExists", "TargetExists"]);
    // That nothing was ever wrong is no news.
    let usage = Some(Usage { summary: "0".into(), ..Default::default() });
    assert_eq!(reasons(provided(), Findings { usage: usage.clone(), ..provided() }), Vec::<String>::new());
    let full = Findings { usage, over_quota: true, ..provided() };
    assert_eq!(reasons(provided(), full.clone()), ["QuotaExceeded"]);
    assert_eq!(reasons(full.clone(), Findings { over_quota: false, ..full }), ["BelowQuota"]);
}

#[test]
fn each_change_is_logged() {
    let (before, now) = (after([provided(), provided()]), after([provided(), unreached()]));
    let kinds: Vec<_> = changed(&before.conditions, &now.conditions).map(|one| (&*one.type_, &*one.reason)).collect();
    assert_eq!(kinds, [(PROGRESSING, "Waiting"), (UPSTREAM_REACHABLE, "UpstreamSecretMissing")]);
    assert_eq!(changed(&now.conditions, &now.conditions).count(), 0);
}

#[test]
fn counts_for_people() {
    let message =
        |rollout| ready_of(&Findings { rollout: Some(rollout), deployment: "system/a".into(), ..provided() }).message;
    assert_eq!(message(Rollout { wanted: 1, ready: 1, ..Default::default() }), "1 of 1 proxy is ready");
    assert_eq!(message(Rollout { wanted: 3, ready: 2, ..Default::default() }), "2 of 3 proxies are ready");
    let none = message(Rollout { wanted: 1, ..Default::default() });
    assert_eq!(none, "0 of 1 proxy is ready (0 started): the operator sees why at the pods of Deployment system/a");
    assert_eq!(
        (counted(0, "key", "keys"), counted(1, "key", "keys"), counted(2, "key", "keys")),
        ("0 keys".to_owned(), "1 key".to_owned(), "2 keys".to_owned())
    );
}

#[test]
fn bytes_for_people() {
    for (bytes, text) in
        [(0, "0"), (999, "999"), (1024, "1Ki"), (1536, "1.5Ki"), (536_870_912, "512Mi"), (105_000_000, "100Mi")]
    {
        assert_eq!(human(bytes), text);
    }
}
