//! The command line: etcd's flag names, also by environment (`ETCD_PROXY_*`) and YAML file, and etcd's manner of speaking.
//!
//! Nothing is validated here beyond the form of single values; [`crate::config`] does the rest.

mod argv;
mod backup;
mod config_file;
mod help;
mod inspect;
mod pages;
mod refused;
mod serve;
mod shared;
mod telemetry;
mod tools;
mod values;

use std::{
    collections::BTreeSet,
    convert::Infallible,
    ffi::{OsStr, OsString},
};

use clap::{Args, Command, FromArgMatches, error::ErrorKind};
use clap_complete::Shell;

use self::argv::Argv;

pub use self::{
    backup::{BackupArgs, BackupFileArgs, CopyArgs, LeasesArg, RestoreArgs, RestoreFileArgs, TargetArgs},
    inspect::{CheckArgs, CountArgs, ExamineArgs, OutputArgs, OutputFormat, UsageArgs},
    pages::{write_completion, write_man},
    serve::{CompactionArg, LimitArgs, ListenArgs, QuotaArgs, SecurityArgs, ServeArgs, ViewArgs},
    shared::{LogArgs, LogFormat, LogLevel, TenantArgs, UpstreamArgs},
    telemetry::TelemetryArgs,
    tools::{ClaimArgs, LeaveArgs, OwnerArgs, ReleaseArgs},
};

/// What the process is asked to do.
#[derive(Clone, Debug)]
pub enum Invocation {
    /// Serve one tenant.
    Serve(Box<ServeArgs>),
    /// Claim a prefix.
    Claim(Box<ClaimArgs>),
    /// Give a claimed prefix back.
    Release(Box<ReleaseArgs>),
    /// Count what tenants store.
    Usage(Box<UsageArgs>),
    /// Look whether an upstream will do.
    Check(Box<CheckArgs>),
    /// Back a tenant up.
    Backup(Box<BackupArgs>),
    /// Restore a backup.
    Restore(Box<RestoreArgs>),
    /// Copy a tenant.
    Copy(Box<CopyArgs>),
    /// Print what a shell needs to complete commands and flags.
    Completion(Shell),
    /// Print the manual page, or that of a command.
    Man(Option<String>),
}

/// The program's name.
const NAME: &str = "etcd-proxy";

/// What environment variables of this program begin with.
const ENVIRONMENT: &str = "ETCD_PROXY_";

const SERVE: &str = "serve";
const CLAIM: &str = "claim";
const RELEASE: &str = "release";
const USAGE: &str = "usage";
const CHECK: &str = "check";
const BACKUP: &str = "backup";
const RESTORE: &str = "restore";
const COPY: &str = "copy";

/// Reads the command line and the environment; `args` begins with the program's name.
///
/// # Errors
/// clap's errors, requests for help and for the version among them: [`clap::Error::exit`] treats each as it should be.
/// A flag of etcd or of its grpc-proxy that is not honoured here is an error that says why, in the file (`--config-file`), too.
pub fn parse(
    args: impl IntoIterator<Item = OsString>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Invocation, clap::Error> {
    let mut root = command();
    let environment: Vec<_> = environment.into_iter().collect();
    let mut argv = Argv::new(args, &root);
    match argv.not_start.as_deref() {
        None => {}
        Some("" | "-h" | "--help") => return Err(help_of(root, help::grpc_proxy())),
        Some(word) => {
            let message = format!("grpc-proxy takes start, and behind it the flags of etcd's, not {word:?}");
            return Err(root.error(ErrorKind::InvalidSubcommand, message));
        }
    }
    if argv.grpc_proxy && argv.asks_for_help() {
        root = root.mut_subcommand(SERVE, |serve| {
            let help = help::grpc_proxy_start(&serve);
            serve.override_help(help)
        });
    }
    if let Some(arguments) = argv.arguments() {
        let message = match arguments.is_empty() {
            true => "-- is refused: there are no arguments here".to_owned(),
            false => {
                format!("-- is refused with what follows it, {}: there are no arguments here", arguments.join(" "))
            }
        };
        return Err(root.error(ErrorKind::UnknownArgument, message));
    }
    refused::check(&mut argv, &environment).map_err(|refusal| root.error(ErrorKind::UnknownArgument, refusal))?;
    leave_out_empty(&mut argv, &root);
    let origins = config_file::apply(&mut argv, &environment, &root)
        .map_err(|error| root.error(ErrorKind::ValueValidation, error))?;
    let grpc_proxy = argv.grpc_proxy;
    let matches =
        root.try_get_matches_from_mut(argv.into_words()).map_err(|error| origins.explain(error, &mut root))?;
    match matches.subcommand() {
        Some((CLAIM, matches)) => Ok(Invocation::Claim(Box::new(ClaimArgs::from_arg_matches(matches)?))),
        Some((RELEASE, matches)) => Ok(Invocation::Release(Box::new(ReleaseArgs::from_arg_matches(matches)?))),
        Some((USAGE, matches)) => Ok(Invocation::Usage(Box::new(UsageArgs::from_arg_matches(matches)?))),
        Some((CHECK, matches)) => Ok(Invocation::Check(Box::new(CheckArgs::from_arg_matches(matches)?))),
        Some((BACKUP, matches)) => Ok(Invocation::Backup(Box::new(BackupArgs::from_arg_matches(matches)?))),
        Some((RESTORE, matches)) => Ok(Invocation::Restore(Box::new(RestoreArgs::from_arg_matches(matches)?))),
        Some((COPY, matches)) => Ok(Invocation::Copy(Box::new(CopyArgs::from_arg_matches(matches)?))),
        Some((pages::COMPLETION, matches)) => {
            let shell = matches.get_one("shell").copied();
            shell.map(Invocation::Completion).ok_or_else(|| root.error(ErrorKind::MissingRequiredArgument, "no shell"))
        }
        Some((pages::MAN, matches)) => Ok(Invocation::Man(matches.get_one("command").cloned())),
        Some((_, matches)) => {
            let mut args = ServeArgs::from_arg_matches(matches)?;
            args.listen.grpc_proxy = grpc_proxy;
            Ok(Invocation::Serve(Box::new(args)))
        }
        None => Err(root.error(ErrorKind::MissingSubcommand, "no command")),
    }
}

/// What clap says when it is asked for this help.
fn help_of(root: Command, help: String) -> clap::Error {
    let mut root = root.override_help(help);
    match root.try_get_matches_from_mut([NAME, "--help"]) {
        Err(help) => help,
        Ok(_) => root.error(ErrorKind::DisplayHelp, "no help"),
    }
}

/// Leaves out what is given empty and is nothing when it is not given, such as `--trusted-ca-file=`: so Go's programs read it.
/// That of a tenant's prefix stays: a command must not take another one for it.
fn leave_out_empty(argv: &mut Argv, root: &Command) {
    let Some(serve) = argv.command(root).filter(|command| command.get_name() == SERVE).cloned() else { return };
    let may_be_empty = |name: &str| {
        serve
            .get_arguments()
            .filter(|arg| arg.get_default_values().is_empty() && arg.get_help_heading() != Some("Tenant"))
            .any(|arg| arg.get_long_and_visible_aliases().unwrap_or_default().contains(&name))
    };
    let keep = |name: &str, value: Option<&str>| Ok::<_, Infallible>(value != Some("") || !may_be_empty(name));
    match argv.try_retain(may_be_empty, keep) {
        Ok(()) => {}
        Err(never) => match never {},
    }
}

/// The whole command line as clap knows it.
pub fn command() -> Command {
    let serve = ServeArgs::augment_args(named(SERVE)).about("Serve one tenant (the default command).");
    let claim = ClaimArgs::augment_args(named(CLAIM)).about("Claim a prefix on the upstream for one tenant.");
    let release = ReleaseArgs::augment_args(named(RELEASE)).about("Give a claimed prefix back.");
    let usage = UsageArgs::augment_args(named(USAGE)).about("Show what every tenant on the upstream stores.");
    let check = CheckArgs::augment_args(named(CHECK))
        .about("Look whether an upstream, and with --prefix a proxy on it, can be expected to work. Changes nothing.");
    let backup = BackupArgs::augment_args(named(BACKUP)).about("Write a tenant, as of one revision, to a file.");
    let restore = RestoreArgs::augment_args(named(RESTORE)).about("Restore a backup into a prefix.");
    let copy = CopyArgs::augment_args(named(COPY))
        .about("Copy a tenant, as of one revision, into another prefix or to another etcd.");
    let version = concat!(env!("CARGO_PKG_VERSION"));
    let root = Command::new(NAME)
        .version(version)
        .disable_help_subcommand(true)
        .subcommand_required(true)
        .about("A virtual etcd for one tenant: the etcd v3 API confined to a key prefix of a shared etcd.");
    let [claim, release, usage, backup, restore, copy] =
        [claim, release, usage, backup, restore, copy].map(|command| for_people(command, "warn"));
    // Its table says what is wrong with the upstream.
    let check = for_people(check, "error");
    let names = [SERVE, CLAIM, RELEASE, USAGE, CHECK, BACKUP, RESTORE, COPY, pages::COMPLETION, pages::MAN];
    let others = [claim, release, usage, check, backup, restore, copy, pages::completion(), pages::man(names)];
    let root = root.override_help(help::root(&serve, &others));
    [serve].into_iter().chain(others).fold(root, |root, command| {
        let help = help::command(&command);
        root.subcommand(command.version(version).override_help(help))
    })
}

/// A command with what all have. A flag that is given twice counts once, as in Go: the later one, or both of a list.
fn named(name: &'static str) -> Command {
    Command::new(name).args_override_self(true).arg(config_file::arg())
}

/// A command that speaks to a person, its log included.
fn for_people(command: Command, level: &'static str) -> Command {
    command
        .mut_arg("log_format", |arg| arg.default_value("console"))
        .mut_arg("log_level", move |arg| arg.default_value(level))
}

/// Names of environment variables that look like this program's flags and are none: misspelt, most likely.
pub fn unknown_variables(environment: impl IntoIterator<Item = (OsString, OsString)>) -> Vec<String> {
    let command = command();
    let known: BTreeSet<&OsStr> =
        command.get_subcommands().flat_map(Command::get_arguments).filter_map(|argument| argument.get_env()).collect();
    environment
        .into_iter()
        .filter(|(name, _)| !known.contains(name.as_os_str()))
        .filter_map(|(name, _)| name.into_string().ok())
        .filter(|name| name.strip_prefix(ENVIRONMENT).is_some_and(|rest| !is_service_link(rest)))
        .collect()
}

/// Kubernetes sets such variables for a Service that is called `etcd-proxy`.
fn is_service_link(rest: &str) -> bool {
    rest.starts_with("SERVICE_") || rest == "PORT" || rest.starts_with("PORT_")
}

#[cfg(test)]
mod tests;
