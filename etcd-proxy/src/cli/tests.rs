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
    for subcommand in command.get_subcommands() {
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
