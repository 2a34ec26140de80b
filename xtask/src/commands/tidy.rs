//! `cargo xtask tidy`: rules of the project that no other tool knows.

use std::{
    path::{Path, PathBuf},
    process::Command as Process,
};

use anyhow::{Context, Result, bail};
use clap::Args;

/// Check the project's own rules.
#[derive(Debug, Args)]
pub struct Command {}

/// Rust files longer than this no longer tell one story.
const MAX_LINES: usize = 800;

/// Larger files are no source.
const MAX_BYTES: u64 = 1024 * 1024;

/// Folders that exist on one machine only. In pieces, or this file would break its own rule.
const MACHINE_PATHS: [&str; 4] =
    [concat!("/", "root/"), concat!("/", "home/"), concat!("/", "work/"), concat!("/", "Users/")];

/// Macros that stand for something unfinished.
const UNFINISHED: [&str; 2] = [concat!("todo", "!("), concat!("unimplemented", "!(")];

/// Runs the command.
///
/// # Errors
/// When a rule is broken.
pub fn run(_: &Command) -> Result<()> {
    let broken = check(&crate::root())?;
    for rule in &broken {
        println!("{rule}");
    }
    if !broken.is_empty() {
        bail!("{} rules are broken", broken.len());
    }
    Ok(())
}

/// Checks a source tree and tells what is broken, as `file:line: rule`.
///
/// # Errors
/// When git cannot list the files, or one cannot be read.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    for file in files(root)? {
        let path = root.join(&file);
        // A file that is deleted but not yet committed so is still listed; a link's target is checked by itself.
        let Ok(metadata) = path.symlink_metadata() else { continue };
        if !metadata.is_file() || is_generated(&file) {
            continue;
        }
        if metadata.len() > MAX_BYTES {
            broken.push(format!(
                "{}: {} bytes; keep large files out of the source tree",
                file.display(),
                metadata.len()
            ));
            continue;
        }
        // What is not text has no lines to check.
        let bytes = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        if let Ok(text) = String::from_utf8(bytes) {
            broken.extend(check_text(root, &file, &text));
        }
    }
    broken.extend(check_manifests(root)?);
    Ok(broken)
}

/// The files that git knows of or would take in.
fn files(root: &Path) -> Result<Vec<PathBuf>> {
    let output = Process::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("starting git")?;
    if !output.status.success() {
        bail!("git ls-files: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).split('\0').filter(|name| !name.is_empty()).map(PathBuf::from).collect())
}

fn is_generated(file: &Path) -> bool {
    file.extension().is_some_and(|ending| ending == "lock" || ending == "sum")
}

fn check_text(root: &Path, file: &Path, text: &str) -> Vec<String> {
    let rust = file.extension().is_some_and(|ending| ending == "rs");
    let markdown = file.extension().is_some_and(|ending| ending == "md");
    let mut broken = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut tell = |rule: String| broken.push(format!("{}:{}: {rule}", file.display(), index + 1));
        if let Some(path) = MACHINE_PATHS.iter().find(|path| has_path(line, path)) {
            tell(format!("{path} is a path of one machine"));
        }
        if rust && let Some(word) = UNFINISHED.iter().find(|word| line.contains(**word)) {
            tell(format!("{word} is unfinished: finish it, or answer its user clearly"));
        }
        if rust && line.trim_start().starts_with(concat!("#[", "ignore]")) {
            tell("a skipped test needs a reason: ignore = \"…\"".to_owned());
        }
        if markdown && let Some(target) = links(line).find(|target| !reaches(root, file, target)) {
            tell(format!("the link leads nowhere: {target}"));
        }
    }
    let lines = text.lines().count();
    if rust && lines > MAX_LINES {
        broken.push(format!("{}: {lines} lines; no file is longer than {MAX_LINES}", file.display()));
    }
    if file.file_name().is_some_and(|name| name == "mod.rs") {
        broken.push(format!("{}: modules here are foo.rs beside foo/", file.display()));
    }
    broken
}

/// Whether a line names this absolute path, rather than a part of another one.
fn has_path(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(at, _)| {
        let before = line.get(..at).and_then(|head| head.chars().next_back());
        !before.is_some_and(|c| c.is_alphanumeric() || "._-~}*$)".contains(c))
    })
}

/// The relative targets of Markdown's inline links.
fn links(line: &str) -> impl Iterator<Item = &str> {
    let ends = line.match_indices("](").filter_map(|(at, mark)| line.get(at + mark.len()..)?.split(')').next());
    ends.map(|target| target.split('#').next().unwrap_or_default())
        .filter(|target| !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:"))
}

fn reaches(root: &Path, file: &Path, target: &str) -> bool {
    file.parent().is_some_and(|folder| root.join(folder).join(target).exists())
}

/// Every crate of the workspace takes over the shared lints and the licence; the lints forbid unsafe code.
fn check_manifests(root: &Path) -> Result<Vec<String>> {
    let read = |path: &Path| std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()));
    let workspace = read(&root.join("Cargo.toml"))?;
    let mut broken = Vec::new();
    if !section(&workspace, "[workspace.lints.rust]").any(|line| line == "unsafe_code = \"forbid\"") {
        broken.push("Cargo.toml: [workspace.lints.rust] must forbid unsafe_code".to_owned());
    }
    if !section(&workspace, "[workspace.package]").any(|line| line == "license = \"Apache-2.0\"") {
        broken.push("Cargo.toml: [workspace.package] must name the licence, Apache-2.0".to_owned());
    }
    for file in files(root)? {
        if file.file_name().is_none_or(|name| name != "Cargo.toml") || file.parent() == Some(Path::new("")) {
            continue;
        }
        let manifest = read(&root.join(&file))?;
        if !section(&manifest, "[lints]").any(|line| line == "workspace = true") {
            broken.push(format!("{}: [lints] must take over the workspace's", file.display()));
        }
        for field in ["license", "edition", "rust-version"] {
            if !section(&manifest, "[package]").any(|line| line == format!("{field}.workspace = true")) {
                broken.push(format!("{}: {field} must be the workspace's", file.display()));
            }
        }
    }
    Ok(broken)
}

/// The lines of one section of a TOML file.
fn section<'a>(text: &'a str, head: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().map(str::trim).skip_while(move |line| *line != head).skip(1).take_while(|line| !line.starts_with('['))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(name: &str, text: &str) -> Vec<String> {
        check_text(&crate::root(), Path::new(name), text)
    }

    #[test]
    fn paths_of_a_machine() {
        let path = MACHINE_PATHS[0];
        assert_eq!(broken("a.yaml", &format!("dir: {path}x\n")).len(), 1);
        assert_eq!(broken("a.yaml", &format!("dir: ${{TOP}}{path}x a.b{path}\n")).len(), 0);
    }

    #[test]
    fn unfinished_places_and_long_files() {
        assert_eq!(broken("a.rs", &format!("{}) }}\n", UNFINISHED[0])).len(), 1);
        assert_eq!(broken("a.md", &format!("{})\n", UNFINISHED[0])).len(), 0);
        assert_eq!(broken("a.rs", &"\n".repeat(MAX_LINES + 1)).len(), 1);
        assert_eq!(broken("a/mod.rs", "").len(), 1);
        assert_eq!(broken("a.rs", concat!("    #[", "ignore]\n")).len(), 1);
    }

    #[test]
    fn links_of_documents() {
        let found = broken("docs/x.md", "[a](testing.md) [b](nowhere.md) [c](https://etcd.io) [d](#here)\n");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("nowhere.md"));
    }

    #[test]
    fn sections_of_manifests() {
        let text = "[package]\nname = \"x\"\nlicense.workspace = true\n\n[lints]\nworkspace = true\n";
        assert!(section(text, "[lints]").any(|line| line == "workspace = true"));
        assert!(!section(text, "[package]").any(|line| line == "workspace = true"));
    }
}
