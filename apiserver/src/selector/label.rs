//! Label selectors: `app=web,tier in (a,b),!old`.

use std::{collections::BTreeMap, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1;
use serde_json::Value;

use super::SelectorError;
use crate::{
    quote::quote,
    validation::{ErrorList, FieldError, Path, names},
};

/// Requirements of which all must hold. Without any it selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LabelSelector(Vec<LabelRequirement>);

/// One requirement.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LabelRequirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

/// How a label is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The names say it.
pub enum Operator {
    In,
    NotIn,
    Equals,
    DoubleEquals,
    NotEquals,
    GreaterThan,
    LessThan,
    Exists,
    DoesNotExist,
}

// === impl LabelSelector ===

impl LabelSelector {
    /// Reads a selector.
    ///
    /// # Errors
    /// When it cannot be understood, or names a label or value that there cannot be.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let mut requirements = Parser::new(text).parse()?;
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self(requirements))
    }

    /// The selector of an object's field, for example `spec.selector`.
    ///
    /// # Errors
    /// When it names an operator, label or value that there cannot be.
    pub fn from_v1(selector: &v1::LabelSelector) -> Result<Self, SelectorError> {
        let labels = selector.match_labels.iter().flatten();
        let mut requirements = labels
            .map(|(key, value)| LabelRequirement::new(key, Operator::Equals, vec![value.clone()], None))
            .collect::<Result<Vec<_>, _>>()?;
        for expression in selector.match_expressions.iter().flatten() {
            let operator = match expression.operator.as_str() {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => return Err(SelectorError(format!("{} is not a valid label selector operator", quote(other)))),
            };
            let given = expression.values.as_ref();
            let values = given.cloned().unwrap_or_default();
            let shown = given.map_or(Value::Null, |v| Value::from(v.clone()));
            requirements.push(LabelRequirement::new(&expression.key, operator, values, Some(shown))?);
        }
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Self(requirements))
    }

    /// Whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The requirements, sorted by key.
    pub fn requirements(&self) -> &[LabelRequirement] {
        &self.0
    }

    /// Whether an object with these labels is selected.
    pub fn matches(&self, labels: Option<&BTreeMap<String, String>>) -> bool {
        self.0.iter().all(|r| r.matches(labels.and_then(|l| l.get(&r.key)).map(String::as_str)))
    }
}

/// The selector in its canonical form.
impl fmt::Display for LabelSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

// === impl LabelRequirement ===

impl LabelRequirement {
    fn new(key: &str, operator: Operator, values: Vec<String>, shown: Option<Value>) -> Result<Self, SelectorError> {
        let mut errors = ErrorList::new();
        let path = Path::new("values");
        if let Some(error) = key_error(key, &Path::new("key")) {
            errors.push(error);
        }
        let shown = shown.unwrap_or_else(|| Value::from(values.clone()));
        match operator {
            Operator::In | Operator::NotIn if values.is_empty() => {
                errors.push(FieldError::invalid(
                    &path,
                    shown,
                    "for 'in', 'notin' operators, values set can't be empty",
                ));
            }
            Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
                let rule = "values set must be empty for exists and does not exist";
                errors.push(FieldError::invalid(&path, shown, rule));
            }
            Operator::GreaterThan | Operator::LessThan => {
                for (index, value) in values.iter().enumerate().filter(|(_, v)| integer(v).is_none()) {
                    let rule = "for 'Gt', 'Lt' operators, the value must be an integer";
                    errors.push(FieldError::invalid(&path.index(index), value.as_str(), rule));
                }
            }
            _ => {}
        }
        for (index, value) in values.iter().enumerate() {
            let rules = names::label_value(value);
            if !rules.is_empty() {
                errors.push(FieldError::invalid(&path.index(index).key(key), value.as_str(), rules.join("; ")));
            }
        }
        if errors.is_empty() {
            Ok(Self { key: key.to_owned(), operator, values })
        } else {
            Err(SelectorError(errors.to_string()))
        }
    }

    /// The label's name.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// How the label is compared.
    pub fn operator(&self) -> Operator {
        self.operator
    }

    /// With what it is compared.
    pub fn values(&self) -> &[String] {
        &self.values
    }

    fn matches(&self, value: Option<&str>) -> bool {
        let is_one = |value: &str| self.values.iter().any(|v| v == value);
        match self.operator {
            Operator::In | Operator::Equals | Operator::DoubleEquals => value.is_some_and(is_one),
            Operator::NotIn | Operator::NotEquals => !value.is_some_and(is_one),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::GreaterThan | Operator::LessThan => {
                let bound = self.values.first().and_then(|v| integer(v));
                match (value.and_then(integer), bound) {
                    (Some(value), Some(bound)) if self.operator == Operator::GreaterThan => value > bound,
                    (Some(value), Some(bound)) => value < bound,
                    _ => false,
                }
            }
        }
    }
}

impl fmt::Display for LabelRequirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        let mut values = self.values.clone();
        values.sort_unstable();
        let values = values.join(",");
        match self.operator {
            Operator::In => write!(f, "{key} in ({values})"),
            Operator::NotIn => write!(f, "{key} notin ({values})"),
            Operator::Equals => write!(f, "{key}={values}"),
            Operator::DoubleEquals => write!(f, "{key}=={values}"),
            Operator::NotEquals => write!(f, "{key}!={values}"),
            Operator::GreaterThan => write!(f, "{key}>{values}"),
            Operator::LessThan => write!(f, "{key}<{values}"),
            Operator::Exists => f.write_str(key),
            Operator::DoesNotExist => write!(f, "!{key}"),
        }
    }
}

impl Operator {
    /// The operator's text, as Go has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Operator::In => "in",
            Operator::NotIn => "notin",
            Operator::Equals => "=",
            Operator::DoubleEquals => "==",
            Operator::NotEquals => "!=",
            Operator::GreaterThan => "gt",
            Operator::LessThan => "lt",
            Operator::Exists => "exists",
            Operator::DoesNotExist => "!",
        }
    }
}

fn key_error(key: &str, path: &Path) -> Option<FieldError> {
    let rules = names::qualified_name(key);
    (!rules.is_empty()).then(|| FieldError::invalid(path, key, rules.join("; ")))
}

/// Go's `strconv.ParseInt` in base ten.
fn integer(text: &str) -> Option<i64> {
    text.parse().ok()
}

// === the parser ===

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token {
    End,
    ClosedParenthesis,
    Comma,
    Not,
    DoubleEquals,
    Equals,
    GreaterThan,
    Identifier,
    In,
    LessThan,
    NotEquals,
    NotIn,
    OpenParenthesis,
}

struct Parser<'t> {
    tokens: Vec<(Token, &'t str)>,
    at: usize,
}

impl<'t> Parser<'t> {
    fn new(text: &'t str) -> Self {
        let mut tokens = Vec::new();
        let mut rest = text;
        loop {
            rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
            let (token, length) = match rest.as_bytes() {
                // Go takes a zero byte for the end.
                [] | [0, ..] => break,
                [b'(', ..] => (Token::OpenParenthesis, 1),
                [b')', ..] => (Token::ClosedParenthesis, 1),
                [b',', ..] => (Token::Comma, 1),
                [b'=', b'=', ..] => (Token::DoubleEquals, 2),
                [b'=', ..] => (Token::Equals, 1),
                [b'!', b'=', ..] => (Token::NotEquals, 2),
                [b'!', ..] => (Token::Not, 1),
                [b'>', ..] => (Token::GreaterThan, 1),
                [b'<', ..] => (Token::LessThan, 1),
                _ => {
                    let ends = [' ', '\t', '\r', '\n', '=', '!', '(', ')', ',', '>', '<', '\0'];
                    let length = rest.find(ends).unwrap_or(rest.len());
                    match rest.get(..length) {
                        Some("in") => (Token::In, length),
                        Some("notin") => (Token::NotIn, length),
                        _ => (Token::Identifier, length),
                    }
                }
            };
            let (literal, after) = rest.split_at_checked(length).unwrap_or((rest, ""));
            tokens.push((token, literal));
            rest = after;
        }
        Self { tokens, at: 0 }
    }

    /// The next token. Where a value may stand, `in` and `notin` are values.
    fn look(&self, values: bool) -> (Token, &'t str) {
        match self.tokens.get(self.at).copied().unwrap_or((Token::End, "")) {
            (Token::In | Token::NotIn, literal) if values => (Token::Identifier, literal),
            token => token,
        }
    }

    fn take(&mut self, values: bool) -> (Token, &'t str) {
        let token = self.look(values);
        self.at += 1;
        token
    }

    fn parse(mut self) -> Result<Vec<LabelRequirement>, SelectorError> {
        let mut requirements = Vec::new();
        loop {
            match self.look(true) {
                (Token::Identifier | Token::Not, _) => {
                    let requirement = self.requirement();
                    requirements
                        .push(requirement.map_err(|e| SelectorError(format!("unable to parse requirement: {e}")))?);
                    match self.take(true) {
                        (Token::End, _) => return Ok(requirements),
                        (Token::Comma, _) => {
                            let (token, literal) = self.look(true);
                            if !matches!(token, Token::Identifier | Token::Not) {
                                return Err(found(literal, ", expected: identifier after ','"));
                            }
                        }
                        (_, literal) => return Err(found(literal, ", expected: ',' or 'end of string'")),
                    }
                }
                (Token::End, _) => return Ok(requirements),
                (_, literal) => return Err(found(literal, ", expected: !, identifier, or 'end of string'")),
            }
        }
    }

    fn requirement(&mut self) -> Result<LabelRequirement, SelectorError> {
        let (mut token, mut key) = self.take(true);
        let negated = token == Token::Not;
        if negated {
            (token, key) = self.take(true);
        }
        if token != Token::Identifier {
            return Err(found(key, ", expected: identifier"));
        }
        let rules = names::qualified_name(key);
        if !rules.is_empty() {
            // The original has no path here, and says so.
            return Err(SelectorError(format!("<nil>: Invalid value: {}: {}", quote(key), rules.join("; "))));
        }
        if negated {
            return LabelRequirement::new(key, Operator::DoesNotExist, Vec::new(), None);
        }
        if matches!(self.look(true).0, Token::End | Token::Comma) {
            return LabelRequirement::new(key, Operator::Exists, Vec::new(), None);
        }
        let operator = match self.take(false) {
            (Token::In, _) => Operator::In,
            (Token::NotIn, _) => Operator::NotIn,
            (Token::Equals, _) => Operator::Equals,
            (Token::DoubleEquals, _) => Operator::DoubleEquals,
            (Token::NotEquals, _) => Operator::NotEquals,
            (Token::GreaterThan, _) => Operator::GreaterThan,
            (Token::LessThan, _) => Operator::LessThan,
            (_, literal) => return Err(found(literal, ", expected: in, notin, =, ==, !=, gt, lt")),
        };
        let mut values = match operator {
            Operator::In | Operator::NotIn => self.values()?,
            _ => vec![self.value()?],
        };
        values.sort_unstable();
        values.dedup();
        LabelRequirement::new(key, operator, values.into_iter().map(str::to_owned).collect(), None)
    }

    /// One value, which may be empty.
    fn value(&mut self) -> Result<&'t str, SelectorError> {
        if matches!(self.look(true).0, Token::End | Token::Comma) {
            return Ok("");
        }
        match self.take(true) {
            (Token::Identifier, literal) => Ok(literal),
            (_, literal) => Err(found(literal, ", expected: identifier")),
        }
    }

    /// Values in parentheses, of which each may be empty.
    fn values(&mut self) -> Result<Vec<&'t str>, SelectorError> {
        let (token, literal) = self.take(true);
        if token != Token::OpenParenthesis {
            return Err(found(literal, " expected: '('"));
        }
        let mut values = Vec::new();
        match self.look(true) {
            (Token::Identifier | Token::Comma, _) => {}
            (Token::ClosedParenthesis, _) => {
                self.at += 1;
                return Ok(vec![""]);
            }
            (_, literal) => return Err(found(literal, ", expected: ',', ')' or identifier")),
        }
        loop {
            match self.take(true) {
                (Token::Identifier, literal) => {
                    values.push(literal);
                    match self.look(true) {
                        (Token::Comma, _) => {}
                        (Token::ClosedParenthesis, _) => break,
                        (_, literal) => return Err(found(literal, ", expected: ',' or ')'")),
                    }
                }
                (Token::Comma, _) => {
                    if values.is_empty() {
                        values.push("");
                    }
                    match self.look(true).0 {
                        Token::ClosedParenthesis => {
                            values.push("");
                            break;
                        }
                        Token::Comma => values.push(""),
                        _ => {}
                    }
                }
                (_, literal) => return Err(found(literal, ", expected: ',', or identifier")),
            }
        }
        self.at += 1;
        Ok(values)
    }
}

fn found(literal: &str, expected: &str) -> SelectorError {
    SelectorError(format!("found '{literal}'{expected}"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::apimachinery::pkg::apis::meta::v1;
    use serde_json::{Value, json};

    use super::LabelSelector;
    use crate::test_vectors;

    fn sets() -> Vec<Option<BTreeMap<String, String>>> {
        serde_json::from_str(include_str!("../../tests/vectors/selectors/label-sets.json")).unwrap()
    }

    #[test]
    fn agrees_with_go() {
        for case in test_vectors::lines(include_str!("../../tests/vectors/selectors/labels.jsonl")) {
            let id = case["id"].as_str().unwrap();
            match LabelSelector::parse(case["in"].as_str().unwrap()) {
                Err(error) => assert_eq!(error.to_string(), case["error"], "{id}"),
                Ok(selector) => {
                    assert_eq!(case["error"], Value::Null, "{id}");
                    assert_eq!(selector.to_string(), case["string"], "{id}");
                    assert_eq!(selector.is_empty(), case["empty"].as_bool().unwrap(), "{id}");
                    let requirements: Vec<Value> = selector
                        .requirements()
                        .iter()
                        .map(|r| json!({"key": r.key(), "op": r.operator().as_str(), "values": r.values()}))
                        .collect();
                    assert_eq!(Value::from(requirements), case["requirements"], "{id}");
                    let matches: Vec<bool> = sets().iter().map(|set| selector.matches(set.as_ref())).collect();
                    assert_eq!(Value::from(matches), case["matches"], "{id}");
                }
            }
        }
    }

    #[test]
    fn agrees_with_go_on_selectors_in_objects() {
        for case in test_vectors::lines(include_str!("../../tests/vectors/selectors/labelselector.jsonl")) {
            let id = case["id"].as_str().unwrap();
            // No selector at all selects nothing: that is for the caller to know.
            let Ok(selector) = serde_json::from_value::<v1::LabelSelector>(case["in"].clone()) else {
                assert_eq!(case["in"], Value::Null, "{id}");
                continue;
            };
            match LabelSelector::from_v1(&selector) {
                Err(error) => assert_eq!(error.to_string(), case["error"], "{id}"),
                Ok(selector) => {
                    assert_eq!(case["error"], Value::Null, "{id}");
                    assert_eq!(selector.to_string(), case["string"], "{id}");
                    let matches: Vec<bool> = sets().iter().map(|set| selector.matches(set.as_ref())).collect();
                    assert_eq!(Value::from(matches), case["matches"], "{id}");
                }
            }
        }
    }
}
