//! Bars: one group for each row, one bar for each subject, as long as its share of the group's longest. Rows have
//! units of their own, so lengths compare within a group only; each bar bears its figure.

use anyhow::{Result, anyhow};
use plotters::{
    prelude::{DrawingBackend, IntoDrawingArea, IntoFont as _, PathElement, Rectangle, SVGBackend, Text},
    style::{
        Color as _, FontFamily, FontStyle, RGBColor, TextStyle, WHITE,
        text_anchor::{HPos, Pos, VPos},
    },
};

use super::{Row, Table, Unit, goal};

const WIDTH: i32 = 960;
const LABELS: i32 = 340;
const BARS: i32 = 400;
const BAR: i32 = 16;
const GAP: i32 = 12;
const TOP: i32 = 58;

const INK: RGBColor = RGBColor(36, 41, 47);
const FAINT: RGBColor = RGBColor(110, 119, 129);
/// Told apart also by those who see fewer colours: grey, orange, blue (Okabe and Ito). Ours is the last.
const COLOURS: [RGBColor; 3] = [RGBColor(153, 153, 153), RGBColor(230, 159, 0), RGBColor(0, 114, 178)];

/// The plot as SVG, on a white ground of its own, so that it reads on a dark page as well.
///
/// # Errors
/// When it cannot be drawn, which is a mistake here.
pub(super) fn svg(table: &Table) -> Result<String> {
    let mut text = String::new();
    let bars: i32 = shown(table).map(|row| i32::try_from(row.cells.iter().flatten().count()).unwrap_or(0)).sum();
    let groups = i32::try_from(shown(table).count()).unwrap_or(0);
    let height = TOP + bars * BAR + groups * GAP + 16;
    let size = (u32::try_from(WIDTH)?, u32::try_from(height)?);
    draw(SVGBackend::with_string(&mut text, size), table)
        .map_err(|error| anyhow!("drawing {}: {error}", table.file))?;
    Ok(text)
}

/// Sizes in bytes are there to show that they are equal: the table is enough for that.
fn shown(table: &Table) -> impl Iterator<Item = &Row> {
    table.rows.iter().filter(|row| row.unit != Unit::Bytes)
}

fn font(size: i32, style: FontStyle, colour: RGBColor, at: HPos) -> TextStyle<'static> {
    TextStyle {
        color: colour.to_backend_color(),
        pos: Pos::new(at, VPos::Center),
        // The backend writes sizes divided by this factor into the file.
        ..TextStyle::from((FontFamily::SansSerif, f64::from(size) * 1.24, style).into_font())
    }
}

fn draw<B: DrawingBackend>(backend: B, table: &Table) -> Result<(), String> {
    let area = backend.into_drawing_area();
    let told = |error: plotters::drawing::DrawingAreaErrorKind<B::ErrorType>| error.to_string();
    area.fill(&WHITE).map_err(told)?;
    let normal = |colour| font(12, FontStyle::Normal, colour, HPos::Left);
    area.draw(&Text::new(table.title.clone(), (14, 18), font(15, FontStyle::Bold, INK, HPos::Left))).map_err(told)?;

    let skipped = COLOURS.len().saturating_sub(table.subjects.len());
    let colours = COLOURS.get(skipped..).unwrap_or(&COLOURS);
    let mut x = 14;
    for (subject, colour) in table.subjects.iter().zip(colours) {
        area.draw(&Rectangle::new([(x, 34), (x + 10, 44)], colour.filled())).map_err(told)?;
        area.draw(&Text::new((*subject).to_owned(), (x + 15, 40), normal(INK))).map_err(told)?;
        x += 36 + i32::try_from(subject.chars().count()).unwrap_or(0) * 7;
    }
    let hint = "bars compare within a group; lines: smallest to largest";
    area.draw(&Text::new(hint.to_owned(), (WIDTH - 14, 40), font(11, FontStyle::Normal, FAINT, HPos::Right)))
        .map_err(told)?;

    let mut y = TOP;
    for row in shown(table) {
        let figures: Vec<_> = row
            .cells
            .iter()
            .zip(colours)
            .enumerate()
            .filter_map(|(index, (cell, colour))| Some((index, cell.as_ref()?.summary()?, *colour)))
            .collect();
        let longest = figures.iter().map(|(_, summary, _)| summary.max).fold(0.0, f64::max);
        let length = |value: f64| {
            #[expect(clippy::cast_possible_truncation, reason = "between 0 and the width of the plot")]
            let pixels = if longest > 0.0 { (value.max(0.0) / longest * f64::from(BARS)) as i32 } else { 0 };
            pixels
        };
        let middle = y + i32::try_from(figures.len()).unwrap_or(0) * BAR / 2;
        area.draw(&Text::new(row.what.clone(), (LABELS - 10, middle), font(12, FontStyle::Normal, INK, HPos::Right)))
            .map_err(told)?;
        for (index, summary, colour) in figures {
            let (left, end, line) = (LABELS, LABELS + length(summary.median), y + BAR / 2);
            area.draw(&Rectangle::new([(left, y + 1), (end.max(left + 1), y + BAR - 1)], colour.filled()))
                .map_err(told)?;
            let ends = (left + length(summary.min), left + length(summary.max));
            if ends.0 != ends.1 {
                area.draw(&PathElement::new(vec![(ends.0, line), (ends.1, line)], INK.stroke_width(1)))
                    .map_err(told)?;
            }
            let mut label = row.unit.with(summary.median);
            if index + 1 == row.cells.len()
                && let Some(ratio) = row.peer().and_then(|peer| row.ours()?.ratio(peer).summary())
            {
                label.push_str(&format!("  (× {})", goal::ratio(ratio.median)));
            }
            area.draw(&Text::new(label, (end.max(ends.1) + 8, line), normal(INK))).map_err(told)?;
            y += BAR;
        }
        y += GAP;
    }
    area.present().map_err(told)
}
