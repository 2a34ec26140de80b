//! Checks and arithmetic of keys that the backends share.

use super::{ListRange, StorageError, WatchRange};

/// Refuses keys that are not `/`-separated text below the root.
pub(super) fn check_key(key: &str) -> Result<(), StorageError> {
    if key.len() > 1 && key.starts_with('/') {
        Ok(())
    } else {
        Err(StorageError::Internal(format!("the key {key:?} does not start with \"/\"")))
    }
}

/// Refuses a prefix that does not end at a separator: it would take in siblings that only start alike
/// (`/pizzas` and `/pizzas-old`).
pub(super) fn check_prefix(prefix: &str) -> Result<(), StorageError> {
    if prefix.starts_with('/') && prefix.ends_with('/') {
        Ok(())
    } else {
        Err(StorageError::Internal(format!("the prefix {prefix:?} does not start and end with \"/\"")))
    }
}

pub(super) fn check_list(range: &ListRange<'_>) -> Result<(), StorageError> {
    check_prefix(range.prefix)?;
    match range.start {
        Some(start) if !start.starts_with(range.prefix) => Err(StorageError::Internal(format!(
            "the start {start:?} of a list is not under its prefix {:?}",
            range.prefix
        ))),
        _ => Ok(()),
    }
}

pub(super) fn check_watch(range: WatchRange<'_>) -> Result<(), StorageError> {
    match range {
        WatchRange::Key(key) => check_key(key),
        WatchRange::Prefix(prefix) => check_prefix(prefix),
    }
}

/// The first key after all that start with `prefix`, which ends in `/`: the separator's successor in its place.
pub(super) fn prefix_end(prefix: &str) -> String {
    let mut end = prefix.strip_suffix('/').unwrap_or(prefix).to_owned();
    end.push('0');
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_lies_after_its_keys_and_before_its_siblings() {
        let end = prefix_end("/a/b/");
        for inside in ["/a/b/", "/a/b/c", "/a/b/\u{10ffff}"] {
            assert!(inside < end.as_str(), "{inside}");
        }
        for outside in ["/a/b0", "/a/bc", "/a/c"] {
            assert!(outside >= end.as_str(), "{outside}");
        }
    }

    #[test]
    fn a_prefix_that_takes_in_siblings_is_refused() {
        assert!(check_prefix("/a/b").is_err());
        assert!(check_prefix("a/").is_err());
        assert!(check_prefix("/").is_ok());
        assert!(check_key("").is_err());
        assert!(check_key("/").is_err());
        assert!(check_key("/a").is_ok());
    }
}
