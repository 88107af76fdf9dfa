//! Builds the candidate layouts of classes of GPUs. What classes have in common is made once.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use gputenancy_crds::{InstanceSpec, Layout, Sharing, SharingMode, names};

use super::{
    candidates::{Candidate, CandidateLayouts, Cost, Source},
    shares::{self, Extent},
    table::{LayoutTable, Row},
};
use crate::{
    board::{Item, Leftover, Leftovers, MAX_ITEMS, Packing, chosen},
    fleet::{BoardOptions, ClassId, Devices, Fleet, GpuClass, Likeness, ProfileId, add_one, supplied, weight, whole},
    snapshot::InUse,
};

/// A layout that failed on this GPU is chosen again only when others cost this many GPUs more.
const FAILED: i64 = 4;

/// Layout tables and candidates made so far.
pub(crate) struct Layouts<'a> {
    pub fleet: &'a Fleet<'a>,
    /// By board options.
    leftovers: Vec<Leftovers>,
    tables: HashMap<(usize, Vec<Item>), Arc<LayoutTable>>,
    candidates: HashMap<&'a Likeness<'a>, Arc<CandidateLayouts>>,
    /// Differences between devices of candidates, numbered.
    pub differences: HashMap<Devices, usize>,
}

impl<'a> Layouts<'a> {
    pub fn of(fleet: &'a Fleet<'a>) -> Self {
        let leftovers = |o: &BoardOptions<'_>| Leftovers::of(o.board, o.offers.iter().filter_map(|o| o.mig));
        Self {
            fleet,
            leftovers: fleet.options.iter().map(leftovers).collect(),
            tables: HashMap::new(),
            candidates: HashMap::new(),
            differences: HashMap::new(),
        }
    }

    /// The slices that a layout leaves over and that no profile of the pool can use; nothing without MIG.
    pub fn leftover(&mut self, class: &GpuClass<'_>, layout: Option<&Layout>) -> Leftover {
        let options = class.likeness.options;
        let of = self.fleet.options.get(options).zip(self.leftovers.get_mut(options)).zip(layout.filter(|l| l.mig));
        let Some(((options, leftovers), layout)) = of else { return Leftover::default() };
        let shape = |i: &InstanceSpec| options.board.profile(&i.profile).map(|p| (i.start, p.size, p.slices));
        leftovers.after(layout.instances.iter().filter_map(shape))
    }

    /// The layouts that a pool offers on a board on which these items exist already.
    fn table(&mut self, options_id: usize, existing: impl IntoIterator<Item = Item>) -> Option<Arc<LayoutTable>> {
        let options = self.fleet.options.get(options_id)?;
        let mut items: Vec<Item> = existing.into_iter().collect();
        for (offer, mig) in options.offers.iter().filter_map(|o| Some((o, o.mig?))) {
            let starts = options.board.profiles.get(mig).map(|p| p.starts.as_slice()).unwrap_or_default();
            let item =
                |start: &i32| Item { start: *start, mig, resource: offer.resource.clone(), replicas: offer.replicas };
            items.extend(starts.iter().map(item));
        }
        items.sort();
        items.dedup();
        items.truncate(MAX_ITEMS);
        let key = (options_id, items);
        if let Some(known) = self.tables.get(&key) {
            return Some(Arc::clone(known));
        }
        let leftovers = self.leftovers.get_mut(options_id)?;
        let table = Arc::new(LayoutTable::of(key.1.clone(), options, &self.fleet.profiles, leftovers));
        self.tables.insert(key, Arc::clone(&table));
        Some(table)
    }

    pub fn builder(&mut self, class: ClassId) -> Option<CandidateBuilder<'a>> {
        let fleet = self.fleet;
        let (class, options) = fleet.class(class)?;
        // instances that exist may stay, also those of no profile of the pool
        let present = class.gpu.base.iter().zip(&class.base).filter(|(listed, _)| listed.mig);
        let present = present.flat_map(|(_, refreshed)| &refreshed.instances);
        let item = |start: i32, profile: &str, resource: Option<String>, replicas: Option<i32>| {
            Some(Item { start, mig: options.board.position(profile)?, resource, replicas })
        };
        let listed: Vec<Option<Item>> =
            present.map(|i| item(i.start, &i.profile, i.resource.clone(), i.replicas)).collect();
        // an instance in use; a time-slice in use is of one that is listed
        let in_use = |used: &InUse| {
            let profile = used.profile.as_ref()?;
            let resource = Some(used.resource.to_string()).filter(|r| *r != names::mig_resource(profile));
            item(used.start, profile, resource, None)
        };
        let used: Vec<Option<Item>> = class.gpu.used.iter().map(|used| in_use(used).filter(|_| !used.share)).collect();
        let table = self.table(class.likeness.options, listed.iter().chain(&used).flatten().cloned())?;
        let bits = |items: &[Option<Item>]| -> Vec<Packing> {
            items.iter().map(|i| i.as_ref().map_or(0, |i| table.bit(i))).collect()
        };
        let present = bits(&listed);
        let keeping = class.gpu.used.iter().zip(bits(&used));
        let keeping = keeping.map(|(used, bit)| if used.share { table.with_slice(used, options.board) } else { bit });
        let unknown = present.iter().filter(|bit| **bit == 0).count();
        let weights = class.gpu.used.iter().map(|used| weight(class.gpu, class.base.as_deref(), used));
        Some(CandidateBuilder {
            fleet,
            class,
            options,
            used: keeping.zip(weights).collect(),
            present: present.iter().fold(0, |all, bit| all | bit),
            unknown: i64::try_from(unknown).unwrap_or(i64::MAX),
            left: self.leftover(class, class.base.as_deref()),
            table,
        })
    }

    /// Everything that GPUs of a class may be given.
    pub fn candidates(&mut self, id: ClassId) -> Option<Arc<CandidateLayouts>> {
        let likeness = &self.fleet.classes.get(id)?.likeness;
        if let Some(known) = self.candidates.get(likeness) {
            return Some(Arc::clone(known));
        }
        let builder = self.builder(id)?;
        let (present, rest) = (builder.present(), builder.others());
        let differences = &mut self.differences;
        let number = |difference: Devices| {
            let next = differences.len();
            *differences.entry(difference).or_insert(next)
        };
        let new = Arc::new(CandidateLayouts::new(present, rest, self.fleet.profiles.len(), number));
        self.candidates.insert(likeness, Arc::clone(&new));
        Some(new)
    }

    /// The layout of a candidate.
    pub fn layout(&mut self, id: ClassId, source: Source) -> Option<Layout> {
        let (class, options) = self.fleet.class(id)?;
        match source {
            Source::Present => class.base.as_deref().cloned(),
            Source::Whole(offer) => Some(whole(options.offers.get(offer)?.resource.clone())),
            Source::Shares(index) => self.builder(id)?.in_shares(Extent::Spare).nth(index),
            Source::Instances(packing) => Some(self.builder(id)?.table.layout(packing, options.board)),
        }
    }
}

/// How many devices of each MIG profile, by its index on the board, or of the whole GPU, and resource.
pub(super) type Instances = BTreeMap<(Option<usize>, Option<String>), u32>;

/// Builds candidates for one class.
pub(crate) struct CandidateBuilder<'a> {
    pub fleet: &'a Fleet<'a>,
    pub class: &'a GpuClass<'a>,
    options: &'a BoardOptions<'a>,
    pub(super) table: Arc<LayoutTable>,
    /// By device in use: the bits in the table that keep it, and its weight when it is removed.
    used: Vec<(Packing, i64)>,
    /// Bits of the present instances.
    pub present: Packing,
    /// Present instances that the table lacks.
    unknown: i64,
    /// What the present layout leaves over.
    left: Leftover,
}

impl CandidateBuilder<'_> {
    pub fn present(&self) -> Candidate {
        let base = self.class.base.as_deref();
        let (supply, evict) = self.supplied(base);
        let cost = Cost { evict, touch: self.failed(base), ..self.leftover_cost(self.left, self.class.has_mig()) };
        Candidate { source: Source::Present, supply, cost }
    }

    /// Other candidates: of layouts with the same devices and evictions only the cheapest.
    fn others(&self) -> Vec<Candidate> {
        let mut best: BTreeMap<_, (Cost, Packing, &Row)> = BTreeMap::new();
        for row in self.table.rows.iter().filter(|row| !(self.class.gpu.is_broken() && self.is_present(row))) {
            let cost = self.cost(row);
            let key = (row.supply, self.kept(row.packing).collect::<Vec<_>>(), cost.evict);
            let known = best.entry(key).or_insert((cost, row.packing, row));
            if (cost, row.packing) < (known.0, known.1) {
                *known = (cost, row.packing, row);
            }
        }
        best.into_values()
            .map(|(cost, _, row)| self.candidate(row, cost))
            .chain(self.wholes())
            .chain(self.shares(Extent::Useful))
            .collect()
    }

    pub fn wholes(&self) -> impl Iterator<Item = Candidate> {
        self.options.wholes().filter_map(|(index, offer)| {
            let layout = whole(offer.resource.clone());
            if self.class.base.as_deref() == Some(&layout) {
                return None;
            }
            let (supply, evict) = self.supplied(Some(&layout));
            let steps = 2 * (i64::from(self.present.count_ones()) + self.unknown);
            let touch = self.touch(false) + self.failed(Some(&layout));
            Some(Candidate {
                source: Source::Whole(index),
                supply,
                cost: Cost { evict, touch, steps, ..Cost::default() },
            })
        })
    }

    /// Whether the pool offers this profile as a share on the board.
    pub fn is_share(&self, profile: ProfileId) -> bool {
        self.options.offer(profile).is_some_and(|offer| offer.shares.is_some())
    }

    /// The layouts in shares.
    pub fn in_shares(&self, extent: Extent) -> impl Iterator<Item = Layout> {
        let weights: Vec<i64> = self.used.iter().map(|(_, weight)| *weight).collect();
        let wanted = |profile: ProfileId| self.fleet.demand.wanted.get(profile).map_or(0, |ranks| ranks.iter().sum());
        shares::layouts(self.class, self.options, &weights, wanted, extent).into_iter()
    }

    /// Candidates in shares.
    pub fn shares(&self, extent: Extent) -> impl Iterator<Item = Candidate> {
        let numbers = |l: Option<&Layout>| {
            let numbers = l.and_then(|l| l.sharing.as_ref()).map(Sharing::numbers).unwrap_or_default();
            numbers.into_iter().collect::<BTreeSet<i32>>()
        };
        let before = numbers(self.class.base.as_deref());
        let layouts =
            self.in_shares(extent).enumerate().filter(|(_, layout)| self.class.base.as_deref() != Some(layout));
        layouts.map(move |(index, layout)| {
            let (supply, evict) = self.supplied(Some(&layout));
            let destroyed = i64::from(self.present.count_ones()) + self.unknown;
            let differ = before.symmetric_difference(&numbers(Some(&layout))).count();
            let steps = 2 * destroyed + i64::try_from(differ).unwrap_or(i64::MAX);
            let touch = self.touch(false) + self.failed(Some(&layout));
            Candidate { source: Source::Shares(index), supply, cost: Cost { evict, touch, steps, ..Cost::default() } }
        })
    }

    /// The cheapest layout with so many shares of each resource.
    pub fn with_shares(&self, wanted: &BTreeMap<String, u32>) -> Option<Candidate> {
        let has_wanted = |layout: &Layout| {
            let groups = layout.sharing.iter().flat_map(|s| &s.shares);
            let counts: BTreeMap<_, _> = groups.map(|g| (g.resource.clone(), g.numbers.len())).collect();
            let wanted = wanted.iter().filter_map(|(r, n)| Some((r.clone(), usize::try_from(*n).ok()?)));
            counts == wanted.collect()
        };
        if self.class.base.as_deref().is_some_and(has_wanted) {
            return Some(self.present());
        }
        let fitting: BTreeSet<usize> =
            self.in_shares(Extent::Spare).enumerate().filter(|(_, l)| has_wanted(l)).map(|(index, _)| index).collect();
        let fits = |c: &Candidate| matches!(c.source, Source::Shares(index) if fitting.contains(&index));
        self.shares(Extent::Spare).filter(fits).min_by_key(|c| (c.cost, c.source))
    }

    fn supplied(&self, layout: Option<&Layout>) -> (Devices, i64) {
        let present = (self.class.gpu, self.class.base.as_deref(), self.class.kept.as_slice());
        supplied(layout, present, &self.options.closed, &self.fleet.profiles)
    }

    /// Slots of the devices in use that a layout keeps.
    fn kept(&self, packing: Packing) -> impl Iterator<Item = usize> {
        let kept = self.used.iter().zip(&self.class.kept).filter(move |((bit, _), _)| packing & bit != 0);
        kept.filter_map(|(_, slot)| *slot)
    }

    pub(super) fn cost(&self, row: &Row) -> Cost {
        let removed = self.used.iter().filter(|(bit, _)| row.packing & bit == 0);
        let mut touch = if self.is_present(row) { 0 } else { self.touch(true) };
        if self.class.gpu.failed().is_some() {
            touch += self.failed(Some(&self.table.layout(row.packing, self.options.board)));
        }
        let destroyed = i64::from((self.present & !row.packing).count_ones()) + self.unknown;
        let created = i64::from((row.packing & !self.present).count_ones());
        Cost {
            evict: removed.map(|(_, weight)| weight).sum(),
            touch,
            steps: 2 * destroyed + created,
            ..self.leftover_cost(row.left, true)
        }
    }

    pub(super) fn candidate(&self, row: &Row, cost: Cost) -> Candidate {
        let mut supply = self.table.supplies.get(row.supply).cloned().unwrap_or_default();
        self.kept(row.packing).for_each(|slot| add_one(&mut supply, slot));
        // the table counts no time-slices of a closed kind; those in use stay
        if self.options.closed.contains(&SharingMode::TimeSlice) {
            let used = self.class.gpu.used.iter().zip(&self.used);
            let stay = used.filter(|(used, (bit, _))| used.share && row.packing & bit != 0);
            let profile = |used: &InUse| self.fleet.profiles.of_device(&used.resource, used.profile.as_deref());
            stay.filter_map(|(used, _)| profile(used)).for_each(|profile| add_one(&mut supply, profile));
        }
        Candidate { source: Source::Instances(row.packing), supply, cost }
    }

    fn leftover_cost(&self, left: Leftover, mig: bool) -> Cost {
        let split = if mig { self.options.board.memory_slices - left.largest } else { 0 };
        Cost { strand: i64::from(left.memory + left.compute), split: i64::from(split), ..Cost::default() }
    }

    fn is_present(&self, row: &Row) -> bool {
        self.class.has_mig() && self.unknown == 0 && self.present == row.packing
    }

    fn touch(&self, mig: bool) -> i64 {
        1 + if mig == self.class.has_mig() { 0 } else { 1 + i64::from(self.options.board.mode_needs_reset) }
    }

    /// Cost of a layout that failed before, unless the GPU has it.
    fn failed(&self, layout: Option<&Layout>) -> i64 {
        match (self.class.gpu.failed(), layout) {
            (Some(failed), Some(layout)) if **failed == *layout && self.class.base.as_deref() != Some(layout) => FAILED,
            _ => 0,
        }
    }

    /// The cheapest layout with these devices: how many of each MIG profile and resource.
    pub fn with_instances(&self, wanted: &Instances) -> Option<Candidate> {
        let has_wanted = |row: &&Row| {
            let mut counts = BTreeMap::new();
            for item in chosen(row.packing, &self.table.items) {
                *counts.entry((Some(item.mig), item.resource.clone())).or_default() += item.devices();
            }
            counts == *wanted
        };
        let rows = self.table.rows.iter().filter(has_wanted);
        let (cost, row) = rows.map(|row| (self.cost(row), row)).min_by_key(|(cost, row)| (*cost, row.packing))?;
        Some(self.candidate(row, cost))
    }

    /// The whole device with this resource.
    pub fn whole(&self, resource: Option<&String>) -> Option<Candidate> {
        if self.class.base.as_deref() == Some(&whole(resource.cloned())) {
            return Some(self.present());
        }
        let has_resource = |c: &Candidate| match c.source {
            Source::Whole(offer) => self.options.offers.get(offer).is_some_and(|o| o.resource.as_ref() == resource),
            _ => false,
        };
        self.wholes().find(has_resource)
    }
}
