//! Compiles `protos/` with protox, so that no system `protoc` is needed.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

const FILES: [&str; 14] = [
    "etcd/authpb.proto",
    "etcd/etcdserverpb/auth.proto",
    "etcd/etcdserverpb/cluster.proto",
    "etcd/etcdserverpb/header.proto",
    "etcd/etcdserverpb/kv.proto",
    "etcd/etcdserverpb/lease.proto",
    "etcd/etcdserverpb/maintenance.proto",
    "etcd/etcdserverpb/watch.proto",
    "etcd/mvccpb.proto",
    "etcd/v3electionpb.proto",
    "etcd/v3lockpb.proto",
    "restaurant/meta_v1.proto",
    "restaurant/v1alpha1.proto",
    "restaurant/v1beta1.proto",
];

/// Messages with a password, a hash of one or a token: their `Debug` is written by hand in
/// `src/redact.rs` and leaves it out.
const SECRETS: [&str; 5] = [
    "authpb.User",
    "etcdserverpb.AuthenticateRequest",
    "etcdserverpb.AuthenticateResponse",
    "etcdserverpb.AuthUserAddRequest",
    "etcdserverpb.AuthUserChangePasswordRequest",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=protos");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);

    let files = protox::compile(FILES, ["protos"])?;

    // Comments become documentation of the generated code; the exported descriptors do without.
    let mut exported = files.clone();
    for file in &mut exported.file {
        file.source_code_info = None;
    }
    fs::write(out.join("descriptors.bin"), exported.encode_to_vec())?;

    tonic_prost_build::configure()
        .bytes(".")
        .btree_map(".k8s")
        .skip_debug(SECRETS)
        .include_file("packages.rs")
        .compile_fds(files)?;
    Ok(())
}
