//! Tables of plain text.

use std::fmt::Write as _;

/// How a column stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    Left,
    Right,
}

/// The table of `rows` below a head. Columns are as wide as they have to be.
pub(super) fn table<const N: usize>(head: [(&str, Align); N], rows: &[[String; N]]) -> String {
    let mut widths = head.map(|(title, _)| title.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let titles = head.map(|(title, _)| title.to_owned());
    let mut text = String::new();
    for row in std::iter::once(&titles).chain(rows) {
        let mut line = String::new();
        for ((cell, width), (_, align)) in row.iter().zip(widths).zip(head) {
            _ = match align {
                Align::Left => write!(line, "{cell:<width$}   "),
                Align::Right => write!(line, "{cell:>width$}   "),
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Bytes as people read them.
pub(super) fn human(bytes: i64) -> String {
    let mut scaled = bytes as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if scaled < 1024.0 {
            return if unit == "B" { format!("{bytes} B") } else { format!("{scaled:.1} {unit}") };
        }
        scaled /= 1024.0;
    }
    format!("{scaled:.1} TiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_each_other() {
        let rows = [["/a/".to_owned(), "10".to_owned()], ["/long/".to_owned(), "7".to_owned()]];
        let text = table([("PREFIX", Align::Left), ("KEYS", Align::Right)], &rows);
        assert_eq!(text, "PREFIX   KEYS\n/a/        10\n/long/      7\n");
    }

    #[test]
    fn sizes_for_people() {
        for (bytes, text) in
            [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB"), (5 << 40, "5.0 TiB")]
        {
            assert_eq!(human(bytes), text);
        }
    }
}
