//! Text in double quotes as Go's `%q` writes it: error messages of the field are full of it.

/// Quotes text as Go's `strconv.Quote` does.
pub(crate) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        escape(c, &mut out);
    }
    out.push('"');
    out
}

fn escape(c: char, out: &mut String) {
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

#[cfg(test)]
mod tests {
    use super::quote;

    #[test]
    fn quotes_as_go_does() {
        assert_eq!(
            quote("\u{7}\u{b}a\"b\\c\n\u{1}\u{7f}é\u{301}\u{a0}\u{200b}😀"),
            r#""\a\va\"b\\c\n\x01\x7fé́\u00a0\u200b😀""#
        );
    }
}
