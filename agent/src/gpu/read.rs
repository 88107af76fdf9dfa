//! Reading the inventory: deep when something may have changed, shallow (mode, processes, instances that are gone) in between.

use std::{collections::BTreeMap, fs, path::Path, sync::Arc};

use gputenancy_crds::Health;
use gputenancy_nvml::{ComputeProfile, EventSet, Gpu, Nvml, NvmlFailure, code, full_width};

use super::{
    DriverRoot, Inventory, SeenBoard, SeenCompute, SeenGpu, SeenInstance,
    health::{Condemned, RecordedFault},
    thread::Depth,
};

/// What outlives an open library: a lost GPU is still reported under its name after the library was opened anew.
#[derive(Default)]
pub(super) struct Remembered {
    pub(super) condemned: Condemned,
    pub(super) last: BTreeMap<u32, SeenGpu>,
}

/// What one open library has told so far.
pub(super) struct Reader<'n> {
    nvml: &'n Nvml,
    driver_root: DriverRoot,
    driver_version: String,
    cuda_version: String,
    events: Option<EventSet<'n>>,
    boards: Vec<Arc<SeenBoard>>,
    /// Compute profiles within an instance, by GPU and profile id: they are of the board and do not change.
    compute: BTreeMap<(String, u32), Vec<ComputeProfile>>,
    remembered: &'n mut Remembered,
}

impl<'n> Reader<'n> {
    pub(super) fn new(
        nvml: &'n Nvml,
        driver_root: DriverRoot,
        remembered: &'n mut Remembered,
    ) -> Result<Self, NvmlFailure> {
        Ok(Self {
            nvml,
            driver_root,
            driver_version: nvml.driver_version()?,
            cuda_version: nvml.cuda_version()?,
            events: None,
            boards: Vec::new(),
            compute: BTreeMap::new(),
            remembered,
        })
    }

    /// # Errors
    /// When the library as a whole does not answer. A single GPU that does not is reported as it was, with its trouble.
    pub(super) fn look(&mut self, depth: Depth, sys_root: &Path) -> Result<Inventory, NvmlFailure> {
        let count = self.nvml.gpu_count()?;
        self.remembered.last.retain(|index, _| *index < count);
        self.drain_events(count)?;
        for index in 0..count {
            let glanced = match (depth, self.remembered.last.get(&index)) {
                (Depth::Shallow, Some(last)) if last.trouble.is_none() => self.glance(index, last),
                _ => Ok(None),
            };
            let seen = glanced.and_then(|seen| seen.map_or_else(|| self.study(index, sys_root), Ok));
            let seen = match (seen, self.remembered.last.get(&index)) {
                (Ok(mut seen), _) => {
                    seen.health = self.remembered.condemned.health(&seen.uuid);
                    seen.fault = self.remembered.condemned.fault(&seen.uuid).map(str::to_owned);
                    seen
                }
                (Err(trouble), _) if ends_the_session(trouble.code) => return Err(trouble),
                (Err(trouble), Some(last)) => {
                    let health = if trouble.code == code::GPU_IS_LOST { Health::Lost } else { last.health };
                    SeenGpu { health, trouble: Some(trouble), ..last.clone() }
                }
                // A GPU that never answered has no name to report it under.
                (Err(trouble), None) => {
                    tracing::warn!(index, %trouble, "a GPU does not answer");
                    continue;
                }
            };
            self.remembered.last.insert(index, seen);
        }
        Ok(Inventory {
            driver_root: Some(self.driver_root.clone()),
            driver_version: self.driver_version.clone(),
            cuda_version: self.cuda_version.clone(),
            gpus: self.remembered.last.values().cloned().collect(),
        })
    }

    /// Faults that an earlier run of the agent noted.
    pub(super) fn recall(&mut self, faults: Vec<RecordedFault>) {
        for fault in faults {
            self.remembered.condemned.recall(fault);
        }
    }

    fn drain_events(&mut self, count: u32) -> Result<(), NvmlFailure> {
        if self.events.is_none() {
            let gpus: Vec<Gpu<'n>> = (0..count).filter_map(|index| self.nvml.gpu(index).ok()).collect();
            self.events = NvmlFailure::optional(EventSet::new(self.nvml, &gpus))?;
        }
        let every: Vec<String> = self.remembered.last.values().map(|gpu| gpu.uuid.clone()).collect();
        let Some(events) = &self.events else { return Ok(()) };
        while let Some(event) = events.next(0)? {
            tracing::warn!(?event, "the driver reports a fault");
            self.remembered.condemned.note(&event, &every);
        }
        Ok(())
    }

    /// Mode and processes, all else as before; `None` when an instance is gone: somebody reset the GPU or took it away, and what
    /// is advertised of it would be given to pods that cannot start. What somebody added harms nobody until the next deep look.
    fn glance(&self, index: u32, last: &SeenGpu) -> Result<Option<SeenGpu>, NvmlFailure> {
        let gpu = self.nvml.gpu(index)?;
        let mode = gpu.mig_mode()?;
        for instance in &last.instances {
            if gpu.gpu_instance(instance.gi)?.is_none() {
                return Ok(None);
            }
        }
        let clients = gpu.processes()?;
        Ok(Some(SeenGpu { mode, clients, ..last.clone() }))
    }

    fn study(&mut self, index: u32, sys: &Path) -> Result<SeenGpu, NvmlFailure> {
        let gpu = self.nvml.gpu(index)?;
        let uuid = gpu.uuid()?;
        let mode = gpu.mig_mode()?;
        let known = self.remembered.last.get(&index).filter(|last| last.uuid == uuid && last.mode == mode);
        let known = known.filter(|last| last.mode.is_none() || !last.board.profiles.is_empty());
        let (board, minor, pci_bus_id) = match known {
            Some(last) => (last.board.clone(), last.minor, last.pci_bus_id.clone()),
            None => (self.board(&gpu, mode.is_some())?, gpu.minor()?, gpu.pci_bus_id()?),
        };
        let instances =
            if mode.is_some_and(|mode| mode.current) { self.instances(&gpu, &uuid, &board)? } else { Vec::new() };
        let numa = numa_node(sys, &pci_bus_id);
        let clients = gpu.processes()?;
        Ok(SeenGpu {
            uuid,
            index,
            minor,
            pci_bus_id,
            numa,
            board,
            mode,
            instances,
            clients,
            health: Health::Healthy,
            fault: None,
            trouble: None,
        })
    }

    fn board(&mut self, gpu: &Gpu<'_>, mig: bool) -> Result<Arc<SeenBoard>, NvmlFailure> {
        let memory = gpu.memory()?;
        let board = SeenBoard {
            name: gpu.name()?,
            memory_mib: memory.total_mib,
            reserved_mib: memory.reserved_mib,
            mode_needs_reset: mig && gpu.mode_needs_reset()?,
            profiles: if mig { gpu.instance_profiles(memory.total_mib)? } else { Vec::new() },
        };
        if let Some(known) = self.boards.iter().find(|known| ***known == board) {
            return Ok(known.clone());
        }
        let board = Arc::new(board);
        self.boards.push(board.clone());
        Ok(board)
    }

    fn instances(&mut self, gpu: &Gpu<'_>, uuid: &str, board: &SeenBoard) -> Result<Vec<SeenInstance>, NvmlFailure> {
        let mut instances = Vec::new();
        for instance in gpu.gpu_instances(&board.profiles)? {
            let info = instance.info()?;
            let profile = board.profiles.iter().find(|profile| profile.id == info.profile_id);
            let key = (uuid.to_owned(), info.profile_id);
            let compute_profiles = match self.compute.get(&key) {
                Some(known) => known.clone(),
                None => self.compute.entry(key).or_insert(instance.compute_profiles()?).clone(),
            };
            let full = profile.and_then(|profile| full_width(&compute_profiles, profile.slices));
            let mut compute = Vec::new();
            for part in instance.compute_instances(&compute_profiles)? {
                let part_info = part.info()?;
                compute.push(SeenCompute {
                    ci: part_info.id,
                    full_width: full.is_some_and(|full| full.id == part_info.profile_id),
                    uuid: part.mig_device(info.id, &part_info)?.map(|device| device.uuid()).transpose()?,
                });
            }
            compute.sort_by_key(|part| part.ci);
            compute.dedup_by_key(|part| part.ci);
            let profile =
                profile.map_or_else(|| format!("profile-{}", info.profile_id), |profile| profile.name.clone());
            instances.push(SeenInstance { gi: info.id, profile, start: info.start, size: info.size, compute });
        }
        instances.sort_by_key(|instance| (instance.start, instance.gi));
        Ok(instances)
    }
}

/// Codes after which the library has to be opened anew.
pub(super) fn ends_the_session(code: u32) -> bool {
    matches!(code, code::UNINITIALIZED | code::DRIVER_NOT_LOADED | code::LIB_RM_VERSION_MISMATCH)
}

/// NVML writes `00000000:01:00.0`, sysfs `0000:01:00.0`; a machine with one node says -1.
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
    fn sysfs_knows_the_gpu_by_the_short_form_of_its_address() {
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
