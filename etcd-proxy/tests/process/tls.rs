//! TLS and client certificates on both sides, and their rotation.

use std::{
    fs,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, SystemTime},
};

use rustls::{
    CipherSuite, ClientConfig, HandshakeKind, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use crate::{
    child::{Etcd, Program, Proxy, SOON, binary, etcd_proxy, etcdctl, eventually, fails, free_address, ok},
    pki::{Ca, Identity, text},
};

fn client_flags(ca: &Ca, identity: Option<&Identity>) -> Vec<String> {
    let mut flags = vec!["--cacert".to_owned(), text(&ca.file).to_owned()];
    if let Some(identity) = identity {
        flags.extend(["--cert", text(&identity.cert), "--key", text(&identity.key)].map(str::to_owned));
    }
    flags
}

fn ctl(proxy: &Proxy, ca: &Ca, identity: Option<&Identity>, args: &[&str]) -> std::process::Output {
    let flags = client_flags(ca, identity);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    etcdctl(&proxy.url, &flags, args)
}

fn serving_flags(identity: &Identity, client_ca: Option<&Ca>) -> Vec<String> {
    let mut flags = vec!["--cert-file", text(&identity.cert), "--key-file", text(&identity.key)];
    if let Some(ca) = client_ca {
        flags.extend(["--client-cert-auth", "--trusted-ca-file", text(&ca.file)]);
    }
    flags.into_iter().map(str::to_owned).collect()
}

async fn proxy(etcd: &Etcd, flags: &[String]) -> Proxy {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let proxy = Proxy::spawn_at(format!("https://{}", free_address()), "/a/", &etcd.url, &flags);
    proxy.ready().await;
    proxy
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_need_a_certificate_of_the_right_ca_and_name() {
    let dir = TempDir::new().unwrap();
    let etcd = Etcd::start().await;
    let (ca, stranger) = (Ca::new(dir.path(), "ca"), Ca::new(dir.path(), "stranger"));
    let server = ca.issue(dir.path(), "server");
    let (alice, bob) = (ca.issue(dir.path(), "alice"), ca.issue(dir.path(), "bob"));
    let mallory = stranger.issue(dir.path(), "mallory");

    let tls = proxy(&etcd, &serving_flags(&server, None)).await;
    assert_eq!(ok(ctl(&tls, &ca, None, &["put", "k", "v"])), "OK\n");
    fails(ctl(&tls, &stranger, None, &["get", "k"]));

    let mutual = proxy(&etcd, &serving_flags(&server, Some(&ca))).await;
    assert_eq!(ok(ctl(&mutual, &ca, Some(&alice), &["get", "k"])), "k\nv\n");
    fails(ctl(&mutual, &ca, None, &["get", "k"]));
    fails(ctl(&mutual, &ca, Some(&mallory), &["get", "k"]));

    for (allowed, refused) in [
        (
            "--client-cert-allowed-cn=alice,carol",
            r#"--client-cert-allowed-cn does not name the client's common name \"bob\""#,
        ),
        (
            "--client-cert-allowed-hostname=alice",
            r#"names none of the client's alternative names [127.0.0.1, \"localhost\", \"bob\"]"#,
        ),
    ] {
        let mut flags = serving_flags(&server, Some(&ca));
        flags.push(allowed.to_owned());
        let named = proxy(&etcd, &flags).await;
        assert_eq!(ok(ctl(&named, &ca, Some(&alice), &["get", "k"])), "k\nv\n", "{allowed}");
        fails(ctl(&named, &ca, Some(&bob), &["get", "k"]));
        named.program.logged("TLS handshake failed").await;
        assert!(named.program.log().contains(refused), "{}", named.program.log());
    }

    let mut flags = serving_flags(&server, None);
    flags.push("--tls-max-version=TLS1.2".to_owned());
    let old = proxy(&etcd, &flags).await;
    assert_eq!(ok(ctl(&old, &ca, None, &["get", "k"])), "k\nv\n");
}

/// Whoever leaves out `https://` is told what may be missing.
#[tokio::test(flavor = "multi_thread")]
async fn plaintext_to_a_member_that_speaks_tls_is_named() {
    let dir = TempDir::new().unwrap();
    let server = Ca::new(dir.path(), "ca").issue(dir.path(), "server");
    let flags = ["--cert-file", text(&server.cert), "--key-file", text(&server.key)].map(str::to_owned);
    let etcd = Etcd::start_with(format!("https://{}", free_address()), &flags).await;
    let address = etcd.url.strip_prefix("https://").unwrap();
    let proxy = Proxy::spawn("/a/", address, &[]);
    proxy.program.logged("it may speak TLS").await;
}

/// Says hello with what `tls` remembers of sessions. Returns how the session began, if the server answers.
async fn greets(tls: &Arc<ClientConfig>, url: &str) -> std::io::Result<HandshakeKind> {
    let stream = TcpStream::connect(url.trim_start_matches("https://")).await?;
    let mut stream = TlsConnector::from(tls.clone()).connect("localhost".try_into().unwrap(), stream).await?;
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await?;
    // With TLS 1.3 a refusal comes in place of an answer; and tickets for the next session come with the answer.
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    if !answer.starts_with(b"HTTP/1.1 200") {
        return Err(std::io::Error::other(answer.escape_ascii().to_string()));
    }
    Ok(stream.get_ref().1.handshake_kind().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_need_a_cipher_suite_that_is_listed() {
    // The certificates have keys of elliptic curves.
    const LISTED: &str = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256";
    let dir = TempDir::new().unwrap();
    let etcd = Etcd::start().await;
    let ca = Ca::new(dir.path(), "ca");
    let server = ca.issue(dir.path(), "server");
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&ca.file).unwrap()).unwrap();
    let client = |suite: CipherSuite| {
        let mut provider = ring::default_provider();
        provider.cipher_suites.retain(|known| known.suite() == suite);
        let config = ClientConfig::builder_with_provider(Arc::new(provider)).with_safe_default_protocol_versions();
        Arc::new(config.unwrap().with_root_certificates(roots.clone()).with_no_client_auth())
    };
    let listed = client(CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256);
    let other = client(CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384);
    let newer = client(CipherSuite::TLS13_CHACHA20_POLY1305_SHA256);

    for flag in ["--cipher-suites", "--listen-cipher-suites"] {
        let mut flags = serving_flags(&server, None);
        flags.push(format!("{flag}={LISTED},TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"));
        let proxy = proxy(&etcd, &flags).await;
        greets(&listed, &proxy.url).await.unwrap();
        greets(&newer, &proxy.url).await.unwrap();
        let error = greets(&other, &proxy.url).await.unwrap_err();
        assert!(error.to_string().contains("HandshakeFailure"), "{error}");
        eventually("the log says why", async || proxy.program.log().contains("NoCipherSuitesInCommon").then_some(()))
            .await;
        assert_eq!(ok(ctl(&proxy, &ca, None, &["put", "k", "v"])), "OK\n");
    }

    let mut flags = serving_flags(&server, None);
    flags.push("--cipher-suites=".to_owned());
    let all = proxy(&etcd, &flags).await;
    for client in [listed, other, newer] {
        greets(&client, &all.url).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_has_expired_is_refused_to_who_was_here_before() {
    let dir = TempDir::new().unwrap();
    let etcd = Etcd::start().await;
    let ca = Ca::new(dir.path(), "ca");
    let server = ca.issue(dir.path(), "server");
    let open = proxy(&etcd, &serving_flags(&server, None)).await;
    let mut mutual: Vec<Proxy> = Vec::new();
    for version in ["TLS1.2", "TLS1.3"] {
        let mut flags = serving_flags(&server, Some(&ca));
        flags.extend(["--tls-min-version", version, "--tls-max-version", version].map(str::to_owned));
        mutual.push(proxy(&etcd, &flags).await);
    }
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&ca.file).unwrap()).unwrap();
    let config = || {
        ClientConfig::builder_with_provider(Arc::new(ring::default_provider())).with_safe_default_protocol_versions()
    };
    let anybody = Arc::new(config().unwrap().with_root_certificates(roots.clone()).with_no_client_auth());
    for expected in [HandshakeKind::Full, HandshakeKind::Resumed] {
        assert_eq!(greets(&anybody, &open.url).await.unwrap(), expected, "sessions of clients without certificates");
    }

    // In whole seconds, as certificates have them.
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let end = SystemTime::UNIX_EPOCH + Duration::from_secs(now.as_secs() + 6);
    let short = ca.issue_until(dir.path(), "short", end);
    let (chain, key) =
        (CertificateDer::pem_file_iter(&short.cert).unwrap(), PrivateKeyDer::from_pem_file(&short.key).unwrap());
    let chain: Vec<_> = chain.map(Result::unwrap).collect();
    let somebody = Arc::new(config().unwrap().with_root_certificates(roots).with_client_auth_cert(chain, key).unwrap());
    for proxy in &mutual {
        greets(&somebody, &proxy.url).await.unwrap();
    }
    for proxy in &mutual {
        eventually("it has expired", async || greets(&somebody, &proxy.url).await.is_err().then_some(())).await;
        assert!(SystemTime::now() >= end, "refused before its time");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_upstream_is_verified_and_told_who_asks() {
    let dir = TempDir::new().unwrap();
    let (ca, stranger) = (Ca::new(dir.path(), "ca"), Ca::new(dir.path(), "stranger"));
    let server = ca.issue(dir.path(), "etcd");
    let client = ca.issue(dir.path(), "proxy");
    let etcd = Etcd::start_with(format!("https://{}", free_address()), &serving_flags(&server, Some(&ca))).await;

    let flags = client_flags(&ca, Some(&client));
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let good = Proxy::spawn("/a/", &etcd.url, &flags);
    good.ready().await;
    assert_eq!(good.ctl(&["put", "k", "v"]), "OK\n");

    for (flags, words) in
        [(client_flags(&stranger, Some(&client)), "UnknownIssuer"), (client_flags(&ca, None), "upstream unreachable")]
    {
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let bad = Proxy::spawn("/a/", &etcd.url, &flags);
        eventually("it says why", async || bad.program.log().contains(words).then_some(())).await;
        eventually("it listens", async || crate::http::get(&format!("{}/livez", bad.metrics)).await).await;
        assert_eq!(crate::http::get(&format!("{}/readyz", bad.metrics)).await.unwrap().status, 503);
        assert!(fails(etcdctl(&bad.url, &[], &["get", "k"])).contains("Unavailable"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_certificate_and_ca_take_effect_and_drop_nobody() {
    let dir = TempDir::new().unwrap();
    let etcd = Etcd::start().await;
    let (old_ca, new_ca) = (Ca::new(dir.path(), "old"), Ca::new(dir.path(), "new"));
    let server = old_ca.issue(dir.path(), "server");
    let client_ca = dir.path().join("client-ca.pem");
    fs::copy(&old_ca.file, &client_ca).unwrap();
    let (old_client, new_client) = (old_ca.issue(dir.path(), "old-client"), new_ca.issue(dir.path(), "new-client"));
    let mut flags = serving_flags(&server, None);
    flags.extend(["--trusted-ca-file".to_owned(), text(&client_ca).to_owned()]);
    flags.push("--cert-reload-interval=100ms".to_owned());
    let proxy = proxy(&etcd, &flags).await;

    let mut command = Command::new(binary("TEST_ETCDCTL"));
    command
        .args(["--endpoints", &proxy.url])
        .args(client_flags(&old_ca, Some(&old_client)))
        .args(["watch", "k"])
        .stdin(Stdio::null());
    let watching = Program::spawn(command, dir.path().join("watch"));
    eventually("the watch sees events", async || {
        etcd.ctl(&["put", "/a/k", "before"]);
        watching.log().contains("before").then_some(())
    })
    .await;
    fails(ctl(&proxy, &new_ca, Some(&new_client), &["get", "k"]));

    // A key that does not fit is noticed and changes nothing.
    let spare = new_ca.issue(dir.path(), "spare");
    fs::copy(&spare.key, &server.key).unwrap();
    eventually("the misfit is noticed", async || {
        proxy.program.log().contains("certificates cannot be reloaded").then_some(())
    })
    .await;
    ok(ctl(&proxy, &old_ca, Some(&old_client), &["get", "k"]));

    fs::copy(&spare.cert, &server.cert).unwrap();
    fs::copy(&new_ca.file, &client_ca).unwrap();
    eventually("new connections use the new certificates", async || {
        ctl(&proxy, &new_ca, Some(&new_client), &["get", "k"]).status.success().then_some(())
    })
    .await;
    fails(ctl(&proxy, &old_ca, Some(&old_client), &["get", "k"]));
    fails(ctl(&proxy, &new_ca, Some(&old_client), &["get", "k"]));
    etcd.ctl(&["put", "/a/k", "after"]);
    eventually("the old connection lives", async || watching.log().contains("after").then_some(())).await;
    let metrics = crate::http::get(&format!("{}/metrics", proxy.metrics)).await.unwrap().body;
    assert!(metrics.contains(r#"certificate_reloads_total{certificates="serving",result="changed"}"#), "{metrics}");
    assert!(metrics.contains(r#"certificate_expiry_timestamp_seconds{certificates="serving"}"#), "{metrics}");
}

/// An etcd with authentication on, where the user `tenant` may read its own claim and no other.
pub(crate) struct AuthenticatedEtcd {
    dir: TempDir,
    etcd: Etcd,
    ca: Ca,
    root: Identity,
    tenant: Identity,
}

pub(crate) async fn etcd_with_authentication() -> AuthenticatedEtcd {
    let dir = TempDir::new().unwrap();
    let ca = Ca::new(dir.path(), "ca");
    let server = ca.issue(dir.path(), "etcd");
    let (root, tenant) = (ca.issue(dir.path(), "root"), ca.issue(dir.path(), "tenant"));
    let etcd = Etcd::start_with(format!("https://{}", free_address()), &serving_flags(&server, Some(&ca))).await;
    let etcd = AuthenticatedEtcd { dir, etcd, ca, root, tenant };
    let hex = "2f612f";
    etcd.as_root(&["user", "add", "root", "--no-password"]);
    etcd.as_root(&["user", "grant-role", "root", "root"]);
    etcd.as_root(&["user", "add", "tenant", "--no-password"]);
    etcd.as_root(&["role", "add", "tenant"]);
    etcd.as_root(&["role", "grant-permission", "tenant", "readwrite", "/a/", "--prefix"]);
    etcd.as_root(&["role", "grant-permission", "tenant", "read", &format!("/etcd-proxy.meta/claims/{hex}")]);
    etcd.as_root(&[
        "role",
        "grant-permission",
        "tenant",
        "readwrite",
        &format!("/etcd-proxy.meta/tenants/{hex}/"),
        "--prefix",
    ]);
    // The claim of /c/ may be read, so that its absence is what is seen.
    etcd.as_root(&["role", "grant-permission", "tenant", "read", "/etcd-proxy.meta/claims/2f632f"]);
    etcd.as_root(&["user", "grant-role", "tenant", "tenant"]);
    etcd.as_root(&["auth", "enable"]);
    etcd
}

impl AuthenticatedEtcd {
    pub(crate) fn as_root(&self, args: &[&str]) {
        let flags = client_flags(&self.ca, Some(&self.root));
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        ok(etcdctl(&self.etcd.url, &flags, args));
    }

    pub(crate) fn claim(&self, prefix: &str, owner: &str) {
        let mut args = vec!["claim".to_owned()];
        args.extend(["--prefix", prefix, "--owner", owner, "--endpoints", &self.etcd.url].map(str::to_owned));
        args.extend(client_flags(&self.ca, Some(&self.root)));
        ok(etcd_proxy(&args));
    }

    /// A proxy as the user `tenant`, and its metrics address.
    pub(crate) fn proxy(&self, prefix: &str) -> (Program, String) {
        let metrics = format!("http://{}", free_address());
        let mut command = Command::new(env!("CARGO_BIN_EXE_etcd-proxy"));
        command
            .args(["--prefix", prefix, "--endpoints", &self.etcd.url])
            .args(["--listen-client-urls", &format!("http://{}", free_address()), "--listen-metrics-urls", &metrics])
            .arg("--log-level=debug")
            .args(client_flags(&self.ca, Some(&self.tenant)));
        // A log of its own, whatever the prefix: its readers count what this process says.
        let log = self.dir.path().join(format!("proxy-{}", metrics.rsplit(':').next().unwrap()));
        (Program::spawn(command, log), metrics)
    }
}

/// Certificates on a disk that does not answer hold up neither clients nor the end of the process.
#[tokio::test(flavor = "multi_thread")]
async fn files_that_cannot_be_read_to_their_end_hold_up_nothing() {
    let dir = TempDir::new().unwrap();
    let etcd = Etcd::start().await;
    let ca = Ca::new(dir.path(), "ca");
    let server = ca.issue(dir.path(), "server");
    let mut flags = serving_flags(&server, None);
    flags.push("--cert-reload-interval=20ms".to_owned());
    let mut proxy = proxy(&etcd, &flags).await;

    // A pipe to which nobody writes, and which stays open.
    fs::remove_file(&server.cert).unwrap();
    assert!(Command::new("mkfifo").arg(&server.cert).status().unwrap().success());
    let cert = server.cert.clone();
    let open = tokio::task::spawn_blocking(move || fs::OpenOptions::new().write(true).open(cert));
    let read = tokio::time::timeout(SOON, open).await.expect("the proxy reads it").unwrap().unwrap();

    assert_eq!(ok(ctl(&proxy, &ca, None, &["put", "k", "v"])), "OK\n");
    proxy.program.signal("TERM");
    assert!(proxy.program.exit().await.success());
    drop(read);
}
