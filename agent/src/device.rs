//! What the two halves of the agent tell each other: the devices that exist, and what kubelet does with them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use gputenancy_crds::Advertiser;

/// Stable id of a device as kubelet knows it.
///
/// A whole GPU is its UUID. A MIG instance is `<GPU UUID>::<start>::<profile>`: MIG UUIDs change
/// when an instance is created again, its place does not, and kubelet's checkpoint must survive
/// a re-carve of the same layout. No slash, because the id becomes part of a CDI name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(String);

impl DeviceId {
    /// The id of a whole GPU.
    pub fn whole(gpu_uuid: &str) -> Self {
        Self(gpu_uuid.to_owned())
    }

    /// The id of a MIG instance by its place: the first memory slice and the profile's name (`1g.10gb`).
    pub fn mig(gpu_uuid: &str, start: u32, profile: &str) -> Self {
        Self(format!("{gpu_uuid}::{start}::{profile}"))
    }

    /// Does it name a place on a GPU? Ids of NVIDIA's plugin never do.
    pub fn is_place(&self) -> bool {
        self.0.contains("::")
    }

    /// An id that kubelet sent back.
    pub fn from_kubelet(id: impl Into<String>) -> Self {
        Self(id.into())
    }

    /// The id as kubelet sees it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The numbers by which the driver knows a MIG instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MigIds {
    /// GPU instance id.
    pub gi: u32,
    /// Compute instance id within the GPU instance.
    pub ci: u32,
    /// First memory slice.
    pub start: u32,
    /// Profile as NVIDIA names it, `1g.10gb`.
    pub profile: String,
    /// Memory slices it covers.
    pub size: u32,
}

/// One thing a container can be given: a whole GPU or a MIG instance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// How kubelet names it.
    pub id: DeviceId,
    /// Extended resource it counts for, `nvidia.com/mig-1g.10gb`.
    pub resource: String,
    /// UUID of the GPU it is (part of).
    pub gpu_uuid: String,
    /// Minor number of the GPU: `/dev/nvidia<minor>`.
    pub gpu_minor: u32,
    /// UUID as NVML names the device itself: `MIG-…` or `GPU-…`.
    pub uuid: String,
    /// Set for a MIG instance.
    pub mig: Option<MigIds>,
    /// NUMA node of the GPU, where the host tells.
    pub numa: Option<i64>,
    /// Withdrawn from kubelet: a change is under way and nobody may be given it.
    pub held: bool,
    /// False when the driver reports a fault that no new work should meet.
    pub healthy: bool,
}

impl Device {
    /// May kubelet be told about it.
    pub fn offered(&self) -> bool {
        !self.held
    }
}

/// Everything this node could offer; written by the silicon side, every change with a higher generation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceView {
    /// Grows with every change; 0 means that the layout is not proven yet and nothing may be advertised.
    pub generation: u64,
    /// All devices, held ones included; none where another plugin offers them.
    pub devices: Vec<Device>,
    /// Whose device plugin tells kubelet about them.
    pub advertiser: Advertiser,
}

/// The container that kubelet gave a device to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceOwner {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Name of the container.
    pub container: String,
}

/// Who holds what.
pub type Owners = BTreeMap<DeviceId, DeviceOwner>;

/// Who holds a device, by our id or by the UUID that NVIDIA's plugin gives it.
pub fn owner_of<'o>(owners: &'o Owners, id: &DeviceId, uuid: Option<&str>) -> Option<&'o DeviceOwner> {
    let by_uuid = || owners.get(&DeviceId::from_kubelet(uuid?));
    owners.get(id).or_else(by_uuid)
}

/// What kubelet makes of the devices; written by the kubelet side.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KubeletView {
    /// Kubelet has said at least once who holds what: before that an empty list means nothing.
    pub told: bool,
    /// Who holds what, from `PodResources` `List`.
    pub owners: Owners,
    /// Devices that kubelet's device manager lists as allocatable.
    pub allocatable: BTreeSet<DeviceId>,
    /// Resources of the devices that another plugin offers, by its own ids: UUIDs. Empty where we advertise.
    pub elsewhere: BTreeMap<DeviceId, String>,
    /// Devices in the lists sent to kubelet last.
    pub offered: BTreeSet<DeviceId>,
    /// Generation of the [`DeviceView`] that `ListAndWatch` and kubelet's own allocatable reflect and for
    /// which the node's allocatable was lowered. A device absent from that view's offer can no longer be
    /// given to a new container; only then may it be destroyed.
    pub applied_generation: u64,
    /// Every resource is registered and kubelet listens to every list.
    pub plugin_ready: bool,
    /// Why not, or what is being waited for; one sentence for a condition.
    pub message: String,
}

impl KubeletView {
    /// Who holds what, once kubelet has said so.
    pub fn known_owners(&self) -> Option<&Owners> {
        self.told.then_some(&self.owners)
    }

    /// Can it be given to a container?
    pub fn allocates(&self, id: &DeviceId, uuid: Option<&str>) -> bool {
        self.allocatable.contains(id)
            || uuid.is_some_and(|uuid| self.allocatable.contains(&DeviceId::from_kubelet(uuid)))
    }

    /// The resource under which another plugin offers it.
    pub fn offered_elsewhere(&self, uuid: &str) -> Option<&String> {
        self.elsewhere.get(&DeviceId::from_kubelet(uuid))
    }
}
