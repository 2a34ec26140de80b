//! Figures: one per round, told as their median with the smallest and the largest.

use std::time::Duration;

/// The same figure from several rounds, in the order of the rounds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Series(Vec<f64>);

/// A series in short.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    /// The middle one; of an even number the mean of both.
    pub(crate) median: f64,
    /// The smallest.
    pub(crate) min: f64,
    /// The largest.
    pub(crate) max: f64,
}

impl Series {
    /// Adds the figure of the next round.
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The summary; none of a series without figures.
    pub(crate) fn summary(&self) -> Option<Summary> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let upper = *sorted.get(middle)?;
        let lower = if sorted.len().is_multiple_of(2) { *sorted.get(middle - 1)? } else { upper };
        Some(Summary { median: f64::midpoint(lower, upper), min: *sorted.first()?, max: *sorted.last()? })
    }

    /// Round by round, this through the other: what is common to a round, such as a busy machine, falls out.
    pub(crate) fn ratio(&self, other: &Self) -> Self {
        self.with(other, |own, other| own / other)
    }

    /// Round by round, this without the other.
    pub(crate) fn above(&self, other: &Self) -> Self {
        self.with(other, |own, other| own - other)
    }

    fn with(&self, other: &Self, apply: impl Fn(f64, f64) -> f64) -> Self {
        let pairs = self.0.iter().zip(&other.0).map(|(own, other)| apply(*own, *other));
        Self(pairs.filter(|value| value.is_finite()).collect())
    }
}

impl FromIterator<f64> for Series {
    fn from_iter<T: IntoIterator<Item = f64>>(values: T) -> Self {
        Self(values.into_iter().collect())
    }
}

/// The time below which the given share of all times lies; zero for none.
pub(crate) fn quantile(times: &mut [Duration], share: f64) -> Duration {
    times.sort_unstable();
    let last = times.len().saturating_sub(1);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index"
    )]
    let at = (last as f64 * share).round() as usize;
    times.get(at).copied().unwrap_or_default()
}

/// Microseconds.
pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Milliseconds.
pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Megabytes of a million bytes.
#[expect(clippy::cast_precision_loss, reason = "sizes here are far below 2^52")]
pub(crate) fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// A count as a figure.
#[expect(clippy::cast_precision_loss, reason = "counts here are far below 2^52")]
pub(crate) fn count(number: usize) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_ends() {
        let series: Series = [3.0, 1.0, 2.0].into_iter().collect();
        assert_eq!(series.summary(), Some(Summary { median: 2.0, min: 1.0, max: 3.0 }));
        let series: Series = [4.0, 1.0].into_iter().collect();
        assert_eq!(series.summary(), Some(Summary { median: 2.5, min: 1.0, max: 4.0 }));
        assert_eq!(Series::default().summary(), None);
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let ours: Series = [1.0, 10.0].into_iter().collect();
        let peer: Series = [2.0, 20.0].into_iter().collect();
        assert_eq!(ours.ratio(&peer).summary(), Some(Summary { median: 0.5, min: 0.5, max: 0.5 }));
        assert_eq!(peer.above(&ours), [1.0, 10.0].into_iter().collect());
        let nothing: Series = [0.0].into_iter().collect();
        assert_eq!(ours.ratio(&nothing).summary(), None, "nothing is no measure");
    }

    #[test]
    fn quantiles_of_times() {
        let mut times: Vec<Duration> = (1..=100).rev().map(Duration::from_millis).collect();
        assert_eq!(quantile(&mut times, 0.99), Duration::from_millis(99));
        assert_eq!(quantile(&mut [], 0.5), Duration::ZERO);
    }
}
