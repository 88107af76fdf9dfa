//! The fleet as the search needs it: demand added up, and GPUs sorted into equivalence classes.
//!
//! `profiles` numbers the profiles, `demand` counts guarantees and the devices that pods hold against them. `options` resolves a
//! pool's profiles on each board. `classes` puts GPUs with equal boards, layouts and devices in use together. `replicas` follows a changed number of
//! time-slices, `former` a changed shape. `devices` knows which devices a layout has and removes.

mod classes;
mod demand;
mod devices;
mod former;
mod options;
mod profiles;
mod replicas;

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    ops::Range,
    sync::Arc,
};

use gputenancy_crds::{Isolation, SharingMode};

use self::classes::Holdings;
pub(crate) use self::{
    classes::{GpuClass, Likeness, Rule},
    demand::{ByRank, DemandLedger, Excess, RANKS},
    devices::{Devices, add_one, count, supplied, weight, whole},
    options::BoardOptions,
    profiles::{ProfileId, ProfileIndex},
};
use crate::{
    board::BoardGeometry,
    snapshot::{Availability, Gpu, Pool, Snapshot, Unlimited},
};
use gputenancy_crds::ids::{GpuKey, PoolName};

/// A class's number, in the order of its first GPU.
pub(crate) type ClassId = usize;

/// Everything that a plan is decided on.
#[derive(Debug)]
pub(crate) struct Fleet<'a> {
    pub snapshot: &'a Snapshot,
    pub profiles: ProfileIndex<'a>,
    pub demand: DemandLedger<'a>,
    pub options: Vec<BoardOptions<'a>>,
    pub classes: Vec<GpuClass<'a>>,
    /// By node and index.
    pub gpus: Vec<FleetGpu<'a>>,
    /// The GPUs of each node.
    nodes: Vec<Range<usize>>,
}

#[derive(Debug)]
pub(crate) struct FleetGpu<'a> {
    pub key: GpuKey,
    pub gpu: &'a Gpu,
    pub pool: &'a PoolName,
    /// `None`: it is no supply.
    pub class: Option<ClassId>,
    /// Number of its node.
    pub node: usize,
}

/// Board options that were made already.
struct KnownOptions<'a> {
    pool: &'a PoolName,
    board: &'a Arc<BoardGeometry>,
    modes: &'a BTreeMap<SharingMode, Isolation>,
    id: usize,
}

/// Where a GPU that is supply belongs.
struct Placed<'a> {
    gpu: usize,
    pool: (&'a PoolName, &'a Pool),
    options: usize,
    holdings: Holdings,
}

impl<'a> Fleet<'a> {
    pub fn of(snapshot: &'a Snapshot) -> Self {
        let profiles = ProfileIndex::of(snapshot);
        let demand = DemandLedger::of(snapshot, &profiles);
        let (options, classes, gpus, nodes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut fleet = Self { snapshot, profiles, demand, options, classes, gpus, nodes };
        let placed = fleet.place();
        fleet.demand.count(placed.iter().flat_map(|p| p.holdings.iter().copied().flatten()));
        fleet.classify(placed);
        fleet
    }

    /// Lists all GPUs, and finds board options and holders of those that are supply.
    fn place(&mut self) -> Vec<Placed<'a>> {
        let mut known = Vec::new();
        let mut placed = Vec::new();
        for (name, node) in &self.snapshot.nodes {
            let first = self.gpus.len();
            let pool = self.snapshot.pools.get_key_value(&node.pool);
            let mut here: Vec<_> = node.gpus.iter().collect();
            here.sort_by_key(|(_, gpu)| gpu.index);
            for (uuid, gpu) in here {
                let board = node.boards.get(gpu.board);
                let supply = !matches!(gpu.availability, Availability::Unavailable(_));
                if let (true, Some(pool), Some(board)) = (supply, pool, board) {
                    let options = self.options_of(pool, (board, &node.unlimited), &mut known);
                    let holding = |used| self.demand.holding(used, &self.profiles);
                    let holdings = gpu.used.iter().map(holding).collect();
                    placed.push(Placed { gpu: self.gpus.len(), pool, options, holdings });
                }
                let key = GpuKey { node: name.clone(), uuid: uuid.clone() };
                self.gpus.push(FleetGpu { key, gpu, pool: &node.pool, class: None, node: self.nodes.len() });
            }
            self.nodes.push(first..self.gpus.len());
        }
        placed
    }

    fn options_of(
        &mut self,
        (name, pool): (&'a PoolName, &'a Pool),
        (board, unlimited): (&'a Arc<BoardGeometry>, &'a Unlimited),
        known: &mut Vec<KnownOptions<'a>>,
    ) -> usize {
        // boards that are shared compare by address
        let same = |k: &&KnownOptions<'_>| k.board == board && k.pool == name && k.modes == &unlimited.modes;
        if let Some(known) = known.iter().find(same) {
            return known.id;
        }
        let options = BoardOptions::of(self.snapshot, &self.profiles, pool, board, unlimited);
        let id = self.options.iter().position(|o| *o == options).unwrap_or_else(|| {
            self.options.push(options);
            self.options.len() - 1
        });
        known.push(KnownOptions { pool: name, board, modes: &unlimited.modes, id });
        id
    }

    fn classify(&mut self, placed: Vec<Placed<'a>>) {
        let mut ids: HashMap<(&PoolName, Rule, Likeness<'a>), ClassId> = HashMap::new();
        for Placed { gpu: id, pool, options, holdings } in placed {
            let Some(entry) = self.gpus.get_mut(id) else { continue };
            let rule = Rule::of(pool.1, entry.gpu);
            let excess = holdings.into_iter().map(|h| self.demand.excess_of(h?));
            let class = match ids.entry((pool.0, rule, Likeness::of(options, entry.gpu, excess))) {
                Entry::Occupied(known) => *known.get(),
                Entry::Vacant(new) => {
                    let likeness = new.key().2.clone();
                    let Some(options) = self.options.get(options) else { continue };
                    self.classes.push(GpuClass::of(pool, rule, likeness, entry.gpu, options, &self.profiles));
                    *new.insert(self.classes.len() - 1)
                }
            };
            entry.class = Some(class);
            if let Some(class) = self.classes.get_mut(class) {
                class.members.push(id);
            }
        }
    }

    /// A class with its board options.
    pub fn class(&self, id: ClassId) -> Option<(&GpuClass<'a>, &BoardOptions<'a>)> {
        let class = self.classes.get(id)?;
        Some((class, self.options.get(class.likeness.options)?))
    }

    /// All classes with their board options.
    pub fn classes(&self) -> impl Iterator<Item = (ClassId, &GpuClass<'a>, &BoardOptions<'a>)> {
        (0..self.classes.len()).filter_map(|id| self.class(id).map(|(class, options)| (id, class, options)))
    }

    /// The GPUs of a class in the order in which they change: spread over nodes, those with the fewest devices of these profiles
    /// first.
    pub fn spread(&self, class: &GpuClass<'a>, profiles: &[ProfileId]) -> Vec<usize> {
        let devices = |id: usize| {
            let supply = self.gpus.get(id).and_then(|g| Some(self.classes.get(g.class?)?.supply.as_slice()));
            profiles.iter().map(|p| count(supply.unwrap_or_default(), *p)).sum::<i64>()
        };
        let mut order = Vec::with_capacity(class.members.len());
        let (mut node, mut nth, mut has) = (None, 0, 0);
        for id in &class.members {
            let Some(gpu) = self.gpus.get(*id) else { continue };
            if node != Some(gpu.node) {
                has = self.nodes.get(gpu.node).into_iter().flat_map(Clone::clone).map(devices).sum::<i64>();
                (node, nth) = (Some(gpu.node), 0);
            }
            order.push((nth, has, *id));
            nth += 1;
        }
        order.sort_unstable();
        order.into_iter().map(|(.., id)| id).collect()
    }
}
