//! The layouts that one GPU may be given, each with what it gives and what it costs.

use std::collections::BTreeMap;

use gputenancy_crds::{InstanceSpec, Layout};

use super::{
    board::Board,
    demand::{Demand, Line, Offer, add},
    model::{Gpu, InUse, Standing},
    packing::{Item, Leftovers, Packing, packings},
};

/// A process that no pod explains cannot be evicted: its device is taken only when nothing else will do.
const ORPHAN: u32 = 100;
/// A layout that failed on this GPU is tried again only when others cost this many GPUs more.
const FAILED: u32 = 4;

/// One layout for one GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Candidate {
    /// `None`: the GPU stays unlisted.
    pub layout: Option<Layout>,
    /// Devices by profile; and devices kept, by holder of more than guaranteed.
    pub supply: Vec<(Line, i64)>,
    pub cost: Cost,
}

/// What a layout costs, most important first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cost {
    /// Pods to evict.
    pub evict: u32,
    /// 1 for a GPU that is touched, more when its MIG mode changes or needs a reset.
    pub touch: u32,
    /// Slices that no profile can use.
    pub strand: u32,
    /// Memory slices less than the whole of the largest block that is left.
    pub split: u32,
    /// Instances destroyed and created.
    pub steps: u32,
}

impl Cost {
    fn no_more_than(self, other: Self) -> bool {
        self.evict <= other.evict
            && self.touch <= other.touch
            && self.strand <= other.strand
            && self.split <= other.split
            && self.steps <= other.steps
    }
}

/// The layouts of one GPU, and of all GPUs like it.
pub(super) struct Menu {
    /// The first is what the GPU has, or is on its way to.
    pub candidates: Vec<Candidate>,
}

/// What a menu is made from.
pub(super) struct Kitchen<'a> {
    pub board: &'a Board,
    pub offers: &'a [Offer],
    pub gpu: &'a Gpu,
    pub demand: &'a Demand,
    items: Vec<Item>,
}

impl<'a> Kitchen<'a> {
    pub fn new(board: &'a Board, offers: &'a [Offer], gpu: &'a Gpu, demand: &'a Demand) -> Self {
        let mut items = Vec::new();
        for offer in offers {
            let profile = offer.mig.and_then(|mig| Some((mig, board.profiles.get(mig)?)));
            for (mig, start) in profile.into_iter().flat_map(|(mig, p)| p.starts.iter().map(move |s| (mig, *s))) {
                items.push(Item { start, mig, resource: offer.resource.clone() });
            }
        }
        // Instances that are there may stay where they are, also those of no profile of the pool.
        for instance in gpu.base.iter().flat_map(|b| &b.instances) {
            if let Some(mig) = board.profiles.iter().position(|p| p.name == instance.profile) {
                items.push(Item { start: instance.start, mig, resource: instance.resource.clone() });
            }
        }
        for (start, used) in &gpu.used {
            let mig = used.profile.as_ref().and_then(|name| board.profiles.iter().position(|p| p.name == *name));
            if let (Some(mig), Some(name)) = (mig, &used.profile) {
                let default = gputenancy_crds::names::mig_resource(name);
                let resource = Some(used.resource.clone()).filter(|r| *r != default);
                items.push(Item { start: *start, mig, resource });
            }
        }
        items.sort();
        items.dedup();
        Self { board, offers, gpu, demand, items }
    }

    /// The layout that the GPU has now, as the planner sees it: one that is not listed and is whole counts as the pool's whole
    /// device, where the pool has one.
    pub fn base(&self) -> Option<Layout> {
        let whole = || {
            let mut offers = self.offers.iter().filter(|o| o.mig.is_none());
            let used = self.gpu.used.get(&0).map(|u| u.resource.as_str());
            let matching =
                offers.clone().find(|o| used.is_some() && self.demand.by_resource(used.unwrap_or("")) == Some(o.line));
            let offer = matching.or_else(|| offers.next())?;
            Some(Layout { mig: false, instances: vec![], resource: offer.resource.clone() })
        };
        self.gpu.base.clone().or_else(whole)
    }

    /// The present layout only.
    pub fn as_it_is(&self) -> Menu {
        let base = self.base();
        let mut leftovers = Leftovers::of(self.board, &self.items);
        Menu { candidates: vec![self.candidate(base.clone(), base.as_ref(), &mut leftovers)] }
    }

    /// Everything worth considering: a layout that gives no more and costs no less than another is left out.
    pub fn menu(&self) -> Menu {
        let all = self.all();
        let mut kept: Vec<Candidate> = Vec::new();
        let mut rest = all.into_iter();
        kept.extend(rest.next());
        let mut best: BTreeMap<(Vec<(Line, i64)>, u32), Candidate> = BTreeMap::new();
        for candidate in rest {
            let key = (candidate.supply.clone(), candidate.cost.evict);
            match best.get(&key) {
                Some(known) if (known.cost, &known.layout) <= (candidate.cost, &candidate.layout) => {}
                _ => {
                    best.insert(key, candidate);
                }
            }
        }
        let rest: Vec<Candidate> = best.into_values().collect();
        let beaten = |c: &Candidate| {
            rest.iter().any(|other| other != c && other.cost.no_more_than(c.cost) && self.gives(other, c))
        };
        kept.extend(rest.iter().filter(|c| !beaten(c)).cloned());
        Menu { candidates: kept }
    }

    /// Every layout of this GPU, the present one first.
    pub fn all(&self) -> Vec<Candidate> {
        let base = self.base();
        let mut leftovers = Leftovers::of(self.board, &self.items);
        let mut all = vec![self.candidate(base.clone(), base.as_ref(), &mut leftovers)];
        for offer in self.offers.iter().filter(|o| o.mig.is_none()) {
            let layout = Layout { mig: false, instances: vec![], resource: offer.resource.clone() };
            all.push(self.candidate(Some(layout), base.as_ref(), &mut leftovers));
        }
        if self.board.memory_slices > 0 && self.items.iter().any(|i| self.offers.iter().any(|o| o.mig == Some(i.mig))) {
            for packing in packings(self.board, &self.items) {
                let layout = Layout { mig: true, instances: self.instances(&packing), resource: None };
                all.push(self.candidate(Some(layout), base.as_ref(), &mut leftovers));
            }
        }
        all
    }

    fn instances(&self, packing: &Packing) -> Vec<InstanceSpec> {
        let items = packing.iter().filter_map(|i| self.items.get(usize::from(*i)));
        let name = |mig: usize| self.board.profiles.get(mig).map(|p| p.name.clone()).unwrap_or_default();
        items.map(|i| InstanceSpec { start: i.start, profile: name(i.mig), resource: i.resource.clone() }).collect()
    }

    fn candidate(&self, layout: Option<Layout>, base: Option<&Layout>, leftovers: &mut Leftovers<'_>) -> Candidate {
        let going: Vec<i32> = goes(self.gpu, layout.as_ref()).map(|(start, _)| start).collect();
        let evict = goes(self.gpu, layout.as_ref()).map(|(_, u)| if u.pod.is_some() { 1 } else { ORPHAN }).sum();
        let mut supply = self.demand.sums();
        for resource in layout.iter().flat_map(resources) {
            if let Some(line) = self.demand.by_resource(&resource) {
                add(&mut supply, line, 1);
            }
        }
        for (_, used) in self.gpu.used.iter().filter(|(start, _)| !going.contains(start)) {
            if let Some(place) = self.demand.kept_at(used) {
                add(&mut supply, place, 1);
            }
        }
        let (strand, split) = self.leftover(layout.as_ref(), leftovers);
        let cost = Cost {
            evict,
            touch: self.touch(layout.as_ref(), base),
            strand,
            split,
            steps: steps(layout.as_ref(), base),
        };
        Candidate { layout, supply: supply.into_iter().enumerate().filter(|(_, n)| *n != 0).collect(), cost }
    }

    /// Does `a` give at least what `b` gives, and keep the same?
    fn gives(&self, a: &Candidate, b: &Candidate) -> bool {
        let of = |c: &Candidate, line: Line| c.supply.iter().find(|(l, _)| *l == line).map_or(0, |(_, n)| *n);
        a.supply.iter().chain(&b.supply).all(|(place, _)| {
            let (a, b) = (of(a, *place), of(b, *place));
            a == b || (a > b && *place < self.demand.names.len())
        })
    }

    fn leftover(&self, layout: Option<&Layout>, leftovers: &mut Leftovers<'_>) -> (u32, u32) {
        let Some(layout) = layout.filter(|l| l.mig) else { return (0, 0) };
        let index = |i: &InstanceSpec| {
            let name = self.board.profiles.iter().position(|p| p.name == i.profile)?;
            let item = self.items.iter().position(|item| item.start == i.start && item.mig == name)?;
            u16::try_from(item).ok()
        };
        let packing: Packing = layout.instances.iter().filter_map(index).collect();
        let left = leftovers.after(&self.items, &packing);
        let split = self.board.memory_slices - left.largest;
        ((left.memory + left.compute).unsigned_abs(), split.unsigned_abs())
    }

    fn touch(&self, layout: Option<&Layout>, base: Option<&Layout>) -> u32 {
        if layout == base {
            return 0;
        }
        let was = base.is_some_and(|l| l.mig);
        let mode = if layout.is_some_and(|l| l.mig) == was { 0 } else { 1 + u32::from(self.board.mode_needs_reset) };
        let failed = matches!((&self.gpu.standing, layout), (Standing::Failed(f), Some(l)) if f == l);
        1 + mode + if failed { FAILED } else { 0 }
    }
}

/// Devices in use that a layout does not have.
pub(super) fn goes<'a>(gpu: &'a Gpu, layout: Option<&Layout>) -> impl Iterator<Item = (i32, &'a InUse)> {
    let stays = move |start: i32, used: &InUse| match (layout, &used.profile) {
        (None, _) => true,
        (Some(l), None) => {
            !l.mig && l.resource.as_deref().unwrap_or(gputenancy_crds::names::WHOLE_GPU_RESOURCE) == used.resource
        }
        (Some(l), Some(profile)) => l
            .instances
            .iter()
            .any(|i| l.mig && i.start == start && i.profile == *profile && i.resource_name() == used.resource),
    };
    gpu.used.iter().filter(move |(start, used)| !stays(**start, used)).map(|(start, used)| (*start, used))
}

/// Resources of a layout's devices, one for each device.
pub(super) fn resources(layout: &Layout) -> Vec<String> {
    if layout.mig {
        layout.instances.iter().map(InstanceSpec::resource_name).collect()
    } else {
        vec![layout.resource.clone().unwrap_or_else(|| gputenancy_crds::names::WHOLE_GPU_RESOURCE.to_owned())]
    }
}

fn steps(layout: Option<&Layout>, base: Option<&Layout>) -> u32 {
    let instances = |l: Option<&Layout>| l.map(|l| l.instances.clone()).unwrap_or_default();
    let (new, old) = (instances(layout), instances(base));
    let destroyed = old.iter().filter(|i| !new.contains(i)).count();
    let created = new.iter().filter(|i| !old.contains(i)).count();
    u32::try_from(2 * destroyed + created).unwrap_or(u32::MAX)
}
