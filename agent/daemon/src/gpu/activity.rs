//! Reads the activity of all GPUs, on the thread that owns NVML.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_agent_core::usage::reading::{Performance, Reading};
use gputenancy_nvml::{GpmSample, Gpu, Nvml, NvmlFailure};

use super::{inventory::ObservedGpu, policy::reopens_library};

/// What is kept from one reading to the next, for as long as the library is open.
#[derive(Default)]
pub(super) struct ActivityReader<'n> {
    /// The latest GPM sample of each GPU and GPU instance.
    samples: BTreeMap<(String, Option<u32>), GpmSample<'n>>,
    /// UUIDs of GPUs with GPM. The others are asked again: a driver that is being replaced may answer for the one before.
    has_gpm: BTreeSet<String>,
    /// Time of the newest utilization of processes, by UUID, in microseconds since 1970.
    seen: BTreeMap<String, u64>,
}

impl<'n> ActivityReader<'n> {
    /// Reads the GPUs that answered the latest scan. One that fails is missing. `between` runs after each GPU. An error means that the library has to be
    /// opened again.
    pub(super) fn read(
        &mut self,
        nvml: &'n Nvml,
        gpus: &[ObservedGpu],
        mut between: impl FnMut() -> Result<(), NvmlFailure>,
    ) -> Result<Vec<Reading>, NvmlFailure> {
        let mut readings = Vec::new();
        for gpu in gpus.iter().filter(|gpu| gpu.failure.is_none()) {
            match self.gpu(nvml.gpu(gpu.index)?, gpu) {
                Ok(reading) => readings.push(reading),
                Err(failure) if reopens_library(failure.code) => return Err(failure),
                Err(failure) => tracing::debug!(gpu = gpu.uuid, %failure, "activity of a GPU not read"),
            }
            between()?;
        }
        let known: BTreeSet<&str> = gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
        self.samples.retain(|(uuid, _), _| known.contains(uuid.as_str()));
        Ok(readings)
    }

    fn gpu(&mut self, gpu: Gpu<'n>, observed: &ObservedGpu) -> Result<Reading, NvmlFailure> {
        let uuid = &observed.uuid;
        let performance = if self.has_gpm(gpu, uuid)? { self.performance(gpu, observed)? } else { BTreeMap::new() };
        let mig = observed.mig_enabled();
        let seen = self.seen.entry(uuid.clone()).or_default();
        let processes = if mig { None } else { gpu.process_rates(*seen)? };
        let processes = processes.map(|(processes, newest)| {
            *seen = newest;
            processes
        });
        let rates = if mig { None } else { gpu.rates()? };
        Ok(Reading {
            uuid: uuid.clone(),
            rates,
            processes,
            performance,
            dcgm: BTreeMap::new(),
            board: gpu.board_activity(),
        })
    }

    fn has_gpm(&mut self, gpu: Gpu<'n>, uuid: &str) -> Result<bool, NvmlFailure> {
        if self.has_gpm.contains(uuid) {
            return Ok(true);
        }
        let has = gpu.has_gpm()?;
        if has {
            self.has_gpm.insert(uuid.to_owned());
        }
        Ok(has)
    }

    /// What the GPU, or each of its instances, did since the reading before.
    fn performance(
        &mut self,
        gpu: Gpu<'n>,
        observed: &ObservedGpu,
    ) -> Result<BTreeMap<Option<u32>, Performance>, NvmlFailure> {
        let uuid = &observed.uuid;
        let places: BTreeSet<Option<u32>> = if observed.mig_enabled() {
            observed.instances.iter().map(|instance| Some(instance.gi)).collect()
        } else {
            [None].into()
        };
        // an instance that is made again has the id of an earlier one, and another history
        self.samples.retain(|(of, place), _| of != uuid || places.contains(place));
        let mut found = BTreeMap::new();
        for place in places {
            let key = (uuid.clone(), place);
            let sample = match gpu.gpm_sample(place) {
                Ok(sample) => sample,
                Err(failure) if reopens_library(failure.code) => return Err(failure),
                // one that was destroyed since the scan
                Err(_) => {
                    self.samples.remove(&key);
                    continue;
                }
            };
            if let Some(performance) = self.samples.get(&key).and_then(|before| sample.since(before).ok()) {
                found.insert(place, performance);
            }
            self.samples.insert(key, sample);
        }
        Ok(found)
    }
}
