//! The pizza restaurant's API server.

use std::{io::IsTerminal as _, process::ExitCode};

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
    #[arg(long, help_heading = "Logs", default_value = "info", env = "RUST_LOG", value_parser = log_level)]
    log_level: EnvFilter,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let logs = tracing_subscriber::fmt()
        .with_env_filter(arguments.log_level)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
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

/// A lone word must be a level: taken for a target, a misspelt one would silence everything.
fn log_level(text: &str) -> Result<EnvFilter, String> {
    let levels = ["off", "error", "warn", "info", "debug", "trace"];
    for directive in text.split(',').filter(|directive| !directive.contains(['=', '['])) {
        if !levels.contains(&directive.trim().to_ascii_lowercase().as_str()) {
            return Err(format!("{directive:?} is no level; there are {}", levels.join(", ")));
        }
    }
    EnvFilter::try_new(text).map_err(|error| error.to_string())
}

#[tokio::main]
async fn run(options: &RecommendedOptions) -> anyhow::Result<()> {
    let shutdown = shutdown_signal()?;
    pizza_apiserver::restaurant::server(options).await?.run(shutdown).await?;
    Ok(())
}
