//! A whole cluster on this machine: etcd, the control plane, tenants with their proxies and aggregated servers.
//!
//! [`Cluster::start`] brings everything up; each part is a struct of its own for tests that want less or more. What a
//! part is called, where it logs and where its data lies is the [`Site`]'s matter.

mod aggregated;
pub mod atomic_writer;
mod audit;
mod control_plane;
mod controller;
mod etcd;
mod follow;
mod informer;
mod kubectl;
pub mod local_pod;
mod managed;
pub mod mounts;
mod network;
mod node;
mod proxy;
mod writers;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result};

pub use self::{
    aggregated::{AggregatedServer, Api, EtcdProxyManifest, RESTAURANT, Storage, WARDLE, wait_unavailable},
    audit::Request as AuditedRequest,
    control_plane::{ApiserverOptions, ControllerManager, FRONT_PROXY, KubeApiserver, MASTERS},
    controller::{CONTROLLER_USER, ProxyController, SYSTEM, manifests, provide_upstream},
    etcd::{Endpoint, Etcd, Etcdctl},
    informer::{Event, Informer},
    kubectl::{Kubectl, Server},
    managed::ManagedProxy,
    network::{Counts, Network, machine_address},
    node::{Binary, Listening, Node, Pod, http_get},
    proxy::EtcdProxy,
    writers::{Failure, Summary, Tally, Writers},
};
use crate::{
    process::Process,
    progress::Progress,
    site::{self, Site},
    tools::{Tool, Tools},
};

/// What a cluster consists of.
#[derive(Debug)]
pub struct Options {
    /// The folder of its [`Site`].
    pub dir: PathBuf,
    /// Where its programs are.
    pub tools: Tools,
    /// The pizza restaurant, if it is wanted.
    pub restaurant: Option<TenantOptions>,
    /// Go's sample-apiserver, if it is wanted.
    pub wardle: Option<TenantOptions>,
    /// The proxy-controller, if it is wanted.
    pub controller: Option<ControllerOptions>,
    /// What kube-apiserver has besides.
    pub apiserver: ApiserverOptions,
}

/// The proxy-controller and what it needs around it.
#[derive(Clone, Debug)]
pub struct ControllerOptions {
    /// Its program.
    pub program: PathBuf,
    /// How many of it.
    pub replicas: usize,
    /// How long a change of a Secret or ConfigMap takes to the files of pods.
    pub delivery: Duration,
    /// The namespaces that may use the shared etcd.
    pub namespaces: Vec<String>,
}

/// An aggregated server and where it keeps its objects.
#[derive(Clone, Debug)]
pub struct TenantOptions {
    /// The server's program.
    pub server: PathBuf,
    /// Its store.
    pub store: Store,
}

/// How a tenant reaches the shared etcd.
#[derive(Clone, Debug)]
pub enum Store {
    /// Through an etcd-proxy, which is this program, provided by hand.
    Proxy(PathBuf),
    /// Through an etcd-proxy, which is this program, provided by the proxy-controller for an EtcdProxy object.
    Managed(PathBuf),
    /// Directly, told to stay below its prefix, and trusted to.
    Shared,
}

/// A running cluster. Dropping it kills its processes and leaves its folder, for a look at the logs;
/// [`Cluster::remove`] leaves nothing.
pub struct Cluster {
    /// The restaurant.
    pub restaurant: Option<Tenant>,
    /// The sample-apiserver.
    pub wardle: Option<Tenant>,
    /// The proxy-controller.
    pub controller: Option<ProxyController>,
    /// What stands in for a node; there is one where there is a proxy-controller.
    pub node: Option<Node>,
    /// The controllers of Kubernetes itself.
    pub controller_manager: ControllerManager,
    /// The server that kubectl speaks to.
    pub kube_apiserver: KubeApiserver,
    /// The shared store.
    pub etcd: Etcd,
    /// Logs, data, certificates.
    pub site: Site,
    /// Where programs are found.
    pub tools: Tools,
}

/// A running tenant.
pub struct Tenant {
    /// The aggregated server.
    pub server: AggregatedServer,
    /// Its proxy, if it is behind one provided by hand.
    pub proxy: Option<EtcdProxy>,
    /// Its proxy, if it is behind one that the proxy-controller provided.
    pub managed: Option<ManagedProxy>,
}

/// What the parts of a cluster that tenants are built upon are.
struct Ground<'a> {
    site: &'a Site,
    tools: &'a Tools,
    etcd: &'a Etcd,
    apiserver: &'a KubeApiserver,
    node: Option<&'a Node>,
}

impl Options {
    /// For the test called `name`: etcd and the control plane, from the programs that `cargo xtask test` names in variables.
    ///
    /// # Errors
    /// When the processes of an earlier test that was killed cannot be ended.
    pub fn of_test(name: &str) -> Result<Self> {
        site::end_abandoned(&site::of_tests())?;
        Ok(Self {
            dir: site::of_tests().join(name),
            tools: Tools::of_test(),
            restaurant: None,
            wardle: None,
            controller: None,
            apiserver: ApiserverOptions::default(),
        })
    }

    /// With one proxy-controller, which lets the namespaces use the shared etcd; files follow their objects at once.
    ///
    /// # Errors
    /// When a test's variable is not set.
    pub fn with_controller(self, namespaces: &[&str]) -> Result<Self> {
        let controller = ControllerOptions {
            program: own_program("proxy-controller")?,
            replicas: 1,
            delivery: Duration::ZERO,
            namespaces: namespaces.iter().map(|namespace| (*namespace).to_owned()).collect(),
        };
        Ok(Self { controller: Some(controller), ..self })
    }

    /// With a log of all requests to kube-apiserver.
    #[must_use]
    pub fn with_audit(self) -> Self {
        Self { apiserver: ApiserverOptions { audit: true }, ..self }
    }

    /// With the restaurant behind a proxy.
    ///
    /// # Errors
    /// When a test's variable is not set.
    pub fn with_restaurant(self) -> Result<Self> {
        let store = Store::Proxy(own_program("etcd-proxy")?);
        let restaurant = Some(TenantOptions { server: own_program("pizza-apiserver")?, store });
        Ok(Self { restaurant, ..self })
    }

    /// With Go's sample-apiserver behind a proxy.
    ///
    /// # Errors
    /// When a test's variable is not set.
    pub fn with_wardle(self) -> Result<Self> {
        let store = Store::Proxy(own_program("etcd-proxy")?);
        let wardle = Some(TenantOptions { server: self.tools.path(Tool::SampleApiserver)?, store });
        Ok(Self { wardle, ..self })
    }
}

/// The path of one of the project's own programs, as `cargo xtask test` hands it to tests.
///
/// # Errors
/// When the variable, such as `TEST_ETCD_PROXY`, is not set.
pub fn own_program(name: &str) -> Result<PathBuf> {
    let variable = format!("TEST_{}", name.replace('-', "_").to_ascii_uppercase());
    let path = std::env::var_os(&variable);
    path.map(PathBuf::from).with_context(|| format!("{variable} is not set: run this test by `cargo xtask test e2e`"))
}

impl Cluster {
    /// Starts a cluster and waits until all of it is ready. Progress is told on standard error.
    ///
    /// # Errors
    /// When a part does not come up: its name and the end of its log. What had been started is ended.
    pub fn start(options: Options) -> Result<Self> {
        let Options { dir, tools, restaurant, wardle, controller, apiserver } = options;
        // Before anything runs: a build among the starts would outlast their time limits.
        for tool in [Tool::Etcd, Tool::Etcdctl, Tool::KubeApiserver, Tool::KubeControllerManager, Tool::Kubectl] {
            tools.path(tool)?;
        }
        let site = Site::create(&dir)?;
        let step = Progress::start("etcd");
        let etcd = Etcd::start(&site, &tools, Tool::Etcd)?;
        step.done();
        let step = Progress::start("kube-apiserver");
        let kube_apiserver = KubeApiserver::start_with(&site, &tools, &etcd, apiserver)?;
        step.done();
        let controllers = Progress::start("kube-controller-manager");
        let controller_manager = ControllerManager::start(&site, &tools, &kube_apiserver)?;
        controller_manager.wait_ready()?;
        controllers.done();
        let mut node = None;
        let controller = match controller {
            None => None,
            Some(ControllerOptions { program, replicas, delivery, namespaces }) => {
                let step = Progress::start("proxy-controller");
                let node = node.insert(Node::start(&site, kube_apiserver.admin(), delivery)?);
                let controller = ProxyController::start(node, &kube_apiserver, &program, replicas)?;
                controller.wait_webhook()?;
                let namespaces: Vec<&str> = namespaces.iter().map(String::as_str).collect();
                provide_upstream(kube_apiserver.admin(), &etcd, &namespaces)?;
                step.done();
                Some(controller)
            }
        };
        let ground =
            Ground { site: &site, tools: &tools, etcd: &etcd, apiserver: &kube_apiserver, node: node.as_ref() };
        // The name is where a tenant's data lies that no EtcdProxy object gives a prefix to.
        let start = |options: Option<TenantOptions>, name: &str, api: Api| {
            options.map(|options| Tenant::start(&ground, &options, name, api)).transpose()
        };
        let restaurant = start(restaurant, "tenant-a", RESTAURANT)?;
        let wardle = start(wardle, "tenant-b", WARDLE)?;
        Ok(Self { restaurant, wardle, controller, node, controller_manager, kube_apiserver, etcd, site, tools })
    }

    /// kubectl as an administrator, through kube-apiserver.
    pub fn kubectl(&self) -> &Kubectl {
        self.kube_apiserver.admin()
    }

    /// kubectl as somebody whose rights are RBAC's matter, through kube-apiserver.
    ///
    /// # Errors
    /// When the kubeconfig cannot be written.
    pub fn kubectl_as(&self, user: &str, group: Option<&str>) -> Result<Kubectl> {
        let kubeconfig = self.kube_apiserver.kubeconfig(&self.site, user, group)?;
        Kubectl::new(&self.site, &self.tools, kubeconfig)
    }

    /// The restaurant.
    ///
    /// # Errors
    /// When the cluster was started without.
    pub fn restaurant(&self) -> Result<&Tenant> {
        self.restaurant.as_ref().context("this cluster has no restaurant")
    }

    /// The sample-apiserver.
    ///
    /// # Errors
    /// When the cluster was started without.
    pub fn wardle(&self) -> Result<&Tenant> {
        self.wardle.as_ref().context("this cluster has no sample-apiserver")
    }

    /// What stands in for a node.
    ///
    /// # Errors
    /// When the cluster was started without a proxy-controller.
    pub fn node(&self) -> Result<&Node> {
        self.node.as_ref().context("this cluster has no node, since it has no proxy-controller")
    }

    /// The proxy-controller.
    ///
    /// # Errors
    /// When the cluster was started without.
    pub fn controller(&self) -> Result<&ProxyController> {
        self.controller.as_ref().context("this cluster has no proxy-controller")
    }

    /// Every process of it.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        let tenants = self.restaurant.iter().chain(&self.wardle);
        [&self.etcd.process, &self.kube_apiserver.process, &self.controller_manager.process]
            .into_iter()
            .chain(self.controller.iter().flat_map(ProxyController::processes))
            .chain(tenants.flat_map(Tenant::processes))
    }

    /// Lets everything run on after this program's end, `program` being xtask: what this process does for the cluster
    /// itself, the delivery of Secrets and the way to Services, becomes a process of its own.
    ///
    /// # Errors
    /// When that cannot be started.
    pub fn detach(mut self, program: &Path) -> Result<()> {
        if let Some(node) = self.node.take() {
            node.hand_over(program, &self.tools)?.detach();
        }
        self.processes().for_each(Process::detach);
        Ok(())
    }

    /// Ends everything and leaves nothing.
    ///
    /// # Errors
    /// When a process or a file resists.
    pub fn remove(self) -> Result<()> {
        let site = self.site.clone();
        drop(self);
        site.remove()
    }
}

impl Tenant {
    fn start(ground: &Ground<'_>, options: &TenantOptions, name: &str, api: Api) -> Result<Self> {
        let Ground { site, tools, etcd, apiserver, node } = *ground;
        let mut proxy = None;
        let mut managed = None;
        let storage = match &options.store {
            Store::Proxy(program) => {
                let step = Progress::start(format!("etcd-proxy for {name}"));
                let proxy = proxy.insert(EtcdProxy::start(site, tools, program, etcd, name)?);
                step.done();
                Storage { endpoint: proxy.endpoint(api.server)?, prefix: None }
            }
            Store::Managed(program) => {
                let node = node.context("a managed proxy needs the proxy-controller")?;
                let (namespace, name) = (api.namespace, api.etcd_proxy.name);
                let step = Progress::start(format!("EtcdProxy {namespace}/{name} for {}", api.server));
                api.apply_etcd_proxy(apiserver.admin())?;
                let managed = managed.insert(ManagedProxy::start(node, program, api.namespace, api.etcd_proxy.name)?);
                step.done();
                Storage { endpoint: managed.endpoint(node)?, prefix: None }
            }
            Store::Shared => Storage {
                endpoint: etcd.endpoint(api.server)?,
                prefix: Some(format!("/{name}/registry/{}", api.group)),
            },
        };
        let step = Progress::start(format!("{} in namespace {}, aggregated", api.server, api.namespace));
        let server = AggregatedServer::start(site, tools, &options.server, apiserver, &storage, api)?;
        step.done();
        Ok(Self { server, proxy, managed })
    }

    /// Its proxy, which was provided by hand.
    ///
    /// # Errors
    /// When it is not behind one.
    pub fn proxy(&self) -> Result<&EtcdProxy> {
        self.proxy.as_ref().context("this tenant is not behind a proxy that was provided by hand")
    }

    /// Its proxy, which the proxy-controller provided.
    ///
    /// # Errors
    /// When it is not behind one.
    pub fn managed(&self) -> Result<&ManagedProxy> {
        self.managed.as_ref().context("this tenant is not behind a proxy of the proxy-controller")
    }

    fn processes(&self) -> impl Iterator<Item = &Process> {
        let managed = self.managed.iter().flat_map(ManagedProxy::pods).map(|pod| &pod.process);
        self.proxy.iter().map(|proxy| &proxy.process).chain(managed).chain([&self.server.process])
    }
}
