//! Resource names without devices, which kubelet keeps in the Node's capacity for ever.
//!
//! A plugin server whose resource has no device any more, such as that of a deleted profile, is stopped after a while. kubelet forgets a
//! stopped plugin after five minutes and leaves its name with the amount 0. Then the agent removes the name. A kubelet that still knows the
//! plugin adds the name again within ten seconds, and the agent waits longer before the next attempt.
//!
//! This module is pure; [`super::manager`] executes its actions.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use gputenancy_crds::backoff::Backoff;

use super::allocatable::Counts;
use crate::{device::DeviceId, kubelet::device_list::DeviceLists};

/// How long a resource has no device before its plugin server is stopped: most get devices again in the course of a change.
pub const IDLE_AFTER: Duration = Duration::from_mins(1);

/// How long a name of an earlier agent has the amount 0 before the first attempt to remove it.
pub const ZERO_FOR: Duration = Duration::from_mins(1);

/// The same where this agent has stopped the server, and before the second attempt. kubelet forgets a stopped plugin after five minutes (`endpointStopGracePeriod`).
pub const STOPPED_FOR: Duration = Duration::from_mins(6);

/// Delays of further attempts.
pub const RETRY: Backoff = Backoff::new(STOPPED_FOR, Duration::from_hours(24));

/// Input of a step.
#[derive(Debug)]
pub struct Observation<'a> {
    /// The lists that the device view asks for.
    pub wanted: &'a DeviceLists,
    /// The lists published last, for each resource that has a plugin server.
    pub published: &'a DeviceLists,
    /// Names of device resources whose capacity and allocatable on the Node are 0; true: of them the agent's by their domain, or because the
    /// agent wrote their allocatable last.
    pub zero: &'a BTreeMap<String, bool>,
    /// Devices that kubelet lists by resource; none while it does not answer.
    pub kubelet: Option<&'a BTreeMap<String, BTreeSet<DeviceId>>>,
    /// Requests of the node's pods; none without the right to read pods.
    pub requested: Option<&'a Counts>,
    /// The current time.
    pub now: Instant,
}

/// Output of a step.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Resources whose plugin server is to be stopped.
    pub stop: Vec<String>,
    /// Names to remove from the Node, in one patch.
    pub remove: BTreeSet<String>,
}

/// What is kept between steps; a new agent starts without any.
#[derive(Debug, Default)]
pub struct StaleNames {
    /// Since when a resource with a plugin server has no device.
    idle: BTreeMap<String, Instant>,
    /// Resources whose server was stopped.
    stopped: BTreeSet<String>,
    names: BTreeMap<String, Name>,
}

/// A name with the amount 0 that is the agent's.
#[derive(Debug, Default)]
struct Name {
    /// Since when it is on the Node; none: it is not.
    since: Option<Instant>,
    /// Attempts to remove it.
    attempts: u32,
}

impl Name {
    fn delay(&self) -> Duration {
        match self.attempts {
            0 => ZERO_FOR,
            attempts => RETRY.after(attempts),
        }
    }
}

impl StaleNames {
    /// Decides which servers to stop and which names to remove.
    pub fn step(&mut self, seen: &Observation<'_>) -> Step {
        let (Some(kubelet), Some(requested)) = (seen.kubelet, seen.requested) else { return Step::default() };
        let unused = |resource: &str| {
            let wanted = seen.wanted.get(resource).is_some_and(|list| !list.is_empty());
            let listed = kubelet.get(resource).is_some_and(|ids| !ids.is_empty());
            !wanted && !listed && requested.get(resource).is_none_or(|count| *count == 0)
        };
        let served = |resource: &str| seen.published.contains_key(resource) || seen.wanted.contains_key(resource);
        let idle = seen.published.iter().filter(|(resource, list)| list.is_empty() && unused(resource));
        let idle = idle.filter(|(resource, _)| seen.zero.contains_key(*resource));
        let since = |resource: &String| self.idle.get(resource).copied().unwrap_or(seen.now);
        self.idle = idle.map(|(resource, _)| (resource.clone(), since(resource))).collect();
        let due = |_: &String, since: &mut Instant| seen.now >= *since + IDLE_AFTER;
        let stop: Vec<String> = self.idle.extract_if(.., due).map(|(resource, _)| resource).collect();

        let is_stale =
            |(name, ours): &(&String, &bool)| (**ours || self.stopped.contains(*name)) && !served(name) && unused(name);
        let stale: BTreeSet<&String> = seen.zero.iter().filter(is_stale).map(|(name, _)| name).collect();
        for (name, known) in &mut self.names {
            if !stale.contains(name) {
                known.since = None;
            }
        }
        let mut remove = BTreeSet::new();
        for name in stale {
            let known = self.names.entry(name.clone()).or_default();
            let since = *known.since.get_or_insert(seen.now);
            if seen.now >= since + known.delay() {
                (known.since, known.attempts) = (None, known.attempts.saturating_add(1));
                remove.insert(name.clone());
            }
        }
        // a name that is served again begins again
        self.names.retain(|name, _| !served(name));
        self.stopped.retain(|name| !served(name));
        self.stopped.extend(stop.iter().cloned());
        // the first attempt would be too early for kubelet
        self.names.extend(stop.iter().map(|name| (name.clone(), Name { since: None, attempts: 1 })));
        Step { stop, remove }
    }
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::names::is_device_resource;

    use super::*;
    use crate::kubelet::device_list::{DeviceList, ListedDevice};

    const SMALL: &str = "gputenancy.io/small";
    const SLICE: &str = "nvidia.com/mig-1g.10gb";

    /// A node whose kubelet knows some plugins.
    struct Scene {
        names: StaleNames,
        wanted: DeviceLists,
        published: DeviceLists,
        zero: BTreeMap<String, bool>,
        kubelet: BTreeMap<String, BTreeSet<DeviceId>>,
        requested: Counts,
        now: Instant,
    }

    impl Scene {
        /// With these names of amount 0, of which those in `gputenancy.io` are the agent's.
        fn new(zero: &[&str]) -> Self {
            let ours = |name: &&str| ((*name).to_owned(), name.starts_with("gputenancy.io/"));
            Self {
                names: StaleNames::default(),
                wanted: DeviceLists::new(),
                published: DeviceLists::new(),
                zero: zero.iter().map(ours).collect(),
                kubelet: BTreeMap::new(),
                requested: Counts::new(),
                now: Instant::now(),
            }
        }

        fn step(&mut self) -> Step {
            self.names.step(&Observation {
                wanted: &self.wanted,
                published: &self.published,
                zero: &self.zero,
                kubelet: Some(&self.kubelet),
                requested: Some(&self.requested),
                now: self.now,
            })
        }

        /// The step this much later, when nothing has changed.
        fn after(&mut self, pause: Duration) -> Step {
            self.step();
            self.now += pause;
            self.step()
        }

        /// The same, one second less later.
        fn just_before(&mut self, pause: Duration) -> Step {
            self.after(pause.saturating_sub(Duration::from_secs(1)))
        }
    }

    fn one_device() -> DeviceList {
        [(DeviceId::new("MIG-1"), ListedDevice { healthy: true, numa: None })].into()
    }

    fn removes(names: &[&str]) -> Step {
        Step { remove: names.iter().map(|name| (*name).to_owned()).collect(), ..Step::default() }
    }

    #[test]
    fn names_of_ours_that_no_plugin_serves_are_removed_together_and_others_stay() {
        let mut scene = Scene::new(&[SMALL, "gputenancy.io/other", SLICE, "nvidia.com/gpu"]);
        assert_eq!(scene.just_before(ZERO_FOR), Step::default());
        assert_eq!(scene.after(Duration::from_secs(1)), removes(&["gputenancy.io/other", SMALL]));
        assert!(is_device_resource(SLICE), "one of NVIDIA's names may be another plugin's without devices");
        // an agent that wrote it last, before it was restarted
        scene.zero.insert(SLICE.to_owned(), true);
        scene.zero.retain(|name, _| name != SMALL && name != "gputenancy.io/other");
        assert_eq!(scene.after(ZERO_FOR), removes(&[SLICE]));
    }

    #[test]
    fn name_that_kubelet_adds_again_is_removed_ever_later() {
        let mut scene = Scene::new(&[SMALL]);
        assert_eq!(scene.after(ZERO_FOR), removes(&[SMALL]));
        for delay in [1, 2, 3].map(|attempts| RETRY.after(attempts)) {
            // kubelet takes the removal over, and adds the name again
            let zero = std::mem::take(&mut scene.zero);
            scene.step();
            scene.zero = zero;
            assert_eq!(scene.just_before(delay), Step::default());
            assert_eq!(scene.after(Duration::from_secs(1)), removes(&[SMALL]));
        }
        scene.names.names.get_mut(SMALL).unwrap().attempts = 60;
        assert_eq!(scene.after(RETRY.longest()), removes(&[SMALL]));
    }

    #[test]
    fn server_without_devices_is_stopped_and_its_name_then_removed() {
        let mut scene = Scene::new(&[SLICE]);
        scene.published.insert(SLICE.to_owned(), DeviceList::new());
        assert_eq!(scene.after(IDLE_AFTER), Step { stop: vec![SLICE.to_owned()], ..Step::default() });
        scene.published.clear();
        assert_eq!(scene.just_before(STOPPED_FOR), Step::default());
        assert_eq!(scene.after(Duration::from_secs(1)), removes(&[SLICE]));
    }

    #[test]
    fn name_in_use_is_neither_stopped_nor_removed() {
        type Edit = fn(&mut Scene);
        let edits: [Edit; 5] = [
            |s| _ = s.wanted.insert(SLICE.to_owned(), one_device()),
            |s| _ = s.published.insert(SLICE.to_owned(), one_device()),
            |s| _ = s.kubelet.insert(SLICE.to_owned(), [DeviceId::new("MIG-1")].into()),
            |s| _ = s.requested.insert(SLICE.to_owned(), 1),
            |s| s.zero.clear(),
        ];
        for (n, edit) in edits.into_iter().enumerate() {
            for served in [true, false] {
                let mut scene = Scene::new(&[]);
                scene.zero.insert(SLICE.to_owned(), true);
                if served {
                    scene.published.insert(SLICE.to_owned(), DeviceList::new());
                }
                edit(&mut scene);
                assert_eq!(scene.after(STOPPED_FOR), Step::default(), "edit {n}");
            }
        }
    }

    #[test]
    fn resource_that_gets_devices_again_in_time_keeps_its_server() {
        let mut scene = Scene::new(&[SLICE]);
        scene.published.insert(SLICE.to_owned(), DeviceList::new());
        assert_eq!(scene.just_before(IDLE_AFTER), Step::default());
        scene.wanted.insert(SLICE.to_owned(), one_device());
        assert_eq!(scene.after(IDLE_AFTER), Step::default());
        scene.wanted.clear();
        assert_eq!(scene.just_before(IDLE_AFTER), Step::default());
    }

    #[test]
    fn nothing_is_decided_while_kubelet_does_not_answer() {
        let mut scene = Scene::new(&[SMALL]);
        scene.step();
        scene.now += STOPPED_FOR;
        let seen = Observation {
            wanted: &scene.wanted,
            published: &scene.published,
            zero: &scene.zero,
            kubelet: None,
            requested: Some(&scene.requested),
            now: scene.now,
        };
        assert_eq!(scene.names.step(&seen), Step::default());
    }
}
