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

// Tests start in the order of these names. A test of several minutes has a name that starts early, so that no lab is idle at the
// end.
mod access;
mod allocation_churn;
mod allocation_kills;
mod budget;
mod bypass;
mod bypass_claims;
mod bypass_cordons;
mod bypass_plugins;
mod canary;
mod chart;
mod compute_limits;
mod conditions;
mod conflicting_owner;
mod controller_wakeup;
mod crashes;
mod crd_validation;
mod crd_virtual_cluster;
mod dedicated_pools;
mod default_counts;
mod deletion;
mod demo;
mod demo_virtual_cluster;
mod disruption_budgets;
mod driver_limits;
mod driver_upgrade;
mod enforcement;
mod env_from;
mod fraction_annotations;
mod gitops;
mod gpu_equivalents;
mod handover;
mod helm;
mod idle_writes;
mod incidents;
mod isolation;
mod lease_priority;
mod limit_bypasses;
mod limits_without_agent;
mod live_resize;
mod maintenance_windows;
mod memory_limits;
mod memory_residue;
mod memory_scrub;
mod mig_manager;
mod mps;
mod multi_tenancy_benchmarks;
mod nvidia_plugin;
mod nvidia_plugin_shares;
mod nvml_view;
mod other_products;
mod plan_preview;
mod policies;
mod postponed_ends;
mod priority_classes;
mod process_attribution;
mod pull_secrets;
mod rights;
mod rights_page;
mod rollback;
mod rollout;
mod security_lists;
mod share_audit;
mod sharing;
mod sharing_admission;
mod slow_webhook;
mod stolen_tokens;
mod strategies;
mod taint;
mod tenant_view;
mod unreadable_times;
mod unserved_containers;
mod vgpu;
mod virtual_cluster;
mod virtual_cluster_rules;
mod virtual_cluster_token;
