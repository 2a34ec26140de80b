//! The command line as it was given: Go's way of writing flags, the default command, and `grpc-proxy start`.

use std::ffi::{OsStr, OsString};

use clap::Command;

use super::SERVE;

/// What etcd's own proxy is called there.
const GRPC_PROXY: &str = "grpc-proxy";

/// The words of the command line in clap's form: the program, the command, its flags with two dashes.
#[derive(Clone, Debug)]
pub(super) struct Argv {
    /// Program and command, as far as there is one.
    head: Vec<OsString>,
    flags: Vec<OsString>,
    /// Whether the command was `grpc-proxy start`, whose defaults hold then.
    pub(super) grpc_proxy: bool,
    /// What stands behind `grpc-proxy` in the place of `start`.
    pub(super) not_start: Option<String>,
}

impl Argv {
    /// Puts the default command in, and a second dash before flags that Go programs accept with one.
    pub(super) fn new(args: impl IntoIterator<Item = OsString>, root: &Command) -> Self {
        let mut args = args.into_iter();
        let mut head: Vec<OsString> = args.next().into_iter().collect();
        let mut flags: Vec<OsString> = args.map(two_dashes).collect();
        as_flags(&mut flags);
        let word = |index: usize| flags.get(index).and_then(|word| word.to_str());
        let grpc_proxy = word(0) == Some(GRPC_PROXY) && word(1) == Some("start");
        let not_start = (word(0) == Some(GRPC_PROXY) && !grpc_proxy).then(|| word(1).unwrap_or_default().to_owned());
        match word(0) {
            _ if grpc_proxy => {
                flags.drain(..2);
                head.push(SERVE.into());
            }
            Some("-h" | "--help" | "-V" | "--version") => {}
            Some(command) if root.find_subcommand(command).is_some() => head.push(flags.remove(0)),
            // A word that is not a flag: let clap say that it is no command.
            Some(word) if !word.starts_with('-') => {}
            _ => head.push(SERVE.into()),
        }
        Self { head, flags, grpc_proxy, not_start }
    }

    /// The command, if it is known yet.
    pub(super) fn command<'a>(&self, root: &'a Command) -> Option<&'a Command> {
        self.head.get(1).and_then(|name| root.find_subcommand(name))
    }

    /// Whether help or the version is asked for, so that nothing else needs to be right.
    pub(super) fn asks_for_help(&self) -> bool {
        self.flags.iter().any(|word| matches!(word.to_str(), Some("-h" | "--help" | "-V" | "--version")))
    }

    /// The words behind `--`, if that is among them: arguments, for which there is no use.
    pub(super) fn arguments(&self) -> Option<Vec<String>> {
        let dashes = self.flags.iter().position(|word| word == "--")?;
        Some(self.flags.iter().skip(dashes + 1).map(|word| format!("{:?}", word.to_string_lossy())).collect())
    }

    /// The flags by name, with the value where it is in the same word.
    pub(super) fn flags(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.flags.iter().filter_map(|word| flag(word))
    }

    /// The value of a flag that takes one.
    pub(super) fn value(&self, name: &str) -> Option<OsString> {
        let (index, value) = self
            .flags
            .iter()
            .enumerate()
            .filter_map(|(index, word)| flag(word).filter(|(flag, _)| *flag == name).map(|(_, value)| (index, value)))
            .next_back()?;
        match value {
            Some(value) => Some(value.into()),
            None => self.flags.get(index + 1).cloned(),
        }
    }

    /// Leaves out the flags for which `keep` says so. `keep` gets the name, the value if there is one, and whether that is in
    /// a word of its own, which then goes, too. A following word counts as a value if `takes_value`.
    pub(super) fn try_retain<E>(
        &mut self,
        takes_value: impl Fn(&str) -> bool,
        mut keep: impl FnMut(&str, Option<&str>) -> Result<bool, E>,
    ) -> Result<(), E> {
        let mut kept = Vec::with_capacity(self.flags.len());
        let mut words = std::mem::take(&mut self.flags).into_iter().peekable();
        while let Some(word) = words.next() {
            let Some((name, value)) = flag(&word) else {
                kept.push(word);
                continue;
            };
            let next = match value {
                None if takes_value(name) => {
                    words.next_if(|next| !next.to_str().is_some_and(|next| next.starts_with("--")))
                }
                _ => None,
            };
            if keep(name, value.or_else(|| next.as_deref().and_then(OsStr::to_str)))? {
                kept.push(word);
                kept.extend(next);
            }
        }
        self.flags = kept;
        Ok(())
    }

    /// Adds flags.
    pub(super) fn extend(&mut self, flags: impl IntoIterator<Item = OsString>) {
        self.flags.extend(flags);
    }

    /// All words, for clap.
    pub(super) fn into_words(self) -> impl Iterator<Item = OsString> {
        self.head.into_iter().chain(self.flags)
    }
}

fn flag(word: &OsStr) -> Option<(&str, Option<&str>)> {
    let flag = word.to_str()?.strip_prefix("--")?;
    Some(flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value))))
}

/// The commands `help` and `version`, which etcdctl has, as the flags that say the same.
fn as_flags(words: &mut [OsString]) {
    let Some(first) = words.first_mut() else { return };
    match first.to_str() {
        Some("help") => {
            *first = "--help".into();
            words.rotate_left(1);
        }
        Some("version") => *first = "--version".into(),
        _ => {}
    }
}

fn two_dashes(arg: OsString) -> OsString {
    match arg.to_str() {
        Some(text) if text.len() > 2 && text.starts_with('-') && !text.starts_with("--") => format!("-{text}").into(),
        _ => arg,
    }
}
