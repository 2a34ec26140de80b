//! What is logged, and how.

use std::io::{self, IsTerminal};

use clap::{Args, ValueEnum};
use etcd_proxy::logging::JsonLines;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{Layer, filter::Targets, fmt, layer::SubscriberExt, util::SubscriberInitExt};

/// What is logged, and how.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Logging")]
pub struct LogArgs {
    /// The least important messages that are logged.
    #[arg(long, env = "PROXY_CONTROLLER_LOG_LEVEL", default_value = "info")]
    pub log_level: LogLevel,
    /// The form of messages: one JSON object a line, or text for people.
    #[arg(long, env = "PROXY_CONTROLLER_LOG_FORMAT", default_value = "json")]
    pub log_format: LogFormat,
}

/// Levels of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogLevel {
    /// Everything.
    Debug,
    /// What an operator may want to know.
    Info,
    /// What may need attention.
    Warn,
    /// What needs attention.
    Error,
}

/// Forms of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object a line.
    Json,
    /// For people.
    Console,
}

/// Messages go to standard error from now on. Does nothing if they go somewhere already.
pub fn init_logging(args: &LogArgs) {
    let level = match args.log_level {
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Error => LevelFilter::ERROR,
    };
    // The libraries' debug messages are single HTTP/2 frames.
    let targets = Targets::new()
        .with_default(level.min(LevelFilter::INFO))
        .with_target("proxy_controller", level)
        .with_target("etcd_proxy", level);
    let layer = match args.log_format {
        LogFormat::Json => fmt::layer().event_format(JsonLines).with_writer(io::stderr).boxed(),
        LogFormat::Console => fmt::layer().with_ansi(io::stderr().is_terminal()).with_writer(io::stderr).boxed(),
    };
    // Only one subscriber is possible, and whoever has set one wants it.
    _ = tracing_subscriber::registry().with(layer.with_filter(targets)).try_init();
}
