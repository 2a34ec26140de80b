//! What Prometheus' own clients tell of every process, under the same names as etcd's.

use std::{
    fmt, fs,
    time::{SystemTime, UNIX_EPOCH},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric as _},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
};

/// Hundredths of a second, in which Linux counts wherever a person can see it (`USER_HZ`).
const TICKS: f64 = 100.0;

/// Asks the system about this process when metrics are asked for. What the system does not tell is left out.
#[derive(Debug)]
pub struct ProcessCollector {
    started: f64,
}

impl ProcessCollector {
    /// For a process that starts now.
    pub fn starting() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Self { started: since.map(|since| since.as_secs_f64()).unwrap_or_default() }
    }
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut gauge = |name: &str, help: &str, value: Option<f64>| {
            let Some(value) = value else { return Ok(()) };
            let metric = ConstGauge::new(value);
            metric.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)
        };
        gauge(
            "process_start_time_seconds",
            "Start time of the process since unix epoch in seconds",
            Some(self.started),
        )?;
        gauge("process_resident_memory_bytes", "Resident memory size in bytes", resident())?;
        gauge("process_open_fds", "Number of open file descriptors", open_files())?;
        gauge("process_max_fds", "Maximum number of open file descriptors", most_files())?;
        if let Some(seconds) = cpu() {
            let help = "Total user and system CPU time spent in seconds";
            let metric = ConstCounter::new(seconds);
            metric.encode(encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?)?;
        }
        Ok(())
    }
}

fn resident() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<f64>().ok()? * 1024.0)
}

fn open_files() -> Option<f64> {
    // The one that reads the folder is not among them.
    let count = fs::read_dir("/proc/self/fd").ok()?.count().saturating_sub(1);
    Some(f64::from(u32::try_from(count).ok()?))
}

fn most_files() -> Option<f64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    limits.lines().find_map(|line| line.strip_prefix("Max open files"))?.split_whitespace().next()?.parse().ok()
}

fn cpu() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The name, in brackets, may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let user: f64 = fields.nth(11)?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS)
}

#[cfg(test)]
mod tests {
    use prometheus_client::{encoding::text::encode, registry::Registry};

    use super::*;

    #[test]
    fn all_that_linux_tells_is_there() {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(ProcessCollector::starting()));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for (name, least, most) in [
            ("process_start_time_seconds", 1.7e9, 1e10),
            ("process_resident_memory_bytes", 1e6, 1e10),
            ("process_open_fds", 3.0, 1e4),
            ("process_max_fds", 64.0, 1e10),
            ("process_cpu_seconds_total", 0.0, 1e6),
        ] {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<f64>().ok());
            assert!(value.is_some_and(|value| (least..most).contains(&value)), "{name}: {text}");
        }
    }
}
