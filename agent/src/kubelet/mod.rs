//! The agent as kubelet sees it: a device plugin that knows what it gave away and keeps the node's allocatable true.

pub mod config;
pub mod offer;
pub mod proto;
