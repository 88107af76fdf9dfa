//! The network policy of an isolated tenant's namespace.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::names;
use k8s_openapi::{
    api::networking::v1::{
        IPBlock, NetworkPolicyEgressRule, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort,
        NetworkPolicySpec,
    },
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};

use crate::cache::ApiEndpoint;

/// Label of every namespace with its name.
const NAME_LABEL: &str = "kubernetes.io/metadata.name";
/// Namespace of the cluster DNS, and the label of its pods: as kubeadm and most distributions install it.
const DNS: (&str, (&str, &str)) = ("kube-system", ("k8s-app", "kube-dns"));

/// Port of the API server of a virtual cluster in its pod (vCluster's chart, `service.yaml`).
const CONTROL_PLANE_PORT: i32 = 8443;

/// One policy for all pods of the namespace. Ingress: from the tenant's namespaces and from labelled platform namespaces. Egress: to the
/// tenant's namespaces, to DNS, to the API server's `api_endpoints`, and to `egress`. `controller`: the namespace from which the controller of
/// virtual clusters reaches the tenant's control plane.
pub fn isolated(
    tenant: &str,
    api_endpoints: &BTreeSet<ApiEndpoint>,
    egress: &[NetworkPolicyEgressRule],
    controller: Option<&str>,
) -> NetworkPolicySpec {
    let own = || namespaces(&[(names::TENANT_LABEL, tenant)]);
    let platform = namespaces(&[(names::REACHES_TENANTS_LABEL, "true")]);
    let (system, pods) = DNS;
    let dns = NetworkPolicyPeer { pod_selector: Some(labelled(&[pods])), ..namespaces(&[(NAME_LABEL, system)]) };
    let mut out = vec![rule(vec![own()], None), rule(vec![dns], Some(vec![port("UDP", 53), port("TCP", 53)]))];
    out.extend(api_endpoints.iter().map(|endpoint| {
        let addresses = endpoint.addresses.iter().map(|address| {
            let cidr = format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 });
            NetworkPolicyPeer { ip_block: Some(IPBlock { cidr, except: None }), ..NetworkPolicyPeer::default() }
        });
        rule(addresses.collect(), Some(endpoint.ports.iter().map(|p| port("TCP", *p)).collect()))
    }));
    out.extend_from_slice(egress);
    let mut from = vec![NetworkPolicyIngressRule { from: Some(vec![own(), platform]), ports: None }];
    from.extend(controller.map(|namespace| {
        let pods = labelled(&[("app.kubernetes.io/name", super::VIRTUAL_CLUSTERS)]);
        let peer = NetworkPolicyPeer { pod_selector: Some(pods), ..namespaces(&[(NAME_LABEL, namespace)]) };
        NetworkPolicyIngressRule { from: Some(vec![peer]), ports: Some(vec![port("TCP", CONTROL_PLANE_PORT)]) }
    }));
    NetworkPolicySpec {
        pod_selector: Some(LabelSelector::default()),
        policy_types: Some(vec!["Ingress".into(), "Egress".into()]),
        ingress: Some(from),
        egress: Some(out),
    }
}

fn rule(to: Vec<NetworkPolicyPeer>, ports: Option<Vec<NetworkPolicyPort>>) -> NetworkPolicyEgressRule {
    NetworkPolicyEgressRule { to: Some(to), ports }
}

fn namespaces(labels: &[(&str, &str)]) -> NetworkPolicyPeer {
    NetworkPolicyPeer { namespace_selector: Some(labelled(labels)), ..NetworkPolicyPeer::default() }
}

fn labelled(labels: &[(&str, &str)]) -> LabelSelector {
    let labels: BTreeMap<String, String> = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    LabelSelector { match_labels: Some(labels), ..LabelSelector::default() }
}

fn port(protocol: &str, number: i32) -> NetworkPolicyPort {
    NetworkPolicyPort { port: Some(IntOrString::Int(number)), protocol: Some(protocol.into()), end_port: None }
}
