use serde_json::Value as Json;

use super::{Duplicates, KeyFields, Type};
use crate::{
    Kind, MAX_DEPTH,
    fieldpath::Set,
    schema::openapi::{Models, UnknownFields},
    value::{Map, Value},
};

fn kitchen() -> Type {
    let definitions: serde_json::Map<String, Json> =
        serde_json::from_str(include_str!("../../tests/vectors/ssa/schemas.json")).unwrap();
    let definitions = definitions.iter().map(|(name, definition)| (name.as_str(), definition));
    let models = Models::new(definitions, UnknownFields::Refused).unwrap();
    models.kind(&Kind::new("kitchen.example.com/v1", "Kitchen")).unwrap()
}

fn value(json: &Json) -> Value {
    Value::try_from(json).unwrap()
}

/// Runs the cases of a file and tells how many there were.
fn cases(file: &str, mut check: impl FnMut(&Type, &Json)) -> usize {
    let of = kitchen();
    file.lines().map(|line| check(&of, &serde_json::from_str(line).unwrap())).count()
}

#[test]
fn values_are_checked() {
    let count = cases(include_str!("../../tests/vectors/compare/validate.jsonl"), |of, case| {
        let duplicates = match case["allowDuplicates"].as_bool().unwrap() {
            true => Duplicates::Allowed,
            false => Duplicates::Refused,
        };
        let found = of.check(value(&case["object"]), duplicates).err().map(|errors| errors.to_string());
        let (found, expected) = (found.as_deref(), case["error"].as_str());
        // What follows the kind of thing that was expected is Go's own syntax.
        let comparable = |text: &str| text.split(", got").next().unwrap().to_owned();
        assert_eq!(found.map(comparable), expected.map(comparable), "{}", case["id"]);
    });
    assert_eq!(count, 150);
}

#[test]
fn field_sets_are_those_of_go() {
    let count = cases(include_str!("../../tests/vectors/compare/fieldset.jsonl"), |of, case| {
        let typed = of.check(value(&case["object"]), Duplicates::Allowed).unwrap();
        let set = typed.to_field_set().unwrap();
        assert_eq!(set.to_json(), case["set"], "{}", case["id"]);
        assert_eq!(typed.named(&set).to_json(), case["named"], "{}", case["id"]);
    });
    assert_eq!(count, 250);
}

#[test]
fn comparisons_are_those_of_go() {
    let count = cases(include_str!("../../tests/vectors/compare/compare.jsonl"), |of, case| {
        let [old, new] = ["lhs", "rhs"].map(|side| of.check(value(&case[side]), Duplicates::Allowed).unwrap());
        let found = old.compare(&new).unwrap();
        assert_eq!(found.added.to_json(), case["added"], "{}", case["id"]);
        assert_eq!(found.modified.to_json(), case["modified"], "{}", case["id"]);
        assert_eq!(found.removed.to_json(), case["removed"], "{}", case["id"]);
        assert!(old.compare(&old).unwrap().is_same(), "{}", case["id"]);
    });
    assert_eq!(count, 400);
}

#[test]
fn merged_values_are_those_of_go() {
    let count = cases(include_str!("../../tests/vectors/compare/merge.jsonl"), |of, case| {
        let [live, config] = ["lhs", "rhs"].map(|side| of.check(value(&case[side]), Duplicates::Allowed).unwrap());
        match live.merge(&config) {
            Ok(merged) => assert_eq!(*merged.value(), value(&case["out"]), "{}", case["id"]),
            Err(errors) => assert_eq!(errors.to_string(), case["error"], "{}", case["id"]),
        }
    });
    assert_eq!(count, 400);
}

#[test]
fn what_is_removed_and_extracted_is_what_go_does() {
    let count = cases(include_str!("../../tests/vectors/compare/items.jsonl"), |of, case| {
        let typed = of.check(value(&case["object"]), Duplicates::Allowed).unwrap();
        let set = Set::from_json(case["set"].as_str().unwrap()).unwrap();
        assert_eq!(*typed.remove(&set).value(), value(&case["removed"]), "{}", case["id"]);
        let extracted = |keys| typed.extract(&set, keys).into_value();
        assert_eq!(extracted(KeyFields::Left), value(&case["extracted"]), "{}", case["id"]);
        assert_eq!(extracted(KeyFields::Added), value(&case["extractedWithKeys"]), "{}", case["id"]);
    });
    assert_eq!(count, 250);
}

#[test]
fn deep_values_have_no_type() {
    let nested = |depth: usize| {
        (0..depth).fold(Value::Null, |value, _| Map::from_iter([(std::sync::Arc::from("a"), value)]).into())
    };
    assert!(Type::deduced().check(nested(MAX_DEPTH), Duplicates::Refused).is_ok());
    let errors = Type::deduced().check(nested(MAX_DEPTH + 1), Duplicates::Refused).unwrap_err();
    assert!(errors.to_string().ends_with("nested deeper than 200 levels"), "{errors}");
}

#[test]
fn types_are_not_mixed() {
    let (a, b) = (Map::new().into(), Map::new().into());
    let (a, b) =
        (kitchen().check(a, Duplicates::Refused).unwrap(), Type::deduced().check(b, Duplicates::Refused).unwrap());
    assert!(a.compare(&b).is_err());
    assert!(a.merge(&b).is_err());
}

/// Lists of a size that takes seconds if anything looks at all pairs of items.
#[test]
fn long_lists_take_no_square_of_their_length() {
    let items = |from: i64, to: i64| {
        let item = |i| Map::from_iter([(std::sync::Arc::from("name"), format!("n{i}").into())]).into();
        let assoc = Value::list((from..to).rev().map(item));
        let spec: Value = Map::from_iter([(std::sync::Arc::from("assoc"), assoc)]).into();
        let object = Map::from_iter([(std::sync::Arc::from("spec"), spec)]).into();
        kitchen().check(object, Duplicates::Refused).unwrap()
    };
    let of = items(0, 20_000);
    let new = {
        let value = items(10_000, 30_000).into_value();
        of.of().check(value, Duplicates::Refused).unwrap()
    };
    let changed = of.compare(&new).unwrap();
    assert_eq!((changed.added.len(), changed.removed.len()), (20_000, 20_000));
    let merged = of.merge(&new).unwrap();
    assert_eq!(merged.value().at(&["spec", "assoc"]).unwrap().as_list().unwrap().len(), 30_000);
    let left = merged.remove(&changed.added);
    assert_eq!(left.value().at(&["spec", "assoc"]).unwrap().as_list().unwrap().len(), 20_000);
}
