//! Running the commands of a suite: what they print is passed on and read along the way; their time is limited.

use std::{
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    process::{Command, ExitStatus, Stdio},
    sync::mpsc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};

/// Runs commands one after the other and ends the running one when this program is told to end.
pub(in crate::commands) struct Runner {
    signals: Signals,
    interrupted: bool,
}

impl Runner {
    /// From now on signals end the running command first.
    pub(in crate::commands) fn new() -> Result<Self> {
        Ok(Self { signals: Signals::new([SIGINT, SIGTERM, SIGHUP])?, interrupted: false })
    }

    /// Whether a signal came.
    pub(super) fn interrupted(&self) -> bool {
        self.interrupted
    }

    /// The signal that tells this program to end, if one came since the last look.
    pub(super) fn told_to_end(&mut self) -> Option<i32> {
        let signal = self.signals.pending().next();
        self.interrupted |= signal.is_some();
        signal
    }

    /// Runs a command to its end and hands each line of its standard output to `on_line`, after printing it.
    ///
    /// # Errors
    /// When it cannot be started, takes longer than `limit`, or a signal ended this program. It is killed then, with
    /// all the processes of its group.
    pub(in crate::commands) fn run(
        &mut self,
        command: &mut Command,
        limit: Duration,
        mut on_line: impl FnMut(&str),
    ) -> Result<ExitStatus> {
        let shown = format!(
            "{} {}",
            command.get_program().display(),
            command.get_args().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>().join(" ")
        );
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {shown}"))?;
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("no such process number")?;
        let (sender, lines) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || {
                BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
            });
        }
        let deadline = Instant::now() + limit;
        let stop = loop {
            match lines.recv_timeout(Duration::from_millis(200)) {
                Ok(line) => {
                    println!("{line}");
                    on_line(&line);
                    continue;
                }
                // The end of its output; its exit follows.
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    if let Some(status) = child.try_wait()? {
                        return Ok(status);
                    }
                    crate::poll::rest(Duration::from_millis(10));
                }
                // A child that it left behind may hold the pipe open: its own end counts.
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    if let Some(status) = child.try_wait()? {
                        lines.try_iter().for_each(|line| {
                            println!("{line}");
                            on_line(&line);
                        });
                        return Ok(status);
                    }
                }
            }
            if let Some(signal) = self.told_to_end() {
                break format!("ended by signal {signal}");
            }
            if Instant::now() > deadline {
                break format!("took longer than {} min", limit.as_secs() / 60);
            }
        };
        // The group may have ended by itself just now.
        let _ = kill_process_group(group, Signal::KILL);
        child.wait()?;
        bail!("{shown}: {stop}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_the_status_told() {
        let mut lines = Vec::new();
        let mut runner = Runner::new().unwrap();
        let status = runner.run(
            Command::new("/bin/sh").args(["-c", "echo one; echo two; exit 4"]),
            Duration::from_secs(60),
            |line| lines.push(line.to_owned()),
        );
        assert_eq!(status.unwrap().code(), Some(4));
        assert_eq!(lines, ["one", "two"]);
    }

    #[test]
    fn what_hangs_is_killed_with_its_children() {
        let mut runner = Runner::new().unwrap();
        let start = Instant::now();
        let error = runner
            .run(Command::new("/bin/sh").args(["-c", "sleep 300 & wait"]), Duration::from_millis(300), |_| ())
            .unwrap_err();
        assert!(error.to_string().contains("took longer"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(100));
    }
}
