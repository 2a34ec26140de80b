//! `--config-file`: flags in a YAML file, named as on the command line.
//!
//! As etcd's own file (`etcd.conf.yml`), but for its place among the others: there it replaces command line and environment,
//! here it stands behind them, so that one file may serve several proxies that differ in a flag.

use std::{ffi::OsString, fmt, fs, io, path::PathBuf};

use clap::{Arg, Command, builder::ValueParser};
use granit_parser::{Event, Parser, ScalarStyle};

use super::{argv::Argv, refused, values};

/// The flag that names the file.
pub(super) const FLAG: &str = "config-file";

/// etcd puts the certificates of the client side into a map of their own.
const CLIENT_SECURITY: &str = "client-transport-security";
/// And those between members.
const PEER_SECURITY: &str = "peer-transport-security";

/// What is in the file.
#[derive(Debug)]
pub(super) struct ConfigFile {
    path: PathBuf,
    entries: Vec<Entry>,
}

/// A key with its values: one, or those of a sequence.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    /// Counted from 1.
    line: usize,
    /// Name of the flag, without dashes.
    key: String,
    values: Vec<String>,
}

/// Where the values that the command line does not give come from, for errors.
#[derive(Debug, Default)]
pub(super) struct Origins {
    path: PathBuf,
    /// Flag and line of the file.
    lines: Vec<(String, usize)>,
    /// Flag and variable.
    variables: Vec<(String, String)>,
}

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConfigFileError {
    #[error("--config-file={}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}: {}", path.display(), Lines(problems))]
    Content { path: PathBuf, problems: Vec<Problem> },
}

/// What is wrong with a line.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {reason}")]
pub(super) struct Problem {
    line: usize,
    reason: String,
}

struct Lines<'a>(&'a [Problem]);

/// The flag, for every command.
pub(super) fn arg() -> Arg {
    Arg::new(FLAG)
        .long(FLAG)
        .env("ETCD_PROXY_CONFIG_FILE")
        .value_parser(clap::value_parser!(PathBuf))
        .help_heading("Configuration")
        .help(
            "Path to a YAML file with flags: one \"name: value\" a line, named as here without the dashes. The command line wins over the \
             environment, the environment over the file. One file may serve several commands: each takes the flags that it has.",
        )
}

/// Adds to the command line what the file says and neither the command line nor the environment does.
///
/// # Errors
/// When the file cannot be read, and for what is in it and no flag, naming all such lines.
pub(super) fn apply(
    argv: &mut Argv,
    environment: &[(OsString, OsString)],
    root: &Command,
) -> Result<Origins, ConfigFileError> {
    let variable =
        || environment.iter().find(|(name, _)| name == "ETCD_PROXY_CONFIG_FILE").map(|(_, value)| value.clone());
    let takes_file = |command: &&Command| command.get_arguments().any(|arg| arg.get_id() == FLAG);
    let Some(command) = argv.command(root).filter(takes_file) else { return Ok(Origins::default()) };
    if argv.asks_for_help() {
        return Ok(Origins::default());
    }
    let variables = variables(argv, environment, command);
    let Some(path) = argv.value(FLAG).or_else(variable).filter(|path| !path.is_empty()) else {
        return Ok(Origins { variables, ..Origins::default() });
    };
    let file = ConfigFile::read(PathBuf::from(path))?;
    let given = |arg: &Arg| {
        let by_flag = argv.flags().any(|(name, _)| is_called(arg, name));
        by_flag || environment.iter().any(|(name, _)| arg.get_env() == Some(name))
    };
    let (origins, flags) = file.flags(command, root, given)?;
    argv.extend(flags);
    Ok(Origins { variables, ..origins })
}

/// The flags that the environment gives and the command line does not, each with its variable.
fn variables(argv: &Argv, environment: &[(OsString, OsString)], command: &Command) -> Vec<(String, String)> {
    let by_variable = command.get_arguments().filter_map(|arg| {
        let (long, variable) = (arg.get_long()?, arg.get_env()?);
        let given =
            environment.iter().any(|(name, _)| name == variable) && !argv.flags().any(|(name, _)| is_called(arg, name));
        given.then(|| (long.to_owned(), variable.to_string_lossy().into_owned()))
    });
    by_variable.collect()
}

// === impl ConfigFile ===

impl ConfigFile {
    fn read(path: PathBuf) -> Result<Self, ConfigFileError> {
        match fs::read_to_string(&path) {
            Ok(text) => Self::parse(path, &text),
            Err(source) => Err(ConfigFileError::Read { path, source }),
        }
    }

    fn parse(path: PathBuf, text: &str) -> Result<Self, ConfigFileError> {
        match entries(text) {
            Ok(entries) => Ok(Self { path, entries }),
            Err(problem) => Err(ConfigFileError::Content { path, problems: vec![problem] }),
        }
    }

    /// The flags of `command` that the file gives and that are not `given` otherwise.
    fn flags(
        self,
        command: &Command,
        root: &Command,
        given: impl Fn(&Arg) -> bool,
    ) -> Result<(Origins, Vec<OsString>), ConfigFileError> {
        let mut problems = Vec::new();
        let mut seen: Vec<(&str, usize)> = Vec::new();
        let mut flags = Vec::new();
        let mut lines = Vec::new();
        for entry in &self.entries {
            let Entry { line, key, values } = entry;
            let mut refuse = |reason: String| problems.push(Problem { line: *line, reason });
            if let Some((_, first)) = seen.iter().find(|(other, _)| other == key) {
                refuse(format!("{key} is on line {first} already"));
                continue;
            }
            seen.push((key, *line));
            if let Some(reason) = entry.refused() {
                refuse(format!("{key} is refused: {reason}"));
                continue;
            }
            let Some(arg) = find(command, key) else {
                // One that another command has, or one that asks for what is so anyway.
                if refused::judge(key, None).is_none()
                    && !root.get_subcommands().any(|other| find(other, key).is_some())
                {
                    refuse(format!("{key} is not a flag; `etcd-proxy --help` lists them"));
                }
                continue;
            };
            let Some(long) = arg.get_long().filter(|_| !given(arg)) else { continue };
            // A key without a value is as one that is not there.
            let values: Vec<_> = values.iter().filter(|value| !value.is_empty()).collect();
            if values.len() > 1 && arg.get_value_delimiter().is_none() {
                refuse(format!("{key} takes one value"));
                continue;
            }
            for value in values {
                flags.push(OsString::from(format!("--{long}={}", plain(arg, value))));
                lines.push((long.to_owned(), *line));
            }
        }
        match problems.is_empty() {
            true => Ok((Origins { path: self.path, lines, ..Origins::default() }, flags)),
            false => Err(ConfigFileError::Content { path: self.path, problems }),
        }
    }
}

// === impl Entry ===

impl Entry {
    /// Why the key is refused.
    fn refused(&self) -> Option<&'static str> {
        if self.key == FLAG {
            return Some("a file cannot name another one");
        }
        let off = [String::new()];
        let values = if self.values.is_empty() { &off[..] } else { &self.values };
        values.iter().find_map(|value| match refused::judge(&self.key, Some(value)) {
            Some(refused::Judgement::Refused(reason)) => Some(reason),
            _ => None,
        })
    }
}

// === impl Origins ===

impl Origins {
    /// clap's error, with the place in the file or the variable if that is where the value came from.
    pub(super) fn explain(&self, error: clap::Error, root: &mut Command) -> clap::Error {
        let Some(clap::error::ContextValue::String(arg)) = error.get(clap::error::ContextKind::InvalidArg) else {
            return error;
        };
        // As in `--name <NAME>` or `--debug[=<DEBUG>]`.
        let name = arg.trim_start_matches('-').split([' ', '=', '[']).next().unwrap_or_default();
        let line = self.lines.iter().find(|(long, _)| long == name);
        let variable = self.variables.iter().find(|(long, _)| long == name);
        let origin = match (line, variable) {
            (Some((_, line)), _) => format!("{}: line {line}", self.path.display()),
            (None, Some((_, variable))) => variable.clone(),
            (None, None) => return error,
        };
        let message = error.to_string();
        let message = message.strip_prefix("error: ").unwrap_or(&message);
        root.error(error.kind(), format!("{origin}: {message}"))
    }
}

// === impl Lines ===

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            write!(f, "{}{problem}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

/// The entries of a YAML text: one map of scalars and sequences of scalars.
fn entries(text: &str) -> Result<Vec<Entry>, Problem> {
    let mut entries: Vec<Entry> = Vec::new();
    // The map that encloses the entries, within the outermost.
    let mut section: Option<String> = None;
    let mut depth = 0;
    let mut documents = 0;
    let mut key: Option<(usize, String)> = None;
    let mut sequence = false;
    for event in Parser::new_from_str(text) {
        let (event, span) =
            event.map_err(|error| Problem { line: error.marker().line(), reason: format!("not YAML: {error}") })?;
        let line = span.start.line();
        let refuse = |reason: &str| Err(Problem { line, reason: reason.to_owned() });
        match event {
            Event::Scalar(_, _, anchor, _) | Event::SequenceStart(_, anchor, _) | Event::MappingStart(_, anchor, _)
                if anchor != 0 =>
            {
                return refuse("anchors and aliases are not understood");
            }
            Event::Alias(..) => return refuse("anchors and aliases are not understood"),
            Event::DocumentStart(..) if documents > 0 => return refuse("a second document"),
            Event::DocumentStart(..) => documents += 1,
            Event::MappingStart(..) if sequence => return refuse("a map within a list"),
            Event::MappingStart(..) => {
                depth += 1;
                match key.take() {
                    None if depth == 1 => {}
                    Some((_, name)) if depth == 2 && name == CLIENT_SECURITY => section = Some(name),
                    Some((line, name)) if name == PEER_SECURITY => {
                        let reason = format!("{name} is refused: the proxy is no member of the cluster");
                        return Err(Problem { line, reason });
                    }
                    Some((line, name)) => {
                        return Err(Problem { line, reason: format!("{name} is not a map of flags") });
                    }
                    None => return refuse("a map as a key"),
                }
            }
            Event::MappingEnd => {
                depth -= 1;
                section = None;
            }
            Event::SequenceStart(..) if sequence => return refuse("a list within a list"),
            Event::SequenceStart(..) => match key.take() {
                Some((line, key)) => {
                    sequence = true;
                    entries.push(Entry { line, key, values: Vec::new() });
                }
                None => return refuse("not a map of flags"),
            },
            Event::SequenceEnd => sequence = false,
            Event::Scalar(value, style, ..) => {
                let value = value.into_owned();
                let is_null =
                    style == ScalarStyle::Plain && matches!(value.as_str(), "" | "~" | "null" | "Null" | "NULL");
                match (key.take(), entries.last_mut()) {
                    (_, Some(entry)) if sequence => entry.values.push(value),
                    // An empty file is an empty map.
                    (None, _) if depth == 0 && is_null => {}
                    (None, _) if depth == 0 => return refuse("not a map of flags"),
                    (None, _) => key = Some((line, full_name(section.as_deref(), &value))),
                    (Some((line, key)), _) => {
                        let values = if is_null { Vec::new() } else { vec![value] };
                        entries.push(Entry { line, key, values });
                    }
                }
            }
            _ => {}
        }
    }
    Ok(entries)
}

/// The flag's name of a key in etcd's map of certificates.
fn full_name(section: Option<&str>, key: &str) -> String {
    match (section, key) {
        (Some(CLIENT_SECURITY), "allowed-cn") => "client-cert-allowed-cn".to_owned(),
        (Some(CLIENT_SECURITY), "allowed-hostname") => "client-cert-allowed-hostname".to_owned(),
        _ => key.to_owned(),
    }
}

fn find<'a>(command: &'a Command, key: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| is_called(arg, key))
}

fn is_called(arg: &Arg, name: &str) -> bool {
    arg.get_long_and_visible_aliases().unwrap_or_default().contains(&name)
}

/// The value as the command line takes it. Durations are whole nanoseconds in etcd's file.
fn plain(arg: &Arg, value: &str) -> String {
    let is_duration = arg.get_value_parser().type_id() == ValueParser::new(values::duration).type_id();
    let is_number = value.len() > 1 && value.bytes().all(|byte| byte.is_ascii_digit());
    if is_duration && is_number { format!("{value}ns") } else { value.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<(String, Vec<String>)>, String> {
        let file = ConfigFile::parse("f".into(), text).map_err(|error| error.to_string())?;
        Ok(file.entries.into_iter().map(|entry| (entry.key, entry.values)).collect())
    }

    fn entry(key: &str, values: &[&str]) -> (String, Vec<String>) {
        (key.to_owned(), values.iter().map(|value| (*value).to_owned()).collect())
    }

    #[test]
    fn scalars_keep_their_spelling() {
        let text = "# a comment\nprefix: /a/\nunix-socket-mode: 0660\ndebug: True\nendpoints: [http://a:1, http://b:2]\n\
                    client-transport-security:\n  cert-file: 'c.pem'\n  allowed-cn:\n    - x\n    - y\nname:\n";
        assert_eq!(
            read(text).unwrap(),
            [
                entry("prefix", &["/a/"]),
                entry("unix-socket-mode", &["0660"]),
                entry("debug", &["True"]),
                entry("endpoints", &["http://a:1", "http://b:2"]),
                entry("cert-file", &["c.pem"]),
                entry("client-cert-allowed-cn", &["x", "y"]),
                entry("name", &[]),
            ]
        );
        assert_eq!(read("").unwrap(), []);
        assert_eq!(read("# nothing\n").unwrap(), []);
    }

    #[test]
    fn what_is_no_map_of_flags_is_refused_with_its_line() {
        for (text, words) in [
            ("prefix: /a/\n- b\n", "line 2"),
            ("just words", "line 1: not a map of flags"),
            ("- prefix", "line 1: not a map of flags"),
            ("a: 1\nlog:\n  level: info\n", "line 2: log is not a map of flags"),
            ("a: [[1]]", "a list within a list"),
            ("a: [{b: c}]", "a map within a list"),
            ("a: &x 1\nb: *x", "line 1: anchors"),
            ("a: 1\n---\nb: 2\n", "a second document"),
            ("peer-transport-security:\n  cert-file: x\n", "line 1: peer-transport-security is refused"),
            ("{a: b}: c", "line 1: a map as a key"),
            ("a: \"unfinished\n", "not YAML"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.starts_with("f: ") && error.contains(words), "{text:?}: {error}");
        }
    }
}
