use super::*;
use crate::handover::occupied::tests::{container, inventory, mig, origin, owners, share};

const SECOND: Duration = Duration::from_secs(1);

/// Scans of a node, one after the other.
struct Node {
    withdrawal: Withdrawal,
    devices: Vec<Device>,
    now: Instant,
}

impl Node {
    fn new(devices: Vec<Device>) -> Self {
        Self { withdrawal: Withdrawal::default(), devices, now: Instant::now() }
    }

    /// Scans after this time; returns the withdrawn devices. A process starts at 100 times its id.
    fn scan(&mut self, after: Duration, clients: &[(u32, Option<u32>)], owned: &[(&str, &str)]) -> Vec<String> {
        self.now += after;
        let mut devices = self.devices.clone();
        let processes = Processes { origin: &origin, start: &|pid| Some(u64::from(pid) * 100) };
        self.withdrawal.cordon(&mut devices, &inventory(clients), &owners(owned), &processes, self.now);
        devices.iter().filter(|device| device.cordoned).map(|device| device.id.to_string()).collect()
    }

    fn overdue(&self, deadline: Duration) -> Vec<ProcessKey> {
        self.withdrawal.overdue(deadline, self.now).into_iter().map(|overdue| overdue.process).collect()
    }
}

#[test]
fn device_of_a_forgotten_pod_is_withdrawn_at_once_until_its_process_has_ended() {
    let mut node = Node::new(vec![mig(7), mig(8)]);
    let running = [(10, Some(7)), (11, Some(8))];
    let nothing: [String; 0] = [];
    assert_eq!(node.scan(SECOND, &running, &[("MIG-7", "p10"), ("MIG-8", "p11")]), nothing);
    assert!(!node.withdrawal.needs_open_files(&owners(&[("MIG-7", "p10"), ("MIG-8", "p11")])));
    assert!(node.withdrawal.needs_open_files(&owners(&[("MIG-8", "p11")])), "an owner has left");
    assert_eq!(node.scan(SECOND, &running, &[("MIG-8", "p11")]), ["MIG-7"]);
    assert!(node.withdrawal.needs_open_files(&owners(&[("MIG-8", "p11")])), "a device is withdrawn");
    assert_eq!(node.withdrawal.former_owners(), owners(&[("MIG-7", "p10")]));
    assert_eq!(node.scan(SECOND, &running, &[("MIG-8", "p11")]), ["MIG-7"]);
    assert_eq!(node.scan(SECOND, &[(11, Some(8))], &[("MIG-8", "p11")]), nothing);
    assert_eq!(node.withdrawal.former_owners(), owners(&[]));
    assert!(!node.withdrawal.needs_open_files(&owners(&[("MIG-8", "p11")])));
}

#[test]
fn process_of_a_new_pod_does_not_withdraw_its_device_before_kubelet_reports_it() {
    let mut node = Node::new(vec![mig(7)]);
    let nothing: [String; 0] = [];
    // the previous owner has ended
    assert_eq!(node.scan(SECOND, &[], &[("MIG-7", "p9")]), nothing);
    assert_eq!(node.scan(SECOND, &[(10, Some(7))], &[]), nothing);
    assert_eq!(node.scan(SECOND, &[(10, Some(7))], &[("MIG-7", "p10")]), nothing);
}

#[test]
fn process_that_never_gets_an_owner_withdraws_the_device_after_a_delay() {
    for pid in [1, 2, 10] {
        let mut node = Node::new(vec![mig(7)]);
        let nothing: [String; 0] = [];
        assert_eq!(node.scan(SECOND, &[(pid, Some(7))], &[]), nothing);
        assert_eq!(node.scan(UNREPORTED_OWNER, &[(pid, Some(7))], &[]), ["MIG-7"]);
    }
}

#[test]
fn share_of_a_forgotten_pod_is_withdrawn_and_stays_the_same() {
    let mut node = Node::new((0..3).map(share).collect());
    let running = [(10, None), (11, None)];
    node.scan(SECOND, &running, &[("GPU-a::0", "p10"), ("GPU-a::1", "p11")]);
    assert_eq!(node.scan(SECOND, &running, &[("GPU-a::1", "p11")]), ["GPU-a::0"]);
    assert_eq!(node.scan(SECOND, &running, &[("GPU-a::1", "p11"), ("GPU-a::2", "p12")]), ["GPU-a::0"]);
}

#[test]
fn only_processes_of_containers_become_overdue_and_only_after_the_deadline() {
    let mut node = Node::new(vec![mig(7), mig(8), mig(9)]);
    let running = [(10, Some(7)), (1, Some(8)), (2, Some(9))];
    node.scan(SECOND, &running, &[]);
    node.scan(UNREPORTED_OWNER, &running, &[]);
    assert_eq!(node.overdue(SECOND), [], "withdrawn just now");
    node.scan(SECOND, &running, &[]);
    assert_eq!(node.overdue(SECOND), [(10, 1000)], "not those of the node, nor of an unknown container");
    assert_eq!(node.overdue(2 * SECOND), []);
    assert_eq!(node.withdrawal.overdue(SECOND, node.now)[0].container, container("p10"));
    node.withdrawal.killed(&[(10, 1000)], node.now);
    assert_eq!(node.overdue(SECOND), [], "killed once in each deadline");
    node.scan(SECOND, &running, &[]);
    assert_eq!(node.overdue(SECOND), [(10, 1000)]);
}

#[test]
fn process_of_an_owner_is_never_overdue() {
    let mut node = Node::new(vec![mig(7)]);
    for _ in 0..5 {
        node.scan(UNREPORTED_OWNER, &[(10, Some(7))], &[("MIG-7", "p10")]);
    }
    assert_eq!(node.overdue(Duration::ZERO), []);
}

#[test]
fn memory_that_no_process_explains_withdraws_a_free_device_until_it_is_free() {
    let mut withdrawal = Withdrawal::default();
    let start = Instant::now();
    let mut scan = |seconds: u64, leaks: &[(Option<u32>, u64)], owned: &[(&str, &str)]| {
        let mut devices = vec![mig(7), mig(8)];
        let mut seen = inventory(&[]);
        seen.gpus[0].unexplained = leaks.iter().copied().collect();
        let processes = Processes { origin: &origin, start: &|_| None };
        let now = start + Duration::from_secs(seconds);
        withdrawal.cordon(&mut devices, &seen, &owners(owned), &processes, now);
        let cordoned: Vec<String> = devices.iter().filter(|d| d.cordoned).map(|d| d.id.to_string()).collect();
        (cordoned, withdrawal.quarantined().values().copied().collect::<Vec<u64>>())
    };
    let nothing = (vec![], vec![]);
    let leak = [(Some(7), 900)];
    assert_eq!(scan(0, &leak, &[]), nothing, "the driver frees memory a little later");
    assert_eq!(scan(9, &leak, &[]), nothing);
    assert_eq!(scan(10, &leak, &[]), (vec!["MIG-7".to_owned()], vec![900]));
    assert_eq!(scan(11, &leak, &[("MIG-7", "p")]), nothing, "its owner may use it");
    assert_eq!(scan(12, &leak, &[]), nothing, "the time counts from the end of the owner");
    assert_eq!(scan(22, &leak, &[]).1, [900]);
    assert_eq!(scan(23, &[], &[]), nothing);
}

#[test]
fn device_whose_processes_have_ended_is_withdrawn_until_nvml_forgets_them() {
    let mut node = Node::new(vec![mig(7)]);
    // as NVML lists it: process 3 has ended, and 10 lives
    let listed = |pids: &[u32]| {
        let mut inventory = inventory(&pids.iter().map(|pid| (*pid, Some(7))).collect::<Vec<_>>());
        inventory.gpus[0].clients.iter_mut().for_each(|process| process.memory = Some(900 << 20));
        inventory
    };
    let mut scan = |second: u64, pids: &[u32], owned: &[(&str, &str)]| {
        let mut devices = node.devices.clone();
        let processes = Processes { origin: &origin, start: &|pid| Some(u64::from(pid) * 100) };
        let now = node.now + SECOND * u32::try_from(second).unwrap();
        node.withdrawal.cordon(&mut devices, &listed(pids), &owners(owned), &processes, now);
        (devices[0].cordoned, node.withdrawal.quarantined().values().copied().collect::<Vec<_>>())
    };
    assert_eq!(scan(0, &[3], &[]), (false, vec![]));
    assert_eq!(scan(10, &[3], &[]), (true, vec![900]));
    assert_eq!(scan(11, &[], &[]), (false, vec![]));
    assert_eq!(scan(12, &[3], &[]), (false, vec![]), "counted again");
    assert_eq!(scan(30, &[3, 10], &[("MIG-7", "p10")]), (false, vec![]), "it has an owner");
}
