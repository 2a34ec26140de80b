//! Texts as Go writes them: error messages of the field and the keys of `fieldsV1` are full of them.

/// Quotes text as Go's `strconv.Quote` does.
pub(crate) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if printable(c) => out.push(c),
            c if (c as u32) < 0x80 => out.push_str(&format!("\\x{:02x}", c as u32)),
            c if (c as u32) < 0x1_0000 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push_str(&format!("\\U{:08x}", c as u32)),
        }
    }
    out.push('"');
    out
}

/// Whether Go's `unicode.IsPrint` holds: letters, marks, numbers, punctuation, symbols, and the ASCII space.
pub(crate) fn printable(c: char) -> bool {
    if c.is_ascii() {
        return (' '..='~').contains(&c);
    }
    // The standard library knows what is printable, but escapes a mark that starts a text: let it not start one.
    let mut text = String::from("a");
    text.push(c);
    !c.is_whitespace() && text.escape_debug().count() == 2
}

/// Writes a float as Go's `%v` does: with an exponent below 1e-4 and from 1e6 on.
pub(crate) fn float(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-4..1e6).contains(&magnitude) { exponent(value) } else { format!("{value}") }
}

/// Writes a float with an exponent of at least two digits and a sign, as Go's `%e` with the shortest digits.
pub(crate) fn exponent(value: f64) -> String {
    let text = format!("{value:e}");
    let Some((digits, exponent)) = text.split_once('e') else { return text };
    let (sign, exponent) = match exponent.strip_prefix('-') {
        Some(rest) => ('-', rest),
        None => ('+', exponent),
    };
    format!("{digits}e{sign}{exponent:0>2}")
}

#[cfg(test)]
mod tests {
    use super::{float, quote};

    #[test]
    fn quotes_as_go_does() {
        assert_eq!(
            quote("\u{7}\u{b}a\"b\\c\n\u{1}\u{7f}é\u{301}\u{a0}\u{200b}😀"),
            r#""\a\va\"b\\c\n\x01\x7fé́\u00a0\u200b😀""#
        );
    }

    #[test]
    fn writes_floats_as_go_does() {
        for (value, text) in [
            (80.0, "80"),
            (-0.0, "-0"),
            (999_999.0, "999999"),
            (1e6, "1e+06"),
            (1_234_567.0, "1.234567e+06"),
            (1e21, "1e+21"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
        ] {
            assert_eq!(float(value), text);
        }
    }
}
