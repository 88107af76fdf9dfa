//! The controller: plans layouts, changes them under running work, and keeps tenants' namespaces and quotas.

pub mod apply;
pub mod args;
pub mod cache;
pub mod change;
pub mod events;
pub mod health;
pub mod lease;
pub mod metrics;
pub mod migmanager;
pub mod plan;
pub mod pool;
pub mod profile;
pub mod release;
pub mod run;
pub mod tenant;
pub mod view;
