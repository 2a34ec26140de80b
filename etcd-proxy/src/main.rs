//! The `etcd-proxy` program: reads the command line, sets up logging and the runtime, and runs the command.

use std::{
    env,
    io::{self, Write},
    process::ExitCode,
};

use anyhow::{Context, Result};
use etcd_proxy::{
    cli::{self, Invocation, LogArgs, ServeArgs},
    config::{Config, ConfigError},
    logging::{self, Backlog},
    serve, tools,
};
use tokio::runtime;

fn main() -> ExitCode {
    let result = match cli::parse(env::args_os(), env::vars_os()) {
        Ok(Invocation::Serve(args)) => serve_logged(*args),
        Ok(Invocation::Claim(args)) => tool(&args.log, tools::claim(*args.clone())),
        Ok(Invocation::Release(args)) => tool(&args.log, tools::release(*args.clone())),
        Ok(Invocation::Usage(args)) => tool(&args.log, tools::usage(*args.clone())),
        Ok(Invocation::Check(args)) => tool(&args.log, tools::check(*args.clone())),
        Ok(Invocation::Backup(args)) => tool(&args.log, tools::backup(*args.clone())),
        Ok(Invocation::Restore(args)) => tool(&args.log, tools::restore(*args.clone())),
        Ok(Invocation::Copy(args)) => tool(&args.log, tools::copy(*args.clone())),
        Ok(Invocation::Completion(shell)) => cli::write_completion(shell, &mut io::stdout()).map_err(Into::into),
        Ok(Invocation::Man(command)) => cli::write_man(command.as_deref(), &mut io::stdout()).map_err(Into::into),
        Err(error) => error.exit(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // As clap has it for what it finds wrong itself.
        Err(error) if is_of_command_line(&error) => ExitCode::from(2),
        Err(_) => ExitCode::FAILURE,
    }
}

/// Whether the flags are wrong, and not what they lead to.
fn is_of_command_line(error: &anyhow::Error) -> bool {
    error.is::<ConfigError>() || matches!(error.downcast_ref(), Some(tools::ToolError::Config(_)))
}

/// Serves, whether or not somebody reads the log.
fn serve_logged(args: ServeArgs) -> Result<()> {
    let log = Backlog::start(io::stderr())
        .context("cannot start the thread that writes the log")
        .inspect_err(|error| _ = writeln!(io::stderr(), "Error: {error:#}"))?;
    logging::init(&args.log, log.clone());
    for variable in cli::unknown_variables(env::vars_os()) {
        tracing::warn!(variable, "unknown environment variable ignored; `etcd-proxy --help` lists the flags");
    }
    let result = serve(args, &log).inspect_err(|error| tracing::error!("not serving: {error}"));
    log.finish();
    result
}

fn serve(args: ServeArgs, log: &Backlog) -> Result<()> {
    let config = Config::try_from(args)?;
    let runtime = runtime()?;
    let served = runtime.block_on(serve::serve(config, log.lost()));
    // Certificates may be being read from a disk that does not answer.
    runtime.shutdown_background();
    Ok(served?)
}

/// Runs a command for a person at a terminal, who is told in plain words what went wrong.
fn tool(log: &LogArgs, command: impl Future<Output = Result<(), tools::ToolError>>) -> Result<()> {
    logging::init(log, io::stderr);
    let result = runtime().and_then(|runtime| Ok(runtime.block_on(command)?));
    result.inspect_err(|error| _ = writeln!(io::stderr(), "Error: {error}"))
}

/// One thread: handing a request from thread to thread costs more than the work on it does. All that a request touches
/// (its connection, the upstream's connections) belongs to this runtime, so that one such runtime per core can stand side
/// by side.
fn runtime() -> Result<runtime::Runtime> {
    runtime::Builder::new_current_thread().enable_all().build().context("cannot start the runtime")
}
