//! The program: flags, runtime, exit code.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use anyhow::{Context as _, Result};
use proxy_controller::{
    api,
    cli::{self, Config, Invocation, RunArgs},
    process,
};

fn main() -> ExitCode {
    let invocation = match cli::parse(std::env::args_os()) {
        Ok(invocation) => invocation,
        Err(error) => error.exit(),
    };
    let result = match invocation {
        Invocation::Crds => print_crds(),
        Invocation::Run(args) => run(*args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The last resort: nobody reads what cannot be written.
            _ = writeln!(io::stderr(), "Error: {}", etcd_proxy::logging::reason(&*error));
            ExitCode::FAILURE
        }
    }
}

fn print_crds() -> Result<()> {
    let mut out = io::stdout().lock();
    for crd in api::crds() {
        writeln!(out, "---\n{}", serde_saphyr::to_string(&crd).context("writing YAML")?)?;
    }
    Ok(())
}

fn run(args: RunArgs) -> Result<()> {
    cli::init_logging(&args.log);
    for name in cli::unknown_variables(std::env::vars_os()) {
        tracing::warn!(name, "this environment variable is none of this program's flags");
    }
    let config = Config::try_from(args)?;
    // Waiting is nearly all that is done.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(process::run(config))
}
