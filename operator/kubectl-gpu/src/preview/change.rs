//! What happens to each GPU.

use std::collections::BTreeSet;

use gputenancy_crds::{
    InstanceSpec, Layout,
    ids::{GpuKey, GpuUuid, NodeName},
    slice_of,
};
use gputenancy_decisions::partitioner::Shape;
use gputenancy_plan::{GpuPlan, plain, seen, snapshot::InUse};

use super::{
    model::{GpuChange, Instance, MigModeChange},
    order,
    planned::PlannedWorld,
};

/// Every GPU that changes or is changing, in the order in which that happens.
pub(super) fn changes(planned: &PlannedWorld<'_>) -> Vec<GpuChange> {
    let changing = planned.plan.gpus.iter().filter(|(key, gpu)| gpu.changed || planned.in_progress(key).is_some());
    let steps = order::steps(planned);
    let mut changes: Vec<GpuChange> = changing
        .filter_map(|(key, gpu)| {
            Some(GpuChange { step: steps.get(key).copied().unwrap_or(1), ..change(planned, key, gpu)? })
        })
        .chain(released(planned))
        .collect();
    changes.sort_by(|a, b| (a.step, &a.pool, &a.node, a.gpu).cmp(&(b.step, &b.pool, &b.node, b.gpu)));
    changes
}

fn change(planned: &PlannedWorld<'_>, key: &GpuKey, gpu: &GpuPlan) -> Option<GpuChange> {
    let in_progress = planned.in_progress(key);
    let state = planned.state(key)?;
    let present = match (in_progress, planned.spec(key)) {
        // a change in progress is shown from its start
        (Some(change), _) => Some(plain(change.from.clone())),
        (None, Some(spec)) => Some(plain(spec.layout())),
        (None, None) => state.mig.is_some_and(|m| m.enabled).then(|| seen(state)),
    };
    // a changing GPU without a new target continues to its old one
    let target = gpu.target.as_deref().cloned().or_else(|| in_progress.map(|c| plain(c.to.clone())))?;
    let instances = |l: Option<&Layout>| l.map(|l| l.instances.clone()).unwrap_or_default();
    let (old, new) = (instances(present.as_ref()), instances(Some(&target)));
    let mode = present.as_ref().is_some_and(|l| l.mig);
    let reset = planned.board(key).is_some_and(|b| b.mode_needs_reset);
    let cleared = planned.whole(gpu.pool.as_str()).is_some()
        && (planned.bystanders.contains_key(key) || Shape::of(&target) != Shape::seen(state));
    Some(GpuChange {
        node: key.node.to_string(),
        gpu: gpu.index,
        uuid: key.uuid.to_string(),
        product: planned.board(key).map(|b| b.product.clone()).unwrap_or_default(),
        pool: Some(gpu.pool.to_string()),
        phase: in_progress.map(|c| format!("{:?}", c.phase)),
        from: line(present.as_ref()),
        to: line(Some(&target)),
        destroy: old.iter().filter(|i| cleared || !new.contains(i)).map(instance).collect(),
        create: new.iter().filter(|i| cleared || !old.contains(i)).map(instance).collect(),
        mig_mode: (mode != target.mig).then_some(MigModeChange { enabled: target.mig, reset }),
        evicts: unique(gpu.evicts.iter().map(|e| e.pod.to_string())),
        waits_for: processes(planned, key, Some(&target).filter(|_| !cleared)),
        reasons: reasons(planned, key, gpu),
        ..GpuChange::default()
    })
}

fn unique(texts: impl Iterator<Item = String>) -> Vec<String> {
    texts.collect::<BTreeSet<_>>().into_iter().collect()
}

fn instance(spec: &InstanceSpec) -> Instance {
    Instance { profile: spec.profile.clone(), start: spec.start }
}

/// A layout in one line, as `kubectl get gpunodes` has it.
fn line(layout: Option<&Layout>) -> String {
    match layout {
        None => "not managed".to_owned(),
        Some(Layout { mig: false, sharing: Some(sharing), .. }) => {
            let groups = sharing.shares.iter().map(|g| format!("{} × {}", g.numbers.len(), g.resource));
            format!("{} {}", sharing.mode.field(), groups.collect::<Vec<_>>().join(" "))
        }
        Some(l) if !l.mig => "whole".to_owned(),
        Some(l) if l.instances.is_empty() => "MIG on, no instances".to_owned(),
        Some(l) => {
            let slices = |i: &InstanceSpec| i.replicas.map(|n| format!(" × {n}")).unwrap_or_default();
            let instance = |i: &InstanceSpec| format!("{}@{}{}", i.profile, i.start, slices(i));
            l.instances.iter().map(instance).collect::<Vec<_>>().join(" ")
        }
    }
}

/// The plan's reason without the GPU's name; for a change in progress, its own reason.
fn reasons(planned: &PlannedWorld<'_>, key: &GpuKey, gpu: &GpuPlan) -> Vec<String> {
    let title = format!("{} GPU {}: ", key.node, gpu.index);
    let reason = planned.plan.reason_of(key, gpu).or_else(|| Some(planned.in_progress(key)?.reason.clone()));
    reason.iter().map(|r| r.strip_prefix(&title).unwrap_or(r).to_owned()).collect()
}

/// Processes outside pods on removed devices (all devices without `stays_in`); they are not evicted.
fn processes(planned: &PlannedWorld<'_>, key: &GpuKey, stays_in: Option<&Layout>) -> Vec<String> {
    let (Some(gpu), Some(state)) = (planned.gpu(key), planned.state(key)) else { return Vec::new() };
    let mut waits = Vec::new();
    let stays = |used: &InUse| stays_in.is_some_and(|layout| used.stays_in(layout));
    for used in gpu.used.iter().filter(|used| used.pod.is_none() && !stays(used)) {
        let (start, device) = match used.profile.as_deref() {
            Some(profile) => (slice_of(used.start).0, profile),
            None => (used.start, if used.share { "the share" } else { "the whole GPU" }),
        };
        let here = state.holders.iter().filter(|h| h.start.is_none_or(|s| s == start));
        let named: Vec<String> = here.map(|h| format!("{h} on {device} at {start} {}", h.remedy())).collect();
        if named.is_empty() {
            waits.push(format!("a process outside any pod uses {device} at {start}"));
        }
        waits.extend(named);
    }
    waits
}

/// GPUs of nodes that no pool selects any more: they are not advertised once nothing uses them.
fn released<'a>(planned: &'a PlannedWorld<'_>) -> impl Iterator<Item = GpuChange> + 'a {
    let nodes = planned.world.fleet.gpu_nodes.iter().filter(|(name, _)| {
        planned.world.fleet.nodes.contains_key(*name) && !planned.members.contains_key(name.as_str())
    });
    nodes.flat_map(move |(name, node)| {
        node.spec.gpus.iter().map(move |spec| {
            let key = GpuKey { node: NodeName::from(name.as_str()), uuid: GpuUuid::from(spec.uuid.as_str()) };
            let state = planned.state(&key);
            let board = state.and_then(|s| node.status.as_ref()?.boards.get(usize::try_from(s.board).ok()?));
            let devices = state.iter().flat_map(|s| s.devices());
            let owners = devices.filter_map(|d| d.owner.as_ref());
            GpuChange {
                node: name.clone(),
                gpu: state.map_or(-1, |s| s.index),
                uuid: spec.uuid.clone(),
                product: board.map(|b| b.product.clone()).unwrap_or_default(),
                from: line(Some(&plain(spec.layout()))),
                to: line(None),
                waits_for: unique(owners.map(|o| format!("pod {}/{} runs until it ends", o.namespace, o.pod))),
                reasons: vec!["no pool selects its node any more: released once nothing uses it".to_owned()],
                ..GpuChange::default()
            }
        })
    })
}
