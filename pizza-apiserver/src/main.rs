//! The pizza restaurant's API server.

use std::process::ExitCode;

use apiserver::{options::RecommendedOptions, server::shutdown_signal};
use clap::Parser;
use tracing_subscriber::EnvFilter;

/// Serves the restaurant's API group, restaurant.programming-kubernetes.info, behind kube-apiserver.
///
/// Alone on a laptop, without cluster and etcd: pizza-apiserver --standalone --storage-backend=memory
#[derive(Parser)]
#[command(name = "pizza-apiserver", version, max_term_width = 120)]
struct Arguments {
    #[command(flatten)]
    options: RecommendedOptions,

    /// Write logs as JSON, one object a line.
    #[arg(long, help_heading = "Logs")]
    log_json: bool,

    /// Which logs to write: error, warn, info, debug, trace, or a list of target=level.
    #[arg(long, help_heading = "Logs", default_value = "info", env = "RUST_LOG")]
    log_level: EnvFilter,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let logs = tracing_subscriber::fmt().with_env_filter(arguments.log_level).with_writer(std::io::stderr);
    if arguments.log_json {
        logs.json().init()
    } else {
        logs.init()
    }
    match run(&arguments.options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main]
async fn run(options: &RecommendedOptions) -> anyhow::Result<()> {
    let shutdown = shutdown_signal()?;
    pizza_apiserver::restaurant::server(options).await?.run(shutdown).await?;
    Ok(())
}
