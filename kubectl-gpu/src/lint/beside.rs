//! What is refused beside pods in a tenant's namespaces: services and role bindings. With the chart's own values.

use gputenancy_crds::{GpuTenantSpec, quantity::Amount};
use serde_json::Value;

use super::{
    admission::{Refusal, list, refusal, text},
    path,
};
use crate::input::Step;

/// The key of a quota that counts ports of nodes; what the chart's `tenants.defaultResources` gives of it.
const NODE_PORTS: &str = "services.nodeports";
const DEFAULT_NODE_PORTS: i128 = 0;
/// The bindings that the operator writes.
const BINDINGS: [&str; 2] = ["gputenancy-owners", "gputenancy-viewers"];

/// Everything that is refused to an object that makes no pods.
pub(super) fn refused(kind: &str, object: &Value, tenant: &GpuTenantSpec) -> Vec<Refusal> {
    match kind {
        "Service" => external_addresses(object).into_iter().chain(node_ports(object, tenant)).collect(),
        "RoleBinding" => bindings(object).into_iter().collect(),
        _ => Vec::new(),
    }
}

fn external_addresses(service: &Value) -> Option<Refusal> {
    let words = "spec.externalIPs would take what all pods of the cluster send to these addresses: leave it out; the platform gives \
                 addresses by services of type LoadBalancer and by ingresses";
    (!list(service, "/spec/externalIPs").is_empty()).then(|| refusal(path("spec.externalIPs"), words))
}

/// Ports of nodes, as a quota counts them: one service against the whole limit, since the files may not have the others.
fn node_ports(service: &Value, tenant: &GpuTenantSpec) -> Option<Refusal> {
    let spec = service.get("spec")?;
    let (remedy, opens) = match text(spec, "type") {
        "NodePort" => ("write type: ClusterIP", true),
        "LoadBalancer" => {
            let says = spec.get("allocateLoadBalancerNodePorts").and_then(Value::as_bool);
            ("write allocateLoadBalancerNodePorts: false", says != Some(false))
        }
        _ => ("", false),
    };
    let limit = tenant.resources.get(NODE_PORTS).and_then(Amount::parse);
    let limit = limit.map_or(DEFAULT_NODE_PORTS, |limit| limit.milli() / 1000);
    let ports = list(spec, "/ports").len();
    (opens && i128::try_from(ports).is_ok_and(|ports| ports > limit)).then(|| {
        let message = format!(
            "exceeded quota: gputenancy: a service of this type opens {ports} ports on every machine of the cluster, and the tenant may \
             have {limit}: {remedy}, or have {NODE_PORTS} in spec.resources of the GpuTenant"
        );
        refusal(path("spec.type"), message)
    })
}

fn bindings(binding: &Value) -> Option<Refusal> {
    let name = binding.pointer("/metadata/name").and_then(Value::as_str)?;
    let words = "role bindings gputenancy-owners and gputenancy-viewers say what spec.owners and spec.viewers of the GpuTenant say: choose \
                 another name for one of your own, or have the GpuTenant changed";
    let place = || vec![Step::Field("metadata".to_owned()), Step::Field("name".to_owned())];
    BINDINGS.contains(&name).then(|| refusal(place(), words))
}
