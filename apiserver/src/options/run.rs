//! Limits, times and habits (k8s.io/apiserver `pkg/server/options/server_run_options.go`).

use std::time::Duration;

use clap::Args;
use http::HeaderValue;

use super::{duration, flag};
use crate::server::{chain::Manners, inflight::InFlight};

/// Limits, times and habits.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Generic")]
pub struct ServerRunOptions {
    /// The most reading requests at one time; further ones are answered with 429. 0: no limit.
    #[arg(long, default_value_t = 400, value_name = "NUMBER")]
    pub max_requests_inflight: usize,

    /// The most writing requests at one time; further ones are answered with 429. 0: no limit.
    #[arg(long, default_value_t = 200, value_name = "NUMBER")]
    pub max_mutating_requests_inflight: usize,

    /// How long a request may take, watches aside.
    #[arg(long, default_value = "1m0s", value_parser = duration::parse, value_name = "DURATION")]
    pub request_timeout: Duration,

    /// A watch without a timeout of its own ends after this many seconds or up to twice as many.
    #[arg(long, default_value_t = 1800, value_name = "SECONDS")]
    pub min_request_timeout: u64,

    /// How long the server goes on serving after being asked to stop, so that load balancers notice. /readyz fails during
    /// that time.
    #[arg(long, default_value = "0s", value_parser = duration::parse, value_name = "DURATION")]
    pub shutdown_delay_duration: Duration,

    /// While the last requests are answered, go on listening and tell new ones to try again (429).
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true", value_parser = flag)]
    pub shutdown_send_retry_after: bool,

    /// For how long /livez passes although the work at the start is not done.
    #[arg(long, default_value = "0s", value_parser = duration::parse, value_name = "DURATION")]
    pub livez_grace_period: Duration,

    /// Which fraction of HTTP/2 requests ends its connection, so that clients spread over replicas: 0 to 0.02.
    #[arg(long, default_value_t = 0.0, value_name = "FRACTION")]
    pub goaway_chance: f64,

    /// Directives of the Strict-Transport-Security header, separated by commas: max-age=SECONDS, includeSubDomains, preload.
    /// Empty: no header.
    #[arg(long, value_delimiter = ',', value_name = "DIRECTIVES")]
    pub strict_transport_security_directives: Vec<String>,
}

// === impl ServerRunOptions ===

impl ServerRunOptions {
    pub(super) fn validate(&self, errors: &mut Vec<String>) {
        if self.request_timeout.is_zero() {
            errors.push("--request-timeout must be more than 0".to_owned());
        }
        if !(0.0..=0.02).contains(&self.goaway_chance) {
            errors.push("--goaway-chance must be from 0 to 0.02".to_owned());
        }
        for directive in &self.strict_transport_security_directives {
            let age = directive.strip_prefix("max-age=");
            let fine = matches!(directive.as_str(), "includeSubDomains" | "preload")
                || age.is_some_and(|seconds| !seconds.is_empty() && seconds.bytes().all(|b| b.is_ascii_digit()));
            if !fine {
                errors.push(format!("--strict-transport-security-directives: {directive:?} is no directive"));
            }
        }
    }

    pub(super) fn manners(&self) -> Manners {
        let directives = self.strict_transport_security_directives.join("; ");
        Manners {
            in_flight: InFlight::new(self.max_requests_inflight, self.max_mutating_requests_inflight),
            request_timeout: self.request_timeout,
            send_retry_after: self.shutdown_send_retry_after,
            goaway_chance: self.goaway_chance,
            strict_transport_security: (!directives.is_empty())
                .then(|| HeaderValue::from_str(&directives).ok())
                .flatten(),
        }
    }
}
