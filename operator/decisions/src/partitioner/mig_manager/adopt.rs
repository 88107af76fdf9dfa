//! The MIG manager chooses placements itself: they are copied into the spec where the GPU has the requested shape.

use gputenancy_crds::{Change, ChangePhase, GpuNode, GpuSpec, GpuState, InstanceSpec, Layout, MigMode};

use super::config::Shape;
use gputenancy_plan::plain;

/// The node with the placements that NVML shows; `None`: its spec has them already.
pub fn adopted(node: &GpuNode) -> Option<GpuNode> {
    let states = node.status.as_ref().map(|s| s.gpus.as_slice()).unwrap_or_default();
    let state = |uuid: &str| states.iter().find(|s| s.uuid == uuid);
    let moved: Vec<Option<GpuSpec>> = node.spec.gpus.iter().map(|g| moved(g, state(&g.uuid)?)).collect();
    if moved.iter().all(Option::is_none) {
        return None;
    }
    let mut node = node.clone();
    for (spec, moved) in node.spec.gpus.iter_mut().zip(moved) {
        if let Some(moved) = moved {
            *spec = moved;
        }
    }
    Some(node)
}

fn moved(spec: &GpuSpec, state: &GpuState) -> Option<GpuSpec> {
    let settled = state.mig == Some(MigMode { enabled: true, pending: None });
    let present = plain(spec.layout());
    if !spec.mig || !settled || Shape::of(&present) != Shape::seen(state) {
        return None;
    }
    let layout = placed(&present, state);
    if layout == present {
        return None;
    }
    let follow = |side: &mut Layout| {
        if plain(side.clone()) == present {
            *side = layout.clone();
        }
    };
    let mut spec = spec.clone();
    if let Some(Change { from, to, .. }) = &mut spec.change {
        follow(from);
        follow(to);
    }
    let partitioning =
        spec.change.as_ref().is_some_and(|c| c.phase < ChangePhase::Canary || c.phase == ChangePhase::RollingBack);
    if partitioning && !spec.hold.is_empty() {
        // the devices that were held are gone; no pod may get the new ones yet
        spec.hold = layout.instances.iter().map(|i| i.start).collect();
    }
    spec.instances = layout.instances;
    Some(spec)
}

/// The layout with the placements that NVML shows. Instances keep their resources, first those at an unchanged place.
pub fn placed(layout: &Layout, state: &GpuState) -> Layout {
    let mut left: Vec<&InstanceSpec> = layout.instances.iter().collect();
    let mut seen: Vec<(i32, &str)> = state.instances.iter().map(|i| (i.start, i.profile.as_str())).collect();
    seen.sort_unstable();
    let mut instances = Vec::new();
    let mut take = |at: (i32, &str), anywhere: bool| {
        let found = left.iter().position(|i| i.profile == at.1 && (anywhere || i.start == at.0));
        let Some(found) = found else { return false };
        let taken = left.remove(found);
        instances.push(InstanceSpec { start: at.0, ..taken.clone() });
        true
    };
    seen.retain(|at| !take(*at, false));
    seen.retain(|at| !take(*at, true));
    plain(Layout { instances, ..layout.clone() })
}
