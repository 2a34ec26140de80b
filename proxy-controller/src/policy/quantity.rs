//! Comparing quantities as Kubernetes does: exactly, with at most nine decimal places, rounded up, and capped at what an
//! `int64` holds (`apimachinery/pkg/api/resource/quantity.go`).

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Decimal places that count.
const NANO: u128 = 1_000_000_000;

/// The greatest value; what is greater counts as this.
const MAX: u128 = i64::MAX as u128;

/// More digits than this are no quantity that anybody meant.
const MAX_LENGTH: usize = 64;

/// A quantity that is not negative, in billionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Amount(u128);

// === impl Amount ===

impl Amount {
    /// What a quantity says; nothing for one that is negative or none at all.
    pub fn parse(quantity: &Quantity) -> Option<Self> {
        let text = quantity.0.as_str();
        if text.len() > MAX_LENGTH {
            return None;
        }
        let text = text.strip_prefix('+').unwrap_or(text);
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, suffix) = text.split_at_checked(end)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return None;
        }
        // Billionths of one unit of the suffix, after the decimal point was moved.
        let (unit, shift) = match suffix {
            "n" => (1, 0),
            "u" => (1_000, 0),
            "m" => (1_000_000, 0),
            "" => (NANO, 0),
            "k" => (NANO * 1_000, 0),
            "M" => (NANO * 1_000_000, 0),
            "G" => (NANO * 1_000_000_000, 0),
            "T" => (NANO * 1_000_000_000_000, 0),
            "P" => (NANO * 1_000_000_000_000_000, 0),
            "E" => (NANO * 1_000_000_000_000_000_000, 0),
            "Ki" => (NANO << 10, 0),
            "Mi" => (NANO << 20, 0),
            "Gi" => (NANO << 30, 0),
            "Ti" => (NANO << 40, 0),
            "Pi" => (NANO << 50, 0),
            "Ei" => (NANO << 60, 0),
            exponent => (NANO, exponent.strip_prefix(['e', 'E'])?.parse::<i16>().ok()?),
        };
        let (whole, fraction) = shifted(whole, fraction, shift);
        Some(Self(total(&whole, &fraction, unit).min(MAX * NANO)))
    }

    /// Whole units, rounded up: the bytes of an amount of memory, say.
    pub fn units(self) -> i64 {
        i64::try_from(self.0.div_ceil(NANO)).unwrap_or(i64::MAX)
    }
}

/// Digits before and after the decimal point, once that has moved to the right. Far enough to reach the cap or the smallest
/// value; any further makes no difference.
fn shifted(whole: &str, fraction: &str, places: i16) -> (Vec<u32>, Vec<u32>) {
    let digits = |text: &str| text.chars().filter_map(|c| c.to_digit(10)).collect::<Vec<_>>();
    let (mut whole, mut fraction) = (digits(whole), digits(fraction));
    let limit = MAX_LENGTH + 32;
    let steps = usize::from(places.unsigned_abs()).min(limit);
    if places >= 0 {
        fraction.resize(fraction.len().max(steps), 0);
        let rest = fraction.split_off(steps);
        whole.append(&mut fraction);
        (whole, rest)
    } else {
        let mut padded = vec![0; steps.saturating_sub(whole.len())];
        padded.append(&mut whole);
        let mut moved = padded.split_off(padded.len().saturating_sub(steps));
        moved.append(&mut fraction);
        (padded, moved)
    }
}

/// The value of a decimal number times a unit, rounded up; what would overflow is more than the cap.
fn total(whole: &[u32], fraction: &[u32], unit: u128) -> u128 {
    let mut units: u128 = 0;
    for digit in whole {
        units = units.saturating_mul(10).saturating_add(u128::from(*digit));
    }
    // From the last digit on: each step divides by ten, and rounding down step by step is rounding down once.
    let (mut below, mut inexact) = (0_u128, false);
    for digit in fraction.iter().rev() {
        let sum = below + u128::from(*digit) * unit;
        inexact |= !sum.is_multiple_of(10);
        below = sum / 10;
    }
    units.saturating_mul(unit).saturating_add(below).saturating_add(u128::from(inexact))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn amount(text: &str) -> Option<u128> {
        Amount::parse(&Quantity(text.to_owned())).map(|amount| amount.0)
    }

    #[test]
    fn reads_every_form() {
        for (text, nanos) in [
            ("0", 0),
            ("1", NANO),
            ("+1", NANO),
            ("1.", NANO),
            (".5", NANO / 2),
            ("100m", NANO / 10),
            ("3u", 3_000),
            ("7n", 7),
            ("0.1n", 1),
            ("1.0000000001", NANO + 1),
            ("1k", 1_000 * NANO),
            ("512Mi", 536_870_912 * NANO),
            ("0.5Gi", 536_870_912 * NANO),
            ("1.5E", 1_500_000_000_000_000_000 * NANO),
            ("1e3", 1_000 * NANO),
            ("1E3", 1_000 * NANO),
            ("12.34e1", 123_400_000_000),
            ("1234e-2", 12_340_000_000),
            ("1e-30", 1),
            ("0e-30", 0),
            ("9E", 9_000_000_000_000_000_000 * NANO),
            ("8Ei", MAX * NANO),
            ("1e300", MAX * NANO),
            ("0e300", 0),
            ("99999999999999999999999999999999999999999999E", MAX * NANO),
        ] {
            assert_eq!(amount(text), Some(nanos), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_none() {
        for text in
            ["", ".", "-1", "1.2.3", "Mi", "1 Mi", "1KI", "1K", "1e", "1e1.5", "1e99999", "٣", "1i", "0x1", "1Mi "]
        {
            assert_eq!(amount(text), None, "{text:?}");
        }
        assert_eq!(amount(&"1".repeat(65)), None);
    }

    #[test]
    fn counts_whole_units() {
        for (text, units) in [("512Mi", 536_870_912), ("1m", 1), ("0", 0), ("1e300", i64::MAX)] {
            assert_eq!(Amount::parse(&Quantity(text.to_owned())).map(Amount::units), Some(units), "{text}");
        }
    }

    proptest! {
        #[test]
        fn orders_as_numbers(a in 0_u64..=i64::MAX as u64, b in 0_u64..=i64::MAX as u64) {
            prop_assert_eq!(amount(&a.to_string()).cmp(&amount(&b.to_string())), a.cmp(&b));
        }

        #[test]
        fn a_suffix_is_its_factor(n in 0_u64..8_000, (suffix, factor) in prop_oneof![
            Just(("Ki", 1_u64 << 10)), Just(("Mi", 1 << 20)), Just(("Pi", 1 << 50)), Just(("k", 1_000)), Just(("P", 1_000_000_000_000_000)),
        ]) {
            prop_assert_eq!(amount(&format!("{n}{suffix}")), amount(&(n * factor).to_string()));
        }

        #[test]
        fn never_panics(text in "[0-9.eEinukKMGTP+-]{0,70}") {
            amount(&text);
        }
    }
}
