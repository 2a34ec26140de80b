use super::*;

fn run(args: &[&str]) -> RunArgs {
    match parsed(args) {
        Ok(Invocation::Run(args)) => *args,
        other => panic!("{other:?}"),
    }
}

fn parsed(args: &[&str]) -> Result<Invocation, clap::Error> {
    parse(["proxy-controller"].iter().chain(args).map(OsString::from))
}

fn config(args: &[&str]) -> Result<Config, String> {
    let args: Vec<_> = ["--namespace=control"].iter().chain(args).copied().collect();
    Config::try_from(run(&args)).map_err(|error| error.to_string())
}

#[test]
fn run_is_the_default_command() {
    for args in [&[][..], &["run"], &["--concurrency=9"], &["run", "--concurrency=9"]] {
        let expected = if args.contains(&"--concurrency=9") { 9 } else { 4 };
        assert_eq!(run(args).concurrency.get(), expected, "{args:?}");
    }
    assert!(matches!(parsed(&["crds"]), Ok(Invocation::Crds)));
    assert!(parsed(&["crd"]).is_err());
    assert!(parse([]).is_ok());
}

#[test]
fn the_defaults_make_sense() {
    let config = config(&[]).unwrap();
    let election = config.election.unwrap();
    assert_eq!((election.namespace.as_str(), election.name.as_str()), ("control", "proxy-controller"));
    assert_eq!(election.times, crate::leader::Times::default());
    let webhook = config.webhook.unwrap();
    assert_eq!((webhook.listen.port(), webhook.configuration.as_str()), (9443, "proxy-controller"));
    assert_eq!(webhook.identity.service, "proxy-controller-webhook");
    assert_eq!(config.metrics_listen.port(), 8080);
}

#[test]
fn no_two_candidates_have_the_same_identity() {
    let [a, b] = [(); 2].map(|()| config(&[]).unwrap().election.unwrap().identity);
    assert_ne!(a, b);
    assert!(a.split('_').next().is_some_and(|host| !host.is_empty()), "{a}");
}

#[test]
fn parts_can_be_switched_off() {
    let config = config(&["--leader-elect=false", "--webhook-configuration="]).unwrap();
    assert!(config.election.is_none() && config.webhook.is_none());
    assert!(run(&["--leader-elect"]).election.leader_elect);
}

#[test]
fn nonsense_is_refused_by_the_name_of_its_flag() {
    for (args, flag) in [
        (&["--namespace="][..], "--namespace"),
        (&["--namespace=Control"], "--namespace"),
        (&["--namespace=-"], "--namespace"),
        (&["--webhook-service=a.b"], "--webhook-service"),
        (&["--webhook-configuration=a_b"], "--webhook-configuration"),
        (&["--proxy-image="], "--proxy-image"),
        (&["--leader-elect-renew-deadline=15s"], "--leader-elect-renew-deadline"),
        (&["--leader-elect-retry-period=9s"], "--leader-elect-retry-period"),
        (&["--leader-elect-lease-duration=15500ms"], "--leader-elect-lease-duration"),
        (&["--metrics-listen=0.0.0.0:9443"], "--metrics-listen"),
    ] {
        let refused =
            Config::try_from(run(&[&["--namespace=control"], args].concat()[usize::from(flag == "--namespace")..]));
        let message = refused.unwrap_err().to_string();
        assert!(message.contains(flag), "{args:?}: {message}");
    }
    for args in [&["--leader-elect-retry-period=2"][..], &["--leader-elect-retry-period=-2s"], &["--concurrency=0"]] {
        assert!(parsed(args).is_err(), "{args:?}");
    }
}

#[test]
fn durations_are_read_as_go_reads_them() {
    for (text, millis) in [("15s", 15_000), ("1m30s", 90_000), ("500ms", 500), ("1h", 3_600_000)] {
        assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
    }
}

#[test]
fn help_is_in_full_sentences_and_every_flag_has_its_variable() {
    for command in command().get_subcommands().filter(|command| command.get_name() != "help") {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        assert!(about.ends_with('.'), "{about:?} of {}", command.get_name());
        for flag in command.get_arguments().filter(|flag| !matches!(flag.get_id().as_str(), "help" | "version")) {
            let help = flag.get_help().unwrap_or_else(|| panic!("no help for {}", flag.get_id())).to_string();
            assert!(help.ends_with('.') && !help.ends_with(".."), "{help:?}");
            let expected = format!("{ENVIRONMENT}{}", flag.get_id().as_str().to_uppercase());
            assert_eq!(flag.get_env().and_then(OsStr::to_str), Some(expected.as_str()));
        }
    }
}

#[test]
fn misspelt_variables_are_found_and_service_links_are_not() {
    let environment = [
        "PROXY_CONTROLLER_CONCURENCY",
        "PROXY_CONTROLLER_CONCURRENCY",
        "PROXY_CONTROLLER_SERVICE_HOST",
        "PROXY_CONTROLLER_PORT_443_TCP",
        "PROXY_CONTROLLER_WEBHOOK_SERVICE_HOST",
        "PROXY_CONTROLLER_WEBHOOK_SERVICE_PORT",
        "PROXY_CONTROLLER_WEBHOOK_PORT_443_TCP_ADDR",
        "PROXY_CONTROLLER_WEBHOOK_PORT",
        "HOME",
    ];
    let unknown = unknown_variables(environment.map(|name| (name.into(), "1".into())));
    assert_eq!(unknown, ["PROXY_CONTROLLER_CONCURENCY"]);
}
