//! The desired layout, and the state that the status is built from.

use std::collections::BTreeMap;

use gputenancy_crds::{AgentStep, GpuError, GpuNodeSpec, GpuSpec, Layout};

use super::progress::GpuProgress;
use crate::{
    device::{DeviceId, Owners},
    gpu::{
        Inventory, NvmlError,
        faults::{KnownFaults, RecordedFault},
    },
};

/// The layout that the `GpuNode` asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DesiredLayout {
    /// UID of the `GpuNode`: one that was deleted and created again has another.
    pub object: String,
    /// Generation of the spec.
    pub generation: i64,
    /// The spec.
    pub spec: GpuNodeSpec,
    /// Errors that an earlier run of the agent recorded, by GPU.
    pub recorded: BTreeMap<String, GpuError>,
    /// Faults that an earlier run recorded since the node booted.
    pub faults: Vec<RecordedFault>,
}

impl DesiredLayout {
    /// A device is withdrawn, so its instance may soon be removed.
    pub fn has_withdrawn(&self) -> bool {
        self.spec.gpus.iter().any(|gpu| !gpu.hold.is_empty())
    }

    /// What is known of faults; those of an earlier run only where they are to be restored.
    pub fn known_faults(&self, restore: bool) -> KnownFaults {
        let recorded = if restore { self.faults.clone() } else { Vec::new() };
        let verdict = |gpu: &GpuSpec| Some((gpu.uuid.clone(), gpu.fault_verdict.clone()?));
        KnownFaults { recorded, verdicts: Some(self.spec.gpus.iter().filter_map(verdict).collect()) }
    }
}

/// State of the partitioning: what the status is built from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PartitionState {
    /// Generation of the spec that `gpus` refers to; `None` before the first spec.
    pub generation: Option<i64>,
    /// The latest inventory.
    pub inventory: Option<Inventory>,
    /// Why NVML does not answer now.
    pub nvml_error: Option<NvmlError>,
    /// Owners of devices as kubelet reported them before the inventory was read; `None` before kubelet's first report. Read first, so
    /// that a process in the inventory is not unattributed because its pod has ended since.
    pub owners: Option<Owners>,
    /// Containers whose processes keep a device withdrawn although it has no owner.
    pub former_owners: Owners,
    /// Devices that are withdrawn because no process explains their memory in use, in MiB.
    pub quarantined: BTreeMap<DeviceId, u64>,
    /// Progress of each GPU, by UUID.
    pub gpus: BTreeMap<String, GpuProgress>,
    /// Layouts that are served instead of those of the spec, by UUID of the GPU: pods own devices that the spec lacks.
    pub retained: BTreeMap<String, Layout>,
    /// GPUs in the spec that NVML does not list.
    pub absent: Vec<String>,
}

impl PartitionState {
    /// Some GPU is expected to make progress soon.
    pub fn is_in_progress(&self) -> bool {
        self.gpus.values().any(|gpu| {
            !matches!(gpu.step, AgentStep::Steady | AgentStep::Unmanaged | AgentStep::Failed | AgentStep::LeftAlone)
        })
    }
}
