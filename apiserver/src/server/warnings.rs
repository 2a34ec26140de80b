//! `Warning` headers (k8s.io/apiserver `pkg/endpoints/filters/warning.go`).

use http::{HeaderMap, HeaderName, HeaderValue, header::WARNING};

/// Past this many characters in all, warnings are cut …
const TRUNCATE_AT_TOTAL: usize = 4 * 1024;
/// … to this many each.
const TRUNCATE_ITEM: usize = 256;

/// Adds a header for each warning.
pub(super) fn add(headers: &mut HeaderMap, warnings: &[String]) {
    let sendable = |text: &&String| !text.is_empty() && !text.chars().any(char::is_control);
    let warnings: Vec<&String> = warnings.iter().filter(sendable).collect();
    let total: usize = warnings.iter().map(|text| text.chars().count()).sum();
    let mut written = 0;
    for text in warnings {
        let text = match text.char_indices().nth(TRUNCATE_ITEM) {
            Some((end, _)) if total > TRUNCATE_AT_TOTAL => text.get(..end).unwrap_or(text),
            _ => text,
        };
        if written >= TRUNCATE_AT_TOTAL {
            return;
        }
        written += text.chars().count();
        if let Ok(value) = HeaderValue::from_bytes(header(text).as_bytes()) {
            headers.append(HeaderName::from(WARNING), value);
        }
    }
}

/// `299 - "text"` (k8s.io/apimachinery `pkg/util/net/http.go`, `NewWarningHeader`).
fn header(text: &str) -> String {
    let mut header = String::with_capacity(text.len() + 10);
    header.push_str("299 - \"");
    for c in text.chars() {
        if matches!(c, '\\' | '"') {
            header.push('\\');
        }
        header.push(c);
    }
    header.push('"');
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(warnings: &[String]) -> Vec<String> {
        let mut headers = HeaderMap::new();
        add(&mut headers, warnings);
        headers.get_all(WARNING).iter().map(|v| String::from_utf8(v.as_bytes().to_vec()).unwrap()).collect()
    }

    #[test]
    fn texts_are_quoted_and_control_characters_refused() {
        assert_eq!(headers(&[r#"unknown field "spec.\x""#.into(), "a\nb".into(), String::new(), "ü".into()]), [
            r#"299 - "unknown field \"spec.\\x\"""#,
            r#"299 - "ü""#
        ]);
    }

    #[test]
    fn many_warnings_are_cut_short() {
        let long = |i: usize| format!("{i:03}{}", "x".repeat(997));
        assert_eq!(headers(&[long(1), long(2)]).iter().map(String::len).collect::<Vec<_>>(), [1008, 1008]);
        let many: Vec<String> = (0..40).map(long).collect();
        let sent = headers(&many);
        assert_eq!(sent.len(), 16);
        assert!(sent.iter().all(|h| h.len() == 256 + 8), "{sent:?}");
    }
}
