//! What an allocation asks of NVML: the processes on some GPUs.

use std::collections::BTreeSet;

use tokio::sync::oneshot;

use super::{error::NvmlError, inventory::Inventory};

/// Where an answer goes. A caller that has given up needs none.
pub(super) type Reply<T> = oneshot::Sender<T>;

/// A question for the processes on these GPUs. It is answered between two GPUs of a scan, so that an allocation does not wait for the other ones.
pub(super) struct Check {
    /// UUIDs of the GPUs.
    pub(super) uuids: BTreeSet<String>,
    /// The answer.
    pub(super) reply: Reply<Result<Inventory, NvmlError>>,
}
