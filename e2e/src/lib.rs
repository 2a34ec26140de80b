//! End-to-end tests on the real control plane: what they share. The tests themselves are in `tests/`, one program each
//! with a cluster of its own.

use std::{net::SocketAddr, path::Path, sync::OnceLock};

use anyhow::{Context, Result, anyhow, ensure};
use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use xtask::cluster::{Cluster, Endpoint, Kubectl, Options};

/// A cluster that the tests of one program share: starting one takes seconds. They keep apart by namespaces and names.
///
/// Nobody takes it down: the next program's start does, or `cargo xtask test` at its end.
pub struct Shared {
    name: &'static str,
    tenants: fn(Options) -> Result<Options>,
    cluster: OnceLock<Result<Cluster, String>>,
}

impl Shared {
    /// A cluster called `name`, not started yet; `tenants` adds those wanted, such as [`Options::with_restaurant`].
    pub const fn new(name: &'static str, tenants: fn(Options) -> Result<Options>) -> Self {
        Self { name, tenants, cluster: OnceLock::new() }
    }

    /// The cluster, started by the first to ask.
    ///
    /// # Errors
    /// When it did not start: to all who ask.
    pub fn get(&self) -> Result<&Cluster> {
        let start = || {
            Options::of_test(self.name)
                .and_then(self.tenants)
                .and_then(Cluster::start)
                .map_err(|error| format!("{error:#}"))
        };
        self.cluster.get_or_init(start).as_ref().map_err(|error| anyhow!("the cluster did not start: {error}"))
    }

    /// kubectl as an administrator, in a namespace of its own made for the caller.
    ///
    /// # Errors
    /// When the cluster did not start, or the namespace is there already.
    pub fn namespace(&self, name: &str) -> Result<Kubectl> {
        let kubectl = self.get()?.kubectl();
        kubectl.ok(&["create", "namespace", name])?;
        Ok(kubectl.in_folder(examples()).in_namespace(name))
    }
}

/// The examples that users are shown.
pub fn examples() -> std::path::PathBuf {
    xtask::root().join("manifests").join("examples")
}

/// A client that speaks as the kubeconfig's user and adds headers to each request.
///
/// # Errors
/// When the kubeconfig cannot be used.
pub async fn client(kubeconfig: &Path, headers: &[(&'static str, &'static str)]) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).with_context(|| kubeconfig.display().to_string())?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    for (name, value) in headers {
        config.headers.push((http::HeaderName::from_static(name), http::HeaderValue::from_static(value)));
    }
    Ok(Client::try_from(config)?)
}

/// Asks for a path and answers the status code with the body.
///
/// # Errors
/// When no answer comes at all.
pub async fn get(client: &Client, path: &str) -> Result<(u16, String)> {
    let request = http::Request::get(path).body(Vec::new())?;
    match client.request_text(request).await {
        Ok(body) => Ok((200, body)),
        Err(kube::Error::Api(status)) => Ok((status.code, status.message)),
        Err(error) => Err(error).with_context(|| path.to_owned()),
    }
}

/// An etcd client on an endpoint, real or virtual.
///
/// # Errors
/// When the certificates cannot be read, or nothing answers; and when the address is one that only a cluster knows, for
/// which there is [`etcd_client_at`].
pub async fn etcd_client(endpoint: &Endpoint) -> Result<etcd_client::Client> {
    ensure!(endpoint.proxy.is_none(), "{} is the name of a Service: use etcd_client_at", endpoint.url);
    connect(&endpoint.url, tls(endpoint)?).await
}

/// An etcd client on an endpoint that is the name of a Service, which it verifies, reached at another address: that of
/// [`Network::listen`](xtask::cluster::Network::listen).
///
/// # Errors
/// When the certificates cannot be read, or nothing answers.
pub async fn etcd_client_at(endpoint: &Endpoint, address: SocketAddr) -> Result<etcd_client::Client> {
    let authority = endpoint.url.strip_prefix("https://").context("the endpoint does not speak TLS")?;
    let (host, _) = authority.split_once(':').context("the endpoint has no port")?;
    connect(&format!("https://{address}"), tls(endpoint)?.domain_name(host)).await
}

fn tls(endpoint: &Endpoint) -> Result<TlsOptions> {
    let read = |path: &Path| std::fs::read(path).with_context(|| path.display().to_string());
    let identity = Identity::from_pem(read(&endpoint.client.cert)?, read(&endpoint.client.key)?);
    Ok(TlsOptions::new().ca_certificate(Certificate::from_pem(read(&endpoint.ca)?)).identity(identity))
}

async fn connect(url: &str, tls: TlsOptions) -> Result<etcd_client::Client> {
    let options = ConnectOptions::new().with_tls(tls);
    etcd_client::Client::connect([url], Some(options)).await.with_context(|| url.to_owned())
}
