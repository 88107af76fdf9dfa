//! Refusals of the driver, one test for each.

use silicon::board::{Placement, Variant};
use silicon::clients::Client;
use silicon::{Code, Machine, boards};

fn machine(board: &str) -> Machine {
    let mut machine = Machine::power_on("n", boards::load(board).unwrap(), Variant::Normal, 2, &[]);
    machine.gpus[0].mig = machine.gpus[0].board.has_mig();
    machine.gpus[0].mig_pending = machine.gpus[0].mig;
    machine
}

fn client(gpu: u32, instance: Option<(u32, u32)>) -> Client {
    Client { pid: 1, gpu, instance, memory: 0, name: "work".into(), owner: "pod".into(), cgroups: Vec::new() }
}

#[test]
fn ampere_changes_mode_only_at_a_reset() {
    let mut m = machine("a100-80gb");
    assert_eq!(m.set_mig_mode(1, true, &[]), Ok(Err(Code::RESET_REQUIRED)));
    assert_eq!((m.gpus[1].mig, m.gpus[1].mig_pending), (false, true));
    m.reset(1, &[]).unwrap();
    assert!(m.gpus[1].mig);
}

#[test]
fn idle_hopper_changes_mode_immediately() {
    let mut m = machine("h100-80gb");
    assert_eq!(m.set_mig_mode(1, true, &[]), Ok(Ok(())));
    assert!(m.gpus[1].mig);
}

#[test]
fn busy_hopper_leaves_mode_change_pending() {
    let mut m = machine("h100-80gb");
    assert_eq!(m.set_mig_mode(1, true, &[client(1, None)]), Ok(Err(Code::IN_USE)));
    assert_eq!((m.gpus[1].mig, m.gpus[1].mig_pending), (false, true));
}

#[test]
fn hopper_keeps_mig_mode_while_instances_exist() {
    let mut m = machine("h100-80gb");
    m.create_gi(0, 19, None).unwrap();
    assert_eq!(m.set_mig_mode(0, false, &[]), Ok(Err(Code::IN_USE)));
    assert!(m.gpus[0].mig);
}

#[test]
fn board_without_mig_refuses_mode_changes() {
    assert_eq!(machine("t4-16gb").set_mig_mode(0, true, &[]), Err(Code::NOT_SUPPORTED));
}

#[test]
fn power_cycle_keeps_ampere_mode_and_removes_instances() {
    let mut before = machine("a30-24gb");
    before.create_gi(0, 14, None).unwrap();
    let after = Machine::power_on("n", before.gpus[0].board.clone(), Variant::Normal, 2, &before.inforom_modes());
    assert_eq!((after.gpus[0].mig, after.gpus[1].mig), (true, false));
    assert!(after.gpus[0].instances.is_empty());
}

#[test]
fn power_cycle_applies_pending_ampere_mode() {
    let mut before = machine("a100-40gb");
    before.set_mig_mode(1, true, &[]).unwrap().unwrap_err();
    let after = Machine::power_on("n", before.gpus[0].board.clone(), Variant::Normal, 2, &before.inforom_modes());
    assert!(after.gpus[1].mig);
}

#[test]
fn power_cycle_resets_hopper_mode() {
    let before = machine("h200-141gb");
    let after = Machine::power_on("n", before.gpus[0].board.clone(), Variant::Normal, 2, &before.inforom_modes());
    assert!(!after.gpus[0].mig);
}

#[test]
fn destroy_of_instance_with_client_is_refused() {
    let mut m = machine("a100-80gb");
    let gi = m.create_gi(0, 9, None).unwrap().id;
    m.create_ci(0, gi, 2, None).unwrap();
    let busy = [client(0, Some((gi, 0)))];
    assert_eq!(m.destroy_ci(0, gi, 0, &busy), Err(Code::IN_USE));
    assert_eq!(m.destroy_gi(0, gi, &busy), Err(Code::IN_USE));
    m.destroy_ci(0, gi, 0, &[]).unwrap();
    m.destroy_gi(0, gi, &[]).unwrap();
}

#[test]
fn destroy_of_gpu_instance_with_compute_instance_is_refused() {
    let mut m = machine("a100-80gb");
    let gi = m.create_gi(0, 9, None).unwrap().id;
    m.create_ci(0, gi, 2, None).unwrap();
    assert_eq!(m.destroy_gi(0, gi, &[]), Err(Code::IN_USE));
}

#[test]
fn client_of_an_instance_does_not_block_its_neighbour() {
    let mut m = machine("a100-80gb");
    let (a, b) = (m.create_gi(0, 9, None).unwrap().id, m.create_gi(0, 9, None).unwrap().id);
    m.create_ci(0, a, 2, None).unwrap();
    m.destroy_gi(0, b, &[client(0, Some((a, 0)))]).unwrap();
}

#[test]
fn occupied_placement_returns_insufficient_resources() {
    let mut m = machine("a100-80gb");
    let at = Some(Placement { start: 0, size: 1 });
    m.create_gi(0, 19, at).unwrap();
    assert_eq!(m.create_gi(0, 19, at).unwrap_err(), Code::INSUFFICIENT_RESOURCES);
}

#[test]
fn fragmentation_returns_insufficient_resources() {
    let mut m = machine("a100-80gb");
    for start in [0, 4] {
        m.create_gi(0, 19, Some(Placement { start, size: 1 })).unwrap();
    }
    assert_eq!(m.create_gi(0, 9, None).unwrap_err(), Code::INSUFFICIENT_RESOURCES);
    assert_eq!(m.remaining(0, 9), Ok(0));
}

#[test]
fn media_engines_are_exclusive() {
    let mut m = machine("rtx-pro-6000-96gb");
    // All media engines: next to it only instances without any fit.
    m.create_gi(0, 65, None).unwrap();
    assert_eq!(m.create_gi(0, 14, None).unwrap_err(), Code::INSUFFICIENT_RESOURCES);
    m.create_gi(0, 67, None).unwrap();
}

#[test]
fn unknown_placement_returns_invalid_argument() {
    let mut m = machine("a100-80gb");
    for at in [Placement { start: 6, size: 2 }, Placement { start: 0, size: 1 }] {
        assert_eq!(m.create_gi(0, 14, Some(at)).unwrap_err(), Code::INVALID_ARGUMENT);
    }
}

#[test]
fn profile_of_another_board_returns_invalid_argument() {
    assert_eq!(machine("a100-80gb").create_gi(0, 47, None).unwrap_err(), Code::INVALID_ARGUMENT);
}

#[test]
fn create_without_mig_mode_is_refused() {
    assert_eq!(machine("a100-80gb").create_gi(1, 19, None).unwrap_err(), Code::NOT_SUPPORTED);
}

#[test]
fn freed_mig_index_is_reused() {
    let mut m = machine("a100-80gb");
    let ids: Vec<u32> = (0..3).map(|_| m.create_gi(0, 19, None).unwrap().id).collect();
    for gi in &ids {
        m.create_ci(0, *gi, 0, None).unwrap();
    }
    m.destroy_ci(0, ids[1], 0, &[]).unwrap();
    let indices = |m: &Machine| m.mig_devices().iter().map(|d| d.ci.mig_index).collect::<Vec<_>>();
    assert_eq!(indices(&m), [0, 2]);
    m.create_ci(0, ids[1], 0, None).unwrap();
    assert_eq!(indices(&m), [0, 1, 2]);
}

#[test]
fn reset_requires_idle_gpu_and_removes_instances() {
    let mut m = machine("h100-80gb");
    let gi = m.create_gi(0, 19, None).unwrap().id;
    assert_eq!(m.reset(0, &[client(0, Some((gi, 0)))]), Err(Code::IN_USE));
    m.reset(0, &[client(1, None)]).unwrap();
    assert!(m.gpus[0].instances.is_empty());
}

#[test]
fn lost_gpu_returns_gpu_is_lost() {
    let mut m = machine("h100-80gb");
    m.set_lost(0, true).unwrap();
    assert_eq!(m.gpu(0).unwrap_err(), Code::GPU_IS_LOST);
    assert_eq!(m.create_gi(0, 19, None).unwrap_err(), Code::GPU_IS_LOST);
    assert_eq!(m.reset(0, &[]), Err(Code::GPU_IS_LOST));
    m.gpu(1).unwrap();
}

#[test]
fn reset_clears_volatile_ecc_errors_only() {
    let mut m = machine("h100-80gb");
    m.add_ecc(0, 3).unwrap();
    m.reset(0, &[]).unwrap();
    assert_eq!((m.gpus[0].ecc_volatile, m.gpus[0].ecc_aggregate), (0, 3));
}

#[test]
fn xid_history_is_bounded() {
    let mut m = machine("h100-80gb");
    (0..300).for_each(|code| m.raise_xid(1, None, code).unwrap());
    assert_eq!(m.events.len(), 256);
    assert_eq!(m.events.last().unwrap().number, 300);
}
