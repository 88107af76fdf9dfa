//! Which changes do not wait for a maintenance window: those that restore guarantees that a fault of a node has broken.
//!
//! A guarantee is broken by a fault as far as devices are missing for guarantees, and faulty nodes have such devices that do not count. As many devices
//! are made elsewhere at once, and in addition those that pods need which are evicted for that.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{GpuNode, GpuPool, GpuState, Layout, ids::GpuKey};
use gputenancy_plan::{GpuPlan, resource_name};
use kube::ResourceExt as _;

use super::fleet_plan::Planned;
use crate::change::{REASON_LIMIT, Window, WindowError};

/// GPUs whose change does not wait for a window, with the reason as a clause.
pub type Urgent = BTreeMap<GpuKey, String>;

/// Numbers of devices by resource.
type Devices = BTreeMap<String, i64>;

/// Names of nodes.
type Nodes<'n> = BTreeSet<&'n str>;

/// Devices of one resource that are needed because nodes have lost theirs.
#[derive(Default)]
struct Lost<'n> {
    count: i64,
    nodes: Nodes<'n>,
}

/// Most nodes that a reason names.
const MOST_NAMED: usize = 4;

/// What others say about nodes, and the pools that it matters for.
struct Faults<'a> {
    planned: &'a Planned<'a>,
    /// Maintenance windows.
    windows: &'a BTreeMap<String, Result<Window, WindowError>>,
}

impl Faults<'_> {
    /// Pools whose windows may keep a change from a start, and that let faults take precedence.
    fn pools(&self) -> BTreeSet<String> {
        let windowed = |pool: &str| matches!(self.windows.get(pool), Some(Ok(window)) if *window != Window::Always);
        let pools = self.planned.fleet().active_pools().filter(|pool| pool.spec.health.faults_ignore_windows);
        pools.map(GpuPool::name_any).filter(|name| windowed(name)).collect()
    }

    /// Faulty nodes of pools.
    fn faulty(&self) -> impl Iterator<Item = &str> {
        self.planned.marks.faulty().map(String::as_str).filter(|name| self.planned.ownership.is_pooled(name))
    }

    /// Devices of faulty nodes and GPUs that do not count: a pod that runs keeps its device.
    fn uncounted(&self) -> BTreeMap<String, Lost<'_>> {
        let mut uncounted: BTreeMap<String, Lost<'_>> = BTreeMap::new();
        for name in self.faulty() {
            let Some(node) = self.planned.fleet().gpu_nodes.get(name) else { continue };
            let answers = self.planned.fleet().answers(name);
            let faulty = |uuid: &str| self.planned.marks.is_faulty(name, uuid);
            let held = if answers { held(node, &faulty) } else { Devices::new() };
            let lost = node.spec.gpus.iter().filter(|gpu| faulty(&gpu.uuid));
            let listed = lost.flat_map(|gpu| gpu.layout().resources());
            for (resource, count) in counted(listed) {
                let free = count - held.get(&resource).copied().unwrap_or_default();
                if free > 0 {
                    let lost = uncounted.entry(resource).or_default();
                    lost.count += free;
                    lost.nodes.insert(name);
                }
            }
        }
        uncounted
    }

    /// Of these devices those that are missing for guarantees.
    fn lost(&self) -> BTreeMap<String, Lost<'_>> {
        let mut missing = Devices::new();
        for profile in &self.planned.fleet().profiles {
            let name = profile.name_any();
            let Some(supply) = self.planned.plan.plan.profiles.get(name.as_str()) else { continue };
            let short = i64::from(supply.guaranteed.saturating_sub(supply.usable));
            *missing.entry(resource_name(&name, &profile.spec)).or_default() += short;
        }
        let mut lost = self.uncounted();
        for (resource, lost) in &mut lost {
            lost.count = lost.count.min(missing.get(resource).copied().unwrap_or_default());
        }
        lost
    }

    /// Faulty nodes because of which a change in progress still does not wait: of those because of which it began, and of its pool. None, if it
    /// did not begin so.
    fn behind(&self, key: &GpuKey, gpu: &GpuPlan) -> Nodes<'_> {
        let node = self.planned.fleet().gpu_nodes.get(key.node.as_str());
        let gpu_spec = node.and_then(|node| node.spec.gpus.iter().find(|gpu| gpu.uuid == key.uuid.as_str()));
        let change = gpu_spec.and_then(|gpu| gpu.change.as_ref());
        let Some(named) = change.and_then(|change| named(&change.reason)) else { return Nodes::new() };
        let in_pool = |name: &str| self.planned.ownership.pool_of(name).is_some_and(|pool| *pool == gpu.pool);
        self.faulty().filter(|name| named.contains(name) || in_pool(name)).collect()
    }
}

/// What the reason of a change says of the nodes because of which it does not wait; of a change in progress this is read again.
const CLAUSE: [&str; 2] = ["outside spec.disruption.windows, as it restores what node ", " had"];

/// Why a change does not wait, as a clause.
fn clause(nodes: &Nodes<'_>) -> String {
    let nodes: Vec<&str> = nodes.iter().copied().take(MOST_NAMED).collect();
    let [before, after] = CLAUSE;
    format!("{before}{}{after}", nodes.join(", "))
}

/// A reason with such a clause at its end, within what the API takes.
pub fn with_clause(reason: &str, clause: &str) -> String {
    let room = REASON_LIMIT.saturating_sub(clause.chars().count() + 3);
    format!("{} ({clause})", reason.chars().take(room).collect::<String>())
}

/// The nodes that a reason with such a clause names; `None`: it has none.
fn named(reason: &str) -> Option<BTreeSet<&str>> {
    let [before, after] = CLAUSE;
    let (_, nodes) = reason.strip_suffix(')')?.strip_suffix(after)?.rsplit_once('(')?;
    Some(nodes.strip_prefix(before)?.split(", ").collect())
}

/// GPUs whose change does not wait for a window.
pub fn changes(planned: &Planned<'_>, windows: &BTreeMap<String, Result<Window, WindowError>>) -> Urgent {
    let faults = Faults { planned, windows };
    let pools = if faults.faulty().next().is_none() { BTreeSet::new() } else { faults.pools() };
    if pools.is_empty() {
        return Urgent::new();
    }
    let gpus = planned.plan.plan.gpus.iter().filter(|(_, gpu)| pools.contains(gpu.pool.as_str()));
    let (wanted, others): (Vec<_>, Vec<_>) = gpus.partition(|(_, gpu)| gpu.changed);
    let begun = others.into_iter().map(|(key, gpu)| (key, faults.behind(key, gpu)));
    let behind = begun.filter(|(_, nodes)| !nodes.is_empty()).chain(restoring(wanted, faults.lost()));
    behind.map(|(key, nodes)| (key.clone(), clause(&nodes))).collect()
}

/// Of these changes those that make the devices that are needed, and those that evicted pods need then, each with the nodes that lost them. Those
/// that evict fewer pods come first.
fn restoring<'a, 'n>(
    mut wanted: Vec<(&'a GpuKey, &'a GpuPlan)>,
    mut needed: BTreeMap<String, Lost<'n>>,
) -> BTreeMap<&'a GpuKey, Nodes<'n>> {
    wanted.sort_by_key(|(key, gpu)| (gpu.evicts.len(), *key));
    let mut restoring = BTreeMap::new();
    loop {
        let before = restoring.len();
        for (key, gpu) in &wanted {
            let (from, to) = (devices(gpu.from.as_deref()), devices(gpu.target.as_deref()));
            let gained =
                |(resource, count): (&String, &i64)| (resource.clone(), count - from.get(resource).unwrap_or(&0));
            let gained: Devices = to.iter().map(gained).filter(|(_, count)| *count > 0).collect();
            let helps = gained.keys().filter_map(|resource| needed.get(resource)).filter(|lost| lost.count > 0);
            let nodes: Nodes<'n> = helps.flat_map(|lost| lost.nodes.iter().copied()).collect();
            if nodes.is_empty() || restoring.contains_key(key) {
                continue;
            }
            for (resource, count) in gained {
                needed.entry(resource).or_default().count -= count;
            }
            let evicted = i64::try_from(gpu.evicts.len()).unwrap_or(i64::MAX);
            for (resource, count) in &from {
                let removed = (count - to.get(resource).unwrap_or(&0)).clamp(0, evicted);
                if removed > 0 {
                    let lost = needed.entry(resource.clone()).or_default();
                    lost.count += removed;
                    lost.nodes.extend(&nodes);
                }
            }
            restoring.insert(*key, nodes);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_a_reason_are_read_again_however_long_it_is() {
        let nodes = Nodes::from(["a", "b-1.example"]);
        for reason in [String::new(), "1g.10gb (two) are missing".to_owned(), "ä".repeat(3 * REASON_LIMIT)] {
            let whole = with_clause(&reason, &clause(&nodes));
            assert!(whole.chars().count() <= REASON_LIMIT);
            assert_eq!(named(&whole), Some(nodes.clone()));
            assert_eq!(named(&reason), None);
        }
    }
}
