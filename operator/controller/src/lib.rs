//! The controller: plans layouts, changes them under running work, and keeps tenants' namespaces and quotas.

pub mod apply;
pub mod args;
pub mod cache;
pub mod health;
pub mod metrics;
mod object_name;
mod pod_info;
pub mod pool;
pub mod queues;
pub mod release;
pub mod rights;
pub mod run;
mod status_metrics;
pub mod tenant;
mod usage_endpoint;
