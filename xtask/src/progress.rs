//! Telling a person how far a long step is: a spinner on a terminal, else a line now and then, all on standard error.

use std::{
    io::IsTerminal,
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;

/// How often a step that goes on says so where there is no terminal: a log stays short, and nobody thinks it hangs.
const PLAIN_INTERVAL: Duration = Duration::from_secs(15);

/// One step under way. Dropping it without [`Progress::done`] leaves its last line standing as the place of failure.
pub struct Progress {
    what: String,
    start: Instant,
    display: Display,
}

enum Display {
    Terminal(ProgressBar),
    Plain { note: Arc<Mutex<String>>, ended: Option<mpsc::Sender<()>>, ticker: Option<JoinHandle<()>> },
}

impl Progress {
    /// Begins a step.
    pub fn start(what: impl Into<String>) -> Self {
        let what = what.into();
        let start = Instant::now();
        let display = if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {prefix} {msg} {elapsed}") {
                bar.set_style(style);
            }
            bar.set_prefix(what.clone());
            bar.enable_steady_tick(Duration::from_millis(120));
            Display::Terminal(bar)
        } else {
            eprintln!("      {what} …");
            Display::plain(what.clone(), start)
        };
        Self { what, start, display }
    }

    /// Replaces the remark shown beside the step, such as a count.
    pub fn note(&self, note: impl Into<String>) {
        match &self.display {
            Display::Terminal(bar) => bar.set_message(note.into()),
            Display::Plain { note: current, .. } => *current.lock() = note.into(),
        }
    }

    /// Ends the step: it went well.
    pub fn done(mut self) {
        self.display.finish();
        eprintln!("  ok  {} ({})", self.what, seconds(self.start.elapsed()));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.display.finish();
    }
}

impl Display {
    fn plain(what: String, start: Instant) -> Self {
        let note = Arc::new(Mutex::new(String::new()));
        let (ended, end) = mpsc::channel();
        let shown = Arc::clone(&note);
        let ticker = std::thread::spawn(move || {
            while end.recv_timeout(PLAIN_INTERVAL) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("      {what} … {} {}", seconds(start.elapsed()), shown.lock());
            }
        });
        Self::Plain { note, ended: Some(ended), ticker: Some(ticker) }
    }

    fn finish(&mut self) {
        match self {
            Self::Terminal(bar) => bar.finish_and_clear(),
            Self::Plain { ended, ticker, .. } => {
                drop(ended.take());
                if let Some(ticker) = ticker.take() {
                    // It only prints; a panic there is no reason to fail here.
                    let _ = ticker.join();
                }
            }
        }
    }
}

/// A duration for people: `0.4 s`, `12 s`, `3 min 5 s`.
pub fn seconds(time: Duration) -> String {
    let whole = time.as_secs();
    match whole {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        10..120 => format!("{whole} s"),
        _ => format!("{} min {} s", whole / 60, whole % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well() {
        assert_eq!(seconds(Duration::from_millis(440)), "0.4 s");
        assert_eq!(seconds(Duration::from_secs(12)), "12 s");
        assert_eq!(seconds(Duration::from_secs(185)), "3 min 5 s");
    }
}
