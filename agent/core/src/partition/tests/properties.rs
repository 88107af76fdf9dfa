//! Properties of every layout, every layout after it, and every moment of a crash.

use gputenancy_crds::GpuSpec;
use proptest::prelude::*;

use super::model::{UUID, board, client, decision, execute, gpu, instance, layout, partition, spec};
use crate::{
    gpu::{ObservedGpu, Operation},
    partition::{DecisionInput, PartitionDecision, decide, devices::devices},
};

/// Instances that do not overlap.
fn placements() -> impl Strategy<Value = Vec<(usize, u32)>> {
    candidates().prop_map(|candidates| place(&[], &candidates))
}

/// Profiles and first slices; many are impossible.
fn candidates() -> impl Strategy<Value = Vec<(usize, u32)>> {
    proptest::collection::vec((0..board(false).profiles.len(), 0_u32..7), 0..10)
}

/// These instances, and all candidates that fit besides.
fn place(first: &[(usize, u32)], candidates: &[(usize, u32)]) -> Vec<(usize, u32)> {
    let board = board(false);
    let mut placed = first.to_vec();
    for (kind, start) in candidates {
        let profile = &board.profiles[*kind];
        let end = start + profile.size;
        let free = placed.iter().all(|(other, from)| from + board.profiles[*other].size <= *start || end <= *from);
        if profile.starts.contains(start) && free {
            placed.push((*kind, *start));
        }
    }
    placed
}

/// A GPU as a killed agent may leave it: bare instances, a pending mode.
fn left() -> impl Strategy<Value = ObservedGpu> {
    (placements(), any::<bool>()).prop_flat_map(|(placed, mig)| left_with(placed, mig))
}

/// Such a GPU with these instances, if MIG is on.
fn left_with(placed: Vec<(usize, u32)>, mig: bool) -> impl Strategy<Value = ObservedGpu> {
    let whole = proptest::collection::vec(any::<bool>(), 10);
    (whole, any::<bool>(), any::<bool>()).prop_map(move |(whole, pending, reset)| {
        let mut gpu = gpu(mig, reset);
        gpu.mode.as_mut().unwrap().pending = pending;
        if mig {
            let instances = placed.iter().zip(whole).zip(3..);
            let instances = instances
                .map(|(((kind, start), whole), gi)| instance(gi, &board(false).profiles[*kind], *start, whole));
            gpu.instances = instances.collect();
            gpu.instances.sort_by_key(|instance| instance.start);
        }
        gpu
    })
}

/// Such a GPU with at least one instance.
fn partitioned() -> impl Strategy<Value = ObservedGpu> {
    placements().prop_flat_map(|placed| {
        let some = if placed.is_empty() { vec![(0, board(false).profiles[0].starts[0])] } else { placed };
        left_with(some, true)
    })
}

fn wanted() -> impl Strategy<Value = GpuSpec> {
    (placements(), any::<bool>()).prop_map(|(placed, mig)| wanted_with(&placed, mig))
}

fn wanted_with(placed: &[(usize, u32)], mig: bool) -> GpuSpec {
    let board = board(false);
    let instances: Vec<(i32, &str)> = placed
        .iter()
        .map(|(kind, start)| (i32::try_from(*start).unwrap(), board.profiles[*kind].name.as_str()))
        .collect();
    spec(mig, if mig { &instances } else { &[] })
}

/// A GPU with MIG, and a layout with some of its instances and others.
fn overlapping() -> impl Strategy<Value = (ObservedGpu, GpuSpec)> {
    let both = (placements(), candidates(), proptest::collection::vec(any::<bool>(), 10));
    both.prop_flat_map(|(placed, candidates, kept)| {
        let kept: Vec<(usize, u32)> =
            placed.iter().zip(kept).filter_map(|(instance, keep)| keep.then_some(*instance)).collect();
        let spec = wanted_with(&place(&kept, &candidates), true);
        left_with(placed, true).prop_map(move |gpu| (gpu, spec.clone()))
    })
}

fn wanted_layout(spec: &GpuSpec) -> Vec<(u32, String)> {
    let mut layout: Vec<(u32, String)> =
        spec.instances.iter().map(|wanted| (u32::try_from(wanted.start).unwrap(), wanted.profile.clone())).collect();
    layout.sort();
    layout
}

fn has_layout(spec: &GpuSpec, gpu: &ObservedGpu) -> bool {
    let mode = gpu.mode.unwrap();
    layout(gpu) == wanted_layout(spec)
        && (mode.current, mode.pending) == (spec.mig, spec.mig)
        && gpu.instances.iter().all(|instance| instance.whole_compute().is_some())
}

proptest! {
    #[test]
    fn partitioning_converges_after_a_crash_at_any_point(mut gpu in left(), spec in wanted()) {
        let (end, _) = partition(&spec, &mut gpu);
        prop_assert_eq!(end, PartitionDecision::Converged);
        prop_assert!(has_layout(&spec, &gpu));
    }

    #[test]
    fn converged_means_exactly_the_layout_of_the_spec(gpu in left(), spec in wanted()) {
        let converged = decision(&spec, &gpu, false, None) == PartitionDecision::Converged;
        prop_assert_eq!(converged, has_layout(&spec, &gpu));
    }

    #[test]
    fn matching_instances_are_kept((mut gpu, spec) in overlapping()) {
        let kept: Vec<u32> = gpu
            .instances
            .iter()
            .filter(|instance| instance.whole_compute().is_some() && wanted_layout(&spec).contains(&(instance.start, instance.profile.clone())))
            .map(|instance| instance.gi)
            .collect();
        partition(&spec, &mut gpu);
        for gi in kept {
            prop_assert!(gpu.instances.iter().any(|instance| instance.gi == gi));
        }
    }

    #[test]
    fn client_never_loses_its_instance(mut gpu in partitioned(), spec in wanted(), pick in 0_usize..8) {
        let used = gpu.instances[pick % gpu.instances.len()].gi;
        gpu.clients = vec![client(Some(used))];
        // the model panics if a client would lose its instance
        let (_, operations) = partition(&spec, &mut gpu);
        let used = gpu.instances.iter().find(|instance| instance.gi == used).unwrap();
        let wanted = wanted_layout(&spec).contains(&(used.start, used.profile.clone())) && spec.mig;
        prop_assert!(wanted || operations.is_empty(), "{:?}", operations);
        gpu.clients.clear();
        let (end, _) = partition(&spec, &mut gpu);
        prop_assert_eq!(end, PartitionDecision::Converged);
    }

    #[test]
    fn allocatable_instance_is_not_destroyed(gpu in left(), spec in wanted()) {
        let decision = decision(&spec, &gpu, true, None);
        if let PartitionDecision::Operate(Operation::DestroyCompute { .. }) = decision {
            prop_assert!(false, "{:?}", decision);
        }
    }

    #[test]
    fn instance_without_proof_of_idleness_is_not_destroyed(gpu in left(), spec in wanted()) {
        let input =
            DecisionInput { generation: 1, partitions: true, allocatable: &|_| false, idle: &|_| false, failure: None };
        let decision = decide(&spec, &gpu, &input);
        let harmless = !matches!(
            decision,
            PartitionDecision::Operate(Operation::DestroyCompute { .. } | Operation::DestroyInstance { .. } | Operation::Reset { .. })
        );
        prop_assert!(harmless, "{:?}", decision);
    }

    #[test]
    fn failure_forbids_further_operations(gpu in left(), spec in wanted()) {
        let failure = gputenancy_crds::GpuError { call: "x".into(), code: 23, message: String::new(), generation: 1 };
        let decision = decision(&spec, &gpu, false, Some(&failure));
        let harmless = matches!(decision, PartitionDecision::Converged | PartitionDecision::Failed(_));
        prop_assert!(harmless, "{:?}", decision);
    }

    #[test]
    fn agent_that_does_not_partition_leaves_other_layouts_alone(gpu in left(), spec in wanted()) {
        let input =
            DecisionInput { generation: 1, partitions: false, allocatable: &|_| false, idle: &|_| true, failure: None };
        let decision = decide(&spec, &gpu, &input);
        let expected = if has_layout(&spec, &gpu) { PartitionDecision::Converged } else { PartitionDecision::LeftAlone };
        prop_assert_eq!(decision, expected);
    }

    #[test]
    fn removed_instance_is_never_advertised(mut gpu in left(), spec in wanted()) {
        for _ in 0..100 {
            let advertised = devices(&spec, &gpu);
            let PartitionDecision::Operate(operation) = decision(&spec, &gpu, false, None) else { break };
            execute(&mut gpu, &operation);
            let after = devices(&spec, &gpu);
            for device in advertised {
                prop_assert!(after.contains(&device), "{} of {} was advertised and {} removed it", device.id, UUID, operation);
            }
        }
    }
}
