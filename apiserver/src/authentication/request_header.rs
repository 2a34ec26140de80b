//! Users that a front proxy tells of in headers
//! (k8s.io/apiserver `pkg/authentication/request/headerrequest/requestheader.go`).

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

use super::{AuthenticationError, Evidence, RequestHeaderTrust};
use crate::request::UserInfo;

/// The names of headers that tell of a user; capital letters make no difference.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHeaderNames {
    /// Headers for the user's name: the first with a value counts.
    pub user: Vec<String>,
    /// Headers for the user's unique id: the first with a value counts. Kubernetes gives no default, because older
    /// aggregators let a client's own `X-Remote-Uid` pass.
    pub uid: Vec<String>,
    /// Headers for groups: all values of all headers count.
    pub group: Vec<String>,
    /// What headers for further attributes begin with.
    pub extra_prefix: Vec<String>,
}

/// The user of whom a front proxy tells, if this is one and it does.
///
/// # Errors
/// When there is a certificate and it is none of a front proxy, or a header is no text. The former may still be somebody.
pub(super) fn authenticate(
    trust: &RequestHeaderTrust,
    evidence: &Evidence<'_>,
) -> Result<Option<UserInfo>, AuthenticationError> {
    if !evidence.peer.has_certificate() {
        return Ok(None);
    }
    evidence.peer.verify(&trust.ca)?;
    let name = evidence.peer.common_name()?;
    if !trust.allowed_names.is_empty() && !trust.allowed_names.contains(&name) {
        return Err(AuthenticationError::new(format!("x509: subject with cn={name} is not in the allowed list")));
    }
    trust.names.user(evidence.headers)
}

// === impl RequestHeaderNames ===

impl RequestHeaderNames {
    /// What Kubernetes' aggregator sends.
    pub fn standard() -> Self {
        Self {
            user: vec!["x-remote-user".into()],
            uid: vec!["x-remote-uid".into()],
            group: vec!["x-remote-group".into()],
            extra_prefix: vec!["x-remote-extra-".into()],
        }
    }

    /// The user of whom these headers tell, if they do.
    ///
    /// # Errors
    /// When a value is not UTF-8: two different users could look the same.
    pub fn user(&self, headers: &HeaderMap) -> Result<Option<UserInfo>, AuthenticationError> {
        let Some(name) = first(headers, &self.user)? else { return Ok(None) };
        let uid = first(headers, &self.uid)?.unwrap_or_default();
        let mut groups = Vec::new();
        for header in &self.group {
            for value in headers.get_all(header.as_str()) {
                if !value.is_empty() {
                    groups.push(text(header, value)?.to_owned());
                }
            }
        }
        let mut extra = BTreeMap::<String, Vec<String>>::new();
        for prefix in &self.extra_prefix {
            for (header, value) in headers {
                if let Some(key) = without_prefix(header, prefix) {
                    extra.entry(unescape(key)).or_default().push(text(header.as_str(), value)?.to_owned());
                }
            }
        }
        Ok(Some(UserInfo { name: name.to_owned(), uid: uid.to_owned(), groups, extra }))
    }

    /// Removes all these headers, so that nobody behind the authentication takes them for something.
    pub fn remove(&self, headers: &mut HeaderMap) {
        for header in self.user.iter().chain(&self.uid).chain(&self.group) {
            headers.remove(header.as_str());
        }
        let extra = |header: &&HeaderName| self.extra_prefix.iter().any(|p| without_prefix(header, p).is_some());
        let found: Vec<HeaderName> = headers.keys().filter(extra).cloned().collect();
        for header in found {
            headers.remove(header);
        }
    }
}

fn first<'a>(headers: &'a HeaderMap, names: &[String]) -> Result<Option<&'a str>, AuthenticationError> {
    for name in names {
        if let Some(value) = headers.get(name.as_str()).filter(|value| !value.is_empty()) {
            return text(name, value).map(Some);
        }
    }
    Ok(None)
}

fn text<'a>(header: &str, value: &'a HeaderValue) -> Result<&'a str, AuthenticationError> {
    std::str::from_utf8(value.as_bytes())
        .map_err(|_| AuthenticationError::new(format!("the header {header} of the front proxy is not valid UTF-8")))
}

/// Header names are in lower case; the prefix may be as the operator wrote it.
fn without_prefix<'a>(header: &'a HeaderName, prefix: &str) -> Option<&'a str> {
    let (start, key) = header.as_str().split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(key)
}

/// Keys come percent-encoded; one that is not correctly encoded counts as it is.
fn unescape(key: &str) -> String {
    let valid = key.match_indices('%').all(|(at, _)| {
        key.as_bytes().get(at + 1..at + 3).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    });
    let decoded = valid.then(|| percent_decode_str(key).decode_utf8().ok()).flatten();
    decoded.map_or_else(|| key.to_owned(), Into::into)
}
