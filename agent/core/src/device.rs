//! What the GPU side and the kubelet side of the agent exchange: the devices that exist, and how kubelet uses them.

use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet},
    fmt,
};

pub use gputenancy_crds::DeviceOwner;
use gputenancy_crds::{Advertiser, AllocationPolicy, Isolation, ResizePolicy, SharingMode};
use gputenancy_ledger::Pace;

/// Id of a device in kubelet: its UUID in NVML, `GPU-…` or `MIG-…`, as NVIDIA's plugin uses it and exporters resolve it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(String);

impl DeviceId {
    /// The id with this text.
    pub fn new(id: impl Into<String>) -> Self {
        Self(id.into())
    }

    /// The id that earlier releases gave to a MIG instance. Kubelet keeps it for pods that were started then.
    pub fn legacy(gpu_uuid: &str, start: u32, profile: &str) -> Self {
        Self(format!("{gpu_uuid}::{start}::{profile}"))
    }

    /// The id of a share of a GPU or of a MIG instance: as NVIDIA's plugin numbers replicas, so that exporters resolve it to these.
    pub fn share(uuid: &str, number: i32) -> Self {
        Self(format!("{uuid}::{number}"))
    }

    /// The UUID in the id: NVIDIA's plugin adds `::<number>` to the UUID of a shared device.
    pub fn uuid(&self) -> &str {
        match self.0.split_once("::") {
            Some((uuid, replica)) if !replica.contains("::") => uuid,
            _ => &self.0,
        }
    }

    /// The id as kubelet has it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for DeviceId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The driver's numbers of a MIG instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigIds {
    /// GPU instance id.
    pub gi: u32,
    /// Compute instance id within the GPU instance.
    pub ci: u32,
    /// First memory slice.
    pub start: u32,
    /// Name of the profile, `1g.10gb`.
    pub profile: String,
}

/// A part of a GPU without MIG, or of a MIG instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// Its number on the GPU: see [`gputenancy_crds::slice_of`] for the slices of a MIG instance.
    pub number: i32,
    /// How it is kept apart from the others.
    pub mode: SharingMode,
    /// Its part of the memory, in MiB, if it has one.
    pub memory_mib: Option<i64>,
    /// Its part of the compute, in percent of the GPU, if it has one.
    pub compute: Option<i32>,
    /// Memory that its programs may allocate, in MiB, where the agent limits it: see [`crate::enforcement::limit`].
    pub limit_mib: Option<i64>,
    /// Its part of the GPU's time, where the agent limits that.
    pub pace: Option<Pace>,
    /// What happens when its memory becomes less than programs hold.
    pub resize: ResizePolicy,
}

/// A whole GPU, a MIG instance or a share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its UUID; for a share that of its GPU or instance, with a number.
    pub id: DeviceId,
    /// Extended resource, `nvidia.com/mig-1g.10gb`.
    pub resource: String,
    /// UUID of its GPU.
    pub gpu_uuid: String,
    /// Minor number of its GPU: `/dev/nvidia<minor>`.
    pub gpu_minor: u32,
    /// Set for a MIG instance, and for a share of one.
    pub mig: Option<MigIds>,
    /// Set for a share.
    pub share: Option<Share>,
    /// NUMA node of its GPU, if known.
    pub numa: Option<i64>,
    /// Not advertised, because a change of its GPU is in progress.
    pub cordoned: bool,
    /// False when the driver reports a fault.
    pub healthy: bool,
}

impl Device {
    /// Whether it is in the list that kubelet gets.
    pub fn advertised(&self) -> bool {
        !self.cordoned
    }

    /// The id of earlier releases; none for a whole GPU, whose id has not changed, and for a share, which they had not.
    pub fn legacy_id(&self) -> Option<DeviceId> {
        if self.share.is_some() {
            return None;
        }
        let MigIds { start, profile, .. } = self.mig.as_ref()?;
        Some(DeviceId::legacy(&self.gpu_uuid, *start, profile))
    }
}

/// The devices of this node. The GPU side writes them; each change increments the generation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceView {
    /// 0: the layout is not verified yet, and nothing is advertised.
    pub generation: u64,
    /// All devices, cordoned ones included; empty if another plugin advertises them.
    pub devices: Vec<Device>,
    /// Shares in the spec that another plugin advertises; empty if the agent does.
    pub elsewhere: Vec<Device>,
    /// The device plugin that advertises them.
    pub advertiser: Advertiser,
    /// Which GPU a pod gets devices of.
    pub allocation: AllocationPolicy,
    /// Weakest means that the pool accepts for the memory of shares.
    pub minimum: Isolation,
}

impl DeviceView {
    /// The shares of a GPU and of its instances, by whichever plugin.
    pub fn shares<'v>(&'v self, gpu_uuid: &'v str) -> impl Iterator<Item = (&'v Device, &'v Share)> {
        let all = self.devices.iter().chain(&self.elsewhere).filter(move |device| device.gpu_uuid == gpu_uuid);
        all.filter_map(|device| Some((device, device.share.as_ref()?)))
    }
}

/// Owners by device.
pub type Owners = BTreeMap<DeviceId, DeviceOwner>;

/// Whether containers that start now with a share get the library that limits their memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ShimState {
    /// Not decided yet.
    #[default]
    Unknown,
    /// They get it.
    Served,
    /// Memory is not to be limited.
    Off,
    /// The library, or the files of a share, could not be written, or the driver has no `libcuda`.
    NotInstalled,
    /// Another product limits memory on the node: two limits of one container break each other.
    Conflict(OtherLimiter),
}

/// Whether the driver limits the memory of containers with a share of a GPU without MIG, by their cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DriverLimits {
    /// Not known yet.
    #[default]
    Unknown,
    /// Driver or kernel have no such limits, or do not accept ours, or memory is not to be limited.
    NotSupported,
    /// It does.
    Supported,
}

/// What can limit the memory of containers that start now with a share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limiters {
    /// The library in the container.
    pub shim: ShimState,
    /// The driver.
    pub driver: DriverLimits,
}

impl Limiters {
    /// Nothing, as where another plugin serves the shares.
    pub const OFF: Self = Self { shim: ShimState::Off, driver: DriverLimits::NotSupported };
}

/// What shows that another product limits the memory of containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherLimiter {
    /// `/etc/ld.so.preload` of the node names it.
    Preload,
    /// The folder from which its device plugin mounts it into containers.
    Folder,
    /// The Node has the condition of kai-gpu-fractioning, which sets the driver's limits and those of MPS.
    Fractioning,
}

/// How kubelet uses the devices. The kubelet side writes it.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KubeletView {
    /// Kubelet has reported owners at least once. Before that, an empty list has no meaning.
    pub answered: bool,
    /// Owners, from `PodResources` `List`.
    pub owners: Owners,
    /// Devices that kubelet's device manager lists as allocatable.
    pub allocatable: BTreeSet<DeviceId>,
    /// Resources of the devices that another plugin advertises. Empty if the agent advertises.
    pub elsewhere: BTreeMap<DeviceId, String>,
    /// Generation of the [`DeviceView`] that `ListAndWatch`, kubelet's allocatable devices and the node's allocatable reflect.
    /// Kubelet cannot allocate a device that this generation does not advertise; only then may the device be destroyed.
    pub applied_generation: u64,
    /// What can limit the memory of containers that start now with a share.
    pub limiters: Limiters,
    /// Another product on the node that limits memory, whether or not the agent is to limit it.
    pub other_limiter: Option<OtherLimiter>,
    /// Every resource is registered, and kubelet watches every list.
    pub plugin_ready: bool,
    /// Another plugin advertises the devices, and kubelet has listed none for longer than a restart of that plugin takes.
    pub nothing_listed: bool,
    /// The reason if not, or what is waited for; one sentence for a condition.
    pub message: String,
}

impl KubeletView {
    /// Owners, once kubelet has reported them.
    pub fn known_owners(&self) -> Option<&Owners> {
        self.answered.then_some(&self.owners)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn share(number: i32, mode: SharingMode, memory_mib: Option<i64>) -> Device {
        let resize = ResizePolicy::default();
        let share = Share { number, mode, memory_mib, compute: None, limit_mib: None, pace: None, resize };
        Device {
            id: DeviceId::share("GPU-a", number),
            resource: "gputenancy.io/part".into(),
            gpu_uuid: "GPU-a".into(),
            gpu_minor: 0,
            mig: None,
            share: Some(share),
            numa: None,
            cordoned: false,
            healthy: true,
        }
    }

    #[test]
    fn device_id_keeps_its_uuid_unless_it_is_a_replica() {
        for (id, uuid) in [("MIG-a", "MIG-a"), ("GPU-a::3", "GPU-a"), ("GPU-a::0::1g.10gb", "GPU-a::0::1g.10gb")] {
            assert_eq!(DeviceId::new(id).uuid(), uuid);
        }
    }
}
