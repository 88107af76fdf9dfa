//! Which calls an injected fault hits.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test ends there"
)]

use silicon::fault::{Call, Effect, Fault, meet};

fn fault(call: &str, nth: u32, times: Option<u32>) -> Fault {
    Fault { call: call.into(), gpu: None, process: None, nth, times, effect: Effect::Fail(23), seen: 0 }
}

fn call(name: &str) -> Call<'_> {
    Call { name, changes: name.contains("Create"), gpu: Some(0), process: "gputenancy-agent" }
}

#[test]
fn hits_the_nth_call_and_as_many_more_as_wanted() {
    let mut faults = [fault("nvmlDeviceCreateGpuInstance", 2, Some(2))];
    let hits: Vec<bool> = (0..5).map(|_| meet(&mut faults, &call("nvmlDeviceCreateGpuInstance")).is_some()).collect();
    assert_eq!(hits, [false, true, true, false, false]);
}

#[test]
fn hits_for_ever_without_a_limit() {
    let mut faults = [fault("any", 1, None)];
    assert!((0..50).all(|_| meet(&mut faults, &call("nvmlDeviceGetName")).is_some()));
}

#[test]
fn counts_only_calls_that_change_a_gpu() {
    let mut faults = [fault("change", 1, Some(1))];
    assert_eq!(meet(&mut faults, &call("nvmlDeviceGetName")), None);
    assert_eq!(meet(&mut faults, &call("nvmlDeviceCreateGpuInstance")), Some(Effect::Fail(23)));
}

#[test]
fn leaves_other_gpus_and_other_programs_alone() {
    let mut faults = [Fault { gpu: Some(1), ..fault("any", 1, None) }];
    assert_eq!(meet(&mut faults, &call("nvmlDeviceGetName")), None);
    let mut faults = [Fault { process: Some("nvsim".into()), ..fault("any", 1, None) }];
    assert_eq!(meet(&mut faults, &call("nvmlDeviceGetName")), None);
    let mut faults = [Fault { process: Some("gputenancy-".into()), ..fault("any", 1, None) }];
    assert!(meet(&mut faults, &call("nvmlDeviceGetName")).is_some());
}
