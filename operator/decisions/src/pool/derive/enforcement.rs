//! What limits the memory of devices: the weakest means of a node for its label, and of each namespace for its tenant; and whether a pool
//! has the minimum that it demands.

use std::collections::BTreeMap;

use gputenancy_crds::{DeviceState, GpuNode, GpuState, Isolation, Sandbox, condition::ConditionUpdate, names, reasons};
use gputenancy_plan::Problem;

use crate::fleet_view::MemoryLimit;

const ENFORCEMENT_MET: &str = "EnforcementMet";

/// The condition `EnforcementMet` of a pool with this minimum; `None`: it demands nothing. `problems` are those of the pool.
pub fn condition<'a>(minimum: Isolation, mut problems: impl Iterator<Item = &'a Problem>) -> Option<ConditionUpdate> {
    if minimum == Isolation::None {
        return None;
    }
    let weak = problems.find(|problem| matches!(problem, Problem::EnforcementTooWeak { .. }));
    Some(if let Some(problem) = weak {
        ConditionUpdate::no(ENFORCEMENT_MET, problem.reason(), problem.to_string())
    } else {
        let message = format!("every node limits the shares of this pool by {minimum} or stronger");
        ConditionUpdate::yes(ENFORCEMENT_MET, reasons::MINIMUM_MET, message)
    })
}

/// The weakest means on the GPUs that the platform manages: Hardware where they are whole or in MIG instances. `None`: it manages none
/// that the agent reports.
pub fn of_node(node: &GpuNode) -> Option<Isolation> {
    let sandboxed = |gpu: &GpuState| gpu.shares.iter().filter_map(|s| Some(s.sandbox.as_ref()?.enforcement)).max();
    managed(node).flat_map(|gpu| [Some(gpu.enforcement.unwrap_or(Isolation::Hardware)), sandboxed(gpu)]).flatten().max()
}

/// The weakest means for the devices that pods have, by namespace of the pods.
pub fn by_namespace(node: &GpuNode) -> BTreeMap<String, MemoryLimit> {
    let mut limits: BTreeMap<String, MemoryLimit> = BTreeMap::new();
    for gpu in managed(node) {
        let exclusive = gpu.instances.iter().filter_map(|i| i.device.as_ref()).chain(&gpu.whole);
        let exclusive = exclusive.map(|device| (device, Isolation::Hardware));
        let shared =
            gpu.shares.iter().map(|share| (&share.device, gpu.enforcement.unwrap_or_default(), share.sandbox.as_ref()));
        for (device, means, sandbox) in exclusive.map(|(device, means)| (device, means, None)).chain(shared) {
            let Some(owner) = device.owner.as_ref().filter(|_| !is_canary(device)) else { continue };
            // the driver's limit holds in a sandbox, the library's does not
            let means = sandbox.map_or(means, |sandbox| means.max(sandbox.enforcement));
            limits.entry(owner.namespace.clone()).or_default().add(&limit(node, gpu, means, sandbox));
        }
    }
    limits
}

fn managed(node: &GpuNode) -> impl Iterator<Item = &GpuState> {
    let listed = |gpu: &&GpuState| node.spec.gpus.iter().any(|spec| spec.uuid == gpu.uuid);
    node.status.iter().flat_map(|status| &status.gpus).filter(listed)
}

fn is_canary(device: &DeviceState) -> bool {
    device.resource.as_deref().is_some_and(names::is_canary_resource)
}

fn limit(node: &GpuNode, gpu: &GpuState, means: Isolation, sandbox: Option<&Sandbox>) -> MemoryLimit {
    let unlimited = (means == Isolation::None).then(|| {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        if let Some(Sandbox { handler, .. }) = sandbox {
            let why = format!("the library that limits memory is not in sandboxes (RuntimeClass with handler {handler}): run the pods without the RuntimeClass");
            return (format!("GPU {} of node {name}", gpu.index), why);
        }
        let why = node.status.iter().find_map(|s| s.enforcement.as_ref()?.reason.clone());
        (format!("GPU {} of node {name}", gpu.index), why.unwrap_or_default())
    });
    MemoryLimit { means, unlimited: unlimited.into_iter().collect() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn node(gpus: &[Value]) -> GpuNode {
        let listed: Vec<Value> = (0..gpus.len()).map(|n| json!({"uuid": format!("GPU-{n}")})).collect();
        let reported = gpus.iter().enumerate().map(|(n, gpu)| {
            let mut state = json!({"uuid": format!("GPU-{n}"), "index": n, "board": 0});
            state.as_object_mut().unwrap().extend(gpu.as_object().unwrap().clone());
            state
        });
        let status = json!({
            "gpus": reported.collect::<Vec<_>>(),
            "enforcement": {"timeSlice": "None", "mps": "Server", "fraction": "None", "reason": "switched off"},
        });
        let object = json!({
            "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuNode",
            "metadata": {"name": "n"}, "spec": {"gpus": listed}, "status": status,
        });
        serde_json::from_value(object).unwrap()
    }

    fn device(namespace: Option<&str>) -> Value {
        let owner = namespace.map(|ns| json!({"namespace": ns, "pod": "p", "container": "c"}));
        json!({"allocatable": true, "clients": 0, "owner": owner})
    }

    fn shared(means: &str, namespace: Option<&str>) -> Value {
        json!({"enforcement": means, "shares": [{"number": 0, "device": device(namespace)}]})
    }

    #[test]
    fn label_of_a_node_is_its_weakest_means() {
        let whole = || json!({"whole": device(None)});
        let (software, none) = (|| shared("Software", None), || shared("None", None));
        assert_eq!(of_node(&node(&[])), None);
        assert_eq!(of_node(&node(&[whole(), whole()])), Some(Isolation::Hardware));
        assert_eq!(of_node(&node(&[whole(), software()])), Some(Isolation::Software));
        assert_eq!(of_node(&node(&[none(), software(), whole()])), Some(Isolation::None));
        let mut unmanaged = node(&[whole(), none()]);
        unmanaged.spec.gpus.pop();
        assert_eq!(of_node(&unmanaged), Some(Isolation::Hardware), "a GPU that is not managed does not count");
    }

    #[test]
    fn namespace_has_the_weakest_means_of_its_pods_and_the_gpus_without_one() {
        let gpus = [
            json!({"whole": device(Some("a"))}),
            shared("Software", Some("a")),
            shared("None", Some("b")),
            shared("None", Some("b")),
        ];
        let limits = by_namespace(&node(&gpus));
        assert_eq!(limits["a"], MemoryLimit { means: Isolation::Software, unlimited: BTreeMap::new() });
        assert_eq!(limits["b"].means, Isolation::None);
        let why = || "switched off".to_owned();
        let expected = [("GPU 2 of node n".to_owned(), why()), ("GPU 3 of node n".to_owned(), why())];
        assert_eq!(limits["b"].unlimited, expected.into());
        assert_eq!(limits.len(), 2);
    }

    #[test]
    fn pod_in_a_sandbox_has_another_means_than_its_neighbours() {
        let share = |number: i32, namespace: &str| json!({"number": number, "device": device(Some(namespace))});
        let mut sandboxed = share(1, "b");
        sandboxed["sandbox"] = json!({"handler": "runsc", "enforcement": "None"});
        let seen = node(&[json!({"enforcement": "Software", "shares": [share(0, "a"), sandboxed]})]);
        let limits = by_namespace(&seen);
        assert_eq!((limits["a"].means, limits["b"].means), (Isolation::Software, Isolation::None));
        let why = limits["b"].unlimited.get("GPU 0 of node n").unwrap();
        assert!(why.contains("handler runsc"), "{why}");
        assert_eq!(of_node(&seen), Some(Isolation::None));
    }
}
