//! Totals over all nodes. A node that has changed is taken out with what it had, and added with what it has.

use std::{collections::BTreeMap, fmt::Debug};

use gputenancy_crds::{Capacity, ChangePhase, Isolation, ids::PoolName};

use super::{devices::LeftOver, node_view::NodeView, pod_index::PodIndex};
use crate::fleet_view::{Claim, MemoryLimit};

/// Totals over the views of nodes.
#[derive(Debug, Default)]
pub struct Sums {
    /// Of the nodes of one pool alone, by pool.
    by_pool: BTreeMap<PoolName, PoolSums>,
    by_resource: BTreeMap<String, Capacity>,
    held: BTreeMap<Claim, i32>,
    /// By node; one without them is not in it.
    left_over: BTreeMap<String, Vec<LeftOver>>,
    phases: BTreeMap<ChangePhase, i32>,
    limits: BTreeMap<String, Limits>,
}

/// Totals over the nodes of a pool.
#[derive(Debug, Default)]
pub struct PoolSums {
    /// Nodes with a `GpuNode`.
    pub nodes: i32,
    /// GPUs that their agents report.
    pub gpus: i32,
    by_resource: BTreeMap<String, Capacity>,
    leaving: BTreeMap<String, i32>,
}

/// What limits the memory of the devices that the pods of a namespace have.
#[derive(Debug, Default)]
struct Limits {
    /// Number of nodes with these means as the weakest ones.
    means: BTreeMap<Isolation, i32>,
    /// GPUs, each of one node.
    unlimited: BTreeMap<String, String>,
}

/// A node is added, or taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sign {
    Plus = 1,
    Minus = -1,
}

impl Sums {
    /// Adds a node.
    pub fn add(&mut self, node: &NodeView) {
        self.change(node, Sign::Plus);
    }

    /// Takes a node out that was added before.
    pub fn remove(&mut self, node: &NodeView) {
        self.change(node, Sign::Minus);
    }

    fn change(&mut self, node: &NodeView, sign: Sign) {
        let NodeView { pool, gpus, devices, phases, limits, .. } = node;
        if let Some(pool) = pool {
            let sums = self.by_pool.entry(pool.clone()).or_default();
            sums.nodes += sign as i32;
            sums.gpus += sign as i32 * gpus;
            change_all(&mut sums.by_resource, &devices.by_resource, sign);
            for (resource, count) in &devices.leaving {
                count_by(&mut sums.leaving, resource, sign as i32 * count);
            }
            if sums.nodes == 0 {
                self.by_pool.remove(pool);
            }
        }
        change_all(&mut self.by_resource, &devices.by_resource, sign);
        for (claim, count) in &devices.held {
            count_by(&mut self.held, claim, sign as i32 * count);
        }
        if !devices.left_over.is_empty() {
            match sign {
                Sign::Plus => drop(self.left_over.insert(node.name(), devices.left_over.clone())),
                Sign::Minus => drop(self.left_over.remove(&node.name())),
            }
        }
        for phase in phases {
            count_by(&mut self.phases, phase, sign as i32);
        }
        for (namespace, limit) in limits {
            let sum = self.limits.entry(namespace.clone()).or_default();
            sum.change(limit, sign);
            if sum.means.is_empty() {
                self.limits.remove(namespace);
            }
        }
    }

    /// Totals of a pool; `None`: it has no node alone that has a `GpuNode`.
    pub fn of_pool(&self, pool: &str) -> Option<&PoolSums> {
        self.by_pool.get(pool)
    }

    /// Devices of a resource.
    pub fn capacity(&self, resource: &str) -> Capacity {
        self.by_resource.get(resource).copied().unwrap_or_default()
    }

    /// Devices that pods hold.
    pub fn held(&self) -> &BTreeMap<Claim, i32> {
        &self.held
    }

    /// Devices that processes keep of pods that are not in the API any more.
    pub fn left_over(&self, pods: &PodIndex) -> BTreeMap<Claim, i32> {
        let mut counts = BTreeMap::new();
        for (node, devices) in &self.left_over {
            for (claim, count) in devices.iter().filter_map(|device| device.claim(node, pods)) {
                count_by(&mut counts, &claim, count);
            }
        }
        counts
    }

    /// Phases of all changes.
    pub fn phases(&self) -> impl Iterator<Item = ChangePhase> {
        let times = |count: i32| usize::try_from(count).unwrap_or_default();
        self.phases.iter().flat_map(move |(phase, count)| std::iter::repeat_n(*phase, times(*count)))
    }

    /// What limits the memory of devices that pods have, by namespace.
    pub fn limits(&self) -> BTreeMap<String, MemoryLimit> {
        let limit = |limits: &Limits| MemoryLimit {
            means: limits.means.keys().next_back().copied().unwrap_or(Isolation::Hardware),
            unlimited: limits.unlimited.clone(),
        };
        self.limits.iter().map(|(namespace, limits)| (namespace.clone(), limit(limits))).collect()
    }
}

impl PoolSums {
    /// Devices of a resource that pods hold or could get now, without those that no other pod gets after them.
    pub fn in_service(&self, resource: &str) -> i32 {
        let Capacity { total: _, allocated, free, unschedulable: _ } = self.capacity(resource);
        allocated.saturating_add(free).saturating_sub(self.leaving.get(resource).copied().unwrap_or(0))
    }

    /// Devices of a resource.
    pub fn capacity(&self, resource: &str) -> Capacity {
        self.by_resource.get(resource).copied().unwrap_or_default()
    }
}

impl Limits {
    fn change(&mut self, limit: &MemoryLimit, sign: Sign) {
        let MemoryLimit { means, unlimited } = limit;
        count_by(&mut self.means, means, sign as i32);
        for (gpu, why) in unlimited {
            match sign {
                Sign::Plus => drop(self.unlimited.insert(gpu.clone(), why.clone())),
                Sign::Minus => drop(self.unlimited.remove(gpu)),
            }
        }
    }
}

fn change_all(sums: &mut BTreeMap<String, Capacity>, devices: &BTreeMap<String, Capacity>, sign: Sign) {
    let sign = sign as i32;
    for (resource, here) in devices {
        let Capacity { total, allocated, free, unschedulable } = here;
        let sum = match sums.get_mut(resource) {
            Some(sum) => sum,
            None => sums.entry(resource.clone()).or_default(),
        };
        sum.total += sign * total;
        sum.allocated += sign * allocated;
        sum.free += sign * free;
        sum.unschedulable += sign * unschedulable;
        if sum.total == 0 {
            sums.remove(resource);
        }
    }
}

/// Adds to a count; one of 0 is not kept.
fn count_by<K: Ord + Clone + Debug>(counts: &mut BTreeMap<K, i32>, key: &K, by: i32) {
    if let Some(count) = counts.get_mut(key) {
        *count += by;
        if *count == 0 {
            counts.remove(key);
        }
    } else if by != 0 {
        counts.insert(key.clone(), by);
    }
}
