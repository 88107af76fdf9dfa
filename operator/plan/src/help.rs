//! For demand that is not served: the GPU on which least stands in the way, and who that is.

use super::{
    decide::Decision,
    fleet::Core,
    forms::Rule,
    lines::Line,
    model::{Gpu, Snapshot},
    rig::{Offer, Rig},
    terms::of,
};

/// Most kinds that are looked at.
const LOOK: usize = 64;

/// What somebody could do about a profile of which there is too little, as the end of a sentence.
pub(super) fn what_would_help(core: &Core, snapshot: &Snapshot, decision: &Decision, line: Line) -> Option<String> {
    let mut best: Option<(usize, i32, (u32, u32), u32)> = None;
    let mut looked = 0;
    let able = core
        .forms
        .kinds
        .iter()
        .enumerate()
        .filter(|(index, k)| !k.members.is_empty() && !decision.shares.contains_key(index));
    for (index, kind) in able {
        let Some((_, form, rig)) = core.forms.of(index) else { continue };
        let Some((_, profile)) = offered(rig, line) else { continue };
        if form.rule != Rule::Demand || looked == LOOK {
            continue;
        }
        let Some((start, size)) = easiest(core, &form.gpu, rig, (line, profile)) else { continue };
        looked += 1;
        let stand = in_the_way(&form.gpu, rig, start, size).count();
        let first = kind.members.iter().map(|id| (core.place(*id), *id)).min();
        if let Some((place, id)) = first.filter(|_| stand > 0) {
            let key = (stand, start, place, id);
            best = Some(best.map_or(key, |known| known.min(key)));
        }
    }
    let protected = decision
        .terms
        .lines
        .iter()
        .enumerate()
        .filter(|(l, t)| *l != line && t.protected && only_for_the_rule(of(&decision.after, *l), t.total()));
    let kept: Vec<String> = protected.map(|(l, _)| core.lines.name(l).to_string()).collect();
    let kept = (!kept.is_empty()).then(|| {
        format!(
            "set spec.disruption.allowOutage: true in the pool, because the last GPU with {} is in use and kept",
            kept.join(", ")
        )
    });
    let moving = best.and_then(|(.., id)| tell(core, snapshot, id, line));
    match (moving, kept) {
        (Some(moving), Some(kept)) => Some(format!("{moving}, or {kept}")),
        (moving, kept) => moving.or(kept),
    }
}

/// Do devices stay only because the last GPU with them is in use? Nobody is guaranteed any, or there is just one.
fn only_for_the_rule(devices: i64, guaranteed: i64) -> bool {
    devices == 1 || (devices > 1 && guaranteed == 0)
}

fn offered(rig: &Rig, line: Line) -> Option<(&Offer, usize)> {
    let offer = rig.offers.iter().find(|o| o.line == line)?;
    Some((offer, offer.mig?))
}

/// Devices in use between these memory slices.
fn in_the_way<'a>(
    gpu: &'a Gpu,
    rig: &'a Rig,
    start: i32,
    size: i32,
) -> impl Iterator<Item = (i32, &'a super::model::InUse)> {
    gpu.used.iter().map(|used| (used.start, used)).filter(move |(s, used)| {
        let length =
            used.profile.as_deref().and_then(|p| rig.board.profile(p)).map_or(rig.board.memory_slices, |p| p.size);
        *s < start + size && start < s + length
    })
}

/// The start with the fewest devices in use in the way, and the memory slices needed. Where devices of the same profile are in the
/// way nothing is won by moving them.
fn easiest(core: &Core, gpu: &Gpu, rig: &Rig, (line, profile): (Line, usize)) -> Option<(i32, i32)> {
    let profile = rig.board.profiles.get(profile)?;
    let same = |start: i32| {
        in_the_way(gpu, rig, start, profile.size).any(|(_, used)| core.lines.by_resource(&used.resource) == Some(line))
    };
    let starts = profile.starts.iter().copied().filter(|start| !same(*start));
    let starts = starts.map(|start| (in_the_way(gpu, rig, start, profile.size).count(), start));
    starts.min().map(|(_, start)| (start, profile.size))
}

fn tell(core: &Core, snapshot: &Snapshot, id: u32, line: Line) -> Option<String> {
    let entry = core.gpus.get(id as usize)?;
    let node = core.nodes.get(entry.node)?;
    let gpu = snapshot.nodes.get(&node.name)?.gpus.get(&entry.uuid)?;
    let (_, _, rig) = core.forms.of(entry.kind?)?;
    let (_, profile) = offered(rig, line)?;
    let (start, size) = easiest(core, gpu, rig, (line, profile))?;
    let who: Vec<String> = in_the_way(gpu, rig, start, size)
        .map(|(s, used)| match &used.pod {
            Some(pod) => format!("pod {pod}"),
            None if !used.stranger => format!("whoever has just got the device at {s}"),
            None => format!("the process at {s} that no pod explains"),
        })
        .collect();
    let axis = rig.board.memory_slices;
    let taken = |slice: i32| in_the_way(gpu, rig, slice, 1).next().is_some();
    let mut runs: Vec<i32> = Vec::new();
    let mut run = 0;
    for slice in 0..=axis {
        if slice < axis && !taken(slice) {
            run += 1;
        } else if run > 0 {
            runs.push(run);
            run = 0;
        }
    }
    let free: i32 = runs.iter().sum();
    let split = match runs.as_slice() {
        [] => "no memory slice free".to_owned(),
        [one] => format!("{one} of {axis} memory slices free in one piece"),
        many => {
            let parts = many.iter().map(ToString::to_string).collect::<Vec<_>>().join("+");
            format!("{free} of {axis} memory slices free but split {parts}")
        }
    };
    let name = rig.board.profiles.get(profile).map(|p| p.name.as_str())?;
    Some(format!(
        "move {}: {} GPU {} has {split}, and {name} would fit at {start} then",
        who.join(" and "),
        node.name,
        gpu.index
    ))
}
