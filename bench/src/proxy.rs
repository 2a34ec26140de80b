//! etcd-proxy beside etcd itself and `etcd grpc-proxy start --namespace`, all on one etcd, plaintext on loopback.

mod memory;
mod ranges;
mod requests;
mod targets;
mod watches;

use anyhow::Result;

use self::targets::Targets;
use crate::{Bench, report::Part, report::Table};

const SUBJECTS: [&str; 3] = ["etcd itself", "grpc-proxy", "etcd-proxy"];

/// Measures.
///
/// # Errors
/// When a program does not come up, or a request fails.
pub(crate) fn run(bench: &Bench) -> Result<Part> {
    let mut targets = Targets::start(bench)?;
    let mut tables: Vec<Table> = Vec::new();
    tables.push(memory::starts(bench, &targets)?);
    tables.extend(requests::run(bench, &mut targets)?);
    tables.push(ranges::run(bench, &targets)?);
    tables.push(watches::run(bench, &targets)?);
    Ok(Part {
        file: "etcd-proxy",
        title: "etcd-proxy",
        notes: vec![
            "etcd-proxy beside etcd itself and etcd's own `grpc-proxy start --namespace`, all in front of the same etcd, \
             plaintext on loopback. The three take turns in every round; a figure is the median over the rounds, with the \
             smallest and the largest in parentheses, and a ratio is taken within each round."
                .into(),
            "Processor time is what the kernel accounts to the proxy's process, memory its resident set. Client, proxy and \
             etcd share the machine's cores, so throughput follows from the processor time of all three."
                .into(),
        ],
        commands: targets.commands(),
        tables,
    })
}
