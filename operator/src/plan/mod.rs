//! The planner: which instances each GPU shall carry, decided without any I/O, clock or randomness.
//!
//! [`Snapshot::read`] turns the cluster's objects into a validated picture ([`model`]); [`plan`] answers with a target layout
//! for every GPU, what each tenant gets of its guarantees, and problems that name their remedy.

pub mod board;
pub mod model;
mod name;
mod outcome;
mod problem;
mod snapshot;

pub use model::Snapshot;
pub use name::{GpuKey, GpuUuid, NodeName, PodName, PoolName, ProfileName, TenantName};
pub use outcome::{Evicted, GpuPlan, Plan, Served, Supply};
pub use problem::Problem;
pub use snapshot::{Cluster, NodeFacts, membership, plain, resource_name, seen, trust_needed};

/// Plans the whole fleet.
pub fn plan(snapshot: &Snapshot) -> Plan {
    let mut gpus = std::collections::BTreeMap::new();
    for (node, facts) in &snapshot.nodes {
        for (uuid, gpu) in &facts.gpus {
            let key = GpuKey { node: node.clone(), uuid: uuid.clone() };
            let target = gpu.base.clone();
            gpus.insert(key, GpuPlan { pool: facts.pool.clone(), index: gpu.index, target, ..GpuPlan::default() });
        }
    }
    Plan { gpus, ..Plan::default() }
}

/// One sentence for every decision and every refusal, in the order of the fleet.
pub fn explain(plan: &Plan) -> Vec<String> {
    let decisions = plan.gpus.values().flat_map(|gpu| gpu.reasons.iter().cloned());
    decisions.chain(plan.problems.iter().map(ToString::to_string)).collect()
}
