//! Planning the whole fleet, again only when its snapshot differs.

use crate::{
    assemble, explain,
    fleet::Fleet,
    input::Cluster,
    problem::Problem,
    result::Plan,
    search::{self, Layouts},
    snapshot::Snapshot,
};

/// Plans the whole fleet.
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
    snapshot: Snapshot,
    plan: Plan,
}

impl Planner {
    /// Reads the cluster, plans if it differs from the last one, and reports what in it is invalid.
    pub fn read(&mut self, cluster: &Cluster<'_>) -> Vec<Problem> {
        let (snapshot, problems) = Snapshot::read(cluster);
        if snapshot != self.snapshot {
            self.plan = plan(&snapshot);
            self.snapshot = snapshot;
        }
        problems
    }

    /// The last snapshot, and the plan for it.
    pub fn planned(&self) -> (&Snapshot, &Plan) {
        (&self.snapshot, &self.plan)
    }
}
