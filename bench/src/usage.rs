//! What a process uses, by the kernel's own accounts: its time on the processors and its resident memory.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};

/// How often memory is looked at while a load runs. Peaks shorter than that are missed.
const SAMPLING: Duration = Duration::from_millis(20);

/// A running account of one process, from [`Meter::start`] to [`Meter::stop`].
pub(crate) struct Meter {
    pid: u32,
    cpu: Duration,
    peak: Arc<AtomicU64>,
    end: mpsc::Sender<()>,
    sampler: JoinHandle<()>,
}

/// What a process used while it was metered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// Time on the processors, in user and kernel mode, of all threads.
    pub(crate) cpu: Duration,
    /// Most resident memory seen, in bytes.
    pub(crate) peak: u64,
}

impl Meter {
    /// Begins to watch a process.
    ///
    /// # Errors
    /// When it is gone.
    pub(crate) fn start(pid: u32) -> Result<Self> {
        let peak = Arc::new(AtomicU64::new(resident(pid)?));
        let (end, ended) = mpsc::channel();
        let shared = Arc::clone(&peak);
        let sampler = std::thread::spawn(move || {
            while ended.recv_timeout(SAMPLING) == Err(mpsc::RecvTimeoutError::Timeout) {
                // Its end is noticed by whoever loads it.
                shared.fetch_max(resident(pid).unwrap_or_default(), Ordering::Relaxed);
            }
        });
        Ok(Self { pid, cpu: cpu(pid)?, peak, end, sampler })
    }

    /// Ends the account.
    ///
    /// # Errors
    /// When the process ended meanwhile.
    pub(crate) fn stop(self) -> Result<Usage> {
        let (cpu, resident) = (cpu(self.pid)?.saturating_sub(self.cpu), resident(self.pid)?);
        drop(self.end);
        self.sampler.join().map_err(|_| anyhow!("the sampler of memory failed"))?;
        let peak = self.peak.load(Ordering::Relaxed).max(resident);
        Ok(Usage { cpu, peak })
    }
}

/// The time that a process has had on the processors (proc_pid_stat(5), `utime` and `stime`), to one clock tick.
///
/// # Errors
/// When it is gone.
pub(crate) fn cpu(pid: u32) -> Result<Duration> {
    let stat = read(pid, "stat")?;
    let ticks = ticks(&stat).with_context(|| format!("/proc/{pid}/stat has another form than expected: {stat}"))?;
    let per_second = ticks_per_second();
    Ok(Duration::from_secs(ticks / per_second) + Duration::from_secs(ticks % per_second) / to_u32(per_second))
}

/// The resident memory of a process in bytes (`VmRSS`).
///
/// # Errors
/// When it is gone.
pub(crate) fn resident(pid: u32) -> Result<u64> {
    let status = read(pid, "status")?;
    kilobytes(&status, "VmRSS:").map(|kb| kb * 1024).with_context(|| format!("/proc/{pid}/status has no VmRSS"))
}

/// One clock tick, the resolution of [`cpu`].
pub(crate) fn tick() -> Duration {
    Duration::from_secs(1) / to_u32(ticks_per_second())
}

/// What the kernel told this program at its start (getauxval(3), `AT_CLKTCK`); a hundred where it cannot be read, as on
/// every Linux of today.
fn ticks_per_second() -> u64 {
    static TICKS: OnceLock<u64> = OnceLock::new();
    *TICKS.get_or_init(|| {
        let vector = std::fs::read("/proc/self/auxv").unwrap_or_default();
        clock_ticks(&vector).filter(|ticks| *ticks > 0).unwrap_or(100)
    })
}

/// The vector is pairs of words, a type and a value.
fn clock_ticks(vector: &[u8]) -> Option<u64> {
    const AT_CLKTCK: usize = 17;
    const WORD: usize = size_of::<usize>();
    let word = |bytes: &[u8]| Some(usize::from_ne_bytes(bytes.try_into().ok()?));
    let mut pairs = vector.chunks_exact(2 * WORD).map(|pair| pair.split_at(WORD));
    pairs.find(|(kind, _)| word(kind) == Some(AT_CLKTCK)).and_then(|(_, value)| u64::try_from(word(value)?).ok())
}

fn to_u32(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn read(pid: u32, file: &str) -> Result<String> {
    let path = format!("/proc/{pid}/{file}");
    std::fs::read_to_string(&path).with_context(|| format!("reading {path}; has the process ended?"))
}

/// The name in parentheses may hold anything, so fields are counted behind it: `state` is the first.
fn ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

fn kilobytes(status: &str, field: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix(field))?.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn fields_are_counted_behind_a_strange_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 100 0 0 0 250 30 0 0 20 0 4 0 100 1000 50 1";
        assert_eq!(ticks(stat), Some(280));
        assert_eq!(kilobytes("Name:\tx\nVmRSS:\t    5120 kB\n", "VmRSS:"), Some(5120));
    }

    #[test]
    fn the_kernel_tells_its_tick() {
        let vector = std::fs::read("/proc/self/auxv").unwrap();
        assert_eq!(clock_ticks(&vector), Some(ticks_per_second()));
    }

    #[test]
    fn work_is_seen() {
        let own = std::process::id();
        let meter = Meter::start(own).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        let before = cpu(own).unwrap();
        // By the account itself, not by the clock: the machine may be busy.
        while cpu(own).unwrap() < before + tick() * 3 && Instant::now() < deadline {}
        let usage = meter.stop().unwrap();
        assert!(usage.cpu >= tick() * 3, "{usage:?}");
        assert!(usage.peak > 100_000, "{usage:?}");
    }
}
