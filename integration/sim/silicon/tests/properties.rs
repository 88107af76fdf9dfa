//! Properties of every board after any sequence of creations and destructions.

use std::collections::BTreeSet;

use proptest::prelude::*;
use silicon::board::{Engines, Placement, Variant};
use silicon::{Machine, boards, compute_profile, nodes};

/// One step; numbers are taken modulo the number of choices.
#[derive(Clone, Debug)]
enum Step {
    Create(usize),
    CreateAt(usize, usize),
    CreateCompute(usize, usize),
    Destroy(usize),
    DestroyCompute(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let n = 0usize..64;
    prop_oneof![
        n.clone().prop_map(Step::Create),
        (n.clone(), n.clone()).prop_map(|(p, s)| Step::CreateAt(p, s)),
        (n.clone(), n.clone()).prop_map(|(g, p)| Step::CreateCompute(g, p)),
        n.clone().prop_map(Step::Destroy),
        n.prop_map(Step::DestroyCompute),
    ]
}

/// Executes a step, which may be refused.
fn apply(machine: &mut Machine, step: &Step) {
    let profiles = machine.gpus[0].board.profiles.clone();
    let instances = machine.gpus[0].instances.clone();
    match step {
        Step::Create(p) => drop(machine.create_gi(0, profiles[p % profiles.len()].id, None)),
        Step::CreateAt(p, s) => {
            let profile = &profiles[p % profiles.len()];
            let at = Placement { start: profile.starts[s % profile.starts.len()], size: profile.size };
            drop(machine.create_gi(0, profile.id, Some(at)));
        }
        Step::CreateCompute(g, p) if !instances.is_empty() => {
            let gi = &instances[g % instances.len()];
            let gpu = &machine.gpus[0];
            let offered = compute_profile::profiles(&gpu.board, gpu.profile_of(gi).unwrap());
            drop(machine.create_ci(0, gi.id, offered[p % offered.len()].id, None));
        }
        Step::Destroy(g) if !instances.is_empty() => {
            let _ = machine.destroy_gi(0, instances[g % instances.len()].id, &[]);
        }
        Step::DestroyCompute(g) if !instances.is_empty() => {
            let gi = &instances[g % instances.len()];
            if let Some(ci) = gi.compute.first() {
                machine.destroy_ci(0, gi.id, ci.id, &[]).unwrap();
            }
        }
        _ => {}
    }
}

fn check(machine: &Machine) {
    let gpu = &machine.gpus[0];
    let board = &gpu.board;
    let geometry = board.geometry.as_ref().unwrap();
    let mut taken = BTreeSet::new();
    let mut ids = BTreeSet::new();
    let mut engines = Engines::default();
    for gi in &gpu.instances {
        let profile = gpu.profile_of(gi).unwrap();
        let units = gi.placement.start..gi.placement.start + gi.placement.size;
        assert!(units.end <= geometry.memory_units, "within the memory axis");
        assert!(units.into_iter().all(|unit| taken.insert(unit)), "no unit belongs to two instances");
        assert!(ids.insert(gi.id), "GPU-instance ids are unique");
        assert!(profile.starts.contains(&gi.placement.start), "only allowed starts");
        engines = engines.plus(profile.engines);
        let sm: u32 = gi.compute.iter().map(|ci| gpu.compute_profile(gi, ci).unwrap().sm).sum();
        assert!(sm <= profile.engines.sm, "compute instances share their GPU instance's SMs");
    }
    assert!(engines.within(board.engines()), "instances share the GPU's engines");
    let devices = machine.mig_devices();
    let unique = |keys: Vec<String>| keys.iter().collect::<BTreeSet<_>>().len() == keys.len();
    assert!(unique(devices.iter().map(silicon::machine::MigDevice::uuid).collect()), "MIG UUIDs are unique");
    assert!(unique(devices.iter().map(|d| d.ci.mig_index.to_string()).collect()), "MIG indices are unique");
    assert!(devices.iter().all(|d| d.ci.mig_index < board.max_mig_devices), "MIG indices are within the maximum");
    let minors = nodes::cap_minors(machine);
    let expected = 2 + gpu.instances.len() + devices.len();
    assert_eq!(minors.len(), expected, "capability minors are unique");
}

proptest! {
    #[test]
    fn instances_never_overlap_or_exceed_engines(
        board in proptest::sample::select(boards::mig_keys()),
        flipped in any::<bool>(),
        steps in proptest::collection::vec(step(), 1..40),
    ) {
        let variant = if flipped { Variant::Flipped } else { Variant::Normal };
        let mut machine = Machine::power_on("n", boards::load(board).unwrap(), variant, 1, &[]);
        machine.gpus[0].mig = true;
        for step in &steps {
            apply(&mut machine, step);
            check(&machine);
        }
    }

    #[test]
    fn remaining_capacity_equals_what_can_be_created(
        board in proptest::sample::select(boards::mig_keys()),
        steps in proptest::collection::vec(step(), 0..12),
        pick in 0usize..32,
    ) {
        let mut machine = Machine::power_on("n", boards::load(board).unwrap(), Variant::Normal, 1, &[]);
        machine.gpus[0].mig = true;
        for step in &steps {
            apply(&mut machine, step);
        }
        let profiles = &machine.gpus[0].board.profiles;
        let profile = profiles[pick % profiles.len()].id;
        let promised = machine.remaining(0, profile).unwrap();
        for _ in 0..promised {
            machine.create_gi(0, profile, None).unwrap();
        }
        prop_assert!(machine.create_gi(0, profile, None).is_err());
    }
}

#[test]
fn same_placement_has_same_uuid() {
    let mut machine = Machine::power_on("n", boards::load("h100-80gb").unwrap(), Variant::Normal, 1, &[]);
    machine.gpus[0].mig = true;
    let at = Placement { start: 2, size: 2 };
    let mut partition = || {
        let gi = machine.create_gi(0, 14, Some(at)).unwrap().id;
        machine.create_ci(0, gi, 1, None).unwrap();
        let uuid = machine.mig_devices()[0].uuid();
        machine.destroy_ci(0, gi, 0, &[]).unwrap();
        machine.destroy_gi(0, gi, &[]).unwrap();
        uuid
    };
    assert_eq!(partition(), partition());
}

#[test]
fn profile_names_follow_from_memory() {
    for key in boards::mig_keys() {
        let board = boards::load(key).unwrap();
        for profile in &board.profiles {
            // Eighths of the GPU, rounded up, times its whole GiB.
            let eighths = (profile.memory_mib * 8).div_ceil(board.memory_mib);
            let gib = (eighths * board.memory_mib.div_ceil(1024) + 4) / 8;
            let base = format!("{}g.{gib}gb", profile.slices);
            assert!(profile.name.starts_with(&base), "{key}: {} should begin with {base}", profile.name);
        }
    }
}
