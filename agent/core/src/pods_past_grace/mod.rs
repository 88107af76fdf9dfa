//! Containers that outlive the deletion of their pod: the deleted [`pods`], and the [`schedule`] by which they are stopped.

pub mod pods;
pub mod schedule;

pub use pods::{OverduePod, TerminatingPods};
