//! Planning the whole fleet, again only when its snapshot differs.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    assemble, explain,
    fleet::Fleet,
    input::{Cluster, Reader},
    problem::Problem,
    result::Plan,
    search::{self, Layouts},
    snapshot::Snapshot,
};
use gputenancy_crds::ids::{GpuKey, NodeName, PoolName};

/// Plans the whole fleet.
///
/// ```
/// use gputenancy_plan::{Cluster, Snapshot, TenantFacts, plan};
/// use serde_json::{from_value, json};
///
/// // a guarantee of one whole GPU, and no node
/// let support = json!({"expected": "…", "incident": "…"});
/// let profile = from_value(json!({"metadata": {"name": "gpu"}, "spec": {"device": {"whole": {}}, "support": support}}))?;
/// let guarantees = [gputenancy_crds::Guarantee::of("gpu", 1)];
/// let tenant = TenantFacts {
///     name: "team-a",
///     namespaces: &[],
///     refused: Default::default(),
///     trust: Default::default(),
///     acknowledged: false,
///     priority: 0,
///     gpus: &guarantees,
///     equivalents: None,
/// };
/// let cluster = Cluster { profiles: vec![&profile], tenants: vec![tenant], ..Cluster::default() };
/// let (snapshot, invalid) = Snapshot::read(&cluster);
/// assert!(invalid.is_empty());
/// let plan = plan(&snapshot);
/// assert_eq!((plan.gpus.len(), plan.problems.len()), (0, 1));
/// assert!(plan.problems[0].to_string().contains("team-a"), "{}", plan.problems[0]);
/// # Ok::<(), serde_json::Error>(())
/// ```
pub fn plan(snapshot: &Snapshot) -> Plan {
    let fleet = Fleet::of(snapshot);
    let mut layouts = Layouts::of(&fleet);
    let mut decision = search::decide(&mut layouts);
    let mut plan = assemble::plan(&mut layouts, &decision);
    plan.problems = explain::problems(&fleet, &decision);
    plan.problems.extend(fleet.demand.problems.iter().cloned());
    plan.problems.append(&mut decision.problems);
    plan.problems.sort();
    plan.problems.dedup();
    plan
}

/// The last snapshot and its plan.
#[derive(Debug, Default)]
pub struct Planner {
    reader: Reader,
    snapshot: Snapshot,
    plan: Plan,
    changes: Vec<GpuKey>,
    differing: BTreeSet<NodeName>,
}

/// The result of the last planning.
#[derive(Clone, Copy, Debug)]
pub struct Planned<'a> {
    /// The input of the planner.
    pub snapshot: &'a Snapshot,
    /// The plan.
    pub plan: &'a Plan,
    /// GPUs whose target differs from their layout.
    pub changes: &'a [GpuKey],
    /// Nodes whose GPUs had another plan in the reading before the last.
    pub differing: &'a BTreeSet<NodeName>,
}

impl Planner {
    /// Reads what has changed in the cluster since the last time, plans if that makes a difference, and reports what in the cluster is
    /// invalid. `members` is the [`membership`](crate::membership) of the cluster's nodes.
    pub fn read(&mut self, cluster: &Cluster<'_>, members: &BTreeMap<NodeName, Vec<PoolName>>) -> Vec<Problem> {
        let (differs, problems) = self.reader.read(cluster, members, &mut self.snapshot);
        self.differing.clear();
        if differs {
            let plan = plan(&self.snapshot);
            self.differing = plan.differing_nodes(&self.plan);
            let changed = plan.gpus.iter().filter(|(_, gpu)| gpu.changed);
            self.changes = changed.map(|(key, _)| key.clone()).collect();
            self.plan = plan;
        }
        problems
    }

    /// The last snapshot, and the plan for it.
    pub fn planned(&self) -> Planned<'_> {
        let Self { reader: _, snapshot, plan, changes, differing } = self;
        Planned { snapshot, plan, changes, differing }
    }
}
