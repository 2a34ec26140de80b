//! A pod of a Deployment as a process on this machine: what the kubelet would run, with nothing changed but addresses and
//! the places of mounted files.
//!
//! [`local_pod`] is strict: a field, an argument, a variable or a volume that it does not know is an error that names it,
//! so that nothing which a pod would be given is silently left out here.

mod arguments;
mod spec;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use self::spec::{Container, Deployment, EnvVar, Probe, Volume, VolumeMount};
use super::mounts::Projection;

/// A program that may be the container of a Deployment: what its arguments mean.
#[derive(Debug)]
pub struct Program {
    /// The container's name.
    pub name: &'static str,
    /// The words that may stand before its flags.
    pub subcommands: &'static [&'static str],
    /// Its flags, without dashes.
    pub flags: &'static [(&'static str, Flag)],
    /// The variables it may be given.
    pub variables: &'static [&'static str],
}

/// What the value of a flag is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flag {
    /// Passed on as it is.
    Value,
    /// True when it stands alone, or has `=true` or `=false`; passed on as it is.
    Switch,
    /// A file on a mounted volume.
    File,
    /// The address on which it serves, `0.0.0.0:port`, with or without a scheme.
    Listen,
    /// The address of its metrics and health, likewise.
    Metrics,
    /// The URL that it tells clients.
    Advertise,
}

/// Where a pod runs instead.
#[derive(Clone, Debug)]
pub struct Place {
    /// The name that the pod would have.
    pub pod: String,
    /// The folder for its volumes.
    pub volumes: PathBuf,
    /// Where it serves.
    pub listen: SocketAddr,
    /// Where it answers for metrics and health.
    pub metrics: SocketAddr,
    /// The URL that it tells clients, if not the Deployment's own.
    pub advertise: Option<String>,
}

/// A pod, ready to be run as a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalPod {
    /// The namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The ServiceAccount whose rights it has.
    pub service_account: String,
    /// The image that a cluster would pull.
    pub image: String,
    /// The arguments.
    pub args: Vec<String>,
    /// The variables.
    pub env: Vec<(String, String)>,
    /// What to mount in which folder.
    pub volumes: Vec<(PathBuf, Content)>,
    /// The local address for each port of the container, by number and by name.
    pub ports: BTreeMap<String, SocketAddr>,
    /// Where it tells whether it is ready, `http://…`.
    pub readiness: Option<String>,
}

/// What a volume holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Secrets and ConfigMaps.
    Objects(Projection),
    /// Nothing yet.
    Empty,
}

/// etcd-proxy, as the controller runs it.
pub const ETCD_PROXY: Program = Program {
    name: "etcd-proxy",
    subcommands: &["serve"],
    flags: &[
        ("endpoints", Flag::Value),
        ("cacert", Flag::File),
        ("cert", Flag::File),
        ("key", Flag::File),
        ("prefix", Flag::Value),
        ("meta-prefix", Flag::Value),
        ("name", Flag::Value),
        ("listen-client-urls", Flag::Listen),
        ("listen-metrics-urls", Flag::Metrics),
        ("advertise-client-urls", Flag::Advertise),
        ("cert-file", Flag::File),
        ("key-file", Flag::File),
        ("trusted-ca-file", Flag::File),
        ("client-cert-auth", Flag::Switch),
        ("client-cert-allowed-cn", Flag::Value),
        ("cert-reload-interval", Flag::Value),
        ("shutdown-delay", Flag::Value),
        ("drain-timeout", Flag::Value),
        ("quota-bytes", Flag::Value),
        ("quota-keys", Flag::Value),
        ("max-requests-per-second", Flag::Value),
        ("max-requests-burst", Flag::Value),
        ("max-concurrent-requests", Flag::Value),
        ("max-watches", Flag::Value),
        ("max-leases", Flag::Value),
        ("max-buffered-bytes", Flag::Value),
        ("compaction-policy", Flag::Value),
        ("allow-plaintext", Flag::Switch),
        ("log-format", Flag::Value),
        ("log-level", Flag::Value),
    ],
    variables: &["POD_NAME", "POD_NAMESPACE", "RUST_BACKTRACE"],
};

/// proxy-controller, as `manifests/controller` runs it.
pub const PROXY_CONTROLLER: Program = Program {
    name: "proxy-controller",
    subcommands: &["run"],
    flags: &[
        ("namespace", Flag::Value),
        ("proxy-image", Flag::Value),
        ("cluster-domain", Flag::Value),
        ("leader-elect", Flag::Switch),
        ("leader-elect-lease-duration", Flag::Value),
        ("leader-elect-renew-deadline", Flag::Value),
        ("leader-elect-retry-period", Flag::Value),
        ("webhook-listen", Flag::Listen),
        ("webhook-service", Flag::Value),
        ("webhook-configuration", Flag::Value),
        ("metrics-listen", Flag::Metrics),
        ("shutdown-delay", Flag::Value),
        ("concurrency", Flag::Value),
        ("log-format", Flag::Value),
        ("log-level", Flag::Value),
    ],
    variables: &["POD_NAME", "POD_NAMESPACE", "RUST_BACKTRACE"],
};

/// How the one container of a Deployment, as the API server shows it, runs as a process at `place`.
///
/// Replaced are only the addresses on which it listens, the URL that it tells clients, and the folders of its volumes.
///
/// # Errors
/// When the Deployment has a field, an argument, a variable, a volume or a mount that is not known here, or one whose
/// meaning cannot be kept: it is named.
pub fn local_pod(deployment: &Value, program: &Program, place: &Place) -> Result<LocalPod> {
    let name = |field: &str| deployment.pointer(&format!("/metadata/{field}")).and_then(Value::as_str);
    let what =
        format!("Deployment {}/{}", name("namespace").unwrap_or("(no namespace)"), name("name").unwrap_or("(no name)"));
    let deployment: Deployment = serde_json::from_value(deployment.clone()).with_context(|| what.clone())?;
    read(deployment, program, place).context(what)
}

fn read(deployment: Deployment, program: &Program, place: &Place) -> Result<LocalPod> {
    let namespace = deployment.metadata.namespace;
    let pod = deployment.spec.template.spec;
    let [container] = <[Container; 1]>::try_from(pod.containers)
        .map_err(|containers| anyhow::anyhow!("it has {} containers; one is known how to run", containers.len()))?;
    if container.name != program.name {
        bail!("its container is called {:?}, not {:?}", container.name, program.name);
    }
    if let Some(command) = container.command.first() {
        let is_program = Path::new(command).file_name().is_some_and(|name| name == program.name);
        if !is_program || container.command.len() > 1 {
            bail!("command {:?}: only {:?} alone is known", container.command, program.name);
        }
    }
    let volumes = volumes(&namespace, &pod.volumes, &container.volume_mounts, place)?;
    let context = Variables { namespace: &namespace, service_account: &pod.service_account_name, place };
    let env = context.read(&container.env, program)?;
    let mut ports = BTreeMap::new();
    let args = arguments::localize(&container.args, program, &env, &volumes, place, &mut ports)?;
    for port in &container.ports {
        let address = ports.get(&port.container_port.to_string()).copied();
        let address = address.with_context(|| format!("no argument listens on the port {:?}", port.container_port))?;
        ports.extend(port.name.clone().map(|name| (name, address)));
    }
    let readiness = container.readiness_probe.as_ref().map(|probe| readiness(probe, &ports)).transpose()?;
    Ok(LocalPod {
        namespace,
        name: place.pod.clone(),
        service_account: pod.service_account_name,
        image: container.image,
        args,
        env,
        volumes: volumes.into_iter().map(|mounted| (mounted.folder, mounted.content)).collect(),
        ports,
        readiness,
    })
}

/// A volume in the container and here.
struct Mounted {
    mount_path: PathBuf,
    folder: PathBuf,
    content: Content,
}

impl Mounted {
    /// Where a path of the container is here, if it lies on this volume.
    fn path(&self, path: &Path) -> Option<PathBuf> {
        let rest = path.strip_prefix(&self.mount_path).ok()?;
        Some(if rest.as_os_str().is_empty() { self.folder.clone() } else { self.folder.join(rest) })
    }
}

fn volumes(namespace: &str, volumes: &[Volume], mounts: &[VolumeMount], place: &Place) -> Result<Vec<Mounted>> {
    let mut mounted = Vec::new();
    for VolumeMount { name, mount_path, .. } in mounts {
        let volume = volumes.iter().find(|volume| volume.name == *name);
        let volume = volume.with_context(|| format!("volumeMount {name:?}: there is no volume of the name"))?;
        let content = volume.content(namespace).with_context(|| format!("volume {name:?}"))?;
        mounted.push(Mounted { mount_path: mount_path.clone(), folder: place.volumes.join(name), content });
    }
    for Volume { name, .. } in volumes {
        if !mounts.iter().any(|mount| mount.name == *name) {
            bail!("volume {name:?} is not mounted");
        }
    }
    Ok(mounted)
}

/// What variables may refer to.
struct Variables<'a> {
    namespace: &'a str,
    service_account: &'a str,
    place: &'a Place,
}

impl Variables<'_> {
    fn read(&self, env: &[EnvVar], program: &Program) -> Result<Vec<(String, String)>> {
        let mut read: Vec<(String, String)> = Vec::new();
        for EnvVar { name, value, value_from } in env {
            if !program.variables.contains(&name.as_str()) {
                bail!("env {name}: {} is not known to read it", program.name);
            }
            let value = match value_from {
                None => arguments::expand(value, &read),
                Some(source) => match source.field_ref.field_path.as_str() {
                    "metadata.namespace" => self.namespace.to_owned(),
                    "metadata.name" => self.place.pod.clone(),
                    "spec.serviceAccountName" => self.service_account.to_owned(),
                    "status.podIP" => self.place.listen.ip().to_string(),
                    other => bail!("env {name}: the field {other:?} is not known here"),
                },
            };
            read.push((name.clone(), value));
        }
        Ok(read)
    }
}

fn readiness(probe: &Probe, ports: &BTreeMap<String, SocketAddr>) -> Result<String> {
    let http = probe.http_get.as_ref().context("readinessProbe: only httpGet is known")?;
    let port = http.port.as_str().map_or_else(|| http.port.to_string(), str::to_owned);
    let address = ports.get(&port).with_context(|| format!("readinessProbe: nothing listens on the port {port:?}"))?;
    if http.scheme.as_deref().is_some_and(|scheme| scheme != "HTTP") {
        bail!("readinessProbe: only the scheme HTTP is known");
    }
    Ok(format!("http://{address}{}", http.path))
}
