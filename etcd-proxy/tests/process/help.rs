//! `--help`, completion and the manual page.

use std::{process::Command, process::Stdio};

use tempfile::TempDir;

use crate::child::{etcd_proxy, fails, ok};

#[test]
fn every_flag_of_every_command_is_explained() {
    for command in etcd_proxy::cli::command().get_subcommands() {
        let help = ok(etcd_proxy(&[command.get_name(), "--help"]));
        for arg in command.get_arguments() {
            let Some(flag) = arg.get_long() else { continue };
            let (_, after) = help.split_once(&format!("\n  --{flag} '")).unwrap_or_else(|| panic!("--{flag}: {help}"));
            let mut lines = after.lines().skip(1);
            let explanation: String = lines.by_ref().take_while(|line| !line.contains("ETCD_PROXY_")).collect();
            assert!(explanation.ends_with('.'), "--{flag}: {explanation:?}");
            assert!(explanation.starts_with("    ") && explanation.len() > 20, "--{flag}: {explanation:?}");
            // Each has its variable below it.
            let variable = format!("    ETCD_PROXY_{}", flag.to_uppercase().replace('-', "_"));
            assert!(after.lines().take(12).any(|line| line == variable), "--{flag}: {after}");
        }
        assert!(help.lines().all(|line| line.chars().count() <= 120), "{help}");
    }
    let help = ok(etcd_proxy(&["--help"]));
    for words in [
        "etcd-proxy claim",
        "etcd-proxy release",
        "etcd-proxy completion SHELL",
        "etcd-proxy grpc-proxy start",
        "--prefix ''",
        "--listen-client-urls 'http://localhost:2379'",
        "\nSecurity:\n",
        "\nExamples:\n",
        "\nExit status:\n",
    ] {
        assert!(help.contains(words), "{words}: {help}");
    }
    assert!(
        help.contains("\n  etcd-proxy man [COMMAND]\n") && help.contains("\n  etcd-proxy help [COMMAND]\n"),
        "{help}"
    );
    assert!(ok(etcd_proxy(&["--version"])).contains(env!("CARGO_PKG_VERSION")));
    assert!(fails(etcd_proxy(&["start"])).contains("start"));
}

/// The examples in the help are commands that are understood.
#[test]
fn the_examples_are_right() {
    let help = ok(etcd_proxy(&["--help"]));
    let (_, examples) = help.split_once("\nExamples:\n").unwrap();
    let (examples, _) = examples.split_once("\nSignals:\n").unwrap();
    let examples = examples.replace("\\\n", " ");
    let mut count = 0;
    for line in
        examples.lines().filter_map(|line| line.strip_prefix("    ")).filter(|line| line.starts_with("etcd-proxy"))
    {
        let words: Vec<std::ffi::OsString> = line.split_whitespace().map(Into::into).collect();
        match etcd_proxy::cli::parse(words, []) {
            Ok(etcd_proxy::cli::Invocation::Serve(args)) => drop(etcd_proxy::config::Config::try_from(*args).unwrap()),
            Ok(_) => {}
            Err(error) => assert!(error.to_string().contains("/etc/etcd-proxy/tenant-a.yml"), "{line}: {error}"),
        }
        count += 1;
    }
    assert_eq!(count, 5, "{examples}");
}

#[test]
fn shells_are_told_all_commands_and_flags() {
    for shell in ["bash", "zsh", "fish"] {
        let script = ok(etcd_proxy(&["completion", shell]));
        for words in ["claim", "release", "listen-client-urls", "namespace", "owner", "compaction-policy"] {
            assert!(script.contains(words), "{shell}: {words}: {script}");
        }
    }
    assert!(fails(etcd_proxy(&["completion", "csh"])).contains("csh"));
    assert!(fails(etcd_proxy(&["completion"])).contains("<shell>"));

    // What bash makes of it.
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("completion");
    std::fs::write(&file, ok(etcd_proxy(&["completion", "bash"]))).unwrap();
    let complete = |words: &str| {
        let count = words.split_whitespace().count();
        let last = words.split_whitespace().next_back().unwrap();
        let script = format!(
            ". {} && COMP_WORDS=({words}) COMP_CWORD={} && _etcd__proxy etcd-proxy {last} x && echo \"${{COMPREPLY[@]}}\"",
            file.display(),
            count - 1
        );
        ok(Command::new("bash").args(["-c", &script]).stdin(Stdio::null()).output().unwrap())
    };
    assert_eq!(complete("etcd-proxy --listen-cl"), "--listen-client-urls\n");
    assert!(complete("etcd-proxy ba").split_whitespace().any(|word| word == "backup"));
    for (command, flag) in [("backup", "--file"), ("serve", "--quota-bytes"), ("check", "--observe")] {
        let flags = complete(&format!("etcd-proxy {command} --"));
        assert!(flags.split_whitespace().any(|word| word == flag), "{command}: {flags:?}");
    }
}

#[test]
fn the_manual_page_has_every_flag_of_the_default_command() {
    let page = ok(etcd_proxy(&["man"]));
    assert!(page.contains(".TH etcd-proxy 1"), "{page}");
    for words in ["listen\\-client\\-urls", ".SH SECURITY", "Examples:", "quota\\-bytes", "etcd\\-proxy\\-claim"] {
        assert!(page.contains(words), "{words}: {page}");
    }
}

#[test]
fn every_command_has_a_manual_page() {
    for command in etcd_proxy::cli::command().get_subcommands() {
        let name = command.get_name();
        let page = ok(etcd_proxy(&["man", name])).replace("\\-", "-");
        assert!(page.contains(&format!(".TH etcd-proxy-{name} 1")), "{name}: {page}");
        assert!(page.contains(&format!("\\fBetcd-proxy {name}\\fR")), "{name}: {page}");
        for flag in command.get_arguments().filter_map(|arg| arg.get_long()) {
            assert!(page.contains(&format!("\\fB--{flag}\\fR")), "{name} --{flag}: {page}");
        }
    }
    assert!(fails(etcd_proxy(&["man", "nonsense"])).contains("nonsense"));
}

/// A command line that is wrong is told from an upstream that is, whoever finds it.
#[test]
fn what_is_wrong_with_the_command_line_ends_with_2() {
    for words in [&["serve"][..], &["claim", "--owner=x"], &["backup", "--file=x"], &["--nonsense"]] {
        let output = etcd_proxy(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {output:?}");
    }
}

#[test]
fn a_variable_that_is_wrong_is_named() {
    for (variable, value) in [("ETCD_PROXY_ACCESS_LOG", "yes"), ("ETCD_PROXY_DRAIN_TIMEOUT", "soon")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_etcd-proxy"));
        let message = fails(command.arg("--prefix=/a/").env(variable, value).output().unwrap());
        assert!(message.contains(&format!("{variable}: invalid value '{value}'")), "{message}");
    }
}

/// Help, completion and manual page know the same flags, and the page each flag's default and variable.
#[test]
fn shells_and_the_manual_page_know_the_flags_that_the_help_does() {
    let (script, page) = (ok(etcd_proxy(&["completion", "bash"])), ok(etcd_proxy(&["man"])).replace("\\-", "-"));
    for command in etcd_proxy::cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
        let name = command.get_name();
        assert!(page.contains(&format!("etcd-proxy-{name}")), "{name}: {page}");
        // The command's own part of the script.
        let case = format!("\n        etcd__proxy__subcmd__{name})");
        let (_, part) = script.split_once(&case).unwrap_or_else(|| panic!("{case}: {script}"));
        let (_, options) = part.split_once(" opts=\"").unwrap();
        let (options, _) = options.split_once('"').unwrap();
        for arg in command.get_arguments() {
            let Some(flag) = arg.get_long() else { continue };
            assert!(options.split(' ').any(|option| option == format!("--{flag}")), "{name} --{flag}: {options}");
            if name != "serve" {
                continue;
            }
            let (_, told) =
                page.split_once(&format!("\n\\fB--{flag}\\fR")).unwrap_or_else(|| panic!("--{flag}: {page}"));
            let (told, _) = told.split_once("\n.TP").unwrap_or((told, ""));
            assert!(
                told.contains(&format!("ETCD_PROXY_{}", flag.to_uppercase().replace('-', "_"))),
                "--{flag}: {told}"
            );
            for default in arg.get_default_values().iter().filter(|default| !default.is_empty()) {
                assert!(told.contains(default.to_str().unwrap()), "--{flag}: {told}");
            }
        }
    }
    assert!(page.contains("Exit status:"), "{page}");
}
