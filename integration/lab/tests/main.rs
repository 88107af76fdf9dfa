//! The lab itself, as root: a cluster like separate machines, and nothing left on the host.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a failure here is a failed test")]

mod cluster;
mod host;
