use std::collections::BTreeMap;

use http::StatusCode;
use serde_json::{Value, json};

use super::{OPTIMISTIC_LOCK_MESSAGE, Status};
use crate::{
    meta::{GroupKind, GroupResource},
    test_vectors,
    validation::{ErrorList, FieldError, Path},
};

const GROUP: &str = "restaurant.programming-kubernetes.info";

fn pizzas() -> GroupResource {
    GroupResource { group: GROUP.to_owned(), resource: "pizzas".to_owned() }
}

fn nothing() -> GroupResource {
    GroupResource { group: String::new(), resource: String::new() }
}

fn pizza() -> GroupKind {
    GroupKind { group: GROUP.to_owned(), kind: "Pizza".to_owned() }
}

/// The errors that the golden results were made with. `None` where Go has a value that cannot be had here: a nil path, a
/// length below zero.
fn field_errors() -> Vec<Option<FieldError>> {
    let p = Path::new("spec");
    let toppings = p.child("toppings");
    vec![
        Some(FieldError::invalid(&toppings.index(0).child("quantity"), -1, "cannot be negative or zero")),
        Some(FieldError::required(&p.child("a"), "is needed")),
        Some(FieldError::required(&p.child("a"), "")),
        Some(FieldError::duplicate(&toppings.index(1), "x")),
        Some(FieldError::not_supported(&p.child("b"), "z", &["x", "y"])),
        Some(FieldError::not_supported(&p.child("b"), "z", &[])),
        Some(FieldError::forbidden(&p.child("c"), "no")),
        Some(FieldError::not_found(&p.child("d"), "n")),
        Some(FieldError::too_long(&p.child("e"), 3)),
        Some(FieldError::too_many(&p.child("f"), 5, 3)),
        Some(FieldError::type_invalid(&p.child("g"), "v", "must be an integer")),
        Some(FieldError::internal(&p.child("h"), "boom")),
        Some(FieldError::invalid(&p.key("k.io/x"), json!({"a": "b"}), "d")),
        Some(FieldError::invalid(&p, Value::Null, "d")),
        Some(FieldError::invalid(&p, 1.5, "d")),
        Some(FieldError::invalid(&p, true, "d")),
        Some(FieldError::invalid(&p, json!(["a"]), "d")),
        Some(FieldError::invalid(&p, json!({"A": "b"}), "d")),
        None,
        None,
        None,
        Some(FieldError::too_few(&p, 1, 2)),
    ]
}

fn one(id: &str) -> Option<Status> {
    let pods = GroupResource { group: String::new(), resource: "pods".to_owned() };
    let errors = |indices: &[usize]| -> ErrorList {
        indices.iter().filter_map(|i| field_errors().into_iter().nth(*i).flatten()).collect()
    };
    Some(match id {
        "notfound" | "storage-notfound" => Status::not_found(&pizzas(), "x"),
        "notfound-core" => Status::not_found(&pods, "x"),
        "alreadyexists" | "storage-exists" => Status::already_exists(&pizzas(), "x"),
        "generatenameconflict" => Status::generate_name_conflict(&pizzas(), "x", 1),
        "unauthorized" => Status::unauthorized("why"),
        "unauthorized-empty" => Status::unauthorized(""),
        "forbidden" => Status::forbidden(&pizzas(), "x", "why"),
        "forbidden-noname" => Status::forbidden(&pizzas(), "", "why"),
        "forbidden-noresource" => Status::forbidden(&nothing(), "", "why"),
        "conflict" => Status::conflict(&pizzas(), "x", OPTIMISTIC_LOCK_MESSAGE),
        "gone" => Status::gone("m"),
        "expired" => Status::expired("m"),
        "invalid-none" => Status::invalid(&pizza(), "x", &ErrorList::new()),
        "invalid-many" => Status::invalid(&pizza(), "x", &errors(&[0, 1, 2, 3, 0])),
        "invalid-core" => {
            Status::invalid(&GroupKind { group: String::new(), kind: "Pod".to_owned() }, "", &errors(&[0]))
        }
        "badrequest" => Status::bad_request("m"),
        "toomanyrequests" => Status::too_many_requests("m", 7),
        "unavailable" => Status::service_unavailable("m"),
        "methodnotsupported" => Status::method_not_supported(&pizzas(), "delete"),
        "servertimeout" => Status::server_timeout(&pizzas(), "get", 2),
        "storage-unreachable-get" => Status::server_timeout(&pizzas(), "get", 2),
        "storage-unreachable-list" => Status::server_timeout(&pizzas(), "list", 2),
        "storage-unreachable-create" => Status::server_timeout(&pizzas(), "create", 2),
        "storage-unreachable-update" => Status::server_timeout(&pizzas(), "update", 2),
        "storage-unreachable-delete" => Status::server_timeout(&pizzas(), "delete", 2),
        "internal" => Status::internal_error("boom"),
        "timeout" => Status::timeout("m", 3),
        "timeout-0" => Status::timeout("m", 0),
        "toolarge" => Status::request_entity_too_large("m"),
        "plain-error" => Status::unknown("boom"),
        "notacceptable" => Status::not_acceptable(&["application/json", "application/yaml"]),
        "unsupportedmediatype" => Status::unsupported_media_type(&["application/json", "application/yaml"]),
        _ if id.starts_with("invalid-") => {
            let index: usize = id.strip_prefix("invalid-")?.parse().ok()?;
            Status::invalid(&pizza(), "x", &field_errors().into_iter().nth(index)??.into())
        }
        _ if id.starts_with("generic-") => {
            let mut parts = id.split('-').skip(1);
            let code = StatusCode::from_u16(parts.next()?.parse().ok()?).ok()?;
            match parts.next()? {
                "bare" => Status::generic(code, "", &nothing(), "", "server says", 0, false),
                verb => Status::generic(code, verb, &pizzas(), "x", "server says", 4, true),
            }
        }
        _ => return None,
    })
}

#[test]
fn agrees_with_go() {
    let mut left_out = Vec::new();
    for case in test_vectors::lines(include_str!("../../tests/vectors/status/statuses.jsonl")) {
        let id = case["id"].as_str().unwrap();
        let Some(status) = one(id) else {
            left_out.push(id.to_owned());
            continue;
        };
        let ours: Value = serde_json::from_slice(&status.to_json()).unwrap();
        assert_eq!(ours, case["status"], "{id}");
        assert_eq!(u64::from(status.code().as_u16()), case["status"]["code"].as_u64().unwrap(), "{id}");
        assert_eq!(status.to_string(), case["error"], "{id}");
    }
    // What the server has no use for, or the storage's mapping tests.
    let expected = [
        "applyconflict",
        "invalid-18",
        "invalid-19",
        "invalid-20",
        "toomanyrequestserror",
        "servertimeoutforkind",
        "storage-conflict-update",
        "storage-conflict-delete",
        "storage-internal",
        "storage-invalid",
        "storage-invalidobj",
    ];
    assert_eq!(left_out, expected);
}

#[test]
fn what_the_router_refuses_has_gos_texts_and_empty_details() {
    for (status, code, reason, message) in [
        (Status::page_not_found(), 404, "NotFound", "the server could not find the requested resource"),
        (
            Status::method_not_allowed(),
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        ),
        (
            Status::no_representation(&["a/b", "c/d"]),
            406,
            "NotAcceptable",
            "406: Not Acceptable\n\nAvailable representations: a/b, c/d",
        ),
        (Status::unsupported_patch_type(), 415, "UnsupportedMediaType", "415: Unsupported Media Type"),
    ] {
        let ours: Value = serde_json::from_slice(&status.to_json()).unwrap();
        let expected = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
            "reason": reason, "details": {}, "code": code,
        });
        assert_eq!(ours, expected);
    }
}

#[test]
fn a_resource_version_ahead_of_the_storage_agrees_with_go() {
    let file = include_str!("../../tests/vectors/tokens/resourceversion.jsonl");
    let case = test_vectors::lines(file).find(|case| case["op"] == "tooLarge").unwrap();
    let ours: Value = serde_json::from_slice(&Status::too_large_resource_version(100, 50, 1).to_json()).unwrap();
    assert_eq!(ours, case["status"]);
}

#[test]
fn a_success_tells_what_it_was_about() {
    let status = Status::success(&pizzas(), "x", Some("u"));
    assert!(status.is_success());
    assert_eq!(status.code(), 200);
    let details = status.as_v1().details.clone().unwrap();
    let found = [&details.group, &details.kind, &details.name, &details.uid].map(|t| t.clone().unwrap());
    assert_eq!(found, [GROUP, "pizzas", "x", "u"]);
}

#[test]
fn the_fields_come_in_any_order_but_are_all_there() {
    let json: BTreeMap<String, Value> = serde_json::from_slice(&Status::bad_request("m").to_json()).unwrap();
    let keys: Vec<&str> = json.keys().map(String::as_str).collect();
    assert_eq!(keys, ["apiVersion", "code", "kind", "message", "metadata", "reason", "status"]);
}
