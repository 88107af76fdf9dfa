//! Single situations, by name.

use gputenancy_nvml::MigMode;

use super::model::{board, carve, client, decide, gpu, instance, layout, spec};
use crate::{
    carve::{Decision, Rest, offer::devices},
    gpu::{Order, SeenBoard},
};

fn profile(name: &str) -> gputenancy_nvml::InstanceProfile {
    board(false).profile(name).unwrap().clone()
}

#[test]
fn an_empty_gpu_is_carved_one_call_at_a_time() {
    let mut gpu = gpu(true, true);
    let (rest, orders) = carve(&spec(true, &[(4, "3g.40gb"), (0, "1g.10gb")]), &mut gpu);
    assert_eq!(rest, Rest::Steady);
    let names: Vec<&str> = orders.iter().map(Order::name).collect();
    assert_eq!(names, ["create-instance", "create-compute", "create-instance", "create-compute"]);
    assert_eq!(layout(&gpu), [(0, "1g.10gb".to_owned()), (4, "3g.40gb".to_owned())]);
}

#[test]
fn what_is_on_trial_is_offered_to_its_canary_alone_even_if_it_is_held() {
    let mut gpu = gpu(true, true);
    gpu.index = 3;
    let wanted = spec(true, &[(0, "1g.10gb"), (4, "3g.40gb")]);
    carve(&wanted, &mut gpu);
    let offered = |hold: &[i32], trial: &[i32]| {
        let spec = gputenancy_crds::GpuSpec { hold: hold.to_vec(), trial: trial.to_vec(), ..wanted.clone() };
        let all = devices(&spec, &gpu);
        all.into_iter().filter(crate::device::Device::offered).map(|d| d.resource).collect::<Vec<_>>()
    };
    assert_eq!(offered(&[0], &[4]), ["gputenancy.io/canary_3_4"]);
    assert_eq!(offered(&[0, 4], &[4]), ["gputenancy.io/canary_3_4"]);
    assert_eq!(offered(&[], &[]), ["nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"]);
}

#[test]
fn ampere_is_reset_before_it_is_carved_and_hopper_is_not() {
    let wanted = spec(true, &[(0, "1g.10gb")]);
    let (_, ampere) = carve(&wanted, &mut gpu(false, true));
    assert_eq!(ampere.iter().map(Order::name).take(2).collect::<Vec<_>>(), ["set-mode", "reset"]);
    let (_, hopper) = carve(&wanted, &mut gpu(false, false));
    assert_eq!(hopper.iter().map(Order::name).take(2).collect::<Vec<_>>(), ["set-mode", "create-instance"]);
}

#[test]
fn a_pending_mode_that_nobody_wants_any_more_is_called_off_under_clients() {
    let mut gpu = gpu(false, true);
    gpu.mode = Some(MigMode { current: false, pending: true });
    gpu.clients = vec![client(None)];
    assert_eq!(decide(&spec(false, &[]), &gpu, true, None), Decision::Act(Order::SetMode { on: false }));
}

#[test]
fn a_gpu_in_use_as_a_whole_is_not_turned_to_mig() {
    let mut gpu = gpu(false, true);
    gpu.clients = vec![client(None)];
    let wanted = spec(true, &[]);
    assert_eq!(decide(&wanted, &gpu, false, None), Decision::Rest(Rest::WaitingForClients { starts: vec![None] }));
    gpu.clients.clear();
    assert_eq!(decide(&wanted, &gpu, true, None), Decision::Rest(Rest::WaitingForKubelet { starts: vec![None] }));
}

#[test]
fn a_neighbour_that_goes_waits_for_the_one_that_cannot() {
    let mut gpu = gpu(true, true);
    gpu.instances = vec![instance(7, &profile("1g.10gb"), 0, true), instance(2, &profile("3g.40gb"), 4, true)];
    gpu.clients = vec![client(Some(2))];
    let decision = decide(&spec(true, &[(0, "7g.80gb")]), &gpu, false, None);
    assert_eq!(decision, Decision::Rest(Rest::WaitingForClients { starts: vec![Some(4)] }));
}

#[test]
fn an_impossible_layout_is_refused_before_anything_is_destroyed() {
    let mut gpu = gpu(true, true);
    gpu.instances = vec![instance(7, &profile("1g.10gb"), 0, true)];
    let overlap: &[(i32, &str)] = &[(0, "3g.40gb"), (2, "1g.10gb")];
    for (instances, words) in [
        (overlap, "1g.10gb at 2 overlaps 3g.40gb"),
        (&[(1, "3g.40gb")], "3g.40gb may start at [0, 4], not at 1"),
        (&[(0, "9g.90gb")], "has no profile 9g.90gb"),
    ] {
        let Decision::Rest(Rest::Failed(error)) = decide(&spec(true, instances), &gpu, false, None) else { panic!() };
        assert!(error.message.contains(words), "{}", error.message);
    }
}

#[test]
fn a_board_without_mig_is_whole_or_nothing() {
    let mut gpu = gpu(false, false);
    gpu.mode = None;
    gpu.board = SeenBoard { name: "Tesla T4".into(), ..SeenBoard::default() }.into();
    assert_eq!(decide(&spec(false, &[]), &gpu, false, None), Decision::Rest(Rest::Steady));
    let Decision::Rest(Rest::Failed(error)) = decide(&spec(true, &[]), &gpu, false, None) else { panic!() };
    assert_eq!(error.message, "Tesla T4 has no MIG");
}

#[test]
fn a_subdivided_instance_is_made_whole_again() {
    let mut gpu = gpu(true, true);
    let mut divided = instance(2, &profile("3g.40gb"), 4, true);
    divided.compute[0].full_width = false;
    gpu.instances = vec![divided];
    let (rest, orders) = carve(&spec(true, &[(4, "3g.40gb")]), &mut gpu);
    assert_eq!(rest, Rest::Steady);
    assert_eq!(orders.first(), Some(&Order::DestroyCompute { gi: 2, ci: 0 }));
}

#[test]
fn a_held_device_is_known_and_not_offered() {
    let mut gpu = gpu(true, true);
    gpu.instances = vec![instance(7, &profile("1g.10gb"), 0, true), instance(8, &profile("1g.10gb"), 1, true)];
    let mut wanted = spec(true, &[(0, "1g.10gb"), (1, "1g.10gb")]);
    wanted.hold = vec![1];
    let held: Vec<bool> = devices(&wanted, &gpu).iter().map(|device| device.held).collect();
    assert_eq!(held, [false, true]);
}

#[test]
fn the_whole_gpu_is_a_device_only_without_mig() {
    assert_eq!(devices(&spec(false, &[]), &gpu(false, true)).len(), 1);
    assert!(devices(&spec(false, &[]), &gpu(true, true)).is_empty());
    assert!(devices(&spec(true, &[]), &gpu(false, true)).is_empty());
    assert_eq!(devices(&spec(false, &[]), &gpu(false, true))[0].resource, "nvidia.com/gpu");
}

#[test]
fn an_instance_that_the_driver_does_not_list_yet_is_waited_for_and_not_offered() {
    let mut gpu = gpu(true, true);
    let mut unlisted = instance(7, &profile("1g.10gb"), 0, true);
    unlisted.compute[0].uuid = None;
    gpu.instances = vec![unlisted];
    let wanted = spec(true, &[(0, "1g.10gb")]);
    let decision = decide(&wanted, &gpu, false, None);
    assert_eq!(decision, Decision::Rest(Rest::WaitingForDriver { starts: vec![Some(0)] }));
    assert!(devices(&wanted, &gpu).is_empty());
}
