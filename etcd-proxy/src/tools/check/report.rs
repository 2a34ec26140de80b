//! What was found, and how it is shown.

use std::io::{self, Write as _};

use serde::Serialize;

use crate::{
    cli::OutputFormat,
    tools::table::{Align, table},
};

/// All that was found.
#[derive(Debug, Default)]
pub(super) struct Report(Vec<Finding>);

/// How something was found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// As it should be.
    Ok,
    /// It could not be looked at, which need not be wrong.
    Skipped,
    /// It works, but somebody should look at it.
    Warning,
    /// A proxy does not work like that.
    Error,
}

#[derive(Clone, Debug, Serialize)]
struct Finding {
    check: &'static str,
    subject: String,
    level: Level,
    message: String,
}

#[derive(Serialize)]
struct Printed<'a> {
    /// The worst of the findings.
    result: Level,
    findings: &'a [Finding],
}

impl Report {
    pub(super) fn add(&mut self, check: &'static str, subject: &str, level: Level, message: impl Into<String>) {
        self.0.push(Finding { check, subject: subject.to_owned(), level, message: message.into() });
    }

    pub(super) fn errors(&self) -> usize {
        self.0.iter().filter(|finding| finding.level == Level::Error).count()
    }

    pub(super) fn print(&self, format: OutputFormat) -> io::Result<()> {
        let mut out = io::stdout().lock();
        match format {
            OutputFormat::Table => out.write_all(self.table().as_bytes()),
            OutputFormat::Json => {
                let result = self.0.iter().map(|finding| finding.level).filter(|level| *level != Level::Skipped).max();
                let printed = Printed { result: result.unwrap_or(Level::Skipped), findings: &self.0 };
                writeln!(out, "{}", serde_json::to_string_pretty(&printed)?)
            }
        }
    }

    fn table(&self) -> String {
        let head = [("", Align::Left), ("CHECK", Align::Left), ("OF", Align::Left), ("FOUND", Align::Left)];
        let rows: Vec<_> = self
            .0
            .iter()
            .map(|finding| {
                let level = match finding.level {
                    Level::Ok => "ok",
                    Level::Skipped => "skipped",
                    Level::Warning => "WARNING",
                    Level::Error => "ERROR",
                };
                [level.to_owned(), finding.check.to_owned(), finding.subject.clone(), finding.message.clone()]
            })
            .collect();
        table(head, &rows)
    }
}
