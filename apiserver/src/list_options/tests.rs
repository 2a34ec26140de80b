use http::{HeaderMap, HeaderValue, header};
use serde_json::Value;

use super::{ListOptions, ResourceVersionMatch, WriteOptions, delete_options};
use crate::{
    scheme::Strictness,
    test_vectors,
    validation::{options, tests::errors},
};

#[test]
fn lists_and_watches_agree_with_go() {
    for case in test_vectors::lines(include_str!("../../tests/vectors/tokens/listoptions.jsonl")) {
        // The feature gate of watch-lists is not there to be switched off.
        if !case["watchListGate"].as_bool().unwrap() {
            continue;
        }
        let id = case["id"].as_str().unwrap();
        let given = case["resourceVersionMatch"].as_str().unwrap();
        let mut options = ListOptions {
            watch: case["watch"].as_bool().unwrap(),
            resource_version: case["resourceVersion"].as_str().unwrap().to_owned(),
            resource_version_match: ResourceVersionMatch::parse(given),
            continue_token: case["continue"].as_str().unwrap().to_owned(),
            send_initial_events: case["sendInitialEvents"].as_bool(),
            ..ListOptions::default()
        };
        assert_eq!(errors(&options.validate(given)), case["errors"], "{id}");
        options.set_defaults(given);
        let defaulted = match options.resource_version_match {
            Some(ResourceVersionMatch::NotOlderThan) => "NotOlderThan",
            Some(ResourceVersionMatch::Exact) => "Exact",
            None => given,
        };
        assert_eq!(defaulted, case["defaulted"]["resourceVersionMatch"], "{id}");
        assert_eq!(options.send_initial_events, case["defaulted"]["sendInitialEvents"].as_bool(), "{id}");
        assert_eq!(errors(&options.validate(given)), case["errorsAfterDefaulting"], "{id}");
    }
}

#[test]
fn options_of_writes_agree_with_go() {
    let mut checked = 0;
    for case in test_vectors::lines(include_str!("../../tests/vectors/names/options.jsonl")) {
        let id = case["id"].as_str().unwrap();
        let given = &case["options"];
        let found = match case["op"].as_str().unwrap() {
            "deleteOptions" => options::delete_options(&serde_json::from_value(given.clone()).unwrap()),
            "condition" => match serde_json::from_value(given.clone()) {
                Ok(condition) => {
                    options::condition(&condition, &crate::validation::Path::new("status").child("conditions").index(0))
                }
                // A condition without a time cannot be expressed.
                Err(_) => continue,
            },
            op @ ("createOptions" | "updateOptions" | "patchOptions") => {
                if case["patchType"].as_str().is_some_and(|t| t.contains("apply")) {
                    continue;
                }
                let query = query(given);
                let status = match op {
                    "createOptions" => WriteOptions::for_create(&query),
                    "updateOptions" => WriteOptions::for_update(&query),
                    _ => WriteOptions::for_patch(&query),
                };
                let causes = status.err().and_then(|s| s.as_v1().details.clone()?.causes).unwrap_or_default();
                let expected: Vec<_> = case["errors"].as_array().unwrap().iter().map(|e| &e["body"]).collect();
                let bodies: Vec<_> = causes.iter().map(|c| Value::from(c.message.clone())).collect();
                assert_eq!(bodies.iter().collect::<Vec<_>>(), expected, "{id}");
                checked += 1;
                continue;
            }
            _ => continue,
        };
        assert_eq!(errors(&found), case["errors"], "{id}");
        checked += 1;
    }
    assert!(checked > 80, "only {checked} checks were made");
}

/// The options as a query.
fn query(options: &Value) -> String {
    let mut pairs = Vec::new();
    for (name, value) in options.as_object().unwrap() {
        for value in value.as_array().unwrap_or(&vec![value.clone()]) {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let encoded = percent_encoding::utf8_percent_encode(&text, percent_encoding::NON_ALPHANUMERIC);
            pairs.push(format!("{name}={encoded}"));
        }
    }
    pairs.join("&")
}

#[test]
fn reads_the_options_of_a_list() {
    let options = ListOptions::parse(
        "labelSelector=a%3Db&fieldSelector=metadata.name%3Dx&limit=5&continue=t&timeoutSeconds=7&resourceVersion=0",
    )
    .unwrap();
    assert_eq!(options.label_selector.to_string(), "a=b");
    assert_eq!(options.field_selector.requires_exact("metadata.name"), Some("x"));
    assert_eq!((options.limit, options.timeout_seconds), (5, Some(7)));
    assert_eq!((options.continue_token.as_str(), options.resource_version.as_str()), ("t", "0"));
    assert!(!options.watch);

    let status = ListOptions::parse("limit=abc").unwrap_err();
    assert_eq!((status.code().as_u16(), status.message()), (400, "strconv.ParseInt: parsing \"abc\": invalid syntax"));
    let status = ListOptions::parse("labelSelector=a+b").unwrap_err();
    assert_eq!(status.code(), 400);
    let status = ListOptions::parse("resourceVersionMatch=Exact").unwrap_err();
    assert_eq!(status.code(), 422);
    assert_eq!(
        status.message(),
        "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided"
    );
}

#[test]
fn a_watch_without_a_version_is_a_watch_list() {
    let options = ListOptions::parse("watch=true").unwrap();
    assert_eq!(options.send_initial_events, Some(true));
    assert_eq!(options.resource_version_match, Some(ResourceVersionMatch::NotOlderThan));
    assert_eq!(ListOptions::parse("watch=1&resourceVersion=5").unwrap().send_initial_events, None);
    assert!(!ListOptions::parse("watch=false").unwrap().watch);
    assert!(ListOptions::parse("watch").unwrap().watch);
}

#[test]
fn reads_the_options_of_a_write() {
    let options = WriteOptions::for_create("dryRun=All&fieldValidation=Strict&fieldManager=kubectl").unwrap();
    assert!(options.dry_run);
    assert_eq!((options.strictness, options.field_manager.as_str()), (Strictness::Strict, "kubectl"));
    assert_eq!(WriteOptions::for_update("").unwrap().strictness, Strictness::Warn);
    assert_eq!(WriteOptions::for_patch("force=true").unwrap_err().code(), 422);
    assert_eq!(WriteOptions::for_create("dryRun=x").unwrap_err().code(), 422);
}

#[test]
fn reads_the_options_of_a_deletion() {
    let none = HeaderMap::new();
    let from_query = delete_options(&none, "gracePeriodSeconds=0&propagationPolicy=Foreground&dryRun=All", b"");
    let from_query = from_query.unwrap();
    assert_eq!(from_query.grace_period_seconds, Some(0));
    assert_eq!(from_query.propagation_policy.as_deref(), Some("Foreground"));
    assert_eq!(from_query.dry_run, Some(vec!["All".to_owned()]));

    let body = br#"{"kind":"DeleteOptions","apiVersion":"v1","preconditions":{"uid":"u"},"other":1}"#;
    // The query does not count when there is a body.
    let from_body = delete_options(&none, "dryRun=All", body).unwrap();
    assert_eq!(from_body.preconditions.unwrap().uid.as_deref(), Some("u"));
    assert_eq!(from_body.dry_run, None);
    for body in [
        &br#"{"kind":"DeleteOptions","apiVersion":"g.example.com/v1beta1"}"#[..],
        br#"{"kind":"DeleteOptions","apiVersion":"meta.k8s.io/v1"}"#,
        br#"{"kind":"DeleteOptions","apiVersion":"other/v7"}"#,
        br#"{"kind":"DeleteOptions","apiVersion":"v7"}"#,
        br#"{"apiVersion":"other/v7"}"#,
        b"{}",
    ] {
        assert!(delete_options(&none, "", body).is_ok());
    }
    let yaml = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static("application/yaml"))]);
    assert_eq!(delete_options(&yaml, "", b"gracePeriodSeconds: 3\n").unwrap().grace_period_seconds, Some(3));

    let code = |body: &[u8]| delete_options(&none, "", body).unwrap_err().code().as_u16();
    assert_eq!(code(b"{"), 400);
    assert_eq!(code(b"[]"), 400);
    assert_eq!(code(br#"{"kind":"Pizza","apiVersion":"v1"}"#), 400);
    for api_version in ["a/b/c", "other/"] {
        assert_eq!(code(format!(r#"{{"apiVersion":"{api_version}"}}"#).as_bytes()), 400, "{api_version}");
    }
    assert_eq!(code(br#"{"apiVersion":1}"#), 400);
    assert_eq!(code(br#"{"gracePeriodSeconds":"x"}"#), 400);
    assert_eq!(code(br#"{"orphanDependents":true,"propagationPolicy":"Orphan"}"#), 422);
    let text = HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"))]);
    assert_eq!(delete_options(&text, "", b"{}").unwrap_err().code(), 415);
}
