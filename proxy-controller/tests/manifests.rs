//! What is shipped in `manifests/` against the code that it was made from.

use std::path::Path;

use proxy_controller::api;
use serde_json::Value;

const FILE: &str = "manifests/crds/etcd.programming-kubernetes.info.yaml";

#[test]
fn the_shipped_definitions_are_those_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(FILE);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let shipped: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    let made: Vec<Value> = api::crds().iter().map(|crd| serde_json::to_value(crd).unwrap()).collect();
    let name = |crd: &Value| crd["metadata"]["name"].clone();
    let same = shipped == made;
    // Not the whole of it: nobody reads ten thousand lines.
    let differing: Vec<_> = made.iter().filter(|crd| !shipped.contains(crd)).map(name).collect();
    assert!(
        same,
        "{FILE} is not what the code says (differing: {differing:?}, shipped: {:?}). Regenerate it:\n\n    cargo run -p proxy-controller -- crds > {FILE}\n",
        shipped.iter().map(name).collect::<Vec<_>>()
    );
}
