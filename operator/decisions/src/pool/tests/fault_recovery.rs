//! GPUs that return after a fault: by a canary pod, or cleared by a person.

use gputenancy_crds::{FaultFinding, FaultRecovery, FaultVerdict, GpuSpec, Health, RecoveryState};

use super::*;

fn time(second: i64) -> Time {
    Time(Timestamp::from_second(second).unwrap())
}

/// Two whole GPUs in a pool with a canary, of which the first awaits its canary pod after a fault.
fn faulty() -> Fleet {
    let mut fleet = settled();
    fleet.pools[0].spec.verify = read(json!({"canary": {"image": "canary"}}));
    let node = Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap());
    let gpu = &mut node.status.as_mut().unwrap().gpus[0];
    (gpu.health, gpu.fault) = (Health::Unhealthy, Some("Xid 48".into()));
    let faults = vec![time(500)];
    gpu.recovery = Some(FaultRecovery { state: RecoveryState::AwaitingCanary, faults, ..FaultRecovery::default() });
    fleet
}

fn annotate(fleet: &mut Fleet, text: &str) {
    let mut node = (*fleet.nodes["n"]).clone();
    node.metadata.annotations = Some([(names::CLEARED_FAULTS.to_owned(), text.to_owned())].into());
    fleet.nodes.insert("n".into(), Arc::new(node));
}

fn written(pass: &FleetDecision) -> Option<&GpuNodeSpec> {
    pass.nodes.values().find_map(|work| work.spec.as_ref())
}

#[test]
fn free_device_of_an_unhealthy_gpu_is_put_on_trial_and_nothing_else_changes() {
    let fleet = faulty();
    let pass = at(&fleet, 1000, &[]);
    let before = &fleet.gpu_nodes["n"].spec;
    let spec = written(&pass).unwrap();
    assert_eq!(spec.gpus[0], GpuSpec { trial: vec![0], ..before.gpus[0].clone() });
    assert_eq!(spec.gpus[1..], before.gpus[1..]);
    let (status, _, message) = condition_of(&pass, "Ready");
    assert_eq!(status, "True", "the guarantee is met by the other GPU");
    assert!(message.ends_with("every GPU as planned, but faults keep new pods from GPU 0 of node n (Xid 48): see status.gpus of the GpuNode"), "{message}");
}

#[test]
fn person_clears_a_fault_and_the_verdict_goes_with_the_last_fault() {
    let (mut fleet, mut remembered) = (faulty(), Remembered::default());
    fleet.pools[0].spec.verify = read(json!({}));
    let uuid = fleet.gpu_nodes["n"].spec.gpus[0].uuid.clone();
    assert!(written(&next(&fleet, &mut remembered, 1000, &[])).is_none(), "without a canary nothing is tried");
    annotate(&mut fleet, &format!("{uuid}={}", time(499).0));
    assert!(written(&next(&fleet, &mut remembered, 1001, &[])).is_none(), "the fault came later");
    annotate(&mut fleet, &format!("{uuid}={}", time(600).0));
    let pass = next(&fleet, &mut remembered, 1002, &[]);
    let spec = written(&pass).unwrap().clone();
    let FaultVerdict { until, finding, reason } = spec.gpus[0].fault_verdict.clone().unwrap();
    assert_eq!((until, finding), (time(500), FaultFinding::ClearedByPerson));
    assert!(reason.contains(names::CLEARED_FAULTS), "{reason}");
    let node = Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap());
    node.spec = spec;
    assert!(written(&next(&fleet, &mut remembered, 1003, &[])).is_none(), "nothing is written twice");
    let node = Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap());
    let gpu = &mut node.status.as_mut().unwrap().gpus[0];
    (gpu.health, gpu.fault, gpu.recovery) = (Health::Healthy, None, None);
    let pass = next(&fleet, &mut remembered, 1004, &[]);
    assert_eq!(written(&pass).unwrap().gpus[0].fault_verdict, None);
}

#[test]
fn entries_that_clear_nothing_are_named_with_their_remedy() {
    for text in
        ["all", "GPU-a", "GPU-of-another-node=2026-11-29T10:00:00Z", "GPU-a=yesterday", "GPU-0=2030-01-01T00:00:00Z"]
    {
        let mut fleet = faulty();
        annotate(&mut fleet, text);
        let (status, reason, message) = condition_of(&at(&fleet, 1000, &[]), "NodesMarked");
        assert_eq!((status.as_str(), reason.as_str()), ("False", "InvalidMark"), "{message}");
        for part in ["node n: ", text.split('=').next().unwrap(), "gputenancy.io/cleared-faults", "write UUID=time"] {
            assert!(message.contains(part), "{message}");
        }
    }
}
