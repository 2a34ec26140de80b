//! What shells and `man` want to know of the command line.

use std::io::{self, Write};

use clap::{Arg, Args as _, Command, value_parser};
use clap_complete::Shell;
use clap_mangen::Man;

use super::{
    NAME, ServeArgs, command, config_file,
    help::{EXAMPLES, VALUES},
};

/// The command that prints a shell's completion.
pub(super) const COMPLETION: &str = "completion";
/// The command that prints the manual page.
pub(super) const MAN: &str = "man";

/// `completion`.
pub(super) fn completion() -> Command {
    let shell = Arg::new("shell")
        .required(true)
        .value_parser(value_parser!(Shell))
        .help("bash, zsh, fish, elvish or powershell");
    Command::new(COMPLETION)
        .arg(shell)
        .about("Print what a shell (bash, zsh, fish, elvish, powershell) needs to complete commands and flags.")
}

/// `man`, for those who make packages.
pub(super) fn man(commands: [&'static str; 10]) -> Command {
    let command = Arg::new("command").value_parser(commands).help("The command whose page is printed");
    Command::new(MAN).arg(command).about("Print the manual page etcd-proxy(1), or etcd-proxy-COMMAND(1).")
}

/// Writes the completion for `shell`.
///
/// # Errors
/// Those of `out`.
pub fn write_completion(shell: Shell, out: &mut impl Write) -> io::Result<()> {
    // Written to a pipe that nobody reads, the generator would panic.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut with_default_command(), NAME, &mut script);
    match shell {
        Shell::Bash => out.write_all(with_right_labels(&String::from_utf8_lossy(&script)).as_bytes()),
        _ => out.write_all(&script),
    }
}

/// The generator for bash spells the dash in the program's name in two ways, so that no command would be found where its flags
/// are listed (<https://github.com/clap-rs/clap/issues/6421>).
fn with_right_labels(script: &str) -> String {
    script.replace(&NAME.replace('-', "__subcmd__"), &NAME.replace('-', "__"))
}

/// Writes the manual page, or that of a command.
///
/// # Errors
/// Those of `out`.
pub fn write_man(name: Option<&str>, out: &mut impl Write) -> io::Result<()> {
    // Built, a command knows what it is called as a part of the whole.
    let mut all = command();
    all.build();
    let page = match name.and_then(|name| all.find_subcommand(name)) {
        Some(command) => command.clone(),
        None => with_default_command(),
    };
    Man::new(page.mut_args(with_variable)).source(concat!("etcd-proxy ", env!("CARGO_PKG_VERSION"))).render(out)
}

/// A flag whose explanation names its variable, as in the help.
fn with_variable(arg: Arg) -> Arg {
    let (Some(help), Some(variable)) = (arg.get_help(), arg.get_env()) else { return arg };
    let help = format!("{}. By environment: {}", help.to_string().trim_end_matches('.'), variable.to_string_lossy());
    arg.help(help)
}

/// All commands, with the flags of the default one also where no command is named.
fn with_default_command() -> Command {
    let root = command();
    let about = root.get_about().cloned().unwrap_or_default();
    ServeArgs::augment_args(root.arg(config_file::arg()))
        .about(about)
        .long_about(None)
        .subcommand_required(false)
        .after_help(format!("{VALUES}\n{EXAMPLES}"))
}
