//! Tables of figures, the last column ours, each beside its goal. From one table come the text on the terminal, the
//! Markdown and the plot.

mod goal;
mod grid;
mod machine;
mod plot;
mod unit;

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

pub(crate) use self::{
    goal::{Goal, at_least, at_most},
    machine::Machine,
    unit::Unit,
};
use crate::stats::Series;

/// What one product was measured against, and how it did.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Name of the document, without ending.
    pub(crate) file: &'static str,
    /// Its heading.
    pub(crate) title: &'static str,
    /// What was run, how, and what a reader must know to judge it. One paragraph each.
    pub(crate) notes: Vec<String>,
    /// The programs' command lines, as far as they matter.
    pub(crate) commands: Vec<String>,
    /// The figures.
    pub(crate) tables: Vec<Table>,
}

/// Figures of the same subjects.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    /// Name of the plot, without ending; unique in a run.
    pub(crate) file: String,
    /// Its heading.
    pub(crate) title: String,
    /// What holds for all its rows.
    pub(crate) notes: Vec<String>,
    /// What is compared: ours last, its peer before it, and before that what both stand in front of, if anything.
    pub(crate) subjects: Vec<&'static str>,
    /// The figures.
    pub(crate) rows: Vec<Row>,
}

/// One figure of each subject.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// What it is.
    pub(crate) what: String,
    /// In what.
    pub(crate) unit: Unit,
    /// The figures, in the order of the subjects; none where there is nothing to measure.
    pub(crate) cells: Vec<Option<Series>>,
    /// What is aimed at.
    pub(crate) goals: Vec<Goal>,
}

impl Row {
    /// A row without goals.
    pub(crate) fn new(what: impl Into<String>, unit: Unit, cells: Vec<Option<Series>>) -> Self {
        Self { what: what.into(), unit, cells, goals: Vec::new() }
    }

    /// With a goal.
    #[must_use]
    pub(crate) fn goal(mut self, goal: Goal) -> Self {
        self.goals.push(goal);
        self
    }

    /// With a goal if it applies.
    #[must_use]
    pub(crate) fn goal_if(self, applies: bool, goal: Goal) -> Self {
        if applies { self.goal(goal) } else { self }
    }

    pub(crate) fn ours(&self) -> Option<&Series> {
        self.cells.last()?.as_ref()
    }

    pub(crate) fn peer(&self) -> Option<&Series> {
        self.cells.iter().rev().nth(1)?.as_ref()
    }

    pub(crate) fn direct(&self) -> Option<&Series> {
        self.cells.iter().rev().nth(2)?.as_ref()
    }
}

impl Part {
    /// All of it as text for a terminal.
    pub(crate) fn text(&self) -> String {
        let mut text = format!("\n{}\n{}\n", self.title, "=".repeat(self.title.chars().count()));
        for table in &self.tables {
            // Writing to a string cannot fail.
            let _ = write!(text, "\n{}\n{}", table.title, grid::text(&grid::of(table)));
            for note in &table.notes {
                let _ = writeln!(text, "  ({note})");
            }
        }
        text
    }

    fn markdown(&self, machine: &Machine) -> String {
        let mut text = format!("# {}\n\n", self.title);
        for note in &self.notes {
            let _ = writeln!(text, "{note}\n");
        }
        for table in &self.tables {
            let _ = writeln!(text, "## {}\n", table.title);
            for note in &table.notes {
                let _ = writeln!(text, "{note}\n");
            }
            let _ = writeln!(text, "{}\n![{}]({}.svg)\n", grid::markdown(&grid::of(table)), table.title, table.file);
        }
        let _ = writeln!(text, "## What was run\n\n{}\n", machine.markdown());
        let _ = writeln!(text, "```\n{}\n```", self.commands.join("\n"));
        text
    }

    /// How many goals there are, and how many of them are met.
    pub(crate) fn goals(&self) -> (usize, usize) {
        let verdicts = self.tables.iter().flat_map(|table| &table.rows).flat_map(Row::verdicts);
        verdicts.fold((0, 0), |(all, met), verdict| (all + 1, met + usize::from(verdict)))
    }
}

impl Row {
    fn verdicts(&self) -> impl Iterator<Item = bool> {
        self.goals.iter().filter_map(|goal| goal.measured(self).map(|value| goal.is_met(value)))
    }
}

/// File names and headings of the documents in a folder, those of earlier runs included.
fn documents(folder: &Path) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".md") && name != "README.md" {
            let text = std::fs::read_to_string(folder.join(&name)).with_context(|| format!("reading {name}"))?;
            let heading = text.lines().next().unwrap_or_default().trim_start_matches("# ").to_owned();
            found.push((name, heading));
        }
    }
    found.sort();
    Ok(found)
}

fn index(documents: &[(String, String)]) -> String {
    let mut text = String::from(
        "# Performance\n\nWritten by `cargo xtask bench`. Every figure stands beside that of a peer, taken in the same run on the \
         same machine, the two in turns; what counts is the ratio. `cargo xtask bench --quick` prints smaller tables in a few \
         minutes and writes nothing.\n\nEach table gives the median over the rounds with the smallest and the largest, the ratio \
         to the peer, and the goal where there is one, met or not.\n\n",
    );
    for (file, heading) in documents {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "- [{heading}]({file})");
    }
    text
}

/// Writes the documents and plots into a folder, with a README that leads to them.
///
/// Documents of parts that were not run stay as they are.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn write(folder: &Path, parts: &[Part], machine: &Machine) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let mut written = Vec::new();
    let mut save = |name: String, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        written.push(path);
        Ok::<_, anyhow::Error>(())
    };
    for part in parts {
        save(format!("{}.md", part.file), &part.markdown(machine))?;
        for table in &part.tables {
            save(format!("{}.svg", table.file), &plot::svg(table)?)?;
        }
    }
    let documents = documents(folder)?;
    save("README.md".into(), &index(&documents))?;
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part() -> Part {
        let series = |values: &[f64]| Some(values.iter().copied().collect::<Series>());
        let row = Row::new("put, CPU per request", Unit::Micros, vec![None, series(&[100.0, 120.0]), series(&[30.0])])
            .goal(at_most(1.0 / 3.0).of_peer())
            .goal(at_most(20.0).absolute());
        let table = Table {
            file: "x".into(),
            title: "Requests".into(),
            notes: vec!["plaintext".into()],
            subjects: vec!["etcd", "grpc-proxy", "etcd-proxy"],
            rows: vec![row],
        };
        Part { file: "x", title: "etcd-proxy", notes: vec![], commands: vec!["etcd".into()], tables: vec![table] }
    }

    #[test]
    fn goals_are_judged_by_the_figure_they_speak_of() {
        let part = part();
        assert_eq!(part.goals(), (2, 1));
        let text = part.text();
        assert!(text.contains("met") && text.contains("NOT MET"), "{text}");
        assert!(text.contains("110"), "{text}");
    }

    #[test]
    fn documents_name_machine_and_commands() {
        let folder = std::env::temp_dir().join(format!("bench-report-{}", std::process::id()));
        let machine = Machine::of(&[("etcd".into(), "v3.7.3".into())], "cargo xtask bench");
        let written = write(&folder, &[part()], &machine).unwrap();
        let text = std::fs::read_to_string(&written[0]).unwrap();
        assert!(text.contains("v3.7.3") && text.contains("![Requests](x.svg)"), "{text}");
        let plot = std::fs::read_to_string(&written[1]).unwrap();
        assert!(plot.starts_with("<svg") && plot.contains("grpc-proxy"), "{plot}");
        let index = std::fs::read_to_string(folder.join("README.md")).unwrap();
        assert!(index.contains("[etcd-proxy](x.md)"), "{index}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
