//! Devices of layouts: which a layout has, and which of those in use it removes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gputenancy_crds::{InstanceSpec, Layout, SharingMode, names, slice_of};

use super::{
    options::BoardOptions,
    profiles::{ProfileId, ProfileIndex},
};
use crate::snapshot::{Gpu, InUse};

/// Weight of a pod without priority; the value of a priority class adds to it, a negative one takes a little.
const POD: i64 = 1000;
/// Weight of a device with processes but without a pod: these cannot be evicted.
const UNATTRIBUTED: i64 = 1_000_000_000_000;

/// Devices by slot of the fleet's sums, sorted. Each profile has a slot; after these each holder of more than its guarantee has one
/// for the devices in use that it keeps.
pub(crate) type Devices = Vec<(usize, i64)>;

/// Devices in a slot.
pub(crate) fn count(devices: &[(usize, i64)], slot: usize) -> i64 {
    devices.iter().find(|(s, _)| *s == slot).map_or(0, |(_, n)| *n)
}

/// Adds a device to a slot.
pub(crate) fn add_one(devices: &mut Devices, slot: usize) {
    match devices.binary_search_by_key(&slot, |(s, _)| *s) {
        Ok(at) => devices.iter_mut().skip(at).take(1).for_each(|(_, n)| *n += 1),
        Err(at) => devices.insert(at, (slot, 1)),
    }
}

/// The layout that a GPU has now. One that is not listed counts as a whole device where the pool offers whole devices.
pub(super) fn base(gpu: &Gpu, options: &BoardOptions<'_>, profiles: &ProfileIndex<'_>) -> Option<Arc<Layout>> {
    gpu.base.clone().or_else(|| {
        let used =
            gpu.used.iter().find(|u| u.start == 0).and_then(|u| profiles.of_device(&u.resource, u.profile.as_deref()));
        let wholes = || options.wholes().map(|(_, offer)| offer);
        let offer = wholes().find(|o| used == Some(o.profile)).or_else(|| wholes().next())?;
        Some(Arc::new(whole(offer.resource.clone())))
    })
}

/// The layout without MIG.
pub(crate) fn whole(resource: Option<String>) -> Layout {
    Layout { resource, ..Layout::default() }
}

/// Devices that a layout of a GPU has and keeps, and the weight of the pods that it evicts. `present` is the layout that the GPU
/// has or is changing to; `kept` is, by device in use, the slot that counts it when kept. Of `closed` kinds of shares, of a marked GPU, and of
/// a present layout that does not exist, only those in use count.
pub(crate) fn supplied(
    layout: Option<&Layout>,
    (gpu, present, kept): (&Gpu, Option<&Layout>, &[Option<usize>]),
    closed: &BTreeSet<SharingMode>,
    profiles: &ProfileIndex<'_>,
) -> (Devices, i64) {
    let mut supply = BTreeMap::new();
    let mut more = |slot: usize| *supply.entry(slot).or_insert(0) += 1;
    let absent = gpu.is_marked() || gpu.is_broken() && layout == present;
    layout.iter().flat_map(|l| of_layout(l, (gpu, absent), closed, profiles)).for_each(&mut more);
    let mut evict = 0;
    for (used, kept) in gpu.used.iter().zip(kept) {
        if !stays(layout, used) {
            evict += weight(gpu, present, used);
        } else if let Some(slot) = kept {
            more(*slot);
        }
    }
    (supply.into_iter().collect(), evict)
}

/// The profiles of a layout's devices, one for each device that counts. `absent`: only those in use do.
fn of_layout(
    layout: &Layout,
    (gpu, absent): (&Gpu, bool),
    closed: &BTreeSet<SharingMode>,
    profiles: &ProfileIndex<'_>,
) -> Vec<ProfileId> {
    let used_of = |shares_only: bool| {
        let here = gpu.used.iter().filter(move |used| (used.share || !shares_only) && used.stays_in(layout));
        here.filter_map(|used| profiles.of_device(&used.resource, used.profile.as_deref()))
    };
    if absent {
        return used_of(false).collect();
    }
    let in_use = || used_of(true);
    if layout.mig {
        let of = |i: &InstanceSpec| {
            let profile = profiles.of_device(&i.resource_name(), Some(&i.profile));
            std::iter::repeat_n(profile, i.numbers().len())
        };
        let sliced = closed.contains(&SharingMode::TimeSlice);
        let open = layout.instances.iter().filter(|i| !sliced || i.replicas.is_none());
        return open.flat_map(of).flatten().chain(in_use().filter(|_| sliced)).collect();
    }
    if layout.sharing.as_ref().is_some_and(|sharing| closed.contains(&sharing.mode)) {
        return in_use().collect();
    }
    layout.resources().iter().filter_map(|resource| profiles.of_device(resource, None)).collect()
}

/// Weight of a device in use when it is removed. Evictions of a change in progress are decided already.
pub(crate) fn weight(gpu: &Gpu, present: Option<&Layout>, used: &InUse) -> i64 {
    let decided = gpu.changing && !stays(present, used);
    match &used.pod {
        _ if decided => 0,
        Some(_) => POD + i64::from(used.priority).clamp(1 - POD, 2_000_000_000),
        None => UNATTRIBUTED,
    }
}

/// Whether a device in use is also a device of this layout.
pub(crate) fn stays(layout: Option<&Layout>, used: &InUse) -> bool {
    layout.is_none_or(|layout| used.stays_in(layout))
}

impl InUse {
    /// The first memory slice of what it covers.
    pub(crate) fn memory_start(&self) -> i32 {
        match (self.share, &self.profile) {
            (true, Some(_)) => slice_of(self.start).0,
            (true, None) => 0,
            (false, _) => self.start,
        }
    }

    /// Whether the device in use is also a device of this layout.
    pub fn stays_in(&self, layout: &Layout) -> bool {
        if self.share && layout.mig {
            let instance = InstanceSpec::with_slice(&layout.instances, self.start);
            let same =
                |i: &InstanceSpec| self.profile.as_deref() == Some(&*i.profile) && i.resource_name() == *self.resource;
            return instance.is_some_and(same);
        }
        if self.share {
            let groups = layout.sharing.iter().flat_map(|s| &s.shares);
            let same = groups.filter(|g| g.numbers.contains(&self.start)).any(|g| g.resource == *self.resource);
            return same && self.profile.is_none();
        }
        let Some(profile) = &self.profile else {
            let whole = !layout.mig && layout.sharing.is_none();
            return whole && layout.resource.as_deref().unwrap_or(names::WHOLE_GPU_RESOURCE) == &*self.resource;
        };
        let same = |i: &InstanceSpec| {
            i.replicas.is_none()
                && i.start == self.start
                && i.profile == **profile
                && i.resource_name() == *self.resource
        };
        layout.mig && layout.instances.iter().any(same)
    }
}
