//! What the README promises, on a real cluster: one program, so that its tests share the running labs (`GPUTENANCY_LABS`), each
//! test alone in one of them.
#![allow(
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that panics says what it found"
)]
#![allow(clippy::needless_pass_by_value, reason = "a table of json! reads better without ampersands")]

// Tests begin in the order of these names: none that takes minutes is among the last, or the other labs would wait for it.
mod access;
mod at_rest;
mod benchmarks;
mod budget;
mod bypass;
mod called;
mod canary;
mod chart;
mod churn;
mod classes;
mod crashes;
mod equivalents;
mod farewell;
mod foreign;
mod gitops;
mod gpu_client;
mod helm;
mod hidden;
mod isolation;
mod kinds;
mod maintenance;
mod mig_manager;
mod nvidia_plugin;
mod orphans;
mod patience;
mod policies;
mod preview;
mod pull_secrets;
mod refusals;
mod rights;
mod story;
mod taint;
mod tenant_view;
