//! The planner: which instances each GPU should have, decided without I/O, clock or randomness.
//!
//! [`Snapshot::read`] turns the cluster's objects into a validated [`snapshot`]; [`plan`] returns a target layout for every GPU, what
//! each tenant gets of its guarantees, and problems with their remedies.
//!
//! The planner works on placements, not on counts: which memory slices of which [`board`] an instance covers. In order of importance:
//! no profile in use disappears and no guaranteed pod loses its device; guarantees are met, by the tenants' priority and then evenly;
//! few pods are evicted, weighted by their priority; few GPUs change; few slices are stranded and large blocks stay free.
//!
//! Data flows one way: `input` reads objects into a `snapshot`; `fleet` adds demand up and sorts GPUs into equivalence classes;
//! `search` decides the layouts of each class; `assemble` makes the [`Plan`] of it; `explain` adds sentences.

mod assemble;
pub mod board;
mod cursor;
mod explain;
mod fleet;
mod input;
mod ownership;
mod planner;
mod plugin_shares;
mod problem;
mod result;
mod search;
pub mod snapshot;
mod strategy;

pub use explain::explain;
pub use input::{
    Cluster, Interner, NodeFacts, TenantFacts, has_layout, membership, plain, resource_name, seen, trust_needed,
};
pub use ownership::ConflictingOwner;
pub use planner::{Planned, Planner, plan};
pub use problem::Problem;
pub use result::{Evicted, GpuPlan, Plan, Served, Supply, Why};
pub use snapshot::{Snapshot, Tenant};
