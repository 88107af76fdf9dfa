//! Devices that the latest check found without an owner and without a process: kubelet asks for a preference and allocates right after, and a hundred pods
//! that are bound at once are checked together.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{device::DeviceId, gpu::Connections};

/// How long the result of a check holds. A device that had no owner gets one only by an allocation of this agent, after which it is not free here. It can
/// only be that a process of a pod that was deleted with force begins to use it meanwhile; no check covers the time until the first process of
/// the new container, and that is longer than this.
pub const HOLDS: Duration = Duration::from_millis(250);

/// The free devices.
#[derive(Debug, Default)]
pub struct FreeDevices {
    ids: BTreeSet<DeviceId>,
    connections: Arc<Connections>,
    /// When the check began; `None` before the first.
    begun: Option<Instant>,
}

impl FreeDevices {
    /// The result of a check that began at `begun`: free devices, and how the GPUs are connected.
    pub fn new(ids: BTreeSet<DeviceId>, connections: Arc<Connections>, begun: Instant) -> Self {
        Self { ids, connections, begun: Some(begun) }
    }

    /// They are of a check that began after this time.
    pub fn is_later_than(&self, begun: Instant) -> bool {
        self.begun.is_some_and(|own| own > begun)
    }

    /// How the GPUs are connected, if all of these devices are free.
    pub fn connections(&self, ids: &[DeviceId], now: Instant) -> Option<&Arc<Connections>> {
        let recent = self.begun.is_some_and(|begun| now.saturating_duration_since(begun) < HOLDS);
        (recent && ids.iter().all(|id| self.ids.contains(id))).then_some(&self.connections)
    }

    /// Only devices that pass `stays` are free from now on.
    pub fn retain(&mut self, stays: impl Fn(&DeviceId) -> bool) {
        self.ids.retain(stays);
    }
}
