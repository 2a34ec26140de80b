use http::HeaderMap;

use super::*;

fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    pairs
        .iter()
        .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
        .collect::<Vec<_>>()
        .into_iter()
        .fold(HeaderMap::new(), |mut map, (name, value): (http::HeaderName, http::HeaderValue)| {
            map.append(name, value);
            map
        })
}

#[test]
fn users_are_read_from_headers_as_go_reads_them() {
    let names = RequestHeaderNames {
        user: vec!["X-First".into(), "X-Remote-User".into()],
        uid: vec!["X-Remote-Uid".into()],
        group: vec!["X-Remote-Group".into()],
        extra_prefix: vec!["X-Remote-Extra-".into()],
    };
    let given = headers(&[
        ("x-first", ""),
        ("x-remote-user", "jane"),
        ("x-remote-group", "a"),
        ("x-remote-group", ""),
        ("x-remote-group", "b, c"),
        ("x-remote-uid", "42"),
        ("x-remote-extra-example.com%2fscope", "x"),
        ("x-remote-extra-example.com%2fscope", "y"),
        ("x-remote-extra-bad%zz", "z"),
        ("x-other", "o"),
    ]);
    let user = names.user(&given).unwrap().unwrap();
    assert_eq!((user.name.as_str(), user.uid.as_str()), ("jane", "42"));
    assert_eq!(user.groups, ["a", "b, c"]);
    let extra: Vec<_> = user.extra.iter().map(|(k, v)| (k.as_str(), v.join("+"))).collect();
    assert_eq!(extra, [("bad%zz", "z".to_owned()), ("example.com/scope", "x+y".to_owned())]);
    let mut rest = given;
    names.remove(&mut rest);
    assert_eq!(rest.keys().map(http::HeaderName::as_str).collect::<Vec<_>>(), ["x-other"]);
    assert_eq!(names.user(&headers(&[("x-remote-group", "a")])).unwrap(), None);
}

#[test]
fn names_that_are_no_text_are_refused() {
    let mut given = HeaderMap::new();
    given.insert("x-remote-user", http::HeaderValue::from_bytes(b"adm\xffin").unwrap());
    assert!(RequestHeaderNames::standard().user(&given).is_err());
}

#[test]
fn everybody_but_strangers_is_authenticated() {
    let user = |name: &str, groups: &[&str]| UserInfo {
        name: name.into(),
        groups: groups.iter().map(|g| (*g).to_owned()).collect(),
        ..UserInfo::default()
    };
    assert_eq!(authenticated(user("jane", &["a"])).groups, ["a", AUTHENTICATED]);
    assert_eq!(authenticated(user("jane", &[AUTHENTICATED])).groups, [AUTHENTICATED]);
    // The aggregator tells of strangers too.
    assert_eq!(authenticated(user(ANONYMOUS, &[UNAUTHENTICATED])).groups, [UNAUTHENTICATED]);
}
