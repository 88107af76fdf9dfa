//! Upgrades of vCluster, the way back, and its chart.

pub(crate) mod chart;
pub(crate) mod rollback;
pub(crate) mod upgrade;
