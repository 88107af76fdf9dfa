//! Memory limits of cgroups in the driver, as from version 615 on.

use serde::{Deserialize, Serialize};

use crate::clients::Client;

/// `NVML_DEVICE_MEMORY_LIMIT_MAX`: no hard limit.
pub const NO_LIMIT: u64 = u64::MAX;

/// What the driver has of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryLimits {
    /// The driver has the calls; else they are not supported.
    pub supported: bool,
    /// The limits.
    pub set: Vec<MemoryLimit>,
}

/// The limit of one cgroup on one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryLimit {
    /// GPU index.
    pub gpu: u32,
    /// The cgroup's folder.
    pub cgroup: String,
    /// The cgroup's id; a later one of the same name has another.
    pub id: u64,
    /// Guaranteed bytes.
    pub soft: u64,
    /// Most bytes.
    pub hard: u64,
}

/// Bytes of these clients that count against a limit.
pub fn used(limit: &MemoryLimit, clients: &[Client]) -> u64 {
    let below = |client: &&Client| client.gpu == limit.gpu && client.cgroups.contains(&limit.id);
    clients.iter().filter(below).map(|client| client.memory).sum()
}
