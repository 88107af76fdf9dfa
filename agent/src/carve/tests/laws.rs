//! What holds for every layout, every layout after it, and every moment to be killed at.

use gputenancy_crds::GpuSpec;
use proptest::prelude::*;

use super::model::{UUID, board, carve, client, decide, gpu, instance, layout, obey, spec};
use crate::{
    carve::{Decision, Facts, Rest, offer::devices, step},
    gpu::{Order, SeenGpu},
};

/// Instances that fit side by side, from a list of wishes of which the impossible are dropped.
fn placements() -> impl Strategy<Value = Vec<(usize, u32)>> {
    wishes().prop_map(|wishes| placed_first(&[], &wishes))
}

/// Instances as profile and first slice, of which many cannot be.
fn wishes() -> impl Strategy<Value = Vec<(usize, u32)>> {
    proptest::collection::vec((0..board(false).profiles.len(), 0_u32..7), 0..10)
}

/// These instances, and of the wishes those that fit beside.
fn placed_first(first: &[(usize, u32)], wishes: &[(usize, u32)]) -> Vec<(usize, u32)> {
    let board = board(false);
    let mut placed = first.to_vec();
    for (kind, start) in wishes {
        let profile = &board.profiles[*kind];
        let end = start + profile.size;
        let free = placed.iter().all(|(other, from)| from + board.profiles[*other].size <= *start || end <= *from);
        if profile.starts.contains(start) && free {
            placed.push((*kind, *start));
        }
    }
    placed
}

/// A GPU as an agent that was killed anywhere may have left it: bare instances, a pending mode.
fn found() -> impl Strategy<Value = SeenGpu> {
    (placements(), any::<bool>()).prop_flat_map(|(placed, mig)| found_with(placed, mig))
}

/// Such a GPU with these instances, which one without MIG has none of.
fn found_with(placed: Vec<(usize, u32)>, mig: bool) -> impl Strategy<Value = SeenGpu> {
    let whole = proptest::collection::vec(any::<bool>(), 10);
    (whole, any::<bool>(), any::<bool>()).prop_map(move |(whole, pending, reset)| {
        let mut gpu = gpu(mig, reset);
        gpu.mode.as_mut().unwrap().pending = pending;
        if mig {
            let instances = placed.iter().zip(whole).zip(3..);
            let instances = instances
                .map(|(((kind, start), whole), gi)| instance(gi, &board(false).profiles[*kind], *start, whole));
            gpu.instances = instances.collect();
            gpu.instances.sort_by_key(|seen| seen.start);
        }
        gpu
    })
}

/// Such a GPU with at least one instance.
fn carved() -> impl Strategy<Value = SeenGpu> {
    placements().prop_flat_map(|placed| {
        let some = if placed.is_empty() { vec![(0, board(false).profiles[0].starts[0])] } else { placed };
        found_with(some, true)
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

/// A GPU with MIG, and a layout that wants some of its instances and others beside. A mode that is to be called off or reset away is
/// another matter.
fn overlapping() -> impl Strategy<Value = (SeenGpu, GpuSpec)> {
    let both = (placements(), wishes(), proptest::collection::vec(any::<bool>(), 10));
    both.prop_flat_map(|(placed, wishes, kept)| {
        let kept: Vec<(usize, u32)> =
            placed.iter().zip(kept).filter_map(|(instance, keep)| keep.then_some(*instance)).collect();
        let spec = wanted_with(&placed_first(&kept, &wishes), true);
        found_with(placed, true).prop_map(move |gpu| (gpu, spec.clone()))
    })
}

fn wanted_layout(spec: &GpuSpec) -> Vec<(u32, String)> {
    let mut layout: Vec<(u32, String)> =
        spec.instances.iter().map(|wanted| (u32::try_from(wanted.start).unwrap(), wanted.profile.clone())).collect();
    layout.sort();
    layout
}

fn is_as_wanted(spec: &GpuSpec, gpu: &SeenGpu) -> bool {
    let mode = gpu.mode.unwrap();
    layout(gpu) == wanted_layout(spec)
        && (mode.current, mode.pending) == (spec.mig, spec.mig)
        && gpu.instances.iter().all(|seen| seen.whole_compute().is_some())
}

proptest! {
    #[test]
    fn from_wherever_it_was_killed_it_ends_at_the_layout_wanted(mut gpu in found(), spec in wanted()) {
        let (rest, _) = carve(&spec, &mut gpu);
        prop_assert_eq!(rest, Rest::Steady);
        prop_assert!(is_as_wanted(&spec, &gpu));
    }

    #[test]
    fn steady_means_exactly_as_wanted(gpu in found(), spec in wanted()) {
        let steady = decide(&spec, &gpu, false, None) == Decision::Rest(Rest::Steady);
        prop_assert_eq!(steady, is_as_wanted(&spec, &gpu));
    }

    #[test]
    fn what_matches_is_kept((mut gpu, spec) in overlapping()) {
        let kept: Vec<u32> = gpu
            .instances
            .iter()
            .filter(|seen| seen.whole_compute().is_some() && wanted_layout(&spec).contains(&(seen.start, seen.profile.clone())))
            .map(|seen| seen.gi)
            .collect();
        carve(&spec, &mut gpu);
        for gi in kept {
            prop_assert!(gpu.instances.iter().any(|seen| seen.gi == gi));
        }
    }

    #[test]
    fn a_client_never_loses_its_instance(mut gpu in carved(), spec in wanted(), pick in 0_usize..8) {
        let used = gpu.instances[pick % gpu.instances.len()].gi;
        gpu.clients = vec![client(Some(used))];
        // The model panics when an order harms a client.
        let (_, orders) = carve(&spec, &mut gpu);
        let surplus = gpu.instances.iter().find(|seen| seen.gi == used).unwrap();
        let wanted = wanted_layout(&spec).contains(&(surplus.start, surplus.profile.clone())) && spec.mig;
        // And while one must go that is in use, nothing is destroyed for its sake.
        prop_assert!(wanted || orders.is_empty(), "{:?}", orders);
        gpu.clients.clear();
        let (rest, _) = carve(&spec, &mut gpu);
        prop_assert_eq!(rest, Rest::Steady);
    }

    #[test]
    fn what_kubelet_may_still_give_away_is_not_destroyed(gpu in found(), spec in wanted()) {
        let decision = decide(&spec, &gpu, true, None);
        if let Decision::Act(Order::DestroyCompute { .. }) = decision {
            prop_assert!(false, "{:?}", decision);
        }
    }

    #[test]
    fn what_was_seen_unused_only_once_is_not_touched(gpu in found(), spec in wanted()) {
        let facts = Facts { generation: 1, carves: true, taken: &|_| false, idle: &|_| false, failure: None };
        let decision = step(&spec, &gpu, &facts);
        let harmless = !matches!(
            decision,
            Decision::Act(Order::DestroyCompute { .. } | Order::DestroyInstance { .. } | Order::Reset { .. })
        );
        prop_assert!(harmless, "{:?}", decision);
    }

    #[test]
    fn after_a_failure_nothing_is_touched(gpu in found(), spec in wanted()) {
        let failure = gputenancy_crds::GpuError { call: "x".into(), code: 23, message: String::new(), generation: 1 };
        let decision = decide(&spec, &gpu, false, Some(&failure));
        prop_assert!(matches!(decision, Decision::Rest(Rest::Steady | Rest::Failed(_))), "{:?}", decision);
    }

    #[test]
    fn an_agent_that_does_not_carve_touches_nothing_and_says_so(gpu in found(), spec in wanted()) {
        let facts = Facts { generation: 1, carves: false, taken: &|_| false, idle: &|_| true, failure: None };
        let decision = step(&spec, &gpu, &facts);
        let expected = if is_as_wanted(&spec, &gpu) { Rest::Steady } else { Rest::LeftAlone };
        prop_assert_eq!(decision, Decision::Rest(expected));
    }

    #[test]
    fn what_must_go_is_never_offered(mut gpu in found(), spec in wanted()) {
        for _ in 0..100 {
            let offered = devices(&spec, &gpu);
            let decision = decide(&spec, &gpu, false, None);
            let Decision::Act(order) = decision else { break };
            obey(&mut gpu, &order);
            let after = devices(&spec, &gpu);
            for device in offered {
                prop_assert!(after.contains(&device), "{} of {} was offered and {} took it", device.id, UUID, order);
            }
        }
    }
}
