//! The restaurant's session, word for word, through the real kube-apiserver with the real kubectl.

use anyhow::{Context, Result, ensure};
use xtask::cluster::{Cluster, Kubectl, Options};

const REFUSAL: &str = "Error from server (Forbidden): error when creating \"pizza-margherita.yaml\": \
    pizzas.restaurant.programming-kubernetes.info \"margherita\" is forbidden: unknown topping: mozzarella\n";

/// How often the end of the session is repeated: a topping that was just deleted must be gone every time.
const ROUNDS: usize = 200;

/// Runs a command as the session shows it and compares standard output to the letter.
fn says(kubectl: &Kubectl, command: &str, expected: &str) -> Result<()> {
    let args: Vec<&str> = command.split(' ').collect();
    let stdout = kubectl.ok(&args)?;
    ensure!(stdout == expected, "`kubectl {command}` said\n{stdout}and not\n{expected}");
    Ok(())
}

/// Runs a command and sees that its output holds these lines in this order, next to each other.
fn holds(kubectl: &Kubectl, command: &str, lines: &str) -> Result<()> {
    let args: Vec<&str> = command.split(' ').collect();
    let stdout = kubectl.ok(&args)?;
    ensure!(stdout.contains(lines), "`kubectl {command}` said\n{stdout}without\n{lines}");
    Ok(())
}

#[test]
fn the_session_word_for_word() -> Result<()> {
    let cluster = Cluster::start(Options::of_test("session")?.with_restaurant()?)?;
    let kubectl = cluster.kubectl().in_folder(e2e::examples());

    let available = "get apiservices v1beta1.restaurant.programming-kubernetes.info --no-headers";
    holds(&kubectl, available, "restaurant/api   True")?;
    let none = kubectl.run(&["get", "pizzas"])?;
    ensure!(none.stdout.is_empty() && none.stderr == "No resources found in default namespace.\n", "{none:?}");
    let toppings = "create -f topping-mozzarella.yaml -f topping-salami.yaml -f topping-tomato.yaml";
    let toppings_created = "topping.restaurant.programming-kubernetes.info/mozzarella created\n\
         topping.restaurant.programming-kubernetes.info/salami created\n\
         topping.restaurant.programming-kubernetes.info/tomato created\n";
    says(&kubectl, toppings, toppings_created)?;
    let margherita = "create -f pizza-margherita.yaml";
    let margherita_created = "pizza.restaurant.programming-kubernetes.info/margherita created\n";
    says(&kubectl, margherita, margherita_created)?;
    let yaml = "get pizza margherita -o yaml";
    holds(&kubectl, yaml, "apiVersion: restaurant.programming-kubernetes.info/v1beta1\nkind: Pizza\n")?;
    holds(
        &kubectl,
        yaml,
        "spec:\n  toppings:\n  - name: mozzarella\n    quantity: 1\n  - name: tomato\n    quantity: 1\n",
    )?;
    holds(&kubectl, yaml, "  cost: 1.1\n")?;
    says(&kubectl, "create -f empty-pizza.yaml", "pizza.restaurant.programming-kubernetes.info/salami created\n")?;
    let filled = "spec:\n  toppings:\n  - name: salami\n    quantity: 1\n  - name: mozzarella\n    quantity: 1\n  - name: tomato\n    quantity: 1\n";
    holds(&kubectl, "get pizza salami -o yaml", filled)?;
    let old = "get pizzas.v1alpha1.restaurant.programming-kubernetes.info salami -o yaml";
    holds(&kubectl, old, "apiVersion: restaurant.programming-kubernetes.info/v1alpha1\n")?;
    holds(&kubectl, old, "spec:\n  toppings:\n  - salami\n  - mozzarella\n  - tomato\n")?;

    for round in 0..ROUNDS {
        end(&kubectl).with_context(|| format!("round {round}"))?;
        says(&kubectl, toppings, toppings_created).with_context(|| format!("round {round}"))?;
        says(&kubectl, margherita, margherita_created).with_context(|| format!("round {round}"))?;
    }
    cluster.remove()
}

/// The last three commands: everything is deleted, and a pizza is refused.
fn end(kubectl: &Kubectl) -> Result<()> {
    kubectl.ok(&["delete", "pizzas", "--all"])?;
    kubectl.ok(&["delete", "toppings", "--all"])?;
    let refused = kubectl.run(&["create", "-f", "pizza-margherita.yaml"])?;
    ensure!(refused.status.code() == Some(1) && refused.stdout.is_empty() && refused.stderr == REFUSAL, "{refused:?}");
    Ok(())
}
