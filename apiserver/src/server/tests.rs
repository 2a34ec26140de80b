//! Real TLS connections to a real server with an echoing resource.

mod delivery;
mod identity;
mod lifecycle;
mod limits;
mod paths;
mod support;
