//! What a plain scalar stands for, by the rules of go-yaml v2 (`resolve.go`).

use std::borrow::Cow;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Scalar {
    Null,
    Bool(bool),
    /// In decimal digits.
    Integer(String),
    Float(f64),
    Text(String),
}

pub(super) fn resolve(text: Cow<'_, str>) -> Scalar {
    match text.as_ref() {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => Scalar::Bool(true),
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => Scalar::Bool(false),
        "" | "~" | "null" | "Null" | "NULL" => Scalar::Null,
        ".nan" | ".NaN" | ".NAN" => Scalar::Float(f64::NAN),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => Scalar::Float(f64::INFINITY),
        "-.inf" | "-.Inf" | "-.INF" => Scalar::Float(f64::NEG_INFINITY),
        plain if plain.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) => {
            number(plain).unwrap_or_else(|| Scalar::Text(text.into_owned()))
        }
        _ => Scalar::Text(text.into_owned()),
    }
}

fn number(text: &str) -> Option<Scalar> {
    if !text.starts_with('.') {
        let plain = text.replace('_', "");
        if let Some(integer) = integer(&plain) {
            return Some(integer);
        }
        if is_float(&plain) {
            return plain.parse().ok().map(Scalar::Float);
        }
        return None;
    }
    text.parse().ok().filter(|f: &f64| f.is_finite()).map(Scalar::Float)
}

/// An integer of 64 bits, signed or not, decimal or with a prefix for its base. A leading zero means octal.
fn integer(text: &str) -> Option<Scalar> {
    let (negative, digits) = match (text.strip_prefix('-'), text.strip_prefix('+')) {
        (Some(digits), _) => (true, digits),
        (_, Some(digits)) => (false, digits),
        _ => (false, text),
    };
    let (base, digits) = match digits.get(..2) {
        Some("0x" | "0X") => (16, digits.get(2..)?),
        Some("0o" | "0O") => (8, digits.get(2..)?),
        Some("0b" | "0B") => (2, digits.get(2..)?),
        _ if digits.len() > 1 && digits.starts_with('0') => (8, digits.get(1..)?),
        _ => (10, digits),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let magnitude = u64::from_str_radix(digits, base).ok()?;
    let integer = if negative { -i128::from(magnitude) } else { i128::from(magnitude) };
    (integer >= i128::from(i64::MIN)).then(|| Scalar::Integer(integer.to_string()))
}

/// `^[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$`
fn is_float(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent.strip_prefix(['-', '+']).unwrap_or(exponent))),
        None => (unsigned, None),
    };
    let mantissa_fits = match mantissa.split_once('.') {
        Some(("", fraction)) => digits(fraction),
        Some((whole, fraction)) => digits(whole) && (fraction.is_empty() || digits(fraction)),
        None => digits(mantissa),
    };
    mantissa_fits && exponent.is_none_or(digits)
}

#[cfg(test)]
mod tests {
    use super::{Scalar, resolve};

    #[test]
    fn follows_yaml_1_1() {
        let integer = |text: &str| Scalar::Integer(text.to_owned());
        for (text, expected) in [
            ("yes", Scalar::Bool(true)),
            ("Off", Scalar::Bool(false)),
            ("~", Scalar::Null),
            ("010", integer("8")),
            ("0x10", integer("16")),
            ("-0b11", integer("-3")),
            ("1_000", integer("1000")),
            ("18446744073709551615", integer("18446744073709551615")),
            ("1e3", Scalar::Float(1000.0)),
            ("08", Scalar::Float(8.0)),
            (".5", Scalar::Float(0.5)),
            ("1.2.3", Scalar::Text("1.2.3".to_owned())),
            ("-", Scalar::Text("-".to_owned())),
            ("2024-01-01", Scalar::Text("2024-01-01".to_owned())),
            ("yEs", Scalar::Text("yEs".to_owned())),
        ] {
            assert_eq!(resolve(text.into()), expected, "{text}");
        }
    }
}
