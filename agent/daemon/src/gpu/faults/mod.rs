//! Faults that make a GPU unfit for new pods until it is reset, or has recovered.

pub mod recovery;

use std::{collections::BTreeMap, slice};

use gputenancy_crds::{FaultRecovery, FaultVerdict, GpuNodeStatus, GpuState};
use gputenancy_nvml::{FaultEvent, FaultKind};
use k8s_openapi::jiff::Timestamp;

use self::recovery::{Asked, GpuFaults, in_seconds};
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

/// What is known about faults in addition to what the driver reports.
#[derive(Clone, Debug, Default)]
pub struct KnownFaults {
    /// Faults that an earlier run of the agent has reported: they are restored if they still hold.
    pub recorded: Vec<RecordedFault>,
    /// What was found about the faults of GPUs, by UUID; `None`: as before.
    pub verdicts: Option<BTreeMap<String, FaultVerdict>>,
}

/// The faults of each GPU, and those that were reported recently.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    gpus: BTreeMap<String, GpuFaults>,
    verdicts: BTreeMap<String, FaultVerdict>,
    seen: Vec<SeenFault>,
}

impl Faults {
    /// Records an event. An event without a UUID counts for all GPUs.
    pub fn record(&mut self, event: &FaultEvent, all_uuids: &[String], now: Timestamp) {
        let FaultEvent { uuid, instance, kind } = event;
        let number = self.seen.last().map_or(1, |last| last.number + 1);
        self.seen.push(SeenFault { number, uuid: uuid.clone(), instance: *instance, kind: *kind });
        self.seen.drain(..self.seen.len().saturating_sub(KEPT));
        let Some(fault) = fault(*kind) else { return };
        for uuid in uuid.as_ref().map_or(all_uuids, slice::from_ref) {
            tracing::warn!(gpu = uuid, fault, "marking GPU unhealthy");
            self.gpus.entry(uuid.clone()).or_default().record(fault.clone(), now);
        }
    }

    /// Takes what else is known: verdicts, and recorded faults as far as they still hold.
    pub fn learn(&mut self, known: KnownFaults, inventory: &Inventory, now: Timestamp) {
        let KnownFaults { recorded, verdicts } = known;
        for RecordedFault { uuid, fault, times, .. } in recorded.into_iter().filter(|f| f.still_holds(inventory)) {
            tracing::warn!(gpu = uuid, fault, "restoring faults: no reset since");
            // an agent of an earlier release has reported no times
            let times = if times.is_empty() { vec![in_seconds(now)] } else { times };
            self.gpus.entry(uuid).or_insert_with(|| GpuFaults::recorded(fault, times));
        }
        self.verdicts = verdicts.unwrap_or_else(|| std::mem::take(&mut self.verdicts));
    }

    /// The fault of this GPU, and how it recovers. `asked` reads what the driver asks for, and is called for a GPU with a fault only.
    pub fn observe(
        &mut self,
        uuid: &str,
        asked: impl FnOnce() -> Asked,
        now: Timestamp,
    ) -> (Option<String>, Option<FaultRecovery>) {
        let Some(gpu) = self.gpus.get_mut(uuid) else { return (None, None) };
        let before = gpu.fault.clone();
        gpu.observe(before.as_ref().map_or(Asked::Unknown, |_| asked()), self.verdicts.get(uuid), now);
        if let (Some(fault), None) = (&before, &gpu.fault) {
            tracing::info!(gpu = uuid, fault, "fault is cleared");
        }
        let (fault, recovery) = (gpu.fault.clone(), gpu.recovery(now));
        if gpu.is_over() {
            self.gpus.remove(uuid);
        }
        (fault, recovery)
    }

    /// What was reported recently, oldest first.
    pub fn seen(&self) -> &[SeenFault] {
        &self.seen
    }

    /// The driver was loaded again, which resets all GPUs.
    pub fn clear_all(&mut self) {
        self.gpus.clear();
    }

    /// The GPU was reset.
    pub fn clear(&mut self, uuid: &str) {
        self.gpus.remove(uuid);
    }
}

/// Faults of a GPU in the status that an earlier run of the agent wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedFault {
    /// The GPU.
    pub uuid: String,
    /// The fault that keeps new pods away; `None`: those before are cleared.
    pub fault: Option<String>,
    /// When they came, oldest first.
    pub times: Vec<Timestamp>,
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
    let faults = |gpu: &GpuState| {
        let times: Vec<Timestamp> = gpu.recovery.iter().flat_map(|r| &r.faults).map(|at| at.0).collect();
        let recorded = RecordedFault {
            uuid: gpu.uuid.clone(),
            fault: gpu.fault.clone(),
            times,
            driver_version: status.driver_version.clone(),
            had_instances: !gpu.instances.is_empty(),
        };
        (recorded.fault.is_some() || !recorded.times.is_empty()).then_some(recorded)
    };
    status.gpus.iter().filter_map(faults).collect()
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
        let (mut faults, now) = (Faults::default(), Timestamp::UNIX_EPOCH);
        let all = ["GPU-a".to_owned(), "GPU-b".to_owned()];
        faults.record(&FaultEvent { uuid: None, instance: None, kind: FaultKind::Xid(79) }, &all, now);
        faults.clear("GPU-a");
        assert_eq!(faults.observe("GPU-a", || panic!("not asked"), now), (None, None));
        assert_eq!(faults.observe("GPU-b", || Asked::Unsupported, now).0.as_deref(), Some("Xid 79"));
    }

    #[test]
    fn restart_keeps_faults_and_their_times_and_a_verdict_clears_them() {
        let (mut faults, now) = (Faults::default(), Timestamp::from_second(1_800_000_000).unwrap());
        let event = FaultEvent { uuid: Some("GPU-a".into()), instance: None, kind: FaultKind::Xid(48) };
        faults.record(&event, &[], now);
        let (fault, recovery) = faults.observe("GPU-a", || Asked::Unknown, now);
        let gpu = GpuState { uuid: "GPU-a".into(), fault, recovery: recovery.clone(), ..GpuState::default() };
        let status = GpuNodeStatus { boot_id: Some("boot".into()), gpus: vec![gpu], ..GpuNodeStatus::default() };
        let (mut restarted, inventory) = (Faults::default(), Inventory::default());
        restarted.learn(KnownFaults { recorded: recorded(&status, "boot"), verdicts: None }, &inventory, now);
        assert_eq!(restarted.observe("GPU-a", || Asked::Unknown, now), (Some("Xid 48".into()), recovery.clone()));
        let until = recovery.unwrap().latest().unwrap().clone();
        let verdict = FaultVerdict {
            until,
            finding: gputenancy_crds::FaultFinding::CanaryPassed,
            reason: "a canary pod has passed".into(),
        };
        let verdicts = Some(BTreeMap::from([("GPU-a".to_owned(), verdict)]));
        restarted.learn(KnownFaults { recorded: Vec::new(), verdicts }, &inventory, now);
        // a read without verdicts, as the check of an allocation makes it, changes nothing
        restarted.learn(KnownFaults::default(), &inventory, now);
        let (fault, recovery) = restarted.observe("GPU-a", || Asked::Unknown, now);
        assert_eq!((fault, recovery.unwrap().state), (None, gputenancy_crds::RecoveryState::Cleared));
    }
}
