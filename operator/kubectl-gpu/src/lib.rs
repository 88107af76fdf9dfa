//! `kubectl gpu`: previews of changed manifests with or without a cluster, changes in progress, checks, and the status of the
//! fleet and of a tenant.
//!
//! The decisions are pure: [`input`] reads files into located documents, [`world`] assembles them, [`preview`] compares two worlds
//! with the operator's planner, [`lint`] checks manifests, [`status`] lists devices, [`catalog`] describes profiles, [`render`] writes the results. [`cluster`], [`follow`], [`kubeconfig`] and
//! [`tenant::gather`] read a cluster; [`connect`] forwards a port of one, and [`top`] reads the agents' metrics.

pub mod args;
pub mod catalog;
pub mod changes;
pub mod cluster;
pub mod connect;
pub mod follow;
pub mod input;
mod inside;
pub mod kubeconfig;
pub mod lint;
pub mod output;
pub mod preview;
mod progress;
mod records;
pub mod render;
pub mod run;
pub mod snapshot;
pub mod status;
pub mod tenant;
pub mod top;
mod units;
pub mod world;

pub use inside::Inside;
