//! Values in Go's notation.

use std::time::Duration;

use crate::{config::ListenUrl, upstream::Secret};

/// A boolean as Go's `strconv.ParseBool` reads it.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("neither true nor false".to_owned()),
    }
}

/// A duration as Go's `time.ParseDuration` reads it: `1h30m`, `1.5s`, `300ms`, `0`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    const FORM: &str = "not a duration; write for example 10s, 1m30s or 500ms";
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or(FORM)?;
        let (number, tail) = rest.split_at(digits);
        let unit_length = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_length);
        let seconds: f64 = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return Err(FORM.to_owned()),
        };
        let number: f64 = number.parse().map_err(|_| FORM)?;
        let part = Duration::try_from_secs_f64(number * seconds).map_err(|_| "too long")?;
        total = total.checked_add(part).ok_or("too long")?;
        rest = tail;
    }
    if text.is_empty() { Err(FORM.to_owned()) } else { Ok(total) }
}

/// What is not to be printed.
#[expect(clippy::unnecessary_wraps, reason = "the form of all values")]
pub(super) fn secret(text: &str) -> Result<Secret, String> {
    Ok(Secret::from(text))
}

/// A version of TLS in etcd's spelling; empty for any.
pub(super) fn tls_version(text: &str) -> Result<String, String> {
    match text {
        "" | "TLS1.2" | "TLS1.3" => Ok(text.to_owned()),
        _ => Err("possible values are TLS1.2 and TLS1.3".to_owned()),
    }
}

/// A URL to listen on; empty for none. It stays text, as the words of the command line do.
pub(super) fn listen_url(text: &str) -> Result<String, &'static str> {
    match text {
        "" => Ok(String::new()),
        _ => ListenUrl::parse(text).map(|_| text.to_owned()),
    }
}

/// Permissions of a file in octal, as `chmod` takes them.
pub(super) fn mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err("not permissions in octal; write for example 0660".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_in_gos_notation() {
        for (text, milliseconds) in
            [("0", 0), ("10s", 10_000), ("1m30s", 90_000), ("2h0m0s", 7_200_000), ("1.5s", 1500), ("250ms", 250)]
        {
            assert_eq!(duration(text).map(|duration| duration.as_millis()), Ok(milliseconds), "{text}");
        }
        for text in ["", "10", "s", "10x", "-1s", "1.2.3s", "99999999999999999999h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn modes_in_octal() {
        assert_eq!(mode("0660"), Ok(0o660));
        assert_eq!(mode("777"), Ok(0o777));
        assert!(mode("888").is_err() && mode("7777").is_err() && mode("").is_err());
    }
}
