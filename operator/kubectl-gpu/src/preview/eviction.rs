//! Evicted pods, their controllers, and what their eviction waits for.

use std::collections::BTreeMap;

use gputenancy_crds::{
    DoNotEvict, UnmanagedPods,
    ids::{GpuKey, PodName},
    names,
};
use gputenancy_decisions::change::Policy;
use gputenancy_plan::{Evicted, GpuPlan};
use kube::{
    ResourceExt as _,
    core::{Selector, SelectorExt as _},
};

use super::{
    model::{Eviction, GpuChange},
    planned::PlannedWorld,
};
use crate::{
    records::{BudgetRecord, PodRecord},
    snapshot::TEMPLATE_HASH,
    world::World,
};

/// Kubernetes' default.
const GRACE: i64 = 30;

/// Every pod that loses a device by one of these changes, once.
pub(super) fn evictions(planned: &PlannedWorld<'_>, changes: &[GpuChange]) -> Vec<Eviction> {
    let mut by_pod: BTreeMap<&PodName, Vec<(&GpuKey, &GpuPlan, &Evicted)>> = BTreeMap::new();
    for (key, gpu) in &planned.plan.gpus {
        for evicted in &gpu.evicts {
            by_pod.entry(&evicted.pod).or_default().push((key, gpu, evicted));
        }
    }
    let reason = |key: &GpuKey| {
        let change = changes.iter().find(|c| c.node == key.node.as_str() && c.uuid == key.uuid.as_str());
        change.map(|c| c.reasons.join(" ")).unwrap_or_default()
    };
    by_pod
        .into_iter()
        .map(|(pod, devices)| {
            let record = planned.world.pods.get(pod);
            let policy = devices.first().and_then(|(_, gpu, _)| planned.world.pool(gpu.pool.as_str()));
            let policy = policy.map(|p| Policy::from(&p.spec.disruption)).unwrap_or_default();
            Eviction {
                namespace: pod.namespace.to_string(),
                pod: pod.name.clone(),
                inside: planned.world.inside(&pod.namespace, &pod.name),
                tenant: planned.world.tenant_of(&pod.namespace),
                controller: record.and_then(controller),
                devices: devices
                    .iter()
                    .map(|(key, gpu, e)| format!("{} at {} of {} GPU {}", e.device, e.start, key.node, gpu.index))
                    .collect(),
                reason: devices.first().map(|(key, ..)| reason(key)).unwrap_or_default(),
                grace_seconds: record.map_or(GRACE, grace),
                waits_for: record.map(|r| waits_for(planned.world, r, &policy)).unwrap_or_default(),
            }
        })
        .collect()
}

fn grace(pod: &PodRecord) -> i64 {
    pod.spec.termination_grace_period_seconds.unwrap_or(GRACE)
}

/// The controller of a pod. A `ReplicaSet` of a Deployment has the hash at the end of its name.
fn controller(pod: &PodRecord) -> Option<String> {
    let owner = pod.owner_references().iter().find(|o| o.controller == Some(true))?;
    let deployment = pod
        .labels()
        .get(TEMPLATE_HASH)
        .filter(|_| owner.kind == "ReplicaSet")
        .and_then(|hash| owner.name.strip_suffix(hash.as_str())?.strip_suffix('-'));
    Some(match deployment {
        Some(name) => format!("Deployment/{name}"),
        None => format!("{}/{}", owner.kind, owner.name),
    })
}

fn waits_for(world: &World, pod: &PodRecord, policy: &Policy) -> Vec<String> {
    if pod.metadata.deletion_timestamp.is_some() {
        return Vec::new();
    }
    let mut waits = Vec::new();
    let asks = pod.annotations().get(names::DO_NOT_EVICT).is_some_and(|v| v == "true");
    let created = pod.metadata.creation_timestamp.as_ref().map(|at| at.0);
    let end = created.and_then(|at| at.checked_add(policy.do_not_evict_for).ok());
    let over = end.zip(world.taken_at).is_some_and(|(end, now)| end <= now);
    if asks && !over && policy.do_not_evict == DoNotEvict::Honor {
        let until = end.map(|at| format!(", which holds until {at}")).unwrap_or_default();
        waits.push(format!("it is annotated {}{until}: delete it or remove the annotation", names::DO_NOT_EVICT));
    }
    let owner = pod.owner_references().iter().find(|o| o.controller == Some(true)).map(|o| o.kind.as_str());
    match owner {
        None if policy.unmanaged_pods == UnmanagedPods::Wait => {
            waits.push("no controller replaces it: delete it when it can go".to_owned());
        }
        Some("DaemonSet") => waits.push("its DaemonSet would recreate it: change the DaemonSet".to_owned()),
        Some("Node") => waits.push("it is a static pod: remove its manifest from the node".to_owned()),
        _ => {}
    }
    let refusing = world.budgets.iter().filter(|b| b.status.disruptions_allowed < 1 && protects(b, pod));
    waits.extend(refusing.map(|b| format!("PodDisruptionBudget {} allows no eviction now", b.name_any())));
    waits
}

fn protects(budget: &BudgetRecord, pod: &PodRecord) -> bool {
    let selector = budget.spec.selector.clone().and_then(|s| Selector::try_from(s).ok());
    budget.metadata.namespace == pod.metadata.namespace && selector.is_some_and(|s| s.matches(pod.labels()))
}
