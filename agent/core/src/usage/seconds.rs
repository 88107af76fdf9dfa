//! For how long tenants had devices, and how much of that time they used them.
//!
//! Each sample adds the time since the one before: all of it as *allocated*, its used part as *active* (a kernel ran) and *useful* (multiprocessors worked), or
//! *unknown* where no source shows utilization. Time without a source is never counted as idle.

use std::collections::BTreeMap;

use gputenancy_crds::{DeviceOwner, SharingMode};

use super::{
    activity::Figure,
    containers::{ContainerUse, GpuUse, owner},
};
use crate::{
    device::{Device, Owners},
    gpu::ObservedGpu,
};

/// How a device is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// A whole GPU for one container.
    Exclusive,
    /// A MIG instance for one container.
    Mig,
    /// A time-slice, of a GPU or of an instance.
    TimeSlice,
    /// A client of an MPS server.
    Mps,
    /// A fraction of a GPU.
    Fraction,
}

impl Mode {
    /// The mode of a device.
    pub fn of(device: &Device) -> Self {
        match (&device.share, &device.mig) {
            (None, None) => Self::Exclusive,
            (None, Some(_)) => Self::Mig,
            (Some(share), _) => match share.mode {
                SharingMode::TimeSlice => Self::TimeSlice,
                SharingMode::Mps => Self::Mps,
                SharingMode::Fraction => Self::Fraction,
            },
        }
    }

    /// Value of the label `mode`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Mig => "mig",
            Self::TimeSlice => "time-slice",
            Self::Mps => "mps",
            Self::Fraction => "fraction",
        }
    }
}

/// Whose devices are counted together.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// Name of the tenant; empty outside of tenants.
    pub tenant: String,
    /// Extended resource.
    pub resource: String,
    /// How the device is shared.
    pub mode: Mode,
}

/// Seconds of devices, or of GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Seconds {
    /// A container had the device.
    pub allocated: f64,
    /// Of these, as far as a kernel ran.
    pub active: f64,
    /// Of these, as far as multiprocessors worked.
    pub useful: f64,
    /// Allocated, and no source shows utilization.
    pub unknown: f64,
    /// Allocated, and no source shows the multiprocessors.
    pub unknown_useful: f64,
}

impl Seconds {
    /// The seconds with the value of the label `state`.
    pub fn states(self) -> [(&'static str, f64); 5] {
        let Self { allocated, active, useful, unknown, unknown_useful } = self;
        [
            ("allocated", allocated),
            ("active", active),
            ("useful", useful),
            ("unknown", unknown),
            ("unknown-useful", unknown_useful),
        ]
    }

    /// Adds others to these.
    pub fn add(&mut self, more: Self) {
        let Self { allocated, active, useful, unknown, unknown_useful } = more;
        self.allocated += allocated;
        self.active += active;
        self.useful += useful;
        self.unknown += unknown;
        self.unknown_useful += unknown_useful;
    }
}

/// What one sample adds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Added {
    /// Seconds of devices: a whole GPU, an instance and a share count as one each.
    pub devices: BTreeMap<Key, Seconds>,
    /// Seconds of GPUs: a device counts as its part of its GPU.
    pub gpus: BTreeMap<Key, Seconds>,
}

/// What the devices of one GPU add in `elapsed` seconds. `usage` is `None` if NVML has not answered: then all of the time is unknown.
pub fn add(
    added: &mut Added,
    elapsed: f64,
    gpu: &ObservedGpu,
    usage: Option<&GpuUse>,
    of_node: &[Device],
    owners: &Owners,
    tenant: &dyn Fn(&DeviceOwner) -> String,
) {
    let here: Vec<&Device> = of_node.iter().filter(|device| device.gpu_uuid == gpu.uuid).collect();
    let place = |device: &Device| device.mig.as_ref().map(|ids| ids.gi);
    let mut held: BTreeMap<(Option<u32>, &DeviceOwner), f64> = BTreeMap::new();
    for device in &here {
        if let Some(owner) = owner(device, owners) {
            *held.entry((place(device), owner)).or_default() += 1.0;
        }
    }
    for device in &here {
        let Some(owner) = owner(device, owners) else { continue };
        let at = (place(device), owner.clone());
        // a container with several shares uses each of them alike
        let devices = held.get(&(at.0, owner)).copied().unwrap_or(1.0);
        let found = usage.and_then(|usage| usage.containers.get(&at)).copied().unwrap_or_default();
        let part = part(gpu, device, &here);
        let key = Key { tenant: tenant(owner), resource: device.resource.clone(), mode: Mode::of(device) };
        let (of_device, of_gpu) = spent(elapsed, part, devices, device.share.is_some(), found);
        added.devices.entry(key.clone()).or_default().add(of_device);
        added.gpus.entry(key).or_default().add(of_gpu);
    }
}

/// Seconds of a device and of GPUs. The utilization of a share is a part of its device's time, that of others a part of their own.
fn spent(elapsed: f64, part: f64, devices: f64, is_share: bool, found: ContainerUse) -> (Seconds, Seconds) {
    let ContainerUse { utilization, sm, memory: _ } = found;
    let of_gpu = |value: f64| if is_share { value / devices } else { value * part };
    let seconds = |whole: f64| {
        let of =
            |figure: Option<Figure>| figure.map_or(0.0, |figure| (of_gpu(figure.value) / part).clamp(0.0, 1.0) * whole);
        let without = |figure: Option<Figure>| if figure.is_none() { whole } else { 0.0 };
        let (unknown, unknown_useful) = (without(utilization), without(sm));
        Seconds { allocated: whole, active: of(utilization), useful: of(sm), unknown, unknown_useful }
    };
    (seconds(elapsed), seconds(elapsed * part))
}

/// The part of its GPU that a device is: an instance by its memory slices, a share by its memory, or an equal part where it has none of its own.
fn part(gpu: &ObservedGpu, device: &Device, here: &[&Device]) -> f64 {
    let of_gpu = device.mig.as_ref().map_or(1.0, |ids| {
        let slices = gpu.board.profiles.iter().map(|profile| profile.size).max().unwrap_or(0);
        let own = gpu.instances.iter().find(|instance| instance.gi == ids.gi).map_or(0, |instance| instance.size);
        if slices == 0 { 1.0 } else { f64::from(own) / f64::from(slices) }
    });
    let Some(share) = &device.share else { return of_gpu };
    let mib = |mib: i64| f64::from(u32::try_from(mib).unwrap_or(u32::MAX));
    let memory = u32::try_from(gpu.board.memory_mib).unwrap_or(u32::MAX);
    if let Some(own) = share.memory_mib.filter(|_| device.mig.is_none() && memory > 0) {
        return mib(own) / f64::from(memory);
    }
    let same = |other: &&&Device| {
        other.mig.as_ref().map(|ids| ids.gi) == device.mig.as_ref().map(|ids| ids.gi) && other.share.is_some()
    };
    let shares = u32::try_from(here.iter().filter(same).count()).unwrap_or(1).max(1);
    of_gpu / f64::from(shares)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        device::{DeviceId, MigIds, tests::share},
        gpu::{ObservedBoard, ObservedInstance},
        nvml::{Engines, InstanceProfile},
        usage::activity::Source,
    };

    fn owner_of(pod: &str) -> DeviceOwner {
        DeviceOwner { namespace: "team-a".into(), pod: pod.into(), container: "main".into() }
    }

    fn board() -> Arc<ObservedBoard> {
        let profile = |name: &str, size| InstanceProfile {
            id: 0,
            name: name.into(),
            slices: 1,
            max: 1,
            multiprocessors: 1,
            memory_mib: 1,
            engines: Engines::default(),
            size,
            starts: vec![0],
        };
        let profiles = vec![profile("1g.10gb", 1), profile("7g.80gb", 8)];
        Arc::new(ObservedBoard { memory_mib: 81920, profiles, ..ObservedBoard::default() })
    }

    fn figure(value: f64) -> Figure {
        Figure { value, source: Source::Gpm }
    }

    /// What ten seconds add.
    fn added(gpu: &ObservedGpu, devices: &[Device], owners: &Owners, usage: Option<&GpuUse>) -> Added {
        let mut all = Added::default();
        add(&mut all, 10.0, gpu, usage, devices, owners, &|owner| owner.namespace.clone());
        all
    }

    fn sums(of: &BTreeMap<Key, Seconds>) -> Vec<[f64; 5]> {
        let rounded = |value: f64| (value * 1e6).round() / 1e6;
        of.values().map(|seconds| seconds.states().map(|(_, value)| rounded(value))).collect()
    }

    #[test]
    fn instance_counts_by_its_memory_slices_and_without_a_source_as_unknown() {
        let instance = ObservedInstance { gi: 7, size: 4, ..ObservedInstance::default() };
        let gpu =
            ObservedGpu { uuid: "GPU-a".into(), board: board(), instances: vec![instance], ..ObservedGpu::default() };
        let mig = MigIds { gi: 7, ci: 0, start: 0, profile: "3g.40gb".into() };
        let device = Device {
            id: DeviceId::new("MIG-a"),
            mig: Some(mig),
            share: None,
            ..share(0, SharingMode::TimeSlice, None)
        };
        let owners: Owners = [(DeviceId::new("MIG-a"), owner_of("p"))].into();
        let of = ContainerUse { utilization: Some(figure(0.5)), sm: Some(figure(0.2)), memory: None };
        let usage = GpuUse { containers: [((Some(7), owner_of("p")), of)].into(), ..GpuUse::default() };
        let found = added(&gpu, std::slice::from_ref(&device), &owners, Some(&usage));
        assert_eq!(sums(&found.devices), [[10.0, 5.0, 2.0, 0.0, 0.0]]);
        assert_eq!(sums(&found.gpus), [[5.0, 2.5, 1.0, 0.0, 0.0]]);
        let key = found.devices.keys().next().unwrap();
        assert_eq!((key.tenant.as_str(), key.mode), ("team-a", Mode::Mig));
        for nothing in [None, Some(&GpuUse::default())] {
            let found = added(&gpu, std::slice::from_ref(&device), &owners, nothing);
            assert_eq!(sums(&found.devices), [[10.0, 0.0, 0.0, 10.0, 10.0]], "unknown is not idle");
        }
    }

    #[test]
    fn share_is_active_for_its_part_of_the_time_and_not_beyond_itself() {
        let gpu = ObservedGpu { uuid: "GPU-a".into(), board: board(), ..ObservedGpu::default() };
        let devices = [0, 1, 2, 3].map(|number| share(number, SharingMode::TimeSlice, None));
        let owners: Owners = [(devices[0].id.clone(), owner_of("p")), (devices[1].id.clone(), owner_of("q"))].into();
        let of = |value| ContainerUse { utilization: Some(figure(value)), ..ContainerUse::default() };
        let containers = [((None, owner_of("p")), of(0.125)), ((None, owner_of("q")), of(0.75))];
        let found =
            added(&gpu, &devices, &owners, Some(&GpuUse { containers: containers.into(), ..GpuUse::default() }));
        // half of its quarter, and more than its quarter
        assert_eq!(sums(&found.devices), [[20.0, 15.0, 0.0, 0.0, 20.0]]);
        assert_eq!(sums(&found.gpus), [[5.0, 3.75, 0.0, 0.0, 5.0]]);
    }

    #[test]
    fn devices_without_an_owner_add_nothing() {
        let gpu = ObservedGpu { uuid: "GPU-a".into(), board: board(), ..ObservedGpu::default() };
        let devices = [share(0, SharingMode::Fraction, Some(8192))];
        assert_eq!(added(&gpu, &devices, &Owners::new(), None), Added::default());
        let owners: Owners = [(devices[0].id.clone(), owner_of("p"))].into();
        assert_eq!(
            sums(&added(&gpu, &devices, &owners, None).gpus),
            [[1.0, 0.0, 0.0, 1.0, 1.0]],
            "a tenth of the memory"
        );
    }
}
