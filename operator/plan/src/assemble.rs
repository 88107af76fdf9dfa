//! From a decision to a plan: a target for every GPU, and the numbers.

use std::{collections::BTreeMap, sync::Arc};

use gputenancy_crds::Layout;

use crate::{
    board::Leftover,
    fleet::{ClassId, Fleet, FleetGpu, GpuClass, ProfileId},
    result::{Evicted, GpuPlan, Plan, Supply, Why},
    search::{FleetDecision, Layouts, ProfileDemand, Share, Source, at},
    snapshot::{Availability, Gpu, Mode},
};
use gputenancy_crds::ids::ProfileName;

/// What GPUs of a class are given.
struct Target {
    layout: Option<Arc<Layout>>,
    /// Devices in use that it removes, as indices into the GPU's list.
    removed: Vec<usize>,
    /// `None`: the GPU keeps its layout.
    why: Option<Why>,
}

pub(crate) fn plan(layouts: &mut Layouts<'_>, decision: &FleetDecision) -> Plan {
    let fleet = layouts.fleet;
    let usable: BTreeMap<ProfileId, i64> = decision.objective.usable(&decision.after).into_iter().enumerate().collect();
    let scarce = decision.objective.scarce(&decision.after);
    let scarce = usable.into_iter().filter(|(profile, _)| scarce.contains(profile)).collect();
    let mut plan = Plan {
        profiles: profiles(fleet, decision),
        tenants: fleet.demand.served_tenants(&fleet.profiles, &scarce),
        searched: decision.searched,
        ..Plan::default()
    };
    let scarce = decision.objective.scarce(&decision.before);
    let scarce: Vec<(ProfileId, ProfileName)> = scarce.into_iter().map(|p| (p, fleet.profiles.name(p))).collect();
    let mut targets: Vec<Option<Arc<Target>>> = vec![None; fleet.gpus.len()];
    for (id, class, _) in fleet.classes() {
        let stranded = plan.stranded.entry(class.pool.clone()).or_default();
        let mut add = |left: Leftover, count: usize| {
            let count = i32::try_from(count).unwrap_or(i32::MAX);
            stranded.compute += count * left.compute;
            stranded.memory += count * left.memory;
        };
        let shares = decision.shares.get(&id).map(Vec::as_slice).unwrap_or_default();
        let changes = shares.iter().filter(|(c, _)| c.source != Source::Present);
        let mut members = order(fleet, class, shares).into_iter();
        for share in changes {
            let target = target(layouts, (id, class), share, &scarce);
            add(layouts.leftover(class, target.layout.as_deref()), share.1);
            let target = Arc::new(target);
            for gpu in members.by_ref().take(share.1) {
                targets.get_mut(gpu).into_iter().for_each(|t| *t = Some(Arc::clone(&target)));
            }
        }
        let (layout, removed) = (class.base.clone(), class.removed(class.base.as_deref()));
        let kept = Arc::new(Target { layout, removed, why: None });
        add(layouts.leftover(class, class.base.as_deref()), members.len());
        for gpu in members {
            targets.get_mut(gpu).into_iter().for_each(|t| *t = Some(Arc::clone(&kept)));
        }
    }
    let gpus = fleet.gpus.iter().zip(targets);
    plan.gpus = gpus.map(|(gpu, target)| (gpu.key.clone(), gpu_plan(fleet, gpu, target.as_deref()))).collect();
    plan
}

fn profiles(fleet: &Fleet<'_>, decision: &FleetDecision) -> BTreeMap<ProfileName, Supply> {
    let count = |n: i64| u32::try_from(n).unwrap_or(0);
    let usable = decision.objective.usable(&decision.before);
    let supply = |(profile, demand): (ProfileId, &ProfileDemand)| {
        let supply = Supply {
            guaranteed: count(demand.total()),
            before: count(at(&decision.before, profile)),
            usable: count(at(&usable, profile)),
            after: count(at(&decision.after, profile)),
        };
        (fleet.profiles.name(profile), supply)
    };
    decision.objective.profiles.iter().enumerate().map(supply).collect()
}

/// The GPUs of a class, those first that change.
fn order(fleet: &Fleet<'_>, class: &GpuClass<'_>, shares: &[Share]) -> Vec<usize> {
    let changes = shares.iter().filter(|(c, _)| c.source != Source::Present);
    let slots = changes.flat_map(|(c, _)| c.supply.iter().map(|(slot, _)| *slot));
    let mut gained: Vec<ProfileId> = slots.filter(|slot| *slot < fleet.profiles.len()).collect();
    gained.sort_unstable();
    gained.dedup();
    if shares.is_empty() { class.members.clone() } else { fleet.spread(class, &gained) }
}

fn target(
    layouts: &mut Layouts<'_>,
    (id, class): (ClassId, &GpuClass<'_>),
    (candidate, _): &Share,
    scarce: &[(ProfileId, ProfileName)],
) -> Target {
    let layout = layouts.layout(id, candidate.source).map(Arc::new);
    let gives = |profile: &ProfileId| candidate.supply.iter().any(|(slot, n)| slot == profile && *n > 0);
    let needs: Vec<ProfileName> = scarce.iter().filter(|(p, _)| gives(p)).map(|(_, name)| name.clone()).collect();
    let why = if needs.is_empty() { without_need(class) } else { Why::Needed(needs.into()) };
    Target { removed: class.removed(layout.as_deref()), layout, why: Some(why) }
}

fn without_need(class: &GpuClass<'_>) -> Why {
    match (&class.pool_rules.mode, &class.gpu.base) {
        (Mode::Fixed(_), _) => Why::Fixed,
        (_, None) => Why::Spare,
        _ => Why::Policy,
    }
}

fn gpu_plan(fleet: &Fleet<'_>, FleetGpu { gpu, pool, class, .. }: &FleetGpu<'_>, target: Option<&Target>) -> GpuPlan {
    let (pool, index) = ((*pool).clone(), gpu.index);
    let Some((class, target)) = class.and_then(|id| fleet.classes.get(id)).zip(target) else {
        let why = match gpu.availability {
            Availability::Unavailable(why) => why,
            _ => "its pool or its board is not known",
        };
        return GpuPlan { pool, index, why: Why::LeftAlone(why), ..GpuPlan::default() };
    };
    let layout = target.layout.clone();
    let evicts: Vec<Evicted> = target.removed.iter().filter_map(|index| Evicted::of(gpu.used.get(*index)?)).collect();
    let rank = rank(gpu, layout.as_deref(), &evicts);
    // a GPU that is not listed yet is listed even if it keeps its layout, and one that keeps its shares follows their profile
    let changed = gpu.base != layout;
    let why = match &target.why {
        Some(why) => why.clone(),
        None if changed => without_need(class),
        None => Why::Kept,
    };
    let quiet = target.why.is_none() && !changed && target.removed.is_empty();
    let from = gpu.base.clone().filter(|_| !quiet);
    GpuPlan { pool, index, target: layout, changed, rank, evicts, from, why }
}

/// Changes without evictions come first; one that failed before comes last, so that it delays no other.
fn rank(gpu: &Gpu, target: Option<&Layout>, evicts: &[Evicted]) -> u8 {
    match (gpu.failed(), target) {
        (Some(failed), Some(layout)) if **failed == *layout => 2,
        _ => u8::from(!evicts.is_empty()),
    }
}
