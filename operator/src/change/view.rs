//! One GPU as an observation shows it: its devices, who has them, and how far the agent has come.

use gputenancy_crds::{AgentStep, Change, DeviceState, GpuSpec, GpuState, Health, Holder, Layout, names};

use super::model::{Observation, PodFacts};
use crate::{
    migmanager::Shape,
    plan::{PodName, plain, seen},
};

/// One GPU at one moment.
pub(super) struct View<'a> {
    pub observation: &'a Observation<'a>,
    pub spec: Option<&'a GpuSpec>,
    pub state: &'a GpuState,
    /// The agent is alive and its status speaks of the present spec.
    pub fresh: bool,
}

/// A device that exists: an instance, or the whole GPU.
pub(super) struct Device<'a> {
    pub start: i32,
    pub profile: Option<&'a str>,
    pub state: &'a DeviceState,
    /// Resource under which pods got it; `None`: it was never offered.
    pub resource: Option<String>,
}

impl<'a> View<'a> {
    /// `None`: the agent does not report this GPU.
    pub fn of(observation: &'a Observation<'a>) -> Option<Self> {
        let status = observation.node.status.as_ref()?;
        let state = status.gpus.iter().find(|g| g.uuid == observation.uuid)?;
        let spec = observation.node.spec.gpus.iter().find(|g| g.uuid == observation.uuid);
        let caught_up = status.observed_generation >= observation.node.metadata.generation;
        Some(Self { observation, spec, state, fresh: observation.agent_alive && caught_up })
    }

    pub fn change(&self) -> Option<&'a Change> {
        self.spec.and_then(|s| s.change.as_ref())
    }

    /// The layout that the spec lists, or else the one that NVML shows.
    pub fn present(&self) -> Layout {
        self.spec.map_or_else(|| seen(self.state), |s| plain(s.layout()))
    }

    pub fn devices(&self) -> Vec<Device<'a>> {
        let listed = |start: i32, profile: &str| {
            let instance = self.spec?.instances.iter().find(|i| i.start == start && i.profile == profile)?;
            Some(instance.resource_name())
        };
        let instances = self.state.instances.iter().map(|i| Device {
            start: i.start,
            profile: Some(&i.profile),
            state: &i.device,
            resource: i.device.resource.clone().or_else(|| listed(i.start, &i.profile)),
        });
        let whole_name = || self.spec.filter(|s| !s.mig).map(|s| whole_resource(&s.layout()));
        let whole = self.state.whole.iter().map(|w| Device {
            start: 0,
            profile: None,
            state: w,
            resource: w.resource.clone().or_else(whole_name),
        });
        instances.chain(whole).collect()
    }

    /// Devices that `to` does not have, or that do not outlive its being carved: their owners must go.
    pub fn leaving(&self, to: &Layout) -> Vec<Device<'a>> {
        let swept = self.swept(to);
        self.devices().into_iter().filter(|d| swept || !d.stays_in(to)).collect()
    }

    /// NVIDIA's MIG manager carves a GPU anew as a whole.
    pub fn swept(&self, to: &Layout) -> bool {
        let Some(managed) = &self.observation.managed else { return false };
        let anew = managed.anew.is_some() || self.change().is_some_and(|c| c.from == c.to);
        anew || Shape::of(to) != Shape::seen(self.state)
    }

    /// Starts of devices that the spec lists, that `to` does not have and that do not exist now, as after a power cycle: the agent
    /// is about to bring them back, and nobody may be given one.
    pub fn absent(&self, to: &Layout) -> Vec<i32> {
        let Some(spec) = self.spec else { return Vec::new() };
        let listed: Vec<(i32, Option<&str>)> = if spec.mig {
            spec.instances.iter().map(|i| (i.start, Some(i.profile.as_str()))).collect()
        } else {
            vec![(0, None)]
        };
        let there =
            |start: i32, profile: Option<&str>| self.devices().iter().any(|d| d.start == start && d.profile == profile);
        let stays = |start: i32, profile: Option<&str>| match profile {
            None => !to.mig,
            Some(p) => to.mig && to.instances.iter().any(|i| i.start == start && i.profile == p),
        };
        listed.into_iter().filter(|(s, p)| !there(*s, *p) && !stays(*s, *p)).map(|(s, _)| s).collect()
    }

    /// Starts of the devices of `layout` that do not exist yet, or not under that name.
    pub fn arriving(&self, layout: &Layout) -> Vec<i32> {
        let stays = |start: i32| self.devices().iter().any(|d| d.start == start && d.stays_in(layout));
        let swept = self.swept(layout);
        starts(layout).into_iter().filter(|s| swept || !stays(*s)).collect()
    }

    /// NVML shows exactly this layout, and the agent has nothing left to do.
    pub fn reached(&self, layout: &Layout) -> bool {
        self.fresh && self.state.step == AgentStep::Steady && self.shows(layout)
    }

    /// NVML shows these instances, whatever they are offered as.
    pub fn shows(&self, layout: &Layout) -> bool {
        let mode = self.state.mig.unwrap_or_default();
        let mut wanted: Vec<_> = layout.instances.iter().map(|i| (i.start, i.profile.as_str())).collect();
        let mut shown: Vec<_> = self.state.instances.iter().map(|i| (i.start, i.profile.as_str())).collect();
        wanted.sort_unstable();
        shown.sort_unstable();
        mode.enabled == layout.mig && mode.pending.is_none_or(|p| p == layout.mig) && wanted == shown
    }

    /// Kubelet and the node's allocatable agree that every device of `layout` can be had; or what is missing.
    pub fn offered(&self, layout: &Layout) -> Result<(), String> {
        for device in &self.devices() {
            if !device.stays_in(layout) {
                return Err(format!("{} at {} is still offered as before", device.name(), device.start));
            }
            if !device.state.allocatable {
                return Err(format!("kubelet does not list {} at {} yet", device.name(), device.start));
            }
        }
        let mut wanted: Vec<String> =
            layout.instances.iter().map(gputenancy_crds::InstanceSpec::resource_name).collect();
        if !layout.mig {
            wanted.push(whole_resource(layout));
        }
        wanted.sort();
        wanted.dedup();
        for resource in wanted {
            let (listed, node) = (self.listed_on_node(&resource), self.observation.allocatable.get(&resource));
            if node.copied().unwrap_or(0) < listed {
                return Err(format!(
                    "the node's allocatable {resource} is {}, kubelet lists {listed}",
                    node.unwrap_or(&0)
                ));
            }
        }
        if self.observation.closed.is_some() {
            return self.counted_right();
        }
        Ok(())
    }

    /// Another plugin's devices are counted by kubelet alone, ten seconds late: what has gone must not be on offer any more.
    fn counted_right(&self) -> Result<(), String> {
        for (resource, count) in self.observation.allocatable {
            let listed = self.listed_on_node(resource);
            if (resource == names::WHOLE_GPU_RESOURCE || resource.starts_with("nvidia.com/mig-")) && *count != listed {
                return Err(format!("the node's allocatable {resource} is {count}, kubelet lists {listed}"));
            }
        }
        Ok(())
    }

    /// The agent has seen that this device is held, and the node's allocatable, which is all that the scheduler knows, leaves room
    /// only for those of its name that are not: nobody new comes for it. kubelet is told a moment later.
    pub fn uncounted(&self, device: &Device<'_>) -> bool {
        let (Some(spec), Some(resource)) = (self.spec, &device.resource) else { return false };
        let counted = self.observation.allocatable.get(resource).copied().unwrap_or(0);
        let own_count = self.observation.closed.is_none();
        self.fresh && own_count && spec.hold.contains(&device.start) && counted <= self.staying_on_node(resource)
    }

    /// Devices of this name that kubelet lists and that are not held, on the whole node.
    fn staying_on_node(&self, resource: &str) -> i64 {
        let node = self.observation.node;
        let held =
            |uuid: &str, start: i32| node.spec.gpus.iter().any(|spec| spec.uuid == uuid && spec.hold.contains(&start));
        let staying = node.status.iter().flat_map(|status| &status.gpus).flat_map(|gpu| {
            let instances = gpu.instances.iter().map(|i| (i.start, &i.device));
            let all = instances.chain(gpu.whole.iter().map(|whole| (0, whole)));
            all.filter(|(start, d)| {
                d.allocatable && d.resource.as_deref() == Some(resource) && !held(&gpu.uuid, *start)
            })
        });
        i64::try_from(staying.count()).unwrap_or(i64::MAX)
    }

    fn listed_on_node(&self, resource: &str) -> i64 {
        let gpus = self.observation.node.status.iter().flat_map(|s| &s.gpus);
        let devices = gpus.flat_map(|g| g.instances.iter().map(|i| &i.device).chain(&g.whole));
        let listed = devices.filter(|d| d.allocatable && d.resource.as_deref() == Some(resource)).count();
        i64::try_from(listed).unwrap_or(i64::MAX)
    }

    /// What to do with the pod that owns a device; `None`: the pod is not there any more, kubelet has yet to notice.
    pub fn owner(&self, device: &Device<'_>) -> Option<(PodName, Option<&'a PodFacts>)> {
        let owner = device.state.owner.as_ref()?;
        let pod = PodName { namespace: owner.namespace.as_str().into(), name: owner.pod.clone() };
        let facts = self.observation.pods.get(&pod);
        Some((pod, facts))
    }

    /// Processes on this device that kubelet has not given it to; a process on the whole GPU is on every device.
    pub fn holders(&self, device: &Device<'_>) -> Vec<&'a Holder> {
        self.state.holders.iter().filter(|h| h.start.is_none_or(|s| s == device.start)).collect()
    }

    pub fn healthy(&self) -> bool {
        self.state.health == Health::Healthy
    }

    /// The GPU for messages.
    pub fn title(&self) -> String {
        let node = self.observation.node.metadata.name.as_deref().unwrap_or("?");
        format!("{node} GPU {}", self.state.index)
    }
}

impl Device<'_> {
    /// A device stays when its instance stays and is offered under the same name as before.
    fn stays_in(&self, layout: &Layout) -> bool {
        let same = |name: String| self.resource.as_ref().is_none_or(|r| *r == name);
        match self.profile {
            None => !layout.mig && same(whole_resource(layout)),
            Some(profile) => layout
                .instances
                .iter()
                .any(|i| layout.mig && i.start == self.start && i.profile == profile && same(i.resource_name())),
        }
    }

    pub fn name(&self) -> &str {
        self.profile.unwrap_or("the whole GPU")
    }

    pub fn owned(&self) -> bool {
        self.state.owner.is_some()
    }
}

/// Starts of all devices of a layout.
pub(super) fn starts(layout: &Layout) -> Vec<i32> {
    if layout.mig { layout.instances.iter().map(|i| i.start).collect() } else { vec![0] }
}

fn whole_resource(layout: &Layout) -> String {
    layout.resource.clone().unwrap_or_else(|| names::WHOLE_GPU_RESOURCE.to_owned())
}
