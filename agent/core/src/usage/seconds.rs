//! For how long tenants had devices, and how much of that time they used them.
//!
//! Each sample adds the time since the one before: all of it as *allocated*, its used part as *active* (a kernel ran) and *useful* (multiprocessors worked), or
//! *unknown* where no source shows utilization. Time without a source is never counted as idle.
//!
//! NVML samples processes at one moment of each interval. Of containers that take turns on a GPU, one sample shows nearly all of its time for one, and the next
//! sample for another. A share therefore keeps the time beyond its part for the samples that follow.

use std::{collections::BTreeMap, mem};

use gputenancy_crds::{DeviceOwner, SharingMode};

use super::{
    activity::Figure,
    containers::{ContainerUse, GpuUse, owner},
};
use crate::{
    device::{Device, DeviceId, Owners},
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

/// A share keeps at most this many seconds' worth of its part of the GPU. Six samples of 10 seconds even out which container a sample found on the GPU, and a
/// share that has become idle is active for at most a minute longer.
const KEPT_SECONDS: f64 = 60.0;

/// GPU time that a share used beyond its part, for as long as nothing else about it changes.
#[derive(Clone, Debug, PartialEq)]
struct Surplus {
    of: ShareOf,
    gpu_seconds: f64,
}

/// A container's part of a GPU.
#[derive(Clone, Debug, PartialEq)]
struct ShareOf {
    owner: DeviceOwner,
    part: f64,
}

/// Adds up the samples of a node. It keeps what shares used beyond their part from sample to sample.
#[derive(Clone, Debug, Default)]
pub struct Counting {
    surpluses: BTreeMap<DeviceId, Surplus>,
}

impl Counting {
    /// What the devices of these GPUs add in `elapsed` seconds. The use of a GPU is `None` if NVML has not answered: then all of the time is unknown.
    pub fn add(
        &mut self,
        elapsed: f64,
        gpus: &[(&ObservedGpu, Option<&GpuUse>)],
        of_node: &[Device],
        owners: &Owners,
        tenant: &dyn Fn(&DeviceOwner) -> String,
    ) -> Added {
        // what is not kept again is dropped
        let (mut added, mut earlier) = (Added::default(), mem::take(&mut self.surpluses));
        let place = |device: &Device| device.mig.as_ref().map(|ids| ids.gi);
        for &(gpu, usage) in gpus {
            let here: Vec<&Device> = of_node.iter().filter(|device| device.gpu_uuid == gpu.uuid).collect();
            let mut held: BTreeMap<(Option<u32>, &DeviceOwner), f64> = BTreeMap::new();
            for device in &here {
                if let Some(owner) = owner(device, owners) {
                    *held.entry((place(device), owner)).or_default() += 1.0;
                }
            }
            for device in &here {
                let Some(owner) = owner(device, owners) else { continue };
                let at = (place(device), owner.clone());
                let found = usage.and_then(|usage| usage.containers.get(&at)).copied().unwrap_or_default();
                let part = part(gpu, device, &here);
                let ContainerUse { utilization, sm, memory: _ } = found;
                let (mut active, mut useful) = (utilization.map(ratio), sm.map(ratio));
                if device.share.is_some() {
                    // a container with several shares uses each of them alike
                    let devices = held.get(&(at.0, owner)).copied().unwrap_or(1.0);
                    let of = ShareOf { owner: owner.clone(), part };
                    let before = earlier.remove(&device.id).filter(|surplus| surplus.of == of);
                    let before = before.map_or(0.0, |surplus| surplus.gpu_seconds);
                    let spent = active.map(|used| spend(before + used / devices * elapsed, part, elapsed));
                    active = spent.map(|(active, _)| active);
                    useful = useful.map(|used| spend(used / devices * elapsed, part, elapsed).0);
                    let kept = spent.map(|(_, gpu_seconds)| (device.id.clone(), Surplus { of, gpu_seconds }));
                    self.surpluses.extend(kept);
                }
                let key = Key { tenant: tenant(owner), resource: device.resource.clone(), mode: Mode::of(device) };
                added.devices.entry(key.clone()).or_default().add(seconds(elapsed, active, useful));
                added.gpus.entry(key).or_default().add(seconds(elapsed * part, active, useful));
            }
        }
        added
    }
}

fn ratio(figure: Figure) -> f64 {
    figure.value.clamp(0.0, 1.0)
}

/// The active part of a share's time, from 0 to 1, if it used these GPU seconds, and those that it keeps.
fn spend(gpu_seconds: f64, part: f64, elapsed: f64) -> (f64, f64) {
    let own = part * elapsed;
    let spent = gpu_seconds.min(own);
    let active = if own > 0.0 { spent / own } else { 0.0 };
    (active, (gpu_seconds - spent).min(KEPT_SECONDS * part))
}

/// Seconds of a device or of GPUs, by the parts of them that were active and useful; `None` is unknown.
fn seconds(allocated: f64, active: Option<f64>, useful: Option<f64>) -> Seconds {
    let known = |part: Option<f64>| part.map_or(0.0, |part| part * allocated);
    let unknown = |part: Option<f64>| if part.is_none() { allocated } else { 0.0 };
    Seconds {
        allocated,
        active: known(active),
        useful: known(useful),
        unknown: unknown(active),
        unknown_useful: unknown(useful),
    }
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

    use proptest::prelude::*;

    use super::*;
    use crate::{
        device::{MigIds, tests::share},
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
        next(&mut Counting::default(), gpu, devices, owners, usage)
    }

    /// What ten more seconds add.
    fn next(
        counting: &mut Counting,
        gpu: &ObservedGpu,
        devices: &[Device],
        owners: &Owners,
        usage: Option<&GpuUse>,
    ) -> Added {
        counting.add(10.0, &[(gpu, usage)], devices, owners, &|owner| owner.namespace.clone())
    }

    /// Active and unknown seconds that each sample adds for one of the `shares` of a GPU. A sample has its length in seconds, the owner of the share, and its
    /// part of the GPU's time if that is known.
    fn samples(counting: &mut Counting, shares: i32, samples: &[(f64, &str, Option<f64>)]) -> Vec<[f64; 2]> {
        let gpu = ObservedGpu { uuid: "GPU-a".into(), board: board(), ..ObservedGpu::default() };
        let devices: Vec<Device> = (0..shares).map(|number| share(number, SharingMode::TimeSlice, None)).collect();
        let sample = |(elapsed, pod, value): &(f64, &str, Option<f64>)| {
            let owners: Owners = [(devices[0].id.clone(), owner_of(pod))].into();
            let of = ContainerUse { utilization: value.map(figure), ..ContainerUse::default() };
            let usage = GpuUse { containers: [((None, owner_of(pod)), of)].into(), ..GpuUse::default() };
            let tenant = |owner: &DeviceOwner| owner.namespace.clone();
            let added = counting.add(*elapsed, &[(&gpu, Some(&usage))], &devices, &owners, &tenant);
            let Seconds { active, unknown, .. } = added.devices.values().next().copied().unwrap();
            [active, unknown].map(rounded)
        };
        samples.iter().map(sample).collect()
    }

    fn rounded(value: f64) -> f64 {
        (value * 1e6).round() / 1e6
    }

    fn sums(of: &BTreeMap<Key, Seconds>) -> Vec<[f64; 5]> {
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

    #[test]
    fn equal_neighbours_that_take_turns_are_active_all_the_time() {
        let gpu = ObservedGpu { uuid: "GPU-a".into(), board: board(), ..ObservedGpu::default() };
        let devices = [0, 1, 2, 3].map(|number| share(number, SharingMode::TimeSlice, None));
        let owners: Owners = [(devices[0].id.clone(), owner_of("p")), (devices[1].id.clone(), owner_of("q"))].into();
        let of = |value| ContainerUse { utilization: Some(figure(value)), ..ContainerUse::default() };
        let mut counting = Counting::default();
        let mut active = Vec::new();
        for (p, q) in [(0.94, 0.06), (0.06, 0.94), (0.94, 0.06), (0.06, 0.94), (0.06, 0.94)] {
            let containers = [((None, owner_of("p")), of(p)), ((None, owner_of("q")), of(q))].into();
            let usage = GpuUse { containers, ..GpuUse::default() };
            let added = next(&mut counting, &gpu, &devices, &owners, Some(&usage));
            active.push(sums(&added.devices)[0][1]);
        }
        // of 20 seconds: in the first sample the second share has 0.6 of its 2.5 GPU seconds
        assert_eq!(active, [12.4, 20.0, 20.0, 20.0, 20.0]);
    }

    #[test]
    fn surplus_is_kept_for_at_most_a_minute_of_the_share() {
        let idle = (10.0, "p", Some(0.0));
        let mut all = vec![(600.0, "p", Some(1.0))];
        all.extend([idle; 8]);
        let mut expected = vec![[600.0, 0.0]];
        expected.extend([[10.0, 0.0]; 6]);
        expected.extend([[0.0, 0.0]; 2]);
        assert_eq!(samples(&mut Counting::default(), 4, &all), expected);
    }

    #[test]
    fn surplus_is_dropped_by_an_unknown_sample_a_new_owner_and_a_new_size() {
        let (busy, idle) = ((10.0, "p", Some(0.9)), (10.0, "p", Some(0.1)));
        let found = |next: &[(f64, &str, Option<f64>)]| {
            let mut counting = Counting::default();
            samples(&mut counting, 4, &[busy]);
            samples(&mut counting, 4, next)
        };
        assert_eq!(found(&[idle]), [[10.0, 0.0]], "kept");
        assert_eq!(found(&[(10.0, "p", None), idle]), [[0.0, 10.0], [4.0, 0.0]]);
        assert_eq!(found(&[(10.0, "q", Some(0.1)), idle]), [[4.0, 0.0], [4.0, 0.0]]);
        let mut counting = Counting::default();
        samples(&mut counting, 4, &[busy]);
        assert_eq!(samples(&mut counting, 2, &[idle]), [[2.0, 0.0]], "a half in place of a quarter");
        let mut counting = Counting::default();
        samples(&mut counting, 4, &[busy]);
        assert_eq!(counting.add(10.0, &[], &[], &Owners::new(), &|_| String::new()), Added::default());
        assert_eq!(samples(&mut counting, 4, &[idle]), [[4.0, 0.0]], "the device had no owner between");
    }

    proptest! {
        #[test]
        fn share_is_active_for_at_most_the_elapsed_time_and_the_time_that_it_used(
            shares in 1_i32..9,
            all in proptest::collection::vec((0.0_f64..40.0, proptest::option::weighted(0.9, 0.0_f64..=1.0)), 0..40),
        ) {
            let all: Vec<_> = all.iter().map(|(elapsed, value)| (*elapsed, "p", *value)).collect();
            let found = samples(&mut Counting::default(), shares, &all);
            let used: f64 = all.iter().map(|(elapsed, _, value)| elapsed * value.unwrap_or(0.0)).sum();
            let active: f64 = found.iter().map(|[active, _]| active).sum();
            prop_assert!(active / f64::from(shares) <= used + 1e-4, "{} active and {} used", active, used);
            for ((elapsed, _, value), [active, unknown]) in all.iter().zip(found) {
                prop_assert!(active + unknown <= elapsed + 1e-5, "{} and {} in {}", active, unknown, elapsed);
                let own = (value.unwrap_or(0.0) * f64::from(shares)).min(1.0) * elapsed;
                prop_assert!(active + 1e-5 >= own, "{} is less than {} without a surplus", active, own);
            }
        }
    }
}
