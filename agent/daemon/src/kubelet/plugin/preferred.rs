//! Preferred allocation: devices on the GPUs with the most or the fewest devices in use; several whole GPUs by their connections, and on
//! one NUMA node.

use std::{cmp::Reverse, collections::BTreeSet};

use gputenancy_crds::AllocationPolicy;
use gputenancy_nvml::Connection;

use crate::{
    device::{DeviceId, Owners},
    gpu::Connections,
};

/// A device that kubelet can allocate.
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Its id.
    pub id: DeviceId,
    /// UUID of its GPU.
    pub gpu: String,
    /// NUMA node of its GPU.
    pub numa: Option<i64>,
    /// First memory slice.
    pub start: u32,
    /// Number of allocated devices on its GPU.
    pub used: usize,
    /// Number of allocated shares of its GPU or instance.
    pub neighbours: usize,
    /// A container has it, although kubelet may not know.
    pub allocated: bool,
    /// A process of another pod uses it.
    pub occupied: bool,
    /// It is being withdrawn.
    pub withdrawn: bool,
    /// It is an MPS share of a GPU that serves other pods than those that wait: see [`mark_foreign`].
    pub foreign: bool,
}

/// Marks devices of GPUs that serve a namespace without a waiting pod. A GPU serves MPS clients of one tenant, and kubelet does not name
/// the pod for which it asks; but `waiting`, the namespaces of the pods that wait for a device, is known.
pub fn mark_foreign(candidates: &mut [Candidate], owners: &Owners, waiting: &BTreeSet<String>) {
    let others = owners.iter().filter(|(_, owner)| !waiting.is_empty() && !waiting.contains(&owner.namespace));
    let gpus: BTreeSet<&str> = others.map(|(id, _)| id.uuid()).collect();
    for candidate in candidates {
        candidate.foreign = gpus.contains(candidate.gpu.as_str());
    }
}

/// Chooses `size` devices, including those in `must`; fewer if there are fewer. Of several whole GPUs those whose slowest connection is the
/// fastest.
pub fn choose(
    available: &[Candidate],
    must: &[DeviceId],
    size: usize,
    policy: AllocationPolicy,
    connections: &Connections,
) -> Vec<DeviceId> {
    let choice = Choice { available, policy, connections };
    let required: Vec<&Candidate> = available.iter().filter(|candidate| must.contains(&candidate.id)).collect();
    let free_choice = required.is_empty() && size > 1;
    let mut chosen = choice.fill(required, size);
    if let (true, Some(first)) = (free_choice, chosen.first().map(|first| state(first))) {
        // the first GPU by rank may have no fast connections: each one is tried that is as clean
        let seeds = available.iter().filter(|candidate| candidate.is_whole() && state(candidate) == first);
        let sets = std::iter::once(chosen).chain(seeds.map(|seed| choice.fill(vec![seed], size)));
        chosen = sets.min_by_key(|set| Reverse(slowest_first(set, connections))).unwrap_or_default();
    }
    chosen.truncate(size.max(must.len()));
    chosen.into_iter().map(|candidate| candidate.id.clone()).collect()
}

/// What keeps a device from being chosen.
fn state(candidate: &Candidate) -> (bool, bool, bool, bool) {
    let Candidate { allocated, occupied, withdrawn, foreign, .. } = *candidate;
    (allocated, occupied, withdrawn, foreign)
}

/// The connections between the GPUs of a set, from the slowest to the fastest.
fn slowest_first(set: &[&Candidate], connections: &Connections) -> Vec<Option<Connection>> {
    let pairs = set.iter().enumerate().flat_map(|(at, a)| set.iter().skip(at + 1).map(move |b| (a, b)));
    let mut all: Vec<_> = pairs.map(|(a, b)| connections.between(&a.gpu, &b.gpu)).collect();
    all.sort_unstable();
    all
}

impl Candidate {
    /// It is a GPU, no part or share of one.
    fn is_whole(&self) -> bool {
        self.id.as_str() == self.gpu
    }
}

/// Adds one device after the other.
struct Choice<'a> {
    available: &'a [Candidate],
    policy: AllocationPolicy,
    connections: &'a Connections,
}

impl<'a> Choice<'a> {
    fn fill(&self, mut chosen: Vec<&'a Candidate>, size: usize) -> Vec<&'a Candidate> {
        let mut rest: Vec<&Candidate> =
            self.available.iter().filter(|other| !chosen.iter().any(|one| one.id == other.id)).collect();
        while chosen.len() < size {
            let best = rest.iter().enumerate().min_by_key(|(_, candidate)| self.rank(candidate, &chosen));
            let Some(at) = best.map(|(at, _)| at) else { break };
            chosen.push(rest.swap_remove(at));
        }
        chosen
    }

    /// Lower is better. The last two make the choice deterministic.
    fn rank<'c>(&self, candidate: &'c Candidate, chosen: &[&Candidate]) -> impl Ord + use<'c> {
        let slowest = chosen.iter().map(|other| self.connections.between(&other.gpu, &candidate.gpu)).min().flatten();
        let slowest = slowest.filter(|_| candidate.is_whole());
        let other_node = chosen.first().is_some_and(|first| first.numa != candidate.numa);
        let same_gpu = chosen.iter().filter(|other| other.gpu == candidate.gpu).count();
        let used = candidate.used + same_gpu;
        let used = match self.policy {
            AllocationPolicy::Packed => Ok((Reverse(used), Reverse(candidate.neighbours))),
            AllocationPolicy::Distributed => Err((used, candidate.neighbours)),
        };
        (state(candidate), Reverse(slowest), other_node, used, &candidate.gpu, candidate.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceOwner;

    const PACKED: AllocationPolicy = AllocationPolicy::Packed;

    /// A choice among GPUs whose connections are not known.
    fn unconnected(available: &[Candidate], must: &[DeviceId], size: usize, policy: AllocationPolicy) -> Vec<DeviceId> {
        choose(available, must, size, policy, &Connections::default())
    }

    fn free() -> Candidate {
        Candidate {
            id: DeviceId::new(""),
            gpu: String::new(),
            numa: None,
            start: 0,
            used: 0,
            neighbours: 0,
            allocated: false,
            occupied: false,
            withdrawn: false,
            foreign: false,
        }
    }

    fn slice(gpu: &str, start: u32, used: usize) -> Candidate {
        let id = DeviceId::new(format!("MIG-{gpu}-{start}"));
        Candidate { id, gpu: gpu.to_owned(), start, used, ..free() }
    }

    fn whole(gpu: &str, numa: i64) -> Candidate {
        let id = DeviceId::new(gpu);
        Candidate { id, gpu: gpu.to_owned(), numa: Some(numa), ..free() }
    }

    #[test]
    fn choose_prefers_the_gpu_in_use() {
        let free = [slice("GPU-a", 0, 1), slice("GPU-b", 2, 3), slice("GPU-b", 1, 3)];
        assert_eq!(unconnected(&free, &[], 1, PACKED), [slice("GPU-b", 1, 3).id]);
    }

    #[test]
    fn time_slices_fill_one_instance_or_spread_over_all_by_the_policy() {
        let slice = |start: u32, number: i32, neighbours: usize| {
            let id = DeviceId::share(&format!("MIG-{start}"), number);
            Candidate { id, gpu: "GPU-a".to_owned(), start, used: 1, neighbours, ..free() }
        };
        let free = [slice(0, 0, 0), slice(0, 1, 0), slice(4, 1, 1)];
        assert_eq!(unconnected(&free, &[], 1, PACKED), [free[2].id.clone()]);
        assert_eq!(unconnected(&free, &[], 1, AllocationPolicy::Distributed), [free[0].id.clone()]);
    }

    #[test]
    fn distributed_allocation_prefers_the_gpu_with_the_fewest_devices_in_use() {
        let free = [slice("GPU-a", 0, 3), slice("GPU-b", 2, 1), slice("GPU-b", 1, 1), slice("GPU-c", 1, 2)];
        let distributed = |size| unconnected(&free, &[], size, AllocationPolicy::Distributed);
        assert_eq!(distributed(1), [slice("GPU-b", 1, 1).id]);
        assert_eq!(distributed(3), [slice("GPU-b", 1, 1).id, slice("GPU-b", 2, 1).id, slice("GPU-c", 1, 2).id]);
        let withdrawn = Candidate { withdrawn: true, ..slice("GPU-d", 0, 0) };
        let found = unconnected(&[withdrawn, slice("GPU-a", 0, 3)], &[], 1, AllocationPolicy::Distributed);
        assert_eq!(found, [slice("GPU-a", 0, 3).id], "a clean device first");
    }

    #[test]
    fn mps_share_is_taken_from_a_gpu_without_pods_of_others() {
        let owner = |namespace: &str| DeviceOwner { namespace: namespace.into(), ..DeviceOwner::default() };
        let owners = Owners::from([(DeviceId::share("GPU-b", 0), owner("theirs"))]);
        let chosen = |waiting: &[&str]| {
            let mut free = [slice("GPU-a", 0, 0), slice("GPU-b", 1, 1)];
            mark_foreign(&mut free, &owners, &waiting.iter().map(|w| (*w).to_owned()).collect());
            unconnected(&free, &[], 1, PACKED)
        };
        assert_eq!(chosen(&["ours"]), [slice("GPU-a", 0, 0).id]);
        for waiting in [&["theirs"][..], &["ours", "theirs"], &[]] {
            assert_eq!(chosen(waiting), [slice("GPU-b", 1, 1).id], "{waiting:?}: the GPU in use");
        }
    }

    #[test]
    fn choose_avoids_withdrawn_devices() {
        let withdrawn = Candidate { withdrawn: true, ..slice("GPU-b", 0, 6) };
        assert_eq!(unconnected(&[withdrawn, slice("GPU-a", 3, 0)], &[], 1, PACKED), [slice("GPU-a", 3, 0).id]);
    }

    #[test]
    fn choose_avoids_occupied_devices() {
        let occupied = Candidate { occupied: true, ..slice("GPU-b", 0, 6) };
        let withdrawn = Candidate { withdrawn: true, ..slice("GPU-a", 3, 0) };
        assert_eq!(unconnected(&[occupied.clone(), withdrawn.clone()], &[], 1, PACKED), [withdrawn.id]);
        assert_eq!(
            unconnected(std::slice::from_ref(&occupied), &[], 1, PACKED),
            [occupied.id],
            "Allocate refuses it with the reason"
        );
    }

    #[test]
    fn choose_takes_allocated_devices_last() {
        let allocated = Candidate { allocated: true, ..slice("GPU-b", 0, 6) };
        let withdrawn = Candidate { withdrawn: true, ..slice("GPU-a", 3, 0) };
        assert_eq!(unconnected(&[allocated, withdrawn], &[], 1, PACKED), [slice("GPU-a", 3, 0).id]);
    }

    #[test]
    fn choose_keeps_whole_gpus_on_one_numa_node() {
        let free = [whole("GPU-a", 0), whole("GPU-b", 1), whole("GPU-c", 1)];
        let must = [DeviceId::new("GPU-b")];
        assert_eq!(unconnected(&free, &must, 2, PACKED), [DeviceId::new("GPU-b"), DeviceId::new("GPU-c")]);
    }

    /// Four GPUs: 0 and 2, 1 and 3 are bridged.
    fn bridges() -> Connections {
        let mut connections = Connections::default();
        for (a, b) in [(0, 1), (0, 3), (1, 2), (2, 3)] {
            connections.insert(&format!("GPU-{a}"), &format!("GPU-{b}"), Connection::NumaNode);
        }
        connections.insert("GPU-0", "GPU-2", Connection::NvLink(4));
        connections.insert("GPU-1", "GPU-3", Connection::NvLink(4));
        connections
    }

    #[test]
    fn two_whole_gpus_are_those_of_one_bridge() {
        let chosen = |free: &[&str], must: &[&str], size| {
            let free: Vec<Candidate> = free.iter().map(|gpu| whole(gpu, 0)).collect();
            let must: Vec<DeviceId> = must.iter().map(|id| DeviceId::new(*id)).collect();
            let mut chosen = choose(&free, &must, size, PACKED, &bridges());
            chosen.sort();
            chosen.iter().map(DeviceId::to_string).collect::<Vec<_>>()
        };
        assert_eq!(chosen(&["GPU-0", "GPU-1", "GPU-2", "GPU-3"], &[], 2), ["GPU-0", "GPU-2"]);
        // the first one by name has no partner
        assert_eq!(chosen(&["GPU-0", "GPU-1", "GPU-3"], &[], 2), ["GPU-1", "GPU-3"]);
        assert_eq!(chosen(&["GPU-0", "GPU-1", "GPU-2", "GPU-3"], &["GPU-3"], 2), ["GPU-1", "GPU-3"]);
        assert_eq!(chosen(&["GPU-0", "GPU-1", "GPU-3"], &[], 3).len(), 3);
    }

    #[test]
    fn faster_connection_goes_before_the_numa_node_and_after_a_clean_device() {
        let free = [whole("GPU-0", 0), whole("GPU-1", 0), whole("GPU-2", 1)];
        assert_eq!(choose(&free, &[], 2, PACKED, &bridges()), [free[0].id.clone(), free[2].id.clone()]);
        let occupied = Candidate { occupied: true, ..whole("GPU-2", 1) };
        let free = [whole("GPU-0", 0), whole("GPU-1", 0), occupied];
        assert_eq!(choose(&free, &[], 2, PACKED, &bridges()), [free[0].id.clone(), free[1].id.clone()]);
    }

    #[test]
    fn choose_returns_fewer_devices_if_there_are_fewer() {
        assert_eq!(unconnected(&[whole("GPU-a", 0)], &[], 4, PACKED).len(), 1);
    }
}
