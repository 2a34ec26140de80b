//! How proxies are reached, in the controller's namespace.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    api::{
        core::v1::{Service, ServicePort, ServiceSpec},
        networking::v1::{
            NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
        },
        policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec},
    },
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};

use super::{CLIENT_PORT, Desired, Kind, METRICS_PORT, Names, metadata, selector};

/// The Service before the proxies.
pub fn service(names: &Names) -> Desired {
    Desired::new(
        Kind::Service,
        &Service {
            metadata: metadata(names, &names.controller_namespace, &names.base),
            spec: Some(ServiceSpec {
                selector: Some(selector(names)),
                ports: Some(vec![ServicePort {
                    name: Some("etcd".to_owned()),
                    port: i32::from(CLIENT_PORT),
                    target_port: Some(IntOrString::String("etcd".to_owned())),
                    protocol: Some("TCP".to_owned()),
                    ..Default::default()
                }]),
                ..Default::default()
            }),
            ..Default::default()
        },
    )
}

/// Lets one of several proxies be evicted at a time. A single one has no budget: it could never be evicted.
pub fn disruption_budget(names: &Names) -> Desired {
    Desired::new(
        Kind::PodDisruptionBudget,
        &PodDisruptionBudget {
            metadata: metadata(names, &names.controller_namespace, &names.base),
            spec: Some(PodDisruptionBudgetSpec {
                max_unavailable: Some(IntOrString::Int(1)),
                selector: Some(LabelSelector { match_labels: Some(selector(names)), ..Default::default() }),
                ..Default::default()
            }),
            ..Default::default()
        },
    )
}

/// Clients come from the namespaces of the tenant's clients and from the controller, which looks which certificates are in use.
/// Metrics, which tell rates and sizes, are for the controller's namespace; policies add up, so an operator lets Prometheus in by
/// another. Whether that is enforced is the network plugin's matter.
pub fn network_policy(names: &Names, client_namespaces: &BTreeSet<String>) -> Desired {
    let port = |port: u16| {
        let port = Some(IntOrString::Int(i32::from(port)));
        Some(vec![NetworkPolicyPort { port, protocol: Some("TCP".to_owned()), ..Default::default() }])
    };
    let namespace = |name: &String| NetworkPolicyPeer {
        namespace_selector: Some(LabelSelector {
            match_labels: Some(BTreeMap::from([("kubernetes.io/metadata.name".to_owned(), name.clone())])),
            ..Default::default()
        }),
        ..Default::default()
    };
    let own = vec![namespace(&names.controller_namespace)];
    let clients = client_namespaces.iter().chain([&names.controller_namespace]).map(namespace).collect();
    Desired::new(
        Kind::NetworkPolicy,
        &NetworkPolicy {
            metadata: metadata(names, &names.controller_namespace, &names.base),
            spec: Some(NetworkPolicySpec {
                pod_selector: Some(LabelSelector { match_labels: Some(selector(names)), ..Default::default() }),
                policy_types: Some(vec!["Ingress".to_owned()]),
                ingress: Some(vec![
                    NetworkPolicyIngressRule { from: Some(clients), ports: port(CLIENT_PORT) },
                    NetworkPolicyIngressRule { from: Some(own), ports: port(METRICS_PORT) },
                ]),
                ..Default::default()
            }),
        },
    )
}
