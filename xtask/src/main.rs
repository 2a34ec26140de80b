//! `cargo xtask`: the developer's commands.

// A command-line program: standard output is its result, standard error its progress.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xtask::commands::{bench, demo, down, mutations, node, soak, test, tidy, tools};

#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    version,
    about = "The developer's commands: real components, a demo, the tests"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Tools(tools::Command),
    Demo(demo::Command),
    Bench(bench::Command),
    Down(down::Command),
    #[command(hide = true)]
    Node(node::Command),
    Test(test::Command),
    Mutations(mutations::Command),
    Soak(soak::Command),
    Tidy(tidy::Command),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Tools(command) => tools::run(&command),
        Command::Demo(command) => demo::run(&command),
        Command::Bench(command) => bench::run(&command),
        Command::Down(command) => down::run(&command),
        Command::Node(command) => node::run(&command),
        Command::Test(command) => test::run(&command),
        Command::Mutations(command) => mutations::run(&command),
        Command::Soak(command) => soak::run(&command),
        Command::Tidy(command) => tidy::run(&command),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
