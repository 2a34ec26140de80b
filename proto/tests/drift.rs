//! Holds our protocol buffers against those in the originals' own Go packages (etcd 3.7.3 and
//! `k8s.io/apimachinery` 0.37.2, pinned in `tools/descriptors`), in both directions.
//!
//! Both sides are descriptors; each is turned into a set of facts, one line each, of what counts
//! on the wire and in generated code. Comments, file names and options of gateways do not.

#![allow(clippy::unwrap_used, reason = "the helpers of a test may fail as the test may")]

#[path = "drift/facts.rs"]
mod facts;

use std::{collections::BTreeSet, env, process::Command};

use facts::facts;
use prost::Message as _;
use prost_types::{FileDescriptorSet, field_descriptor_proto::Type};

/// Packages that must be the same. Those of the restaurant are ours alone.
const PACKAGES: [&str; 6] =
    ["authpb", "etcdserverpb", "k8s.io.apimachinery.pkg.apis.meta.v1", "mvccpb", "v3electionpb", "v3lockpb"];

fn ours() -> FileDescriptorSet {
    FileDescriptorSet::decode(proto::FILE_DESCRIPTOR_SET).unwrap()
}

fn original() -> FileDescriptorSet {
    let Some(program) = env::var_os("TEST_DESCRIPTORS") else {
        panic!("TEST_DESCRIPTORS does not name the binary of tools/descriptors: run `cargo xtask test`");
    };
    let output = Command::new(&program)
        .output()
        .unwrap_or_else(|error| panic!("cannot run TEST_DESCRIPTORS={program:?}: {error}"));
    assert!(
        output.status.success(),
        "{program:?} ended with {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    FileDescriptorSet::decode(&*output.stdout).unwrap()
}

/// One line for each fact that only one side has: `-` is missing in ours, `+` is only in ours.
fn differences(ours: &FileDescriptorSet, original: &FileDescriptorSet) -> Vec<String> {
    let (ours, original) = (facts(ours, &PACKAGES), facts(original, &PACKAGES));
    let only = |a: &BTreeSet<String>, b: &BTreeSet<String>, sign| {
        a.difference(b).map(|fact| format!("{sign} {fact}")).collect::<Vec<_>>()
    };
    let mut lines = only(&original, &ours, '-');
    lines.extend(only(&ours, &original, '+'));
    // The two sides of one fact next to each other.
    lines.sort_by(|a, b| a[1..].cmp(&b[1..]));
    lines
}

#[test]
fn protos_are_those_of_the_originals() {
    let original = original();
    for package in PACKAGES {
        assert!(
            !facts(&original, &[package]).is_empty(),
            "the original has nothing in package {package}: tools/descriptors is broken"
        );
    }
    let differences = differences(&ours(), &original);
    assert!(
        differences.is_empty(),
        "protos/ differs from the originals (- missing here, + only here):\n{}",
        differences.join("\n")
    );
}

/// Each kind of change to one side has to come out, in either direction.
#[test]
fn the_comparison_sees_every_kind_of_change() {
    type Change = fn(&mut FileDescriptorSet);
    let changes: [(&str, Change); 14] = [
        ("message removed", |set| {
            file(set, "kv").message_type.remove(0);
        }),
        ("field removed", |set| {
            message(set, "kv", "PutRequest").field.pop();
        }),
        ("field renamed", |set| {
            message(set, "kv", "PutRequest").field[0].name = Some("name".into());
        }),
        ("field renumbered", |set| {
            message(set, "kv", "Compare").field.last_mut().unwrap().number = Some(9);
        }),
        ("label changed", |set| {
            message(set, "kv", "TxnRequest").field[0].set_label(prost_types::field_descriptor_proto::Label::Optional);
        }),
        ("type changed", |set| {
            message(set, "kv", "PutRequest").field[0].set_type(Type::String);
        }),
        ("type name changed", |set| {
            message(set, "kv", "TxnRequest").field[1].type_name = Some(".mvccpb.Event".into());
        }),
        ("moved out of a oneof", |set| {
            message(set, "kv", "Compare").field[4].oneof_index = None;
        }),
        ("packing changed", |set| {
            message(set, "watch", "WatchCreateRequest").field[4].options =
                Some(prost_types::FieldOptions { packed: Some(false), ..Default::default() });
        }),
        ("syntax changed", |set| file(set, "watch").syntax = None),
        ("nested enum value removed", |set| {
            message(set, "kv", "Compare").enum_type[0].value.pop();
        }),
        ("enum value renumbered", |set| {
            file(set, "maintenance").enum_type[0].value[2].number = Some(5);
        }),
        ("method removed", |set| {
            file(set, "kv").service[0].method.pop();
        }),
        ("streaming changed", |set| {
            file(set, "watch").service[0].method[0].client_streaming = None;
        }),
    ];
    let ours = ours();
    assert_eq!(differences(&ours, &ours), Vec::<String>::new());
    for (what, change) in changes {
        let mut changed = ours.clone();
        change(&mut changed);
        assert!(!differences(&ours, &changed).is_empty(), "unseen: {what}");
        assert!(!differences(&changed, &ours).is_empty(), "unseen: {what}");
    }
}

fn file<'a>(set: &'a mut FileDescriptorSet, name: &str) -> &'a mut prost_types::FileDescriptorProto {
    let path = format!("etcd/etcdserverpb/{name}.proto");
    set.file.iter_mut().find(|file| file.name() == path).unwrap()
}

fn message<'a>(set: &'a mut FileDescriptorSet, file_name: &str, name: &str) -> &'a mut prost_types::DescriptorProto {
    file(set, file_name).message_type.iter_mut().find(|message| message.name() == name).unwrap()
}
