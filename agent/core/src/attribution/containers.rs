//! The processes of each container on a device, as the status lists them: memory in steps, and not renewed often, so that the status is not written for
//! each allocation of a program. Pure.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use gputenancy_crds::{DeviceProcesses, MemoryText};

use super::processes::GpuProcesses;
use crate::{device::DeviceOwner, device_memory::Place, to_i32};

/// Step of memory in the status, in MiB.
pub const STEP_MIB: u64 = 256;
/// The memory of containers is renewed at most once in this time, that of all together, except for the first change of each.
pub const QUIET: Duration = Duration::from_mins(1);

/// Containers with processes on each device.
pub type Containers = BTreeMap<Place, Vec<DeviceProcesses>>;

/// What the status shows of the memory of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shown {
    mib: Option<u64>,
    /// It has changed since the container was first seen.
    renewed: bool,
}

/// What the status shows of the memory of all containers.
#[derive(Debug, Default)]
pub struct Memory {
    shown: BTreeMap<(Place, Option<DeviceOwner>), Shown>,
    renewed: Option<Instant>,
}

/// MiB in steps; memory of less than half a step is one.
pub fn in_steps(bytes: u64) -> u64 {
    let steps = (bytes >> 20).saturating_add(STEP_MIB / 2) / STEP_MIB;
    if bytes == 0 { 0 } else { steps.max(1) * STEP_MIB }
}

/// The text of memory in steps.
pub fn text(mib: u64) -> MemoryText {
    MemoryText::from_mib(i64::try_from(mib).unwrap_or(i64::MAX))
}

impl Shown {
    /// What is shown after this read; `None`: as before. Within the quiet time only the first change is.
    fn renew(&self, bytes: Option<u64>, quiet: bool) -> Option<Self> {
        let changed = match (self.mib, bytes.map(|bytes| bytes >> 20)) {
            (Some(shown), Some(actual)) => shown.abs_diff(actual) >= STEP_MIB,
            (shown, actual) => shown.is_some() != actual.is_some(),
        };
        let wanted = changed && !(quiet && self.renewed);
        wanted.then(|| Self { mib: bytes.map(in_steps), renewed: true })
    }
}

impl Memory {
    /// What the status shows after this read; `tenants` are the tenants of namespaces.
    pub fn show(
        &mut self,
        processes: &BTreeMap<String, GpuProcesses>,
        tenants: &BTreeMap<String, String>,
        now: Instant,
    ) -> Containers {
        let before = std::mem::take(&mut self.shown);
        let quiet = self.renewed.is_some_and(|at| now.saturating_duration_since(at) < QUIET);
        let mut all = Containers::new();
        for (uuid, gpu) in processes {
            for ((gi, container), group) in &gpu.groups {
                let key = ((uuid.clone(), *gi), container.clone());
                let new = || Shown { mib: group.memory.map(in_steps), renewed: false };
                let known = before.get(&key).copied().unwrap_or_else(new);
                let renewed = known.renew(group.memory, quiet);
                self.renewed = if renewed.is_some() && !quiet { Some(now) } else { self.renewed };
                let shown = renewed.unwrap_or(known);
                let tenant = container.as_ref().and_then(|owner| tenants.get(&owner.namespace)).cloned();
                all.entry(key.0.clone()).or_default().push(DeviceProcesses {
                    container: container.clone(),
                    tenant,
                    count: to_i32(group.pids.len()),
                    memory: shown.mib.map(text),
                });
                self.shown.insert(key, shown);
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribution::processes::Group;

    const MIB: u64 = 1 << 20;

    #[test]
    fn memory_is_rounded_to_steps() {
        let found = [0, 1, 127 * MIB, 300 * MIB, 400 * MIB, 16_832 * MIB].map(in_steps);
        assert_eq!(found, [0, 256, 256, 256, 512, 16_896]);
    }

    #[test]
    fn status_does_not_change_with_small_or_frequent_changes_of_memory() {
        let owner = DeviceOwner { namespace: "team-a".into(), pod: "train-0".into(), container: "main".into() };
        let tenants = [("team-a".to_owned(), "a".to_owned())].into();
        let (mut memory, start) = (Memory::default(), Instant::now());
        let mut show = |second: u64, mib: Option<u64>| {
            let group = Group { pids: [7, 8].into(), memory: mib.map(|mib| mib * MIB) };
            let groups = [((None, Some(owner.clone())), group)].into();
            let gpus = [("GPU-a".to_owned(), GpuProcesses { groups, ..GpuProcesses::default() })].into();
            let shown = memory.show(&gpus, &tenants, start + Duration::from_secs(second));
            let [only] = shown.values().flatten().collect::<Vec<_>>()[..] else { panic!("{shown:?}") };
            assert_eq!((only.count, only.tenant.as_deref(), only.container.as_ref()), (2, Some("a"), Some(&owner)));
            only.memory.as_ref().map(|memory| memory.mib().unwrap())
        };
        assert_eq!(show(0, Some(300)), Some(256));
        assert_eq!(show(4, Some(510)), Some(256), "less than a step");
        assert_eq!(show(8, Some(16_832)), Some(16_896), "the first change");
        assert_eq!([show(12, Some(2_000)), show(67, Some(2_000))], [Some(16_896); 2], "again within a minute");
        assert_eq!(show(68, Some(2_000)), Some(2_048));
        assert_eq!(show(200, None), None);
    }
}
