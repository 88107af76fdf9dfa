//! Combinations of instances on every board of seven slices: exactly the published ones can be created.

use std::collections::BTreeSet;

use silicon::board::{Board, Placement, Variant};
use silicon::{Machine, boards};

use crate::seven;

/// Instances by profile id and start.
type Combination = BTreeSet<(u32, u32)>;

/// An empty GPU of each board of seven slices, in both variants.
fn machines() -> Vec<Machine> {
    let all = boards::mig_keys().into_iter().map(|key| boards::load(key).unwrap());
    let sevens = all.filter(|b| b.geometry.as_ref().is_some_and(|g| g.compute_slices == 7));
    let both = sevens.flat_map(|b| [(b.clone(), Variant::Normal), (b, Variant::Flipped)]);
    let mut machines: Vec<Machine> = both.map(|(b, v)| Machine::power_on("n", b, v, 1, &[])).collect();
    for machine in &mut machines {
        machine.gpus[0].mig = true;
    }
    machines
}

fn board(machine: &Machine) -> &Board {
    &machine.gpus[0].board
}

/// Every instance of these profiles that the board has.
fn instances(machine: &Machine, profiles: &[u32]) -> Vec<(u32, u32)> {
    let known = board(machine).profiles.iter().filter(|p| profiles.contains(&p.id));
    known.flat_map(|p| p.starts.iter().map(|start| (p.id, *start))).collect()
}

/// Creates an instance; `None` if the driver refuses.
fn create(machine: &mut Machine, (profile, start): (u32, u32)) -> Option<u32> {
    let size = board(machine).profile(profile)?.size;
    machine.create_gi(0, profile, Some(Placement { start, size })).ok().map(|gi| gi.id)
}

fn destroy(machine: &mut Machine, id: u32) {
    machine.destroy_gi(0, id, &[]).unwrap();
}

/// All combinations to which the driver can add no instance.
fn complete(machine: &mut Machine, items: &[(u32, u32)], from: usize, chosen: &mut Combination) -> Vec<Combination> {
    let mut found = Vec::new();
    let mut full = true;
    for (index, item) in items.iter().enumerate() {
        let Some(id) = create(machine, *item) else { continue };
        full = false;
        if index >= from {
            chosen.insert(*item);
            found.extend(complete(machine, items, index + 1, chosen));
            chosen.remove(item);
        }
        destroy(machine, id);
    }
    if full {
        found.push(chosen.clone());
    }
    found
}

/// Does some placement of these profiles exist?
fn fits(machine: &mut Machine, profiles: &[(u32, Option<u32>)]) -> bool {
    let Some(((profile, start), rest)) = profiles.split_first() else { return true };
    let starts = start.map_or_else(|| board(machine).profile(*profile).unwrap().starts.clone(), |start| vec![start]);
    starts.into_iter().any(|start| {
        let Some(id) = create(machine, (*profile, start)) else { return false };
        let fits = fits(machine, rest);
        destroy(machine, id);
        fits
    })
}

/// The board has every profile of the row: all but `1g.double`, which some lack.
fn knows(machine: &Machine, row: &[(u32, Option<u32>)]) -> bool {
    let lacks: Vec<u32> = row.iter().map(|(id, _)| *id).filter(|id| board(machine).profile(*id).is_none()).collect();
    assert!(lacks.iter().all(|id| *id == 15), "{} lacks {lacks:?}", board(machine).key);
    lacks.is_empty()
}

#[test]
fn published_combinations_are_exactly_those_possible() {
    let plain: Vec<u32> = seven::PROFILES.iter().map(|(_, id)| *id).filter(|id| *id != 20).collect();
    for mut machine in machines() {
        let stated = seven::COMBINATIONS.map(seven::read);
        let stated: BTreeSet<Combination> = stated
            .iter()
            .filter(|row| knows(&machine, row))
            .map(|row| row.iter().map(|(id, start)| (*id, start.unwrap())).collect())
            .collect();
        let items = instances(&machine, &plain);
        let found = complete(&mut machine, &items, 0, &mut Combination::new());
        let all: BTreeSet<Combination> = found.iter().cloned().collect();
        assert_eq!(all.len(), found.len(), "each is found once");
        assert_eq!(all, stated, "{} {:?}", board(&machine).key, machine.variant);
    }
}

#[test]
fn media_engines_fit_any_one_slice_instance() {
    for mut machine in machines() {
        for row in seven::COMBINATIONS.map(seven::read).iter().filter(|row| knows(&machine, row)).collect::<Vec<_>>() {
            for (at, _) in row.iter().enumerate().filter(|(_, (id, _))| *id == 19) {
                let mut row = row.clone();
                row[at].0 = 20;
                assert!(fits(&mut machine, &row), "{} {:?} {row:?}", board(&machine).key, machine.variant);
            }
        }
    }
}

#[test]
fn unpublished_combination_is_refused_at_every_placement() {
    for mut machine in machines() {
        for row in seven::REFUSED.iter().chain(&seven::MISPLACED) {
            let instances = seven::read(row);
            let refused = !knows(&machine, &instances) || !fits(&mut machine, &instances);
            assert!(refused, "{} {:?} accepts {row}", board(&machine).key, machine.variant);
        }
    }
}
