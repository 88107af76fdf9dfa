//! What the plan says of each GPU: written for those that are given something else, and kept for those that are given the same
//! as in the plan before.

use std::{collections::BTreeMap, sync::Arc};

use gputenancy_crds::Layout;

use super::{
    decide::{Decision, Share},
    fleet::Core,
    forms::{Form, GpuId},
    menu::{Candidate, Source, goes},
    model::{Gpu, InUse, Mode, Node, Snapshot, Standing},
    name::{GpuKey, ProfileName},
    outcome::{Evicted, GpuPlan, Why},
    rig::Rig,
    terms::of,
};

/// What GPUs of a kind are given.
#[derive(Debug, Default)]
pub(super) struct Shown {
    /// The kind's members when this was written.
    version: u64,
    given: Vec<Given>,
    /// The GPUs, in the order of what they are given.
    ids: Vec<GpuId>,
}

/// A layout for so many GPUs.
#[derive(Debug, PartialEq)]
struct Given {
    source: Source,
    count: usize,
    layout: Arc<Layout>,
    why: Why,
}

impl Core {
    /// Writes what is decided for single GPUs into the plan.
    pub fn show(&mut self, snapshot: &Snapshot, decision: &Decision) {
        let short = short(self, decision);
        let mut before = std::mem::take(&mut self.shown);
        let (mut fresh, mut stale) = (BTreeMap::new(), Vec::new());
        for (kind, shares) in &decision.shares {
            let given: Vec<Given> = shares.iter().filter_map(|share| self.given(*kind, share, &short)).collect();
            let version = self.forms.kinds.get(*kind).map_or(0, |k| k.version);
            match before.remove(kind) {
                Some(known) if known.version == version && known.given == given => {
                    self.shown.insert(*kind, known);
                    continue;
                }
                known => stale.extend(known.into_iter().flat_map(|k| k.ids)),
            }
            let ids = self.spread(*kind, shares).into_iter().take(given.iter().map(|g| g.count).sum()).collect();
            fresh.insert(*kind, Shown { version, given, ids });
        }
        stale.extend(before.into_values().flat_map(|k| k.ids));
        for id in stale {
            if let Some(plan) = self.as_it_is(id, snapshot) {
                self.plan.gpus.set(plan);
            }
        }
        for (kind, shown) in fresh {
            let mut ids = shown.ids.iter();
            for given in &shown.given {
                for id in ids.by_ref().take(given.count) {
                    if let Some(plan) = self.changed(snapshot, (kind, *id), given) {
                        self.plan.gpus.set(plan);
                    }
                }
            }
            self.shown.insert(kind, shown);
        }
    }

    /// What a share gives, if it changes anything.
    fn given(&mut self, kind: usize, (candidate, count): &Share, short: &[Option<ProfileName>]) -> Option<Given> {
        if candidate.source == Source::Present {
            return None;
        }
        let (layout, _) = self.forms.layout(kind, candidate, &self.lines)?;
        let (_, form, rig) = self.forms.of(kind)?;
        let why = match needs(candidate, short) {
            Some(needs) => Why::Needed(needs),
            None => without_need(rig, &form.gpu),
        };
        Some(Given { source: candidate.source, count: *count, layout, why })
    }

    /// A GPU that is given another layout.
    fn changed(&self, snapshot: &Snapshot, (kind, id): (usize, GpuId), given: &Given) -> Option<(GpuKey, GpuPlan)> {
        let entry = self.gpus.get(id as usize)?;
        let key = GpuKey { node: self.nodes.get(entry.node)?.name.clone(), uuid: entry.uuid.clone() };
        let gpu = snapshot.nodes.get(&key.node)?.gpus.get(&key.uuid)?;
        let (_, _, rig) = self.forms.of(kind)?;
        let layout = &given.layout;
        let evicts = evicts(gpu, Some(layout));
        let plan = GpuPlan {
            pool: rig.pool_name.clone(),
            index: gpu.index,
            target: Some(Arc::clone(layout)),
            changed: gpu.base.as_ref() != Some(layout),
            rank: rank(gpu, Some(layout), &evicts),
            from: gpu.base.clone(),
            why: given.why.clone(),
            evicts,
        };
        Some((key, plan))
    }
}

/// A GPU that is no supply keeps what its spec says.
pub(super) fn left_alone(node: &Node, gpu: &Gpu) -> GpuPlan {
    let why = match gpu.standing {
        Standing::Away(why) => why,
        _ => "its pool or its board is not known",
    };
    GpuPlan { pool: node.pool.clone(), index: gpu.index, why: Why::LeftAlone(why), ..GpuPlan::default() }
}

/// The rank of a GPU that stays as it is, is listed, and has no pod that must go: there is nothing to say about it.
pub(super) fn quiet(gpu: &Gpu, base: Option<&Layout>) -> Option<u8> {
    let said = base.is_some() != gpu.base.is_some() || goes(gpu, base).next().is_some();
    (!said).then(|| rank(gpu, base, &[]))
}

/// A GPU that stays as it is. One that is not listed yet is taken over.
pub(super) fn kept(form: &Form, rig: &Rig, gpu: &Gpu) -> GpuPlan {
    let (pool, target) = (rig.pool_name.clone(), form.base.clone());
    if let Some(rank) = form.quiet {
        return GpuPlan { pool, index: gpu.index, target, rank, ..GpuPlan::default() };
    }
    let evicts = evicts(gpu, form.base.as_deref());
    let changed = form.base.is_some() != gpu.base.is_some();
    let rank = rank(gpu, form.base.as_deref(), &evicts);
    let why = if changed { without_need(rig, gpu) } else { Why::Kept };
    GpuPlan { pool, index: gpu.index, target, changed, rank, evicts, from: gpu.base.clone(), why }
}

fn without_need(rig: &Rig, gpu: &Gpu) -> Why {
    match (&rig.pool.mode, &gpu.base) {
        (Mode::Fixed(_), _) => Why::Written,
        (_, None) => Why::Spare,
        _ => Why::Policy,
    }
}

fn evicts(gpu: &Gpu, target: Option<&Layout>) -> Vec<Evicted> {
    goes(gpu, target).filter_map(InUse::evicted).collect()
}

/// Changes that move nobody come first; one that was tried and failed comes last, so that it holds up no other.
fn rank(gpu: &Gpu, target: Option<&Layout>, evicts: &[Evicted]) -> u8 {
    match (&gpu.standing, target) {
        (Standing::Failed(failed), Some(layout)) if **failed == *layout => 2,
        _ => u8::from(!evicts.is_empty()),
    }
}

/// By profile: its name, where fewer exist than are guaranteed.
fn short(core: &Core, decision: &Decision) -> Vec<Option<ProfileName>> {
    let beyond = decision.terms.beyond(&decision.before);
    let lines = decision.terms.lines.iter().enumerate();
    let lacks = |line: usize, total: i64| of(&decision.before, line) - of(&beyond, line) < total;
    lines.map(|(line, terms)| lacks(line, terms.total()).then(|| core.lines.name(line))).collect()
}

/// The profiles that a change is for.
fn needs(candidate: &Candidate, short: &[Option<ProfileName>]) -> Option<Arc<[ProfileName]>> {
    let gives = |line: usize| candidate.supply.iter().any(|(l, n)| *l == line && *n > 0);
    let lines = short.iter().enumerate().filter_map(|(line, name)| Some((line, name.as_ref()?)));
    let needs: Vec<ProfileName> = lines.filter(|(line, _)| gives(*line)).map(|(_, name)| name.clone()).collect();
    (!needs.is_empty()).then(|| needs.into())
}
