//! A whole cluster on this machine: etcd, the control plane, tenants with their proxies and aggregated servers.
//!
//! [`Cluster::start`] brings everything up; each part is a struct of its own for tests that want less or more. What a
//! part is called, where it logs and where its data lies is the [`Site`]'s matter.

mod aggregated;
mod control_plane;
mod etcd;
mod informer;
mod kubectl;
mod proxy;

use std::path::PathBuf;

use anyhow::{Context, Result};

use self::aggregated::Storage;
pub use self::{
    aggregated::{AggregatedServer, Api, RESTAURANT, WARDLE, wait_unavailable},
    control_plane::{ControllerManager, FRONT_PROXY, KubeApiserver, MASTERS},
    etcd::{Endpoint, Etcd, Etcdctl},
    informer::{Event, Informer},
    kubectl::{Kubectl, Server},
    proxy::EtcdProxy,
};
use crate::{
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
    /// Through an etcd-proxy, which is this program.
    Proxy(PathBuf),
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
    /// Its proxy, if it is behind one.
    pub proxy: Option<EtcdProxy>,
}

impl Options {
    /// For the test called `name`: etcd and the control plane, from the programs that `cargo xtask test` names in variables.
    ///
    /// # Errors
    /// When the processes of an earlier test that was killed cannot be ended.
    pub fn of_test(name: &str) -> Result<Self> {
        site::end_abandoned(&site::of_tests())?;
        Ok(Self { dir: site::of_tests().join(name), tools: Tools::of_test(), restaurant: None, wardle: None })
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
        let Options { dir, tools, restaurant, wardle } = options;
        // Before anything runs: a build among the starts would outlast their time limits.
        for tool in [Tool::Etcd, Tool::Etcdctl, Tool::KubeApiserver, Tool::KubeControllerManager, Tool::Kubectl] {
            tools.path(tool)?;
        }
        let site = Site::create(&dir)?;
        let step = Progress::start("etcd");
        let etcd = Etcd::start(&site, &tools, Tool::Etcd)?;
        step.done();
        let step = Progress::start("kube-apiserver");
        let kube_apiserver = KubeApiserver::start(&site, &tools, &etcd)?;
        step.done();
        let controllers = Progress::start("kube-controller-manager");
        let controller_manager = ControllerManager::start(&site, &tools, &kube_apiserver)?;
        controller_manager.wait_ready()?;
        controllers.done();
        let start = |options: Option<TenantOptions>, name: &str, api: Api| {
            options.map(|options| Tenant::start(&site, &tools, &etcd, &kube_apiserver, &options, name, api)).transpose()
        };
        let restaurant = start(restaurant, "tenant-a", RESTAURANT)?;
        let wardle = start(wardle, "tenant-b", WARDLE)?;
        Ok(Self { restaurant, wardle, controller_manager, kube_apiserver, etcd, site, tools })
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

    /// Every process of it.
    pub fn processes(&self) -> impl Iterator<Item = &crate::process::Process> {
        let tenants = self.restaurant.iter().chain(&self.wardle);
        let tenants = tenants.flat_map(|tenant| {
            tenant.proxy.as_ref().map(|proxy| &proxy.process).into_iter().chain([&tenant.server.process])
        });
        [&self.etcd.process, &self.kube_apiserver.process, &self.controller_manager.process].into_iter().chain(tenants)
    }

    /// Lets everything run on after this program's end.
    pub fn detach(self) {
        self.processes().for_each(crate::process::Process::detach);
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
    fn start(
        site: &Site,
        tools: &Tools,
        etcd: &Etcd,
        apiserver: &KubeApiserver,
        options: &TenantOptions,
        name: &str,
        api: Api,
    ) -> Result<Self> {
        let (proxy, storage) = match &options.store {
            Store::Proxy(program) => {
                let step = Progress::start(format!("etcd-proxy for {name}"));
                let proxy = EtcdProxy::start(site, tools, program, etcd, name)?;
                step.done();
                let endpoint = proxy.endpoint(api.server)?;
                (Some(proxy), Storage { endpoint, prefix: None })
            }
            Store::Shared => (
                None,
                Storage {
                    endpoint: etcd.endpoint(api.server)?,
                    prefix: Some(format!("/{name}/registry/{}", api.group)),
                },
            ),
        };
        let step = Progress::start(format!("{} for {name}, aggregated", api.server));
        let server = AggregatedServer::start(site, tools, &options.server, apiserver, &storage, api)?;
        step.done();
        Ok(Self { server, proxy })
    }

    /// Its proxy.
    ///
    /// # Errors
    /// When it is not behind one.
    pub fn proxy(&self) -> Result<&EtcdProxy> {
        self.proxy.as_ref().context("this tenant is not behind a proxy")
    }
}
