//! The planner: which instances each GPU shall carry, decided without any I/O, clock or randomness.
//!
//! [`Snapshot::read`] turns the cluster's objects into a validated picture ([`model`]); [`plan`] answers with a target layout
//! for every GPU, what each tenant gets of its guarantees, and problems that name their remedy.
//!
//! It works on placements, not on counts: which memory slices of which board an instance covers ([`board`]). What matters, in
//! this order: no profile in use disappears, no guaranteed pod loses its place; guarantees are met, by the tenants' priority and
//! then fairly; few pods are evicted, weighted by their priority; few GPUs are touched; few slices are stranded and large blocks
//! stay free; what is there stays. Steps:
//!
//! 1. `fleet` sorts the fleet: `ledger` adds up guarantees and counts devices in use against them, `forms` puts GPUs that are alike
//!    into kinds. All that follows is done once for a kind, however many GPUs it has.
//! 2. `decide` sees what is short; when nothing is, everything stays. Otherwise it takes apart what has nothing to do with each
//!    other, and for each part `exact` (small) or `search` and `fewer` (large) choose among the kinds' layouts, which `rig` enumerates with
//!    `packing` and `menu` weighs. `fixed` applies layouts written by hand, `spare` the pools' policy for what nobody needs.
//! 3. `show` writes what is decided for each GPU, where it differs from the plan before; `reason` says it in a sentence when
//!    somebody asks. `sentence` and `help` say what would serve demand that is not met.
//!
//! [`Index`] keeps all this from one plan to the next, so that a change of one tenant costs what it touches.

pub mod board;
mod decide;
mod exact;
mod fewer;
mod fixed;
mod fleet;
mod foreign;
mod forms;
mod gpus;
mod help;
mod index;
mod ledger;
mod lines;
mod menu;
pub mod model;
mod name;
mod outcome;
mod packing;
mod problem;
mod reason;
mod rig;
mod search;
mod sentence;
mod share;
mod show;
mod snapshot;
mod spare;
mod terms;
mod ways;
mod words;

pub use foreign::Foreign;
pub use gpus::Gpus;
pub use index::{Event, Index};
pub use model::{Snapshot, Tenant};
pub use name::{GpuKey, GpuUuid, NodeName, PodName, PoolName, ProfileName, TenantName, Text};
pub use outcome::{Evicted, GpuPlan, Plan, Served, Supply, Why};
pub use problem::Problem;
pub use share::Sharing;
pub use snapshot::{Cluster, NodeFacts, TenantFacts, membership, plain, resource_name, seen, trust_needed};

/// Plans the whole fleet.
pub fn plan(snapshot: &Snapshot) -> Plan {
    let mut core = fleet::Core::load(snapshot);
    core.decide(snapshot);
    core.plan
}

/// One sentence for every decision and every refusal, in the order of the fleet.
pub fn explain(plan: &Plan) -> Vec<String> {
    let decisions = plan.gpus.keys().filter_map(|key| plan.reason(key));
    decisions.chain(plan.problems.iter().map(ToString::to_string)).collect()
}
