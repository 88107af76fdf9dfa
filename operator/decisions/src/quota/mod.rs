//! Splits a tenant's budget into one `ResourceQuota` per namespace, and moves headroom between them: lower first, and raise only when the
//! lower limit is enforced.
//!
//! Admission compares with a quota's `status.hard`, which follows `spec.hard` a moment later, so a quota may still grant the larger of the
//! two. [`decide()`] keeps the sum of these over a tenant's namespaces within the budget for each resource, and what all devices of a
//! tenant weigh within a cap, even if its writes are lost, late or out of order. [`write_fence`] finds quotas that no write in flight can
//! change.

mod cap_allocation;
mod cap_commitment;
mod decide;
mod device_weights;
mod limits;
mod namespace;
mod target;
#[cfg(test)]
mod tests;
mod water_filling;
mod weight;
mod weighted_water_filling;
pub mod write_fence;

pub use decide::{QuotaAction, QuotaDecision, decide};
pub use device_weights::{device_weights, unknown_weight_message};
pub use limits::{Limits, is_gpu_key, quantity};
pub use namespace::{Amounts, NamespaceQuota, PodDemand, Presence, QuotaState};
pub use target::DemandStage;
pub use weight::{Cap, Weight};
