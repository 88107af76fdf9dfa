//! Faults that make a GPU unfit for new pods until it is reset.

use std::{collections::BTreeMap, slice};

use gputenancy_crds::{GpuNodeStatus, GpuState};
use gputenancy_nvml::{FaultEvent, FaultKind};

use super::{
    fault_class::{FaultClass, SeenFault, text},
    inventory::Inventory,
};

/// Faults that an inventory keeps for those who report them.
const KEPT: usize = 32;

/// Text of a fault; none if a program causes it.
fn fault(kind: FaultKind) -> Option<String> {
    (FaultClass::of(kind) != FaultClass::Application).then(|| text(kind))
}

/// The fault of each unhealthy GPU, and those that were reported recently.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    unhealthy: BTreeMap<String, String>,
    seen: Vec<SeenFault>,
}

impl Faults {
    /// Records an event. An event without a UUID counts for all GPUs.
    pub fn record(&mut self, event: &FaultEvent, all_uuids: &[String]) {
        let FaultEvent { uuid, instance, kind } = event;
        let number = self.seen.last().map_or(1, |last| last.number + 1);
        self.seen.push(SeenFault { number, uuid: uuid.clone(), instance: *instance, kind: *kind });
        self.seen.drain(..self.seen.len().saturating_sub(KEPT));
        let Some(fault) = fault(*kind) else { return };
        for uuid in uuid.as_ref().map_or(all_uuids, slice::from_ref) {
            tracing::warn!(gpu = uuid, fault, "marking GPU unhealthy until it is reset");
            self.unhealthy.insert(uuid.clone(), fault.clone());
        }
    }

    /// Restores a fault that an earlier run of the agent recorded.
    pub fn restore(&mut self, recorded: RecordedFault) {
        tracing::warn!(gpu = recorded.uuid, fault = recorded.fault, "restoring fault: no reset since");
        self.unhealthy.entry(recorded.uuid).or_insert(recorded.fault);
    }

    /// The fault of this GPU.
    pub fn fault(&self, uuid: &str) -> Option<&String> {
        self.unhealthy.get(uuid)
    }

    /// What was reported recently, oldest first.
    pub fn seen(&self) -> &[SeenFault] {
        &self.seen
    }

    /// The driver was loaded again, which resets all GPUs.
    pub fn clear_all(&mut self) {
        self.unhealthy.clear();
    }

    /// The GPU was reset.
    pub fn clear(&mut self, uuid: &str) {
        self.unhealthy.remove(uuid);
    }
}

/// A fault in the status that an earlier run of the agent wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedFault {
    /// The GPU.
    pub uuid: String,
    /// The fault.
    pub fault: String,
    /// Version of the driver at that time.
    pub driver_version: Option<String>,
    /// The GPU had instances at that time.
    pub had_instances: bool,
}

/// The faults in a status, if it was written since the node booted: a boot resets all GPUs.
pub fn recorded(status: &GpuNodeStatus, boot_id: &str) -> Vec<RecordedFault> {
    if status.boot_id.as_deref() != Some(boot_id) {
        return Vec::new();
    }
    let fault = |gpu: &GpuState| {
        Some(RecordedFault {
            uuid: gpu.uuid.clone(),
            fault: gpu.fault.clone()?,
            driver_version: status.driver_version.clone(),
            had_instances: !gpu.instances.is_empty(),
        })
    };
    status.gpus.iter().filter_map(fault).collect()
}

impl RecordedFault {
    /// No reset is known since. Another driver version and the loss of all instances are signs of one.
    pub fn still_holds(&self, inventory: &Inventory) -> bool {
        let same_driver = self.driver_version.as_ref().is_none_or(|version| *version == inventory.driver_version);
        let emptied = inventory.gpu(&self.uuid).is_some_and(|gpu| gpu.failure.is_none() && gpu.instances.is_empty());
        same_driver && !(self.had_instances && emptied)
    }
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::{Health, InstanceState};

    use super::*;
    use crate::gpu::inventory::{ObservedGpu, ObservedInstance};

    #[test]
    fn faults_ignore_xids_of_programs() {
        assert_eq!(fault(FaultKind::Xid(31)), None);
        assert_eq!(fault(FaultKind::Xid(79)).as_deref(), Some("Xid 79"));
        assert!(fault(FaultKind::UncorrectableEcc).is_some());
    }

    #[test]
    fn recorded_fault_holds_until_a_sign_of_a_reset() {
        let gpu = GpuState {
            uuid: "GPU-a".into(),
            health: Health::Unhealthy,
            fault: Some("Xid 79".into()),
            instances: vec![InstanceState::default()],
            ..GpuState::default()
        };
        let status = GpuNodeStatus {
            boot_id: Some("boot".into()),
            driver_version: Some("580".into()),
            gpus: vec![gpu, GpuState { uuid: "GPU-b".into(), ..GpuState::default() }],
            ..GpuNodeStatus::default()
        };
        assert!(recorded(&status, "another boot").is_empty());
        let faults = recorded(&status, "boot");
        assert_eq!(faults.iter().map(|fault| fault.uuid.as_str()).collect::<Vec<_>>(), ["GPU-a"]);
        let observed = |driver: &str, instances| Inventory {
            driver_version: driver.into(),
            gpus: vec![ObservedGpu { uuid: "GPU-a".into(), instances, ..ObservedGpu::default() }],
            ..Inventory::default()
        };
        assert!(faults[0].still_holds(&observed("580", vec![ObservedInstance::default()])));
        assert!(!faults[0].still_holds(&observed("590", vec![ObservedInstance::default()])), "another driver");
        assert!(!faults[0].still_holds(&observed("580", Vec::new())), "only a reset removes all instances");
        assert!(faults[0].still_holds(&Inventory { driver_version: "580".into(), ..Inventory::default() }));
    }

    #[test]
    fn fault_without_uuid_marks_all_gpus_until_each_is_reset() {
        let mut faults = Faults::default();
        let all = ["GPU-a".to_owned(), "GPU-b".to_owned()];
        faults.record(&FaultEvent { uuid: None, instance: None, kind: FaultKind::Xid(79) }, &all);
        faults.clear("GPU-a");
        assert_eq!(faults.fault("GPU-a"), None);
        assert!(faults.fault("GPU-b").is_some());
    }
}
