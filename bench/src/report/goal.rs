//! Goals: a bound on a figure, or on its ratio to another one.

use super::{Row, Unit};

/// What is aimed at.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Goal {
    bound: Bound,
    value: f64,
    of: Of,
}

/// A bound that does not say yet of what.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounded(Bound, f64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bound {
    AtMost,
    AtLeast,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// The figure itself, in the row's unit.
    Absolute,
    /// The ratio to the peer's.
    Peer,
    /// The ratio to that of what both stand in front of.
    Direct,
}

/// Not more than that.
pub(crate) const fn at_most(value: f64) -> Bounded {
    Bounded(Bound::AtMost, value)
}

/// Not less than that.
pub(crate) const fn at_least(value: f64) -> Bounded {
    Bounded(Bound::AtLeast, value)
}

impl Bounded {
    /// In the unit of the row.
    pub(crate) const fn absolute(self) -> Goal {
        Goal { bound: self.0, value: self.1, of: Of::Absolute }
    }

    /// Times the peer's figure.
    pub(crate) const fn of_peer(self) -> Goal {
        Goal { bound: self.0, value: self.1, of: Of::Peer }
    }

    /// Times the direct figure.
    pub(crate) const fn of_direct(self) -> Goal {
        Goal { bound: self.0, value: self.1, of: Of::Direct }
    }
}

impl Goal {
    /// The figure that the goal speaks of: the median over the rounds.
    pub(super) fn measured(self, row: &Row) -> Option<f64> {
        let ours = row.ours()?;
        let series = match self.of {
            Of::Absolute => ours.clone(),
            Of::Peer => ours.ratio(row.peer()?),
            Of::Direct => ours.ratio(row.direct()?),
        };
        Some(series.summary()?.median)
    }

    /// Whether a figure meets it.
    pub(super) fn is_met(self, measured: f64) -> bool {
        match self.bound {
            Bound::AtMost => measured <= self.value,
            Bound::AtLeast => measured >= self.value,
        }
    }

    /// In words.
    pub(super) fn text(self, unit: Unit) -> String {
        let sign = match self.bound {
            Bound::AtMost => '≤',
            Bound::AtLeast => '≥',
        };
        match self.of {
            Of::Absolute => format!("{sign} {}", unit.with(self.value)),
            Of::Peer => format!("{sign} {} × its peer's", ratio(self.value)),
            Of::Direct => format!("{sign} {} × direct", ratio(self.value)),
        }
    }
}

/// A ratio for people.
pub(super) fn ratio(value: f64) -> String {
    match value.abs() {
        10.0.. => format!("{value:.0}"),
        1.0.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}
