use proptest::{collection::vec, prelude::*};

use super::{Filter, Path, PathElement, Pattern, Set};
use crate::{MAX_DEPTH, value::Value};

const SETS: &str = include_str!("../../tests/vectors/fieldpath/sets.jsonl");

fn set(text: &serde_json::Value) -> Set {
    Set::from_json(text.as_str().unwrap()).unwrap()
}

fn texts(set: &Set) -> serde_json::Value {
    set.paths().iter().map(ToString::to_string).collect()
}

#[test]
fn sets_are_those_of_go() {
    let mut counts = [0; 3];
    for line in SETS.lines() {
        let case: serde_json::Value = serde_json::from_str(line).unwrap();
        let id = &case["id"];
        match case["op"].as_str().unwrap() {
            "parse" => {
                counts[0] += 1;
                let found = Set::from_json(case["in"].as_str().unwrap());
                assert_eq!(found.is_err(), case.get("error").is_some(), "{id}");
                let Ok(found) = found else { continue };
                assert_eq!(found.to_json(), case["json"], "{id}");
                assert_eq!(texts(&found), case["paths"], "{id}");
                assert_eq!(found.len() as u64, case["size"], "{id}");
                assert_eq!(found.is_empty(), case["empty"], "{id}");
                // A name that stands there twice is lost where the text is read into a value.
                if !["parse-051", "parse-052"].contains(&id.as_str().unwrap()) {
                    let value: Value = serde_json::from_str(case["in"].as_str().unwrap()).unwrap();
                    assert_eq!(Set::from_value(&value).unwrap(), found, "{id}");
                }
                assert_eq!(serde_json::to_string(&found).unwrap(), case["json"], "{id}");
            }
            "element" => {
                counts[1] += 1;
                let found = case["in"].as_str().unwrap().parse::<PathElement>();
                assert_eq!(found.is_err(), case.get("error").is_some(), "{id}");
                if let Ok(found) = found {
                    assert_eq!(found.to_string(), case["string"], "{id}");
                    assert_eq!(found.to_wire(), case["json"], "{id}");
                }
            }
            "ops" => {
                counts[2] += 1;
                let (a, b) = (set(&case["a"]), set(&case["b"]));
                assert_eq!(a.union(&b).to_json(), case["union"], "{id}");
                assert_eq!(a.intersection(&b).to_json(), case["intersection"], "{id}");
                assert_eq!(a.difference(&b).to_json(), case["difference"], "{id}");
                assert_eq!(a.recursive_difference(&b).to_json(), case["recursiveDifference"], "{id}");
                assert_eq!(a.leaves().to_json(), case["leaves"], "{id}");
                assert_eq!(a == b, case["equals"], "{id}");
                assert_eq!(a.len() as u64, case["size"], "{id}");
                assert_eq!(texts(&a), case["paths"], "{id}");
            }
            other => panic!("{id}: unknown operation {other}"),
        }
    }
    assert_eq!(counts, [71, 23, 300]);
}

#[test]
fn sets_from_outside_are_bounded() {
    let nested = |depth: usize| {
        (0..depth)
            .fold(Value::Null, |value, _| crate::value::Map::from_iter([(std::sync::Arc::from("f:a"), value)]).into())
    };
    assert_eq!(Set::from_value(&nested(MAX_DEPTH)).unwrap().len(), 1);
    assert!(Set::from_value(&nested(MAX_DEPTH + 2)).is_err());
    let text = format!("{}{}", r#"{"f:a":"#.repeat(100_000), "}".repeat(100_000));
    assert!(Set::from_json(&text).is_err());
    assert!(format!("v:{}", "[".repeat(100_000)).parse::<PathElement>().is_err());

    let path: Path = vec![PathElement::field("a"); MAX_DEPTH + 1].into_iter().collect();
    let mut set = Set::new();
    assert!(!set.insert(path.elements()));
    assert!(!set.insert(&[]));
    assert!(set.is_empty());
    assert!(set.insert(&path.elements()[1..]));
    assert_eq!(set.len(), 1);
}

#[test]
fn many_unsorted_elements_are_read_soon() {
    let names: Vec<_> = (0..100_000).rev().map(|i| format!(r#""v:{i}":{{}}"#)).collect();
    let set = Set::from_json(&format!("{{{}}}", names.join(","))).unwrap();
    assert_eq!(set.len(), 100_000);
    assert_eq!(set.paths()[10].to_string(), "[=10]");
}

#[test]
fn patterns_take_what_starts_like_them() {
    let set =
        |paths: &[&[&str]]| paths.iter().map(|path| Path::fields(path)).collect::<Vec<_>>().iter().collect::<Set>();
    let all = set(&[&["spec"], &["spec", "a"], &["spec", "a", "b"], &["spec", "c"], &["status"]]);
    let (spec, a) = (Some(PathElement::field("spec")), Some(PathElement::field("a")));
    let include =
        |prefixes: &[&[Option<PathElement>]]| Filter::Include(Pattern::prefixes(prefixes.iter().copied())).apply(&all);
    assert_eq!(include(&[&[spec.clone(), a.clone()]]), set(&[&["spec"], &["spec", "a"], &["spec", "a", "b"]]));
    assert_eq!(include(&[&[None, a]]), set(&[&["spec"], &["spec", "a"], &["spec", "a", "b"], &["status"]]));
    assert_eq!(include(&[&[spec]]), set(&[&["spec"], &["spec", "a"], &["spec", "a", "b"], &["spec", "c"]]));
    assert_eq!(include(&[]), Set::new());
    assert_eq!(Filter::Exclude(set(&[&["spec", "a"]])).apply(&all), set(&[&["spec"], &["spec", "c"], &["status"]]));
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        (-2_i64..3).prop_map(|value| Value::Float(value as f64)),
        "[ab\"<é]{0,2}".prop_map(Value::from),
        any::<bool>().prop_map(Value::Bool),
        Just(Value::Float(1.5)),
        Just(Value::Null),
    ]
}

fn element() -> impl Strategy<Value = PathElement> {
    prop_oneof![
        4 => "[a-c.]{0,2}".prop_map(|name| PathElement::field(&name)),
        2 => vec(("[a-b]", scalar()), 0..3).prop_map(|fields| {
            PathElement::key(fields.into_iter().map(|(name, value)| (name.into(), value)))
        }),
        2 => scalar().prop_map(PathElement::Value),
        1 => (-1_i64..3).prop_map(PathElement::Index),
    ]
}

fn path() -> impl Strategy<Value = Path> {
    vec(element(), 1..4).prop_map(|elements| elements.into_iter().collect())
}

fn paths() -> impl Strategy<Value = Vec<Path>> {
    vec(path(), 0..12)
}

/// Whether a path is at or below one of a set.
fn below(set: &Set, path: &Path) -> bool {
    (1..=path.elements().len()).any(|length| set.contains(&path.elements()[..length]))
}

proptest! {
    #[test]
    fn a_set_holds_what_was_put_in(paths in paths(), other in path()) {
        let set: Set = paths.iter().collect();
        prop_assert!(paths.iter().all(|path| set.contains(path.elements())));
        prop_assert_eq!(set.contains(other.elements()), paths.contains(&other));
        let found = set.paths();
        prop_assert_eq!(found.len(), set.len());
        prop_assert!(found.iter().all(|path| paths.contains(path)));
    }

    #[test]
    fn operations_are_those_of_sets(a in paths(), b in paths(), more in paths()) {
        let (set_a, set_b): (Set, Set) = (a.iter().collect(), b.iter().collect());
        let results = [
            set_a.union(&set_b), set_a.intersection(&set_b), set_a.difference(&set_b), set_a.recursive_difference(&set_b),
        ];
        for path in a.iter().chain(&b).chain(&more) {
            let (in_a, in_b) = (a.contains(path), b.contains(path));
            let expected = [in_a || in_b, in_a && in_b, in_a && !in_b, in_a && !below(&set_b, path)];
            for (result, expected) in results.iter().zip(expected) {
                prop_assert_eq!(result.contains(path.elements()), expected, "{}", path);
            }
        }
        for result in &results {
            // Equal sets have equal trees, so no empty node was left behind.
            prop_assert_eq!(&result.paths().iter().collect::<Set>(), result);
        }
    }

    #[test]
    fn operations_obey_their_laws(a in paths(), b in paths(), c in paths()) {
        let [a, b, c]: [Set; 3] = [&a, &b, &c].map(|paths| paths.iter().collect());
        prop_assert_eq!(a.union(&b), b.union(&a));
        prop_assert_eq!(a.intersection(&b), b.intersection(&a));
        prop_assert_eq!(a.union(&b).union(&c), a.union(&b.union(&c)));
        prop_assert_eq!(a.intersection(&b.union(&c)), a.intersection(&b).union(&a.intersection(&c)));
        prop_assert_eq!(a.difference(&b.union(&c)), a.difference(&b).difference(&c));
        prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
        prop_assert!(a.difference(&b).intersection(&b).is_empty());
        prop_assert_eq!(a.union(&a.clone()), a.clone());
        prop_assert!(a.difference(&a.clone()).is_empty());
    }

    #[test]
    fn sets_are_read_as_they_were_written(paths in paths()) {
        let set: Set = paths.iter().collect();
        prop_assert_eq!(&Set::from_json(&set.to_json()).unwrap(), &set);
        prop_assert_eq!(&Set::from_value(&set.to_value()).unwrap(), &set);
        prop_assert_eq!(serde_json::to_string(&set).unwrap(), set.to_json());
    }

    #[test]
    fn elements_are_ordered(a in element(), b in element(), c in element()) {
        prop_assert_eq!(a.compare(&b), b.compare(&a).reverse());
        prop_assert_eq!(a.compare(&b).is_eq(), a == b);
        if a.compare(&b).is_le() && b.compare(&c).is_le() {
            prop_assert!(a.compare(&c).is_le());
        }
        prop_assert_eq!(a.to_wire().parse::<PathElement>().unwrap(), a);
    }

    #[test]
    fn any_text_is_a_set_or_an_error(text in r#"[{}:".,fvki\\\[\]0-9a ]{0,30}"#) {
        if let Ok(set) = Set::from_json(&text) {
            prop_assert_eq!(Set::from_json(&set.to_json()).unwrap(), set);
        }
    }
}
