//! The controller: plans layouts, changes them under running work, and keeps tenants' namespaces and quotas.

pub mod change;
pub mod plan;
