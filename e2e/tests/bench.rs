//! The measurements still run. Their figures say nothing here: loads are tiny and the machine is busy with tests.

use std::{path::Path, process::Command, time::Duration};

use anyhow::{Context, Result, ensure};
use xtask::{cluster::own_program, process, site};

/// Runs one part on tiny loads and answers what it printed and its document.
fn smoke(part: &str) -> Result<(String, String)> {
    let dir = site::of_tests().join(format!("bench-{part}"));
    let out = site::of_tests().join(format!("bench-{part}-documents"));
    let mut command = Command::new(own_program("bench")?);
    command.args(["--size", "smoke", "--only", part, "--site"]).arg(&dir).arg("--out").arg(&out);
    let printed = process::run(&mut command, b"", Duration::from_secs(300));
    // A program that was killed leaves its processes.
    site::end_abandoned(&site::of_tests())?;
    let printed = printed?.success().with_context(|| format!("bench --only {part}"))?;
    let document = read(&out.join(format!("{part}.md")))?;
    ensure!(read(&out.join("README.md"))?.contains(&format!("({part}.md)")), "the index does not lead to {part}.md");
    for plot in document.lines().filter_map(|line| line.strip_prefix("![")?.split_once("](")?.1.strip_suffix(')')) {
        ensure!(read(&out.join(plot))?.starts_with("<svg"), "{plot} is no plot");
    }
    std::fs::remove_dir_all(&out)?;
    Ok((printed, document))
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| path.display().to_string())
}

fn tells(text: &str, wanted: &[&str]) -> Result<()> {
    let missing: Vec<_> = wanted.iter().filter(|wanted| !text.contains(**wanted)).collect();
    ensure!(missing.is_empty(), "{missing:?} are missing in:\n{text}");
    Ok(())
}

#[test]
fn etcd_proxy_beside_etcd_and_its_grpc_proxy() -> Result<()> {
    let (printed, document) = smoke("etcd-proxy")?;
    tells(&printed, &["put, 64 clients on 8 connections", "RangeStream: growth", "idle watches", "goals met"])?;
    tells(&document, &["![Start](etcd-proxy-start.svg)", "grpc-proxy start", "etcd v3.", "Machine:"])
}

#[test]
fn the_library_beside_the_sample_apiserver() -> Result<()> {
    let (printed, document) = smoke("apiserver")?;
    tells(&printed, &["LIST, resourceVersion=0", "above etcd's own put", "Through the aggregator", "goals met"])?;
    tells(&document, &["![Watches](apiserver-watch.svg)", "sample-apiserver --etcd-servers="])
}

#[test]
fn the_proxy_controller() -> Result<()> {
    let (printed, document) = smoke("proxy-controller")?;
    tells(&printed, &["2 EtcdProxy objects", "until all that they own exists", "requests while nothing changes"])?;
    tells(&document, &["](proxy-controller.svg)"])
}
