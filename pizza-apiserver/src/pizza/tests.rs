use std::collections::BTreeMap;

use apiserver::{meta::ObjectMeta, scheme::Version};
use proptest::prelude::*;

use super::{Pizza, PizzaSpec, PizzaStatus, PizzaTopping, v1alpha1, v1beta1, validation};

fn metadata() -> impl Strategy<Value = ObjectMeta> {
    let labels = proptest::option::of(proptest::collection::btree_map("[a-z]{1,8}", "[a-z0-9]{0,8}", 0..3));
    ("[a-z][a-z0-9-]{0,20}[a-z0-9]", labels, any::<Option<u16>>()).prop_map(|(name, labels, generation)| ObjectMeta {
        name: Some(name),
        namespace: Some("default".to_owned()),
        labels,
        generation: generation.map(i64::from),
        ..ObjectMeta::default()
    })
}

fn status() -> impl Strategy<Value = PizzaStatus> {
    proptest::option::of(0.0..1e9_f64).prop_map(|cost| PizzaStatus { cost, conditions: Vec::new() })
}

prop_compose! {
    /// A pizza of the hub version that validation lets pass.
    fn hub()(metadata in metadata(), status in status(), toppings in proptest::collection::btree_map("[a-z]{1,6}", 1..9_i64, 1..20))
        -> Pizza {
        let toppings = toppings.into_iter().map(|(name, quantity)| PizzaTopping { name, quantity }).collect();
        Pizza { metadata, spec: PizzaSpec { toppings }, status }
    }
}

prop_compose! {
    fn alpha()(metadata in metadata(), status in status(), toppings in proptest::collection::vec("[a-c]{1,2}", 1..30)) -> v1alpha1::Pizza {
        let status = v1beta1::PizzaStatus { cost: status.cost, conditions: status.conditions };
        v1alpha1::Pizza { metadata, spec: v1alpha1::PizzaSpec { toppings }, status }
    }
}

fn multiset(names: &[String]) -> BTreeMap<&str, usize> {
    names.iter().fold(BTreeMap::new(), |mut counts, name| {
        *counts.entry(name.as_str()).or_default() += 1;
        counts
    })
}

proptest! {
    #[test]
    fn through_either_version_the_hub_stays_the_same(pizza in hub()) {
        prop_assume!(validation::spec(&pizza).is_empty());
        let before = pizza.clone();
        prop_assert_eq!(&v1beta1::Pizza::from_hub(&pizza).into_hub(), &pizza);
        prop_assert_eq!(&v1alpha1::Pizza::from_hub(&pizza).into_hub(), &pizza);
        prop_assert_eq!(before, pizza);
    }

    #[test]
    fn v1beta1_through_v1alpha1_is_the_identity(pizza in hub()) {
        let beta = v1beta1::Pizza::from_hub(&pizza);
        let alpha = v1alpha1::Pizza::from_hub(&beta.clone().into_hub());
        prop_assert_eq!(v1beta1::Pizza::from_hub(&alpha.into_hub()), beta);
    }

    #[test]
    fn v1alpha1_keeps_its_multiset_and_comes_to_rest(pizza in alpha()) {
        let once = v1alpha1::Pizza::from_hub(&pizza.clone().into_hub());
        prop_assert_eq!(multiset(&once.spec.toppings), multiset(&pizza.spec.toppings));
        let twice = v1alpha1::Pizza::from_hub(&once.clone().into_hub());
        prop_assert_eq!(twice, once);
    }

    #[test]
    fn json_round_trips(pizza in hub()) {
        let beta = v1beta1::Pizza::from_hub(&pizza);
        let json = serde_json::to_string(&beta).unwrap();
        prop_assert_eq!(serde_json::from_str::<v1beta1::Pizza>(&json).unwrap(), beta);
        let alpha = v1alpha1::Pizza::from_hub(&pizza);
        let json = serde_json::to_string(&alpha).unwrap();
        prop_assert_eq!(serde_json::from_str::<v1alpha1::Pizza>(&json).unwrap(), alpha);
    }

    #[test]
    fn defaulting_comes_to_rest_and_makes_valid_pizzas(mut pizza in alpha()) {
        pizza.set_defaults();
        let once = pizza.clone();
        pizza.set_defaults();
        prop_assert_eq!(&pizza, &once);
        prop_assert!(validation::spec(&pizza.into_hub()).is_empty());
    }
}

fn toppings(list: &[(&str, i64)]) -> Pizza {
    let toppings = list.iter().map(|(name, quantity)| PizzaTopping { name: (*name).to_owned(), quantity: *quantity });
    Pizza { spec: PizzaSpec { toppings: toppings.collect() }, ..Pizza::default() }
}

fn errors(pizza: &Pizza) -> String {
    validation::spec(pizza).to_string()
}

#[test]
fn an_empty_pizza_gets_the_default_toppings() {
    let mut beta = v1beta1::Pizza::default();
    beta.set_defaults();
    let expected = toppings(&[("salami", 1), ("mozzarella", 1), ("tomato", 1)]);
    assert_eq!(beta.into_hub(), expected);
    let mut alpha = v1alpha1::Pizza::default();
    alpha.set_defaults();
    assert_eq!(alpha.into_hub(), expected);
}

#[test]
fn a_quantity_left_out_is_one() {
    let mut pizza = v1beta1::Pizza::default();
    pizza.spec.toppings.push(v1beta1::PizzaTopping { name: "tomato".to_owned(), quantity: 0 });
    pizza.set_defaults();
    assert_eq!(pizza.into_hub(), toppings(&[("tomato", 1)]));
}

#[test]
fn messages_name_the_field_and_the_rule() {
    let cases = [
        (toppings(&[("tomato", -1)]), "spec.toppings[0].quantity: Invalid value: -1: cannot be negative or zero"),
        (toppings(&[("", 1)]), "spec.toppings[0].name: Invalid value: \"\": cannot be empty"),
        (toppings(&[("tomato", 1), ("tomato", 1)]), "spec.toppings[1].name: Invalid value: \"tomato\": must be unique"),
        (
            toppings(&[("tomato", 600), ("salami", 401)]),
            "spec.toppings: Invalid value: 1001: must not be more than 1000 portions in all",
        ),
    ];
    for (pizza, message) in cases {
        assert_eq!(errors(&pizza), message);
    }
    assert_eq!(errors(&toppings(&[("tomato", 1000)])), "");
    assert!(errors(&toppings(&[("Tomato!", 1)])).starts_with("spec.toppings[0].name: Invalid value: \"Tomato!\": "));
    let names: Vec<String> = (0..101).map(|n| format!("t{n}")).collect();
    let many: Vec<(&str, i64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
    assert_eq!(errors(&toppings(&many)), "spec.toppings: Too many: 101: must have at most 100 items");
}

#[test]
fn an_absurd_quantity_does_not_fill_the_memory_of_v1alpha1() {
    let pizza = toppings(&[("tomato", i64::MAX)]);
    assert!(v1alpha1::Pizza::from_hub(&pizza).spec.toppings.len() <= 1000);
    assert!(errors(&toppings(&[("tomato", i64::MAX), ("salami", i64::MAX)])).contains("portions in all"));
}
