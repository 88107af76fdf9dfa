//! The Node of this agent: its allocatable, its names without devices, what its pods request, and which of them run in a sandbox.

pub mod own_node;
pub mod poll;
pub mod requests;
pub mod runtime_classes;
pub mod sandbox;

pub use gputenancy_agent_core::kubelet::{allocatable, stale_names};
