//! The command line as people write it.

use std::ffi::OsString;

use super::*;

fn parse_words(words: &str) -> Result<Invocation, clap::Error> {
    parse(words.split_whitespace().map(OsString::from), [])
}

fn serve(words: &str) -> ServeArgs {
    match parse_words(words) {
        Ok(Invocation::Serve(args)) => *args,
        other => panic!("{words}: {other:?}"),
    }
}

#[test]
fn serve_is_the_default_and_gos_spellings_are_understood() {
    for words in [
        "etcd-proxy --prefix=/a/ --client-cert-auth --endpoints=https://x:1,https://y:2",
        "etcd-proxy serve --prefix /a/ --client-cert-auth=true --endpoints https://x:1,https://y:2",
        "etcd-proxy -prefix=/a/ -client-cert-auth -endpoints=https://x:1,https://y:2",
        "etcd-proxy --namespace=/a/ --client-cert-auth=1 --endpoints=https://x:1 --endpoints=https://y:2",
    ] {
        let args = serve(words);
        assert_eq!(args.tenant.prefix.as_deref(), Some("/a/".as_ref()), "{words}");
        assert!(args.security.client_cert_auth, "{words}");
        assert_eq!(args.upstream.endpoints, ["https://x:1", "https://y:2"], "{words}");
    }
    assert!(!serve("etcd-proxy").security.client_cert_auth);
}

#[test]
fn a_flag_that_is_not_honoured_is_refused_with_its_reason_and_without_its_value() {
    for words in [
        "etcd-proxy --discovery-srv=geheim",
        "etcd-proxy serve -discovery-srv geheim",
        "etcd-proxy claim --discovery-srv=geheim",
    ] {
        let message = parse_words(words).unwrap_err().to_string();
        assert!(message.contains("--discovery-srv is refused"), "{message}");
        assert!(message.contains("--endpoints"), "{message}");
        assert!(!message.contains("geheim"), "{message}");
    }
    let environment = [("ETCD_PROXY_AUTO_TLS".into(), "true".into())];
    let message = parse(["etcd-proxy".into()], environment).unwrap_err().to_string();
    assert!(message.contains("ETCD_PROXY_AUTO_TLS is refused"), "{message}");
}

#[test]
fn passwords_are_not_printed() {
    let args = serve("etcd-proxy --user=tenant:geheim --password=geheimer");
    assert_eq!(args.upstream.user.as_ref().unwrap().expose(), "tenant:geheim");
    assert!(!format!("{args:?}").contains("geheim"), "{args:?}");
}

#[test]
fn a_refused_flag_that_asks_for_nothing_is_no_reason_to_refuse() {
    serve(
        "etcd-proxy --auto-tls=false --resolver-ttl 0 --resolver-prefix= --logger zap --log-outputs=stderr --max-recv-bytes=2147483647",
    );
    serve("etcd-proxy grpc-proxy start --data-dir /var/lib/proxy --insecure-discovery --self-signed-cert-validity=3");
    for words in [
        "etcd-proxy --auto-tls=true",
        "etcd-proxy --auto-tls",
        // Go's flags that are true or false take no word of their own.
        "etcd-proxy --auto-tls false",
        "etcd-proxy --resolver-ttl 10",
        "etcd-proxy --data-dir /var/lib/proxy",
        "etcd-proxy --logger=other",
        "etcd-proxy grpc-proxy start --auto-tls",
    ] {
        let message = parse_words(words).unwrap_err().to_string();
        assert!(message.contains("is refused"), "{words}: {message}");
    }
}

#[test]
fn what_follows_two_dashes_is_refused_by_name() {
    for (words, named) in [
        ("etcd-proxy --prefix=/a/ --", "-- is refused"),
        ("etcd-proxy --prefix=/a/ -- --name=b c", "\"--name=b\" \"c\""),
        ("etcd-proxy serve -- x", "\"x\""),
        ("etcd-proxy -- claim", "\"claim\""),
        ("etcd-proxy grpc-proxy start -- y", "\"y\""),
    ] {
        let message = parse_words(words).unwrap_err().to_string();
        assert!(message.contains("-- is refused") && message.contains(named), "{words}: {message}");
    }
}

#[test]
fn defaults_of_etcd_that_are_spelled_out_ask_for_nothing() {
    serve("etcd-proxy --pre-vote --strict-reconfig-check=1 --heartbeat-interval 100 --grpc-keepalive-min-time=5000ms");
    for words in
        ["--pre-vote=false --wal-dir=/x", "--heartbeat-interval=200", "--grpc-keepalive-min-time=6s", "--memory-mlock"]
    {
        let message = parse_words(&format!("etcd-proxy {words}")).unwrap_err().to_string();
        assert!(message.contains("is refused"), "{words}: {message}");
    }
}

#[test]
fn of_a_flag_that_is_given_twice_the_later_counts_as_in_go() {
    let args = serve("etcd-proxy --name=a --name=b --endpoints=http://x:1 --endpoints=http://y:1");
    assert_eq!(args.view.name, "b");
    assert_eq!(args.upstream.endpoints, ["http://x:1", "http://y:1"]);
}

#[test]
fn no_flag_is_both_honoured_and_refused() {
    let command = command();
    let honoured: Vec<&str> = command
        .get_subcommands()
        .flat_map(|command| command.get_arguments())
        .flat_map(|arg| arg.get_long_and_visible_aliases().unwrap_or_default())
        .collect();
    let both: Vec<&str> = refused::names().filter(|name| honoured.contains(name)).collect();
    assert!(both.is_empty(), "{both:?}");
}

#[test]
fn every_flag_has_its_environment_variable_under_the_same_name() {
    for command in command().get_subcommands() {
        for arg in command.get_arguments() {
            let Some(long) = arg.get_long() else { continue };
            let env = arg.get_env().unwrap_or_else(|| panic!("--{long} has no variable")).to_string_lossy();
            assert_eq!(env, format!("ETCD_PROXY_{}", long.to_ascii_uppercase().replace('-', "_")));
        }
    }
}

#[test]
fn help_lists_every_flag_of_every_command() {
    let command = command();
    for subcommand in
        command.get_subcommands().filter(|command| command.get_arguments().any(|arg| arg.get_long().is_some()))
    {
        let help = subcommand.clone().render_help().to_string();
        let mut flags = 0;
        for arg in subcommand.get_arguments() {
            let Some(long) = arg.get_long() else { continue };
            assert!(help.contains(&format!("\n  --{long} '")), "{long} is missing in:\n{help}");
            flags += 1;
        }
        assert!(flags > 10, "{help}");
    }
    let root = command.clone().render_help().to_string();
    assert!(root.contains("--listen-client-urls 'http://localhost:2379'\n    List of URLs"), "{root}");
}

#[test]
fn unknown_words_and_flags_are_errors() {
    for words in ["etcd-proxy start", "etcd-proxy --nonsense", "etcd-proxy serve extra"] {
        assert!(parse_words(words).is_err(), "{words}");
    }
}

#[test]
fn misspelt_variables_are_noticed() {
    let environment = ["ETCD_PROXY_PREFX", "ETCD_PROXY_PREFIX", "ETCD_PROXY_SERVICE_HOST", "ETCD_PROXY_PORT", "PATH"];
    let unknown = unknown_variables(environment.map(|name| (name.into(), "x".into())));
    assert_eq!(unknown, ["ETCD_PROXY_PREFX"]);
}

/// A command line with a file of these contents.
fn with_file(words: &str, contents: &str, environment: &[(&str, &str)]) -> Result<Invocation, clap::Error> {
    let dir = tempfile::TempDir::new().unwrap();
    let path = dir.path().join("proxy.yml");
    std::fs::write(&path, contents).unwrap();
    let file = OsString::from(format!("--config-file={}", path.display()));
    let args = words.split_whitespace().map(OsString::from).chain([file]);
    parse(args, environment.iter().map(|(name, value)| ((*name).into(), (*value).into())))
}

#[test]
fn a_file_gives_what_neither_command_line_nor_environment_do() {
    let file = "namespace: /file/\nname: file\nendpoints: 'http://f:1,http://g:1'\ndrain-timeout: 3000000000\nshutdown-delay: 2s\n\
                debug: true\nauto-tls: false\nkeep-data: true\nunix-socket-mode: 0660\nlog-outputs: [stderr]\n";
    let serve = |words: &str, environment: &[(&str, &str)]| match with_file(words, file, environment) {
        Ok(Invocation::Serve(args)) => *args,
        other => panic!("{words}: {other:?}"),
    };
    let args = serve("etcd-proxy", &[]);
    assert_eq!(args.tenant.prefix.as_deref(), Some("/file/".as_ref()));
    assert_eq!(args.upstream.endpoints, ["http://f:1", "http://g:1"]);
    assert_eq!((args.listen.drain_timeout.as_secs(), args.listen.shutdown_delay.as_secs()), (3, 2));
    assert_eq!((args.log.debug, args.listen.unix_socket_mode), (true, 0o660));
    // By either of its names.
    assert_eq!(serve("etcd-proxy --prefix=/flag/", &[]).tenant.prefix.as_deref(), Some("/flag/".as_ref()));
    assert_eq!(serve("etcd-proxy --endpoints http://h:1", &[]).upstream.endpoints, ["http://h:1"]);
    // What clap reads from the process's own environment is not the file's.
    assert_eq!(serve("etcd-proxy", &[("ETCD_PROXY_NAME", "x")]).view.name, "etcd-proxy");
    // A file may serve several commands.
    match with_file("etcd-proxy release", file, &[]) {
        Ok(Invocation::Release(args)) => assert!(args.release.keep_data),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_is_refused_with_the_line_that_is_wrong() {
    for (contents, words) in [
        ("prefix: /a/\nprefx: /b/\nfoo: 1\n", &["line 2: prefx is not a flag", "line 3: foo is not a flag"][..]),
        ("prefix: /a/\nnamespace: /b/\nprefix: /c/\n", &["line 3: prefix is on line 1 already"]),
        ("auto-tls: true\n", &["line 1: auto-tls is refused: generated certificates"]),
        ("client-transport-security:\n  auto-tls: true\n", &["line 2: auto-tls is refused"]),
        ("prefix: /a/\nquota-bytes: much\n", &["line 2: invalid value 'much' for '--quota-bytes"]),
        ("drain-timeout: soon\n", &["line 1: invalid value 'soon' for '--drain-timeout", "write for example 10s"]),
        (
            "prefix: /a/\naccess-log: yes\n",
            &["line 2: invalid value 'yes' for '--access-log", "neither true nor false"],
        ),
        ("tls-min-version: TLS1.1\n", &["line 1: invalid value 'TLS1.1' for '--tls-min-version", "TLS1.2 and TLS1.3"]),
        ("listen-client-urls: http://example.com:2379\n", &["line 1: invalid value", "IP address"]),
        (
            "prefix: /a/\nlisten-client-urls: [http://127.0.0.1:1, unix://relative]\n",
            &["line 2: invalid value 'unix://relative'", "absolute"],
        ),
        ("prefix: /a/\nmetrics-addr: ftp://127.0.0.1:1\n", &["line 2: invalid value 'ftp://127.0.0.1:1'", "scheme"]),
        ("name: [a, b]\n", &["line 1: name takes one value"]),
        ("config-file: other.yml\n", &["line 1: config-file is refused"]),
        ("prefix /a/\n", &["not a map of flags"]),
    ] {
        let message = with_file("etcd-proxy", contents, &[]).unwrap_err().to_string();
        for words in words {
            assert!(message.contains(words) && message.contains("proxy.yml"), "{contents:?}: {message}");
        }
    }
    let message = parse_words("etcd-proxy --config-file=/nowhere/proxy.yml").unwrap_err().to_string();
    assert!(message.contains("--config-file=/nowhere/proxy.yml: No such file"), "{message}");
}

#[test]
fn grpc_proxy_says_that_it_takes_start_and_etcds_flags() {
    for words in ["grpc-proxy", "grpc-proxy --help", "grpc-proxy -h", "help grpc-proxy"] {
        let help = parse_words(&format!("etcd-proxy {words}")).unwrap_err();
        assert_eq!(help.kind(), ErrorKind::DisplayHelp, "{words}");
        let help = help.to_string();
        assert!(help.contains("etcd-proxy grpc-proxy start [flags]") && help.contains("127.0.0.1:23790"), "{help}");
    }
    for words in ["grpc-proxy start --help", "help grpc-proxy start"] {
        let help = parse_words(&format!("etcd-proxy {words}")).unwrap_err().to_string();
        assert!(help.starts_with("Usage:\n\n  etcd-proxy grpc-proxy start [flags]\n"), "{help}");
        assert!(help.contains("--listen-client-urls 'http://127.0.0.1:23790'"), "{help}");
        assert!(!help.contains("'http://localhost:2379'"), "{help}");
    }
    for words in ["grpc-proxy gateway", "grpc-proxy --endpoints=x:1"] {
        let message = parse_words(&format!("etcd-proxy {words}")).unwrap_err().to_string();
        assert!(message.contains("takes start"), "{words}: {message}");
    }
}

#[test]
fn help_and_version_are_commands_as_in_etcdctl() {
    let said = |words: &str| {
        let error = parse_words(&format!("etcd-proxy {words}")).unwrap_err();
        (error.kind(), error.to_string())
    };
    assert_eq!(said("help"), said("--help"));
    assert_eq!(said("help claim"), said("claim --help"));
    assert_eq!(said("version"), said("--version"));
    assert_eq!((said("help").0, said("version").0), (ErrorKind::DisplayHelp, ErrorKind::DisplayVersion));
    assert_eq!(said("help nonsense").0, ErrorKind::InvalidSubcommand);
}
