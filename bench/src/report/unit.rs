//! Units, and how many digits a figure deserves.

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Requests or events a second.
    PerSecond,
    /// Requests a minute.
    PerMinute,
    /// Microseconds.
    Micros,
    /// Milliseconds.
    Millis,
    /// Milliseconds a minute.
    MillisPerMinute,
    /// Requests.
    Requests,
    /// Seconds.
    Seconds,
    /// Megabytes of a million bytes.
    Megabytes,
    /// Megabytes of a million bytes a second.
    MegabytesPerSecond,
    /// Bytes.
    Bytes,
    /// A ratio.
    Times,
}

impl Unit {
    /// Its name, as in a column.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::PerSecond => "/s",
            Self::PerMinute => "/min",
            Self::Micros => "µs",
            Self::Millis => "ms",
            Self::MillisPerMinute => "ms/min",
            Self::Requests => "requests",
            Self::Seconds => "s",
            Self::Megabytes => "MB",
            Self::MegabytesPerSecond => "MB/s",
            Self::Bytes => "B",
            Self::Times => "times",
        }
    }

    /// A figure with its unit.
    pub(super) fn with(self, value: f64) -> String {
        match self {
            Self::PerSecond | Self::PerMinute => format!("{}{}", digits(value), self.name()),
            _ => format!("{} {}", digits(value), self.name()),
        }
    }
}

/// Three digits or all before the point, with thousands apart.
pub(super) fn digits(value: f64) -> String {
    let size = value.abs();
    if size >= 1000.0 {
        let whole = format!("{value:.0}");
        let (sign, whole) = whole.strip_prefix('-').map_or(("", whole.as_str()), |rest| ("-", rest));
        let mut grouped = String::new();
        for (index, digit) in whole.chars().enumerate() {
            if index > 0 && (whole.len() - index) % 3 == 0 {
                grouped.push(',');
            }
            grouped.push(digit);
        }
        return format!("{sign}{grouped}");
    }
    match size {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_read_well() {
        assert_eq!(digits(1_234_567.0), "1,234,567");
        assert_eq!(digits(-4321.0), "-4,321");
        assert_eq!(digits(376.4), "376");
        assert_eq!(digits(7.333), "7.33");
        assert_eq!(Unit::PerSecond.with(9340.0), "9,340/s");
        assert_eq!(Unit::Megabytes.with(8.0), "8.00 MB");
    }
}
