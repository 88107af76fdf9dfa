//! The library and the program behind `kubectl gpu`, without a cluster.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests may panic as tests do"
)]

mod catalog;
mod decoding;
mod library;
mod lint;
mod lint_objects;
mod lint_queued_jobs;
mod lint_queues;
mod lint_sharing;
mod plan;
mod status;
mod tenant;
mod tenant_queue;
mod virtual_clusters;
mod wrong_input;
