//! A folder in which a set of processes lives: their data, logs and certificates. Whatever happened before, [`clear`]
//! ends the processes of a site and removes it, and touches no other process.
//!
//! Every process of a site bears the site's path in its environment. On Linux that is how they are found again, so
//! that even one whose start was cut short leaves no orphan. Elsewhere the records in `processes/` serve, which hold
//! the time of start besides the number: a number alone may belong to somebody else by then.

use std::{
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU16, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::{pki, poll};

/// The variable that marks a process as belonging to a site.
pub(crate) const MARK: &str = "XTASK_SITE";

/// The file that tells that a folder is a site and may be removed, and whose it is.
const SITE_FILE: &str = ".xtask-site";

/// How long processes have to end in order before they are killed. Their data goes anyway.
const GRACE: Duration = Duration::from_secs(5);

/// A site that is being built or used.
#[derive(Clone, Debug)]
pub struct Site {
    dir: PathBuf,
}

/// What `processes/<name>.json` tells of a process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The process' number.
    pub(crate) pid: u32,
    /// When it started, in the system's own words.
    pub(crate) started: String,
    /// The command line.
    pub(crate) command: Vec<String>,
}

impl Site {
    /// Makes an empty site, after clearing what an earlier one left in the same folder.
    ///
    /// # Errors
    /// When the folder holds something that is not a site, or cannot be made.
    pub fn create(dir: &Path) -> Result<Self> {
        clear(dir)?;
        let mut builder = std::fs::DirBuilder::new();
        // Keys lie in it.
        builder.recursive(true).mode(0o700).create(dir).with_context(|| format!("creating {}", dir.display()))?;
        let dir = dir.canonicalize()?;
        let maker = Record::of(std::process::id(), std::env::args().collect());
        pki::write(&dir.join(SITE_FILE), &serde_json::to_vec(&maker)?, 0o600)?;
        for folder in ["logs", "processes", "pki", "data"] {
            std::fs::create_dir(dir.join(folder))?;
        }
        Ok(Self { dir })
    }

    /// A site that another process made and is using.
    ///
    /// # Errors
    /// When there is none in the folder.
    pub fn open(dir: &Path) -> Result<Self> {
        let dir = dir.canonicalize().with_context(|| format!("opening {}", dir.display()))?;
        if !dir.join(SITE_FILE).is_file() {
            bail!("{} is not the folder of a running cluster", dir.display());
        }
        Ok(Self { dir })
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A path inside.
    pub fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.dir.join(relative)
    }

    /// The log of a process.
    pub fn log(&self, name: &str) -> PathBuf {
        self.dir.join("logs").join(format!("{name}.log"))
    }

    /// An empty folder for a process' data.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn data(&self, name: &str) -> Result<PathBuf> {
        let path = self.dir.join("data").join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(path)
    }

    /// A folder for the certificates of one authority.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn pki(&self, name: &str) -> Result<PathBuf> {
        let path = self.dir.join("pki").join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(path)
    }

    /// Removes the site with everything in it; its processes are ended first.
    ///
    /// # Errors
    /// When a process outlives its killing, or a file cannot be removed.
    pub fn remove(self) -> Result<()> {
        clear(&self.dir).map(drop)
    }

    pub(crate) fn record(&self, name: &str, pid: u32, command: Vec<String>) -> Result<()> {
        let record = Record::of(pid, command);
        let path = self.dir.join("processes").join(format!("{name}.json"));
        pki::write(&path, serde_json::to_string_pretty(&record)?.as_bytes(), 0o600)
    }
}

impl Record {
    fn of(pid: u32, command: Vec<String>) -> Self {
        Self { pid, started: started(pid).unwrap_or_default(), command }
    }

    fn is_alive(&self) -> bool {
        started(self.pid).is_some_and(|started| started == self.started)
    }
}

/// Whether processes of the site in `dir` are running.
pub fn is_running(dir: &Path) -> bool {
    dir.canonicalize().is_ok_and(|dir| !processes(&dir).is_empty())
}

/// Ends the processes of the site in `dir` and removes the folder. A folder that is not there is cleared already, but for
/// processes that outlived it. Answers how many processes were ended.
///
/// # Errors
/// When the folder is there and is no site; when a process outlives its killing; when a file cannot be removed.
pub fn clear(dir: &Path) -> Result<usize> {
    let path = std::path::absolute(dir)?;
    let path = path.canonicalize().unwrap_or(path);
    if path.exists() && !path.join(SITE_FILE).is_file() && std::fs::read_dir(&path)?.next().is_some() {
        bail!("{} was not made by this program and is not empty; it is left alone", path.display());
    }
    let ended = end_processes(&path)?;
    match std::fs::remove_dir_all(&path) {
        Ok(()) => Ok(ended),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(ended),
        Err(error) => Err(error).with_context(|| format!("removing {}", path.display())),
    }
}

/// The folder of the sites that end-to-end tests make, each below it under the name of the test.
pub fn of_tests() -> PathBuf {
    crate::root().join("target").join("e2e")
}

/// Ends the processes of those sites directly below a folder whose maker is gone, and leaves their logs for a look.
///
/// A test that is killed cannot clean up after itself, and tests that share a cluster have no last one that would.
///
/// # Errors
/// When a process outlives its killing.
pub fn end_abandoned(folder: &Path) -> Result<()> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    for path in entries.map(|entry| entry.path()) {
        let Ok(text) = std::fs::read(path.join(SITE_FILE)) else { continue };
        // A site without a readable maker was being made when its maker ended.
        let maker: Option<Record> = serde_json::from_slice(&text).ok();
        if !maker.is_some_and(|maker| maker.is_alive()) {
            end_processes(&path.canonicalize()?)?;
        }
    }
    Ok(())
}

fn end_processes(dir: &Path) -> Result<usize> {
    let found = processes(dir);
    for (signal, grace) in [(Signal::TERM, GRACE), (Signal::KILL, GRACE)] {
        // Each time anew: a number that went free meanwhile must not be hit.
        let left = processes(dir);
        if left.is_empty() {
            break;
        }
        for pid in left {
            // It may have ended just now, which is what is wanted.
            let _ = kill_process(pid, signal);
        }
        let gone = poll::until("the processes' end", grace, || match processes(dir).len() {
            0 => Ok(()),
            left => Err(anyhow!("{left} are left")),
        });
        if signal == Signal::KILL {
            gone.with_context(|| format!("ending the processes of {}", dir.display()))?;
        }
    }
    Ok(found.len())
}

/// The living processes of a site.
fn processes(dir: &Path) -> Vec<Pid> {
    if cfg!(target_os = "linux") { marked(dir) } else { recorded(dir) }
}

/// Processes that bear the site's path in their environment.
fn marked(dir: &Path) -> Vec<Pid> {
    let mut mark = format!("{MARK}=").into_bytes();
    mark.extend_from_slice(dir.as_os_str().as_encoded_bytes());
    let own = rustix::process::getpid();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    entries
        .filter_map(|entry| {
            let pid = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
            // What belongs to others cannot be read, and is not ours. A zombie has no environment.
            let environment = std::fs::read(entry.path().join("environ")).ok()?;
            let ours = pid != own && environment.split(|byte| *byte == 0).any(|variable| variable == mark);
            ours.then_some(pid)
        })
        .collect()
}

/// Processes whose record still fits.
fn recorded(dir: &Path) -> Vec<Pid> {
    let entries = std::fs::read_dir(dir.join("processes")).into_iter().flatten().filter_map(Result::ok);
    entries
        .filter_map(|entry| {
            let record: Record = serde_json::from_slice(&std::fs::read(entry.path()).ok()?).ok()?;
            record.is_alive().then(|| Pid::from_raw(i32::try_from(record.pid).ok()?))?
        })
        .collect()
}

/// When a living process started, in the system's own words.
fn started(pid: u32) -> Option<String> {
    if cfg!(target_os = "linux") {
        // proc_pid_stat(5): the name in parentheses may hold anything, so the fields are counted behind it.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        let (state, start) = (fields.next()?, fields.nth(18)?);
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        return (state != "Z").then(|| format!("tick {start} of boot {}", boot.trim()));
    }
    let output = Command::new("ps").args(["-o", "lstart=", "-p", &pid.to_string()]).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

/// Ports are taken from below the range that systems give to outgoing connections: a server that is started again must
/// find its port free.
const PORTS: std::ops::Range<u16> = 21_000..31_000;

static NEXT_PORT: AtomicU16 = AtomicU16::new(0);

/// A free port on loopback, never the same twice in one process.
///
/// # Errors
/// When none is free.
pub fn free_port() -> Result<u16> {
    let size = PORTS.end - PORTS.start;
    // Processes begin at different places, so that two at once rarely try the same.
    let offset = u16::try_from(std::process::id().wrapping_mul(97) % u32::from(size)).unwrap_or_default();
    for _ in 0..size {
        let step = NEXT_PORT.fetch_add(1, Ordering::Relaxed) % size;
        let port = PORTS.start + (offset + step) % size;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port from {} to {} is free", PORTS.start, PORTS.end - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("xtask-site-{name}-{}", std::process::id()))
    }

    #[test]
    fn clearing_ends_only_what_bears_the_mark() {
        let dir = folder("marked");
        let site = Site::create(&dir).unwrap();
        let start = |mark: &Path| Command::new("sleep").arg("60").env(MARK, mark).spawn().unwrap();
        let (mut ours, mut other) = (start(site.dir()), start(Path::new("/somewhere/else")));
        site.record("ours", ours.id(), vec!["sleep".into()]).unwrap();
        // Reaped beside, as init would: a zombie would look alive to systems that go by records.
        let waiter = std::thread::spawn(move || ours.wait().unwrap());
        assert_eq!(clear(&dir).unwrap(), 1);
        assert!(!waiter.join().unwrap().success());
        assert!(other.try_wait().unwrap().is_none(), "a process of another site was ended");
        assert!(!dir.exists());
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn a_folder_that_is_no_site_is_left_alone() {
        let dir = folder("foreign");
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("precious"), "x").unwrap();
        assert!(Site::create(&dir).is_err());
        assert!(dir.join("precious").is_file());
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_site_whose_maker_lives_is_not_abandoned() {
        let folder = folder("makers");
        let site = Site::create(&folder.join("one")).unwrap();
        let mut process = Command::new("sleep").arg("60").env(MARK, site.dir()).spawn().unwrap();
        end_abandoned(&folder).unwrap();
        assert!(process.try_wait().unwrap().is_none(), "the maker is this very test");
        let gone = Record { pid: std::process::id(), started: "some other day".into(), command: Vec::new() };
        std::fs::write(site.path(SITE_FILE), serde_json::to_vec(&gone).unwrap()).unwrap();
        end_abandoned(&folder).unwrap();
        assert!(!process.wait().unwrap().success());
        assert!(site.path("logs").is_dir(), "the logs stay");
        site.remove().unwrap();
        std::fs::remove_dir(&folder).unwrap();
    }

    #[test]
    fn ports_differ() {
        assert_ne!(free_port().unwrap(), free_port().unwrap());
    }
}
