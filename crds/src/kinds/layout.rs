//! Layouts of one GPU: its MIG instances or shares.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::Sharing;

/// One MIG instance: a GPU instance with one compute instance over all of it.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "camelCase")]
pub struct InstanceSpec {
    /// First memory slice.
    #[schemars(range(min = 0, max = 15))]
    pub start: i32,
    /// NVIDIA's name of the profile as the board lists it, such as `1g.10gb`.
    #[schemars(length(min = 1, max = 32))]
    pub profile: String,
    /// Resource under which it is advertised. Default `nvidia.com/mig-<profile>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 100))]
    pub resource: Option<String>,
    /// Number of time-slices that are advertised in place of the instance. Absent: it is not shared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 2, max = 16))]
    pub replicas: Option<i32>,
}

/// Distance between the numbers of two time-slices of one MIG instance: slice `k` of the instance that starts at memory slice `s` has the
/// number `s + 16 k`. No board has more memory slices.
const SLICE_STEP: i32 = 16;

/// Most time-slices of one MIG instance: so many of all instances of a GPU stay within the 128 devices that a GPU may have.
pub const MAX_SLICES: i32 = 16;

/// A layout of one GPU.
#[derive(KubeSchema, Deserialize, Serialize, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(rename_all = "camelCase")]
pub struct Layout {
    /// MIG mode on.
    #[serde(default)]
    pub mig: bool,
    /// Instances by placement, sorted by start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub instances: Vec<InstanceSpec>,
    /// Resource of the whole GPU, without MIG.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 100))]
    pub resource: Option<String>,
    /// Shares of the GPU, without MIG.
    #[serde(default, deserialize_with = "Sharing::read", skip_serializing_if = "Option::is_none")]
    pub sharing: Option<Sharing>,
}

impl Layout {
    /// Resources of its devices, one for each device.
    pub fn resources(&self) -> Vec<String> {
        if self.mig {
            let of = |i: &InstanceSpec| std::iter::repeat_n(i.resource_name(), i.numbers().len());
            return self.instances.iter().flat_map(of).collect();
        }
        let whole = || self.resource.clone().unwrap_or_else(|| crate::names::WHOLE_GPU_RESOURCE.to_owned());
        match &self.sharing {
            None => vec![whole()],
            Some(sharing) => {
                let of_group = |g: &crate::ShareGroup| std::iter::repeat_n(g.resource.clone(), g.numbers.len());
                sharing.shares.iter().flat_map(of_group).collect()
            }
        }
    }

    /// Starts of its devices; numbers of its shares.
    pub fn starts(&self) -> Vec<i32> {
        match (&self.sharing, self.mig) {
            (_, true) => self.instances.iter().flat_map(InstanceSpec::numbers).collect(),
            (None, false) => vec![0],
            (Some(sharing), false) => sharing.numbers(),
        }
    }

    /// Numbers of all shares, of the GPU or of its instances, sorted.
    pub fn shares(&self) -> Vec<i32> {
        if !self.mig {
            return self.sharing.as_ref().map(Sharing::numbers).unwrap_or_default();
        }
        let shared = self.instances.iter().filter(|i| i.replicas.is_some());
        let mut numbers: Vec<i32> = shared.flat_map(InstanceSpec::numbers).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Resource of a share.
    pub fn share_resource(&self, number: i32) -> Option<String> {
        if self.mig {
            return InstanceSpec::with_slice(&self.instances, number).map(InstanceSpec::resource_name);
        }
        Some(self.sharing.as_ref()?.group_of(number)?.resource.clone())
    }
}

impl InstanceSpec {
    /// Resource under which the instance is advertised.
    pub fn resource_name(&self) -> String {
        self.resource.clone().unwrap_or_else(|| crate::names::mig_resource(&self.profile))
    }

    /// Numbers of its devices: its start, or those of its time-slices.
    pub fn numbers(&self) -> Vec<i32> {
        (0..self.replicas.unwrap_or(1)).map(|slice| self.start + slice * SLICE_STEP).collect()
    }

    /// The instance that a time-slice is of.
    pub fn with_slice(instances: &[Self], number: i32) -> Option<&Self> {
        let (start, slice) = slice_of(number);
        instances.iter().find(|i| i.start == start && i.replicas.is_some_and(|replicas| slice < replicas))
    }
}

/// Start of the MIG instance that a time-slice is of, and its place among the slices of the instance.
pub fn slice_of(number: i32) -> (i32, i32) {
    (number % SLICE_STEP, number / SLICE_STEP)
}
