//! Layouts that agents retain: a spec that lacks devices of running pods is older than the node, and gets what the agent serves. So it is with a
//! `GpuNode` that was deleted, and with one that was restored from a backup.

use std::sync::Arc;

use gputenancy_crds::{GpuNode, GpuSpec, GpuState, Layout, reasons};
use gputenancy_plan::plain;

use crate::{event::EventMessage, fleet::Fleet};

/// The fleet with the layouts that agents retain; `None`: they retain none.
pub fn adopted(fleet: &Fleet) -> Option<Fleet> {
    let adopted = fleet.gpu_nodes.iter().filter_map(|(name, node)| {
        let answers = || fleet.answers(name);
        let node = adopted_node(node).filter(|_| answers())?;
        Some((name.clone(), Arc::new(node)))
    });
    let adopted: Vec<_> = adopted.collect();
    (!adopted.is_empty()).then(|| {
        let mut fleet = fleet.clone();
        fleet.gpu_nodes.extend(adopted);
        fleet
    })
}

/// The node with the layouts that its agent retains, without the changes of these GPUs; `None`: it retains none. The agent must be alive.
pub fn adopted_node(node: &GpuNode) -> Option<GpuNode> {
    let retained: Vec<GpuSpec> = retained(node).map(|(gpu, layout)| listed(gpu, layout)).collect();
    if retained.is_empty() {
        return None;
    }
    let mut node = node.clone();
    for gpu in retained {
        match node.spec.gpus.iter_mut().find(|spec| spec.uuid == gpu.uuid) {
            Some(spec) => *spec = gpu,
            None => node.spec.gpus.push(gpu),
        }
    }
    Some(node)
}

/// Events about the layouts that [`adopted_node`] takes over.
pub fn events(node: &GpuNode) -> impl Iterator<Item = EventMessage> {
    let name = node.metadata.name.as_deref().unwrap_or("?");
    retained(node).map(move |(gpu, layout)| {
        let known = node.spec.gpus.iter().any(|spec| spec.uuid == gpu.uuid);
        let spec = if known { "has an older layout" } else { "lacked the GPU" };
        let (owned, all) = (gpu.devices().filter(|device| device.owner.is_some()).count(), layout.starts().len());
        EventMessage {
            warning: true,
            reason: reasons::LAYOUT_ADOPTED,
            message: format!(
                "{name} GPU {}: the spec {spec} while pods own {owned}/{all} devices, as after the GpuNode was deleted or restored from a backup; \
                 the layout of the agent is adopted and no pod is evicted for it",
                gpu.index
            ),
        }
    })
}

/// What the agent retains beside the present spec.
fn retained(node: &GpuNode) -> impl Iterator<Item = (&GpuState, &Layout)> {
    let fresh = |observed: Option<i64>| observed >= node.metadata.generation;
    let gpus = node.status.iter().filter(move |status| fresh(status.observed_generation)).flat_map(|s| &s.gpus);
    // without shares it is of a mode of a newer release
    let known = |layout: &&Layout| layout.sharing.as_ref().is_none_or(|sharing| !sharing.shares.is_empty());
    gpus.filter_map(move |gpu| Some((gpu, gpu.retained.as_ref().filter(known)?)))
}

fn listed(gpu: &GpuState, layout: &Layout) -> GpuSpec {
    let Layout { mig, instances, resource, sharing } = plain(layout.clone());
    GpuSpec { uuid: gpu.uuid.clone(), mig, instances, resource, sharing, ..GpuSpec::default() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn sharing(numbers: &[i32]) -> Value {
        let group = json!({"resource": "gputenancy.io/a", "memory": "10240Mi", "compute": 15, "resize": "Force", "numbers": numbers});
        json!({"mode": "Fraction", "shares": [group]})
    }

    /// GPU 0 with this spec, of which the agent retains six fractions.
    fn node(spec: Option<Value>, observed: i64) -> GpuNode {
        let owner = json!({"namespace": "t", "pod": "p", "container": "c"});
        let share = json!({"number": 5, "device": {"owner": owner}});
        let gpu = json!({
            "uuid": "GPU-0", "index": 3, "board": 0, "shares": [share], "retained": {"sharing": sharing(&[0, 1, 2, 3, 4, 5])},
        });
        serde_json::from_value(json!({
            "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuNode", "metadata": {"name": "n", "generation": 7},
            "spec": {"gpus": spec.into_iter().collect::<Vec<_>>()},
            "status": {"observedGeneration": observed, "gpus": [gpu]},
        }))
        .unwrap()
    }

    #[test]
    fn spec_gets_the_retained_shares_with_their_numbers_and_sizes() {
        let change = json!({
            "phase": "Partitioning", "from": {}, "to": {"sharing": sharing(&[0])}, "reason": "r",
            "startedAt": "2026-01-01T00:00:00Z", "phaseSince": "2026-01-01T00:00:00Z",
        });
        let older = json!({"uuid": "GPU-0", "sharing": sharing(&[0]), "hold": [0], "change": change});
        for spec in [None, Some(json!({"uuid": "GPU-0"})), Some(older)] {
            let adopted = adopted_node(&node(spec, 7)).unwrap();
            let expected = json!([{"uuid": "GPU-0", "mig": false, "sharing": sharing(&[0, 1, 2, 3, 4, 5])}]);
            assert_eq!(serde_json::to_value(&adopted.spec.gpus).unwrap(), expected);
        }
    }

    #[test]
    fn status_of_an_earlier_spec_and_an_unknown_mode_change_nothing() {
        assert_eq!(adopted_node(&node(None, 6)), None);
        let mut newer = node(None, 7);
        let layout = serde_json::from_value(json!({"sharing": {"mode": "Quantum", "shares": []}})).unwrap();
        newer.status.as_mut().unwrap().gpus[0].retained = Some(layout);
        assert_eq!(adopted_node(&newer), None);
    }

    #[test]
    fn event_says_what_the_spec_lacked() {
        let message = |spec| events(&node(spec, 7)).next().unwrap().message;
        insta::assert_snapshot!(message(None), @"n GPU 3: the spec lacked the GPU while pods own 1/6 devices, as after the GpuNode was deleted or restored from a backup; the layout of the agent is adopted and no pod is evicted for it");
        assert!(message(Some(json!({"uuid": "GPU-0"}))).contains("has an older layout"));
    }
}
