//! What a reader must know of the machine and the programs.

use std::{fmt::Write as _, process::Command};

/// Where and with what figures were taken.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    processor: String,
    cores: usize,
    memory_gb: f64,
    kernel: String,
    versions: Vec<(String, String)>,
    command: String,
    load: f64,
}

impl Machine {
    /// This machine, now; programs with their versions; the command that a reader repeats.
    pub(crate) fn of(programs: &[(String, String)], command: &str) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let memory = field(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
        let kilobytes: f64 = memory.trim_end_matches("kB").trim().parse().unwrap_or_default();
        let mut versions = programs.to_vec();
        versions.push(("rustc".into(), said("rustc", &["--version"])));
        versions.push(("commit".into(), commit()));
        Self {
            processor: field(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| std::env::consts::ARCH.into()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gb: kilobytes / 1e6,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            versions,
            command: command.to_owned(),
            load: read("/proc/loadavg")
                .split_whitespace()
                .next()
                .and_then(|word| word.parse().ok())
                .unwrap_or_default(),
        }
    }

    /// A warning when others used the machine at the start: then figures say little.
    pub(crate) fn busy(&self) -> Option<String> {
        let limit = crate::stats::count(self.cores) * 0.5;
        (self.load > limit).then(|| {
            format!(
                "the machine was busy when the run began (load average {:.1} on {} cores): its figures say little",
                self.load, self.cores
            )
        })
    }

    pub(super) fn markdown(&self) -> String {
        let Self { processor, cores, memory_gb, kernel, .. } = self;
        let mut text =
            format!("- Machine: {cores} cores of {processor}, {memory_gb:.0} GB of memory, Linux {kernel}\n");
        // Writing to a string cannot fail.
        let _ = writeln!(text, "- Clock tick of the accounts of processor time: {:?}", crate::usage::tick());
        let versions: Vec<String> = self.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
        let _ = writeln!(text, "- Versions: {}", versions.join(", "));
        let _ = writeln!(text, "- Command: `{}`", self.command);
        if let Some(warning) = self.busy() {
            let _ = writeln!(text, "- **Warning**: {warning}");
        }
        text
    }
}

fn said(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).current_dir(xtask::root()).output();
    let text = output.ok().filter(|output| output.status.success());
    text.map_or_else(|| "unknown".into(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn commit() -> String {
    let commit = said("git", &["rev-parse", "--short=12", "HEAD"]);
    let changed = said("git", &["status", "--porcelain", "--untracked-files=no"]);
    if changed.is_empty() || changed == "unknown" { commit } else { format!("{commit} with changes") }
}
