//! What is planned can be carved: the simulated driver is asked, on each of its boards.

use gputenancy_crds::{Board, BoardProfile, MemoryText};
use proptest::{prelude::*, sample::select};
use silicon::{
    board::{Placement, Variant},
    boards,
    machine::Machine,
};

use crate::{config, fleet::Fleet};

/// A board as the agent would report it from this driver.
fn reported(board: &silicon::board::Board) -> Board {
    let geometry = board.geometry.as_ref().unwrap();
    let profile = |p: &silicon::board::Profile| {
        let e = p.engines;
        BoardProfile {
            id: p.id.cast_signed(),
            name: p.name.clone(),
            slices: p.slices.cast_signed(),
            memory: MemoryText::from_mib(i64::try_from(p.memory_mib).unwrap()),
            size: p.size.cast_signed(),
            starts: p.starts.iter().map(|s| s.cast_signed()).collect(),
            max: p.max_instances.cast_signed(),
            engines: [e.copy_engines, e.decoders, e.encoders, e.jpeg, e.ofa].map(u32::cast_signed).to_vec(),
        }
    };
    Board {
        product: board.name.replace(' ', "-"),
        memory: MemoryText::from_mib(i64::try_from(board.memory_mib).unwrap()),
        reserved: None,
        slices: geometry.compute_slices.cast_signed(),
        memory_slices: geometry.memory_units.cast_signed(),
        mode_needs_reset: false,
        profiles: board.profiles.iter().map(profile).collect(),
    }
}

fn demands() -> impl Strategy<Value = (&'static str, Vec<(prop::sample::Index, i32)>)> {
    let wanted = (any::<prop::sample::Index>(), 0..6_i32);
    (select(boards::mig_keys()), proptest::collection::vec(wanted, 1..5))
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_target_is_accepted_by_the_driver((key, wanted) in demands(), variant in select(vec![Variant::Normal, Variant::Flipped])) {
        let board = boards::load(key).unwrap();
        let reported = reported(&board);
        let names: Vec<String> = board.profiles.iter().map(|p| p.name.clone()).collect();
        let plain = |n: &str| n.replace('+', "-plus-").replace('.', "-");
        let mut fleet = names.iter().fold(Fleet::default(), |f, n| f.mig(&plain(n), n));
        let offered: Vec<String> = names.iter().map(|n| plain(n)).collect();
        fleet = fleet.pool("p", &offered.iter().map(String::as_str).collect::<Vec<_>>());
        fleet = fleet.node("n", "p", &[reported.clone(), reported]);
        let mut tenant: Vec<(&str, i32)> = wanted.iter().map(|(at, n)| (at.get(&offered).as_str(), *n)).collect();
        tenant.sort_unstable();
        tenant.dedup_by_key(|(p, _)| *p);
        let plan = fleet.tenant("t", &tenant).plan();
        let mut machine = Machine::power_on("n", board.clone(), variant, 2, &[]);
        for gpu in plan.gpus.values() {
            let Some(target) = gpu.target.as_deref().filter(|t| t.mig) else { continue };
            let index = u32::try_from(gpu.index).unwrap();
            let on = machine.set_mig_mode(index, true, &[]).unwrap();
            if on.is_err() {
                machine.reset(index, &[]).unwrap();
            }
            for instance in &target.instances {
                let profile = board.profiles.iter().find(|p| p.name == instance.profile).unwrap();
                let placement = Placement { start: u32::try_from(instance.start).unwrap(), size: profile.size };
                let made = machine.create_gi(index, profile.id, Some(placement));
                prop_assert!(made.is_ok(), "{key}: {instance:?} of {target:?}: {made:?}");
            }
        }
    }
}
