//! Which limits of the driver to set and to clear.

use std::{collections::BTreeMap, path::PathBuf};

use crate::device::{Device, DeviceOwner, Owners};

/// A cgroup on a GPU.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// UUID of the GPU.
    pub gpu: String,
    /// Full path of the cgroup in sysfs.
    pub cgroup: PathBuf,
}

/// Hard limits in bytes.
pub type Limits = BTreeMap<Target, u64>;

/// A call to the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Clear the limit.
    Clear(Target),
    /// Set this limit, or read it back if it is set.
    Set(Target, u64),
}

/// A share that the driver can limit, and its container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limited {
    /// UUID of the GPU.
    pub gpu: String,
    /// The container.
    pub owner: DeviceOwner,
    /// Bytes that the container may have, with the context of one process.
    pub bytes: u64,
}

/// The shares with a limit and an owner. The driver refuses MIG instances, and the memory of MPS clients belongs to their server, which limits it.
/// `bytes` is the limit of a device's running container, which a change of the layout does not change.
pub fn limited(devices: &[Device], owners: &Owners, bytes: &dyn Fn(&Device) -> Option<u64>) -> Vec<Limited> {
    let on_gpu = devices.iter().filter(|device| device.mig.is_none());
    let of = |device: &Device| {
        let owner = owners.get(&device.id)?.clone();
        Some(Limited { gpu: device.gpu_uuid.clone(), owner, bytes: bytes(device)? })
    };
    on_gpu.filter_map(of).collect()
}

/// The limits of the containers whose cgroups are known. Several shares of one container on a GPU count together.
pub fn wanted(shares: &[Limited], cgroups: &BTreeMap<DeviceOwner, Vec<PathBuf>>) -> Limits {
    let mut limits = Limits::new();
    for Limited { gpu, owner, bytes } in shares {
        for cgroup in cgroups.get(owner).into_iter().flatten() {
            let limit = limits.entry(Target { gpu: gpu.clone(), cgroup: cgroup.clone() }).or_default();
            *limit = limit.saturating_add(*bytes);
        }
    }
    limits
}

/// What leads from the limits that were set to the wanted ones; with `verify` those that were set are read back as well. What is not wanted any more
/// is cleared first: a container keeps no limit that a share of another one has replaced.
pub fn decide(wanted: &Limits, set: &Limits, verify: bool) -> Vec<Action> {
    let cleared = set.keys().filter(|target| !wanted.contains_key(target)).cloned().map(Action::Clear);
    let new = wanted.iter().filter(|(target, bytes)| verify || set.get(target) != Some(bytes));
    cleared.chain(new.map(|(target, bytes)| Action::Set(target.clone(), *bytes))).collect()
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::SharingMode;
    use proptest::prelude::*;

    use super::*;
    use crate::device::{DeviceId, MigIds, tests::share as device};

    fn owner(pod: &str) -> DeviceOwner {
        DeviceOwner { namespace: "n".into(), pod: pod.into(), container: "c".into() }
    }

    fn target(gpu: &str, cgroup: &str) -> Target {
        Target { gpu: gpu.into(), cgroup: cgroup.into() }
    }

    #[test]
    fn shares_of_whole_gpus_with_limit_and_owner_are_limited() {
        let share = |number| Device {
            id: DeviceId::share("GPU-a", number),
            gpu_uuid: "GPU-a".into(),
            ..device(number, SharingMode::TimeSlice, None)
        };
        let mig = MigIds { gi: 1, ci: 0, start: 0, profile: "1g.10gb".into() };
        let devices = [share(0), share(1), Device { mig: Some(mig), ..share(2) }, share(3)];
        let owners: Owners = [0, 2, 3].map(|n| (DeviceId::share("GPU-a", n), owner(&n.to_string()))).into();
        let bytes = |device: &Device| (device.id != DeviceId::share("GPU-a", 3)).then_some(7);
        let found = limited(&devices, &owners, &bytes);
        assert_eq!(found, [Limited { gpu: "GPU-a".into(), owner: owner("0"), bytes: 7 }]);
    }

    #[test]
    fn shares_of_one_container_count_together_and_each_of_its_cgroups_is_limited() {
        let share = |pod: &str, gpu: &str, bytes| Limited { gpu: gpu.into(), owner: owner(pod), bytes };
        let shares = [share("p", "GPU-a", 3), share("p", "GPU-a", 4), share("p", "GPU-b", 5), share("q", "GPU-a", 9)];
        // a restarted container has two for a moment; the other pod has none yet
        let cgroups = BTreeMap::from([(owner("p"), vec!["/old".into(), "/new".into()])]);
        let expected = [("GPU-a", "/new", 7), ("GPU-a", "/old", 7), ("GPU-b", "/new", 5), ("GPU-b", "/old", 5)];
        let found = wanted(&shares, &cgroups);
        assert_eq!(found, expected.map(|(gpu, cgroup, bytes)| (target(gpu, cgroup), bytes)).into());
    }

    #[test]
    fn unwanted_limits_are_cleared_before_new_ones_are_set() {
        let (old, kept, new) = (target("g", "/old"), target("g", "/kept"), target("g", "/new"));
        let set = Limits::from([(old.clone(), 1), (kept.clone(), 2)]);
        let wanted = Limits::from([(kept.clone(), 2), (new.clone(), 3)]);
        assert_eq!(decide(&wanted, &set, false), [Action::Clear(old.clone()), Action::Set(new.clone(), 3)]);
        let changed = Limits::from([(kept.clone(), 4)]);
        assert_eq!(decide(&changed, &set, false), [Action::Clear(old), Action::Set(kept.clone(), 4)]);
        assert_eq!(decide(&wanted, &wanted, true), [Action::Set(kept, 2), Action::Set(new, 3)]);
    }

    proptest! {
        #[test]
        fn actions_lead_to_what_is_wanted_and_then_nothing_is_left_to_do(
            wanted in prop::collection::btree_map(("[ab]", "[cde]"), 1..4_u64, 0..5),
            set in prop::collection::btree_map(("[ab]", "[cde]"), 1..4_u64, 0..5),
            verify in any::<bool>(),
        ) {
            let limits = |of: BTreeMap<(String, String), u64>| -> Limits {
                of.into_iter().map(|((gpu, cgroup), bytes)| (target(&gpu, &cgroup), bytes)).collect()
            };
            let (wanted, mut set) = (limits(wanted), limits(set));
            for action in decide(&wanted, &set.clone(), verify) {
                match action {
                    Action::Clear(target) => { prop_assert!(set.remove(&target).is_some()); }
                    Action::Set(target, bytes) => { set.insert(target, bytes); }
                }
            }
            prop_assert_eq!(&set, &wanted);
            prop_assert!(decide(&wanted, &set, false).is_empty());
        }
    }
}
