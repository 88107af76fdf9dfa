//! Decisions about parts of the fleet: what each node, GPU and published object should be. [`super::decision`] makes them in their order.

pub mod bypass;
pub mod canary;
pub mod decided;
pub mod fleet_plan;
pub mod gpu_changes;
pub mod labels;
pub mod node_specs;
pub mod overlap;
pub mod overruns;
pub mod partitioner;
pub mod planned_gpus;
pub mod plugin_configs;
pub mod rollout;
pub mod scheduled;
pub mod taints;
pub mod urgent;
