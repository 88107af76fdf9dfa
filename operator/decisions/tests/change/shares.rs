//! Changes of shares: neighbours stay, only owners of removed shares are evicted.

use gputenancy_crds::{ChangePhase, Holder, Layout};

use super::{scenario::layout, small::World};

/// Time-slices with these numbers.
pub fn turns(numbers: &[i32]) -> Layout {
    let group = serde_json::json!({"resource": "nvidia.com/gpu.shared", "numbers": numbers});
    serde_json::from_value(serde_json::json!({"sharing": {"mode": "TimeSlice", "shares": [group]}})).unwrap()
}

/// Fractions of two sizes with these numbers.
pub fn parts(large: &[i32], small: &[i32]) -> Layout {
    let group = |name: &str, memory: &str, compute: i32, numbers: &[i32]| serde_json::json!({"resource": format!("gputenancy.io/{name}"), "memory": memory, "compute": compute, "numbers": numbers});
    let shares = [group("large", "30720Mi", 50, large), group("small", "10240Mi", 10, small)];
    serde_json::from_value(serde_json::json!({"sharing": {"mode": "Fraction", "shares": shares}})).unwrap()
}

#[test]
fn lowered_replicas_evict_only_owners_of_removed_shares() {
    let mut world = World::new(&turns(&[0, 1, 2, 3]));
    (0..4).for_each(|_| world.start(0));
    world.agent();
    world.target = Some(turns(&[0, 2]));
    world.settle();
    assert_eq!(world.evicted, ["pod-2", "pod-4"]);
    assert_eq!((world.pods.len(), world.phase(), world.hold()), (2, None, vec![]));
    assert_eq!(Some(world.shown()), world.target);
}

#[test]
fn raised_replicas_hold_new_shares_only_and_evict_no_pod() {
    let mut world = World::new(&turns(&[0, 1]));
    (0..2).for_each(|_| world.start(0));
    world.agent();
    world.target = Some(turns(&[0, 1, 2, 3]));
    let decision = world.operate(3);
    assert_eq!((world.hold(), decision.evictions.len()), (vec![2, 3], 0));
    assert_eq!(world.phase(), Some(ChangePhase::Partitioning));
    world.settle();
    assert_eq!((world.evicted.len(), world.pods.len()), (0, 2));
    assert_eq!(Some(world.shown()), world.target);
}

#[test]
fn whole_gpu_in_use_is_shared_after_its_owner_has_left() {
    let mut world = World::new(&Layout::default());
    world.start(0);
    world.agent();
    world.target = Some(turns(&[0, 1, 2, 3]));
    world.settle();
    assert_eq!((world.evicted.as_slice(), world.pods.len()), (["pod-1".to_owned()].as_slice(), 0));
    assert_eq!(Some(world.shown()), world.target);
}

#[test]
fn share_of_another_resource_with_the_same_number_is_another_device() {
    let mut world = World::new(&parts(&[0], &[1, 2]));
    (0..3).for_each(|_| world.start(0));
    world.agent();
    world.target = Some(parts(&[], &[0, 1, 2]));
    world.settle();
    assert_eq!(world.evicted, ["pod-1"], "the owner of the large share");
}

#[test]
fn shares_give_way_to_instances_and_come_back() {
    let mut world = World::new(&turns(&[0, 1]));
    for target in [layout(&[("3g.40gb", 0), ("3g.40gb", 4)]), turns(&[0, 1, 2])] {
        world.target = Some(target.clone());
        world.settle();
        assert_eq!(world.shown(), target);
    }
}

/// One MIG instance on GPU memory slices 0 to 3, in time-slices.
pub fn sliced(replicas: i32) -> Layout {
    let shared = serde_json::json!({"start": 0, "profile": "3g.40gb", "resource": "nvidia.com/mig-3g.40gb.shared", "replicas": replicas});
    let other = serde_json::json!({"start": 4, "profile": "3g.40gb"});
    serde_json::from_value(serde_json::json!({"mig": true, "instances": [shared, other]})).unwrap()
}

#[test]
fn time_slices_of_an_instance_come_and_go_while_its_neighbours_run() {
    let mut world = World::new(&sliced(2));
    (0..3).for_each(|_| world.start(0));
    world.agent();
    world.target = Some(sliced(3));
    let decision = world.operate(3);
    assert_eq!((world.hold(), decision.evictions.len()), (vec![32], 0), "only the new time-slice is held");
    world.settle();
    assert_eq!((world.evicted.len(), world.pods.len()), (0, 3));
    assert_eq!(Some(world.shown()), world.target);

    world.start(0);
    world.agent();
    world.target = Some(sliced(2));
    world.settle();
    assert_eq!((world.evicted.as_slice(), world.pods.len()), (["pod-4".to_owned()].as_slice(), 3));
    assert_eq!(Some(world.shown()), world.target);
}

#[test]
fn instance_in_use_is_shared_after_its_owner_has_left() {
    let mut world = World::new(&layout(&[("3g.40gb", 0), ("3g.40gb", 4)]));
    (0..2).for_each(|_| world.start(0));
    world.agent();
    world.target = Some(sliced(2));
    world.settle();
    assert_eq!((world.evicted.as_slice(), world.pods.len()), (["pod-1".to_owned()].as_slice(), 1));
    assert_eq!(Some(world.shown()), world.target);
}

#[test]
fn removed_time_slice_waits_for_a_process_of_no_pod_on_its_instance() {
    let mut world = World::new(&sliced(3));
    world.silicon.holders = vec![Holder { pid: 4711, command: "python".into(), start: Some(0), container: None }];
    world.agent();
    world.target = Some(sliced(2));
    for _ in 0..4 {
        world.operate(3);
        world.agent();
        world.kubelet();
    }
    assert_eq!(world.phase(), Some(ChangePhase::Idle));
    world.silicon.holders.clear();
    world.settle();
    assert_eq!(Some(world.shown()), world.target);
}
