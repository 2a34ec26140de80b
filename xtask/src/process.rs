//! A process that is watched over: started with a log, ended in order or by force, started again as it was.

use std::{
    ffi::OsString,
    fs::OpenOptions,
    io::{Read, Seek, SeekFrom, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};

use crate::{
    poll,
    site::{MARK, Site},
};

/// How much of a log an error shows.
const TAIL_BYTES: u64 = 8 * 1024;
const TAIL_LINES: usize = 25;

/// How to start a process.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Its name in messages and file names.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Variables added to the environment.
    pub env: Vec<(String, OsString)>,
    /// The folder in which it runs; the site's for none.
    pub dir: Option<PathBuf>,
}

/// A process of a [`Site`]. Dropping it kills it, unless it was [detached](Process::detach).
///
/// All methods take `&self`: a test may kill a process on one thread that another thread is working with.
#[derive(Debug)]
pub struct Process {
    site: Site,
    spec: Spec,
    child: Mutex<Option<Child>>,
}

/// What a command that ran to its end answered.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Its exit status.
    pub status: ExitStatus,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

impl Spec {
    /// A process without arguments yet.
    pub fn new(name: impl Into<String>, program: impl Into<PathBuf>) -> Self {
        Self { name: name.into(), program: program.into(), args: Vec::new(), env: Vec::new(), dir: None }
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Adds `--name=value`.
    #[must_use]
    pub fn flag(self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        let mut arg = OsString::from(format!("--{name}="));
        arg.push(value);
        self.arg(arg)
    }

    /// Has it run in this folder.
    #[must_use]
    pub fn in_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// Adds a variable to the environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.env.push((name.to_owned(), value.into()));
        self
    }
}

impl Process {
    /// Starts a process in a group of its own, so that Ctrl-C in the terminal reaches it only through its keeper.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn(site: &Site, spec: Spec) -> Result<Self> {
        let process = Self { site: site.clone(), spec, child: Mutex::new(None) };
        process.start()?;
        Ok(process)
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Its log, standard output and standard error together, over all its starts.
    pub fn log(&self) -> PathBuf {
        self.site.log(&self.spec.name)
    }

    /// The number of the running process.
    pub fn pid(&self) -> Option<u32> {
        self.child.lock().as_ref().map(Child::id)
    }

    /// Starts it, with the same arguments as ever.
    ///
    /// # Errors
    /// When it runs already or cannot be started.
    pub fn start(&self) -> Result<()> {
        let mut child = self.child.lock();
        if child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None))) {
            bail!("{} runs already", self.spec.name);
        }
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log())
            .with_context(|| format!("opening {}", self.log().display()))?;
        let mut command = Command::new(&self.spec.program);
        without_etcd_settings(&mut command);
        command.args(&self.spec.args).envs(self.spec.env.iter().map(|(name, value)| (name, value)));
        command.env(MARK, self.site.dir()).process_group(0);
        command.current_dir(self.spec.dir.as_deref().unwrap_or_else(|| self.site.dir()));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let started = command
            .spawn()
            .with_context(|| format!("starting {} ({})", self.spec.name, self.spec.program.display()))?;
        let words =
            std::iter::once(self.spec.program.as_os_str()).chain(self.spec.args.iter().map(OsString::as_os_str));
        self.site.record(
            &self.spec.name,
            started.id(),
            words.map(|word| word.to_string_lossy().into_owned()).collect(),
        )?;
        *child = Some(started);
        Ok(())
    }

    /// Kills it as a power cut would (SIGKILL) and waits for its end.
    ///
    /// # Errors
    /// When it did not run: a test that means to kill wants to hear that.
    pub fn kill9(&self) -> Result<()> {
        let mut slot = self.child.lock();
        let Some(child) = slot.as_mut() else { bail!("{} does not run", self.spec.name) };
        if let Some(status) = child.try_wait()? {
            *slot = None;
            bail!("{} had ended by itself ({status}){}", self.spec.name, self.tail());
        }
        child.kill()?;
        child.wait()?;
        *slot = None;
        Ok(())
    }

    /// Asks it to end (SIGTERM) and waits.
    ///
    /// # Errors
    /// When it has not ended within `limit`; it is killed then.
    pub fn terminate(&self, limit: Duration) -> Result<ExitStatus> {
        let mut slot = self.child.lock();
        let Some(child) = slot.as_mut() else { bail!("{} does not run", self.spec.name) };
        if let Some(status) = child.try_wait()? {
            *slot = None;
            return Ok(status);
        }
        signal(child, Signal::TERM)?;
        let ended = poll::until("its end", limit, || child.try_wait()?.context("it still runs"));
        if ended.is_err() {
            child.kill()?;
            child.wait()?;
        }
        *slot = None;
        ended.with_context(|| format!("{} was asked to end (SIGTERM){}", self.spec.name, self.tail()))
    }

    /// Kills it and starts it again.
    ///
    /// # Errors
    /// When it did not run, or cannot be started.
    pub fn restart(&self) -> Result<()> {
        self.kill9()?;
        self.start()
    }

    /// Sends a signal, such as STOP and CONT for a process that hangs for a while.
    ///
    /// # Errors
    /// When it does not run.
    pub fn signal(&self, wanted: Signal) -> Result<()> {
        let slot = self.child.lock();
        let child = slot.as_ref().with_context(|| format!("{} does not run", self.spec.name))?;
        signal(child, wanted)
    }

    /// How it ended, if it did by itself.
    ///
    /// # Errors
    /// When the system cannot tell.
    pub fn ended(&self) -> Result<Option<ExitStatus>> {
        self.child.lock().as_mut().map_or(Ok(None), |child| Ok(child.try_wait()?))
    }

    /// Waits until `probe` succeeds.
    ///
    /// # Errors
    /// When the process ends, or `limit` passes: with the end of its log.
    pub fn wait_until<T>(&self, what: &str, limit: Duration, mut probe: impl FnMut() -> Result<T>) -> Result<T> {
        let answer = poll::until(what, limit, || match self.ended()? {
            Some(status) => Err(poll::give_up(format!("{} ended with {status}", self.spec.name))),
            None => probe(),
        });
        answer.with_context(|| format!("{}{}", self.spec.name, self.tail()))
    }

    /// Lets it run on without a keeper; [`crate::site::clear`] still finds it.
    pub fn detach(&self) {
        self.child.lock().take();
    }

    /// The end of its log, for an error message.
    fn tail(&self) -> String {
        let text = tail(&self.log()).unwrap_or_else(|error| format!("(the log cannot be read: {error:#})"));
        format!("\n--- the end of {}:\n{text}\n---", self.log().display())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.lock().take() {
            // Nobody is left to hear of a failure, and the next run clears the site.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Outcome {
    /// Standard output, if the command succeeded.
    ///
    /// # Errors
    /// When it failed: its standard error.
    pub fn success(self) -> Result<String> {
        if self.status.success() {
            Ok(self.stdout)
        } else {
            Err(anyhow!("{}: {}{}", self.status, self.stdout, self.stderr.trim_end()))
        }
    }
}

/// Runs a command to its end, with `stdin` as its standard input.
///
/// # Errors
/// When it cannot be started, or has not ended within `limit`; it is killed then. An exit status that tells of failure
/// is no error here.
pub fn run(command: &mut Command, stdin: &[u8], limit: Duration) -> Result<Outcome> {
    without_etcd_settings(command);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {}", command.get_program().display()))?;
    let (input, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // A command that does not read its input closes the pipe, which is its right.
            let _ = input.map(|mut input| input.write_all(stdin));
        });
        let stdout = scope.spawn(move || read_all(stdout));
        let stderr = scope.spawn(move || read_all(stderr));
        let deadline = Instant::now() + limit;
        let mut pause = Duration::from_millis(1);
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break Some(status);
            }
            if Instant::now() > deadline {
                child.kill()?;
                child.wait()?;
                break None;
            }
            poll::rest(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        };
        let gather = |reader: std::thread::ScopedJoinHandle<'_, String>| {
            reader.join().map_err(|_| anyhow!("reading the command's output failed"))
        };
        let (stdout, stderr) = (gather(stdout)?, gather(stderr)?);
        let Some(status) = status else {
            bail!("{command:?} did not end within {} s; it wrote:\n{stdout}{stderr}", limit.as_secs());
        };
        Ok(Outcome { status, stdout, stderr })
    })
}

/// etcd, its tools and the proxy read `ETCD_…` and `ETCDCTL_…`; a developer's own must not steer them.
pub(crate) fn without_etcd_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"ETCD") {
            command.env_remove(name);
        }
    }
}

fn signal(child: &Child, signal: Signal) -> Result<()> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("no such process number")?;
    // The child is not waited for yet, so that its number cannot belong to another process.
    Ok(kill_process(pid, signal)?)
}

fn read_all(stream: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut stream) = stream {
        // What was read before an error is still worth showing.
        let _ = stream.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The last lines of a file.
pub fn tail(path: &Path) -> Result<String> {
    let mut file = std::fs::File::open(path)?;
    let size = file.metadata()?.len();
    file.seek(SeekFrom::Start(size.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    Ok(lines.get(lines.len().saturating_sub(TAIL_LINES)..).unwrap_or_default().join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(name: &str) -> Site {
        Site::create(&std::env::temp_dir().join(format!("xtask-process-{name}-{}", std::process::id()))).unwrap()
    }

    #[test]
    fn a_failure_shows_the_end_of_the_log() {
        let site = site("failing");
        let process =
            Process::spawn(&site, Spec::new("baker", "/bin/sh").arg("-c").arg("echo the oven is cold >&2; exit 3"))
                .unwrap();
        let error =
            process.wait_until("bread", Duration::from_secs(20), || Err::<(), _>(anyhow!("none yet"))).unwrap_err();
        let text = format!("{error:#}");
        assert!(text.contains("the oven is cold") && text.contains("exit status: 3"), "{text}");
        site.remove().unwrap();
    }

    #[test]
    fn killed_and_started_again() {
        let site = site("killed");
        let process = Process::spawn(&site, Spec::new("sleeper", "sleep").arg("60")).unwrap();
        let first = process.pid().unwrap();
        process.restart().unwrap();
        assert_ne!(process.pid().unwrap(), first);
        assert!(process.start().is_err(), "it runs already");
        let status = process.terminate(Duration::from_secs(10)).unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(15));
        assert!(process.kill9().is_err(), "it does not run");
        site.remove().unwrap();
    }

    #[test]
    fn a_command_that_hangs_is_ended() {
        let error = run(Command::new("sleep").arg("60"), b"", Duration::from_millis(50)).unwrap_err();
        assert!(format!("{error:#}").contains("did not end"), "{error:#}");
        let outcome = run(&mut Command::new("cat"), b"dough", Duration::from_secs(20)).unwrap();
        assert_eq!(outcome.success().unwrap(), "dough");
    }
}
