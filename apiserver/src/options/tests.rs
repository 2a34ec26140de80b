use std::{fs, os::unix::fs::PermissionsExt as _};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use clap::Parser;
use kube::config::{KubeConfigOptions, Kubeconfig};

use super::*;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    options: RecommendedOptions,
}

fn parse(arguments: &[&str]) -> RecommendedOptions {
    Cli::try_parse_from([&["server"], arguments].concat()).unwrap_or_else(|error| panic!("{error}")).options
}

fn mistakes(arguments: &[&str]) -> String {
    match parse(arguments).validate() {
        Err(OptionsError::Invalid(errors)) => errors.join("\n"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn flags_are_go_flags() {
    let options = parse(&[
        "--etcd-servers=https://a:2379,https://b:2379",
        "--etcd-servers",
        "https://c:2379",
        "--etcd-compaction-interval=1h",
        "--secure-port=8443",
        "--bind-address=::1",
        "--authentication-skip-lookup",
        "--shutdown-send-retry-after=true",
        "--disable-http2-serving=false",
        "--shutdown-delay-duration=1m30s",
        "--requestheader-allowed-names=a,b",
        "--tls-min-version=VersionTLS13",
        "--tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_AES_128_GCM_SHA256",
    ]);
    options.validate().unwrap();
    assert_eq!(options.etcd.etcd_servers, ["https://a:2379", "https://b:2379", "https://c:2379"]);
    assert_eq!(options.etcd.etcd_compaction_interval, Duration::from_secs(3600));
    assert!(options.authentication.authentication_skip_lookup && options.run.shutdown_send_retry_after);
    assert!(!options.secure_serving.disable_http2_serving);
    assert_eq!(options.run.shutdown_delay_duration, Duration::from_secs(90));
    assert_eq!(options.authentication.requestheader_username_headers, ["x-remote-user"]);
    assert_eq!(options.authorization.authorization_always_allow_paths, ["/healthz", "/readyz", "/livez"]);
}

#[test]
fn mistakes_are_told_all_at_once() {
    let text = mistakes(&[
        "--tls-cert-file=a",
        "--tls-min-version=VersionTLS11",
        "--goaway-chance=0.5",
        "--requestheader-uid-headers=x-uid",
        "--authorization-always-allow-paths=/a*b",
        "--strict-transport-security-directives=max-age=x",
    ]);
    for expected in [
        "--etcd-servers must be specified",
        "--tls-cert-file and --tls-private-key-file go together",
        "VersionTLS11: versions before TLS 1.2",
        "--goaway-chance must be from 0 to 0.02",
        "--requestheader-uid-headers does not name X-Remote-Uid",
        "only a trailing * is allowed",
        "\"max-age=x\" is no directive",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn what_is_missing_is_not_silently_left_out() {
    let memory = "--storage-backend=memory";
    for (flag, reason) in [
        ("--audit-policy-file=p.yaml", "--audit-policy-file: this server writes no audit log"),
        ("--audit-log-compress", "--audit-log-compress: this server writes no audit log"),
        ("--admission-control-config-file=a", "admission plugins take no configuration"),
        ("--encryption-provider-config=e", "stores objects unencrypted"),
        ("--egress-selector-config-file=e", "cannot be redirected"),
        ("--feature-gates=A=true", "there are no feature gates"),
        ("--enable-priority-and-fairness", "does not order requests by priority"),
        ("--tls-sni-cert-key=a,b", "one serving certificate"),
    ] {
        let text = mistakes(&[memory, flag]);
        assert!(text.contains(reason), "{flag}: {text}");
    }
    // What asks for nothing that is not so anyway does not stop anybody.
    parse(&[memory, "--enable-priority-and-fairness=false", "--audit-log-path=", "--profiling=false"])
        .validate()
        .unwrap();
    // What nobody knows is an error of its own.
    assert!(Cli::try_parse_from(["server", "--no-such-flag"]).is_err());
}

#[test]
fn standing_alone_has_its_conditions() {
    assert!(mistakes(&["--standalone", "--etcd-servers=a"]).contains("--standalone needs --storage-backend=memory"));
    let text = mistakes(&["--standalone", "--storage-backend=memory", "--bind-address=192.0.2.1", "--kubeconfig=k"]);
    assert!(
        text.contains("--bind-address=192.0.2.1 is none") && text.contains("--kubeconfig has no meaning"),
        "{text}"
    );
    // Whoever asks for every address gets no other silently.
    let text = mistakes(&["--standalone", "--storage-backend=memory", "--bind-address=0.0.0.0"]);
    assert!(text.contains("--bind-address=0.0.0.0 is none"), "{text}");
    for address in ["127.0.0.1", "::1"] {
        parse(&["--standalone", "--storage-backend=memory", &format!("--bind-address={address}")]).validate().unwrap();
    }
    parse(&["--standalone", "--storage-backend=memory"]).validate().unwrap();
}

#[test]
fn help_tells_of_every_flag_that_works() {
    use clap::CommandFactory as _;

    let help = Cli::command().render_long_help().to_string();
    for flag in ["--etcd-servers", "--cert-dir", "--client-ca-file", "--kubeconfig", "--standalone", "--goaway-chance"]
    {
        assert!(help.contains(flag), "{flag}");
    }
    assert!(!help.contains("--audit-log-path"));
}

#[tokio::test]
async fn a_server_alone_lets_only_its_kubeconfig_in() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sub/standalone.kubeconfig");
    let flag = format!("--standalone-kubeconfig={}", path.display());
    let options = parse(&["--standalone", "--storage-backend=memory", &flag]);
    let recommended = options.config(VersionInfo::of_crate("0.1.0")).await.unwrap();
    assert_eq!(recommended.kubeconfig.as_deref(), Some(path.as_path()));
    assert!(recommended.cluster.is_none());
    for file in [path.clone(), path.with_extension("serving.key")] {
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "{}", file.display());
    }
    let server = recommended.config.complete().server().prepare().unwrap();
    assert!(server.local_addr().unwrap().ip().is_loopback());
    let stop = tokio_util::sync::CancellationToken::new();
    let stopped = stop.clone();
    let running = tokio::spawn(server.run(async move { stopped.cancelled().await }));

    let text = fs::read_to_string(&path).unwrap();
    for field in ["certificate-authority-data", "client-certificate-data", "client-key-data"] {
        let line = text.lines().find(|line| line.contains(field)).unwrap();
        let value = line.split_once(": ").unwrap().1.trim_matches(['"', ',']);
        assert!(BASE64_STANDARD.decode(value).unwrap().starts_with(b"-----BEGIN "), "{line}");
    }
    let file = Kubeconfig::read_from(&path).unwrap();
    let mut config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    let client = kube::Client::try_from(config.clone()).unwrap();
    let metrics = || http::Request::get("/metrics").body(Vec::new()).unwrap();
    assert!(client.request_text(metrics()).await.unwrap().contains("apiserver_open_connections 1"));
    // The same without the certificate.
    config.auth_info = kube::config::AuthInfo::default();
    let stranger = kube::Client::try_from(config).unwrap();
    match stranger.request_text(metrics()).await.unwrap_err() {
        kube::Error::Api(status) => assert_eq!(status.code, 403),
        other => panic!("{other}"),
    }
    stop.cancel();
    running.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_port_that_is_taken_is_told() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = format!("--standalone-kubeconfig={}", directory.path().join("k").display());
    let port = format!("--secure-port={}", taken.local_addr().unwrap().port());
    let options = parse(&["--standalone", "--storage-backend=memory", &kubeconfig, &port]);
    let error = options.config(VersionInfo::default()).await.map(|_| ()).unwrap_err();
    assert!(matches!(error, OptionsError::Listen { .. }), "{error}");
}

#[tokio::test]
async fn a_self_signed_certificate_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let cert_dir = directory.path().join("certificates");
    let flag = format!("--cert-dir={}", cert_dir.display());
    let options = parse(&["--storage-backend=memory", "--bind-address=127.0.0.1", "--secure-port=0", &flag]);
    let mut certificates = Vec::new();
    for _ in 0..2 {
        options.secure_serving.serving(Arc::default()).await.unwrap();
        certificates.push(fs::read(cert_dir.join("apiserver.crt")).unwrap());
    }
    assert_eq!(certificates[0], certificates[1]);
    assert_eq!(fs::metadata(cert_dir.join("apiserver.key")).unwrap().permissions().mode() & 0o777, 0o600);
}
