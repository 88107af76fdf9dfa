//! Which of the free devices a container should get: pack onto GPUs already in use, stay on one NUMA node.

use std::cmp::Reverse;

use crate::device::DeviceId;

/// A device that kubelet could give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// How kubelet names it.
    pub id: DeviceId,
    /// UUID of its GPU.
    pub gpu: String,
    /// NUMA node of its GPU.
    pub numa: Option<i64>,
    /// First memory slice.
    pub start: u32,
    /// How many devices of its GPU are in use.
    pub busy: usize,
    /// A container has it, though kubelet may not know.
    pub taken: bool,
    /// About to be withdrawn.
    pub leaving: bool,
}

/// Chooses `size` devices, the `must` ones among them; fewer when there are not as many.
pub fn choose(available: &[Candidate], must: &[DeviceId], size: usize) -> Vec<DeviceId> {
    let (mut chosen, mut rest): (Vec<&Candidate>, Vec<&Candidate>) =
        available.iter().partition(|candidate| must.contains(&candidate.id));
    while chosen.len() < size {
        let best = rest.iter().enumerate().min_by_key(|(_, candidate)| rank(candidate, &chosen)).map(|(at, _)| at);
        let Some(best) = best else { break };
        chosen.push(rest.swap_remove(best));
    }
    chosen.truncate(size.max(must.len()));
    chosen.into_iter().map(|candidate| candidate.id.clone()).collect()
}

/// Lower is better. The last two make the choice the same each time.
fn rank<'a>(candidate: &'a Candidate, chosen: &[&Candidate]) -> impl Ord + use<'a> {
    let strange = chosen.first().is_some_and(|first| first.numa != candidate.numa);
    let together = chosen.iter().filter(|other| other.gpu == candidate.gpu).count();
    (candidate.taken, candidate.leaving, strange, Reverse(candidate.busy + together), &candidate.gpu, candidate.start)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(gpu: &str, start: u32, busy: usize) -> Candidate {
        let id = DeviceId::new(format!("MIG-{gpu}-{start}"));
        Candidate { id, gpu: gpu.to_owned(), numa: None, start, busy, taken: false, leaving: false }
    }

    fn whole(gpu: &str, numa: i64) -> Candidate {
        let id = DeviceId::new(gpu);
        Candidate { id, gpu: gpu.to_owned(), numa: Some(numa), start: 0, busy: 0, taken: false, leaving: false }
    }

    #[test]
    fn packs_onto_the_gpu_in_use() {
        let free = [slice("GPU-a", 0, 1), slice("GPU-b", 2, 3), slice("GPU-b", 1, 3)];
        assert_eq!(choose(&free, &[], 1), [slice("GPU-b", 1, 3).id]);
    }

    #[test]
    fn leaves_alone_what_is_about_to_go() {
        let going = Candidate { leaving: true, ..slice("GPU-b", 0, 6) };
        assert_eq!(choose(&[going, slice("GPU-a", 3, 0)], &[], 1), [slice("GPU-a", 3, 0).id]);
    }

    #[test]
    fn what_a_container_has_comes_last() {
        let taken = Candidate { taken: true, ..slice("GPU-b", 0, 6) };
        let going = Candidate { leaving: true, ..slice("GPU-a", 3, 0) };
        assert_eq!(choose(&[taken, going], &[], 1), [slice("GPU-a", 3, 0).id]);
    }

    #[test]
    fn keeps_whole_gpus_on_one_numa_node() {
        let free = [whole("GPU-a", 0), whole("GPU-b", 1), whole("GPU-c", 1)];
        let must = [DeviceId::new("GPU-b")];
        assert_eq!(choose(&free, &must, 2), [DeviceId::new("GPU-b"), DeviceId::new("GPU-c")]);
    }

    #[test]
    fn gives_what_there_is_when_asked_for_more() {
        assert_eq!(choose(&[whole("GPU-a", 0)], &[], 4).len(), 1);
    }
}
