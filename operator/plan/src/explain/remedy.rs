//! A remedy for demand that is not served: the GPU on which the fewest devices are in the way, and their pods.

use crate::{
    fleet::{BoardOptions, Fleet, ProfileId, Rule},
    search::{FleetDecision, at},
    snapshot::{Gpu, InUse},
};

/// Most classes that are considered.
const CLASSES: usize = 64;

/// Remedies against the shortage of a profile.
pub(super) struct Remedy {
    /// The pods to move.
    pub moves: Option<String>,
    /// The field to set.
    pub field: Option<String>,
}

/// Finds remedies against the shortage of a profile, each as the end of a sentence.
pub(super) fn remedy(fleet: &Fleet<'_>, decision: &FleetDecision, profile: ProfileId) -> Remedy {
    let unchanged =
        fleet.classes().filter(|(id, class, _)| class.rule == Rule::Demand && !decision.shares.contains_key(id));
    let starts = unchanged.filter_map(|(_, class, options)| {
        let (blocked, start) = easiest(fleet, class.gpu, options, profile)?;
        Some((blocked, start, *class.members.first()?))
    });
    let best = starts.take(CLASSES).filter(|(blocked, ..)| *blocked > 0).min();
    let eviction = best.and_then(|(_, start, gpu)| describe(fleet, gpu, start, profile));
    let protected = decision.objective.profiles.iter().enumerate().filter(|(other, demand)| {
        let devices = at(&decision.after, *other);
        // kept only because the last GPU with it is in use: one device is left, or more without a guarantee
        *other != profile && demand.protected && (devices == 1 || (devices > 1 && demand.total() == 0))
    });
    let kept: Vec<String> = protected.map(|(other, _)| fleet.profiles.name(other).to_string()).collect();
    let kept = (!kept.is_empty()).then(|| {
        format!(
            "set spec.disruption.allowOutage: true in the pool, because the last GPU with {} is in use and kept",
            kept.join(", ")
        )
    });
    Remedy { moves: eviction, field: kept }
}

/// Devices in use that cover some of these memory slices.
fn in_the_way<'a>(
    gpu: &'a Gpu,
    options: &'a BoardOptions<'_>,
    start: i32,
    size: i32,
) -> impl Iterator<Item = &'a InUse> {
    let length = |used: &InUse| {
        let profile = used.profile.as_deref().and_then(|p| options.board.profile(p));
        profile.map_or(options.board.memory_slices, |p| p.size)
    };
    gpu.used.iter().filter(move |used| used.memory_start() < start + size && start < used.memory_start() + length(used))
}

/// The start with the fewest devices in use in the way, and how many these are. To evict devices of the same profile would not help.
fn easiest(fleet: &Fleet<'_>, gpu: &Gpu, options: &BoardOptions<'_>, profile: ProfileId) -> Option<(usize, i32)> {
    let mig = options.board.profiles.get(options.offer(profile)?.mig?)?;
    let same = |used: &InUse| fleet.profiles.of_device(&used.resource, used.profile.as_deref()) == Some(profile);
    let starts = mig.starts.iter().filter(|start| !in_the_way(gpu, options, **start, mig.size).any(same));
    starts.map(|start| (in_the_way(gpu, options, *start, mig.size).count(), *start)).min()
}

fn describe(fleet: &Fleet<'_>, id: usize, start: i32, profile: ProfileId) -> Option<String> {
    let gpu = fleet.gpus.get(id)?;
    let (_, options) = fleet.class(gpu.class?)?;
    let mig = options.board.profiles.get(options.offer(profile)?.mig?)?;
    let holder = |used: &InUse| match &used.pod {
        Some(pod) => format!("pod {pod}"),
        None if !used.unattributed => format!("the pod that was just allocated the device at {}", used.start),
        None => format!("the unattributed process at {}", used.start),
    };
    let holders: Vec<String> = in_the_way(gpu.gpu, options, start, mig.size).map(holder).collect();
    let axis = options.board.memory_slices;
    let taken: Vec<bool> = (0..axis).map(|slice| in_the_way(gpu.gpu, options, slice, 1).next().is_some()).collect();
    let blocks: Vec<usize> = taken.split(|taken| *taken).map(<[bool]>::len).filter(|n| *n > 0).collect();
    let free = match blocks.as_slice() {
        [] => "no memory slice free".to_owned(),
        [one] => format!("{one} of {axis} memory slices free in one piece"),
        many => {
            let parts = many.iter().map(ToString::to_string).collect::<Vec<_>>().join("+");
            format!("{} of {axis} memory slices free but split {parts}", many.iter().sum::<usize>())
        }
    };
    Some(format!(
        "move {}: {} GPU {} has {free}, and {} would fit at {start} then",
        holders.join(" and "),
        gpu.key.node,
        gpu.gpu.index,
        mig.name
    ))
}
