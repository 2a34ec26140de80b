//! Durations as Go writes them: `1h30m`, `500ms`, `1.5s` (Go's `time.ParseDuration`).

use std::time::Duration;

use crate::quote::quote;

/// A text that is no duration. The message is Go's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// Not a number with a unit.
    #[error("time: invalid duration {}", quote(.0))]
    Invalid(String),
    /// A number without a unit.
    #[error("time: missing unit in duration {}", quote(.0))]
    MissingUnit(String),
    /// A unit that does not exist.
    #[error("time: unknown unit {} in duration {}", quote(unit), quote(text))]
    UnknownUnit {
        /// The unit.
        unit: String,
        /// The whole text.
        text: String,
    },
    /// A time that lies before now has no use here.
    #[error("the duration {} is negative", quote(.0))]
    Negative(String),
}

/// Reads a duration that is not negative.
///
/// # Errors
/// When the text is none.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let invalid = || DurationError::Invalid(text.to_owned());
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: u128 = 0;
    while !rest.is_empty() {
        let (whole, after) = digits(rest);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => digits(after),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        let end = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        let nanoseconds: u128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "" => return Err(DurationError::MissingUnit(text.to_owned())),
            unit => return Err(DurationError::UnknownUnit { unit: unit.to_owned(), text: text.to_owned() }),
        };
        let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| invalid())? };
        total = whole.checked_mul(nanoseconds).and_then(|n| total.checked_add(n)).ok_or_else(invalid)?;
        total += parts_of(fraction, nanoseconds);
        rest = next;
    }
    // Go's durations are 64 bits of nanoseconds.
    let total = i64::try_from(total).map_err(|_| invalid())?;
    if negative && total > 0 {
        return Err(DurationError::Negative(text.to_owned()));
    }
    Ok(Duration::from_nanos(total.unsigned_abs()))
}

/// The fraction of a unit, in floating point as Go computes it.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn parts_of(fraction: &str, unit: u128) -> u128 {
    let (mut value, mut scale) = (0u64, 1.0f64);
    for digit in fraction.bytes().map(|b| u64::from(b.saturating_sub(b'0'))) {
        // Further digits make no difference once there is no room for them.
        let Some(next) = value.checked_mul(10).and_then(|v| v.checked_add(digit)).filter(|v| *v <= 1 << 63) else {
            break;
        };
        value = next;
        scale *= 10.0;
    }
    (value as f64 * (unit as f64 / scale)) as u128
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_go_reads() {
        for (text, nanoseconds) in [
            ("0", 0),
            ("5s", 5_000_000_000),
            ("+5s", 5_000_000_000),
            ("1m0s", 60_000_000_000),
            ("1.5h", 5_400_000_000_000),
            (".5s", 500_000_000),
            ("5.s", 5_000_000_000),
            ("1h2m3s4ms5us6ns", 3_723_004_005_006),
            ("52763797000ns", 52_763_797_000),
            ("0.3333333333333333333h", 1_200_000_000_000),
            ("-0s", 0),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_nanos(nanoseconds)), "{text}");
        }
    }

    #[test]
    fn refuses_what_go_refuses() {
        for (text, message) in [
            ("", r#"time: invalid duration """#),
            ("3", r#"time: missing unit in duration "3""#),
            ("-", r#"time: invalid duration "-""#),
            (".s", r#"time: invalid duration ".s""#),
            ("1x", r#"time: unknown unit "x" in duration "1x""#),
            ("9999999999h", r#"time: invalid duration "9999999999h""#),
            ("-1s", r#"the duration "-1s" is negative"#),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), message, "{text}");
        }
    }
}
