//! Reaching a shared etcd, and saying why it cannot be reached.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use etcd_proxy::{
    meta::DEFAULT_META_PREFIX,
    tls::{ClientTlsPem, Pem},
};
use proxy_controller::upstream::{Shared, SharedConfig, SharedConfigError, SharedError, Upstreams};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

use crate::etcd::{Etcd, eventually, free_address, prefix};

struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// Certificate and key in PEM.
struct Identity {
    cert: String,
    key: String,
}

impl Ca {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    fn issue(&self, name: &str) -> Identity {
        let mut params = CertificateParams::new(vec!["127.0.0.1".into()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().unwrap();
        Identity { cert: params.signed_by(&key, &self.issuer).unwrap().pem(), key: key.serialize_pem() }
    }
}

fn tls(ca: &Ca, identity: Option<&Identity>) -> ClientTlsPem {
    let tls = ClientTlsPem::new(Pem::new("ca.crt of Secret upstream-ca", ca.pem.clone()));
    let pem = |name: &str, text: &str| Pem::new(name, text.to_owned());
    match identity {
        None => tls,
        Some(Identity { cert, key }) => tls.with_identity(pem("tls.crt", cert), pem("tls.key", key)),
    }
}

fn write(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

/// An etcd that demands client certificates: what is wrong is said by name, and new certificates are taken up.
#[tokio::test(flavor = "multi_thread")]
async fn certificates_come_from_memory() {
    let (ca, stranger) = (Ca::new("ca"), Ca::new("stranger"));
    let (server, client, foreign) = (ca.issue("etcd"), ca.issue("controller"), stranger.issue("controller"));
    let dir = tempfile::tempdir().unwrap();
    let flags = [
        format!("--cert-file={}", write(dir.path(), "server.crt", &server.cert)),
        format!("--key-file={}", write(dir.path(), "server.key", &server.key)),
        format!("--trusted-ca-file={}", write(dir.path(), "ca.crt", &ca.pem)),
        "--client-cert-auth".to_owned(),
    ];
    let mut etcd = Etcd::prepare("https", &flags);
    etcd.run();
    let config = |tls| SharedConfig::new(vec![etcd.url.clone()], Some(tls), prefix(DEFAULT_META_PREFIX));
    let upstreams = Upstreams::default();
    let right = config(tls(&ca, Some(&client)));
    let connect = |config: &SharedConfig| upstreams.get("default", config).unwrap();
    let probe = eventually("etcd serves", async || connect(&right).probe().await.ok()).await;
    assert_eq!(probe.members, 1);
    // The same text read again is the same configuration and leads to the same connections.
    let again = config(tls(&ca, Some(&Identity { cert: client.cert.clone(), key: client.key.clone() })));
    assert!(std::ptr::eq(connect(&right).config(), connect(&again).config()));

    // Several times, since refusals of client certificates race with what the client sends.
    let wrong = [
        (tls(&stranger, Some(&client)), "UnknownIssuer"),
        (tls(&ca, None), "CertificateRequired"),
        (tls(&ca, Some(&foreign)), "alert"),
    ];
    for (wrong, reason) in wrong.iter().cycle().take(30).cloned() {
        let error = connect(&config(wrong)).probe().await.unwrap_err();
        let text = error.to_string();
        assert!(error.is_unreachable() && text.contains(reason) && text.contains(&etcd.url), "{reason}: {text}");
    }
    connect(&right).probe().await.unwrap();

    let unusable = [
        (tls(&Ca { pem: "nothing".into(), ..Ca::new("x") }, None), "ca.crt of Secret upstream-ca holds no certificate"),
        (tls(&ca, Some(&Identity { cert: client.cert.clone(), key: foreign.key })), "tls.crt and key tls.key"),
    ];
    for (unusable, text) in unusable {
        let error = upstreams.get("default", &config(unusable)).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    let none = SharedConfig::new(vec![etcd.url.clone()], None, prefix(DEFAULT_META_PREFIX));
    assert!(matches!(Shared::new(none), Err(SharedConfigError::NoCa(_))));
}

#[test]
fn a_private_key_is_never_shown() {
    let ca = Ca::new("ca");
    let identity = ca.issue("controller");
    let config = SharedConfig::new(vec![], Some(tls(&ca, Some(&identity))), prefix(DEFAULT_META_PREFIX));
    let shown = format!("{config:?}");
    assert!(shown.contains("tls.key") && !shown.contains("BEGIN"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_probe_tells_what_there_is_and_what_is_down() {
    let etcd = Etcd::start().await;
    let down = format!("http://{}", free_address());
    let config = SharedConfig { endpoints: vec![down.clone(), etcd.url.clone()], ..etcd.config() };
    let probe = Shared::new(config.clone()).unwrap().probe().await.unwrap();
    assert!(probe.version.starts_with("3.") && probe.members == 1, "{probe:?}");
    assert!(probe.db_size > 0 && probe.db_size_in_use <= probe.db_size && probe.complaints.is_empty(), "{probe:?}");
    // etcd's default; it tells since 3.6.
    if !probe.version.starts_with("3.5.") {
        assert_eq!(probe.quota, Some(2 << 30));
    }
    assert_eq!(probe.endpoints[0].endpoint, down);
    assert!(probe.endpoints[0].version.as_ref().unwrap_err().contains("refused"), "{probe:?}");
    assert_eq!(probe.endpoints[1].version.as_ref().unwrap(), &probe.version);

    let other = format!("http://{}", free_address());
    let all_down = SharedConfig { endpoints: vec![down.clone(), other.clone()], ..config };
    let error = Shared::new(all_down).unwrap().claims().await.unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, SharedError::Unreachable { .. }), "{text}");
    assert!(text.starts_with("cannot list the claims: ") && text.contains(&down) && text.contains(&other), "{text}");
    assert!(text.contains("refused"), "{text}");
}

/// An etcd that hangs holds nobody up for longer than the time limit.
#[tokio::test(flavor = "multi_thread")]
async fn every_call_ends() {
    let etcd = Etcd::start().await;
    let own = prefix("/a/");
    let shared = Shared::new(SharedConfig { timeout: Duration::from_millis(300), ..etcd.config() }).unwrap();
    eventually("the claim", async || shared.ensure_claim(&own, "ns/a", "1").await.ok()).await;
    let mut deletion = shared.deletion(&own, "ns/a", "1").await.unwrap().unwrap();
    etcd.signal("STOP");
    let asked = Instant::now();
    let errors = [
        shared.probe().await.unwrap_err(),
        shared.claims().await.unwrap_err(),
        shared.ensure_claim(&own, "ns/a", "1").await.unwrap_err(),
        shared.release(&own, "ns/a", "1").await.unwrap_err(),
        shared.usage(&own).await.unwrap_err(),
        deletion.step().await.unwrap_err(),
    ];
    let waited = asked.elapsed();
    etcd.signal("CONT");
    // Six times the time limit, and more on a busy machine.
    assert!(waited < Duration::from_secs(5), "{waited:?}");
    for error in errors {
        let text = error.to_string();
        assert!(matches!(error, SharedError::Timeout { .. }) && text.contains(&etcd.url), "{text}");
    }
    eventually("etcd answers again", async || shared.probe().await.ok()).await;
}
