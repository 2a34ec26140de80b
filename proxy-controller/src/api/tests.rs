use super::*;

#[test]
fn naming_one_default_limit_keeps_the_others() {
    let defaults: Defaults = serde_json::from_value(serde_json::json!({"limits": {"keys": 7}})).unwrap();
    assert_eq!(defaults.limits, Limits { keys: Some(7), ..Defaults::default().limits });
    assert!(defaults.limits.storage.is_some());
}

/// kube-apiserver refuses rules that it cannot bound, and schemas that are not structural; those tests need one. Here: what the
/// columns show.
#[test]
fn columns() {
    let crd = EtcdProxy::crd();
    let columns = crd.spec.versions[0].additional_printer_columns.as_ref().unwrap();
    let shown: Vec<_> =
        columns.iter().filter(|column| column.priority.is_none()).map(|column| column.name.as_str()).collect();
    assert_eq!(shown, ["Ready", "Endpoint", "Prefix", "Used", "Cert Expires", "Age"]);
    let crd = EtcdUpstream::crd();
    let columns = crd.spec.versions[0].additional_printer_columns.as_ref().unwrap();
    let shown: Vec<_> = columns.iter().map(|column| column.name.as_str()).collect();
    assert_eq!(shown, ["Reachable", "Reason", "Version", "Members", "Tenants", "Retained", "Size", "Age"]);
}

/// What `kubectl get` shows in the column, and what a tenant gets that says nothing, is one.
#[test]
fn the_upstream_is_never_left_out() {
    let spec: EtcdProxySpec = serde_json::from_value(serde_json::json!({})).unwrap();
    assert_eq!((spec.upstream_ref.name.as_str(), &spec), (DEFAULT_UPSTREAM, &EtcdProxySpec::default()));
}
