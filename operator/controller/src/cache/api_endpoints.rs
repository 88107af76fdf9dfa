//! Addresses of the API server: those behind its service, and the service's own.

use std::collections::BTreeSet;
use std::net::IpAddr;

use k8s_openapi::api::{core::v1::Service, discovery::v1::EndpointSlice};
use kube::{Resource, api::ObjectMeta};
use serde::{Deserialize, Serialize};

/// Label on the slices of a service.
pub const SLICE_OF: &str = "kubernetes.io/service-name";

/// Addresses with the ports that are open at all of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApiEndpoint {
    /// The addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// TCP ports.
    pub ports: BTreeSet<i32>,
}

impl ApiEndpoint {
    fn of<'a>(addresses: impl Iterator<Item = &'a String>, ports: &[SlimPort]) -> Option<Self> {
        // a policy takes addresses only, not names
        let addresses: BTreeSet<IpAddr> = addresses.filter_map(|a| a.parse().ok()).collect();
        let tcp = ports.iter().filter(|p| p.protocol.as_deref().is_none_or(|p| p == "TCP"));
        let ports: BTreeSet<i32> = tcp.filter_map(|p| p.port).collect();
        (!addresses.is_empty() && !ports.is_empty()).then_some(Self { addresses, ports })
    }
}

/// All endpoints, from the service and its slices. Most CNI plugins see the addresses behind a service, some the service's.
pub fn api_endpoints<'a>(
    services: impl Iterator<Item = &'a SlimService>,
    slices: impl Iterator<Item = &'a SlimEndpoints>,
) -> BTreeSet<ApiEndpoint> {
    let behind = slices.filter_map(|s| ApiEndpoint::of(s.endpoints.iter().flat_map(|e| &e.addresses), &s.ports));
    let before = services.filter_map(|s| ApiEndpoint::of(s.spec.cluster_ips.iter(), &s.spec.ports));
    behind.chain(before).collect()
}

/// A service: its addresses and ports.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[resource(inherit = Service)]
pub struct SlimService {
    /// Name.
    #[serde(deserialize_with = "gputenancy_crds::metadata::read")]
    pub metadata: ObjectMeta,
    /// Addresses and ports.
    #[serde(default)]
    pub spec: SlimServiceSpec,
}

/// Spec of a service.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SlimServiceSpec {
    /// Its addresses within the cluster.
    #[serde(default, rename = "clusterIPs")]
    pub cluster_ips: Vec<String>,
    /// Its ports.
    #[serde(default)]
    pub ports: Vec<SlimPort>,
}

/// A port.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct SlimPort {
    /// Its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
    /// TCP when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
}

/// Addresses behind a service.
#[derive(Resource, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[resource(inherit = EndpointSlice)]
pub struct SlimEndpoints {
    /// Name.
    #[serde(deserialize_with = "gputenancy_crds::metadata::read")]
    pub metadata: ObjectMeta,
    /// The addresses.
    #[serde(default)]
    pub endpoints: Vec<SlimEndpoint>,
    /// Ports that are open at all of them.
    #[serde(default)]
    pub ports: Vec<SlimPort>,
}

/// One of them.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct SlimEndpoint {
    /// One address as a rule.
    #[serde(default)]
    pub addresses: Vec<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn api_endpoints_are_those_of_the_service_and_behind_it() {
        let service: SlimService = serde_json::from_value(json!({"metadata": {}, "spec": {
            "clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1", "fd00::1"], "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}]
        }}))
        .unwrap();
        let slice = |addresses, port| -> SlimEndpoints {
            let endpoints = json!([{"addresses": addresses, "conditions": {"ready": true}}]);
            serde_json::from_value(
                json!({"metadata": {}, "addressType": "IPv4", "endpoints": endpoints, "ports": [port]}),
            )
            .unwrap()
        };
        let slices = [
            slice(json!(["10.0.0.5"]), json!({"port": 6443})),
            slice(json!(["api.example.com"]), json!({"port": 6443})),
            slice(json!(["10.0.0.6"]), json!({"port": 53, "protocol": "UDP"})),
        ];
        let endpoint = |addresses: &[&str], port| ApiEndpoint {
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
            ports: [port].into(),
        };
        let found = api_endpoints([service].iter(), slices.iter());
        assert_eq!(found, [endpoint(&["10.0.0.5"], 6443), endpoint(&["10.96.0.1", "fd00::1"], 443)].into());
    }
}
