//! The simulated driver accepts every planned layout, on each of its boards.

use std::{collections::BTreeMap, sync::LazyLock};

use gputenancy_crds::{Board, BoardProfile, MemoryText};
use gputenancy_plan::Plan;
use proptest::{prelude::*, sample::select};
use silicon::{
    board::{Placement, Variant},
    boards,
    machine::Machine,
};

use crate::{config, support::fleet::Fleet};

#[path = "../../../../integration/sim/silicon/tests/seven/mod.rs"]
mod seven;

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
        vgpu: None,
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

/// Creates the plan's instances with the driver.
fn realize(machine: &mut Machine, board: &silicon::board::Board, plan: &Plan) -> Result<(), String> {
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

/// Boards of seven slices, each with the rows of a table that it has all profiles for: some lack `1g.double`.
fn sevens<'a>(
    rows: impl IntoIterator<Item = &'a &'static str> + Clone,
) -> impl Iterator<Item = (&'static str, &'static silicon::board::Board, &'static str, Vec<Wanted>)> {
    let boards = BOARDS.iter().filter(|(_, b)| b.geometry.as_ref().is_some_and(|g| g.compute_slices == 7));
    let each = boards.flat_map(move |board| rows.clone().into_iter().map(move |row| (board, *row)));
    each.filter_map(|((key, board), row)| {
        let profile = |id: u32| board.profiles.iter().find(|p| p.id == id);
        let read = seven::read(row);
        assert!(read.iter().all(|(id, _)| *id == 15 || profile(*id).is_some()), "{key} lacks one of {row}");
        let wanted: Option<Vec<Wanted>> = read
            .into_iter()
            .map(|(id, start)| Some((profile(id)?.name.as_str(), start.map(u32::cast_signed))))
            .collect();
        Some((*key, board, row, wanted?))
    })
}

/// A profile's name, and the start of its instance where the table has it.
type Wanted = (&'static str, Option<i32>);

/// A tenant that wants so many of each.
fn demand(board: &silicon::board::Board, wanted: &[Wanted]) -> Fleet {
    let mut counts: BTreeMap<String, i32> = BTreeMap::new();
    for (name, _) in wanted {
        *counts.entry(in_manifests(name)).or_default() += 1;
    }
    let counts: Vec<(&str, i32)> = counts.iter().map(|(name, n)| (name.as_str(), *n)).collect();
    pool_of(board, 1).tenant("t", &counts)
}

/// Whether the planner's geometry has a placement of these.
fn fits(
    board: &gputenancy_plan::board::BoardGeometry,
    wanted: &[Wanted],
    placed: &mut Vec<(&'static str, i32)>,
) -> bool {
    let Some(((name, start), rest)) = wanted.split_first() else { return true };
    let starts = start.map_or_else(|| board.profile(name).unwrap().starts.clone(), |start| vec![start]);
    starts.into_iter().any(|start| {
        placed.push((name, start));
        let fits = board.fits(placed.iter().copied()) && fits(board, rest, placed);
        placed.pop();
        fits
    })
}

#[test]
fn every_combination_of_seven_slices_is_planned_and_accepted_by_the_driver() {
    for (key, board, row, wanted) in sevens(&seven::COMBINATIONS) {
        assert!(fits(&(&reported(board)).into(), &wanted, &mut Vec::new()), "{key} {row}");
        let plan = demand(board, &wanted).plan();
        assert_eq!(plan.problems, [], "{key} {row}");
        for variant in [Variant::Normal, Variant::Flipped] {
            let mut machine = Machine::power_on("n", board.clone(), variant, 1, &[]);
            realize(&mut machine, board, &plan).unwrap_or_else(|e| panic!("{key} {row}: {e}"));
            let mut made: Vec<u32> = machine.gpus[0].instances.iter().map(|gi| gi.profile).collect();
            let mut stated: Vec<u32> = seven::read(row).into_iter().map(|(id, _)| id).collect();
            made.sort_unstable();
            stated.sort_unstable();
            assert_eq!(made, stated, "{key} {row}: all of it and, as nothing fits beside it, nothing else");
        }
    }
}

#[test]
fn any_one_slice_instance_may_have_the_media_engines() {
    for (key, board, row, wanted) in sevens(&seven::COMBINATIONS) {
        let name = |id: u32| board.profile(id).unwrap().name.as_str();
        for at in (0..wanted.len()).filter(|at| wanted[*at].0 == name(19)) {
            let mut wanted = wanted.clone();
            wanted[at].0 = name(20);
            assert!(fits(&(&reported(board)).into(), &wanted, &mut Vec::new()), "{key} {row} at {at}");
        }
    }
}

#[test]
fn full_combination_takes_no_more_instances() {
    for (key, board, row, wanted) in sevens(&seven::COMBINATIONS) {
        for profile in board.profiles.iter().filter(|p| seven::PROFILES.iter().any(|(_, id)| *id == p.id)) {
            let name = profile.name.as_str();
            let more: Vec<Wanted> = wanted.iter().copied().chain([(name, None)]).collect();
            assert!(!fits(&(&reported(board)).into(), &more, &mut Vec::new()), "{key} {row} and {name}");
        }
    }
}

#[test]
fn impossible_combination_is_refused_and_its_substitute_is_accepted_by_the_driver() {
    for (key, board, row, wanted) in sevens(&seven::REFUSED) {
        assert!(!fits(&(&reported(board)).into(), &wanted, &mut Vec::new()), "{key} {row}");
        let plan = demand(board, &wanted).plan();
        assert!(plan.problems.iter().any(|p| p.reason() == "Shortage"), "{key} {row}: {:?}", plan.problems);
        let mut machine = Machine::power_on("n", board.clone(), Variant::Normal, 1, &[]);
        realize(&mut machine, board, &plan).unwrap_or_else(|e| panic!("{key} {row}: {e}"));
    }
    for (key, board, row, wanted) in sevens(&seven::MISPLACED) {
        assert!(!fits(&(&reported(board)).into(), &wanted, &mut Vec::new()), "{key} {row}");
    }
}

fn demands() -> impl Strategy<Value = (usize, Vec<(prop::sample::Index, i32)>)> {
    let wanted = (any::<prop::sample::Index>(), 0..6_i32);
    (0..BOARDS.len(), proptest::collection::vec(wanted, 1..5))
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_target_is_accepted_by_the_driver_of_its_board((board, wanted) in demands(), variant in select(vec![Variant::Normal, Variant::Flipped])) {
        let (key, board) = &BOARDS[board];
        let offered: Vec<String> = board.profiles.iter().map(|p| in_manifests(&p.name)).collect();
        let mut tenant: Vec<(&str, i32)> = wanted.iter().map(|(at, n)| (at.get(&offered).as_str(), *n)).collect();
        tenant.sort_unstable();
        tenant.dedup_by_key(|(p, _)| *p);
        let plan = pool_of(board, 2).tenant("t", &tenant).plan();
        let mut machine = Machine::power_on("n", board.clone(), variant, 2, &[]);
        let carved = realize(&mut machine, board, &plan);
        prop_assert!(carved.is_ok(), "{key}: {carved:?}");
    }
}
