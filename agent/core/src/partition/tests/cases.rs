//! Single situations.

use crate::nvml::MigMode;
use gputenancy_crds::{FaultRecovery, Health, RecoveryState};

use super::model::{board, client, decision, gpu, instance, layout, partition, spec};
use crate::{
    gpu::{ObservedBoard, ObservedGpu, Operation},
    partition::{PartitionDecision, WaitCause, devices::devices},
};

fn profile(name: &str) -> crate::nvml::InstanceProfile {
    board(false).profile(name).unwrap().clone()
}

fn label(operation: &Operation) -> &'static str {
    operation.names().0
}

#[test]
fn empty_gpu_is_partitioned_one_call_at_a_time() {
    let mut gpu = gpu(true, true);
    let (end, operations) = partition(&spec(true, &[(4, "3g.40gb"), (0, "1g.10gb")]), &mut gpu);
    assert_eq!(end, PartitionDecision::Converged);
    let names: Vec<&str> = operations.iter().map(label).collect();
    assert_eq!(names, ["create-instance", "create-compute", "create-instance", "create-compute"]);
    assert_eq!(layout(&gpu), [(0, "1g.10gb".to_owned()), (4, "3g.40gb".to_owned())]);
}

#[test]
fn device_in_canary_verification_has_only_the_canary_resource_even_if_withdrawn() {
    let mut gpu = gpu(true, true);
    gpu.index = 3;
    let wanted = spec(true, &[(0, "1g.10gb"), (4, "3g.40gb")]);
    partition(&wanted, &mut gpu);
    let offered = |hold: &[i32], trial: &[i32]| {
        let spec = gputenancy_crds::GpuSpec { hold: hold.to_vec(), trial: trial.to_vec(), ..wanted.clone() };
        let all = devices(&spec, &gpu);
        all.into_iter().filter(crate::device::Device::advertised).map(|d| d.resource).collect::<Vec<_>>()
    };
    assert_eq!(offered(&[0], &[4]), ["gputenancy.io/canary_3_4"]);
    assert_eq!(offered(&[0, 4], &[4]), ["gputenancy.io/canary_3_4"]);
    assert_eq!(offered(&[], &[]), ["nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"]);
}

#[test]
fn after_a_fault_only_a_device_on_trial_is_healthy_and_only_once_a_canary_is_awaited() {
    let mut gpu = gpu(true, true);
    let wanted = spec(true, &[(0, "1g.10gb"), (4, "3g.40gb")]);
    partition(&wanted, &mut gpu);
    let trial = gputenancy_crds::GpuSpec { trial: vec![4], ..wanted.clone() };
    let healthy = |spec: &gputenancy_crds::GpuSpec, gpu: &ObservedGpu| {
        let all = devices(spec, gpu).into_iter().filter(|device| device.healthy);
        all.map(|device| device.resource).collect::<Vec<_>>()
    };
    gpu.health = Health::Unhealthy;
    for (state, offered) in
        [(RecoveryState::Waiting, 0), (RecoveryState::StaysOut, 0), (RecoveryState::AwaitingCanary, 1)]
    {
        gpu.recovery = Some(FaultRecovery { state, ..FaultRecovery::default() });
        assert_eq!((healthy(&wanted, &gpu).len(), healthy(&trial, &gpu).len()), (0, offered), "{state:?}");
    }
    assert_eq!(healthy(&trial, &gpu), ["gputenancy.io/canary_0_4"]);
}

#[test]
fn ampere_is_reset_before_instances_are_created_and_hopper_is_not() {
    let wanted = spec(true, &[(0, "1g.10gb")]);
    let (_, ampere) = partition(&wanted, &mut gpu(false, true));
    assert_eq!(ampere.iter().map(label).take(2).collect::<Vec<_>>(), ["set-mode", "reset"]);
    let (_, hopper) = partition(&wanted, &mut gpu(false, false));
    assert_eq!(hopper.iter().map(label).take(2).collect::<Vec<_>>(), ["set-mode", "create-instance"]);
}

#[test]
fn pending_mode_of_an_older_spec_is_cancelled_despite_clients() {
    let mut gpu = gpu(false, true);
    gpu.mode = Some(MigMode { current: false, pending: true });
    gpu.clients = vec![client(None)];
    assert_eq!(
        decision(&spec(false, &[]), &gpu, true, None),
        PartitionDecision::Operate(Operation::SetMode { on: false })
    );
}

#[test]
fn whole_gpu_in_use_keeps_its_mode() {
    let mut gpu = gpu(false, true);
    gpu.clients = vec![client(None)];
    let wanted = spec(true, &[]);
    assert_eq!(decision(&wanted, &gpu, false, None), PartitionDecision::Wait(WaitCause::Clients, vec![None]));
    gpu.clients.clear();
    assert_eq!(decision(&wanted, &gpu, true, None), PartitionDecision::Wait(WaitCause::Kubelet, vec![None]));
}

#[test]
fn removed_instance_waits_for_another_that_is_in_use() {
    let mut gpu = gpu(true, true);
    gpu.instances = vec![instance(7, &profile("1g.10gb"), 0, true), instance(2, &profile("3g.40gb"), 4, true)];
    gpu.clients = vec![client(Some(2))];
    let decision = decision(&spec(true, &[(0, "7g.80gb")]), &gpu, false, None);
    assert_eq!(decision, PartitionDecision::Wait(WaitCause::Clients, vec![Some(4)]));
}

#[test]
fn impossible_layout_fails_before_anything_is_destroyed() {
    let mut gpu = gpu(true, true);
    gpu.instances = vec![instance(7, &profile("1g.10gb"), 0, true)];
    let overlap: &[(i32, &str)] = &[(0, "3g.40gb"), (2, "1g.10gb")];
    for (instances, words) in [
        (overlap, "1g.10gb at 2 overlaps 3g.40gb"),
        (&[(1, "3g.40gb")], "3g.40gb may start at [0, 4], not at 1"),
        (&[(0, "9g.90gb")], "has no profile 9g.90gb"),
    ] {
        let PartitionDecision::Failed(error) = decision(&spec(true, instances), &gpu, false, None) else { panic!() };
        assert!(error.message.contains(words), "{}", error.message);
    }
}

#[test]
fn board_without_mig_fails_only_if_mig_is_wanted() {
    let mut gpu = gpu(false, false);
    gpu.mode = None;
    gpu.board = ObservedBoard { name: "Tesla T4".into(), ..ObservedBoard::default() }.into();
    assert_eq!(decision(&spec(false, &[]), &gpu, false, None), PartitionDecision::Converged);
    let PartitionDecision::Failed(error) = decision(&spec(true, &[]), &gpu, false, None) else { panic!() };
    assert_eq!(error.message, "Tesla T4 has no MIG");
}

#[test]
fn subdivided_instance_is_created_again() {
    let mut gpu = gpu(true, true);
    let mut divided = instance(2, &profile("3g.40gb"), 4, true);
    divided.compute[0].full_width = false;
    gpu.instances = vec![divided];
    let (end, operations) = partition(&spec(true, &[(4, "3g.40gb")]), &mut gpu);
    assert_eq!(end, PartitionDecision::Converged);
    assert_eq!(operations.first(), Some(&Operation::DestroyCompute { gi: 2, ci: 0 }));
}

#[test]
fn withdrawn_device_is_listed_as_held() {
    let mut gpu = gpu(true, true);
    gpu.instances = vec![instance(7, &profile("1g.10gb"), 0, true), instance(8, &profile("1g.10gb"), 1, true)];
    let mut wanted = spec(true, &[(0, "1g.10gb"), (1, "1g.10gb")]);
    wanted.hold = vec![1];
    let held: Vec<bool> = devices(&wanted, &gpu).iter().map(|device| device.cordoned).collect();
    assert_eq!(held, [false, true]);
}

#[test]
fn whole_gpu_is_a_device_only_without_mig() {
    assert_eq!(devices(&spec(false, &[]), &gpu(false, true)).len(), 1);
    assert!(devices(&spec(false, &[]), &gpu(true, true)).is_empty());
    assert!(devices(&spec(true, &[]), &gpu(false, true)).is_empty());
    assert_eq!(devices(&spec(false, &[]), &gpu(false, true))[0].resource, "nvidia.com/gpu");
}

#[test]
fn instance_that_the_driver_does_not_list_yet_is_no_device() {
    let mut gpu = gpu(true, true);
    let mut unlisted = instance(7, &profile("1g.10gb"), 0, true);
    unlisted.compute[0].uuid = None;
    gpu.instances = vec![unlisted];
    let wanted = spec(true, &[(0, "1g.10gb")]);
    let decision = decision(&wanted, &gpu, false, None);
    assert_eq!(decision, PartitionDecision::Wait(WaitCause::Driver, vec![Some(0)]));
    assert!(devices(&wanted, &gpu).is_empty());
}
