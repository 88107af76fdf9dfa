//! The custom resources: their manifests, their rules, and how documents are read.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests may panic as tests do"
)]

#[cfg(feature = "v1_36")]
mod decoding;
#[cfg(feature = "v1_36")]
mod generated;
#[cfg(feature = "v1_36")]
mod names;
mod reasons;
#[cfg(feature = "v1_36")]
mod transitions;
