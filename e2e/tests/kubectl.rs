//! kubectl's other commands on the restaurant, each in a namespace of its own.

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
    sync::OnceLock,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, ensure};
use e2e::Shared;
use serde_json::json;
use xtask::{
    cluster::{Kubectl, Options},
    poll,
};

static CLUSTER: Shared = Shared::new("kubectl", Options::with_restaurant);

const PIZZA: &str = "\
apiVersion: restaurant.programming-kubernetes.info/v1beta1
kind: Pizza
metadata:
  name: NAME
spec:
  toppings:
  - name: tomato
    quantity: 2
";

/// A namespace, and the toppings that all of them share.
fn kitchen(name: &str) -> Result<Kubectl> {
    static TOPPINGS: OnceLock<Result<String, String>> = OnceLock::new();
    const CREATE: [&str; 7] =
        ["create", "-f", "topping-mozzarella.yaml", "-f", "topping-salami.yaml", "-f", "topping-tomato.yaml"];
    let kubectl = CLUSTER.namespace(name)?;
    let created = TOPPINGS.get_or_init(|| kubectl.ok(&CREATE).map_err(|error| format!("{error:#}")));
    created.as_ref().map(|_| kubectl).map_err(|error| anyhow!("{error}"))
}

fn with(kubectl: &Kubectl, args: &[&str], name: &str) -> Result<String> {
    kubectl
        .run_with_input(args, &PIZZA.replace("NAME", name))?
        .success()
        .with_context(|| format!("kubectl {}", args.join(" ")))
}

#[test]
fn get_watches() -> Result<()> {
    let kubectl = kitchen("watching")?;
    with(&kubectl, &["create", "-f", "-"], "first")?;
    let mut child =
        kubectl.command(&["get", "pizzas", "-w", "-o", "name"]).stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("not piped")?).lines();
    let mut next = || lines.next().context("the watch ended")?.context("reading the watch");
    let outcome = (|| {
        ensure!(next()? == "pizza.restaurant.programming-kubernetes.info/first");
        with(&kubectl, &["create", "-f", "-"], "second")?;
        ensure!(next()? == "pizza.restaurant.programming-kubernetes.info/second");
        kubectl.ok(&["label", "pizza", "second", "hot=yes"])?;
        ensure!(next()? == "pizza.restaurant.programming-kubernetes.info/second");
        kubectl.ok(&["delete", "pizza", "first"])?;
        ensure!(next()? == "pizza.restaurant.programming-kubernetes.info/first");
        Ok(())
    })();
    child.kill()?;
    child.wait()?;
    outcome
}

#[test]
fn explain_and_api_resources() -> Result<()> {
    let kubectl = kitchen("explaining")?;
    let text = kubectl.ok(&["explain", "pizza.spec"])?;
    ensure!(text.contains("GROUP:      restaurant.programming-kubernetes.info"), "{text}");
    ensure!(text.contains("VERSION:    v1beta1") && text.contains("toppings"), "{text}");
    let deep = kubectl.ok(&["explain", "pizza.spec.toppings.quantity"])?;
    ensure!(deep.contains("FIELD: quantity <integer>"), "{deep}");
    let old = kubectl.ok(&[
        "explain",
        "pizza.spec.toppings",
        "--api-version=restaurant.programming-kubernetes.info/v1alpha1",
    ])?;
    ensure!(old.contains("<[]string>"), "{old}");
    let resources =
        kubectl.ok(&["api-resources", "--api-group=restaurant.programming-kubernetes.info", "--no-headers"])?;
    let rows: Vec<Vec<&str>> = resources.lines().map(|line| line.split_whitespace().collect()).collect();
    let version = "restaurant.programming-kubernetes.info/v1beta1";
    ensure!(
        rows == [vec!["pizzas", "pz", version, "true", "Pizza"], vec!["toppings", "tp", version, "false", "Topping"]],
        "{resources}"
    );
    Ok(())
}

#[test]
fn apply_twice_and_change() -> Result<()> {
    let kubectl = kitchen("applying")?;
    let apply = ["apply", "-f", "-"];
    ensure!(with(&kubectl, &apply, "funghi")?.ends_with("/funghi created\n"));
    ensure!(with(&kubectl, &apply, "funghi")?.ends_with("/funghi unchanged\n"));
    let changed = PIZZA.replace("NAME", "funghi").replace("quantity: 2", "quantity: 3");
    let said = kubectl.run_with_input(&apply, &changed)?.success()?;
    ensure!(said.ends_with("/funghi configured\n"), "{said}");
    let pizza = kubectl.json(&["get", "pizza", "funghi"])?;
    ensure!(pizza.pointer("/spec/toppings") == Some(&json!([{"name": "tomato", "quantity": 3}])), "{pizza}");
    Ok(())
}

#[test]
fn patches() -> Result<()> {
    let kubectl = kitchen("patching")?;
    with(&kubectl, &["create", "-f", "-"], "plain")?;
    kubectl.ok(&[
        "patch",
        "pizza",
        "plain",
        "--type=json",
        "-p",
        r#"[{"op":"replace","path":"/spec/toppings/0/quantity","value":5}]"#,
    ])?;
    kubectl.ok(&["patch", "pizza", "plain", "--type=merge", "-p", r#"{"metadata":{"labels":{"hot":"yes"}}}"#])?;
    let pizza = kubectl.json(&["get", "pizza", "plain"])?;
    ensure!(
        pizza.pointer("/spec/toppings/0/quantity") == Some(&json!(5))
            && pizza.pointer("/metadata/labels/hot") == Some(&json!("yes")),
        "{pizza}"
    );
    let failed = kubectl.run(&[
        "patch",
        "pizza",
        "plain",
        "--type=json",
        "-p",
        r#"[{"op":"test","path":"/spec/toppings/0/quantity","value":1}]"#,
    ])?;
    ensure!(!failed.status.success(), "a test that does not hold must fail: {failed:?}");
    Ok(())
}

#[test]
fn delete_all_and_wait() -> Result<()> {
    let kubectl = kitchen("deleting")?;
    for name in ["one", "two"] {
        with(&kubectl, &["create", "-f", "-"], name)?;
    }
    kubectl.ok(&["wait", "pizza", "--all", "--for=jsonpath={.spec.toppings[0].name}=tomato", "--timeout=20s"])?;
    // Held back until its finalizer goes.
    kubectl.ok(&[
        "patch",
        "pizza",
        "two",
        "--type=merge",
        "-p",
        r#"{"metadata":{"finalizers":["example.com/oven"]}}"#,
    ])?;
    kubectl.ok(&["delete", "pizzas", "--all", "--wait=false"])?;
    poll::until("only the held pizza", Duration::from_secs(20), || {
        let left = kubectl.ok(&["get", "pizzas", "-o", "name"])?;
        ensure!(left == "pizza.restaurant.programming-kubernetes.info/two\n", "{left}");
        Ok(())
    })?;
    ensure!(kubectl.json(&["get", "pizza", "two"])?.pointer("/metadata/deletionTimestamp").is_some());
    kubectl.ok(&["patch", "pizza", "two", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#])?;
    kubectl.ok(&["wait", "pizza/two", "--for=delete", "--timeout=20s"])?;
    Ok(())
}

#[test]
fn dry_run_leaves_nothing() -> Result<()> {
    let kubectl = kitchen("dry-running")?;
    let said = with(&kubectl, &["create", "--dry-run=server", "-f", "-"], "ghost")?;
    ensure!(said == "pizza.restaurant.programming-kubernetes.info/ghost created (server dry run)\n", "{said}");
    ensure!(!kubectl.run(&["get", "pizza", "ghost"])?.status.success(), "a dry run left a pizza");
    // Everything but the storing is done: admission refuses.
    let unknown = PIZZA.replace("NAME", "ghost").replace("tomato", "pineapple");
    let refused = kubectl.run_with_input(&["create", "--dry-run=server", "-f", "-"], &unknown)?;
    ensure!(refused.stderr.contains("unknown topping: pineapple"), "{refused:?}");
    Ok(())
}
