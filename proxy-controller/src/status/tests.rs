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

#[test]
fn bytes_for_people() {
    for (bytes, text) in
        [(0, "0"), (999, "999"), (1024, "1Ki"), (1536, "1.5Ki"), (536_870_912, "512Mi"), (105_000_000, "100Mi")]
    {
        assert_eq!(human(bytes), text);
    }
}
