//! A table as rows of words: one form for the terminal, one for Markdown.

use std::fmt::Write as _;

use super::{Row, Table, goal, unit};
use crate::stats::Series;

/// Words in columns; the first row names them.
pub(super) fn of(table: &Table) -> Vec<Vec<String>> {
    let mut head = vec![String::new()];
    head.extend(table.subjects.iter().map(|subject| (*subject).to_owned()));
    if table.subjects.len() > 1 {
        head.push("ours ÷ its peer's".to_owned());
    }
    head.extend(["goal".to_owned(), "met".to_owned()]);
    let mut grid = vec![head];
    grid.extend(table.rows.iter().flat_map(|row| lines(row, table.subjects.len() > 1)));
    grid
}

/// One line, and one more for each goal after the first.
fn lines(row: &Row, compared: bool) -> Vec<Vec<String>> {
    let mut first = vec![format!("{}, {}", row.what, row.unit.name())];
    first.extend(
        row.cells
            .iter()
            .map(|cell| cell.as_ref().map_or_else(|| "–".to_owned(), |series| figure(series, unit::digits))),
    );
    if compared {
        let ratio = row.ours().zip(row.peer()).map(|(ours, peer)| figure(&ours.ratio(peer), goal::ratio));
        first.push(ratio.unwrap_or_else(|| "–".to_owned()));
    }
    let width = first.len();
    let goals = row.goals.iter().map(|goal| {
        let verdict = match goal.measured(row) {
            Some(value) if goal.is_met(value) => "met",
            Some(_) => "NOT MET",
            None => "not measured",
        };
        [goal.text(row.unit), verdict.to_owned()]
    });
    let mut lines = Vec::new();
    for (index, goal) in goals.enumerate() {
        let mut line = if index == 0 { first.clone() } else { vec![String::new(); width] };
        line.extend(goal);
        lines.push(line);
    }
    if lines.is_empty() {
        first.extend([String::new(), String::new()]);
        lines.push(first);
    }
    lines
}

/// The median with the ends.
fn figure(series: &Series, digits: impl Fn(f64) -> String) -> String {
    let Some(summary) = series.summary() else { return "–".to_owned() };
    let (median, min, max) = (digits(summary.median), digits(summary.min), digits(summary.max));
    if min == max { median } else { format!("{median} ({min}–{max})") }
}

/// For a terminal: the first column to the left, figures to the right.
pub(super) fn text(grid: &[Vec<String>]) -> String {
    let columns = grid.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| grid.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or_default()).collect();
    let mut text = String::new();
    for row in grid {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let pad = " ".repeat(width - cell.chars().count());
            // Writing to a string cannot fail.
            let _ = if column == 0 { write!(line, "{cell}{pad}") } else { write!(line, "  {pad}{cell}") };
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

/// For a document.
pub(super) fn markdown(grid: &[Vec<String>]) -> String {
    let mut text = String::new();
    for (index, row) in grid.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {} |", row.join(" | "));
        if index == 0 {
            let _ = writeln!(text, "|---|{}", "--:|".repeat(row.len().saturating_sub(1)));
        }
    }
    text
}
