//! `--help`.

use crate::child::{etcd_proxy, fails, ok};

#[test]
fn every_flag_of_every_command_is_explained() {
    for command in etcd_proxy::cli::command().get_subcommands() {
        let help = ok(etcd_proxy(&[command.get_name(), "--help"]));
        for arg in command.get_arguments() {
            let Some(flag) = arg.get_long() else { continue };
            let (_, after) = help.split_once(&format!("\n  --{flag} '")).unwrap_or_else(|| panic!("--{flag}: {help}"));
            let explanation = after.lines().nth(1).unwrap();
            assert!(explanation.starts_with("    ") && explanation.len() > 20, "--{flag}: {explanation:?}");
        }
    }
    let help = ok(etcd_proxy(&["--help"]));
    for words in
        ["etcd-proxy claim", "etcd-proxy release", "--prefix ''", "--listen-client-urls 'http://localhost:2379'"]
    {
        assert!(help.contains(words), "{words}: {help}");
    }
    assert!(ok(etcd_proxy(&["--version"])).contains(env!("CARGO_PKG_VERSION")));
    assert!(fails(etcd_proxy(&["start"])).contains("start"));
}
