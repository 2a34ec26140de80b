//! Signals to the processes of tests.

use std::{
    fs,
    process::Command,
    thread,
    time::{Duration, Instant},
};

/// Sends a signal, such as `STOP`, which has been carried out when this comes back: each thread stops when it next gets to
/// run, and on a busy machine may answer somebody until then.
pub(crate) fn send(process: u32, name: &str) {
    let status = Command::new("kill").arg(format!("-{name}")).arg(process.to_string()).status().unwrap();
    assert!(status.success(), "kill -{name} {process}: {status}");
    if name == "STOP" {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !stopped(process) {
            assert!(Instant::now() < deadline, "process {process} does not stop");
            thread::yield_now();
        }
    }
}

/// Whether every thread of a process is stopped.
fn stopped(process: u32) -> bool {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).unwrap();
    // A thread that ended meanwhile is not running.
    let states = tasks.map(|task| fs::read_to_string(task.unwrap().path().join("status")).unwrap_or_default());
    states.into_iter().all(|status| !status.lines().any(|line| line.starts_with("State:") && !line.contains('T')))
}
