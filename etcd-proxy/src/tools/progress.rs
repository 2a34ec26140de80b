//! How far a tool is: a bar on a terminal, lines now and then elsewhere; on standard error either way.

use std::{
    io::{self, IsTerminal as _, Write as _},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

/// Time between two lines.
const PAUSE: Duration = Duration::from_secs(5);

/// The progress of one piece of work.
pub(super) struct Progress {
    what: &'static str,
    done: u64,
    total: u64,
    shown: Shown,
}

enum Shown {
    Bar(ProgressBar),
    Lines { told: Instant },
}

// === impl Progress ===

impl Progress {
    /// Of `total` keys.
    pub(super) fn new(what: &'static str, total: u64) -> Self {
        let shown = if io::stderr().is_terminal() {
            let bar = ProgressBar::new(total).with_message(what);
            // A template that is none would be seen in every run.
            if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:32}] {human_pos}/{human_len} keys, {eta} left")
            {
                bar.set_style(style);
            }
            Shown::Bar(bar)
        } else {
            Shown::Lines { told: Instant::now() }
        };
        Self { what, done: 0, total, shown }
    }

    /// More keys are done.
    pub(super) fn advance(&mut self, keys: u64) {
        self.done += keys;
        match &mut self.shown {
            Shown::Bar(bar) => bar.set_position(self.done),
            Shown::Lines { told } if told.elapsed() >= PAUSE => {
                *told = Instant::now();
                say(format_args!("{}: {} of {} keys", self.what, self.done, self.total));
            }
            Shown::Lines { .. } => {}
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Shown::Bar(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}

/// Tells something beside the progress.
pub(super) fn say(text: std::fmt::Arguments<'_>) {
    // Who does not listen misses it.
    let _closed = writeln!(io::stderr(), "{text}");
}
