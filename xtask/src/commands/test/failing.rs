//! Tests of other projects that fail without a proxy, too, and so show nothing of one.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

use super::foreign::Test;

/// A list of them, which is committed, with the versions of etcd that they fail on.
#[derive(Debug)]
pub(super) struct Failing(BTreeMap<Test, Vec<String>>);

impl Failing {
    /// Reads the list in `file`.
    ///
    /// # Errors
    /// When a line is not `PACKAGE TEST # VERSIONS OF ETCD: EXPLANATION`.
    pub(super) fn parse(file: &str, text: &str) -> Result<Self> {
        let mut list = BTreeMap::new();
        for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            let (test, versions) = entry(line).with_context(|| format!("{file}: {line:?}"))?;
            if list.insert(test, versions).is_some() {
                bail!("{file}: {line:?} stands there twice");
            }
        }
        Ok(Self(list))
    }

    /// Whether the test fails on this version of etcd, such as `v3.6.16`.
    pub(super) fn names(&self, test: &Test, version: &str) -> bool {
        let version = version.trim_start_matches('v');
        let of = |minor: &String| version.strip_prefix(minor.as_str()).is_some_and(|rest| rest.starts_with('.'));
        self.0.get(test).is_some_and(|versions| versions.iter().any(of))
    }

    /// Those on it.
    pub(super) fn tests(&self) -> impl Iterator<Item = &Test> {
        self.0.keys()
    }
}

/// `PACKAGE TEST # VERSIONS OF ETCD: EXPLANATION`
fn entry(line: &str) -> Result<(Test, Vec<String>)> {
    const FORM: &str = "write PACKAGE TEST # VERSIONS OF ETCD: EXPLANATION";
    let (test, why) = line.split_once(" # ").context(FORM)?;
    let (package, name) = test.trim().split_once(' ').context(FORM)?;
    let (versions, explanation) = why.split_once(": ").context(FORM)?;
    if explanation.trim().is_empty() {
        bail!("the explanation is missing");
    }
    let versions: Vec<String> = versions.split_whitespace().map(str::to_owned).collect();
    let is_minor = |version: &String| version.strip_prefix("3.").is_some_and(|minor| minor.parse::<u32>().is_ok());
    if versions.is_empty() || !versions.iter().all(is_minor) {
        bail!("{versions:?} are no versions such as 3.6");
    }
    Ok((Test { package: package.to_owned(), name: name.trim().to_owned() }, versions))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_entry_has_versions_and_a_reason() {
        let parse = |text| Failing::parse("list", text);
        for bad in ["p TestA # 3.6\n", "p TestA # : x\n", "p TestA # six: x\n", "p TestA # 3.6: \n", "TestA # 3.6: x\n"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(parse("p TestA # 3.6: x\np TestA # 3.5: y\n").is_err());
        let list = parse("# head\n\np TestA # 3.5 3.6: it is hard\n").unwrap();
        let test = |name: &str| Test { package: "p".into(), name: name.into() };
        for (name, version, expected) in [
            ("TestA", "v3.6.16", true),
            ("TestA", "v3.5.35", true),
            ("TestA", "v3.60.1", false),
            ("TestA", "v3.7.3", false),
            ("TestB", "v3.6.16", false),
        ] {
            assert_eq!(list.names(&test(name), version), expected, "{name} on {version}");
        }
    }
}
