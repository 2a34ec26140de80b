//! A short tour of the running demo: commands as a person types them, with their real output, each one checked.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::{
    cluster::{Cluster, Etcdctl, Kubectl, RESTAURANT, Tenant, WARDLE},
    poll,
    process::Outcome,
};

/// sample-apiserver's own example.
const FLUNDER: &str = "\
apiVersion: wardle.example.com/v1alpha1
kind: Flunder
metadata:
  name: my-first-flunder
  labels:
    sample-label: \"true\"
";

const UNKNOWN_TOPPING: &str = "\
apiVersion: restaurant.programming-kubernetes.info/v1alpha1
kind: Pizza
metadata:
  name: hawaii
spec:
  toppings: [mozzarella, pineapple]
";

/// Walks through it.
///
/// # Errors
/// When a command fails that should not, or says something else than it should.
pub(super) fn run(cluster: &Cluster) -> Result<()> {
    let kubectl = cluster.kubectl().in_folder(crate::root().join("manifests").join("examples"));
    println!("\n  export KUBECONFIG={}", kubectl.kubeconfig().display());
    println!("  cd manifests/examples");
    proxies(cluster, &kubectl)?;
    restaurant(&kubectl)?;
    wardle(&kubectl)?;
    keys(cluster)
}

fn restaurant(kubectl: &Kubectl) -> Result<()> {
    heading("The restaurant: a Rust API server behind its own etcd-proxy");
    let services = "get apiservices v1alpha1.restaurant.programming-kubernetes.info v1beta1.restaurant.programming-kubernetes.info";
    check(kubectl, services, "", &["True"])?;
    check(
        kubectl,
        "create -f topping-mozzarella.yaml -f topping-salami.yaml -f topping-tomato.yaml",
        "",
        &["topping.restaurant.programming-kubernetes.info/mozzarella created"],
    )?;
    check(
        kubectl,
        "create -f pizza-margherita.yaml -f empty-pizza.yaml",
        "",
        &["margherita created", "salami created"],
    )?;
    check(kubectl, "get toppings,pizzas", "", &["mozzarella", "margherita", "1.1"])?;
    check(
        kubectl,
        "get pizza margherita -o yaml",
        "",
        &["restaurant.programming-kubernetes.info/v1beta1", "quantity: 1"],
    )?;
    check(
        kubectl,
        "get pizzas.v1alpha1.restaurant.programming-kubernetes.info salami -o jsonpath={.spec.toppings}",
        "",
        &[r#"["salami","mozzarella","tomato"]"#],
    )?;
    check(kubectl, "explain pizza.spec", "", &["toppings"])?;
    let refused = show(kubectl, "create -f -", UNKNOWN_TOPPING)?;
    ensure!(
        !refused.status.success() && refused.stderr.contains("is forbidden: unknown topping: pineapple"),
        "a pizza with an unknown topping should have been refused"
    );
    Ok(())
}

fn wardle(kubectl: &Kubectl) -> Result<()> {
    heading("Go's sample-apiserver, unmodified, behind another proxy on the same etcd");
    check(kubectl, "create -f -", FLUNDER, &["flunder.wardle.example.com/my-first-flunder created"])?;
    check(kubectl, "get flunders --show-labels", "", &["my-first-flunder", "sample-label=true"])
}

/// What the controller made of two objects: what a tenant sees, and what lies where tenants have no rights.
fn proxies(cluster: &Cluster, kubectl: &Kubectl) -> Result<()> {
    heading("Two EtcdProxy objects, and what the proxy-controller made of them");
    let names = [RESTAURANT, WARDLE].map(|api| api.etcd_proxy.name);
    check(kubectl, "get etcdupstreams", "", &["default"])?;
    check(kubectl, "get etcdproxies --all-namespaces", "", &names)?;
    check(kubectl, "get secrets,configmaps,services --namespace=restaurant", "", &["restaurant-etcd-client"])?;
    let base = cluster.restaurant()?.managed()?.base();
    check(kubectl, "get deployments,services,endpointslices --namespace=etcd-proxy-system", "", &[base])?;
    println!(
        "\n  No node is here to run pods. The processes of the demo stand in for them, with the arguments of these\n  \
         Deployments and the Secrets delivered as files; READY stays False, as Kubernetes counts pods. Only these\n  \
         two run: an EtcdProxy that you add gets its objects, and no process behind them."
    );
    Ok(())
}

/// What each of them sees of the etcd that they share.
fn keys(cluster: &Cluster) -> Result<()> {
    heading("Where it all lies: the same etcdctl command, asked of each");
    let node = cluster.node()?;
    let tenants =
        [("the restaurant's proxy", cluster.restaurant()?), ("the sample-apiserver's proxy", cluster.wardle()?)];
    let mut named = false;
    for (who, tenant) in tenants {
        let etcdctl = tenant.managed()?.etcdctl(node, &cluster.tools)?;
        if !named {
            named = true;
            println!(
                "\n  # The proxy stands in for the cluster's DNS: it leads to Services by the names they have there."
            );
            let (proxy, program) = (node.network.proxy(), etcdctl.program().display());
            println!("  alias etcdctl='HTTPS_PROXY=http://{proxy} {program}'");
        }
        println!("\n  # Through {who}, with the certificate from the Secret in the tenant's namespace:");
        let keys = show_keys(&etcdctl, "")?;
        ensure!(!keys.is_empty(), "{who} shows no key at all");
        ensure!(keys.iter().all(|key| belongs(key, tenant)), "{who} shows keys that are not its tenant's: {keys:?}");
    }
    println!("\n  # On the shared etcd, what the tenants have, and a few of the cluster's own keys:");
    let etcdctl = cluster.etcd.etcdctl();
    for (_, tenant) in tenants {
        let prefix = tenant.managed()?.prefix();
        // Informers of the servers themselves may still be writing; what was shown must be there.
        let keys = poll::until("the tenant's keys on the shared etcd", Duration::from_secs(10), || {
            let keys = etcdctl.keys(prefix)?;
            ensure!(!keys.is_empty(), "none below {prefix}");
            Ok(keys)
        })?;
        print_command(etcdctl, prefix);
        print_some(&keys, 8);
    }
    let own = show_keys(etcdctl, "/registry/")?;
    ensure!(
        !own.iter().any(|key| key.contains("margherita") || key.contains("flunder")),
        "a tenant's object lies among the cluster's own keys"
    );
    Ok(())
}

/// Lists keys as a person would, with everything that the command needs to be pasted.
fn show_keys(etcdctl: &Etcdctl, prefix: &str) -> Result<Vec<String>> {
    print_command(etcdctl, prefix);
    let keys = etcdctl.keys(prefix)?;
    print_some(&keys, 8);
    Ok(keys)
}

fn print_command(etcdctl: &Etcdctl, prefix: &str) {
    let flags = etcdctl.flags();
    println!("\n  $ etcdctl {} \\", flags.join(" \\\n      "));
    println!("      get {prefix:?} --prefix --keys-only");
}

fn belongs(key: &str, tenant: &Tenant) -> bool {
    key.contains(tenant.server.api.group)
}

/// Shows a command and its output, and sees that it succeeds and says what it should.
fn check(kubectl: &Kubectl, args: &str, stdin: &str, expected: &[&str]) -> Result<()> {
    let outcome = show(kubectl, args, stdin)?;
    let stdout = outcome.success().with_context(|| format!("kubectl {args}"))?;
    for words in expected {
        ensure!(stdout.contains(words), "`kubectl {args}` should have said {words:?}");
    }
    Ok(())
}

fn show(kubectl: &Kubectl, args: &str, stdin: &str) -> Result<Outcome> {
    println!("\n  $ kubectl {args}");
    let words: Vec<&str> = args.split(' ').collect();
    if !stdin.is_empty() {
        print_indented(stdin, "  > ");
    }
    let outcome = kubectl.run_with_input(&words, stdin)?;
    print_indented(&outcome.stdout, "  ");
    print_indented(&outcome.stderr, "  ");
    Ok(outcome)
}

fn heading(text: &str) {
    println!("\n── {text}");
}

fn print_indented(text: &str, indent: &str) {
    for line in text.lines() {
        println!("{indent}{line}");
    }
}

fn print_some(lines: &[String], count: usize) {
    for line in lines.iter().take(count) {
        println!("  {line}");
    }
    if let Some(more) = lines.len().checked_sub(count).filter(|more| *more > 0) {
        println!("  … and {more} more");
    }
}
