//! What becomes of EtcdProxy objects, on the real control plane with the controller under its shipped rights: what they get and
//! what is said of them, drift, changes, other namespaces, sidecars, outages, and their end with the data kept or deleted.

#[path = "provisioning/changes.rs"]
mod changes;
#[path = "provisioning/clients.rs"]
mod clients;
#[path = "provisioning/drift.rs"]
mod drift;
#[path = "provisioning/endings.rs"]
mod endings;
#[path = "provisioning/inheritance.rs"]
mod inheritance;
#[path = "provisioning/outage.rs"]
mod outage;
#[path = "provisioning/sidecar.rs"]
mod sidecar;
#[path = "provisioning/state.rs"]
mod state;
#[path = "provisioning/world.rs"]
mod world;
