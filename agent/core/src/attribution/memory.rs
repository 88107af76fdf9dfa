//! Memory of devices by what holds it, and memory that no living process explains. Pure.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::processes::GpuProcesses;
use crate::{
    device_memory::{Ghost, Layers, Place},
    gpu::{Inventory, ObservedGpu},
    nvml::MemoryUse,
};

/// Memory counts as unexplained after this time: NVML lists a process for a moment after its end, and a read of memory is not of the moment of the
/// read of the processes.
pub const AFTER: Duration = Duration::from_secs(10);
/// Memory next to processes that counts as explained, in bytes: what an idle GPU uses, and for each process what drivers count for no process.
const OF_DEVICE: u64 = 128 << 20;
const OF_PROCESS: u64 = 64 << 20;

/// The layers of a device whose processes hold this much.
pub fn layers(memory: &MemoryUse, held: u64) -> Layers {
    let MemoryUse { reserved, used, free } = *memory;
    // a process may have allocated after the read of the one, and before the read of the other
    let processes = held.min(used);
    Layers { reserved, processes, unattributed: used - processes, free }
}

/// The layers of each device of which NVML reports memory.
pub fn all_layers(inventory: &Inventory) -> BTreeMap<Place, Layers> {
    let of_gpu = |gpu: &ObservedGpu| {
        let uuid = gpu.uuid.clone();
        let of = |(gi, memory): (&Option<u32>, &MemoryUse)| ((uuid.clone(), *gi), layers(memory, held(gpu, *gi).0));
        gpu.memory.iter().map(of).collect::<Vec<_>>()
    };
    inventory.gpus.iter().filter(|gpu| gpu.failure.is_none()).flat_map(of_gpu).collect()
}

/// Memory of the processes of a device, and whether NVML reports it of all of them.
fn held(gpu: &ObservedGpu, gi: Option<u32>) -> (u64, bool) {
    let here = gpu.clients.iter().filter(|process| gi.is_none() || process.gi == gi);
    here.fold((0, true), |(sum, all), process| {
        (process.memory.map_or(sum, |bytes| bytes.saturating_add(sum)), all && process.memory.is_some())
    })
}

/// Since when there are processes that have ended, and memory that no process explains.
#[derive(Debug, Default)]
pub struct Ghosts {
    ended: BTreeMap<(Place, u32), Instant>,
    unexplained: BTreeMap<Place, Instant>,
}

impl Ghosts {
    /// NVML does not answer, and the inventory is not of this time. What was `found` stays; all else begins again with the next read.
    pub fn keep_only(&mut self, found: &BTreeMap<Place, Ghost>) {
        self.ended.retain(|(place, _), _| found.contains_key(place));
        self.unexplained.retain(|place, _| found.contains_key(place));
    }

    /// What has been there for long enough, after this read.
    pub fn find(
        &mut self,
        inventory: &Inventory,
        processes: &BTreeMap<String, GpuProcesses>,
        now: Instant,
    ) -> BTreeMap<Place, Ghost> {
        let (ended, unexplained) = (std::mem::take(&mut self.ended), std::mem::take(&mut self.unexplained));
        let mut found: BTreeMap<Place, Ghost> = BTreeMap::new();
        for gpu in &inventory.gpus {
            let Some(of_gpu) = processes.get(&gpu.uuid) else { continue };
            for ((pid, gi), bytes) in &of_gpu.ended {
                let key = ((gpu.uuid.clone(), *gi), *pid);
                let since = ended.get(&key).copied().unwrap_or(now);
                if now.saturating_duration_since(since) >= AFTER {
                    let ghost = found.entry(key.0.clone()).or_default();
                    ghost.pids.insert(*pid);
                    ghost.bytes = ghost.bytes.saturating_add(*bytes);
                }
                self.ended.insert(key, since);
            }
            for (gi, memory) in &gpu.memory {
                let place = (gpu.uuid.clone(), *gi);
                let Some(bytes) = unexplained_by(gpu, *gi, memory) else { continue };
                let since = unexplained.get(&place).copied().unwrap_or(now);
                if now.saturating_duration_since(since) >= AFTER {
                    let ghost = found.entry(place.clone()).or_default();
                    ghost.bytes = ghost.bytes.saturating_add(bytes);
                }
                self.unexplained.insert(place, since);
            }
        }
        found
    }
}

/// Memory in use next to processes that none of them explains. A device without a process is withdrawn for such memory, and not counted here; nor is
/// one with a process whose memory NVML does not report.
fn unexplained_by(gpu: &ObservedGpu, gi: Option<u32>, memory: &MemoryUse) -> Option<u64> {
    let count = gpu.clients.iter().filter(|process| gi.is_none() || process.gi == gi).count() as u64;
    let (held, true) = held(gpu, gi) else { return None };
    let unattributed = memory.used.saturating_sub(held);
    let explained = OF_DEVICE.saturating_add(OF_PROCESS.saturating_mul(count));
    (count > 0 && gpu.failure.is_none() && unattributed > explained).then_some(unattributed)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        attribution::processes::{Origin, processes},
        device::{DeviceOwner, Owners},
        nvml::Process,
    };

    const MIB: u64 = 1 << 20;

    /// A GPU with processes, by id and MiB, of which those from 100 on have ended, and with this many MiB in use.
    fn node(clients: &[(u32, Option<u64>)], used: u64) -> Inventory {
        let client =
            |(pid, mib): &(u32, Option<u64>)| Process { pid: *pid, gi: None, ci: None, memory: mib.map(|m| m * MIB) };
        let memory = MemoryUse { reserved: 600 * MIB, used: used * MIB, free: 1_000 * MIB };
        let gpu = ObservedGpu {
            uuid: "GPU-a".into(),
            clients: clients.iter().map(client).collect(),
            memory: [(None, memory)].into(),
            ..ObservedGpu::default()
        };
        Inventory { gpus: vec![gpu], ..Inventory::default() }
    }

    fn origin(pid: u32) -> Origin {
        let owner = DeviceOwner { namespace: "team-a".into(), pod: "p".into(), container: "main".into() };
        if pid < 100 { Origin::Pod(Some(owner)) } else { Origin::Ended }
    }

    /// The ghosts of the GPU after reads at these seconds: ids, and MiB.
    fn found(reads: &[(u64, Inventory)]) -> Option<(Vec<u32>, u64)> {
        let (mut ghosts, start) = (Ghosts::default(), Instant::now());
        let mut last = None;
        for (second, inventory) in reads {
            let all = processes(inventory, &Owners::new(), &BTreeMap::new(), &origin);
            let mut found = ghosts.find(inventory, &all, start + Duration::from_secs(*second));
            last = found.remove(&("GPU-a".to_owned(), None));
        }
        last.map(|ghost| (ghost.pids.into_iter().collect(), ghost.bytes / MIB))
    }

    #[test]
    fn process_that_has_ended_is_a_ghost_after_ten_seconds() {
        let node = |()| node(&[(1, Some(500)), (100, Some(300))], 800);
        assert_eq!(found(&[(0, node(())), (8, node(()))]), None);
        assert_eq!(found(&[(0, node(())), (8, node(())), (12, node(()))]), Some((vec![100], 300)));
        let without = super::tests::node(&[(1, Some(500))], 500);
        assert_eq!(found(&[(0, node(())), (8, without), (12, node(()))]), None, "the id is of another process");
    }

    #[test]
    fn time_without_an_answer_of_nvml_makes_no_ghost_and_ends_none() {
        let (mut ghosts, start) = (Ghosts::default(), Instant::now());
        let inventory = node(&[(1, Some(500)), (100, Some(300))], 1_700);
        let all = processes(&inventory, &Owners::new(), &BTreeMap::new(), &origin);
        let at = |second| start + Duration::from_secs(second);
        let mut found = BTreeMap::new();
        // each read, and whether NVML does not answer after it
        for (second, count, silent) in [(0, 0, true), (12, 0, false), (24, 1, true), (28, 1, false)] {
            found = ghosts.find(&inventory, &all, at(second));
            assert_eq!(found.len(), count, "at {second} s");
            if silent {
                ghosts.keep_only(&found);
            }
        }
        assert_eq!(found.into_values().map(|ghost| ghost.bytes / MIB).collect::<Vec<_>>(), [300 + 900]);
    }

    #[test]
    fn memory_next_to_living_processes_is_a_ghost_when_it_stays() {
        let leaked = || node(&[(1, Some(500))], 500 + 900);
        let explained = || node(&[(1, Some(500))], 500 + 192);
        assert_eq!(found(&[(0, leaked()), (4, leaked()), (8, leaked())]), None);
        assert_eq!(found(&[(0, leaked()), (4, leaked()), (12, leaked())]), Some((vec![], 900)));
        assert_eq!(found(&[(0, leaked()), (4, explained()), (12, leaked())]), None, "it was free for a moment");
        assert_eq!(found(&[(0, explained()), (12, explained())]), None);
    }

    #[test]
    fn device_without_processes_or_without_their_memory_has_no_ghost() {
        for clients in [&[][..], &[(1, None)], &[(1, Some(500)), (2, None)]] {
            assert_eq!(found(&[(0, node(clients, 9_000)), (12, node(clients, 9_000))]), None, "{clients:?}");
        }
    }

    proptest! {
        #[test]
        fn layers_are_all_memory_of_the_device(
            reserved in 0..4_000_u64, used in 0..80_000_u64, free in 0..80_000_u64, held in any::<u64>(),
        ) {
            let Layers { reserved: r, processes, unattributed, free: f } = layers(&MemoryUse { reserved, used, free }, held);
            prop_assert_eq!(r + processes + unattributed + f, reserved + used + free);
            prop_assert!(processes <= held);
        }
    }
}
