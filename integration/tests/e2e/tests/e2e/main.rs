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

mod change;
mod demo;
mod demo_virtual_cluster;
mod devices;
mod limits;
mod liveness;
mod queues;
mod sharing;
mod tenancy;
mod usage;
mod virtual_cluster;
