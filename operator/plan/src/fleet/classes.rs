//! Equivalence classes of GPUs: everything is decided once for a class, however many GPUs it has.

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

use gputenancy_crds::Layout;

use super::{
    demand::Holding,
    devices::{self, Devices, stays},
    former,
    options::BoardOptions,
    profiles::{ProfileId, ProfileIndex},
    replicas,
};
use crate::snapshot::{Availability, Gpu, InUse, Mode, Pool};
use gputenancy_crds::ids::PoolName;

/// The changes that a GPU may undergo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Rule {
    /// Nothing.
    Keep,
    /// Give it the pool's fixed layout with this index.
    Fixed(usize),
    /// Follow demand.
    Demand,
}

impl Rule {
    pub fn of(pool: &Pool, gpu: &Gpu) -> Self {
        if pool.read_only
            || matches!(gpu.availability, Availability::Frozen | Availability::Marked(_) | Availability::Unavailable(_))
        {
            return Self::Keep;
        }
        let Mode::Fixed(list) = &pool.mode else { return Self::Demand };
        let covers = |indices: &Option<_>| {
            indices.as_ref().is_none_or(|i: &std::collections::BTreeSet<i32>| i.contains(&gpu.index))
        };
        list.iter().position(|f| covers(&f.indices)).map_or(Self::Keep, Self::Fixed)
    }
}

/// The facts that decide which layouts a GPU may be given: equal for GPUs with the same candidates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Likeness<'a> {
    pub options: usize,
    base: Option<&'a Arc<Layout>>,
    failed: Option<&'a Arc<Layout>>,
    changing: bool,
    /// Only devices in use are supply.
    pub marked: bool,
    /// Of the present layout only devices in use are supply.
    broken: bool,
    used: Vec<Used<'a>>,
}

/// Layouts count with a short summary: equal ones are mostly one value, so that they compare faster than all of it can be hashed.
impl Hash for Likeness<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { options, base, failed, changing, marked, broken, used } = self;
        let (base, failed) = (base.map(|l| summary(l)), failed.map(|l| summary(l)));
        (options, base, failed, changing, marked, broken, used).hash(state);
    }
}

fn summary(layout: &Layout) -> u32 {
    let instances = layout.instances.iter().map(|i| (i.start.unsigned_abs(), i.profile.bytes().next().unwrap_or(0)));
    instances.fold(u32::from(layout.mig), |sum, (start, first)| {
        sum.wrapping_mul(31).wrapping_add(start).wrapping_mul(31).wrapping_add(first.into())
    })
}

/// A device in use, without the name of its pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Used<'a> {
    start: i32,
    profile: Option<&'a str>,
    resource: &'a str,
    has_pod: bool,
    priority: i32,
    memory: Option<i64>,
    /// Index of the holder of more than its guarantee that has it.
    excess: Option<usize>,
}

impl<'a> Likeness<'a> {
    /// `excess` gives, by device in use, the holder of more than its guarantee.
    pub fn of(options: usize, gpu: &'a Gpu, excess: impl Iterator<Item = Option<usize>>) -> Self {
        let used = |(u, excess): (&'a InUse, Option<usize>)| Used {
            start: u.start,
            profile: u.profile.as_deref(),
            resource: &u.resource,
            has_pod: u.pod.is_some(),
            priority: u.priority,
            memory: u.memory,
            excess,
        };
        let used = gpu.used.iter().zip(excess).map(used).collect();
        let (failed, marked, broken) = (gpu.failed(), gpu.is_marked(), gpu.is_broken());
        Self { options, base: gpu.base.as_ref(), failed, changing: gpu.changing, marked, broken, used }
    }
}

/// GPUs of one pool with equal rules, boards, layouts and devices in use.
#[derive(Debug)]
pub(crate) struct GpuClass<'a> {
    pub pool: &'a PoolName,
    pub pool_rules: &'a Pool,
    pub rule: Rule,
    pub likeness: Likeness<'a>,
    /// A GPU of the class; the names of its pods mean nothing.
    pub gpu: &'a Gpu,
    /// The layout that it has.
    pub base: Option<Arc<Layout>>,
    /// By device in use: the slot that counts it when kept, if one does.
    pub kept: Vec<Option<usize>>,
    /// Numbers of its GPUs, in the order of the fleet.
    pub members: Vec<usize>,
    /// Devices of the present layout.
    pub supply: Devices,
    /// Weight of the pods that even the present layout evicts.
    pub evict: i64,
    /// Profiles in use.
    pub in_use: Vec<ProfileId>,
}

impl<'a> GpuClass<'a> {
    pub fn of(
        (pool, pool_rules): (&'a PoolName, &'a Pool),
        rule: Rule,
        likeness: Likeness<'a>,
        gpu: &'a Gpu,
        options: &BoardOptions<'_>,
        profiles: &ProfileIndex<'_>,
    ) -> Self {
        let base = devices::base(gpu, options, profiles);
        let base = match rule {
            Rule::Keep => base,
            _ if pool_rules.by_plugin => replicas::by_plugin(base, options),
            _ => base.map(|layout| {
                let layout = former::renamed(layout, gpu, options.board, profiles);
                replicas::refreshed(layout, gpu, options)
            }),
        };
        let kept: Vec<_> = likeness.used.iter().map(|u| u.excess.map(|excess| profiles.len() + excess)).collect();
        let (supply, evict) =
            devices::supplied(base.as_deref(), (gpu, base.as_deref(), &kept), &options.closed, profiles);
        let in_use = gpu.used.iter().filter_map(|u| profiles.of_device(&u.resource, u.profile.as_deref())).collect();
        let members = Vec::new();
        Self { pool, pool_rules, rule, likeness, gpu, base, kept, members, supply, evict, in_use }
    }

    pub fn has_mig(&self) -> bool {
        self.base.as_ref().is_some_and(|l| l.mig)
    }

    /// Devices in use that a layout removes, as indices into the GPU's list.
    pub fn removed(&self, layout: Option<&Layout>) -> Vec<usize> {
        let used = self.gpu.used.iter().enumerate();
        used.filter(|(_, used)| !stays(layout, used)).map(|(index, _)| index).collect()
    }
}

/// Holders of a GPU's devices in use.
pub(super) type Holdings = Vec<Option<Holding>>;
