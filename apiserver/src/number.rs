//! Numbers as Go's `encoding/json` prints them: whole floats without a fraction, large and small ones with an exponent.
//!
//! The [codec](crate::codec) prints every float this way by itself. The module is also a serde helper for fields that must
//! look the same through any other serialiser, and that must not become `null` when they are not finite:
//!
//! ```
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct Spec {
//!     #[serde(with = "apiserver::number")]
//!     cost: f64,
//!     #[serde(default, with = "apiserver::number::option", skip_serializing_if = "Option::is_none")]
//!     discount: Option<f64>,
//! }
//! assert_eq!(serde_json::to_string(&Spec { cost: 1.0, discount: None }).unwrap(), r#"{"cost":1}"#);
//! ```

use serde::{Deserialize, Deserializer, Serializer, ser::Error as _};

/// Up to here every whole `f64` is the only one that prints as that integer.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

/// Writes a float as Go's `encoding/json` does (`floatEncoder` in `encoding/json/encode.go`).
///
/// Without exponent between 1e-6 and 1e21, with one outside; the shortest digits that read back as the same value.
/// The value must be finite: JSON knows no other.
pub fn format_json(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-6..1e21).contains(&magnitude) {
        let text = format!("{value:e}");
        // Rust writes 1e21, Go 1e+21; both write 1e-7.
        if magnitude >= 1e21 { text.replace('e', "e+") } else { text }
    } else {
        format!("{value}")
    }
}

/// Writes a float as Go's `%v` does: with an exponent of at least two digits below 1e-4 and from 1e6 on (`%g` of the shortest
/// digits, `formatDigits` in `strconv/ftoa.go`).
pub fn format_verb(value: f64) -> String {
    let magnitude = value.abs();
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    if magnitude != 0.0 && !(1e-4..1e6).contains(&magnitude) {
        let text = format!("{value:e}");
        let Some((digits, exponent)) = text.split_once('e') else { return text };
        let (sign, exponent) = match exponent.strip_prefix('-') {
            Some(rest) => ('-', rest),
            None => ('+', exponent),
        };
        format!("{digits}e{sign}{exponent:0>2}")
    } else {
        format!("{value}")
    }
}

/// Serialises a float, as an integer where it is one.
///
/// # Errors
/// When the value is not finite, with Go's text.
pub fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if !value.is_finite() {
        return Err(S::Error::custom(format_args!("json: unsupported value: {}", format_verb(*value))));
    }
    if value.fract() == 0.0 && value.abs() <= MAX_EXACT && !(*value == 0.0 && value.is_sign_negative()) {
        #[allow(clippy::cast_possible_truncation)]
        return serializer.serialize_i64(*value as i64);
    }
    serializer.serialize_f64(*value)
}

/// Reads a float from any number.
///
/// # Errors
/// When it is no number.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    f64::deserialize(deserializer)
}

/// The same for optional fields.
pub mod option {
    use serde::{Deserialize, Deserializer, Serializer};

    /// Serialises a float, as an integer where it is one.
    ///
    /// # Errors
    /// When the value is not finite, with Go's text.
    pub fn serialize<S: Serializer>(value: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => super::serialize(value, serializer),
            None => serializer.serialize_none(),
        }
    }

    /// Reads a float from any number, or nothing.
    ///
    /// # Errors
    /// When it is neither.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
        Option::deserialize(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::format_verb;

    #[test]
    fn verbs_agree_with_go() {
        for (value, expected) in [
            (0.0, "0"),
            (-0.0, "-0"),
            (1.5, "1.5"),
            (999_999.0, "999999"),
            (100_000.5, "100000.5"),
            (1e6, "1e+06"),
            (1_234_567.0, "1.234567e+06"),
            (1_000_000.5, "1.0000005e+06"),
            (123_456_789.0, "1.23456789e+08"),
            (9_007_199_254_740_992.0, "9.007199254740992e+15"),
            (1e21, "1e+21"),
            (1e100, "1e+100"),
            (0.0001, "0.0001"),
            (0.000_012_345, "1.2345e-05"),
            (-2.5e-9, "-2.5e-09"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Inf"),
        ] {
            assert_eq!(format_verb(value), expected);
        }
    }
}
