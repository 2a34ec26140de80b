//! Building a tool into the user's cache directory, once for each version.

use std::{
    collections::VecDeque,
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use super::{
    ForeignTests, Source, Tool,
    catalog::{self},
    foreign::TestPackage,
};
use crate::progress::Progress;

/// The oldest Go that builds everything in `tools/`.
const GO: (u32, u32) = (1, 26);

const GO_FLAGS: [&str; 2] = ["-trimpath", "-v"];

/// The lines of a failed build that are worth showing.
const TAIL: usize = 30;

/// The path that a tool has in the cache, whether it is there or not.
///
/// The folder's name holds the version and a hash of what else decides the binary: the module's files, the program's
/// sources where it is ours, the flags.
pub(super) fn cached(tool: Tool) -> Result<PathBuf> {
    let mut hash = Sha256::new();
    let version = tool.version()?;
    match tool.source() {
        Source::GoModule { folder, package, .. } => {
            hash_files(&mut hash, &catalog::folder(folder), &["mod", "sum"])?;
            hash.update(package);
            hash.update(linker_flags(tool)?);
        }
        Source::GoProgram { folder } => hash_files(&mut hash, &catalog::folder(folder), &["mod", "sum", "go"])?,
        Source::ForeignTests(tests) => {
            hash_files(&mut hash, &catalog::folder(tests.folder), &["mod", "sum", "go"])?;
            hash_files(&mut hash, &catalog::folder("harness"), &["go"])?;
            // What is kept, left out and edited.
            hash.update(format!("{tests:?}"));
        }
        Source::Crate { name, .. } => hash.update(name),
    }
    let digest: String = hex::encode(hash.finalize()).chars().take(12).collect();
    Ok(cache()?.join(format!("{tool}-{version}-{digest}")).join(tool.name()))
}

/// Builds a tool into the cache and answers its path.
pub(super) fn build(tool: Tool) -> Result<PathBuf> {
    let target = cached(tool)?;
    let folder = target.parent().context("the cache has no folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let _lock = lock()?;
    // Somebody else may have built it while this process waited for the lock.
    if target.is_file() {
        return Ok(target);
    }
    let unfinished = folder.join(".building");
    match tool.source() {
        Source::GoModule { folder, package, .. } => go_build(tool, &catalog::folder(folder), package, &unfinished)?,
        Source::GoProgram { folder } => go_build(tool, &catalog::folder(folder), ".", &unfinished)?,
        Source::ForeignTests(tests) => build_tests(tool, tests, folder, &unfinished)?,
        Source::Crate { name, version } => cargo_install(tool, name, version, &unfinished)?,
    }
    // Only a whole binary ever bears the name.
    std::fs::rename(&unfinished, &target).with_context(|| format!("moving {tool} to {}", target.display()))?;
    Ok(target)
}

/// The folder that all checkouts of the project share.
fn cache() -> Result<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME").filter(|value| Path::new(value).is_absolute()).map(PathBuf::from);
    let base = base.or_else(|| std::env::home_dir().map(|home| home.join(".cache")));
    Ok(base
        .context("neither XDG_CACHE_HOME nor HOME is set; set one, so that built tools can be kept")?
        .join("pizza-xtask"))
}

/// Two builds at once would do the same work twice on the same cores.
fn lock() -> Result<File> {
    let path = cache()?.join("build.lock");
    let file = File::create(&path).with_context(|| format!("creating {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(std::fs::TryLockError::WouldBlock) => {
            let waiting = Progress::start("waiting for another build of tools to end");
            file.lock().with_context(|| format!("locking {}", path.display()))?;
            waiting.done();
        }
        Err(std::fs::TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("locking {}", path.display()));
        }
    }
    Ok(file)
}

/// Files with these endings, in the folder and those below it.
fn hash_files(hash: &mut Sha256, folder: &Path, endings: &[&str]) -> Result<()> {
    let entries = std::fs::read_dir(folder)
        .with_context(|| format!("{} should hold the Go module of the tool", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?;
    files.sort();
    for file in files {
        if file.is_dir() {
            hash.update(file.file_name().unwrap_or_default().as_encoded_bytes());
            hash_files(hash, &file, endings)?;
        } else if file.extension().is_some_and(|ending| endings.iter().any(|wanted| *wanted == ending)) {
            let content = std::fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
            hash.update(file.file_name().unwrap_or_default().as_encoded_bytes());
            hash.update(content.len().to_le_bytes());
            hash.update(content);
        }
    }
    Ok(())
}

/// The linker's flags: Kubernetes' programs learn their version only so, and clients would see v0.0.0 without.
fn linker_flags(tool: Tool) -> Result<String> {
    let mut flags = "-s -w".to_owned();
    if let Source::GoModule { folder: "kubernetes", .. } = tool.source() {
        let version = Tool::KubeApiserver.version()?;
        let mut parts = version.trim_start_matches('v').split('.');
        let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        for (name, value) in [("gitVersion", version.as_str()), ("gitMajor", major), ("gitMinor", minor)] {
            flags.push_str(&format!(" -X k8s.io/component-base/version.{name}={value}"));
        }
    }
    Ok(flags)
}

fn go_build(tool: Tool, module: &Path, package: &str, output: &Path) -> Result<()> {
    let mut command = go_command(tool, module)?;
    command.arg("build").args(GO_FLAGS).args(["-ldflags", &linker_flags(tool)?, "-o"]).arg(output).arg(package);
    run(tool, &format!("building {tool} {}", tool.version()?), &mut command, "packages")
}

/// Puts a module's tests together and builds them. The list of them, which is the tool, is written to `list`.
fn build_tests(tool: Tool, tests: &ForeignTests, folder: &Path, list: &Path) -> Result<()> {
    let sources = folder.join("source");
    if sources.exists() {
        // What an earlier build left that did not come to its end.
        std::fs::remove_dir_all(&sources).with_context(|| format!("removing {}", sources.display()))?;
    }
    let version = tool.version()?;
    let step = Progress::start(format!("fetching {} {version}", tests.module));
    let mut download = go_command(tool, &catalog::folder(tests.folder))?;
    let output = download.args(["mod", "download", "-json", &format!("{}@{version}", tests.module)]).output()?;
    let told = String::from_utf8_lossy(&output.stdout);
    tests.lay_out(&told, &catalog::folder(""), &sources).with_context(|| {
        format!("{download:?} ended with {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())
    })?;
    step.done();
    let mut packages = Vec::new();
    for package in tests.packages() {
        let binary = folder.join(format!("{}.test", package.replace('/', "-")));
        let mut command = go_command(tool, &sources)?;
        command.args(["test", "-c"]).args(GO_FLAGS).args(["-ldflags", &linker_flags(tool)?, "-o"]).arg(&binary);
        command.arg(format!("./{package}"));
        run(tool, &format!("building the tests of {}/{package}", tests.module), &mut command, "packages")?;
        packages.push(TestPackage { name: (*package).to_owned(), binary, folder: sources.join(package) });
    }
    std::fs::write(list, serde_json::to_vec_pretty(&packages)?).with_context(|| format!("writing {}", list.display()))
}

fn go_command(tool: Tool, module: &Path) -> Result<Command> {
    let mut command = Command::new(go(tool)?);
    command.current_dir(module);
    // The developer's own settings (vendoring, workspaces, tags) are for their own modules.
    command.env("CGO_ENABLED", "0").env("GOTOOLCHAIN", "local").env("GOFLAGS", "").env("GOWORK", "off");
    Ok(command)
}

fn cargo_install(tool: Tool, name: &str, version: &str, output: &Path) -> Result<()> {
    let folder = output.with_extension("install");
    let mut command = crate::cargo::command()?;
    // The workspace's own settings (lints as errors, a target folder) are not meant for other people's crates.
    command.env_remove("RUSTFLAGS").env_remove("CARGO_TARGET_DIR").current_dir(std::env::temp_dir());
    command.args(["install", name, "--version", &format!("={version}"), "--locked", "--root"]).arg(&folder);
    run(tool, &format!("building {tool} {version}"), &mut command, "lines")?;
    std::fs::rename(folder.join("bin").join(name), output)
        .with_context(|| format!("taking {name} from {}", folder.display()))?;
    std::fs::remove_dir_all(&folder).with_context(|| format!("removing {}", folder.display()))
}

/// Runs a build, with what it prints as the measure of progress.
fn run(tool: Tool, title: &str, command: &mut Command, unit: &str) -> Result<()> {
    let progress = Progress::start(title);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {command:?}"))?;
    let mut tail: VecDeque<String> = VecDeque::new();
    if let Some(stderr) = child.stderr.take() {
        for (count, line) in BufReader::new(stderr).lines().map_while(Result::ok).enumerate() {
            progress.note(format!("{} {unit}, {}", count + 1, line.trim()));
            if tail.len() == TAIL {
                tail.pop_front();
            }
            tail.push_back(line);
        }
    }
    let status = child.wait()?;
    if !status.success() {
        drop(progress);
        bail!("building {tool}: {command:?} ended with {status}\n{}", Vec::from(tail).join("\n"));
    }
    progress.done();
    Ok(())
}

/// A Go that is new enough.
fn go(tool: Tool) -> Result<PathBuf> {
    // Where Go's own installer puts it, often without touching PATH.
    let candidates = [PathBuf::from("go"), PathBuf::from("/usr/local/go/bin/go")];
    let mut seen = None;
    for candidate in candidates {
        let output = Command::new(&candidate).args(["env", "GOVERSION"]).env("GOTOOLCHAIN", "local").output();
        let Ok(output) = output else { continue };
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if parse_go_version(&version).is_some_and(|version| version >= GO) {
            return Ok(candidate);
        }
        seen.get_or_insert(version);
    }
    let (major, minor) = GO;
    let state = seen.map_or_else(|| "no Go was found".to_owned(), |version| format!("the Go found is {version}"));
    let elsewhere = match tool.version_arguments() {
        Some(_) => format!(", or one of version {} in KUBEBUILDER_ASSETS or PATH", tool.version()?),
        None => String::new(),
    };
    bail!(
        "{tool} has to be built, which needs Go {major}.{minor} or newer; {state}.\n\
         Install it from https://go.dev/dl/ or by your system's packages and have `go` in PATH,\n\
         or give a ready binary: `--tool {tool}=PATH`{elsewhere}."
    )
}

fn parse_go_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.strip_prefix("go")?.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_versions() {
        assert_eq!(parse_go_version("go1.26.8"), Some((1, 26)));
        assert_eq!(parse_go_version("go1.27rc1"), Some((1, 27)));
        assert_eq!(parse_go_version("devel"), None);
    }

    #[test]
    fn kubernetes_programs_are_told_their_version() {
        let flags = linker_flags(Tool::Kubectl).unwrap();
        assert!(
            flags.contains("version.gitVersion=v1.37.2 ")
                && flags.contains("gitMajor=1 ")
                && flags.ends_with("gitMinor=37"),
            "{flags}"
        );
        assert_eq!(linker_flags(Tool::Informer).unwrap(), "-s -w");
    }
}
