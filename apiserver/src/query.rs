//! Query strings, as Go's `net/url` and the API's parameter decoding read them.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// The first value of a parameter.
pub fn first<'q>(query: &'q str, name: &str) -> Option<Cow<'q, str>> {
    pairs(query).find(|(key, _)| key == name).map(|(_, value)| value)
}

/// All values of a parameter, in order.
pub fn all<'q>(query: &'q str, name: &str) -> Vec<Cow<'q, str>> {
    pairs(query).filter(|(key, _)| key == name).map(|(_, value)| value).collect()
}

/// The parameters in order, decoded. One that cannot be decoded, or that holds a semicolon, is left out as Go does.
pub fn pairs(query: &str) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    query.split('&').filter(|p| !p.is_empty() && !p.contains(';')).filter_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        Some((decode(key)?, decode(value)?))
    })
}

fn decode(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains(['%', '+']) {
        return Some(Cow::Borrowed(text));
    }
    let mut hex = text.as_bytes().split(|b| *b == b'%');
    hex.next();
    if !hex.all(|after| matches!(after, [a, b, ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit())) {
        return None;
    }
    let text = text.replace('+', " ");
    let decoded = percent_decode_str(&text).decode_utf8_lossy().into_owned();
    Some(Cow::Owned(decoded))
}

/// A truth value, as Go's `strconv.ParseBool` reads it.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{all, first, parse_bool};

    #[test]
    fn reads_queries_as_go_does() {
        assert_eq!(first("a=1&b=x%2Cy+z&b=2", "b").unwrap(), "x,y z");
        assert_eq!(all("a=1&b=2&a=3&=4", "a"), ["1", "3"]);
        assert_eq!(first("a", "a").unwrap(), "");
        assert_eq!(first("a=%zz&a=2", "a").unwrap(), "2");
        assert_eq!(first("a=1;b=2", "a"), None);
        assert_eq!(first("a=%é", "a"), None);
        assert_eq!((parse_bool("t"), parse_bool("0"), parse_bool("yes")), (Some(true), Some(false), None));
    }
}
