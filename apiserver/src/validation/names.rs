//! Rules for names, labels and the like. Each says what is wrong, rule by rule; nothing means valid
//! (k8s.io/apimachinery `pkg/util/validation`, `pkg/api/validate/content`, `pkg/api/validation/generic.go`).

const LABEL_FORMAT: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const SUBDOMAIN_FORMAT: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const QUALIFIED_FORMAT: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const QUALIFIED_RULE: &str =
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";

/// A DNS subdomain (RFC 1123): what objects are called unless their resource says otherwise.
pub fn dns_subdomain(value: &str) -> Vec<String> {
    let mut rules = Vec::new();
    if value.len() > 253 {
        rules.push(at_most(253, "characters"));
    }
    if !is_subdomain(value) {
        rules.push(format_rule(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
            SUBDOMAIN_FORMAT,
            &["example.com"],
        ));
    }
    rules
}

/// A DNS label (RFC 1123): what namespaces are called.
pub fn dns_label(value: &str) -> Vec<String> {
    let mut rules = Vec::new();
    if value.len() > 63 {
        rules.push(at_most(63, "characters"));
    }
    if !is_label(value) {
        rules.push(if is_subdomain(value) {
            "must not contain dots".to_owned()
        } else {
            format_rule(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character",
                LABEL_FORMAT,
                &["my-name", "123-abc"],
            )
        });
    }
    rules
}

/// A DNS label (RFC 1035), which starts with a letter.
pub fn dns_1035_label(value: &str) -> Vec<String> {
    let mut rules = Vec::new();
    if value.len() > 63 {
        rules.push(at_most(63, "characters"));
    }
    if !(is_label(value) && value.starts_with(|c: char| c.is_ascii_lowercase())) {
        rules.push(format_rule(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character",
            "[a-z]([-a-z0-9]*[a-z0-9])?",
            &["my-name", "abc-123"],
        ));
    }
    rules
}

/// A name with an optional DNS subdomain before it: keys of labels and annotations, finalizers.
pub fn qualified_name(value: &str) -> Vec<String> {
    let mut rules = Vec::new();
    let name = match value.split_once('/') {
        None => value,
        Some((prefix, name)) if !name.contains('/') => {
            if prefix.is_empty() {
                rules.push("prefix part must be non-empty".to_owned());
            } else {
                if prefix.len() > 253 {
                    rules.push(format!("prefix part {}", at_most(253, "bytes")));
                }
                let of_prefix = dns_subdomain(prefix).into_iter().filter(|r| !r.starts_with("must be no more than"));
                rules.extend(of_prefix.map(|rule| format!("prefix part {rule}")));
            }
            name
        }
        Some(_) => {
            let rule = format_rule(QUALIFIED_RULE, QUALIFIED_FORMAT, &["MyName", "my.name", "123-abc"]);
            rules.push(format!(
                "a valid label key {rule} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            ));
            return rules;
        }
    };
    if name.is_empty() {
        rules.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        rules.push(format!("name part {}", at_most(63, "bytes")));
    }
    if !is_qualified(name) {
        let rule = format_rule(QUALIFIED_RULE, QUALIFIED_FORMAT, &["MyName", "my.name", "123-abc"]);
        rules.push(format!("name part {rule}"));
    }
    rules
}

/// A label's value, which may be empty.
pub fn label_value(value: &str) -> Vec<String> {
    let mut rules = Vec::new();
    if value.len() > 63 {
        rules.push(at_most(63, "bytes"));
    }
    if !(value.is_empty() || is_qualified(value)) {
        rules.push(format_rule(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
            "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?",
            &["MyValue", "my_value", "12345"],
        ));
    }
    rules
}

/// What can stand in a path of the API. Go asks no more of a name by default.
pub fn path_segment(value: &str) -> Vec<String> {
    if value == "." || value == ".." {
        return vec![format!("may not be '{value}'")];
    }
    path_segment_prefix(value)
}

/// What can begin a segment of a path of the API.
pub fn path_segment_prefix(value: &str) -> Vec<String> {
    ["/", "%"].into_iter().filter(|part| value.contains(part)).map(|part| format!("may not contain '{part}'")).collect()
}

/// The reason of a condition.
pub fn condition_reason(value: &str) -> Vec<String> {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ',' | ':');
    let valid = value.starts_with(|c: char| c.is_ascii_alphabetic())
        && value.chars().all(inner)
        && value.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    // One letter is enough, but it must be a letter.
    if valid {
        return Vec::new();
    }
    vec![format_rule(
        "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or '_'",
        "[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?",
        &["my_name", "MY_NAME", "MyName", "ReasonA,ReasonB", "ReasonA:ReasonB"],
    )]
}

/// A generated name's base: a trailing dash is fine, for something comes after it.
pub fn mask_trailing_dash(value: &str) -> String {
    match value.strip_suffix('-').and_then(|rest| rest.char_indices().next_back().map(|(at, _)| (rest, at))) {
        Some((rest, at)) => format!("{}a", rest.get(..at).unwrap_or_default()),
        None => value.to_owned(),
    }
}

fn at_most(length: usize, unit: &str) -> String {
    format!("must be no more than {length} {unit}")
}

fn format_rule(rule: &str, format: &str, examples: &[&str]) -> String {
    let examples: Vec<_> = examples.iter().map(|e| format!("'{e}', ")).collect();
    format!("{rule} (e.g. {}regex used for validation is '{format}')", examples.join(" or "))
}

fn is_label(value: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    value.chars().all(|c| alphanumeric(c) || c == '-')
        && value.starts_with(alphanumeric)
        && value.ends_with(alphanumeric)
}

fn is_subdomain(value: &str) -> bool {
    value.split('.').all(is_label)
}

fn is_qualified(value: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_alphanumeric();
    value.chars().all(|c| alphanumeric(c) || matches!(c, '-' | '_' | '.'))
        && value.starts_with(alphanumeric)
        && value.ends_with(alphanumeric)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        test_vectors,
        validation::{Path, metadata, options, tests::errors},
    };

    #[test]
    fn agrees_with_go() {
        let mut checked = 0;
        for case in test_vectors::lines(include_str!("../../tests/vectors/names/checks.jsonl")) {
            let value = test_vectors::text(&case["in"]);
            let expected = &case["errors"];
            let id = case["id"].as_str().unwrap();
            let rules = match case["check"].as_str().unwrap() {
                "dns1123Subdomain" | "nameIsDNSSubdomain" => dns_subdomain(&value),
                "nameIsDNSSubdomainPrefix" => dns_subdomain(&mask_trailing_dash(&value)),
                "dns1123Label" | "nameIsDNSLabel" | "namespace" => dns_label(&value),
                "nameIsDNSLabelPrefix" => dns_label(&mask_trailing_dash(&value)),
                "dns1035Label" => dns_1035_label(&value),
                "qualifiedName" => qualified_name(&value),
                "labelValue" => label_value(&value),
                "pathSegmentName" => path_segment(&value),
                "pathSegmentPrefix" => path_segment_prefix(&value),
                "conditionReason" => condition_reason(&value),
                check => {
                    let path = |name| Path::new("metadata").child(name);
                    let one = |key: &str, value: &str| [(key.to_owned(), value.to_owned())].into();
                    let found = match check {
                        "finalizer" => metadata::finalizer(&value, &path("finalizers")),
                        "labelName" => metadata::label_name(&value, &path("labels")),
                        "labels" => metadata::labels(&one(&value, "v"), &path("labels")),
                        "labelsValue" => metadata::labels(&one("k", &value), &path("labels")),
                        "annotations" => metadata::annotations(&one(&value, "v"), &path("annotations")),
                        "annotationsSize" => metadata::annotations(
                            &one("k", &"a".repeat(case["in"]["times"].as_u64().unwrap() as usize)),
                            &path("annotations"),
                        ),
                        "fieldManager" => options::field_manager(&value, &Path::new("fieldManager")),
                        "dryRun" => options::dry_run(&[value], &Path::new("dryRun")),
                        "fieldValidation" => options::field_validation(&value, &Path::new("fieldValidation")),
                        // The library has no such names.
                        "wildcardSubdomain" | "configMapKey" | "portName" | "httpHeader" => continue,
                        other => panic!("{id}: unknown check {other}"),
                    };
                    assert_eq!(&errors(&found), expected, "{id}");
                    checked += 1;
                    continue;
                }
            };
            assert_eq!(&serde_json::Value::from(rules), expected, "{id}");
            checked += 1;
        }
        assert!(checked > 1000, "only {checked} checks were made");
    }
}
