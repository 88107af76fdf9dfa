//! Reads the inventory: everything in a full scan, and what changes by itself in a quick one.

pub mod connections;
pub mod memory_scrub;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::{Arc, mpsc::Receiver},
};

use gputenancy_crds::{Health, MemoryScrub};
use gputenancy_nvml::{ComputeProfile, EventSet, Gpu, MemoryUse, Nvml, NvmlFailure, Vgpu, code, full_width};
use k8s_openapi::jiff::Timestamp;

use self::connections::Topology;
use super::{
    check::Check,
    driver::Session,
    error::NvmlError,
    faults::{Faults, KnownFaults, recovery::Asked},
    inventory::{Inventory, ObservedBoard, ObservedCompute, ObservedGpu, ObservedInstance, Scan},
    policy::reopens_library,
};

/// Memory that an idle MIG instance or GPU may use: below the memory of one CUDA context, and well above the few MiB that `nvidia-smi` shows of an idle
/// instance. An idle H100 and H200 use none beyond the reserved (docs/development/gpu-results.md).
const IDLE_MIB: u64 = 128;

/// What outlives an open library: a lost GPU keeps its name, and a fault holds until a reset.
#[derive(Default)]
pub(super) struct History {
    pub(super) faults: Faults,
    pub(super) gpus: BTreeMap<u32, ObservedGpu>,
}

/// Reads through one open library.
pub(super) struct Reader<'n> {
    session: Session<'n>,
    driver_version: String,
    cuda_version: String,
    memory_scrub: MemoryScrub,
    /// The library was just opened: a lost GPU may have left its list, and the indices of others are new.
    opened: bool,
    events: Option<EventSet<'n>>,
    boards: Vec<Arc<ObservedBoard>>,
    /// Compute profiles within an instance, by GPU and profile id; constant for a board.
    compute_profiles: BTreeMap<(String, u32), Vec<ComputeProfile>>,
    topology: Topology,
    history: &'n mut History,
    /// Questions of allocations, which wait for no other GPU.
    checks: &'n Receiver<Check>,
}

impl<'n> Reader<'n> {
    pub(super) fn new(
        session: Session<'n>,
        history: &'n mut History,
        checks: &'n Receiver<Check>,
    ) -> Result<Self, NvmlFailure> {
        Ok(Self {
            checks,
            session,
            driver_version: session.nvml.driver_version()?,
            cuda_version: session.nvml.cuda_version()?,
            memory_scrub: memory_scrub::read(session.paths, session.driver_root),
            opened: true,
            events: None,
            boards: Vec::new(),
            compute_profiles: BTreeMap::new(),
            topology: Topology::default(),
            history,
        })
    }

    /// Fails if the library does not answer. A single GPU that does not answer keeps its last state, with the failure.
    pub(super) fn read(&mut self, scan: Scan, known: KnownFaults) -> Result<Inventory, NvmlFailure> {
        let first = std::mem::take(&mut self.opened);
        let scan = if first { Scan::Full } else { scan };
        let count = self.session.nvml.gpu_count()?;
        self.history.gpus.retain(|index, _| *index < count);
        self.record_events(count)?;
        for index in 0..count {
            let gpu = self.gpu(index, scan);
            self.remember(index, gpu)?;
            // before all GPUs have been read once, those that follow would be missing in the answer
            if !first {
                self.answer_checks()?;
            }
        }
        if scan == Scan::Full {
            self.memory_scrub = memory_scrub::read(self.session.paths, self.session.driver_root);
        }
        let mut inventory = self.inventory(scan);
        self.judge(&mut inventory, known);
        Ok(inventory)
    }

    /// The GPUs of the latest scan; none before the first one through this library.
    pub(super) fn known_gpus(&self) -> Vec<ObservedGpu> {
        if self.opened { Vec::new() } else { self.history.gpus.values().cloned().collect() }
    }

    /// Answers the checks that wait. An error means that the library has to be opened again.
    pub(super) fn answer_checks(&mut self) -> Result<(), NvmlFailure> {
        while let Ok(Check { uuids, reply }) = self.checks.try_recv() {
            // its caller has given up
            if reply.is_closed() {
                continue;
            }
            let answer = self.processes(&uuids);
            let broken = answer.as_ref().err().filter(|failure| reopens_library(failure.code)).cloned();
            drop(reply.send(answer.map_err(NvmlError::Call)));
            broken.map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// The processes on these GPUs now; all other fields, and those of other GPUs, are of the latest scan. Nothing of it is remembered: a scan reads the
    /// memory of a device when it finds that the last process has ended.
    fn processes(&mut self, uuids: &BTreeSet<String>) -> Result<Inventory, NvmlFailure> {
        if self.opened {
            return self.read(Scan::Full, KnownFaults::default());
        }
        let mut inventory = self.inventory(Scan::Quick);
        for last in inventory.gpus.iter_mut().filter(|gpu| uuids.contains(&gpu.uuid)) {
            let now = self.with_processes(last);
            if let Some(gpu) = or_last(last.index, now, Some(last))? {
                *last = gpu;
            }
        }
        Ok(inventory)
    }

    fn with_processes(&mut self, last: &ObservedGpu) -> Result<ObservedGpu, NvmlFailure> {
        if last.failure.is_some() {
            return self.gpu(last.index, Scan::Full);
        }
        Ok(ObservedGpu { clients: self.session.nvml.gpu(last.index)?.processes()?, ..last.clone() })
    }

    /// Remembers what a scan has read of a GPU.
    fn remember(&mut self, index: u32, gpu: Result<ObservedGpu, NvmlFailure>) -> Result<(), NvmlFailure> {
        if let Some(gpu) = or_last(index, gpu, self.history.gpus.get(&index))? {
            self.history.gpus.insert(index, gpu);
        }
        Ok(())
    }

    fn inventory(&mut self, scan: Scan) -> Inventory {
        Inventory {
            driver_root: Some(self.session.driver_root.clone()),
            driver_version: self.driver_version.clone(),
            cuda_version: self.cuda_version.clone(),
            gpus: self.history.gpus.values().cloned().collect(),
            faults: self.history.faults.seen().to_vec(),
            connections: self.topology.of(self.session.nvml, &self.history.gpus, scan),
            memory_scrub: self.memory_scrub,
        }
    }

    /// Writes faults and health into an inventory, and remembers them.
    fn judge(&mut self, inventory: &mut Inventory, known: KnownFaults) {
        let (nvml, now) = (self.session.nvml, Timestamp::now());
        let History { faults, gpus } = &mut *self.history;
        faults.learn(known, inventory, now);
        for gpu in inventory.gpus.iter_mut().filter(|gpu| gpu.failure.is_none()) {
            let asked = || nvml.gpu(gpu.index).and_then(|gpu| gpu.recovery_action());
            (gpu.fault, gpu.recovery) = faults.observe(&gpu.uuid, || Asked::of(asked()), now);
            gpu.health = if gpu.fault.is_some() { Health::Unhealthy } else { Health::Healthy };
            gpus.insert(gpu.index, gpu.clone());
        }
    }

    fn record_events(&mut self, count: u32) -> Result<(), NvmlFailure> {
        let nvml = self.session.nvml;
        if self.events.is_none() {
            let gpus: Vec<Gpu<'n>> = (0..count).filter_map(|index| nvml.gpu(index).ok()).collect();
            self.events = NvmlFailure::optional(EventSet::new(nvml, &gpus))?;
        }
        let all_uuids: Vec<String> = self.history.gpus.values().map(|gpu| gpu.uuid.clone()).collect();
        let Some(events) = &self.events else { return Ok(()) };
        loop {
            match events.next(0) {
                Ok(Some(event)) => {
                    tracing::warn!(?event, "fault reported by driver");
                    self.history.faults.record(&event, &all_uuids, Timestamp::now());
                }
                Ok(None) => return Ok(()),
                // the next scan subscribes without the lost GPU, and reads which one it is
                Err(failure) if failure.code == code::GPU_IS_LOST => {
                    tracing::warn!(%failure, "a GPU was lost; subscribing to the faults of the others again");
                    self.events = None;
                    return Ok(());
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    fn gpu(&mut self, index: u32, scan: Scan) -> Result<ObservedGpu, NvmlFailure> {
        let gpu = self.session.nvml.gpu(index)?;
        if let (Scan::Quick, Some(last)) = (scan, self.history.gpus.get(&index))
            && last.failure.is_none()
            && let Some(gpu) = quick(self.session.nvml, &gpu, last)?
        {
            return Ok(gpu);
        }
        self.full(index, &gpu)
    }

    fn full(&mut self, index: u32, gpu: &Gpu<'_>) -> Result<ObservedGpu, NvmlFailure> {
        let uuid = gpu.uuid()?;
        let vgpu = gpu.vgpu()?;
        let mode = if vgpu.is_some() { None } else { gpu.mig_mode()? };
        let known = self
            .history
            .gpus
            .get(&index)
            .filter(|last| last.uuid == uuid && last.mode == mode && last.board.vgpu == vgpu);
        let known = known.filter(|last| last.mode.is_none() || !last.board.profiles.is_empty());
        let (board, minor, pci_bus_id) = match known {
            Some(last) => (last.board.clone(), last.minor, last.pci_bus_id.clone()),
            None => (self.board(gpu, vgpu, mode.is_some())?, gpu.minor()?, gpu.pci_bus_id()?),
        };
        let mig_enabled = mode.is_some_and(|mode| mode.current);
        let instances = if mig_enabled { self.instances(gpu, &uuid, &board)? } else { Vec::new() };
        let numa = numa_node(&self.session.paths.sys_root, &pci_bus_id);
        let clients = gpu.processes()?;
        let identity = ObservedGpu { uuid, index, minor, pci_bus_id, numa, ..ObservedGpu::default() };
        let before = self.history.gpus.get(&index).and_then(|last| last.licensed);
        let licensed = licence(gpu, vgpu, before);
        let observed = ObservedGpu { board, mode, instances, clients, licensed, ..identity };
        let memory = memory(self.session.nvml, gpu, &observed, &|_| true);
        Ok(ObservedGpu { unexplained: unexplained(&observed, &memory), memory, ..observed })
    }

    fn board(&mut self, gpu: &Gpu<'_>, vgpu: Option<Vgpu>, mig: bool) -> Result<Arc<ObservedBoard>, NvmlFailure> {
        let memory = gpu.memory()?;
        let board = ObservedBoard {
            name: gpu.name()?,
            memory_mib: memory.total_mib,
            reserved_mib: memory.reserved_mib,
            mode_needs_reset: mig && gpu.mode_needs_reset()?,
            vgpu,
            before_volta: gpu.before_volta()?,
            profiles: if mig { gpu.instance_profiles(memory.total_mib)? } else { Vec::new() },
        };
        if let Some(known) = self.boards.iter().find(|known| ***known == board) {
            return Ok(known.clone());
        }
        let board = Arc::new(board);
        self.boards.push(board.clone());
        Ok(board)
    }

    fn instances(
        &mut self,
        gpu: &Gpu<'_>,
        uuid: &str,
        board: &ObservedBoard,
    ) -> Result<Vec<ObservedInstance>, NvmlFailure> {
        let mut instances = Vec::new();
        for instance in gpu.gpu_instances(&board.profiles)? {
            let info = instance.info()?;
            let profile = board.profiles.iter().find(|profile| profile.id == info.profile_id);
            let key = (uuid.to_owned(), info.profile_id);
            let compute_profiles = match self.compute_profiles.get(&key) {
                Some(known) => known.clone(),
                None => self.compute_profiles.entry(key).or_insert(instance.compute_profiles()?).clone(),
            };
            let full = profile.and_then(|profile| full_width(&compute_profiles, profile.slices));
            let mut compute = Vec::new();
            for ci in instance.compute_instances(&compute_profiles)? {
                let ci_info = ci.info()?;
                compute.push(ObservedCompute {
                    ci: ci_info.id,
                    full_width: full.is_some_and(|full| full.id == ci_info.profile_id),
                    uuid: ci.mig_device(info.id, &ci_info)?.map(|device| device.uuid()).transpose()?,
                });
            }
            compute.sort_by_key(|compute| compute.ci);
            compute.dedup_by_key(|compute| compute.ci);
            let profile =
                profile.map_or_else(|| format!("profile-{}", info.profile_id), |profile| profile.name.clone());
            instances.push(ObservedInstance { gi: info.id, profile, start: info.start, size: info.size, compute });
        }
        instances.sort_by_key(|instance| (instance.start, instance.gi));
        Ok(instances)
    }
}

/// What was read of a GPU. One that does not answer keeps its last state, with the failure; without one there is nothing to show. An error means that
/// the library has to be opened again.
fn or_last(
    index: u32,
    gpu: Result<ObservedGpu, NvmlFailure>,
    last: Option<&ObservedGpu>,
) -> Result<Option<ObservedGpu>, NvmlFailure> {
    match (gpu, last) {
        (Ok(gpu), _) => Ok(Some(gpu)),
        (Err(failure), _) if reopens_library(failure.code) => Err(failure),
        (Err(failure), Some(last)) => {
            let health = if failure.code == code::GPU_IS_LOST { Health::Lost } else { last.health };
            Ok(Some(ObservedGpu { health, failure: Some(failure), ..last.clone() }))
        }
        // without a UUID the status has no name for it
        (Err(failure), None) => {
            tracing::warn!(index, %failure, "GPU does not answer");
            Ok(None)
        }
    }
}

/// Mode and processes, all else as before. `None` if an instance is gone, after a reset by another program for example: it must be
/// withdrawn at once. An instance that another program created can wait for the next full scan.
fn quick(nvml: &Nvml, gpu: &Gpu<'_>, last: &ObservedGpu) -> Result<Option<ObservedGpu>, NvmlFailure> {
    let mode = if last.board.vgpu.is_some() { None } else { gpu.mig_mode()? };
    for instance in &last.instances {
        if gpu.gpu_instance(instance.gi)?.is_none() {
            return Ok(None);
        }
    }
    let clients = gpu.processes()?;
    let licensed = licence(gpu, last.board.vgpu, last.licensed);
    let observed = ObservedGpu { mode, clients, licensed, ..last.clone() };
    let was_used = |gi: Option<u32>| last.unexplained.contains_key(&gi) || last.clients.iter().any(|p| p.gi == gi);
    let is_used = |gi: Option<u32>| observed.clients.iter().any(|p| p.gi == gi);
    // an idle device stays as it was
    let read = memory(nvml, gpu, &observed, &|gi| was_used(gi) || is_used(gi));
    let unexplained = unexplained(&observed, &read);
    let memory = last.memory.clone().into_iter().chain(read).collect();
    Ok(Some(ObservedGpu { unexplained, memory, ..observed }))
}

/// Whether a vGPU has its licence, which only virtual machines are asked. Without an answer, as while the licence service starts, it is as before: the GPU
/// works.
fn licence(gpu: &Gpu<'_>, vgpu: Option<Vgpu>, before: Option<bool>) -> Option<bool> {
    if vgpu != Some(Vgpu::Guest) {
        return None;
    }
    gpu.licensed().unwrap_or_else(|failure| {
        tracing::debug!(%failure, "licence of vGPU not known");
        before
    })
}

/// All memory of devices by its use, of the whole GPU without MIG, or of its instances.
fn memory(
    nvml: &Nvml,
    gpu: &Gpu<'_>,
    observed: &ObservedGpu,
    is_read: &dyn Fn(Option<u32>) -> bool,
) -> BTreeMap<Option<u32>, MemoryUse> {
    if !observed.mig_enabled() {
        let whole = is_read(None).then(|| gpu.memory_use()).flatten();
        return whole.map(|memory| (None, memory)).into_iter().collect();
    }
    let of = |instance: &ObservedInstance| {
        let device = nvml.by_uuid(instance.uuid()?).ok()?;
        Some((Some(instance.gi), device.memory_use()?))
    };
    observed.instances.iter().filter(|instance| is_read(Some(instance.gi))).filter_map(of).collect()
}

/// Memory of devices without a process, in MiB, as far as it is more than an idle device uses.
fn unexplained(observed: &ObservedGpu, memory: &BTreeMap<Option<u32>, MemoryUse>) -> BTreeMap<Option<u32>, u64> {
    let idle = |gi: Option<u32>| !observed.clients.iter().any(|process| gi.is_none() || process.gi == gi);
    let of = |(gi, memory): (&Option<u32>, &MemoryUse)| {
        let mib = memory.used >> 20;
        (idle(*gi) && mib > IDLE_MIB).then_some((*gi, mib))
    };
    memory.iter().filter_map(of).collect()
}

/// NVML writes `00000000:01:00.0`, sysfs `0000:01:00.0`; a machine with one node has -1.
fn numa_node(sys: &Path, pci_bus_id: &str) -> Option<i64> {
    let address = pci_bus_id.to_lowercase();
    let address = if address.len() > 12 { address.get(address.len() - 12..)? } else { &address };
    let text = fs::read_to_string(sys.join("bus/pci/devices").join(address).join("numa_node")).ok()?;
    text.trim().parse().ok().filter(|node| *node >= 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numa_node_uses_the_short_pci_address() {
        let sys = tempfile::tempdir().unwrap();
        let device = sys.path().join("bus/pci/devices/0000:1b:00.0");
        fs::create_dir_all(&device).unwrap();
        fs::write(device.join("numa_node"), "1\n").unwrap();
        assert_eq!(numa_node(sys.path(), "00000000:1B:00.0"), Some(1));
        fs::write(device.join("numa_node"), "-1\n").unwrap();
        assert_eq!(numa_node(sys.path(), "00000000:1B:00.0"), None);
        assert_eq!(numa_node(sys.path(), "odd"), None);
    }
}
