use std::cmp::Ordering;

use super::{Map, Value, json};
use crate::MAX_DEPTH;

const VALUES: &str = include_str!("../../tests/vectors/compare/values.jsonl");

fn nested(depth: usize) -> serde_json::Value {
    (0..depth).fold(serde_json::Value::Null, |value, _| serde_json::json!([value]))
}

#[test]
fn values_have_gos_order() {
    let mut count = 0;
    for line in VALUES.lines() {
        let case: serde_json::Value = serde_json::from_str(line).unwrap();
        let value = |name: &str, float: &str| {
            let value = Value::try_from(&case[name]).unwrap();
            match (value, case[float].as_bool()) {
                #[expect(clippy::cast_precision_loss, reason = "small numbers")]
                (Value::Int(value), Some(true)) => Value::Float(value as f64),
                (value, _) => value,
            }
        };
        let (a, b) = (value("a", "aFloat"), value("b", "bFloat"));
        let order = match case["result"].as_i64().unwrap() {
            -1 => Ordering::Less,
            0 => Ordering::Equal,
            _ => Ordering::Greater,
        };
        assert_eq!(a.compare(&b), order, "{}", case["id"]);
        assert_eq!(a == b, case["equals"].as_bool().unwrap(), "{}", case["id"]);
        count += 1;
    }
    assert_eq!(count, 729);
}

#[test]
fn large_integers_are_compared_as_go_does_and_sorted_exactly() {
    let (odd, even) = (Value::Int((1 << 53) + 1), Value::Float(9_007_199_254_740_992.0));
    assert_eq!(odd.compare(&even), Ordering::Equal);
    assert_eq!(odd, even);
    assert_eq!(odd.order(&even, super::Numbers::Exactly), Ordering::Greater);
    assert_eq!(even.order(&odd, super::Numbers::Exactly), Ordering::Less);
}

#[test]
fn numbers_are_kept_as_kubernetes_keeps_them() {
    let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert!(matches!(read("9223372036854775807"), Value::Int(i64::MAX)));
    assert!(matches!(read("9223372036854775808"), Value::Float(_)));
    assert!(matches!(read("1.0"), Value::Float(_)));
    assert_eq!(
        serde_json::to_string(&read(r#"{"b":[1.0,1.5,null,true],"a":"x"}"#)).unwrap(),
        r#"{"a":"x","b":[1,1.5,null,true]}"#
    );
}

#[test]
fn the_last_of_two_entries_counts() {
    let value: Value = serde_json::from_str(r#"{"b":1,"a":2,"b":3,"b":4}"#).unwrap();
    assert_eq!(serde_json::to_string(&value).unwrap(), r#"{"a":2,"b":4}"#);
}

#[test]
fn deep_values_are_refused() {
    assert!(Value::try_from(&nested(MAX_DEPTH)).is_ok());
    assert_eq!(Value::try_from(&nested(MAX_DEPTH + 1)), Err(super::TooDeep));
    assert!(serde_json::from_value::<Value>(nested(MAX_DEPTH)).is_ok());
    assert!(serde_json::from_value::<Value>(nested(MAX_DEPTH + 1)).is_err());
}

#[test]
fn entries_are_set_and_taken() {
    let mut map = Map::new();
    assert_eq!(map.insert("b", Value::Int(1)), None);
    assert_eq!(map.insert("a", Value::Int(2)), None);
    assert_eq!(map.insert("b", Value::Int(3)), Some(Value::Int(1)));
    assert_eq!(map.remove("a"), Some(Value::Int(2)));
    assert_eq!((map.len(), map.get("b")), (1, Some(&Value::Int(3))));
}

#[test]
fn json_is_written_as_gos_encoders_do() {
    let text = |value: &str, encoder| {
        let mut out = String::new();
        json::write(&serde_json::from_str(value).unwrap(), encoder, &mut out);
        out
    };
    let value = r#"["<\b\u2028\u0001",1e-7,1e21,1e20]"#;
    let (standard, iterator) = (json::Encoder::Standard, json::Encoder::Iterator);
    assert_eq!(text(value, standard), r#"["\u003c\b\u2028\u0001",1e-7,1e+21,100000000000000000000]"#);
    assert_eq!(text(value, iterator), r#"["\u003c\u0008\u2028\u0001",1e-07,1e+21,100000000000000000000]"#);
}
