//! Field selectors: `metadata.name=x,metadata.namespace!=y`.

use std::fmt;

use super::SelectorError;

/// Requirements of which all must hold. Without any it selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct FieldSelector(Vec<FieldRequirement>);

/// One requirement.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FieldRequirement {
    /// The field's path, for example `metadata.name`.
    pub field: String,
    /// Whether the field must have the value, or must not.
    pub equal: bool,
    /// The value.
    pub value: String,
}

// === impl FieldSelector ===

impl FieldSelector {
    /// Reads a selector. Which fields there are is the resource's business.
    ///
    /// # Errors
    /// When a term has no operator, or a value an unescaped `,` or `=` or an unknown escape.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut terms: Vec<&str> = split_terms(text);
        terms.sort_unstable();
        let mut requirements = Vec::with_capacity(terms.len());
        for term in terms {
            if term.is_empty() {
                continue;
            }
            let (field, equal, value) = split_term(term)
                .ok_or_else(|| SelectorError(format!("invalid selector: '{text}'; can't understand '{term}'")))?;
            let requirement = FieldRequirement { field: field.to_owned(), equal, value: unescape(value)? };
            // Nothing must equal nothing: that is always so.
            if !(requirement.equal && requirement.field.is_empty() && requirement.value.is_empty()) {
                requirements.push(requirement);
            }
        }
        Ok(Self(requirements))
    }

    /// A selector for one value of one field.
    pub fn one(field: impl Into<String>, value: impl Into<String>) -> Self {
        Self(vec![FieldRequirement { field: field.into(), equal: true, value: value.into() }])
    }

    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The requirements, sorted.
    pub fn requirements(&self) -> &[FieldRequirement] {
        &self.0
    }

    /// The fields that it names; one may come several times.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|r| r.field.as_str())
    }

    /// The only value that a selected object's field can have, if there is one.
    pub fn requires_exact(&self, field: &str) -> Option<&str> {
        self.0.iter().find(|r| r.equal && r.field == field).map(|r| r.value.as_str())
    }

    /// Whether an object is selected; `value_of` gives its fields, `""` for those that it has not.
    pub fn matches<'o>(&self, value_of: impl Fn(&str) -> &'o str) -> bool {
        self.0.iter().all(|r| (value_of(&r.field) == r.value) == r.equal)
    }
}

/// The selector in its canonical form.
impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            let operator = if requirement.equal { "=" } else { "!=" };
            write!(f, "{}{operator}{}", requirement.field, escape(&requirement.value))?;
        }
        Ok(())
    }
}

/// Splits at commas that no backslash precedes.
fn split_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let mut start = 0;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                terms.push(text.get(start..at).unwrap_or_default());
                start = at + 1;
            }
            _ => {}
        }
    }
    terms.push(text.get(start..).unwrap_or_default());
    terms
}

fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    for (at, _) in term.char_indices() {
        let (field, rest) = term.split_at_checked(at)?;
        for (operator, equal) in [("!=", false), ("==", true), ("=", true)] {
            if let Some(value) = rest.strip_prefix(operator) {
                return Some((field, equal, value));
            }
        }
    }
    None
}

/// Makes a value safe to stand in a selector.
pub(super) fn escape(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    for c in value.chars() {
        if matches!(c, '\\' | ',' | '=') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

pub(super) fn unescape(text: &str) -> Result<String, SelectorError> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(c @ ('\\' | ',' | '=')) => out.push(c),
                Some(c) => {
                    return Err(SelectorError(format!("invalid field selector: invalid escape sequence: \\{c}")));
                }
                None => return Err(SelectorError("invalid field selector: invalid escape sequence: \\".to_owned())),
            },
            ',' | '=' => {
                let message = format!("invalid field selector: unescaped character in value: {}", c as u32);
                return Err(SelectorError(message));
            }
            c => out.push(c),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::Value;

    use super::{FieldSelector, escape, unescape};
    use crate::test_vectors;

    #[test]
    fn agrees_with_go() {
        let sets: Vec<Option<BTreeMap<String, String>>> =
            serde_json::from_str(include_str!("../../tests/vectors/selectors/field-sets.json")).unwrap();
        for case in test_vectors::lines(include_str!("../../tests/vectors/selectors/fields.jsonl")) {
            let id = case["id"].as_str().unwrap();
            if let Some(value) = case["value"].as_str() {
                assert_eq!(escape(value), case["escaped"], "{id}");
                match unescape(value) {
                    Ok(text) => assert_eq!(text, case["unescaped"], "{id}"),
                    Err(error) => assert_eq!(error.to_string(), case["unescapeError"], "{id}"),
                }
                continue;
            }
            match FieldSelector::parse(case["in"].as_str().unwrap()) {
                Err(error) => assert_eq!(error.to_string(), case["error"], "{id}"),
                Ok(selector) => {
                    assert_eq!(case["error"], Value::Null, "{id}");
                    assert_eq!(selector.to_string(), case["string"], "{id}");
                    assert_eq!(selector.is_empty(), case["empty"].as_bool().unwrap(), "{id}");
                    assert_eq!(selector.requires_exact("metadata.name"), case["exactName"].as_str(), "{id}");
                    let requirements: Vec<Value> = selector
                        .requirements()
                        .iter()
                        .map(|r| {
                            serde_json::json!({"field": r.field, "op": if r.equal { "=" } else { "!=" }, "value": r.value})
                        })
                        .collect();
                    assert_eq!(Value::from(requirements), case["requirements"], "{id}");
                    let empty = BTreeMap::new();
                    let matches: Vec<bool> = sets
                        .iter()
                        .map(|set| set.as_ref().unwrap_or(&empty))
                        .map(|set| selector.matches(|field| set.get(field).map_or("", String::as_str)))
                        .collect();
                    assert_eq!(Value::from(matches), case["matches"], "{id}");
                }
            }
        }
    }
}
