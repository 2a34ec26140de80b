//! The look of JSON as Go's `encoding/json` writes it.

use std::io;

use serde_json::ser::Formatter;

use crate::number;

/// Prints floats and texts as Go does.
#[derive(Clone, Copy, Debug)]
pub(super) struct GoFormatter;

impl Formatter for GoFormatter {
    fn write_f32<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f32) -> io::Result<()> {
        self.write_f64(writer, f64::from(value))
    }

    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(number::format_json(value).as_bytes())
    }

    fn write_string_fragment<W: ?Sized + io::Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        let bytes = fragment.as_bytes();
        let mut written = 0;
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            let (escape, length): (&[u8], usize) = match byte {
                b'<' => (b"\\u003c", 1),
                b'>' => (b"\\u003e", 1),
                b'&' => (b"\\u0026", 1),
                0xe2 if bytes.get(at + 1..at + 3) == Some(&[0x80, 0xa8]) => (b"\\u2028", 3),
                0xe2 if bytes.get(at + 1..at + 3) == Some(&[0x80, 0xa9]) => (b"\\u2029", 3),
                _ => {
                    at += 1;
                    continue;
                }
            };
            writer.write_all(bytes.get(written..at).unwrap_or_default())?;
            writer.write_all(escape)?;
            at += length;
            written = at;
        }
        writer.write_all(bytes.get(written..).unwrap_or_default())
    }
}

/// Lays compact JSON out over lines with two spaces for each level, as Go's `json.Indent` does.
pub(super) fn indent(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len() * 2);
    let mut depth = 0_usize;
    let mut bytes = json.iter().copied().peekable();
    let newline = |out: &mut Vec<u8>, depth: usize| {
        out.push(b'\n');
        out.extend(std::iter::repeat_n(b' ', depth * 2));
    };
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => {
                out.push(byte);
                let mut escaped = false;
                for byte in bytes.by_ref() {
                    out.push(byte);
                    match byte {
                        _ if escaped => escaped = false,
                        b'\\' => escaped = true,
                        b'"' => break,
                        _ => {}
                    }
                }
            }
            b'{' | b'[' => {
                out.push(byte);
                match bytes.peek() {
                    Some(close @ (b'}' | b']')) => {
                        out.push(*close);
                        bytes.next();
                    }
                    _ => {
                        depth += 1;
                        newline(&mut out, depth);
                    }
                }
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                newline(&mut out, depth);
                out.push(byte);
            }
            b',' => {
                out.push(byte);
                newline(&mut out, depth);
            }
            b':' => out.extend_from_slice(b": "),
            byte => out.push(byte),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::indent;

    #[test]
    fn lays_out_as_go_does() {
        let pretty = indent(br#"{"a":{},"b":[],"c":[1,{"d":"x,{\"}"}]}"#);
        let expected =
            "{\n  \"a\": {},\n  \"b\": [],\n  \"c\": [\n    1,\n    {\n      \"d\": \"x,{\\\"}\"\n    }\n  ]\n}";
        assert_eq!(String::from_utf8(pretty).unwrap(), expected);
    }
}
