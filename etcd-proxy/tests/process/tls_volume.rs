//! Certificates in a mounted Secret: all files change in one instant, by the swap of a symbolic link, as kubelet does it
//! (`pkg/volume/util/atomic_writer.go`).

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

use tempfile::TempDir;

use crate::{
    child::{Etcd, Proxy, etcdctl, eventually, fails, free_address, ok},
    pki::{Ca, Identity, text},
};

const FILES: [&str; 3] = ["tls.crt", "tls.key", "ca.crt"];

/// A volume of a Secret.
struct Volume {
    dir: PathBuf,
    generation: u32,
}

impl Volume {
    fn new(dir: &Path, serving: &Identity, client_ca: &str) -> Self {
        fs::create_dir(dir).unwrap();
        let mut volume = Self { dir: dir.to_owned(), generation: 0 };
        volume.swap(serving, client_ca);
        for file in FILES {
            symlink(format!("..data/{file}"), dir.join(file)).unwrap();
        }
        volume
    }

    fn swap(&mut self, serving: &Identity, client_ca: &str) {
        let old = self.dir.join(format!("..2026_{}", self.generation));
        self.generation += 1;
        let name = format!("..2026_{}", self.generation);
        let new = self.dir.join(&name);
        fs::create_dir(&new).unwrap();
        fs::copy(&serving.cert, new.join(FILES[0])).unwrap();
        fs::copy(&serving.key, new.join(FILES[1])).unwrap();
        fs::write(new.join(FILES[2]), client_ca).unwrap();
        symlink(name, self.dir.join("..data_tmp")).unwrap();
        fs::rename(self.dir.join("..data_tmp"), self.dir.join("..data")).unwrap();
        if old.exists() {
            fs::remove_dir_all(old).unwrap();
        }
    }

    fn path(&self, file: &str) -> String {
        text(&self.dir.join(file)).to_owned()
    }
}

fn get(proxy: &Proxy, ca: &Ca, client: &Identity) -> std::process::Output {
    let flags = ["--cacert", text(&ca.file), "--cert", text(&client.cert), "--key", text(&client.key)];
    etcdctl(&proxy.url, &flags, &["get", "k"])
}

/// A rotation of the CA: a bundle of both, leaves of the new one with a chain to the old one, the old one gone. Then many
/// rotations in quick succession, which the reads of the files run into.
#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_is_followed_whenever_it_is_looked_at() {
    let dir = TempDir::new().unwrap();
    let dir = dir.path();
    let etcd = Etcd::start().await;
    let (old, new) = (Ca::new(dir, "old"), Ca::new(dir, "new"));
    let both = format!("{}{}", old.pem, new.pem);
    let (old_client, new_client) = (old.issue(dir, "old-client"), new.issue(dir, "new-client"));
    let first = old.issue(dir, "first");
    let mut volume = Volume::new(&dir.join("volume"), &first, &old.pem);
    let proxy = Proxy::spawn_at(
        format!("https://{}", free_address()),
        "/a/",
        &etcd.url,
        &[
            &format!("--cert-file={}", volume.path("tls.crt")),
            &format!("--key-file={}", volume.path("tls.key")),
            &format!("--trusted-ca-file={}", volume.path("ca.crt")),
            "--client-cert-auth",
            "--client-cert-allowed-cn=old-client,new-client",
            "--cert-reload-interval=20ms",
        ],
    );
    proxy.ready().await;
    ok(get(&proxy, &old, &old_client));
    fails(get(&proxy, &old, &new_client));

    volume.swap(&first, &both);
    eventually("clients of the new CA get in", async || get(&proxy, &old, &new_client).status.success().then_some(()))
        .await;
    ok(get(&proxy, &old, &old_client));

    let cross_signed = new.cross_signed(&old);
    let second = new.issue_with(dir, "second", &cross_signed);
    volume.swap(&second, &both);
    eventually("the new leaf is shown", async || get(&proxy, &new, &old_client).status.success().then_some(())).await;
    // Who knows the old CA alone still gets in, with a leaf that has the same way to it.
    ok(get(&proxy, &old, &old_client));
    ok(get(&proxy, &old, &new.issue_with(dir, "new-client", &cross_signed)));

    volume.swap(&second, &new.pem);
    eventually("the old CA is gone", async || (!get(&proxy, &new, &old_client).status.success()).then_some(())).await;
    ok(get(&proxy, &new, &new_client));

    let leaves: Vec<Identity> = (0..8).map(|leaf| new.issue(dir, &format!("leaf{leaf}"))).collect();
    for round in 0..400 {
        volume.swap(&leaves[round % leaves.len()], if round % 2 == 0 { &both } else { &new.pem });
        tokio::time::sleep(Duration::from_micros(500 * (round as u64 % 7))).await;
    }
    let last = old.issue(dir, "last");
    volume.swap(&last, &both);
    eventually("the last leaf is shown", async || get(&proxy, &old, &old_client).status.success().then_some(())).await;
    let log = proxy.program.log();
    assert!(!log.contains("cannot be reloaded"), "{log}");
}
