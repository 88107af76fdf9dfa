//! One GPU as observed: its devices, their owners, and how far the agent is.

use std::fmt;

use gputenancy_crds::{
    AgentStep, Change, DeviceState, GpuSpec, GpuState, Health, Holder, InstanceSpec, Layout, ids::PodName, names,
    slice_of,
};
use gputenancy_plan::{plain, seen};
use k8s_openapi::jiff::Timestamp;

use super::types::{ChangeObservation, PodFacts};

/// One GPU at one moment.
pub(super) struct ChangeContext<'a> {
    pub observation: &'a ChangeObservation<'a>,
    pub spec: Option<&'a GpuSpec>,
    pub state: &'a GpuState,
    /// The agent is alive and its status reflects the present spec.
    pub fresh: bool,
}

/// Where a device is on its GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place<'a> {
    /// The whole GPU.
    Whole,
    /// A MIG instance: first memory slice and NVIDIA's profile.
    Instance(i32, &'a str),
    /// A share of the GPU or of an instance, by number.
    Share(i32),
}

/// Why a layout is not advertised.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotAdvertised {
    #[error("{0} is still advertised under its old resource")]
    OldResource(String),
    #[error("kubelet does not list {0} yet")]
    NotListed(String),
    #[error("the node's allocatable {resource} is {count}, kubelet lists {listed}")]
    Allocatable { resource: String, count: i64, listed: i64 },
}

/// A device that exists: an instance, the whole GPU, or a share.
pub(super) struct Device<'a> {
    pub place: Place<'a>,
    /// NVIDIA's profile of the instance that it is, or a time-slice of.
    pub profile: Option<&'a str>,
    pub state: &'a DeviceState,
    /// Resource under which it was advertised; `None`: never.
    pub resource: Option<String>,
}

impl<'a> ChangeContext<'a> {
    /// `None`: the agent does not report this GPU.
    pub fn of(observation: &'a ChangeObservation<'a>) -> Option<Self> {
        let status = observation.node.status.as_ref()?;
        let state = status.gpus.iter().find(|g| g.uuid == observation.uuid)?;
        let spec = observation.node.spec.gpus.iter().find(|g| g.uuid == observation.uuid);
        let caught_up = status.observed_generation >= observation.node.metadata.generation;
        Some(Self { observation, spec, state, fresh: observation.agent_alive && caught_up })
    }

    /// When a time limit from `since` begins: not before the agent has returned.
    pub fn counted_from(&self, since: Timestamp) -> Timestamp {
        self.observation.alive_since.map_or(since, |alive| since.max(alive))
    }

    pub fn change(&self) -> Option<&'a Change> {
        self.spec.and_then(|s| s.change.as_ref())
    }

    /// The layout in the spec, or else the one that NVML shows.
    pub fn present(&self) -> Layout {
        self.spec.map_or_else(|| seen(self.state), |s| plain(s.layout()))
    }

    pub fn devices(&self) -> Vec<Device<'a>> {
        let listed = |start: i32, profile: &str| Some(self.spec?.exclusive(start, profile)?.resource_name());
        let exclusive = self.state.instances.iter().filter_map(|i| Some((i, i.device.as_ref()?)));
        let instances = exclusive.map(|(i, state)| Device {
            place: Place::Instance(i.start, &i.profile),
            profile: Some(&i.profile),
            state,
            resource: state.resource.clone().or_else(|| listed(i.start, &i.profile)),
        });
        let whole_name = || self.spec.filter(|s| !s.mig && s.sharing.is_none()).map(|s| whole_resource(&s.layout()));
        let whole = self.state.whole.iter().map(|w| Device {
            place: Place::Whole,
            profile: None,
            state: w,
            resource: w.resource.clone().or_else(whole_name),
        });
        let group = |number: i32| self.spec?.share_resource(number);
        let mig = self.state.mig.is_some_and(|m| m.enabled);
        let sliced = |number: i32| {
            let instance = self.state.instances.iter().find(|i| mig && i.start == slice_of(number).0)?;
            Some(instance.profile.as_str())
        };
        let shares = self.state.shares.iter().map(|s| Device {
            place: Place::Share(s.number),
            profile: sliced(s.number),
            state: &s.device,
            resource: s.device.resource.clone().or_else(|| group(s.number)),
        });
        instances.chain(whole).chain(shares).collect()
    }

    /// Devices that the change to `to` removes: their owners have to be evicted.
    pub fn removed(&self, to: &Layout) -> Vec<Device<'a>> {
        let recreated = self.is_recreated(to);
        self.devices().into_iter().filter(|d| recreated || !d.stays_in(to)).collect()
    }

    /// Name of the component that partitions the node as a whole.
    pub fn whole_node(&self) -> Option<&'static str> {
        self.observation.partitioner.whole_node()
    }

    /// All instances are recreated, whether their places stay or not.
    fn is_recreated(&self, to: &Layout) -> bool {
        let same_layout = || self.observation.recreate.is_some() || self.change().is_some_and(|c| c.from == c.to);
        self.observation.partitioner.recreates(self.state, to) || (self.whole_node().is_some() && same_layout())
    }

    /// Starts of devices that the spec lists, that `to` lacks and that do not exist now, as after a power cycle: the agent is about to
    /// recreate them, and no pod may get one.
    pub fn absent(&self, to: &Layout) -> Vec<i32> {
        let Some(spec) = self.spec else { return Vec::new() };
        let devices = self.devices();
        let missing = |place: &Place<'_>| !devices.iter().any(|d| d.place == *place);
        let wanted = places(to);
        let listed = spec.layout();
        let absent = places(&listed).into_iter().filter(|place| !wanted.contains(place) && missing(place));
        absent.map(Place::start).collect()
    }

    /// Starts of devices of `layout` that do not exist yet, or not under that name.
    pub fn added(&self, layout: &Layout) -> Vec<i32> {
        let devices = self.devices();
        let stays = |place: &Place<'_>| devices.iter().any(|d| d.place == *place && d.stays_in(layout));
        let recreated = self.is_recreated(layout);
        let added = places(layout).into_iter().filter(|place| recreated || !stays(place));
        added.map(Place::start).collect()
    }

    /// NVML shows exactly this layout, and the agent has nothing left to do.
    pub fn reached(&self, layout: &Layout) -> bool {
        self.fresh && self.state.step == AgentStep::Steady && self.shows(layout)
    }

    /// NVML shows these instances, and the agent serves these shares, under any resource.
    pub fn shows(&self, layout: &Layout) -> bool {
        let mode = self.state.mig.unwrap_or_default();
        let mut wanted: Vec<_> = layout.instances.iter().map(|i| (i.start, i.profile.as_str())).collect();
        let mut shown: Vec<_> = self.state.instances.iter().map(|i| (i.start, i.profile.as_str())).collect();
        wanted.sort_unstable();
        shown.sort_unstable();
        let mut served: Vec<i32> = self.state.shares.iter().map(|s| s.number).collect();
        served.sort_unstable();
        let shares = layout.shares();
        let whole = layout.sharing.is_none() || self.state.whole.is_none();
        let mig = mode.enabled == layout.mig && mode.pending.is_none_or(|p| p == layout.mig);
        mig && wanted == shown && shares == served && whole
    }

    /// Checks that kubelet and the node's allocatable list every device of `layout`.
    pub fn advertised(&self, layout: &Layout) -> Result<(), NotAdvertised> {
        for device in &self.devices() {
            if !device.stays_in(layout) {
                return Err(NotAdvertised::OldResource(device.place()));
            }
            if !device.state.allocatable {
                return Err(NotAdvertised::NotListed(device.place()));
            }
        }
        let mut wanted = layout.resources();
        wanted.sort();
        wanted.dedup();
        let mismatch = |resource: &String, count: i64, listed: i64| {
            Err(NotAdvertised::Allocatable { resource: resource.clone(), count, listed })
        };
        for resource in &wanted {
            let (listed, count) = (self.listed_on_node(resource), self.allocatable(resource));
            if count < listed {
                return mismatch(resource, count, listed);
            }
        }
        // kubelet alone counts another plugin's devices, ten seconds late: removed ones must not be counted any more
        for (resource, count) in self.observation.allocatable.iter().filter(|_| self.observation.cordoned.is_some()) {
            let listed = self.listed_on_node(resource);
            if names::is_nvidias_device_resource(resource) && *count != listed {
                return mismatch(resource, *count, listed);
            }
        }
        Ok(())
    }

    fn allocatable(&self, resource: &str) -> i64 {
        self.observation.allocatable.get(resource).copied().unwrap_or(0)
    }

    /// The agent has processed the hold of this device, and the node's allocatable counts only devices of its resource that are not
    /// held: the scheduler places no new pod on it, although kubelet may list it for another moment.
    pub fn is_uncounted(&self, device: &Device<'_>) -> bool {
        let (Some(spec), Some(resource)) = (self.spec, &device.resource) else { return false };
        let by_agent = self.observation.cordoned.is_none();
        let held = spec.hold.contains(&device.start());
        self.fresh && by_agent && held && self.allocatable(resource) <= self.not_held_on_node(resource)
    }

    /// The agent has processed the hold, and no pod can get the device any more.
    pub fn is_withdrawn(&self, device: &Device<'_>) -> bool {
        let withdrawn = self.observation.cordoned.unwrap_or(!device.state.allocatable);
        self.fresh && withdrawn && self.spec.is_some_and(|s| s.hold.contains(&device.start()))
    }

    fn not_held_on_node(&self, resource: &str) -> i64 {
        let specs = &self.observation.node.spec.gpus;
        let held = |uuid: &str, start: i32| specs.iter().any(|s| s.uuid == uuid && s.hold.contains(&start));
        self.count_listed(resource, |uuid, start| !held(uuid, start))
    }

    fn listed_on_node(&self, resource: &str) -> i64 {
        self.count_listed(resource, |_, _| true)
    }

    /// Devices of this resource on the whole node that kubelet lists.
    fn count_listed(&self, resource: &str, counts: impl Fn(&str, i32) -> bool) -> i64 {
        let gpus = self.observation.node.status.iter().flat_map(|s| &s.gpus);
        let listed = gpus.flat_map(|gpu| {
            let instances = gpu.instances.iter().filter_map(|i| Some((i.start, i.device.as_ref()?)));
            let devices = instances.chain(gpu.whole.iter().map(|whole| (0, whole)));
            let devices = devices.chain(gpu.shares.iter().map(|share| (share.number, &share.device)));
            let listed = |d: &DeviceState| d.allocatable && d.resource.as_deref() == Some(resource);
            devices.filter(move |(_, d)| listed(d)).map(|(start, _)| (gpu.uuid.as_str(), start))
        });
        i64::try_from(listed.filter(|(uuid, start)| counts(uuid, *start)).count()).unwrap_or(i64::MAX)
    }

    /// The pod that owns a device, with its facts; without facts the pod is gone, and kubelet has not noticed yet.
    pub fn owner(&self, device: &Device<'_>) -> Option<(PodName, Option<&'a PodFacts>)> {
        let owner = device.state.owner.as_ref()?;
        let pod = PodName { namespace: owner.namespace.as_str().into(), name: owner.pod.clone() };
        let facts = self.observation.pods.get(&pod);
        Some((pod, facts))
    }

    /// Processes on this device that do not belong to its owner; a process on the whole GPU is on every device.
    pub fn holders(&self, device: &Device<'_>) -> Vec<&'a Holder> {
        let start = match (device.place, device.profile) {
            (Place::Share(number), Some(_)) => slice_of(number).0,
            (place, _) => place.start(),
        };
        self.state.holders.iter().filter(|h| h.start.is_none_or(|s| s == start)).collect()
    }

    pub fn healthy(&self) -> bool {
        self.state.health == Health::Healthy
    }

    /// The GPU in messages.
    pub fn title(&self) -> String {
        let node = self.observation.node.metadata.name.as_deref().unwrap_or("?");
        format!("{node} GPU {}", self.state.index)
    }
}

impl Device<'_> {
    /// A device stays when its instance stays under the same resource.
    fn stays_in(&self, layout: &Layout) -> bool {
        let same = |name: String| self.resource.as_ref().is_none_or(|r| *r == name);
        let same_instance = |i: &InstanceSpec, start: i32, profile: &str| {
            i.replicas.is_none() && i.start == start && i.profile == profile && same(i.resource_name())
        };
        match self.place {
            Place::Whole => !layout.mig && layout.sharing.is_none() && same(whole_resource(layout)),
            Place::Instance(start, profile) => {
                layout.mig && layout.instances.iter().any(|i| same_instance(i, start, profile))
            }
            Place::Share(number) => {
                // an instance of another size ends its time-slices
                let kept = |i: &InstanceSpec| self.profile.is_none_or(|profile| i.profile == profile);
                let instance = InstanceSpec::with_slice(&layout.instances, number);
                (!layout.mig || instance.is_some_and(kept)) && layout.share_resource(number).is_some_and(same)
            }
        }
    }

    /// The number of the device in holds: the first memory slice, 0 for the whole GPU, the number of a share.
    pub fn start(&self) -> i32 {
        self.place.start()
    }

    /// The device in messages, such as `1g.10gb at 4`.
    pub fn place(&self) -> String {
        self.place.to_string()
    }

    pub fn owned(&self) -> bool {
        self.state.owner.is_some()
    }
}

impl Place<'_> {
    /// The number of the device in holds.
    pub fn start(self) -> i32 {
        match self {
            Self::Whole => 0,
            Self::Instance(start, _) | Self::Share(start) => start,
        }
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("the whole GPU at 0"),
            Self::Instance(start, profile) => write!(f, "{profile} at {start}"),
            Self::Share(number) => write!(f, "share {number}"),
        }
    }
}

/// Where the devices of a layout are.
pub(super) fn places(layout: &Layout) -> Vec<Place<'_>> {
    match (layout.mig, &layout.sharing) {
        (true, _) => {
            let exclusive = layout.instances.iter().filter(|i| i.replicas.is_none());
            let instances = exclusive.map(|i| Place::Instance(i.start, &i.profile));
            instances.chain(layout.shares().into_iter().map(Place::Share)).collect()
        }
        (false, None) => vec![Place::Whole],
        (false, Some(sharing)) => sharing.numbers().into_iter().map(Place::Share).collect(),
    }
}

fn whole_resource(layout: &Layout) -> String {
    layout.resource.clone().unwrap_or_else(|| names::WHOLE_GPU_RESOURCE.to_owned())
}
