//! The operator's decisions as pure state machines: no client, no clock, no randomness.

pub mod adoption;
pub mod change;
pub mod demand;
mod duration;
pub mod entitlement;
pub mod event;
pub mod fingerprint;
pub mod fleet;
pub mod fleet_view;
pub mod label;
pub mod liveness;
pub mod maintenance;
pub mod namespace_owners;
pub mod ownership;
pub mod partitioner;
pub mod plugin;
pub mod pool;
pub mod queues;
pub mod quota;
pub mod rollout;
pub mod verdict;
