//! Which changes do not wait for a maintenance window: those that restore guarantees that a fault of a node has broken.
//!
//! A guarantee is broken by a fault as far as devices are missing for guarantees, and faulty nodes have such devices that do not count. As many devices
//! are made elsewhere at once, and in addition those that pods need which are evicted for that.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{GpuNode, GpuPool, GpuState, Layout};
use gputenancy_engine::change::{Window, WindowError, Windows};
use kube::ResourceExt as _;

use super::{inventory::Inventory, marks::Marks, ownership::Ownership};
use crate::plan::{GpuKey, GpuPlan, Plan, resource_name};

/// GPUs whose change does not wait for a window, with the reason as a clause.
pub type Urgent = BTreeMap<GpuKey, String>;

/// Numbers of devices by resource.
type Devices = BTreeMap<String, i64>;

/// Most nodes that a reason names.
const MOST_NAMED: usize = 4;

/// What others say about nodes, and the pools that it matters for.
pub struct Faults<'a> {
    /// The observed state.
    pub inventory: &'a Inventory<'a>,
    /// The pools of nodes.
    pub ownership: &'a Ownership,
    /// Verdicts of others on nodes.
    pub marks: &'a Marks,
    /// Maintenance windows.
    pub windows: &'a BTreeMap<String, Result<Window, WindowError>>,
}

impl Faults<'_> {
    /// Pools whose windows may keep a change from a start, and that let faults take precedence.
    fn pools(&self) -> BTreeMap<String, &GpuPool> {
        let windowed = |pool: &str| matches!(self.windows.get(pool), Some(Ok(window)) if *window != Window::Always);
        let pools = self.inventory.fleet.active_pools().filter(|pool| pool.spec.health.faults_ignore_windows);
        pools.map(|pool| (pool.name_any(), pool)).filter(|(name, _)| windowed(name)).collect()
    }

    /// Devices of faulty nodes and GPUs that do not count: a pod that runs keeps its device.
    fn uncounted(&self) -> Devices {
        let mut uncounted = Devices::new();
        for name in self.marks.faulty().filter(|name| self.ownership.is_pooled(name)) {
            let Some(node) = self.inventory.fleet.gpu_nodes.get(name) else { continue };
            let answers = self.inventory.fleet.answers(name);
            let faulty = |uuid: &str| self.marks.is_faulty(name, uuid);
            let held = if answers { held(node, &faulty) } else { Devices::new() };
            let lost = node.spec.gpus.iter().filter(|gpu| faulty(&gpu.uuid));
            let listed = lost.flat_map(|gpu| gpu.layout().resources());
            for (resource, count) in counted(listed) {
                let free = count - held.get(&resource).copied().unwrap_or_default();
                *uncounted.entry(resource).or_default() += free.max(0);
            }
        }
        uncounted
    }

    /// Of these devices those that are missing for guarantees.
    fn lost(&self, plan: &Plan) -> Devices {
        let mut missing = Devices::new();
        for profile in &self.inventory.fleet.profiles {
            let name = profile.name_any();
            let Some(supply) = plan.profiles.get(name.as_str()) else { continue };
            let short = i64::from(supply.guaranteed.saturating_sub(supply.usable));
            *missing.entry(resource_name(&name, &profile.spec)).or_default() += short;
        }
        let mut lost = self.uncounted();
        for (resource, count) in &mut lost {
            *count = (*count).min(missing.get(resource).copied().unwrap_or_default());
        }
        lost
    }

    /// A change in progress that began outside the windows began because of a fault.
    fn began_outside(&self, pool: &GpuPool, key: &GpuKey) -> bool {
        let node = self.inventory.fleet.gpu_nodes.get(key.node.as_str());
        let gpu = node.and_then(|node| node.spec.gpus.iter().find(|gpu| gpu.uuid == key.uuid.as_str()));
        let windows = Windows::read(&pool.spec.disruption.windows, self.inventory.now).unwrap_or_default();
        gpu.and_then(|gpu| gpu.change.as_ref()).is_some_and(|change| !windows.at(change.started_at.0).is_open())
    }
}

/// GPUs whose change does not wait for a window.
pub fn changes(faults: &Faults<'_>, plan: &Plan) -> Urgent {
    let mut nodes: Vec<&str> = faults.marks.faulty().map(String::as_str).collect();
    let pools = if nodes.is_empty() { BTreeMap::new() } else { faults.pools() };
    if pools.is_empty() {
        return Urgent::new();
    }
    nodes.truncate(MOST_NAMED);
    let why = format!("outside spec.disruption.windows, as it restores what node {} had", nodes.join(", "));
    let gpus = plan.gpus.iter().filter_map(|(key, gpu)| Some((key, gpu, *pools.get(gpu.pool.as_str())?)));
    let (wanted, others): (Vec<_>, Vec<_>) = gpus.partition(|(_, gpu, _)| gpu.changed);
    let begun = others.into_iter().filter(|(key, _, pool)| faults.began_outside(pool, key)).map(|(key, ..)| key);
    let wanted = wanted.into_iter().map(|(key, gpu, _)| (key, gpu)).collect();
    begun.chain(restoring(wanted, faults.lost(plan))).map(|key| (key.clone(), why.clone())).collect()
}

/// Of these changes those that make the devices that are needed, and those that evicted pods need then. Those that evict fewer pods come first.
fn restoring<'a>(mut wanted: Vec<(&'a GpuKey, &'a GpuPlan)>, mut needed: Devices) -> BTreeSet<&'a GpuKey> {
    wanted.sort_by_key(|(key, gpu)| (gpu.evicts.len(), *key));
    let mut restoring = BTreeSet::new();
    loop {
        let before = restoring.len();
        for (key, gpu) in &wanted {
            let (from, to) = (devices(gpu.from.as_deref()), devices(gpu.target.as_deref()));
            let gained =
                |(resource, count): (&String, &i64)| (resource.clone(), count - from.get(resource).unwrap_or(&0));
            let gained: Devices = to.iter().map(gained).filter(|(_, count)| *count > 0).collect();
            let helps = gained.keys().any(|resource| needed.get(resource).is_some_and(|count| *count > 0));
            if !helps || !restoring.insert(*key) {
                continue;
            }
            for (resource, count) in gained {
                *needed.entry(resource).or_default() -= count;
            }
            let evicted = i64::try_from(gpu.evicts.len()).unwrap_or(i64::MAX);
            for (resource, count) in &from {
                let removed = count - to.get(resource).unwrap_or(&0);
                *needed.entry(resource.clone()).or_default() += removed.clamp(0, evicted);
            }
        }
        if restoring.len() == before {
            return restoring;
        }
    }
}

fn devices(layout: Option<&Layout>) -> Devices {
    layout.map(|layout| counted(layout.resources().into_iter())).unwrap_or_default()
}

fn counted(resources: impl Iterator<Item = String>) -> Devices {
    let mut counted = Devices::new();
    resources.for_each(|resource| *counted.entry(resource).or_default() += 1);
    counted
}

/// Devices that pods hold of the faulty GPUs of a node.
fn held(node: &GpuNode, faulty: &dyn Fn(&str) -> bool) -> Devices {
    let gpus = node.status.iter().flat_map(|status| &status.gpus).filter(|gpu| faulty(&gpu.uuid));
    let devices = gpus.flat_map(GpuState::devices).filter(|device| device.owner.is_some());
    counted(devices.filter_map(|device| device.resource.clone()))
}
