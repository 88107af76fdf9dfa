//! What needs work, in sentences with object, state and remedy.

use gputenancy_crds::{
    Bypass, ChangePhase, DeviceOwner, GhostMemory, GpuNode, GpuPool, GpuSpec, GpuState, GpuTenant, Health, Isolation,
    Sandbox, ShareState, condition, ids::PoolName, reasons, words::counted,
};
use gputenancy_decisions::liveness::Liveness;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;

use super::{device::health, model::NodeStatus};
use crate::inside::Inside;

/// About a node and its GPUs.
pub(super) fn of_node(node: &str, pools: &[PoolName], liveness: Liveness, gpus: Option<&GpuNode>) -> Vec<String> {
    let mut found = Vec::new();
    if pools.len() > 1 {
        let names = pools.iter().map(PoolName::as_str).collect::<Vec<_>>().join(", ");
        found.push(format!(
            "node {node}: selected by the pools {names}, and none of them acts on it: correct spec.nodeSelector of all but one"
        ));
    }
    if let (Some(cause), Some(remedy)) = (liveness.cause(), liveness.remedy()) {
        found.push(format!("node {node}: {cause}: {remedy}"));
    }
    let Some(gpus) = gpus else { return found };
    let conditions = gpus.status.iter().flat_map(|s| &s.conditions);
    let failed = conditions.filter(|c| {
        ["MemoryLimited", "MemoryScrubbed", "MpsReady", "VgpuLicensed"].contains(&c.type_.as_str())
            && c.status == "False"
    });
    found.extend(failed.map(|c| format!("node {node}: {}", c.message)));
    for state in gpus.status.iter().flat_map(|s| &s.gpus) {
        let spec = gpus.spec.gpus.iter().find(|g| g.uuid == state.uuid);
        let gpu = format!("node {node} GPU {}", state.index);
        found.extend(of_gpu(spec, state).into_iter().map(|what| format!("{gpu}: {what}")));
    }
    found
}

fn of_gpu(spec: Option<&GpuSpec>, state: &GpuState) -> Vec<String> {
    let mut found = Vec::new();
    if state.health != Health::Healthy {
        let recovery = state.recovery.as_ref().map(|recovery| recovery.message.as_str());
        let until = recovery.unwrap_or("until it is reset or its node restarts");
        let joint = if recovery.is_some() { "; " } else { " " };
        found.push(format!("{}: it gets no new pods{joint}{until}", health(state)));
    }
    if let Some(error) = &state.error {
        let (call, code, message) = (&error.call, error.code, &error.message);
        found.push(format!("{call} failed with code {code}: {message}: see the log of the agent there"));
    }
    let failed = spec.and_then(|s| s.change.as_ref()).filter(|c| c.phase >= ChangePhase::RolledBack);
    found.extend(failed.map(|c| format!("change failed ({:?}): {}: see kubectl gpu changes", c.phase, c.reason)));
    let memory = state.devices().find_map(|device| device.unexplained_memory.as_ref());
    found.extend(memory.map(|memory| {
        format!("{memory} of a device in use by no process: it gets no new pods until the memory is free; end programs with /dev/nvidia* open there, or reset the GPU")
    }));
    found.extend(state.ghost_memory.iter().map(ghost));
    found.extend(state.shares.iter().filter_map(bypass));
    found.extend(state.shares.iter().filter_map(sandboxed));
    found.extend(state.holders.iter().map(|holder| format!("{holder} {}", holder.remedy())));
    found
}

/// Memory that no living process explains.
fn ghost(GhostMemory { start, pids, memory }: &GhostMemory) -> String {
    let device = start.map(|start| format!(" of the instance at {start}")).unwrap_or_default();
    let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
    let ended =
        if pids.is_empty() { String::new() } else { format!(" (NVML lists {}, which have ended)", pids.join(", ")) };
    format!(
        "{memory}{device} in use by no living process{ended}: end programs with /dev/nvidia* open there that belong to no pod, or reset the GPU when its pods have ended"
    )
}

/// A pod in a sandbox whose memory nothing limits.
fn sandboxed(share: &ShareState) -> Option<String> {
    let Sandbox { handler, .. } = share.sandbox.as_ref().filter(|sandbox| sandbox.enforcement == Isolation::None)?;
    let DeviceOwner { namespace, pod, .. } = share.device.owner.as_ref()?;
    Some(format!(
        "pod {namespace}/{pod} on share {} runs in a sandbox (handler {handler}), and nothing limits its memory: run it without the RuntimeClass, or set spec.enforcement.minimum: Software in the GpuPool, which refuses such pods",
        share.number
    ))
}

/// A pod that goes past the memory limit of its share.
fn bypass(share: &ShareState) -> Option<String> {
    let bypass = share.bypass.as_ref()?;
    let Bypass { uid: _, used, counted, limit, without_cuda } = bypass;
    let DeviceOwner { namespace, pod, .. } = share.device.owner.as_ref()?;
    if *without_cuda {
        return Some(format!(
            "pod {namespace}/{pod} uses {used} on share {}, which has {limit} (with one CUDA context), without CUDA: memory of graphics or video is not limited; give the team a profile with MIG or a whole GPU and delete the pod, or set spec.enforcement.onBypass: Evict in the GpuPool",
            share.number
        ));
    }
    if !bypass.exceeds_limit() {
        return Some(format!(
            "pod {namespace}/{pod} uses memory that the limit of share {} does not count: it uses {used} of {limit} (with one CUDA context), and {counted} are counted: correct its image and delete the pod, or set spec.enforcement.onBypass: Evict in the GpuPool",
            share.number
        ));
    }
    Some(format!(
        "pod {namespace}/{pod} bypasses the memory limit of share {}: it uses {used}; the share is limited to {limit} (with one CUDA context) and counts {counted}: correct its image and delete the pod, or set spec.enforcement.onBypass: Evict in the GpuPool",
        share.number
    ))
}

/// About pods with devices of a node, whose labels and annotations do not fit their virtual cluster.
pub(super) fn of_pods(node: &NodeStatus) -> Vec<String> {
    let devices = node.gpus.iter().flat_map(|gpu| &gpu.devices);
    let pods = devices.filter_map(|device| Some((device.pod.as_ref()?, device.tenant.as_deref()?)));
    let found = pods.filter_map(|(pod, tenant)| match pod.inside.as_ref()? {
        Inside::Suspicious { reason } => Some(format!(
            "pod {}/{} is suspicious: {reason}: it counts for tenant {tenant}; delete it unless the team can explain it",
            pod.namespace, pod.name
        )),
        Inside::Pod { .. } => None,
    });
    found.collect()
}

/// About a pool. The operator watches the pods of agents, which this program does not read.
pub(super) fn of_pool(pool: &GpuPool) -> Vec<String> {
    let conditions = pool.status.iter().flat_map(|s| &s.conditions);
    let found = ["AgentSilent", "NodesMarked", "DemandFlapping"];
    let silent = |c: &Condition| found.contains(&c.type_.as_str()) && c.status == "True";
    let shown = [reasons::ROLLOUT_STOPPED, reasons::INVALID_MARK];
    let stopped = |c: &Condition| shown.iter().any(|reason| *reason == c.reason.as_str());
    let weak = |c: &Condition| reasons::ENFORCEMENT_TOO_WEAK == c.reason.as_str() && c.type_ == "EnforcementMet";
    let found = conditions.filter(|c| silent(c) || stopped(c) || weak(c) || is_not_ready(c));
    found.map(|c| about("pool", &pool.name_any(), &c.message)).collect()
}

/// The object and a message about it, which may begin with the object.
fn about(kind: &str, name: &str, message: &str) -> String {
    let object = format!("{kind} {name}");
    let rest = message.strip_prefix(object.as_str()).and_then(|rest| rest.strip_prefix(' '));
    format!("{object}: {}", rest.unwrap_or(message))
}

/// Is a pool not ready for another reason than a change as specified, and a node that is reported by itself?
fn is_not_ready(condition: &Condition) -> bool {
    let usual = [reasons::CHANGING, reasons::CHANGE_PLANNED, reasons::NODE_NOT_READY];
    condition.type_ == condition::READY
        && condition.status == "False"
        && !usual.iter().any(|reason| *reason == condition.reason.as_str())
}

/// Most tenants that are named.
const MOST_TENANTS: usize = 50;

/// About tenants that wait for a person: with an unmet guarantee, or an object that the operator refuses.
pub(super) fn of_tenants<'a>(tenants: impl Iterator<Item = &'a GpuTenant>) -> Vec<String> {
    let stalled = |tenant: &GpuTenant| {
        let mut conditions = tenant.status.iter().flat_map(|status| &status.conditions);
        let found = conditions.find(|c| c.type_ == condition::STALLED && c.status == "True");
        found.map(|c| about("tenant", &tenant.name_any(), &c.message))
    };
    let mut found: Vec<String> = tenants.filter_map(stalled).collect();
    found.sort();
    let more = found.len().saturating_sub(MOST_TENANTS);
    found.truncate(MOST_TENANTS);
    if more > 0 {
        found.push(format!("{} more wait for a person: see kubectl get gputenants", counted(more, "tenant")));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_that_begins_with_its_object_names_the_object_once() {
        let cases = [
            ("tenant a is guaranteed 4 and gets 1", "tenant a: is guaranteed 4 and gets 1"),
            ("over budget: pods by 1 over 3", "tenant a: over budget: pods by 1 over 3"),
            ("tenant ab is guaranteed 4", "tenant a: tenant ab is guaranteed 4"),
        ];
        for (message, expected) in cases {
            assert_eq!(about("tenant", "a", message), expected);
        }
        let expected = "pool p: lists profile x, which does not exist";
        assert_eq!(about("pool", "p", "pool p lists profile x, which does not exist"), expected);
    }
}
