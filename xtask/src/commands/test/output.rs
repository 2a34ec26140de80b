//! What cargo's test harness prints, counted.

use std::collections::BTreeSet;

/// Tests counted by how they ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// How many passed.
    pub(super) passed: u64,
    /// How many failed.
    pub(super) failed: u64,
    /// What failed, with its suite.
    pub(super) failures: Vec<String>,
    /// What was skipped, as `suite test`.
    pub(super) skipped: BTreeSet<String>,
}

impl Counts {
    /// Counts one check that went well.
    pub(super) fn pass(&mut self) {
        self.passed += 1;
    }

    /// Counts one check that did not.
    pub(super) fn fail(&mut self, suite: &str, what: &str) {
        self.failed += 1;
        self.failures.push(format!("{suite}: {what}"));
    }

    /// Adds another suite's.
    pub(super) fn add(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.failures.extend_from_slice(&other.failures);
        self.skipped.extend(other.skipped.iter().cloned());
    }

    /// Counts what a line of the harness tells. The totals are its own; single lines give the names.
    pub(super) fn line(&mut self, suite: &str, line: &str) {
        if let Some(rest) = line.strip_prefix("test result: ") {
            for part in rest.split(['.', ';']) {
                if let Some(("passed", number)) = counted(part) {
                    self.passed += number;
                } else if let Some(("failed", number)) = counted(part) {
                    self.failed += number;
                }
            }
        } else if let Some(rest) = line.strip_prefix("test ") {
            // `test NAME ... ignored, REASON`; the name of a documentation test holds blanks.
            let Some((name, end)) = rest.rsplit_once(" ... ") else { return };
            match end.split(',').next().map(str::trim) {
                Some("ignored") => {
                    self.skipped.insert(format!("{suite} {name}"));
                }
                Some("FAILED") => self.failures.push(format!("{suite}: {name}")),
                _ => {}
            }
        }
    }
}

/// ` 12 passed` → (`passed`, 12).
fn counted(part: &str) -> Option<(&str, u64)> {
    let (number, word) = part.trim().split_once(' ')?;
    Some((word, number.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_as_the_harness_does() {
        let output = "\
running 4 tests
test prefix::tests::maps ... ok
test prefix::tests::long ... ignored, takes an hour
test src/lib.rs - Key (line 3) ... ignored
test watch::resumes ... FAILED
failures:
test result: FAILED. 2 passed; 1 failed; 2 ignored; 0 measured; 7 filtered out; finished in 0.52s
test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s
";
        let mut counts = Counts::default();
        output.lines().for_each(|line| counts.line("unit", line));
        assert_eq!((counts.passed, counts.failed), (7, 1));
        assert_eq!(counts.failures, ["unit: watch::resumes"]);
        assert_eq!(
            counts.skipped,
            BTreeSet::from(["unit prefix::tests::long".to_owned(), "unit src/lib.rs - Key (line 3)".to_owned()])
        );
    }
}
