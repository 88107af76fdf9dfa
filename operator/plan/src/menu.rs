//! The layouts that one GPU may be given, each with what it gives and what it costs.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    sync::Arc,
};

use gputenancy_crds::{InstanceSpec, Layout, names};

use super::{
    lines::{Line, Lines},
    model::{Gpu, InUse, Standing},
    packing::{Item, Packing},
    rig::{Book, Rig, Way},
    terms::{add, of},
};

/// A pod without priority weighs this much; the value of a pod's priority class adds to it, a negative one takes a little.
const POD: i64 = 1000;
/// A process that no pod explains cannot be evicted: its device is taken only when nothing else will do.
const ORPHAN: i64 = 1_000_000_000_000;
/// A layout that failed on this GPU is tried again only when others cost this many GPUs more.
const FAILED: i64 = 4;

/// Where a layout comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Source {
    /// It is there, or on its way.
    Present,
    /// One of the pool's whole devices, by index of the offer.
    Whole(usize),
    /// Carved.
    Carved(Packing),
}

/// One layout for one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub source: Source,
    /// Devices by profile; and devices kept, by holder of more than guaranteed. Sorted by place.
    pub supply: Vec<(usize, i64)>,
    pub cost: Cost,
}

/// What a layout costs, most important first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Cost {
    /// Pods to evict, by weight in thousandths.
    pub evict: i64,
    /// 1 for a GPU that is touched, more when its MIG mode changes or needs a reset.
    pub touch: i64,
    /// Slices that no profile can use.
    pub strand: i64,
    /// Memory slices less than the whole of the largest block that is left.
    pub split: i64,
    /// Instances destroyed and created.
    pub steps: i64,
}

impl Cost {
    pub fn add(&mut self, other: &Self, times: i64) {
        self.evict += times * other.evict;
        self.touch += times * other.touch;
        self.strand += times * other.strand;
        self.split += times * other.split;
        self.steps += times * other.steps;
    }

    fn no_more_than(&self, other: &Self) -> bool {
        self.evict <= other.evict
            && self.touch <= other.touch
            && self.strand <= other.strand
            && self.split <= other.split
            && self.steps <= other.steps
    }
}

/// The layouts of one GPU, and of all GPUs like it.
#[derive(Debug)]
pub(super) struct Menu {
    /// The first is what the GPU has, or is on its way to; the others by cost.
    pub candidates: Vec<Candidate>,
    /// By profile: candidates that give more of it than the first, those that evict least first.
    pub giving: Vec<Vec<usize>>,
    /// By candidate: the number of what it gives more or less than the first.
    pub deltas: Vec<u32>,
}

/// Ways that give the same, keep the same and evict the same.
type Same = (usize, Vec<usize>, i64);

/// What a menu is made from.
pub(super) struct Kitchen<'a> {
    rig: &'a mut Rig,
    gpu: &'a Gpu,
    base: Option<&'a Layout>,
    /// By device in use: where it is counted when kept, if it is.
    kept: &'a [Option<usize>],
    lines: &'a Lines,
    pub book: Arc<Book>,
    /// By device in use: its bit in the book, and its weight when it goes.
    uses: Vec<(Packing, i64)>,
    /// Bits of the present instances, and how many have none.
    present: (Packing, i64),
}

/// The layout that a GPU has now, as the planner sees it: one that is not listed and is whole counts as the pool's whole
/// device, where the pool has one.
pub(super) fn base(gpu: &Gpu, rig: &Rig, lines: &Lines) -> Option<Arc<Layout>> {
    let whole = || {
        let mut offers = rig.offers.iter().filter(|o| o.mig.is_none());
        let used = gpu.used.iter().find(|u| u.start == 0).and_then(|u| lines.by_resource(&u.resource));
        let matching = offers.clone().find(|o| used == Some(o.line));
        let offer = matching.or_else(|| offers.next())?;
        Some(Layout { mig: false, instances: vec![], resource: offer.resource.clone() })
    };
    gpu.base.clone().or_else(|| whole().map(Arc::new))
}

/// Devices that a layout gives and keeps, and the weight of the pods that it evicts. What a change under way evicts was
/// decided when it began.
pub(super) fn gives(
    layout: Option<&Layout>,
    gpu: &Gpu,
    present: Option<&Layout>,
    kept: &[Option<usize>],
    lines: &Lines,
) -> (Vec<(usize, i64)>, i64) {
    let mut supply = BTreeMap::new();
    let mut more = |place: usize| *supply.entry(place).or_insert(0) += 1;
    layout.iter().flat_map(|l| resources(l)).filter_map(|r| lines.by_resource(&r)).for_each(&mut more);
    let mut evict = 0;
    for (used, kept) in gpu.used.iter().zip(kept) {
        if !stays(layout, used) {
            evict += weight(gpu, present, used);
        } else if let Some(place) = kept {
            more(*place);
        }
    }
    (supply.into_iter().collect(), evict)
}

fn weight(gpu: &Gpu, present: Option<&Layout>, used: &InUse) -> i64 {
    let decided = gpu.moving && !stays(present, used);
    match &used.pod {
        _ if decided => 0,
        Some(_) => POD + i64::from(used.priority).clamp(1 - POD, 2_000_000_000),
        None => ORPHAN,
    }
}

impl<'a> Kitchen<'a> {
    pub fn new(
        rig: &'a mut Rig,
        gpu: &'a Gpu,
        base: Option<&'a Layout>,
        kept: &'a [Option<usize>],
        lines: &'a Lines,
    ) -> Self {
        // Instances that are there may stay where they are, also those of no profile of the pool.
        let position = |name: &str| rig.board.profiles.iter().position(|p| p.name == name);
        let present = gpu.base.iter().flat_map(|b| &b.instances);
        let mut also: Vec<Item> = present
            .filter_map(|i| Some(Item { start: i.start, mig: position(&i.profile)?, resource: i.resource.clone() }))
            .collect();
        let taken: Vec<Option<Item>> = gpu
            .used
            .iter()
            .map(|used| {
                let name = used.profile.as_ref()?;
                let default = names::mig_resource(name);
                let resource = Some(used.resource.to_string()).filter(|r| *r != default);
                Some(Item { start: used.start, mig: position(name)?, resource })
            })
            .collect();
        let instances = also.len();
        also.extend(taken.iter().flatten().cloned());
        let book = rig.book(also.iter().cloned(), lines);
        let bit = |i: &Item| book.bit(i.start, i.mig, i.resource.as_deref());
        let bits: Vec<Packing> = also.iter().take(instances).map(bit).collect();
        let listed = gpu.base.as_ref().map_or(0, |b| b.instances.len());
        let unknown = listed - bits.iter().filter(|b| **b != 0).count();
        let present = (bits.iter().fold(0, |all, b| all | b), i64::try_from(unknown).unwrap_or(0));
        let weights = gpu.used.iter().map(|used| weight(gpu, base, used));
        let uses = taken.iter().map(|u| u.as_ref().map_or(0, bit)).zip(weights).collect();
        Self { rig, gpu, base, kept, lines, book, uses, present }
    }

    /// The present layout only.
    pub fn as_it_is(&mut self) -> Menu {
        Menu::new(self.present(), Vec::new(), self.lines.len())
    }

    /// Everything worth considering: of layouts that give the same and evict the same only the cheapest.
    pub fn menu(&mut self) -> Menu {
        // in any order: the menu sorts them
        let mut best: HashMap<Same, (Cost, &Way), foldhash::fast::FixedState> = HashMap::default();
        let book = Arc::clone(&self.book);
        for way in &book.ways {
            let cost = self.cost(way);
            let key = (way.supply, self.kept_by(way.packing), cost.evict);
            match best.entry(key) {
                Entry::Occupied(mut known) => {
                    let (least, first) = known.get();
                    if (&cost, way.packing) < (least, first.packing) {
                        known.insert((cost, way));
                    }
                }
                Entry::Vacant(entry) => drop(entry.insert((cost, way))),
            }
        }
        let carved = best.into_values().map(|(cost, way)| self.carved(way, cost));
        let mut rest: Vec<Candidate> = carved.collect();
        rest.extend(self.wholes());
        Menu::new(self.present(), rest, self.lines.len())
    }

    fn present(&mut self) -> Candidate {
        let (supply, evict) = gives(self.base, self.gpu, self.base, self.kept, self.lines);
        let left = self.rig.leftover(self.base);
        let failed = self.failed(self.base);
        let cost = Cost { evict, touch: failed, ..self.leaves(left, self.base.is_some_and(|b| b.mig)) };
        Candidate { source: Source::Present, supply, cost }
    }

    /// A layout that failed is not what a GPU has.
    fn failed(&self, layout: Option<&Layout>) -> i64 {
        match (&self.gpu.standing, layout) {
            (Standing::Failed(failed), Some(layout)) if **failed == *layout && self.base != Some(layout) => FAILED,
            _ => 0,
        }
    }

    pub fn wholes(&self) -> Vec<Candidate> {
        let mut wholes = Vec::new();
        for (index, offer) in self.rig.offers.iter().enumerate().filter(|(_, o)| o.mig.is_none()) {
            let layout = Layout { mig: false, instances: vec![], resource: offer.resource.clone() };
            if self.base == Some(&layout) {
                continue;
            }
            let (supply, evict) = gives(Some(&layout), self.gpu, self.base, self.kept, self.lines);
            let steps = 2 * (i64::from(self.present.0.count_ones()) + self.present.1);
            let touch = self.touch(false) + self.failed(Some(&layout));
            wholes.push(Candidate {
                source: Source::Whole(index),
                supply,
                cost: Cost { evict, touch, steps, ..Cost::default() },
            });
        }
        wholes
    }

    /// Places at which the devices in use that a way keeps are counted.
    fn kept_by(&self, packing: Packing) -> Vec<usize> {
        let kept = self.uses.iter().zip(self.kept).filter(|((bit, _), _)| packing & bit != 0);
        kept.filter_map(|(_, place)| *place).collect()
    }

    pub fn cost(&self, way: &Way) -> Cost {
        let (present, unknown) = self.present;
        let evict = self.uses.iter().filter(|(bit, _)| way.packing & bit == 0).map(|(_, weight)| weight).sum();
        let same = self.base.is_some_and(|b| b.mig) && unknown == 0 && present == way.packing;
        let mut touch = if same { 0 } else { self.touch(true) };
        if matches!(self.gpu.standing, Standing::Failed(_)) {
            touch += self.failed(Some(&self.book.layout(way.packing, &self.rig.board)));
        }
        let destroyed = i64::from((present & !way.packing).count_ones()) + unknown;
        let created = i64::from((way.packing & !present).count_ones());
        Cost { evict, touch, steps: 2 * destroyed + created, ..self.leaves(way.left, true) }
    }

    pub fn carved(&self, way: &Way, cost: Cost) -> Candidate {
        let mut supply = self.book.supplies.get(way.supply).cloned().unwrap_or_default();
        for place in self.kept_by(way.packing) {
            match supply.iter_mut().find(|(p, _)| *p == place) {
                Some((_, n)) => *n += 1,
                None => supply.push((place, 1)),
            }
        }
        supply.sort_unstable();
        Candidate { source: Source::Carved(way.packing), supply, cost }
    }

    fn leaves(&self, left: super::packing::Leftover, mig: bool) -> Cost {
        let split = if mig { self.rig.board.memory_slices - left.largest } else { 0 };
        Cost { strand: i64::from(left.memory + left.compute), split: i64::from(split), ..Cost::default() }
    }

    fn touch(&self, mig: bool) -> i64 {
        let was = self.base.is_some_and(|l| l.mig);
        1 + if mig == was { 0 } else { 1 + i64::from(self.rig.board.mode_needs_reset) }
    }

    /// The cheapest of the ways that `wanted` admits.
    pub fn cheapest(&self, wanted: impl Fn(Packing) -> bool) -> Option<Candidate> {
        let ways = self.book.ways.iter().filter(|w| wanted(w.packing));
        let (cost, way) = ways.map(|w| (self.cost(w), w)).min_by_key(|(cost, w)| (*cost, w.packing))?;
        Some(self.carved(way, cost))
    }

    /// Is it one whole device with this resource, as layouts write it?
    pub fn is_whole(&self, candidate: &Candidate, resource: Option<&str>) -> bool {
        let Source::Whole(offer) = candidate.source else { return false };
        self.rig.offers.get(offer).is_some_and(|o| o.resource.as_deref() == resource)
    }

    /// Bits of the present instances.
    pub fn present_bits(&self) -> Packing {
        self.present.0
    }
}

impl Menu {
    pub fn new(present: Candidate, mut rest: Vec<Candidate>, lines: usize) -> Self {
        rest.retain(|c| !(c.cost.touch == 0 && c.supply == present.supply && c.cost.evict == present.cost.evict));
        // no two have one source
        rest.sort_unstable_by(|a, b| a.cost.cmp(&b.cost).then_with(|| a.source.cmp(&b.source)));
        let mut giving = vec![Vec::new(); lines];
        let count = |c: &Candidate, line: Line| c.supply.iter().find(|(l, _)| *l == line).map_or(0, |(_, n)| *n);
        for (index, candidate) in rest.iter().enumerate() {
            for (line, n) in candidate.supply.iter().filter(|(line, _)| *line < lines) {
                if *n > count(&present, *line)
                    && let Some(list) = giving.get_mut(*line)
                {
                    list.push(index + 1);
                }
            }
        }
        let candidates = [present].into_iter().chain(rest).collect();
        Self { candidates, giving, deltas: Vec::new() }
    }

    /// Candidates that no other beats in everything, the present one among them.
    pub fn worthy(&self, lines: usize) -> Vec<usize> {
        let rest = || self.candidates.iter().enumerate().skip(1);
        let beaten = |index: usize, c: &Candidate| {
            rest().any(|(i, other)| i != index && other.cost.no_more_than(&c.cost) && gives_all(other, c, lines))
        };
        [0].into_iter().chain(rest().filter(|(i, c)| !beaten(*i, c)).map(|(i, _)| i)).collect()
    }

    /// Candidates of which no other gives as much at less cost: sums of costs compare as their parts do, most important first.
    pub fn leading(&self, lines: usize) -> Vec<usize> {
        let mut order: Vec<(Cost, usize)> = self.candidates.iter().enumerate().map(|(i, c)| (c.cost, i)).collect();
        order.sort_unstable();
        let mut leading: Vec<usize> = Vec::new();
        for (_, index) in order {
            let Some(candidate) = self.candidates.get(index) else { continue };
            let mut before = leading.iter().filter_map(|l| self.candidates.get(*l));
            if !before.any(|other| gives_all(other, candidate, lines)) {
                leading.push(index);
            }
        }
        leading
    }
}

/// Does `a` give at least what `b` gives, and keep the same?
fn gives_all(a: &Candidate, b: &Candidate, lines: usize) -> bool {
    let of = |c: &Candidate, place: usize| c.supply.iter().find(|(p, _)| *p == place).map_or(0, |(_, n)| *n);
    a.supply.iter().chain(&b.supply).all(|(place, _)| {
        let (a, b) = (of(a, *place), of(b, *place));
        a == b || (a > b && *place < lines)
    })
}

/// Is a device in use also a device of this layout?
pub(super) fn stays(layout: Option<&Layout>, used: &InUse) -> bool {
    match (layout, &used.profile) {
        (None, _) => true,
        (Some(l), None) => !l.mig && l.resource.as_deref().unwrap_or(names::WHOLE_GPU_RESOURCE) == &*used.resource,
        (Some(l), Some(profile)) => {
            let resource = |i: &InstanceSpec| match &i.resource {
                Some(resource) => *resource == *used.resource,
                None => names::mig_resource(&i.profile) == *used.resource,
            };
            let same = |i: &InstanceSpec| i.start == used.start && i.profile == **profile && resource(i);
            l.mig && l.instances.iter().any(same)
        }
    }
}

/// Devices in use that a layout does not have.
pub(super) fn goes<'a>(gpu: &'a Gpu, layout: Option<&Layout>) -> impl Iterator<Item = &'a InUse> {
    gpu.used.iter().filter(move |used| !stays(layout, used))
}

/// Resources of a layout's devices, one for each device.
pub(super) fn resources(layout: &Layout) -> Vec<String> {
    if layout.mig {
        layout.instances.iter().map(InstanceSpec::resource_name).collect()
    } else {
        vec![layout.resource.clone().unwrap_or_else(|| names::WHOLE_GPU_RESOURCE.to_owned())]
    }
}

/// Adds what a candidate gives to the sums, so many times.
pub(super) fn give(sums: &mut [i64], supply: &[(usize, i64)], times: i64) {
    for (place, n) in supply {
        add(sums, *place, times * n);
    }
    debug_assert!(supply.iter().all(|(place, _)| of(sums, *place) >= 0), "a sum below zero");
}
