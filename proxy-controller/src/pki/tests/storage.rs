//! The Secret that keeps the authority.

use std::collections::BTreeMap;

use super::{
    super::{Authority, Owner, PkiError, Stored},
    World,
};

/// An authority with a next, a present and a retired CA.
fn busy() -> (World, BTreeMap<String, Vec<u8>>) {
    let mut world = World::new();
    world.settled();
    for rotation in 1..=2 {
        world.wanted.rotation = rotation;
        world.settled();
        world.settled();
    }
    world.wanted.rotation = 3;
    world.blind();
    let files = world.files.clone().unwrap();
    (world, files)
}

#[test]
fn what_is_written_is_read() {
    let (world, files) = busy();
    let names: Vec<&str> = files.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "ca-1.crt",
            "ca-1.key",
            "ca-2.crt",
            "ca-2.key",
            "ca-3.crt",
            "ca-3.key",
            "ca-4.crt",
            "ca-4.key",
            "cross-3-1.crt",
            "cross-3-2.crt",
            "cross-4-1.crt",
            "cross-4-2.crt",
            "cross-4-3.crt",
            "state.json"
        ]
    );
    assert_eq!(Authority::decode(&files, &world.wanted.owner).unwrap().encode(), files);
}

#[test]
fn damage_of_any_file_is_an_error_that_names_it() {
    let (world, files) = busy();
    for file in files.keys() {
        let mut less = files.clone();
        less.remove(file);
        assert_eq!(
            Authority::decode(&less, &world.wanted.owner).unwrap_err(),
            PkiError::Missing { file: file.clone() }
        );
        let other = busy().1;
        for content in
            [Vec::new(), b"\xff\xfe".to_vec(), files[file][..files[file].len() / 2].to_vec(), other[file].clone()]
        {
            let mut damaged = files.clone();
            let same = content == files[file];
            damaged.insert(file.clone(), content);
            match Authority::decode(&damaged, &world.wanted.owner) {
                Err(PkiError::Damaged { file: named, what }) => {
                    let related = file.trim_end_matches(".key").trim_end_matches(".crt");
                    let cross = named.starts_with("cross");
                    assert!(
                        !file.ends_with(".key") || named == *file,
                        "{file} is damaged, and the error names {named}: {what}"
                    );
                    assert!(
                        named.starts_with(related) || cross,
                        "{file} is damaged, and the error names {named}: {what}"
                    );
                }
                Ok(_) => assert!(same, "{file}"),
                Err(error) => panic!("{file}: {error}"),
            }
        }
    }
}

#[test]
fn a_later_format_and_another_owner_are_refused() {
    let (world, mut files) = busy();
    let owner = Owner { uid: "another".into(), ..world.wanted.owner.clone() };
    assert!(matches!(Authority::decode(&files, &owner), Err(PkiError::Foreign { .. })));
    files.insert("state.json".into(), br#"{"format": 2, "anything": "else"}"#.to_vec());
    assert_eq!(Authority::decode(&files, &world.wanted.owner).unwrap_err(), PkiError::Format { found: 2, known: 1 });
}

#[test]
fn cas_out_of_order_are_damage() {
    let (world, files) = busy();
    let state = str::from_utf8(&files["state.json"]).unwrap();
    let mut wrong: serde_json::Value = serde_json::from_str(state).unwrap();
    wrong["lastGeneration"] = 3.into();
    let mut swapped: serde_json::Value = serde_json::from_str(state).unwrap();
    swapped["retired"].as_array_mut().unwrap().reverse();
    for state in [wrong, swapped] {
        let mut files = files.clone();
        files.insert("state.json".into(), state.to_string().into_bytes());
        let error = Authority::decode(&files, &world.wanted.owner).unwrap_err();
        assert!(matches!(&error, PkiError::Damaged { file, .. } if file == "state.json"), "{error}");
    }
}

/// The lines that hold the secret number of a key; the rest is the public key.
fn secrets(key: &str) -> impl Iterator<Item = &str> {
    key.lines().skip(1).take(2)
}

#[test]
fn no_key_is_shown() {
    let (mut world, files) = busy();
    let plan = world.settled();
    let shown = format!("{plan:?} {:#?} {:?}", plan.authority, world.stored);
    let leaf_keys = [&plan.serving.identity.key, &plan.clients["default"].identity.key];
    let ca_keys = files.iter().filter(|(name, _)| name.ends_with(".key")).map(|(_, key)| str::from_utf8(key).unwrap());
    for secret in ca_keys.chain(leaf_keys.map(String::as_str)).flat_map(secrets) {
        assert!(!shown.contains(secret));
    }
    assert!(!shown.contains("PRIVATE"));
}

#[test]
fn an_error_about_a_key_does_not_show_it() {
    let (world, files) = busy();
    for (name, key) in files.iter().filter(|(name, _)| name.ends_with(".key")) {
        let key = str::from_utf8(key).unwrap();
        for damage in [key.replace("PRIVATE KEY", "SECRET KEY"), key.replacen('M', "N", 1), key.replace('\n', " ")] {
            let mut files = files.clone();
            files.insert(name.clone(), damage.into_bytes());
            let error = Authority::decode(&files, &world.wanted.owner).unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(shown.contains(name.as_str()), "{shown}");
            assert!(secrets(key).all(|secret| !shown.contains(&secret[1..])), "{shown}");
        }
    }
}

#[test]
fn a_leaf_is_read_from_a_secret() {
    let mut files =
        BTreeMap::from([("tls.crt".to_owned(), b"chain".to_vec()), ("tls.key".to_owned(), b"key".to_vec())]);
    let identity = Stored::identity(&files).unwrap();
    assert_eq!((identity.chain.as_str(), identity.key.as_str()), ("chain", "key"));
    files.insert("tls.key".into(), vec![0xff]);
    assert_eq!(Stored::identity(&files), None);
    files.remove("tls.key");
    assert_eq!(Stored::identity(&files), None);
}
