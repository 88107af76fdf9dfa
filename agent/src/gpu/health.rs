//! Which faults make a GPU unfit for new work.

use std::collections::BTreeMap;

use gputenancy_crds::{GpuNodeStatus, Health};
use gputenancy_nvml::{Event, EventKind};

use super::Inventory;

/// Xid errors that a program causes by itself; the GPU is as good as before.
const FAULTS_OF_PROGRAMS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// Does this fault condemn the GPU until it is reset?
pub fn condemns(kind: EventKind) -> bool {
    match kind {
        EventKind::Xid(number) => !FAULTS_OF_PROGRAMS.contains(&number),
        EventKind::UncorrectableEcc => true,
    }
}

/// GPUs that reported a fault, by UUID, with the fault in words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condemned(BTreeMap<String, String>);

impl Condemned {
    /// Takes note of a fault. One whose GPU cannot be told any more condemns all: `every`.
    pub fn note(&mut self, event: &Event, every: &[String]) {
        if !condemns(event.kind) {
            return;
        }
        let fault = match event.kind {
            EventKind::Xid(number) => format!("Xid {number}"),
            EventKind::UncorrectableEcc => "uncorrectable ECC error".to_owned(),
        };
        let uuids = event.uuid.as_ref().map_or(every, std::slice::from_ref);
        for uuid in uuids {
            tracing::warn!(gpu = uuid, fault, "the GPU takes no new work until it is reset");
            self.0.insert(uuid.clone(), fault.clone());
        }
    }

    /// An earlier run of the agent noted this.
    pub fn recall(&mut self, recorded: RecordedFault) {
        tracing::warn!(gpu = recorded.uuid, fault = recorded.fault, "a fault of before, and no reset since");
        self.0.entry(recorded.uuid).or_insert(recorded.fault);
    }

    /// The fault of this GPU, in words.
    pub fn fault(&self, uuid: &str) -> Option<&str> {
        self.0.get(uuid).map(String::as_str)
    }

    /// The GPU was reset.
    pub fn pardon(&mut self, uuid: &str) {
        self.0.remove(uuid);
    }

    /// The driver was loaded anew, which resets everything.
    pub fn pardon_all(&mut self) {
        self.0.clear();
    }

    /// Health of a GPU that answers.
    pub fn health(&self, uuid: &str) -> Health {
        if self.0.contains_key(uuid) { Health::Unhealthy } else { Health::Healthy }
    }
}

/// A fault as an earlier run of the agent wrote it down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedFault {
    /// The GPU.
    pub uuid: String,
    /// The fault, in words.
    pub fault: String,
    /// The driver's version then.
    pub driver_version: Option<String>,
    /// There were instances on the GPU.
    pub carved: bool,
}

/// The faults that a status tells of, if it is of this boot: a node that restarts resets its GPUs.
pub fn recorded(status: &GpuNodeStatus, boot_id: &str) -> Vec<RecordedFault> {
    if status.boot_id.as_deref() != Some(boot_id) {
        return Vec::new();
    }
    let fault = |gpu: &gputenancy_crds::GpuState| {
        Some(RecordedFault {
            uuid: gpu.uuid.clone(),
            fault: gpu.fault.clone()?,
            driver_version: status.driver_version.clone(),
            carved: !gpu.instances.is_empty(),
        })
    };
    status.gpus.iter().filter_map(fault).collect()
}

impl RecordedFault {
    /// Has there been no reset since, as far as can be seen? Another driver was loaded anew; and instances do not outlive a reset.
    pub fn still_holds(&self, inventory: &Inventory) -> bool {
        let same_driver = self.driver_version.as_ref().is_none_or(|version| *version == inventory.driver_version);
        let swept = inventory.gpu(&self.uuid).is_some_and(|gpu| gpu.trouble.is_none() && gpu.instances.is_empty());
        same_driver && !(self.carved && swept)
    }
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::{GpuState, InstanceState};

    use super::*;
    use crate::gpu::{SeenGpu, SeenInstance};

    #[test]
    fn a_programs_own_fault_condemns_nothing() {
        assert!(!condemns(EventKind::Xid(31)));
        assert!(condemns(EventKind::Xid(79)));
        assert!(condemns(EventKind::UncorrectableEcc));
    }

    #[test]
    fn a_recorded_fault_holds_until_something_tells_of_a_reset() {
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
        let seen = |driver: &str, instances| Inventory {
            driver_version: driver.into(),
            gpus: vec![SeenGpu { uuid: "GPU-a".into(), instances, ..SeenGpu::default() }],
            ..Inventory::default()
        };
        assert!(faults[0].still_holds(&seen("580", vec![SeenInstance::default()])));
        assert!(!faults[0].still_holds(&seen("590", vec![SeenInstance::default()])), "another driver");
        assert!(!faults[0].still_holds(&seen("580", Vec::new())), "instances went, which only a reset explains");
        assert!(faults[0].still_holds(&Inventory { driver_version: "580".into(), ..Inventory::default() }));
    }

    #[test]
    fn a_fault_of_an_unknown_gpu_condemns_all_until_reset() {
        let mut condemned = Condemned::default();
        let every = ["GPU-a".to_owned(), "GPU-b".to_owned()];
        condemned.note(&Event { uuid: None, kind: EventKind::Xid(79) }, &every);
        condemned.pardon("GPU-a");
        assert_eq!(condemned.health("GPU-a"), Health::Healthy);
        assert_eq!(condemned.health("GPU-b"), Health::Unhealthy);
    }
}
