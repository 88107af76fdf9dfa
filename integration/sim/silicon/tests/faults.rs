//! Which calls an injected fault hits.

use silicon::fault::{Call, Effect, Fault, meet};

fn fault(call: &str, nth: u32, times: Option<u32>) -> Fault {
    Fault { call: call.into(), gpu: None, process: None, nth, times, effect: Effect::Fail(23), seen: 0 }
}

fn call(name: &str) -> Call<'_> {
    Call { name, changes: name.contains("Create"), gpu: Some(0), process: "gputenancy-agent" }
}

#[test]
fn fault_hits_the_nth_call_and_following() {
    let mut faults = [fault("nvmlDeviceCreateGpuInstance", 2, Some(2))];
    let hits: Vec<bool> = (0..5).map(|_| meet(&mut faults, &call("nvmlDeviceCreateGpuInstance")).is_some()).collect();
    assert_eq!(hits, [false, true, true, false, false]);
}

#[test]
fn fault_without_limit_hits_all_calls() {
    let mut faults = [fault("any", 1, None)];
    assert!((0..50).all(|_| meet(&mut faults, &call("nvmlDeviceGetName")).is_some()));
}

#[test]
fn fault_change_counts_only_mutating_calls() {
    let mut faults = [fault("change", 1, Some(1))];
    assert_eq!(meet(&mut faults, &call("nvmlDeviceGetName")), None);
    assert_eq!(meet(&mut faults, &call("nvmlDeviceCreateGpuInstance")), Some(Effect::Fail(23)));
}

#[test]
fn fault_is_limited_to_its_gpu_and_program() {
    let mut faults = [Fault { gpu: Some(1), ..fault("any", 1, None) }];
    assert_eq!(meet(&mut faults, &call("nvmlDeviceGetName")), None);
    let mut faults = [Fault { process: Some("nvsim".into()), ..fault("any", 1, None) }];
    assert_eq!(meet(&mut faults, &call("nvmlDeviceGetName")), None);
    let mut faults = [Fault { process: Some("gputenancy-".into()), ..fault("any", 1, None) }];
    assert!(meet(&mut faults, &call("nvmlDeviceGetName")).is_some());
}
