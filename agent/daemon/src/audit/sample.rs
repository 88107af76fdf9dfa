//! One sample: the ledgers of shares with an owner, and the memory that NVML lists for the processes of their containers.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    time::Duration,
};

use gputenancy_ledger::{Counts, Limits, Mapped, Usage as UsageFile};
use gputenancy_nvml::Process;

use crate::{
    device::{Device, DeviceId, DeviceOwner, Owners},
    enforcement::ShareFiles,
    gpu::{Inventory, processes::process_origin::Origin},
};
use gputenancy_agent_core::audit::Observation;

/// A share with a memory limit that a container has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedShare {
    /// The share.
    pub device: Device,
    /// The container.
    pub owner: DeviceOwner,
    /// Its files.
    pub files: ShareFiles,
    /// Bytes that the container may allocate, with the context of one process.
    pub limit: u64,
    /// Bytes that its programs see as the memory of the GPU.
    pub visible: u64,
    /// The part of the GPU's time, in percent, if it is limited.
    pub compute: Option<u64>,
    /// Bytes that each process counts for its context.
    pub context: u64,
}

/// What NVML lists for the container of a share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Process ids.
    pub pids: Vec<u32>,
    /// Bytes of those that NVML reports memory of; `None` if it reports none of any.
    pub bytes: Option<u64>,
}

/// Counts of the ledgers, by device.
pub type Ledgers = BTreeMap<DeviceId, Counts>;

/// What was read about one share, in the order of the reads.
///
/// A container sees by inotify that the agent opens its files, and could free memory until the sample is over. So NVML is read before them. Only if
/// ledgers have changed since the sample before, NVML is read once more between two reads of the ledgers, to compare with them.
#[derive(Clone, Debug, Default)]
pub struct Reads {
    /// The ledger at the end of the sample before.
    pub before: Option<Counts>,
    /// NVML, before any file of a container was opened.
    pub unannounced: Usage,
    /// The container had damaged the ledger, and it was repaired.
    pub broken: bool,
    /// The ledger after that.
    pub counts: Counts,
    /// NVML, and then the ledger, once more.
    pub again: Option<(Usage, Counts)>,
    /// The longest wait of a process for the GPU that is in progress, by the ledger.
    pub waited: Duration,
}

impl Reads {
    /// What was read last of the ledger.
    pub fn latest(&self) -> &Counts {
        self.again.as_ref().map_or(&self.counts, |(_, counts)| counts)
    }

    /// Process ids, those of the first read first.
    pub fn pids(&self) -> impl Iterator<Item = u32> {
        let again = self.again.iter().flat_map(|(used, _)| &used.pids);
        self.unannounced.pids.iter().chain(again).copied()
    }

    /// What the reads show together.
    pub fn observe(&self, share: &OwnedShare) -> Observation {
        let Self { before, unannounced, broken, counts, again, waited } = self;
        let settled_before = before.filter(|before| before.is_unchanged(counts)).and(unannounced.bytes);
        let settled_again = again.as_ref().filter(|(_, later)| counts.is_unchanged(later));
        let (listed_again, processes) = again.as_ref().map_or((None, 0), |(used, _)| (used.bytes, used.pids.len()));
        Observation {
            limit: share.limit,
            visible: share.visible,
            compute: share.compute,
            context: share.context,
            counted: counts.used().max(self.latest().used()),
            settled: settled_before.max(settled_again.and(listed_again)),
            broken: *broken,
            denied: self.latest().denied(),
            endless: self.latest().endless(),
            waited: *waited,
            processes: unannounced.pids.len().max(processes) as u64,
            used: unannounced.bytes.max(listed_again),
        }
    }
}

/// Whether a container has a share with a limit. Opens no file.
pub fn any_owned(devices: &[Device], owners: &Owners) -> bool {
    devices.iter().any(|device| is_limited(device) && owners.contains_key(&device.id))
}

fn is_limited(device: &Device) -> bool {
    device.share.as_ref().is_some_and(|share| share.limit_mib.is_some())
}

/// The shares with an owner whose limits are on this node. The limit is that of the running container, which a change of the layout does not
/// change.
pub fn owned(devices: &[Device], owners: &Owners, folder: &Path) -> Vec<OwnedShare> {
    let share = |device: &Device| {
        let files = ShareFiles::of(device, folder)?;
        let owner = owners.get(&device.id)?.clone();
        let limits = Mapped::<Limits>::open(&files.limits).ok()?;
        Some(OwnedShare {
            device: device.clone(),
            owner,
            files,
            limit: limits.limit(),
            visible: limits.visible(),
            compute: limits.pace().map(|pace| pace.percent),
            context: limits.context(),
        })
    };
    devices.iter().filter_map(share).collect()
}

/// What the ledgers count. One that its container has broken counts nothing.
pub fn counts(shares: &[OwnedShare]) -> Ledgers {
    let read = |share: &OwnedShare| Mapped::<UsageFile>::read_counts(&share.files.usage).unwrap_or_default();
    shares.iter().map(|share| (share.device.id.clone(), read(share))).collect()
}

/// Where the processes on GPUs with limited shares come from. To find that takes several files for each.
pub fn origins(devices: &[Device], inventory: &Inventory, origin: &dyn Fn(u32) -> Origin) -> BTreeMap<u32, Origin> {
    let uuids: BTreeSet<&str> =
        devices.iter().filter(|device| is_limited(device)).map(|d| d.gpu_uuid.as_str()).collect();
    let gpus = inventory.gpus.iter().filter(|gpu| uuids.contains(gpu.uuid.as_str()));
    let pids: BTreeSet<u32> = gpus.flat_map(|gpu| gpu.clients.iter().map(|process| process.pid)).collect();
    pids.into_iter().map(|pid| (pid, origin(pid))).collect()
}

/// The use of each share, in their order; `None` where NVML does not answer for its GPU.
///
/// NVML does not report which share a process uses: those of the owner's pod on the share's GPU or instance count, also of an init
/// container, and of another one that got the device's open files. Of a pod with several shares, those of the owner's container count.
pub fn usage(shares: &[OwnedShare], inventory: &Inventory, origins: &BTreeMap<u32, Origin>) -> Vec<Option<Usage>> {
    let of_share = |share: &OwnedShare| {
        let gpu = inventory.gpu(&share.device.gpu_uuid).filter(|gpu| gpu.failure.is_none())?;
        let of_pod = |other: &&OwnedShare| pod(&other.owner) == pod(&share.owner);
        let only_share = shares.iter().filter(of_pod).count() == 1;
        let here = |process: &&Process| share.device.mig.as_ref().is_none_or(|mig| process.gi == Some(mig.gi));
        let of_owner = |process: &&Process| match origins.get(&process.pid) {
            Some(Origin::Pod(Some(container))) => {
                pod(container) == pod(&share.owner) && (only_share || *container == share.owner)
            }
            Some(Origin::Pod(None) | Origin::Former(..) | Origin::Node | Origin::Ended) | None => false,
        };
        let processes: Vec<&Process> = gpu.clients.iter().filter(here).filter(of_owner).collect();
        let known = processes.iter().filter_map(|process| process.memory);
        let bytes = known.reduce(u64::saturating_add).or_else(|| processes.is_empty().then_some(0));
        let mut pids: Vec<u32> = processes.iter().map(|process| process.pid).collect();
        // NVML can list one for each compute instance
        pids.dedup();
        Some(Usage { pids, bytes })
    };
    shares.iter().map(of_share).collect()
}

/// The pod of a container.
fn pod(container: &DeviceOwner) -> (&str, &str) {
    (&container.namespace, &container.pod)
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::SharingMode;

    use super::*;
    use crate::{
        device::MigIds,
        gpu::{ObservedGpu, processes::process_origin::UNKNOWN_CONTAINER},
        mps::share::tests::device,
    };

    const MIB: u64 = 1 << 20;

    fn owner(pod: &str, container: &str) -> DeviceOwner {
        DeviceOwner { namespace: "team-a".into(), pod: pod.into(), container: container.into() }
    }

    fn share(number: i32, owner: DeviceOwner, gi: Option<u32>) -> OwnedShare {
        let mig = gi.map(|gi| MigIds { gi, ci: 0, start: 0, profile: "1g.10gb".into() });
        let device = Device { mig, ..device(number, SharingMode::TimeSlice, None, None) };
        let files = ShareFiles { limits: "limits".into(), usage: "usage".into() };
        OwnedShare { device, owner, files, limit: 0, visible: 0, compute: None, context: 0 }
    }

    /// The use of shares, with the origins of [`origin`].
    fn used(shares: &[OwnedShare], inventory: &Inventory) -> Vec<Option<Usage>> {
        let pids = inventory.gpus.iter().flat_map(|gpu| gpu.clients.iter().map(|process| process.pid));
        usage(shares, inventory, &pids.map(|pid| (pid, origin(pid))).collect())
    }

    fn process(pid: u32, gi: Option<u32>, memory: Option<u64>) -> Process {
        Process { pid, gi, ci: gi.map(|_| 0), memory }
    }

    fn inventory(clients: Vec<Process>) -> Inventory {
        let gpu = ObservedGpu { uuid: "GPU-a".into(), clients, ..ObservedGpu::default() };
        Inventory { gpus: vec![gpu], ..Inventory::default() }
    }

    /// Processes below 10 are of `one`, below 20 of an unknown container of `two`, then of another container of `one`, and of the node.
    fn origin(pid: u32) -> Origin {
        match pid {
            0..10 => Origin::Pod(Some(owner("one", "main"))),
            10..20 => Origin::Pod(Some(owner("two", UNKNOWN_CONTAINER))),
            20..30 => Origin::Pod(Some(owner("one", "proxy"))),
            _ => Origin::Node,
        }
    }

    #[test]
    fn memory_of_the_processes_of_a_pod_is_added_also_of_other_containers() {
        let shares = [share(0, owner("one", "main"), None), share(1, owner("two", "main"), None)];
        let clients = [(1, 100), (2, 20), (11, 3), (21, 1_000), (31, 1_000)];
        let clients = clients.map(|(pid, mib)| process(pid, None, Some(mib * MIB))).to_vec();
        let found = used(&shares, &inventory(clients));
        // an init container or a sidecar has no device of its own
        let expected = [(vec![1, 2, 21], 1_120), (vec![11], 3)];
        assert_eq!(found, expected.map(|(pids, mib)| Some(Usage { pids, bytes: Some(mib * MIB) })));
    }

    #[test]
    fn memory_on_another_instance_belongs_to_another_share_and_unreported_memory_is_unknown() {
        let shares = [share(0, owner("one", "main"), Some(7)), share(1, owner("two", "main"), Some(7))];
        let clients = vec![process(1, Some(7), Some(MIB)), process(2, Some(8), Some(MIB)), process(11, Some(7), None)];
        let found = used(&shares, &inventory(clients));
        let expected = [Usage { pids: vec![1], bytes: Some(MIB) }, Usage { pids: vec![11], bytes: None }];
        assert_eq!(found, expected.map(Some));
        assert_eq!(used(&shares, &inventory(Vec::new()))[0].as_ref().and_then(|used| used.bytes), Some(0));
        assert_eq!(used(&shares, &Inventory::default()), [None, None], "the GPU is not listed");
    }

    #[test]
    fn origins_are_those_of_processes_on_gpus_with_limited_shares() {
        let limited = |number| {
            let device = device(number, SharingMode::Fraction, Some(10), None);
            Device { share: device.share.map(|share| crate::device::Share { limit_mib: Some(10), ..share }), ..device }
        };
        let clients = vec![process(1, None, None), process(31, None, None)];
        let found = origins(&[limited(0)], &inventory(clients.clone()), &origin);
        assert_eq!(found, [(1, origin(1)), (31, Origin::Node)].into());
        let elsewhere = Device { gpu_uuid: "GPU-b".into(), ..limited(0) };
        assert_eq!(origins(&[elsewhere], &inventory(clients), &origin), BTreeMap::new());
        let unlimited = device(1, SharingMode::Fraction, Some(10), None);
        let owned = |device: &Device| {
            any_owned(std::slice::from_ref(device), &[(device.id.clone(), owner("one", "main"))].into())
        };
        assert!(owned(&limited(1)) && !owned(&unlimited) && !any_owned(&[limited(1)], &Owners::new()));
    }

    #[test]
    fn highest_read_of_nvml_counts_and_the_ledger_is_compared_with_reads_during_which_it_did_not_change() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("usage");
        Mapped::<UsageFile>::create(&path).unwrap();
        let file = Mapped::<UsageFile>::open(&path).unwrap();
        let ledger = gputenancy_ledger::Ledger::join(&file).unwrap();
        let grown = |mib: u64| {
            ledger.reserve(mib * MIB, u64::MAX).unwrap();
            Mapped::<UsageFile>::read_counts(&path).unwrap()
        };
        let (first, second) = (grown(1), grown(2));
        let used = |mib: u64| Usage { pids: vec![1], bytes: Some(mib * MIB) };
        let seen = |reads: Reads| {
            let seen = reads.observe(&share(0, owner("one", "main"), None));
            (seen.counted / MIB, seen.settled.map(|bytes| bytes / MIB), seen.used.map(|bytes| bytes / MIB))
        };
        let quiet = Reads { before: Some(first), unannounced: used(9), counts: first, ..Reads::default() };
        assert_eq!(seen(quiet.clone()), (1, Some(9), Some(9)));
        assert_eq!(seen(Reads { before: None, ..quiet.clone() }), (1, None, Some(9)), "the ledger is new");
        let again = Reads { before: None, again: Some((used(4), first)), ..quiet.clone() };
        assert_eq!(seen(again), (1, Some(4), Some(9)), "memory that was freed when the ledger was opened");
        let busy = Reads { before: None, again: Some((used(11), second)), ..quiet };
        assert_eq!(seen(busy), (3, None, Some(11)));
    }

    #[test]
    fn process_of_an_unknown_container_counts_only_if_its_pod_has_one_share() {
        let shares = [share(0, owner("two", "a"), None), share(1, owner("two", "b"), None)];
        let found = used(&shares, &inventory(vec![process(11, None, Some(MIB))]));
        assert_eq!(found, [0, 1].map(|_| Some(Usage { pids: Vec::new(), bytes: Some(0) })));
    }

    #[test]
    fn shares_with_limits_and_owners_are_read_with_what_their_ledgers_count() {
        let root = tempfile::tempdir().unwrap();
        let limited = |number| {
            let device = device(number, SharingMode::Fraction, Some(10), None);
            let share = crate::device::Share { limit_mib: Some(10), ..device.share.clone().unwrap() };
            Device { id: DeviceId::share("GPU-a", number), share: Some(share), ..device }
        };
        let devices = [limited(0), limited(1), limited(2), device(3, SharingMode::Fraction, Some(10), None)];
        for device in &devices[..2] {
            ShareFiles::of(device, root.path()).unwrap().renew(device).unwrap();
        }
        // 1 has no owner, 2 no files, and 3 no limit
        let owners = [0, 2, 3].map(|at: usize| (devices[at].id.clone(), owner("one", "main")));
        let found = owned(&devices, &owners.into(), root.path());
        let [only] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!(
            (&only.device, only.visible, only.limit, only.context),
            (&devices[0], 10 * MIB, 650 * MIB, 640 * MIB)
        );
        {
            let usage = Mapped::<UsageFile>::open(&only.files.usage).unwrap();
            gputenancy_ledger::Ledger::join(&usage).unwrap().reserve(4096, u64::MAX).unwrap();
        }
        assert_eq!(counts(&found)[&devices[0].id].used(), 4096);
        std::fs::write(&only.files.usage, "broken").unwrap();
        assert_eq!(counts(&found)[&devices[0].id].used(), 0);
    }
}
