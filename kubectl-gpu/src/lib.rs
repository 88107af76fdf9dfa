//! `kubectl gpu`: what the cluster would do about changed manifests, with or without a cluster, what changes are doing, and how a
//! tenant stands.
//!
//! Everything that decides is pure: [`input`] reads files into located documents, [`world`] puts them together,
//! [`preview`] compares two worlds through the operator's own planner, [`render`] writes what it found. Talking to a cluster
//! ([`cluster`], [`changes`], [`tenant`]) is a thin shell around that.

pub mod args;
pub mod changes;
pub mod cluster;
pub mod input;
pub mod lint;
pub mod preview;
pub mod render;
pub mod run;
pub mod snapshot;
pub mod tenant;
pub mod world;
