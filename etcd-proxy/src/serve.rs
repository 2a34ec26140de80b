//! The serving process: everything put together, and taken apart in order.

use std::{io, sync::Arc};

use prometheus_client::{metrics::counter::Counter, registry::Registry};
use tokio_util::task::TaskTracker;

use crate::{
    config::{Config, ListenUrl},
    drain::{Shutdown, Signals},
    gate::Gate,
    health::{HEALTH_PATHS, Probes, grpc_health},
    limits::Limits,
    meta::MetaLayout,
    metrics::Metrics,
    server::{BindError, ClientRoutes, ConnectionMetrics, Listener, MetricsRoutes, ProcessCollector, Server},
    service,
    service_manager::ServiceManager,
    startup::{StartupError, Verdict, check, check_until_answered},
    tenant::{Tenant, TenantConfig},
    tls::{CertificateMetrics, Reload, ServerTls, TlsError, keep_fresh},
    traces::{TraceError, Traces},
    unknown::SchemaError,
    upstream::{Upstream, UpstreamConfig},
};

/// Why the process does not serve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// Certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Listeners.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Traces.
    #[error(transparent)]
    Traces(#[from] TraceError),
    /// The prefix must not be served.
    #[error(transparent)]
    Startup(#[from] StartupError),
    /// The compiled-in descriptors.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// Signals.
    #[error("cannot install the signal handlers: {0}")]
    Signals(#[source] io::Error),
}

/// Serves one tenant until SIGTERM or SIGINT, and finishes what is under way then. `lost` counts lines of the log.
///
/// # Errors
/// When it cannot start, or when it turns out, once the upstream can be asked, that the prefix must not be served.
pub async fn serve(config: Config, lost: Counter) -> Result<(), ServeError> {
    let manager = ServiceManager::from_environment();
    let mut signals = Signals::install().map_err(ServeError::Signals)?;
    let tls = config.tls.clone().map(ServerTls::load).transpose()?.map(Arc::new);
    let upstream_config = config.upstream.load()?;
    let certificates = tls
        .iter()
        .map(|tls| tls.clone() as Arc<dyn Reload>)
        .chain(upstream_config.tls.iter().map(|tls| tls.clone() as Arc<dyn Reload>))
        .collect();
    let clients = bind(&config, &config.clients).await?;
    let probes = bind(&config, &config.metrics).await?;
    if tls.is_some() && clients.iter().any(|listener| !listener.is_tls()) {
        tracing::warn!("--cert-file and --key-file are not used by the http and unix URLs of --listen-client-urls");
    }

    let shutdown = Shutdown::default();
    let connections = TaskTracker::new();
    let background = TaskTracker::new();
    let mut registry = Registry::default();
    registry.register_collector(Box::new(ProcessCollector::starting()));
    let metrics = Metrics::new(&mut registry);
    let proxy_registry = registry.sub_registry_with_prefix("etcd_proxy");
    proxy_registry.register("log_lines_lost", "Lines of the log that were lost, since nobody read it", lost);
    let certificate_metrics = CertificateMetrics::default();
    certificate_metrics.register(proxy_registry);
    upstream_config.metrics.register(proxy_registry);
    let connection_metrics = ConnectionMetrics::default();
    connection_metrics.register(proxy_registry);

    let closing = shutdown.closing().clone();
    background.spawn(keep_fresh(certificates, config.cert_reload_interval, certificate_metrics, closing));
    let traces = config.traces.as_ref().map(Traces::start).transpose()?;
    let tracer = traces.as_ref().map(Traces::tracer);
    let upstream = Upstream::new(UpstreamConfig { tracer, ..upstream_config });
    let tenant = Tenant::new(tenant_config(&config), upstream.clone(), metrics, shutdown.closing().clone());
    let gate = Gate::default();
    Limits::register(tenant.limits(), registry.sub_registry_with_prefix("etcd_proxy"));
    let router = service::router(tenant.clone())?;
    let services = gate.before(router.clone());
    let (reporter, health) = grpc_health(config.stalled_reader_timeout);
    let registry = Arc::new(registry);
    let probes_of = |services| Probes::new(services, tenant.clone(), gate.clone(), shutdown.clone(), registry.clone());
    let checks = probes_of(services.clone());
    // What the operator asks is not to count as the tenant's, nor to be refused because the tenant asks for too much.
    let operator_checks = probes_of(gate.before(router.clone().unlimited()));

    // Asked before anything is answered, so that a refusal is seen at once; if there is no answer, asked again beside.
    let verdict = tokio::select! {
        verdict = check(&config.tenancy, &upstream) => verdict,
        signal = signals.next() => {
            tracing::info!(signal, "stopped before serving");
            return Ok(());
        }
    };
    let answered = match verdict {
        Verdict::Refuse(error) => return Err(error.into()),
        Verdict::Serve => true,
        Verdict::Later => false,
    };

    let server = Server::new(
        config.connections.clone(),
        background.clone(),
        connections.clone(),
        shutdown.clone(),
        connection_metrics.clone(),
    )
    .counting(tenant.metrics().readers_given_up.clone());
    let tracer = traces.as_ref().map(|traces| traces.tracer().serving(router.paths().chain(HEALTH_PATHS).collect()));
    for listener in clients {
        let tls = tls.clone().filter(|_| listener.is_tls());
        let routes = ClientRoutes::new(services.clone(), health.clone(), checks.clone(), shutdown.clone())
            .with_access_log(config.access_log)
            .with_tracer(tracer.clone());
        server.serve(listener, tls, routes);
    }
    let probe_server = Server::new(
        config.connections.for_probes(),
        background.clone(),
        connections.clone(),
        shutdown.clone(),
        connection_metrics,
    );
    for listener in probes {
        let tls = tls.clone().filter(|_| listener.is_tls());
        probe_server.serve(listener, tls, MetricsRoutes::new(operator_checks.clone()));
    }

    manager.ready(if answered { "starting" } else { "the upstream does not answer yet" });
    let serving = async {
        if !answered {
            check_until_answered(&config.tenancy, &upstream).await?;
        }
        tenant.start(&background);
        gate.open();
        reporter.report(true);
        manager.status(&format!("serving {}", config.tenancy.prefix));
        tracing::info!(prefix = %config.tenancy.prefix, version = env!("CARGO_PKG_VERSION"), "serving");
        std::future::pending::<Result<(), StartupError>>().await
    };
    let result = tokio::select! {
        refused = serving => refused.map_err(ServeError::from),
        signal = signals.next() => {
            tracing::info!(signal, "stopping");
            Ok(())
        }
    };
    reporter.report(false);
    manager.stopping();
    shutdown.run(config.shutdown, &mut signals, &connections, tenant.outliving()).await;
    background.close();
    background.wait().await;
    if let Some(traces) = traces {
        traces.stop().await;
    }
    tracing::info!("stopped");
    result
}

async fn bind(config: &Config, urls: &[ListenUrl]) -> Result<Vec<Listener>, BindError> {
    let mut listeners = Vec::with_capacity(urls.len());
    for url in urls {
        listeners.push(Listener::bind(url.clone(), config.connections.unix_socket_mode).await?);
    }
    Ok(listeners)
}

fn tenant_config(config: &Config) -> TenantConfig {
    let meta = MetaLayout::new(config.tenancy.meta_prefix.clone());
    TenantConfig {
        member_name: config.name.clone(),
        advertise_client_urls: config.advertise.clone(),
        compaction: config.compaction,
        max_txn_ops: config.max_txn_ops,
        max_request_bytes: config.max_request_bytes,
        max_buffered_bytes: config.max_buffered_bytes,
        stalled_reader_timeout: config.stalled_reader_timeout,
        max_range_streams: config.max_range_streams,
        limits: config.limits,
        ..TenantConfig::new(config.tenancy.prefix.clone(), meta)
    }
}
