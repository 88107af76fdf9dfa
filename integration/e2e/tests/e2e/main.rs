//! End-to-end tests on real clusters. They are one program, so that they share the running labs (`GPUTENANCY_LABS`); each test has
//! one lab to itself.
#![allow(
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failed test panics with its finding"
)]
#![allow(clippy::needless_pass_by_value, reason = "a table of json! reads better without ampersands")]

mod allocation_churn;
mod allocation_kills;
mod budget;
mod canary;
mod checkpoints;
mod compute_limits;
mod conditions;
mod conflicting_owner;
mod controller_wakeup;
mod crashes;
mod dedicated_pools;
mod deletion;
mod demo;
mod demo_virtual_cluster;
mod disruption_budgets;
mod driver_limits;
mod driver_upgrade;
mod enforcement;
mod env_from;
mod fault_recovery;
mod flapping;
mod fraction_annotations;
mod gpu_equivalents;
mod handover;
mod helm;
mod idle_writes;
mod incidents;
mod isolation;
mod kubelet_memory;
mod limit_bypasses;
mod limits_without_agent;
mod live_resize;
mod lost_objects;
mod maintenance_windows;
mod memory_limits;
mod memory_residue;
mod memory_scrub;
mod mig_isolation;
mod mig_manager;
mod mps;
mod namespace_blockers;
mod node_health;
mod nvidia_plugin;
mod nvidia_plugin_shares;
mod nvml_view;
mod nvsentinel;
mod plan_preview;
mod postponed_ends;
mod process_attribution;
mod resource_names;
mod rollback;
mod rollout;
mod share_audit;
mod sharing;
mod slow_webhook;
mod stale_names;
mod strategies;
mod taint;
mod tenant_view;
mod unreadable_times;
mod unserved_containers;
mod vgpu;
mod virtual_cluster;
