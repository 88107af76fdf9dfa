//! The containers with processes on a device, in its status. Pure.

use gputenancy_crds::{DeviceOwner, DeviceProcesses, DeviceState};

use crate::{attribution::Attributed, to_i32};

/// Most containers listed for one device.
const MOST: usize = 16;

/// The device with the containers that have processes on the GPU, `here` by its instance; those of the owner's pod first, then by memory.
pub fn list(
    device: DeviceState,
    processes: &Attributed,
    uuid: &str,
    here: &dyn Fn(Option<u32>) -> bool,
    owner: Option<&DeviceOwner>,
) -> DeviceState {
    let all = processes.containers.iter().filter(|((of, gi), _)| of == uuid && here(*gi)).flat_map(|(_, found)| found);
    let mut all: Vec<&DeviceProcesses> = all.collect();
    let mib = |found: &DeviceProcesses| found.memory.as_ref().and_then(|memory| memory.mib().ok()).unwrap_or(0);
    all.sort_by_key(|found| (!is_of(owner, found), std::cmp::Reverse(mib(found)), found.container.clone()));
    bounded(device, all)
}

/// A share with the containers of its owner's pod: NVML does not report which share a process uses.
pub fn list_of_owner(
    processes: &Attributed,
    uuid: &str,
    here: &dyn Fn(Option<u32>) -> bool,
    device: DeviceState,
) -> DeviceState {
    let owner = device.owner.clone();
    let all = processes.containers.iter().filter(|((of, gi), _)| of == uuid && here(*gi)).flat_map(|(_, found)| found);
    let own = all.filter(|found| is_of(owner.as_ref(), found)).collect();
    bounded(device, own)
}

/// The device without its list.
pub fn leave_out(device: &mut DeviceState) {
    let listed = std::mem::take(&mut device.processes);
    device.more_containers = device.more_containers.saturating_add(to_i32(listed.len()));
}

fn bounded(device: DeviceState, all: Vec<&DeviceProcesses>) -> DeviceState {
    let more_containers = to_i32(all.len().saturating_sub(MOST));
    let processes = all.into_iter().take(MOST).cloned().collect();
    DeviceState { processes, more_containers, ..device }
}

/// Whether the container is of the owner's pod.
fn is_of(owner: Option<&DeviceOwner>, found: &DeviceProcesses) -> bool {
    let pod = |container: &DeviceOwner| (container.namespace.clone(), container.pod.clone());
    owner.is_some() && owner.map(pod) == found.container.as_ref().map(pod)
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::MemoryText;

    use super::*;

    fn owner(pod: &str) -> DeviceOwner {
        DeviceOwner { namespace: "team-a".into(), pod: pod.into(), container: "main".into() }
    }

    fn found(pod: &str, mib: i64) -> DeviceProcesses {
        let memory = Some(MemoryText::from_mib(mib));
        DeviceProcesses { container: Some(owner(pod)), tenant: Some("a".into()), count: 1, memory }
    }

    fn attributed(all: Vec<DeviceProcesses>) -> Attributed {
        let elsewhere = (("GPU-b".to_owned(), None), vec![found("elsewhere", 1)]);
        Attributed { containers: [(("GPU-a".to_owned(), Some(7)), all), elsewhere].into(), ..Attributed::default() }
    }

    fn pods(device: &DeviceState) -> Vec<String> {
        device.processes.iter().map(|found| found.container.clone().unwrap().pod).collect()
    }

    #[test]
    fn owner_is_listed_first_then_by_memory_and_at_most_sixteen() {
        let all = attributed(vec![found("small", 256), found("large", 9_000), found("own", 512)]);
        let here = |gi: Option<u32>| gi == Some(7);
        let device = list(DeviceState::default(), &all, "GPU-a", &here, Some(&owner("own")));
        assert_eq!((pods(&device), device.more_containers), (vec!["own".into(), "large".into(), "small".into()], 0));
        assert!(list(DeviceState::default(), &all, "GPU-a", &|gi| gi == Some(8), None).processes.is_empty());
        let many = attributed((0..20).map(|n| found(&format!("p{n}"), 256)).collect());
        let mut device = list(DeviceState::default(), &many, "GPU-a", &here, None);
        assert_eq!((device.processes.len(), device.more_containers), (16, 4));
        leave_out(&mut device);
        assert_eq!((device.processes.len(), device.more_containers), (0, 20));
    }

    #[test]
    fn share_lists_the_containers_of_its_pod_alone() {
        let sidecar = DeviceProcesses {
            container: Some(DeviceOwner { container: "sidecar".into(), ..owner("own") }),
            ..found("own", 256)
        };
        let node = DeviceProcesses { container: None, tenant: None, ..found("own", 256) };
        let all = attributed(vec![found("other", 256), sidecar, node, found("own", 512)]);
        let share = |owner| DeviceState { owner, ..DeviceState::default() };
        let device = list_of_owner(&all, "GPU-a", &|_| true, share(Some(owner("own"))));
        assert_eq!(pods(&device), ["own", "own"]);
        assert!(list_of_owner(&all, "GPU-a", &|_| true, share(None)).processes.is_empty());
    }
}
