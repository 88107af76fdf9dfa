//! The controller: plans layouts, changes them under running work, and keeps tenants' namespaces and quotas.

pub mod apply;
pub mod args;
pub mod cache;
pub mod fleet_view;
pub mod health;
pub mod metrics;
mod object_name;
mod pod_info;
pub mod pool;
pub mod release;
pub mod rights;
pub mod run;
pub mod tenant;

/// The planner: a crate of its own, so that it compiles and is tested by itself.
pub use gputenancy_plan as plan;
