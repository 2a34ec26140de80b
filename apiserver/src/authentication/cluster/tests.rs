use serde_json::json;

use super::*;
use crate::server::certificates::EphemeralCa;

fn map(data: serde_json::Value) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": CONFIG_MAP_NAME}, "data": data})).unwrap()
}

#[test]
fn the_config_map_is_applied_and_nonsense_is_not() {
    let (clients, proxies) = (EphemeralCa::new("c").unwrap(), EphemeralCa::new("p").unwrap());
    let all = Wanted { client_ca: true, request_header: true };
    let trust = Trust::default();
    let good = json!({
        "client-ca-file": clients.pem(),
        "requestheader-client-ca-file": proxies.pem(),
        "requestheader-allowed-names": r#"["aggregator"]"#,
        "requestheader-username-headers": r#"["X-Remote-User"]"#,
        "requestheader-group-headers": r#"["X-Remote-Group"]"#,
        "requestheader-extra-headers-prefix": r#"["X-Remote-Extra-"]"#,
    });
    apply(&map(good.clone()), all, &trust);
    let believed = trust.request_header().unwrap();
    assert_eq!((believed.allowed_names[0].as_str(), believed.names.user[0].as_str()), ("aggregator", "X-Remote-User"));
    assert!(believed.names.uid.is_empty(), "there is no default for uids");
    let ca = trust.client_ca().unwrap();

    // The same again replaces nothing: what is known of connections stays.
    apply(&map(good.clone()), all, &trust);
    assert!(Arc::ptr_eq(&ca, &trust.client_ca().unwrap()));
    assert!(Arc::ptr_eq(&believed, &trust.request_header().unwrap()));

    let mut bad = good;
    bad["client-ca-file"] = "no pem".into();
    bad["requestheader-allowed-names"] = "aggregator".into();
    apply(&map(bad), all, &trust);
    apply(&map(json!({})), all, &trust);
    assert!(Arc::ptr_eq(&ca, &trust.client_ca().unwrap()));
    assert!(Arc::ptr_eq(&believed, &trust.request_header().unwrap()));

    apply(&map(json!({"client-ca-file": proxies.pem()})), Wanted { client_ca: false, request_header: true }, &trust);
    assert!(Arc::ptr_eq(&ca, &trust.client_ca().unwrap()), "flags come before the ConfigMap");
    apply(&map(json!({"client-ca-file": proxies.pem()})), all, &trust);
    assert!(!Arc::ptr_eq(&ca, &trust.client_ca().unwrap()));
}

#[test]
fn missing_rights_are_told_with_their_remedy() {
    let text = LookupError::Forbidden("configmaps is forbidden".into()).to_string();
    assert!(text.contains("kube-system/extension-apiserver-authentication"), "{text}");
    assert!(
        text.contains(
            "kubectl create rolebinding -n kube-system NAME --role=extension-apiserver-authentication-reader"
        ),
        "{text}"
    );
}
