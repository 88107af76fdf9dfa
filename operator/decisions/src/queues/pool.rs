//! The state of a pool's queues.

use gputenancy_crds::reasons::Reason;

/// Does the queueing system admit jobs for the devices of a pool?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolQueue {
    /// It does.
    pub ready: bool,
    /// Why, or why not.
    pub reason: Reason,
    /// State, number, object, remedy.
    pub message: String,
}
