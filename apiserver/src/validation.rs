//! What is wrong with an object: errors that name the field, the value and the rule
//! (k8s.io/apimachinery `pkg/util/validation/field`).

pub mod metadata;
pub mod names;
pub mod options;

use std::{collections::HashSet, fmt};

use serde_json::Value;

pub use self::metadata::{object_meta, object_meta_update};
use crate::{number, quote::quote};

/// Where in an object a field is, for example `spec.toppings[0].quantity`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Path(String);

/// What kind of error a field has: the `reason` of a status cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorType {
    /// Something that the value refers to does not exist.
    NotFound,
    /// A value is missing.
    Required,
    /// A value appears twice where it must be unique.
    Duplicate,
    /// A value breaks a rule.
    Invalid,
    /// A value is none of those allowed.
    NotSupported,
    /// A value may not be set here or now.
    Forbidden,
    /// A text is too long.
    TooLong,
    /// A list has too many items.
    TooMany,
    /// A list has too few items.
    TooFew,
    /// Something else failed while validating.
    Internal,
    /// A value has the wrong type.
    TypeInvalid,
    /// A text is too short.
    TooShort,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    /// The kind of error.
    pub error_type: ErrorType,
    /// The field's path, as text.
    pub field: String,
    /// The value that is wrong; `None` when the message does not show it.
    pub bad_value: Option<Value>,
    /// The rule in words, may be empty.
    pub detail: String,
}

/// All that is wrong with an object, in the order found; empty for "nothing".
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ErrorList(Vec<FieldError>);

// === impl Path ===

impl Path {
    /// A path that starts with this field.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// A field of what this path names.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        Self(format!("{}.{name}", self.0))
    }

    /// An item of the list that this path names, counted from zero.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    /// An entry of the map that this path names.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl ErrorType ===

impl ErrorType {
    /// The `reason` of a status cause, for example `FieldValueInvalid`.
    pub fn reason(self) -> &'static str {
        match self {
            ErrorType::NotFound => "FieldValueNotFound",
            ErrorType::Required => "FieldValueRequired",
            ErrorType::Duplicate => "FieldValueDuplicate",
            ErrorType::Invalid => "FieldValueInvalid",
            ErrorType::NotSupported => "FieldValueNotSupported",
            ErrorType::Forbidden => "FieldValueForbidden",
            ErrorType::TooLong => "FieldValueTooLong",
            ErrorType::TooMany => "FieldValueTooMany",
            ErrorType::TooFew => "FieldValueTooFew",
            ErrorType::Internal => "InternalError",
            ErrorType::TypeInvalid => "FieldValueTypeInvalid",
            ErrorType::TooShort => "FieldValueTooShort",
        }
    }
}

/// The words that messages start with.
impl fmt::Display for ErrorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorType::NotFound => "Not found",
            ErrorType::Required => "Required value",
            ErrorType::Duplicate => "Duplicate value",
            ErrorType::Invalid | ErrorType::TypeInvalid => "Invalid value",
            ErrorType::NotSupported => "Unsupported value",
            ErrorType::Forbidden => "Forbidden",
            ErrorType::TooLong => "Too long",
            ErrorType::TooMany => "Too many",
            ErrorType::TooFew => "Too few",
            ErrorType::Internal => "Internal error",
            ErrorType::TooShort => "Too short",
        })
    }
}

// === impl FieldError ===

impl FieldError {
    fn new(error_type: ErrorType, path: &Path, bad_value: Option<Value>, detail: impl Into<String>) -> Self {
        Self { error_type, field: path.0.clone(), bad_value, detail: detail.into() }
    }

    /// The value breaks a rule.
    pub fn invalid(path: &Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::Invalid, path, Some(value.into()), detail)
    }

    /// The value has the wrong type.
    pub fn type_invalid(path: &Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::TypeInvalid, path, Some(value.into()), detail)
    }

    /// The value is missing.
    pub fn required(path: &Path, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::Required, path, None, detail)
    }

    /// The value appears twice where it must be unique.
    pub fn duplicate(path: &Path, value: impl Into<Value>) -> Self {
        Self::new(ErrorType::Duplicate, path, Some(value.into()), "")
    }

    /// What the value refers to does not exist.
    pub fn not_found(path: &Path, value: impl Into<Value>) -> Self {
        Self::new(ErrorType::NotFound, path, Some(value.into()), "")
    }

    /// The value is none of `supported`, which the message lists in this order.
    pub fn not_supported(path: &Path, value: impl Into<Value>, supported: &[&str]) -> Self {
        let detail = if supported.is_empty() {
            String::new()
        } else {
            let quoted: Vec<_> = supported.iter().map(|v| quote(v)).collect();
            format!("supported values: {}", quoted.join(", "))
        };
        Self::new(ErrorType::NotSupported, path, Some(value.into()), detail)
    }

    /// The value may not be set here or now.
    pub fn forbidden(path: &Path, detail: impl Into<String>) -> Self {
        Self::new(ErrorType::Forbidden, path, None, detail)
    }

    /// The text is longer than `max` bytes.
    pub fn too_long(path: &Path, max: usize) -> Self {
        let unit = if max == 1 { "byte" } else { "bytes" };
        Self::new(ErrorType::TooLong, path, None, format!("may not be more than {max} {unit}"))
    }

    /// The list has more than `max` items.
    pub fn too_many(path: &Path, actual: usize, max: usize) -> Self {
        let unit = if max == 1 { "item" } else { "items" };
        Self::new(ErrorType::TooMany, path, Some(actual.into()), format!("must have at most {max} {unit}"))
    }

    /// The list has fewer than `min` items.
    pub fn too_few(path: &Path, actual: usize, min: usize) -> Self {
        let unit = if min == 1 { "item" } else { "items" };
        Self::new(ErrorType::TooFew, path, Some(actual.into()), format!("must have at least {min} {unit}"))
    }

    /// The text is shorter than `min` characters.
    pub fn too_short(path: &Path, min: usize) -> Self {
        let unit = if min == 1 { "character" } else { "characters" };
        Self::new(ErrorType::TooShort, path, None, format!("must be at least {min} {unit}"))
    }

    /// Something else failed while validating.
    pub fn internal(path: &Path, error: impl fmt::Display) -> Self {
        Self::new(ErrorType::Internal, path, None, error.to_string())
    }

    /// The message without the field: the `message` of a status cause.
    pub fn body(&self) -> String {
        let mut text = self.error_type.to_string();
        match &self.bad_value {
            None => {}
            Some(Value::String(value)) => {
                text.push_str(": ");
                text.push_str(&quote(value));
            }
            Some(Value::Number(value)) => {
                text.push_str(": ");
                match (value.is_f64(), value.as_f64()) {
                    (true, Some(float)) => text.push_str(&number::format_verb(float)),
                    _ => text.push_str(&value.to_string()),
                }
            }
            Some(value) => {
                text.push_str(": ");
                text.push_str(&crate::codec::to_text(value));
            }
        }
        if !self.detail.is_empty() {
            text.push_str(": ");
            text.push_str(&self.detail);
        }
        text
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

// === impl ErrorList ===

impl ErrorList {
    /// Nothing wrong.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds an error.
    pub fn push(&mut self, error: FieldError) {
        self.0.push(error);
    }

    /// Whether nothing is wrong.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many errors there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The errors in order.
    pub fn iter(&self) -> std::slice::Iter<'_, FieldError> {
        self.0.iter()
    }
}

impl Extend<FieldError> for ErrorList {
    fn extend<I: IntoIterator<Item = FieldError>>(&mut self, errors: I) {
        self.0.extend(errors);
    }
}

impl FromIterator<FieldError> for ErrorList {
    fn from_iter<I: IntoIterator<Item = FieldError>>(errors: I) -> Self {
        Self(errors.into_iter().collect())
    }
}

impl From<FieldError> for ErrorList {
    fn from(error: FieldError) -> Self {
        Self(vec![error])
    }
}

impl IntoIterator for ErrorList {
    type Item = FieldError;
    type IntoIter = std::vec::IntoIter<FieldError>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a ErrorList {
    type Item = &'a FieldError;
    type IntoIter = std::slice::Iter<'a, FieldError>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

/// One error as it is, several as `[first, second]`, each text once.
impl fmt::Display for ErrorList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut seen = HashSet::new();
        let texts: Vec<String> = self.0.iter().map(ToString::to_string).filter(|t| seen.insert(t.clone())).collect();
        match texts.as_slice() {
            [] => Ok(()),
            [one] => f.write_str(one),
            several => write!(f, "[{}]", several.join(", ")),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
