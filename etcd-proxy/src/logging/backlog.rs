//! Lines of the log on their way to whoever reads them, and may have stopped: a pipe that nobody empties keeps its writer
//! waiting, which must not be the thread that serves.

use std::{
    io::{self, Write},
    sync::{Arc, OnceLock},
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};
use prometheus_client::metrics::counter::Counter;
use tracing_subscriber::fmt::MakeWriter;

/// Bytes that wait while others are being written. What comes beyond that is lost.
const BOUND: usize = 512 << 10;
/// Memory that is kept when there is little to write.
const KEPT: usize = 16 << 10;
/// How long the end of the process waits for lines that nobody reads.
const LAST: Duration = Duration::from_secs(5);
/// When to try again where the reader's end asks for it (`O_NONBLOCK`, which whoever shares the pipe may have set).
const PAUSE: Duration = Duration::from_millis(10);

/// Takes lines at once and has a thread of its own write them. Cheap to clone.
///
/// Lines beyond 512 KiB that wait are lost, counted, and told of by a line as soon as there is room for it.
#[derive(Clone, Debug)]
pub struct Backlog(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    lost: Counter,
    /// The thread that writes.
    writer: OnceLock<ThreadId>,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
    /// Whether there are lines that are no longer waiting and not written yet.
    writing: bool,
    /// Lines that found no room since it was last told.
    untold: u64,
}

// === impl Backlog ===

impl Backlog {
    /// Lines go to `out`.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn start(out: impl Write + Send + 'static) -> io::Result<Self> {
        Self::start_telling(out, |lines| {
            tracing::warn!(lines, "lines of this log were lost, since the ones before were not read");
        })
    }

    /// `tell` logs how many lines were lost.
    fn start_telling(out: impl Write + Send + 'static, tell: impl Fn(u64) + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            lost: Counter::default(),
            writer: OnceLock::new(),
        });
        let writer = shared.clone();
        thread::Builder::new().name("log".to_owned()).spawn(move || writer.write_out(out, tell))?;
        Ok(Self(shared))
    }

    /// Counts the lines that were lost.
    pub fn lost(&self) -> Counter {
        self.0.lost.clone()
    }

    /// Waits until everything is written, or for as long as the end of a process may take when nobody reads.
    pub fn finish(&self) {
        let deadline = Instant::now() + LAST;
        let mut state = self.0.state.lock();
        while state.writing || !state.waiting.is_empty() {
            if self.0.changed.wait_until(&mut state, deadline).timed_out() {
                return;
            }
        }
    }
}

/// Each write is a line, as tracing-subscriber writes.
impl Write for Backlog {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut state = self.0.state.lock();
        let room = state.waiting.len().saturating_add(line.len()) <= BOUND;
        // What the writer itself has to say is how many were lost: one line each time that it writes.
        if room || self.0.writer.get() == Some(&thread::current().id()) {
            state.waiting.extend_from_slice(line);
        } else {
            state.untold = state.untold.saturating_add(1);
            self.0.lost.inc();
        }
        self.0.changed.notify_all();
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Backlog {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

// === impl Shared ===

impl Shared {
    fn write_out(&self, mut out: impl Write, tell: impl Fn(u64)) {
        self.writer.get_or_init(|| thread::current().id());
        let mut lines = Vec::new();
        loop {
            let untold = self.next(&mut lines);
            if untold > 0 {
                tell(untold);
            }
            if write_patiently(&mut out, &lines).is_err() {
                // Nobody will read of it either.
                let lines = lines.iter().filter(|&&byte| byte == b'\n').count();
                self.lost.inc_by(u64::try_from(lines).unwrap_or(u64::MAX));
            }
        }
    }

    /// Waits for lines and exchanges `lines`, which are written, for them. Answers how many were lost behind them.
    fn next(&self, lines: &mut Vec<u8>) -> u64 {
        lines.clear();
        lines.shrink_to(KEPT);
        let mut state = self.state.lock();
        state.writing = false;
        self.changed.notify_all();
        while state.waiting.is_empty() && state.untold == 0 {
            self.changed.wait(&mut state);
        }
        std::mem::swap(&mut state.waiting, lines);
        state.writing = true;
        std::mem::take(&mut state.untold)
    }
}

fn write_patiently(out: &mut impl Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match out.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::park_timeout(PAUSE),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const LINE: &[u8] = &[b'x'; 1023];

    /// What a reader does with what comes next: takes so many bytes of it at most, or has an error of it.
    type Take = io::Result<usize>;
    type Taken = Arc<Mutex<Vec<u8>>>;

    /// A pipe whose reader does what it is told to.
    struct Slow {
        takes: mpsc::Receiver<Take>,
        taken: Taken,
    }

    fn slow() -> (mpsc::Sender<Take>, Taken, Slow) {
        let (sender, takes) = mpsc::channel();
        let taken = Taken::default();
        (sender, taken.clone(), Slow { takes, taken })
    }

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let length = self.takes.recv().unwrap_or(Ok(usize::MAX))?.min(bytes.len());
            self.taken.lock().extend_from_slice(&bytes[..length]);
            Ok(length)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn log(backlog: &Backlog, line: &[u8]) {
        backlog.clone().write_all(&[line, b"\n"].concat()).unwrap();
    }

    /// Waits until the writer has taken what waited and cannot get rid of it.
    fn stuck(backlog: &Backlog) {
        let mut state = backlog.0.state.lock();
        while !(state.writing && state.waiting.is_empty()) {
            backlog.0.changed.wait_for(&mut state, PAUSE);
        }
    }

    #[test]
    fn what_waits_is_bounded_and_what_is_lost_is_told_before_what_follows() {
        let (takes, taken, out) = slow();
        let own = Arc::new(OnceLock::<Backlog>::new());
        let told = own.clone();
        let tell = move |lines| log(told.get().unwrap(), format!("{lines} lost").as_bytes());
        let backlog = Backlog::start_telling(out, tell).unwrap();
        own.set(backlog.clone()).unwrap();
        log(&backlog, b"first");
        stuck(&backlog);
        for _ in 0..BOUND / 1024 + 7 {
            log(&backlog, LINE);
        }
        assert_eq!((backlog.lost().get(), backlog.0.state.lock().waiting.len()), (7, BOUND));
        // Taken piece by piece, with the hindrances that there are.
        for take in [Ok(2), Err(io::ErrorKind::WouldBlock.into()), Err(io::ErrorKind::Interrupted.into())] {
            takes.send(take).unwrap();
        }
        drop(takes);
        backlog.finish();
        log(&backlog, b"last");
        backlog.finish();
        let taken = String::from_utf8(taken.lock().clone()).unwrap();
        let mut lines = taken.lines();
        assert_eq!(lines.next(), Some("first"));
        assert_eq!(lines.by_ref().take(BOUND / 1024).filter(|line| line.as_bytes() == LINE).count(), BOUND / 1024);
        assert_eq!(lines.collect::<Vec<_>>(), ["7 lost", "last"]);
    }

    #[test]
    fn lines_for_a_reader_that_is_gone_are_counted() {
        let (takes, taken, out) = slow();
        let backlog = Backlog::start(out).unwrap();
        takes.send(Err(io::ErrorKind::BrokenPipe.into())).unwrap();
        log(&backlog, b"one");
        backlog.finish();
        drop(takes);
        log(&backlog, b"another");
        backlog.finish();
        assert_eq!((backlog.lost().get(), &taken.lock()[..]), (1, &b"another\n"[..]));
    }
}
