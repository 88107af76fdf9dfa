//! Containers that outlive the deletion of their pod: kubelet ends them with the grace period, unless a hook or a probe of the pod holds
//! it up. Until then the pod keeps its devices, while quotas no longer count it.

mod notices;
mod stopper;

pub use gputenancy_agent_core::pods_past_grace::{OverduePod, TerminatingPods};
pub use stopper::OverdueStopper;
