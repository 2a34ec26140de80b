//! Timestamps as Go's `time.Parse(time.RFC3339, …)` reads them, and durations as kubectl shows ages.

use jiff::{Timestamp, civil, tz::Offset};

use crate::quote::quote;

/// The layout that Go's messages name.
const LAYOUT: &str = "2006-01-02T15:04:05Z07:00";

/// Reads a timestamp.
///
/// # Errors
/// Go's text, which says what could not be read as which part of the layout.
pub(crate) fn parse(text: &str) -> Result<Timestamp, String> {
    let mut rest = text;
    let year = number(text, &mut rest, "2006", 4, 4)?;
    literal(text, &mut rest, "-")?;
    let month = number(text, &mut rest, "01", 2, 2)?;
    in_range(text, "month", (1..=12).contains(&month))?;
    literal(text, &mut rest, "-")?;
    let day = number(text, &mut rest, "02", 2, 2)?;
    literal(text, &mut rest, "T")?;
    let hour = number(text, &mut rest, "15", 1, 2)?;
    in_range(text, "hour", hour < 24)?;
    literal(text, &mut rest, ":")?;
    let minute = number(text, &mut rest, "04", 2, 2)?;
    in_range(text, "minute", minute < 60)?;
    literal(text, &mut rest, ":")?;
    let second = number(text, &mut rest, "05", 2, 2)?;
    in_range(text, "second", second < 60)?;
    let nanosecond = fraction(&mut rest);
    let offset = offset(text, &mut rest)?;
    if !rest.is_empty() {
        return Err(format!("parsing time {}: extra text: {}", quote(text), quote(rest)));
    }
    let date = civil::Date::new(narrow(year), narrow(month), narrow(day));
    let date = date.map_err(|_| format!("parsing time {}: day out of range", quote(text)))?;
    let time = civil::Time::new(narrow(hour), narrow(minute), narrow(second), nanosecond);
    let time = time.map_err(|_| format!("parsing time {}: second out of range", quote(text)))?;
    offset
        .to_timestamp(date.to_datetime(time))
        .map_err(|_| format!("parsing time {}: the last moment that can be told is {}", quote(text), Timestamp::MAX))
}

fn cannot_parse(text: &str, rest: &str, element: &str) -> String {
    format!("parsing time {} as {}: cannot parse {} as {}", quote(text), quote(LAYOUT), quote(rest), quote(element))
}

fn in_range(text: &str, what: &str, holds: bool) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("parsing time {}: {what} out of range", quote(text))) }
}

fn literal(text: &str, rest: &mut &str, expected: &str) -> Result<(), String> {
    *rest = rest.strip_prefix(expected).ok_or_else(|| cannot_parse(text, rest, expected))?;
    Ok(())
}

fn number(text: &str, rest: &mut &str, element: &str, least: usize, most: usize) -> Result<u16, String> {
    let digits = rest.bytes().take(most).take_while(u8::is_ascii_digit).count();
    let (number, after) = rest.split_at_checked(digits).unwrap_or((rest, ""));
    let value = number.parse().ok().filter(|_| digits >= least).ok_or_else(|| cannot_parse(text, rest, element))?;
    *rest = after;
    Ok(value)
}

/// Reads a fraction of a second, if there is one. Digits after the ninth do not count.
fn fraction(rest: &mut &str) -> i32 {
    let Some(after) = rest.strip_prefix(['.', ',']) else { return 0 };
    let digits = after.bytes().take_while(u8::is_ascii_digit).count();
    if digits == 0 {
        return 0;
    }
    let (number, after) = after.split_at_checked(digits).unwrap_or((after, ""));
    *rest = after;
    let number: String = number.chars().chain("00000000".chars()).take(9).collect();
    number.parse().unwrap_or(0)
}

fn offset(text: &str, rest: &mut &str) -> Result<Offset, String> {
    if let Some(after) = rest.strip_prefix('Z') {
        *rest = after;
        return Ok(Offset::UTC);
    }
    let whole = *rest;
    let bad = || cannot_parse(text, whole, "Z07:00");
    let (sign, mut after) = match (whole.strip_prefix('+'), whole.strip_prefix('-')) {
        (Some(after), _) => (1, after),
        (_, Some(after)) => (-1, after),
        _ => return Err(bad()),
    };
    let hours = number(text, &mut after, "Z07:00", 2, 2).map_err(|_| bad())?;
    after = after.strip_prefix(':').ok_or_else(bad)?;
    let minutes = number(text, &mut after, "Z07:00", 2, 2).map_err(|_| bad())?;
    in_range(text, "time zone offset hour", hours <= 24)?;
    in_range(text, "time zone offset minute", minutes <= 60)?;
    *rest = after;
    let seconds = sign * (i32::from(hours) * 60 + i32::from(minutes)) * 60;
    Offset::from_seconds(seconds)
        .map_err(|_| format!("parsing time {}: time zone offset hour out of range", quote(text)))
}

/// The numbers have at most four digits, and those that are narrowed further at most two.
fn narrow<T: TryFrom<u16> + Default>(value: u16) -> T {
    T::try_from(value).unwrap_or_default()
}

/// A duration as kubectl shows ages: `5s`, `7m12s`, `3h`, `12d` (k8s.io/apimachinery `pkg/util/duration`).
pub fn human_duration(seconds: i64) -> String {
    match seconds {
        ..=-2 => return "<invalid>".to_owned(),
        // Clocks differ a little.
        -1 => return "0s".to_owned(),
        0..120 => return format!("{seconds}s"),
        _ => {}
    }
    let two = |whole: i64, unit: &str, part: i64, part_unit: &str| {
        if part == 0 { format!("{whole}{unit}") } else { format!("{whole}{unit}{part}{part_unit}") }
    };
    let minutes = seconds / 60;
    let hours = minutes / 60;
    let days = hours / 24;
    match (minutes, hours) {
        (..10, _) => two(minutes, "m", seconds % 60, "s"),
        (..180, _) => format!("{minutes}m"),
        (_, ..8) => two(hours, "h", minutes % 60, "m"),
        (_, ..48) => format!("{hours}h"),
        (_, ..192) => two(days, "d", hours % 24, "h"),
        (_, ..17_520) => format!("{days}d"),
        (_, ..70_080) => two(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}
