//! The library beside Go's sample-apiserver: the same group on the same etcd, asked directly with a bearer token.

mod aggregator;
mod large;
mod loads;
mod memory;
mod requests;
mod servers;
mod watches;

use anyhow::Result;

use self::servers::Servers;
use crate::{Bench, report::Part};

const SUBJECTS: [&str; 2] = ["sample-apiserver", "apiserver (ours)"];

/// Measures.
///
/// # Errors
/// When a program does not come up, or a request fails.
pub(crate) fn run(bench: &Bench) -> Result<Part> {
    let servers = Servers::start(bench)?;
    let mut tables = vec![memory::starts(bench, &servers)?];
    tables.extend(requests::many(bench, &servers)?);
    tables.push(requests::one(bench, &servers)?);
    tables.push(watches::run(bench, &servers)?);
    tables.push(memory::afterwards(bench, &servers)?);
    tables.push(large::run(bench, &servers)?);
    if bench.plan.aggregator {
        tables.push(aggregator::run(bench, &servers)?);
    }
    Ok(Part {
        file: "apiserver",
        title: "The library for API servers",
        notes: vec![
            "This project's library beside Go's sample-apiserver. Both serve the group wardle.example.com with the same kind, \
             versions and fields, and store in the same etcd. They are asked directly over TLS (HTTP/1.1) with the bearer \
             token of a service account, and delegate authentication and authorisation to the same kube-apiserver. They take \
             turns in every round; a figure is the median over the rounds, with the smallest and the largest in parentheses, \
             and a ratio is taken within each round."
                .into(),
            "The sample-apiserver tracks the ownership of fields, and its objects carry `managedFields`; the library does not \
             yet. Objects on the library's side are filled up by an annotation, so that answers are as large. What tracking \
             costs the sample-apiserver in a write has no counterpart, and server-side apply cannot be compared yet. Apart \
             from the admission plugin NamespaceLifecycle, which both run, the sample-apiserver runs those for webhooks and \
             policies, of which there are none."
                .into(),
            "Processor time is what the kernel accounts to the server's process, memory its resident set. Client, server, \
             kube-apiserver and etcd share the machine's cores."
                .into(),
        ],
        commands: servers.commands(),
        tables,
    })
}
