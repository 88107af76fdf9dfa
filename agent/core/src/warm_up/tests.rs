use std::collections::BTreeMap;

use super::*;
use crate::{
    device::{DeviceId, DeviceOwner},
    gpu::ObservedGpu,
    pod::PodName,
};

/// Pods by name: UID, number of devices, and whether kubelet has admitted them.
#[derive(Clone, Default)]
struct Pods(BTreeMap<PodName, (String, u64, bool)>);

impl Pods {
    fn of(all: &[(&str, &str, u64)]) -> Self {
        Self(all.iter().map(|(name, uid, amount)| (self::name(name), ((*uid).to_owned(), *amount, true))).collect())
    }
}

impl DevicePods for Pods {
    fn uid(&self, pod: &PodName) -> Option<&str> {
        Some(self.0.get(pod)?.0.as_str())
    }

    fn amount(&self, pod: &PodName) -> u64 {
        self.0.get(pod).map_or(0, |(_, amount, _)| *amount)
    }

    fn is_admitted(&self, pod: &PodName) -> bool {
        self.0.get(pod).is_some_and(|(.., admitted)| *admitted)
    }
}

fn name(pod: &str) -> PodName {
    ("t".to_owned(), pod.to_owned())
}

fn owner(pod: &str) -> DeviceOwner {
    DeviceOwner { namespace: "t".into(), pod: pod.into(), container: "c".into() }
}

fn owners(all: &[(&str, &str)]) -> Owners {
    all.iter().map(|(id, pod)| (DeviceId::new(*id), owner(pod))).collect()
}

/// A kubelet that has just started, at this time.
fn started() -> (WarmUp, Instant) {
    (WarmUp::default(), Instant::now())
}

#[test]
fn running_pod_keeps_its_device_when_kubelet_has_forgotten_it() {
    let (warm_up, now) = started();
    let running = Pods::of(&[("a", "1", 1), ("b", "2", 2)]);
    let all = owners(&[("0", "a"), ("1", "b"), ("2", "b")]);
    assert_eq!(warm_up.owners(all.clone(), Some(&running), now), all);
    for after in [Duration::ZERO, KUBELET * 100] {
        assert_eq!(warm_up.owners(Owners::new(), Some(&running), now + after), all, "for as long as they run");
    }
    let of_b = owners(&[("1", "b"), ("2", "b")]);
    assert_eq!(warm_up.owners(Owners::new(), Some(&Pods::of(&[("b", "2", 2)])), now), of_b);
    assert_eq!(warm_up.owners(Owners::new(), Some(&running), now), of_b, "a has ended before");
}

#[test]
fn pod_that_has_got_other_devices_keeps_no_former_one() {
    let (warm_up, now) = started();
    let running = Pods::of(&[("a", "1", 1)]);
    warm_up.owners(owners(&[("0", "a")]), Some(&running), now);
    let moved = owners(&[("1", "a")]);
    assert_eq!(warm_up.owners(moved.clone(), Some(&running), now), moved);
    assert_eq!(warm_up.owners(Owners::new(), Some(&running), now), moved);
}

#[test]
fn device_of_an_earlier_pod_of_the_same_name_is_free() {
    let (warm_up, now) = started();
    warm_up.owners(owners(&[("0", "a")]), Some(&Pods::of(&[("a", "1", 1)])), now);
    let next = Pods::of(&[("a", "2", 1)]);
    // kubelet still reports the earlier one, which the API server has forgotten
    warm_up.owners(owners(&[("0", "a")]), Some(&next), now);
    assert!(warm_up.owners(Owners::new(), Some(&next), now).is_empty());
}

#[test]
fn kubelet_s_answer_precedes() {
    let (warm_up, now) = started();
    let running = Pods::of(&[("a", "1", 1), ("b", "2", 1)]);
    warm_up.owners(owners(&[("0", "a")]), Some(&running), now);
    let given = owners(&[("0", "b")]);
    assert_eq!(warm_up.owners(given.clone(), Some(&running), now), given);
}

#[test]
fn empty_answer_is_not_believed_before_the_pods_are_known_unless_kubelet_runs_for_long() {
    let (warm_up, now) = started();
    let unknown: Option<&Pods> = None;
    let all = owners(&[("0", "a")]);
    assert!(!warm_up.kubelet_is_warm(now), "it has no socket yet");
    warm_up.kubelet_socket(SocketIdentity(1, 0, 0), Duration::from_secs(10), now);
    assert_eq!(warm_up.owners(all.clone(), unknown, now), all);
    assert_eq!(warm_up.owners(Owners::new(), unknown, now), all);
    let later = now + KUBELET.checked_sub(Duration::from_secs(10)).unwrap();
    assert!(warm_up.kubelet_is_warm(later));
    assert!(warm_up.owners(Owners::new(), unknown, later).is_empty(), "an agent that may not read pods");
    // another run of kubelet, which has another socket
    warm_up.kubelet_socket(SocketIdentity(2, 0, 0), Duration::ZERO, later);
    assert!(!warm_up.kubelet_is_warm(later));
}

/// A status with an instance of `a`, one without its UUID of `b`, shares of `c` and `d`, and a whole GPU of `e`.
fn status(boot_id: &str) -> GpuNodeStatus {
    let device = |pod: &str| serde_json::json!({"owner": {"namespace": "t", "pod": pod, "container": "c"}});
    let gpu = |uuid: &str, mig: bool, more: serde_json::Value| {
        let mut gpu =
            serde_json::json!({"uuid": uuid, "index": 0, "board": 0, "step": "Steady", "mig": {"enabled": mig}});
        gpu.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        gpu
    };
    let instance = |start: i32, more: serde_json::Value| {
        let mut instance = serde_json::json!({"start": start, "profile": "1g.10gb", "gi": start});
        instance.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        instance
    };
    let instances = [
        instance(0, serde_json::json!({"uuid": "MIG-0", "device": device("a")})),
        instance(1, serde_json::json!({"device": device("b")})),
        instance(2, serde_json::json!({"uuid": "MIG-2"})),
    ];
    let slices = serde_json::json!([{"number": 18, "device": device("c")}]);
    let gpus = [
        gpu("GPU-0", true, serde_json::json!({"instances": instances, "shares": slices})),
        gpu("GPU-1", false, serde_json::json!({"shares": [{"number": 3, "device": device("d")}]})),
        gpu("GPU-2", false, serde_json::json!({"whole": device("e")})),
    ];
    serde_json::from_value(serde_json::json!({"bootId": boot_id, "gpus": gpus})).unwrap()
}

#[test]
fn restarted_agent_recalls_the_owners_that_its_status_has_of_pods_that_run() {
    let all =
        owners(&[("MIG-0", "a"), ("GPU-0::1::1g.10gb", "b"), ("MIG-2::1", "c"), ("GPU-1::3", "d"), ("GPU-2", "e")]);
    let (warm_up, now) = started();
    warm_up.own_status(Some(&status("boot")), "boot");
    let unknown: Option<&Pods> = None;
    assert_eq!(warm_up.owners(Owners::new(), unknown, now), all, "the API's pods are not known yet");
    let mut pods = Pods::of(&[("a", "1", 1), ("b", "2", 1), ("c", "3", 1), ("d", "4", 1)]);
    // a pod of the same name that waits for kubelet has had no device
    pods.0.get_mut(&name("d")).unwrap().2 = false;
    let running = owners(&[("MIG-0", "a"), ("GPU-0::1::1g.10gb", "b"), ("MIG-2::1", "c")]);
    assert_eq!(warm_up.owners(Owners::new(), Some(&pods), now), running);
    assert_eq!(warm_up.owners(Owners::new(), Some(&pods), now), running);

    let (warm_up, now) = started();
    warm_up.own_status(Some(&status("before")), "boot");
    assert!(warm_up.owners(Owners::new(), Some(&pods), now).is_empty(), "the node has booted since");
}

#[test]
fn device_of_a_gpu_that_nvml_does_not_list_stays_unhealthy_while_it_has_an_owner() {
    let device = Device {
        id: DeviceId::new("GPU-a"),
        resource: "nvidia.com/gpu".into(),
        gpu_uuid: "GPU-a".into(),
        gpu_minor: 0,
        mig: None,
        share: None,
        numa: None,
        cordoned: false,
        healthy: true,
    };
    let before = [device.clone()];
    let held = owners(&[("GPU-a", "a")]);
    let unhealthy = [Device { healthy: false, ..device }];
    let none = Inventory::default();
    assert_eq!(absent(&before, &none, Some(&held)), unhealthy);
    assert_eq!(absent(&before, &none, None), unhealthy, "kubelet has not reported owners");
    assert_eq!(absent(&before, &none, Some(&Owners::new())), []);
    let gpu = ObservedGpu { uuid: "GPU-a".into(), ..ObservedGpu::default() };
    assert_eq!(absent(&before, &Inventory { gpus: vec![gpu], ..none }, Some(&held)), []);
}

#[test]
fn kubelet_that_lists_no_pod_has_not_read_them_yet() {
    assert!(!are_pods(&BTreeSet::new()) && are_pods(&[name("agent")].into()));
}
