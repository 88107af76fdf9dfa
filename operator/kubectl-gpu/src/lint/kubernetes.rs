//! What Kubernetes itself refuses or ignores, without policies: amounts of devices, keys of quotas, node ports beyond a quota.

use gputenancy_crds::{GpuTenantSpec, names::is_gpu_resource, quantity::Amount};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::Value;

use super::policy::Refusal;
use crate::input::token;

/// The key of a quota that counts node ports, and the chart's default for it in `tenants.defaultResources`.
const NODE_PORTS: &str = "services.nodeports";
const DEFAULT_NODE_PORTS: i128 = 0;

/// A quantity in thousandths.
fn milli(value: &Value) -> Option<i128> {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Amount::parse(&Quantity(text)).map(Amount::milli)
}

/// Amounts of GPUs in a pod that are refused in every namespace; `instead`: what to write for a number of thousandths of a resource.
pub(super) fn amounts(pod: &Value, instead: &dyn Fn(&str, i128) -> Option<String>) -> Vec<Refusal> {
    let mut found = Vec::new();
    for list in ["containers", "initContainers"] {
        let containers = pod.pointer(&format!("/spec/{list}")).and_then(Value::as_array);
        for (index, container) in containers.into_iter().flatten().enumerate() {
            let amounts = |which: &str| {
                let amounts = container.pointer(&format!("/resources/{which}")).and_then(Value::as_object);
                amounts.into_iter().flatten().filter(|(resource, _)| is_gpu_resource(resource))
            };
            let mut refuse = |which: &str, resource: &str, message: String| {
                let pointer = format!("/spec/{list}/{index}/resources/{which}/{}", token(resource));
                found.push(Refusal { pointer, message });
            };
            for which in ["limits", "requests"] {
                for (resource, amount) in amounts(which).filter(|(_, a)| milli(a).is_none_or(|n| n % 1000 != 0)) {
                    let remedy = milli(amount).and_then(|n| instead(resource, n)).unwrap_or_else(|| {
                        "a part of a GPU is a profile of its own, such as a MIG slice (kubectl get gpuprofiles)"
                            .to_owned()
                    });
                    let message = format!("{amount} of {resource}: must be an integer; {remedy}");
                    refuse(which, resource, message);
                }
            }
            for (resource, amount) in amounts("requests") {
                let limit = amounts("limits").find(|(r, _)| *r == resource).and_then(|(_, limit)| milli(limit));
                if limit != milli(amount) {
                    let message = format!("requests of {resource} must equal its limits: write it in limits only");
                    refuse("requests", resource, message);
                }
            }
        }
    }
    found
}

/// Keys of a quota that Kubernetes does not count: extended resources are limited by their requests.
pub(super) fn quota(object: &Value) -> Vec<Refusal> {
    let hard = object.pointer("/spec/hard").and_then(Value::as_object);
    let wrong = |key: &&String| key.strip_prefix("limits.").is_some_and(|r| r.contains('/')) || is_gpu_resource(key);
    let refusal = |key: &String| {
        let resource = key.strip_prefix("limits.").unwrap_or(key);
        let message = format!("a quota does not count {key}, and limits nothing: write requests.{resource}");
        Refusal { pointer: format!("/spec/hard/{}", token(key)), message }
    };
    hard.into_iter().flat_map(|h| h.keys()).filter(wrong).map(refusal).collect()
}

/// Node ports of a service beyond the tenant's quota. The files may lack other services, so each is compared with the whole limit.
pub(super) fn node_ports(service: &Value, tenant: &GpuTenantSpec) -> Option<Refusal> {
    let spec = service.get("spec")?;
    let remedy = match spec.get("type")?.as_str()? {
        "NodePort" => "write type: ClusterIP",
        "LoadBalancer" if spec.get("allocateLoadBalancerNodePorts") != Some(&Value::Bool(false)) => {
            "write allocateLoadBalancerNodePorts: false"
        }
        _ => return None,
    };
    let limit = tenant.resources.get(NODE_PORTS).and_then(Amount::parse);
    let limit = limit.map_or(DEFAULT_NODE_PORTS, |limit| limit.milli() / 1000);
    let ports = spec.get("ports").and_then(Value::as_array).map_or(0, Vec::len);
    i128::try_from(ports).is_ok_and(|ports| ports > limit).then(|| {
        let message = format!(
            "exceeded quota: gputenancy: a service of this type opens {ports} ports on every node, and the tenant may have {limit}: \
             {remedy}, or raise {NODE_PORTS} in spec.resources of the GpuTenant"
        );
        Refusal { pointer: "/spec/type".into(), message }
    })
}
