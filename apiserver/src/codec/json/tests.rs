use serde::Deserialize;
use serde_json::Value;

use super::{MAX_DEPTH, SyntaxError, parse};
use crate::{
    codec::{self, human_duration, time, typed},
    test_vectors,
};

const CASES: &str = include_str!("../../../tests/vectors/printing/json.jsonl");

fn decode<T: for<'de> Deserialize<'de>>(text: &str) -> Result<T, String> {
    let node = parse(text.as_bytes()).map_err(|e| e.to_string())?;
    typed::decode(&node, &mut typed::Problems::new(true)).map_err(|e| e.to_string())
}

/// Go names its own types behind these words.
fn comparable(error: &str) -> &str {
    error.split(" into ").next().unwrap()
}

#[test]
fn floats_are_printed_as_go_does() {
    for case in test_vectors::lines(CASES) {
        let id = case["id"].as_str().unwrap();
        let Some(bits) = case["bits"].as_str() else { continue };
        let float = f64::from_bits(u64::from_str_radix(bits, 16).unwrap());
        #[derive(serde::Serialize)]
        struct Field(#[serde(with = "crate::number")] f64);
        if float.is_finite() {
            assert_eq!(codec::to_vec(&float).unwrap(), case["json"].as_str().unwrap().as_bytes(), "{id}");
            assert_eq!(codec::to_vec(&Field(float)).unwrap(), case["json"].as_str().unwrap().as_bytes(), "{id}");
        } else {
            assert_eq!(codec::to_vec(&Field(float)).unwrap_err().to_string(), case["error"], "{id}");
        }
    }
}

#[test]
fn numbers_are_read_as_go_does() {
    #[derive(Deserialize)]
    struct Int {
        #[serde(rename = "I32")]
        value: i32,
    }
    #[derive(Deserialize)]
    struct Float {
        #[serde(rename = "F")]
        value: f64,
    }
    for case in test_vectors::lines(CASES) {
        let id = case["id"].as_str().unwrap();
        let Some(text) = case["text"].as_str() else { continue };
        match decode::<Value>(text) {
            Ok(value) => {
                assert_eq!(codec::to_text(&value), case["json"], "{id}");
                assert_eq!(value.is_i64(), case["type"] == "int64", "{id}");
            }
            Err(error) => assert_eq!(comparable(&error), comparable(case["error"].as_str().unwrap()), "{id}"),
        }
        match decode::<Int>(&format!("{{\"I32\":{text}}}")) {
            Ok(int) => assert_eq!(i64::from(int.value), case["int32"].as_i64().unwrap(), "{id}"),
            Err(error) => assert_eq!(comparable(&error), comparable(case["int32Error"].as_str().unwrap()), "{id}"),
        }
        match decode::<Float>(&format!("{{\"F\":{text}}}")) {
            Ok(float) => {
                assert_eq!(codec::to_vec(&float.value).unwrap(), case["float64"].as_str().unwrap().as_bytes(), "{id}")
            }
            Err(error) => assert_eq!(comparable(&error), comparable(case["float64Error"].as_str().unwrap()), "{id}"),
        }
    }
}

#[test]
fn texts_are_printed_as_go_does() {
    for case in test_vectors::lines(CASES) {
        let id = case["id"].as_str().unwrap();
        let Some(bytes) = case["hex"].as_str() else { continue };
        // A text of ours is always UTF-8; what is not becomes so when it is read.
        let mut quoted = b"\"".to_vec();
        for byte in hex::decode(bytes).unwrap() {
            match byte {
                0..0x20 | b'"' | b'\\' => quoted.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
                byte => quoted.push(byte),
            }
        }
        quoted.push(b'"');
        let node = parse(&quoted).unwrap();
        let text: String = typed::decode(&node, &mut typed::Problems::new(true)).unwrap();
        // Go prints a byte that is no UTF-8 as an escape, and the character that stands for it as itself.
        let expected = case["json"].as_str().unwrap().replace("\\ufffd", "\u{fffd}");
        assert_eq!(codec::to_text(&Value::String(text)), expected, "{id}");
    }
}

#[test]
fn times_are_read_as_go_does() {
    for case in test_vectors::lines(include_str!("../../../tests/vectors/printing/times.jsonl")) {
        let id = case["id"].as_str().unwrap();
        let Ok(Value::String(text)) = serde_json::from_str(case["in"].as_str().unwrap()) else { continue };
        match time::parse(&text) {
            Ok(time) => {
                assert_eq!(time.as_second(), case["timeUnix"].as_i64().unwrap(), "{id}");
                let printed = codec::to_vec(&crate::meta::Time(time)).unwrap();
                // The zero time is Go's way to say "none".
                if case["time"] != "null" {
                    assert_eq!(printed, case["time"].as_str().unwrap().as_bytes(), "{id}");
                }
            }
            // The last days of the last year cannot be told by the time library.
            Err(_) if text.starts_with("9999-12-31") => {}
            Err(error) => assert_eq!(error, case["timeError"], "{id}"),
        }
    }
}

#[test]
fn ages_are_shown_as_go_does() {
    for case in test_vectors::lines(include_str!("../../../tests/vectors/printing/durations.jsonl")) {
        let nanoseconds = case["nanos"].as_i64().unwrap();
        // Ages are told in whole seconds; Go cuts what is less.
        assert_eq!(human_duration(nanoseconds / 1_000_000_000), case["human"], "{nanoseconds}");
    }
}

#[test]
fn depth_is_bounded_and_needs_no_stack() {
    let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(parse(deep(MAX_DEPTH).as_bytes()).is_ok());
    assert_eq!(parse(deep(MAX_DEPTH + 1).as_bytes()).unwrap_err(), SyntaxError::Depth);
    assert_eq!(parse("[".repeat(3_000_000).as_bytes()).unwrap_err(), SyntaxError::Depth);

    // The deepest document that is accepted survives everything that is done with one, on a small stack.
    let objects = format!("{}1{}", "{\"a\":".repeat(MAX_DEPTH), "}".repeat(MAX_DEPTH));
    let small = std::thread::Builder::new().stack_size(512 * 1024);
    small
        .spawn(move || {
            let node = parse(objects.as_bytes()).unwrap();
            let value: Value = typed::decode(&node, &mut typed::Problems::new(true)).unwrap();
            assert_eq!(codec::to_text(&value), objects);
            drop((node.clone(), value.clone(), node, value));
        })
        .unwrap()
        .join()
        .unwrap();
}
