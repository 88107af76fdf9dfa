//! Executes what [`decide`] returns, and publishes devices and state.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use gputenancy_crds::{AgentStep, GpuError, GpuNodeSpec, GpuSpec, Layout};
use tokio::sync::watch;

use super::{
    decide::{DecisionInput, PartitionDecision, WaitCause, decide},
    devices::{cordon_conflicts, cordon_withdrawn, device_uuid, devices, owner_of},
    idle::{Idleness, PROOF},
    progress::GpuProgress,
    retention::{retained, served_spec},
    served::ServedLayouts,
    state::{DesiredLayout, PartitionState},
};
use crate::{
    device::{Device, DeviceId, DeviceView, KubeletView, Owners},
    enforcement::cordon_weak,
    gpu::{
        Inventory, NvmlError, NvmlThread, ObservedGpu, ObservedInstance, Operation, OperationError, Scan,
        policy::{Retry, is_driver_unloaded, retry, retry_recorded},
        processes::process_origin::start_time,
    },
    handover::{ProcessPolicy, Withdrawal, withdrawal::Processes},
    metrics::Metrics,
    mps::{MpsView, state::mark_unhealthy},
    send_if_changed,
    warm_up::absent,
};

type Decisions = BTreeMap<String, PartitionDecision>;

struct Failure {
    error: GpuError,
    retry_at: Option<Instant>,
}

/// Partitions the GPUs of one node.
pub struct Reconciler {
    nvml: NvmlThread,
    metrics: Metrics,
    kubelet: watch::Receiver<KubeletView>,
    devices: watch::Sender<DeviceView>,
    state: watch::Sender<PartitionState>,
    processes: ProcessPolicy,
    /// The MPS daemons; none: shares are as healthy as their GPUs.
    mps: Option<watch::Receiver<MpsView>>,
    /// How long a removed instance must be unused.
    proof: Duration,
    layouts: ServedLayouts,
    memory: Memory,
}

/// What is known from earlier reconciles.
#[derive(Default)]
struct Memory {
    generation: Option<i64>,
    /// Faults of an earlier run are restored, or void.
    faults_restored: bool,
    idle: Idleness,
    /// A removal is pending, so scans include open files.
    removing: bool,
    failures: BTreeMap<String, Failure>,
    /// Devices that are occupied by processes of pods that do not own them.
    withdrawal: Withdrawal,
    /// Processes that the check before a destroy found, by GPU; until an operation succeeds.
    blockers: BTreeMap<String, Vec<u32>>,
    /// GPUs with blockers that are skipped until no other GPU has an operation left.
    skipped: BTreeSet<String>,
    /// Layouts that stay although the spec has others, by GPU.
    retained: BTreeMap<String, Layout>,
    /// Operations that succeeded since no GPU had an operation left.
    done: Vec<(String, Operation)>,
    /// The device that was advertised last at a place (GPU and first memory slice), and the generation of that view.
    advertised: BTreeMap<(String, Option<u32>), (DeviceId, u64)>,
    /// No GPU had an operation left once: the devices are the layout, and not a part of it.
    settled: bool,
    scan_took: Duration,
}

impl Reconciler {
    /// Publishes to `devices` and `state`.
    pub fn new(
        nvml: NvmlThread,
        metrics: Metrics,
        kubelet: watch::Receiver<KubeletView>,
        devices: watch::Sender<DeviceView>,
        state: watch::Sender<PartitionState>,
        processes: ProcessPolicy,
    ) -> Self {
        let (layouts, memory) = (ServedLayouts::default(), Memory::default());
        Self { nvml, metrics, kubelet, devices, state, processes, mps: None, proof: PROOF, layouts, memory }
    }

    /// With the state of MPS daemons: shares are unhealthy while theirs does not run.
    #[must_use]
    pub fn with_mps(self, mps: watch::Receiver<MpsView>) -> Self {
        Self { mps: Some(mps), ..self }
    }

    /// With the layouts that an earlier run served.
    #[must_use]
    pub fn with_layouts(self, layouts: ServedLayouts) -> Self {
        Self { layouts, ..self }
    }

    /// With another duration than [`PROOF`].
    #[must_use]
    pub fn with_proof(self, proof: Duration) -> Self {
        Self { proof, ..self }
    }

    /// Duration of the latest scan.
    pub fn scan_took(&self) -> Duration {
        self.memory.scan_took
    }

    /// Time until the next proof of idleness can be complete.
    pub fn until_proven(&self) -> Option<Duration> {
        self.memory.idle.until(self.proof, Instant::now())
    }

    /// Reads the inventory and executes at most one operation on each GPU. True: reconcile again at once. Without a desired layout
    /// nothing is changed.
    pub async fn reconcile(&mut self, desired: Option<&DesiredLayout>, scan: Scan) -> bool {
        let started = Instant::now();
        let owners = self.kubelet.borrow().known_owners().cloned();
        // whether a spec that differs from what an earlier run served may be carried out depends on the owners
        let undecided = |desired: &DesiredLayout| {
            self.memory.generation.is_none() && owners.is_none() && self.layouts.differ_from(&desired.spec)
        };
        let desired = desired.filter(|desired| !undecided(desired));
        let open_files = self.memory.removing
            || desired.is_some_and(DesiredLayout::has_withdrawn)
            || owners.as_ref().is_some_and(|owners| self.memory.withdrawal.needs_open_files(owners));
        let known = desired.map(|desired| desired.known_faults(!self.memory.faults_restored)).unwrap_or_default();
        let inventory = match self.nvml.read(scan, open_files, known).await {
            Ok(inventory) => inventory,
            Err(error) => return self.publish_error(error),
        };
        let now = Instant::now();
        self.memory.scan_took = now.saturating_duration_since(started);
        // a scan without open files proves nothing
        self.memory.idle = if open_files { self.memory.idle.after(&inventory.gpus, now) } else { Idleness::default() };
        let Some(desired) = desired else {
            self.memory.retained.clear();
            self.publish(None, inventory, owners, &Decisions::new());
            return false;
        };
        self.memory.faults_restored = true;
        self.adopt(desired);
        self.memory.retained =
            owners.as_ref().map(|owners| self.retained(desired, &inventory, owners)).unwrap_or_default();
        let decisions = self.decide(desired, &inventory, now);
        self.memory.removing = decisions
            .values()
            .any(|decision| matches!(decision, PartitionDecision::Operate(_) | PartitionDecision::Wait(..)));
        self.publish(Some(desired), inventory, owners, &decisions);
        self.end_overdue().await;
        let operations: Vec<(String, Operation)> = decisions.into_iter().filter_map(operation).collect();
        if operations.is_empty() {
            self.memory.done.clear();
            self.memory.skipped.clear();
            return false;
        }
        // an operation follows only from a full scan
        if scan == Scan::Quick {
            return true;
        }
        for (uuid, operation) in operations {
            if self.memory.done.contains(&(uuid.clone(), operation.clone())) {
                // it succeeded and is due again: without this it would be repeated for ever
                let error = OperationError::NoEffect { call: operation.names().1 };
                self.fail(desired, &uuid, &operation.to_string(), error);
            } else if let Err(error) = self.execute(desired, &uuid, operation).await {
                return self.publish_error(error);
            }
        }
        true
    }

    /// A new generation has no failures yet, except those that an earlier run recorded for it.
    fn adopt(&mut self, desired: &DesiredLayout) {
        if self.memory.generation == Some(desired.generation) {
            return;
        }
        let first = self.memory.generation.replace(desired.generation).is_none();
        self.memory.failures.clear();
        self.memory.blockers.clear();
        self.memory.skipped.clear();
        self.memory.done.clear();
        for (uuid, error) in desired.recorded.iter().filter(|_| first) {
            if error.generation == desired.generation && retry_recorded(error) == Retry::NewSpec {
                self.memory.failures.insert(uuid.clone(), Failure { error: error.clone(), retry_at: None });
            }
        }
    }

    /// Layouts of an earlier spec that pods use and the present one lacks.
    fn retained(&self, desired: &DesiredLayout, inventory: &Inventory, owners: &Owners) -> BTreeMap<String, Layout> {
        let of = |gpu: &ObservedGpu| {
            let spec = desired.spec.gpus.iter().find(|spec| spec.uuid == gpu.uuid);
            let layout = retained(self.layouts.of(&desired.spec, &gpu.uuid)?, spec, gpu, owners)?;
            Some((gpu.uuid.clone(), layout.clone()))
        };
        inventory.gpus.iter().filter_map(of).collect()
    }

    /// What is served of each GPU: its spec, or the layout that is retained.
    fn served<'s>(
        &self,
        specs: &'s [GpuSpec],
        inventory: &Inventory,
        owners: Option<&Owners>,
    ) -> Vec<Cow<'s, GpuSpec>> {
        let (none, retained) = (Owners::new(), &self.memory.retained);
        let kept = inventory.gpus.iter().filter_map(|gpu| {
            let spec = specs.iter().find(|spec| spec.uuid == gpu.uuid);
            Some(Cow::Owned(served_spec(retained.get(&gpu.uuid)?, spec, gpu, owners.unwrap_or(&none))))
        });
        let listed = specs.iter().filter(|spec| !retained.contains_key(&spec.uuid)).map(Cow::Borrowed);
        listed.chain(kept).collect()
    }

    /// Kubelet has given this device to a container, or still can.
    fn allocatable(&self, gpu: &ObservedGpu, instance: Option<&ObservedInstance>) -> bool {
        let advertised = self.memory.advertised.get(&(gpu.uuid.clone(), instance.map(|instance| instance.start)));
        let kubelet = self.kubelet.borrow();
        // without a compute instance there is no UUID: the id that was advertised at this place counts
        let unlisted = device_uuid(gpu, instance).is_none();
        let owned = |(id, _): &(DeviceId, u64)| unlisted && kubelet.owners.keys().any(|o| o.uuid() == id.uuid());
        // a container with a share is on the whole GPU or instance
        let uuid = device_uuid(gpu, instance);
        let shared = kubelet.owners.keys().any(|id| Some(id.uuid()) == uuid);
        kubelet.applied_generation <= advertised.map_or(0, |(_, generation)| *generation)
            || advertised.is_some_and(owned)
            || shared
            || owner_of(&kubelet.owners, gpu, instance).is_some()
    }

    fn decide(&self, desired: &DesiredLayout, inventory: &Inventory, now: Instant) -> Decisions {
        let decide = |gpu: &ObservedGpu| {
            let spec = desired.spec.gpus.iter().find(|spec| spec.uuid == gpu.uuid)?;
            if let Some(failure) = &gpu.failure {
                let error = OperationError::Nvml(failure.clone()).to_status("reading the GPU", desired.generation);
                return Some(PartitionDecision::Failed(error));
            }
            if self.memory.retained.contains_key(&gpu.uuid) {
                return Some(PartitionDecision::Wait(WaitCause::Owners, Vec::new()));
            }
            if self.memory.skipped.contains(&gpu.uuid) {
                return Some(PartitionDecision::Wait(WaitCause::Clients, Vec::new()));
            }
            let failure = self.memory.failures.get(&gpu.uuid);
            let failure = failure.filter(|failure| failure.retry_at.is_none_or(|at| now < at));
            let input = DecisionInput {
                generation: desired.generation,
                partitions: desired.spec.partitioner.is_agent(),
                allocatable: &|instance| self.allocatable(gpu, instance),
                idle: &|instance| self.memory.idle.lasted(&gpu.uuid, instance.map(|i| i.gi), self.proof, now),
                failure: failure.map(|failure| &failure.error),
            };
            Some(decide(spec, gpu, &input))
        };
        inventory.gpus.iter().filter_map(|gpu| Some((gpu.uuid.clone(), decide(gpu)?))).collect()
    }

    async fn execute(&mut self, desired: &DesiredLayout, uuid: &str, operation: Operation) -> Result<(), NvmlError> {
        let ((name, _), doing) = (operation.names(), operation.to_string());
        tracing::info!(gpu = uuid, generation = desired.generation, operation = doing, "executing operation");
        let outcome = self.nvml.execute(uuid, operation.clone()).await?;
        self.metrics.operation(name, outcome.is_ok());
        match outcome {
            Ok(()) => {
                self.memory.done.push((uuid.to_owned(), operation));
                self.memory.failures.remove(uuid);
                self.memory.blockers.remove(uuid);
            }
            Err(error) => self.fail(desired, uuid, &doing, error),
        }
        Ok(())
    }

    fn fail(&mut self, desired: &DesiredLayout, uuid: &str, doing: &str, error: OperationError) {
        tracing::warn!(gpu = uuid, generation = desired.generation, operation = doing, %error, "operation failed");
        let retry_at = match retry(&error) {
            Retry::NextScan => {
                let pids = if let OperationError::InUse { pids } = error { pids } else { Vec::new() };
                self.memory.idle.forget(uuid);
                self.memory.blockers.insert(uuid.to_owned(), pids);
                self.memory.skipped.insert(uuid.to_owned());
                return;
            }
            Retry::After(delay) => Some(Instant::now() + delay),
            Retry::NewSpec => None,
        };
        let error = error.to_status(doing, desired.generation);
        self.memory.failures.insert(uuid.to_owned(), Failure { error, retry_at });
    }

    /// NVML does not answer: running pods keep their devices, and all devices are unhealthy so that no new pod gets one.
    fn publish_error(&mut self, error: NvmlError) -> bool {
        self.memory.idle = Idleness::default();
        self.memory.faults_restored |= matches!(&error, NvmlError::Call(failure) if is_driver_unloaded(failure.code));
        let mut view = self.devices.borrow().clone();
        for device in &mut view.devices {
            device.healthy = false;
        }
        self.publish_devices(view);
        let owners = self.kubelet.borrow().known_owners().cloned();
        self.state.send_if_modified(|state| {
            let owners_changed = state.owners != owners;
            state.owners = owners;
            if state.nvml_error.as_ref() == Some(&error) {
                return owners_changed;
            }
            tracing::warn!(%error, "NVML does not answer");
            state.nvml_error = Some(error);
            true
        });
        false
    }

    fn publish(
        &mut self,
        desired: Option<&DesiredLayout>,
        inventory: Inventory,
        owners: Option<Owners>,
        decisions: &Decisions,
    ) {
        self.memory.settled |=
            desired.is_some() && !decisions.values().any(|d| matches!(d, PartitionDecision::Operate(_)));
        let specs = desired.map(|desired| desired.spec.gpus.as_slice()).unwrap_or_default();
        if let Some(desired) = desired.filter(|_| self.memory.settled) {
            let GpuNodeSpec { advertiser, allocation, ref enforcement, .. } = desired.spec;
            let served = self.served(specs, &inventory, owners.as_ref());
            let pairs = served.iter().filter_map(|spec| Some((spec, inventory.gpu(&spec.uuid)?)));
            let all = pairs.flat_map(|(spec, gpu)| devices(spec, gpu));
            let (mut devices, elsewhere): (Vec<Device>, Vec<Device>) = if advertiser.is_agent() {
                let before = self.devices.borrow();
                let absent = absent(&before.devices, &inventory, owners.as_ref());
                (all.chain(absent).collect(), Vec::new())
            } else {
                // NVML does not know shares; the plugin serves none of instances
                (Vec::new(), all.filter(|device| device.share.is_some() && device.mig.is_none()).collect())
            };
            cordon_conflicts(&mut devices, owners.as_ref().unwrap_or(&Owners::new()));
            if let Some(owners) = &owners {
                cordon_withdrawn(&mut devices, &served, owners);
            }
            cordon_weak(&mut devices, enforcement.minimum, self.kubelet.borrow().limiters);
            if !enforcement.unscrubbed_memory.admits(inventory.scrub()) {
                for device in &mut devices {
                    device.cordoned = true;
                }
            }
            if let Some(owners) = &owners {
                let origins = &self.processes.origins;
                let processes =
                    Processes { origin: &|pid| origins.of(pid), start: &|pid| start_time(&origins.proc_root, pid) };
                self.memory.withdrawal.cordon(&mut devices, &inventory, owners, &processes, Instant::now());
            }
            if let Some(mps) = &self.mps {
                mark_unhealthy(&mut devices, &mps.borrow());
            }
            let minimum = enforcement.minimum;
            self.publish_devices(DeviceView { generation: 0, devices, elsewhere, advertiser, allocation, minimum });
            self.layouts.update(desired, &inventory, &self.memory.retained);
        }
        let gpus = inventory.gpus.iter().map(|gpu| (gpu.uuid.clone(), self.progress(gpu, decisions))).collect();
        let absent = specs.iter().map(|spec| &spec.uuid).filter(|uuid| inventory.gpu(uuid).is_none()).cloned();
        let state = PartitionState {
            generation: desired.map(|desired| desired.generation),
            absent: absent.collect(),
            inventory: Some(inventory),
            nvml_error: None,
            owners,
            former_owners: self.memory.withdrawal.former_owners(),
            quarantined: self.memory.withdrawal.quarantined().clone(),
            gpus,
            retained: self.memory.retained.clone(),
        };
        send_if_changed(&self.state, state);
    }

    /// Ends processes that have occupied a device for too long, if the policy permits that.
    async fn end_overdue(&mut self) {
        let Some(terminator) = &self.processes.terminator else { return };
        let overdue = self.memory.withdrawal.overdue(terminator.deadline, Instant::now());
        let killed = terminator.end(&overdue).await;
        self.memory.withdrawal.killed(&killed, Instant::now());
    }

    fn progress(&self, gpu: &ObservedGpu, decisions: &Decisions) -> GpuProgress {
        let blockers = self.memory.blockers.get(&gpu.uuid);
        let in_use = PartitionDecision::Wait(WaitCause::Clients, Vec::new());
        let progress = match decisions.get(&gpu.uuid) {
            None => GpuProgress { step: AgentStep::Unmanaged, ..GpuProgress::default() },
            // an operation that was refused waits for the blockers until it succeeds
            Some(PartitionDecision::Operate(_)) if blockers.is_some() => GpuProgress::of(&in_use, gpu, ""),
            Some(decision) => GpuProgress::of(decision, gpu, &self.kubelet.borrow().message),
        };
        GpuProgress { blockers: blockers.cloned().unwrap_or_default(), ..progress }
    }

    /// Publishes a view, with the generation that it gets here.
    fn publish_devices(&mut self, next: DeviceView) {
        let (metrics, last) = (&self.metrics, &mut self.memory.advertised);
        self.devices.send_if_modified(|view| {
            let same = *view == DeviceView { generation: view.generation, ..next.clone() };
            if view.generation > 0 && same || view.generation == 0 && !self.memory.settled {
                return false;
            }
            *view = DeviceView { generation: view.generation + 1, ..next };
            metrics.set_devices(view);
            for device in view.devices.iter().filter(|device| device.advertised()) {
                let place = (device.gpu_uuid.clone(), device.mig.as_ref().map(|mig| mig.start));
                last.insert(place, (device.id.clone(), view.generation));
            }
            true
        });
    }
}

fn operation((uuid, decision): (String, PartitionDecision)) -> Option<(String, Operation)> {
    match decision {
        PartitionDecision::Operate(operation) => Some((uuid, operation)),
        _ => None,
    }
}
