use gputenancy_crds::SharingMode;
use gputenancy_nvml::Process;

use super::*;
use crate::device::{MigIds, Share};

/// A device of GPU `GPU-a`.
fn device(id: &str, mig: Option<u32>, share: Option<i32>) -> Device {
    Device {
        id: DeviceId::new(id),
        resource: "r".to_owned(),
        gpu_uuid: "GPU-a".to_owned(),
        gpu_minor: 0,
        mig: mig.map(|gi| MigIds { gi, ci: 0, start: gi, profile: "1g.10gb".into() }),
        share: share.map(|number| Share {
            number,
            mode: SharingMode::TimeSlice,
            memory_mib: None,
            compute: None,
            limit_mib: None,
            pace: None,
            resize: gputenancy_crds::ResizePolicy::default(),
        }),
        numa: None,
        cordoned: false,
        healthy: true,
    }
}

pub(crate) fn mig(gi: u32) -> Device {
    device(&format!("MIG-{gi}"), Some(gi), None)
}

pub(crate) fn whole() -> Device {
    device("GPU-a", None, None)
}

pub(crate) fn share(number: i32) -> Device {
    device(&format!("GPU-a::{number}"), None, Some(number))
}

/// A time-slice of an instance.
pub(crate) fn slice(gi: u32, slice: i32) -> Device {
    device(&format!("MIG-{gi}::{slice}"), Some(gi), Some(i32::try_from(gi).unwrap() + 16 * slice))
}

/// GPU `GPU-a` with these processes: id and GPU instance.
pub(crate) fn inventory(clients: &[(u32, Option<u32>)]) -> Inventory {
    let clients = clients.iter().map(|(pid, gi)| Process { pid: *pid, gi: *gi, ci: None, memory: None }).collect();
    let gpu = ObservedGpu { uuid: "GPU-a".into(), clients, ..ObservedGpu::default() };
    Inventory { gpus: vec![gpu], ..Inventory::default() }
}

pub(crate) fn container(pod: &str) -> DeviceOwner {
    DeviceOwner { namespace: "t".into(), pod: pod.into(), container: "c".into() }
}

/// Process 1 is of no pod, 2 of a pod without a known container, 3 has ended, 4 and 5 are of deleted pods, 4 of an earlier `p10`, and 10 and above are of pod `p<pid>`.
pub(crate) fn origin(pid: u32) -> Origin {
    match pid {
        1 => Origin::Node,
        2 => Origin::Pod(None),
        3 => Origin::Ended,
        4 => Origin::Former(Some(container("p10")), "uid".into()),
        5 => Origin::Former(None, "other".into()),
        pid => Origin::Pod(Some(container(&format!("p{pid}")))),
    }
}

pub(crate) fn owners(list: &[(&str, &str)]) -> Owners {
    list.iter().map(|(id, pod)| (DeviceId::new(*id), container(pod))).collect()
}

/// Ids of the occupied devices with the ids of their processes; later devices are occupied first.
fn found(devices: &[Device], clients: &[(u32, Option<u32>)], owned: &[(&str, &str)]) -> Vec<(String, Vec<u32>)> {
    let (inventory, owners) = (inventory(clients), owners(owned));
    let evidence = Evidence { inventory: &inventory, owners: &owners, origin: &origin };
    let all = occupied(devices, &evidence, &|_, _| 0);
    all.into_iter().map(|(id, users)| (id.to_string(), users.iter().map(|user| user.pid).collect())).collect()
}

fn expected(list: &[(&str, &[u32])]) -> Vec<(String, Vec<u32>)> {
    list.iter().map(|(id, pids)| ((*id).to_owned(), pids.to_vec())).collect()
}

#[test]
fn text_for_other_teams_names_no_pod_and_no_command_of_one() {
    let texts = [10, 2, 4, 5, 1].map(|pid| Unattributed { pid, origin: origin(pid) }.for_others("python"));
    let expected = [
        "process 10 of another pod, which kubelet does not list as the owner",
        "process 2 of another pod, which kubelet does not list as the owner",
        "process 4 of another pod, which was deleted",
        "process 5 of another pod, which was deleted",
        "process 1, which belongs to no pod (command python)",
    ];
    assert_eq!(texts, expected);
}

#[test]
fn instance_without_an_owner_is_occupied_by_every_living_process_on_it() {
    let devices = [mig(7), mig(8), mig(9)];
    let clients = [(10, Some(7)), (3, Some(8)), (1, Some(9)), (2, Some(9))];
    assert_eq!(found(&devices, &clients, &[]), expected(&[("MIG-7", &[10]), ("MIG-9", &[1, 2])]));
}

#[test]
fn device_with_an_owner_is_not_occupied() {
    assert_eq!(found(&[mig(7)], &[(10, Some(7))], &[("MIG-7", "p10")]), []);
    assert_eq!(found(&[mig(7)], &[(10, Some(7))], &[("GPU-a::7::1g.10gb", "p10")]), [], "id of an earlier release");
}

#[test]
fn whole_gpu_is_occupied_by_the_processes_that_nvml_lists() {
    assert_eq!(found(&[whole()], &[(10, None), (1, None)], &[]), expected(&[("GPU-a", &[1, 10])]));
    assert_eq!(found(&[whole()], &[], &[]), []);
}

#[test]
fn pod_without_a_share_occupies_one_free_share() {
    let devices: Vec<Device> = (0..4).map(share).collect();
    let owned = [("GPU-a::0", "p10"), ("GPU-a::1", "p11")];
    let own = [(10, None), (11, None), (11, None)];
    assert_eq!(found(&devices, &own, &owned), [], "processes of owners, and of another owner of the same GPU");
    let one = [&own[..], &[(12, None), (12, None)]].concat();
    assert_eq!(found(&devices, &one, &owned), expected(&[("GPU-a::3", &[12])]));
    let two = [&one[..], &[(13, None)]].concat();
    assert_eq!(found(&devices, &two, &owned), expected(&[("GPU-a::2", &[13]), ("GPU-a::3", &[12])]));
    let three = [&two[..], &[(14, None)]].concat();
    assert_eq!(found(&devices, &three, &owned).len(), 2, "owned shares stay with their owners");
}

#[test]
fn pod_without_a_time_slice_occupies_one_of_its_instance_only() {
    let devices = [slice(1, 0), slice(1, 1), slice(2, 0), slice(2, 1)];
    let clients = [(10, Some(1)), (11, Some(2)), (12, Some(2))];
    let owned = [("MIG-1::0", "p10"), ("MIG-2::1", "p11")];
    assert_eq!(found(&devices, &clients, &owned), expected(&[("MIG-2::0", &[12])]));
}

#[test]
fn processes_outside_of_known_containers_occupy_no_share() {
    assert_eq!(found(&[share(0)], &[(1, None), (2, None), (3, None)], &[]), [], "such as an MPS server");
}

#[test]
fn rank_decides_which_share_is_occupied() {
    let (inventory, owners) = (inventory(&[(12, None)]), Owners::new());
    let evidence = Evidence { inventory: &inventory, owners: &owners, origin: &origin };
    let devices = [share(0), share(1), share(2)];
    let rank = |device: &Device, pods: &BTreeSet<PodKey>| {
        assert_eq!(*pods, BTreeSet::from([("t".to_owned(), "p12".to_owned())]));
        u8::from(device.id.as_str() != "GPU-a::1")
    };
    let all = occupied(&devices, &evidence, &rank);
    assert_eq!(all.keys().map(DeviceId::as_str).collect::<Vec<_>>(), ["GPU-a::1"]);
}

#[test]
fn process_of_a_deleted_pod_occupies_a_share_although_a_later_pod_with_its_name_owns_one() {
    let devices = [share(0), share(1), share(2)];
    let owned = [("GPU-a::0", "p10")];
    assert_eq!(found(&devices, &[(10, None), (4, None)], &owned), expected(&[("GPU-a::2", &[4])]));
    assert_eq!(
        found(&devices, &[(10, None), (4, None), (5, None)], &owned).len(),
        2,
        "also without the log of its container"
    );
}
