//! What is planned can be carved: the simulated driver is asked, on each of its boards.

use std::sync::LazyLock;

use gputenancy_crds::{Board, BoardProfile, MemoryText};
use gputenancy_plan::Plan;
use proptest::{prelude::*, sample::select};
use silicon::{
    board::{Placement, Variant},
    boards,
    machine::Machine,
};

use crate::{config, fleet::Fleet};

/// Every board with MIG that the driver knows.
static BOARDS: LazyLock<Vec<(&'static str, silicon::board::Board)>> =
    LazyLock::new(|| boards::mig_keys().into_iter().map(|key| (key, boards::load(key).unwrap())).collect());

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

/// A pool that offers all of a board's profiles, on one node with so many of them.
fn pool_of(board: &silicon::board::Board, gpus: usize) -> Fleet {
    let fleet = board.profiles.iter().fold(Fleet::default(), |f, p| f.mig(&in_manifests(&p.name), &p.name));
    let offered: Vec<String> = board.profiles.iter().map(|p| in_manifests(&p.name)).collect();
    let offered: Vec<&str> = offered.iter().map(String::as_str).collect();
    fleet.pool("p", &offered).node("n", "p", &vec![reported(board); gpus])
}

/// Names of profiles in manifests have neither `+` nor `.`.
fn in_manifests(profile: &str) -> String {
    profile.replace('+', "-plus-").replace('.', "-")
}

/// Carves the plan's targets with the driver.
fn carve(machine: &mut Machine, board: &silicon::board::Board, plan: &Plan) -> Result<(), String> {
    for gpu in plan.gpus.values() {
        let Some(target) = gpu.target.as_deref().filter(|t| t.mig) else { continue };
        let index = u32::try_from(gpu.index).unwrap();
        if machine.set_mig_mode(index, true, &[]).unwrap().is_err() {
            machine.reset(index, &[]).unwrap();
        }
        for instance in &target.instances {
            let profile = board.profiles.iter().find(|p| p.name == instance.profile).unwrap();
            let placement = Placement { start: u32::try_from(instance.start).unwrap(), size: profile.size };
            let made = machine.create_gi(index, profile.id, Some(placement));
            made.map_err(|code| format!("{instance:?} of {target:?}: {code:?}"))?;
        }
    }
    Ok(())
}

/// NVML's ids of the profiles on one GPU of seven slices: 19 is 1g, 15 is 1g with twice the memory, 14 is 2g, 9 is 3g, 5 is 4g and
/// 0 all of it.
const ACCEPTED: [&[u32]; 9] = [
    &[19, 19, 19, 19, 19, 19, 19],
    &[14, 14, 14, 19],
    &[9, 9],
    &[5, 9],
    &[5, 14, 19],
    &[9, 14, 14],
    &[9, 14, 19, 19],
    &[15, 15, 15, 15],
    &[0],
];
const REFUSED: [&[u32]; 8] = [
    &[5, 5],
    &[5, 9, 19],
    &[9, 9, 9],
    &[9, 9, 19],
    &[14, 14, 14, 14],
    &[0, 19],
    &[19, 19, 19, 19, 19, 19, 19, 19],
    &[15, 15, 15, 15, 15],
];

#[test]
fn what_the_table_of_seven_slices_has_is_carved_and_what_it_has_not_is_refused() {
    let variants = [Variant::Normal, Variant::Flipped];
    let seven = BOARDS.iter().filter(|(_, b)| b.geometry.as_ref().is_some_and(|g| g.compute_slices == 7));
    for ((key, board), variant) in seven.flat_map(|b| variants.map(|v| (b, v))) {
        let name = |id: u32| board.profiles.iter().find(|p| p.id == id).map(|p| in_manifests(&p.name));
        for (ids, fits) in ACCEPTED.iter().map(|ids| (ids, true)).chain(REFUSED.iter().map(|ids| (ids, false))) {
            let Some(names) = ids.iter().map(|id| name(*id)).collect::<Option<Vec<_>>>() else {
                assert!(ids.contains(&15), "{key} lacks one of {ids:?}");
                continue;
            };
            let mut wanted: Vec<(&str, i32)> = Vec::new();
            for name in &names {
                match wanted.iter_mut().find(|(n, _)| n == name) {
                    Some((_, n)) => *n += 1,
                    None => wanted.push((name, 1)),
                }
            }
            let plan = pool_of(board, 1).tenant("t", &wanted).plan();
            assert_eq!(plan.problems.is_empty(), fits, "{key} {ids:?}: {:?}", plan.problems);
            let mut machine = Machine::power_on("n", board.clone(), variant, 1, &[]);
            carve(&mut machine, board, &plan).unwrap_or_else(|e| panic!("{key} {ids:?}: {e}"));
        }
    }
}

fn demands() -> impl Strategy<Value = (usize, Vec<(prop::sample::Index, i32)>)> {
    let wanted = (any::<prop::sample::Index>(), 0..6_i32);
    (0..BOARDS.len(), proptest::collection::vec(wanted, 1..5))
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_target_is_accepted_by_the_driver((board, wanted) in demands(), variant in select(vec![Variant::Normal, Variant::Flipped])) {
        let (key, board) = &BOARDS[board];
        let offered: Vec<String> = board.profiles.iter().map(|p| in_manifests(&p.name)).collect();
        let mut tenant: Vec<(&str, i32)> = wanted.iter().map(|(at, n)| (at.get(&offered).as_str(), *n)).collect();
        tenant.sort_unstable();
        tenant.dedup_by_key(|(p, _)| *p);
        let plan = pool_of(board, 2).tenant("t", &tenant).plan();
        let mut machine = Machine::power_on("n", board.clone(), variant, 2, &[]);
        let carved = carve(&mut machine, board, &plan);
        prop_assert!(carved.is_ok(), "{key}: {carved:?}");
    }
}
