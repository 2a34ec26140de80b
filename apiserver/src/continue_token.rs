//! Tokens with which a client goes on reading a list (k8s.io/apiserver `pkg/storage/continue.go`).
//!
//! A token holds where the next page starts and, but for inconsistent continuations, the revision that all pages show.

use base64::{DecodeError, Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde::Serialize;

use crate::{
    codec::{
        self,
        json::{self, Node, NodeKind},
    },
    storage::Revision,
};

/// The only version of tokens.
const VERSION: &str = "meta.k8s.io/v1";

/// Why a token is of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It is no token, or its start is none.
    #[error("continue key is not valid: {0}")]
    Invalid(String),
    /// The revision is missing.
    #[error("continue key is not valid: incorrect encoded start resourceVersion (version meta.k8s.io/v1)")]
    NoRevision,
    /// The start is missing.
    #[error("continue key is not valid: encoded start key empty (version meta.k8s.io/v1)")]
    NoStart,
    /// The token is of another version.
    #[error("continue key is not valid: server does not recognize this encoded version {0}")]
    OtherVersion(String),
    /// The key to start at is not under the prefix: a mistake of the caller.
    #[error("unable to encode next field: the key and key prefix do not match")]
    ForeignKey,
}

#[derive(Serialize)]
struct Token<'a> {
    v: &'a str,
    rv: i64,
    start: &'a str,
}

/// Makes a token from which a list goes on at `key`, under `prefix`. Without a revision it goes on at the latest state.
///
/// The start is written with a slash before it, as the original's storage does.
///
/// # Errors
/// [`TokenError::ForeignKey`] when `key` does not start with `prefix`.
pub fn encode(key: &str, prefix: &str, revision: Option<Revision>) -> Result<String, TokenError> {
    let rest = key.strip_prefix(prefix).filter(|_| !prefix.is_empty()).ok_or(TokenError::ForeignKey)?;
    let rv = revision.map_or(-1, |r| i64::try_from(r.0).unwrap_or(i64::MAX));
    Ok(encode_raw(&format!("/{}", rest.strip_prefix('/').unwrap_or(rest)), rv))
}

fn encode_raw(start: &str, rv: i64) -> String {
    let mut json = Vec::new();
    codec::push_value(&mut json, &Token { v: VERSION, rv, start });
    URL_SAFE_NO_PAD.encode(json)
}

/// Reads a token: the key to start at, and the revision to read, `None` for the latest.
///
/// The key is always under `prefix`: a start that would lead out of it is refused.
///
/// # Errors
/// When the token is none, with Go's text.
pub fn decode(token: &str, prefix: &str) -> Result<(String, Option<Revision>), TokenError> {
    let (start, rv) = decode_raw(token)?;
    let revision = u64::try_from(rv).ok().map(Revision);
    Ok((format!("{prefix}{start}"), revision))
}

/// The start without a slash before it, and the revision.
fn decode_raw(token: &str) -> Result<(String, i64), TokenError> {
    let json = URL_SAFE_NO_PAD.decode(token).map_err(|e| TokenError::Invalid(base64_message(token, &e)))?;
    let node = json::parse(&json).map_err(|e| TokenError::Invalid(e.to_string()))?;
    let entries = match &node.kind {
        NodeKind::Object(entries) => entries.as_slice(),
        NodeKind::Null => &[],
        _ => return Err(mismatch(&node, "token")),
    };
    // Go reads fields whatever the case of their names.
    let find = |name: &str| entries.iter().rfind(|e| e.key.eq_ignore_ascii_case(name)).map(|e| &e.value);
    let version = text(find("v"), "v")?;
    if version != VERSION {
        return Err(TokenError::OtherVersion(version.to_owned()));
    }
    let rv = match find("rv").map(|node| (&node.kind, node)) {
        None | Some((NodeKind::Null, _)) => 0,
        Some((NodeKind::Number(text), node)) => text.parse::<i64>().map_err(|_| mismatch(node, "rv"))?,
        Some((_, node)) => return Err(mismatch(node, "rv")),
    };
    if rv == 0 {
        return Err(TokenError::NoRevision);
    }
    let start = text(find("start"), "start")?;
    if start.is_empty() {
        return Err(TokenError::NoStart);
    }
    let relative = start.strip_prefix('/').unwrap_or(start);
    let clean = relative.split('/').all(|segment| !matches!(segment, "" | "." | ".."));
    // `/` alone is clean, and starts at the beginning.
    if clean || start == "/" { Ok((relative.to_owned(), rv)) } else { Err(TokenError::Invalid(start.to_owned())) }
}

fn text<'n>(node: Option<&'n Node>, field: &str) -> Result<&'n str, TokenError> {
    match node.map(|node| (&node.kind, node)) {
        None | Some((NodeKind::Null, _)) => Ok(""),
        Some((NodeKind::String(text), _)) => Ok(text),
        Some((_, node)) => Err(mismatch(node, field)),
    }
}

fn mismatch(node: &Node, field: &str) -> TokenError {
    TokenError::Invalid(format!("json: cannot unmarshal {} into the token's {field}", node.type_name()))
}

fn base64_message(token: &str, error: &DecodeError) -> String {
    let at = match error {
        DecodeError::InvalidByte(at, _) | DecodeError::InvalidLastSymbol(at, _) => *at,
        DecodeError::InvalidLength(_) | DecodeError::InvalidPadding => token.len() / 4 * 4,
    };
    format!("illegal base64 data at input byte {at}")
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{TokenError, decode, decode_raw, encode, encode_raw};
    use crate::{storage::Revision, test_vectors};

    #[test]
    fn agrees_with_go() {
        for case in test_vectors::lines(include_str!("../tests/vectors/tokens/continue.jsonl")) {
            let id = case["id"].as_str().unwrap();
            let prefix = case["prefix"].as_str().unwrap();
            let mut outcome = &case["error"];
            let token = if case["op"] == "encode" {
                // Go takes the start as it is; here a slash comes before it, so that the inner function is compared.
                let key = case["key"].as_str().unwrap();
                match encode(key, prefix, None) {
                    Err(error) => {
                        assert_eq!(error.to_string(), case["error"]["message"], "{id}");
                        continue;
                    }
                    Ok(_) => assert_eq!(case["error"], Value::Null, "{id}"),
                }
                let start = key.strip_prefix(prefix).unwrap();
                let token = encode_raw(start, case["rv"].as_i64().unwrap());
                assert_eq!(token, case["token"], "{id}");
                outcome = &case["decodeError"];
                token
            } else {
                case["token"].as_str().unwrap().to_owned()
            };
            match decode_raw(&token) {
                Ok((start, rv)) => {
                    assert_eq!(*outcome, Value::Null, "{id}");
                    assert_eq!(format!("{prefix}{start}"), case["fromKey"], "{id}");
                    assert_eq!(rv, case["fromRV"].as_i64().unwrap(), "{id}");
                }
                Err(error) => {
                    let expected = outcome["message"].as_str().unwrap_or_else(|| panic!("{id}: {error}"));
                    // Go names its own types here.
                    let ours = error.to_string();
                    let comparable = |text: &str| text.split(" into ").next().unwrap().replace("number 1.5", "number");
                    assert_eq!(comparable(&ours), comparable(expected), "{id}");
                }
            }
        }
    }

    #[test]
    fn goes_on_where_it_stopped() {
        let prefix = "/g/pizzas/";
        let token = encode("/g/pizzas/default/a\0", prefix, Some(Revision(7))).unwrap();
        assert_eq!(decode(&token, prefix).unwrap(), ("/g/pizzas/default/a\0".to_owned(), Some(Revision(7))));
        let token = encode("/g/pizzas/default/a\0", prefix, None).unwrap();
        assert_eq!(decode(&token, prefix).unwrap(), ("/g/pizzas/default/a\0".to_owned(), None));
        assert_eq!(encode("/g/toppings/a", prefix, None), Err(TokenError::ForeignKey));
    }
}
