//! Full enumeration: every valid layout of every GPU with every other. Written independently of the planner's own
//! enumeration, so that both would have to be wrong in the same way.

use std::collections::BTreeMap;

use gputenancy_crds::{Board, BoardProfile};

/// Instances by profile's name and start.
pub type Instances = Vec<(String, i32)>;

pub fn valid(board: &Board, instances: &[(String, i32)]) -> bool {
    let known: Option<Vec<(&BoardProfile, i32)>> = instances
        .iter()
        .map(|(name, start)| Some((board.profiles.iter().find(|p| p.name == *name)?, *start)))
        .collect();
    let Some(known) = known else { return false };
    let full = board.profiles.iter().find(|p| p.size == board.memory_slices);
    let limits = full.map(|p| p.engines.clone()).unwrap_or_default();
    let engines_fit = limits
        .iter()
        .enumerate()
        .all(|(kind, limit)| known.iter().map(|(p, _)| p.engines[kind]).sum::<i32>() <= *limit);
    let covered = |slice: i32| known.iter().filter(|(p, start)| (*start..start + p.size).contains(&slice)).count();
    let counts_fit = known
        .iter()
        .all(|(p, _)| known.iter().filter(|(q, _)| q.name == p.name).count() <= usize::try_from(p.max).unwrap());
    engines_fit
        && counts_fit
        && known.iter().all(|(p, start)| p.starts.contains(start))
        && (0..board.memory_slices).all(|slice| covered(slice) <= 1)
        && known.iter().map(|(p, _)| p.slices).sum::<i32>() <= board.slices
}

/// Every valid layout that uses only these profiles, and these instances.
pub fn layouts(board: &Board, profiles: &[&str], also: &[(String, i32)]) -> Vec<Instances> {
    let offered = board.profiles.iter().filter(|p| profiles.contains(&p.name.as_str()));
    let mut items: Instances = offered.flat_map(|p| p.starts.iter().map(|s| (p.name.clone(), *s))).collect();
    items.extend(also.iter().cloned());
    items.sort();
    items.dedup();
    let mut all = vec![vec![]];
    for item in items {
        let more: Vec<Instances> = all
            .iter()
            .map(|layout: &Instances| layout.iter().cloned().chain([item.clone()]).collect())
            .filter(|layout: &Instances| valid(board, layout))
            .collect();
        all.extend(more);
    }
    all
}

/// Fewest pods evicted on GPUs of one board such that all counts exist; `None`: they cannot exist together.
pub fn fewest(board: &Board, profiles: &[&str], used: &[Instances], wanted: &BTreeMap<String, usize>) -> Option<usize> {
    let count = |layout: &Instances| -> Vec<usize> {
        wanted.keys().map(|name| layout.iter().filter(|(n, _)| n == name).count()).collect()
    };
    let mut best: BTreeMap<Vec<usize>, usize> = [(vec![0; wanted.len()], 0)].into();
    let wanted_counts: Vec<usize> = wanted.values().copied().collect();
    for pods in used {
        let mut options: BTreeMap<Vec<usize>, usize> = BTreeMap::new();
        for layout in layouts(board, profiles, pods) {
            let evicted = pods.iter().filter(|p| !layout.contains(p)).count();
            let known = options.entry(count(&layout)).or_insert(evicted);
            *known = evicted.min(*known);
        }
        let mut next: BTreeMap<Vec<usize>, usize> = BTreeMap::new();
        for (have, evicted) in &best {
            for (more, cost) in &options {
                let sum: Vec<usize> =
                    have.iter().zip(more).zip(&wanted_counts).map(|((a, b), most)| (a + b).min(*most)).collect();
                let known = next.entry(sum).or_insert(evicted + cost);
                *known = (evicted + cost).min(*known);
            }
        }
        best = next;
    }
    best.get(&wanted_counts).copied()
}
