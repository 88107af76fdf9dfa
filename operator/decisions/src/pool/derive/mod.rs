//! What follows of a node from what was read, without a decision: states, owners, marks, devices, sums.
//!
//! Each module keeps its result from one pass to the next, and renews it for the nodes that have changed.

pub mod devices;
pub mod discovery;
pub mod enforcement;
pub mod flapping;
pub mod gpu_marks;
pub mod marks;
pub mod node_states;
pub mod node_view;
pub mod node_views;
pub mod ownership;
pub mod pod_index;
pub mod silence;
pub mod sums;
