//! Changes in progress on a node that two pools select.

use super::*;
use crate::plugin::CordonAction;

const STARTED: i64 = 1000;

/// Two pools select the node, and its second GPU has a change in this phase since second 1000 with its device held.
fn changing(phase: &str) -> Fleet {
    let mut fleet = settled();
    let second = GpuPool { status: None, ..fleet.pools[0].clone() };
    let metadata = kube::api::ObjectMeta { name: Some("q".into()), ..second.metadata };
    fleet.pools.push(GpuPool { metadata, ..second });
    let time = Timestamp::from_second(STARTED).unwrap();
    let (from, to) = (json!({"resource": "nvidia.com/gpu"}), json!({"resource": "gputenancy.io/gpu"}));
    let node = Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap());
    let gpu = &mut node.spec.gpus[1];
    gpu.change = Some(read(
        json!({"phase": phase, "from": from, "to": to, "startedAt": time, "phaseSince": time, "reason": "r"}),
    ));
    gpu.hold = vec![0];
    fleet
}

#[test]
fn change_that_drains_is_cancelled_after_its_timeout_and_gives_its_devices_back() {
    for phase in ["Noticed", "Held", "Evicting", "Idle"] {
        let mut fleet = changing(phase);
        fleet.pools[1].spec.disruption.drain_timeout = read(json!("1h"));
        let name = PodName { namespace: "t".into(), name: "w".into() };
        let notice = json!({names::EVICTION_NOTICE: "1970-01-01T00:00:00Z: why"});
        let meta = json!({"name": "w", "namespace": "t", "uid": "w", "annotations": notice});
        fleet.pods.insert(name.clone(), Arc::new(read(json!({"metadata": meta, "spec": {"nodeName": "n"}}))));
        let mut remembered = Remembered::default();
        let waits = next(&fleet, &mut remembered, STARTED + 3599, &[]);
        assert!(waits.nodes.is_empty() && waits.cancelled_evictions.is_empty(), "{phase}: {waits:?}");
        assert_eq!(waits.wake.map(Timestamp::as_second), Some(STARTED + 3600), "{phase}");
        let over = next(&fleet, &mut remembered, STARTED + 3600, &[]);
        let gpu = over.nodes.values().next().unwrap().spec.as_ref().unwrap().gpus[1].clone();
        assert!(gpu.change.is_none() && gpu.hold.is_empty(), "{phase}: {gpu:?}");
        assert!(over.nodes["n"].events[0].message.contains("narrow spec.nodeSelector"), "{phase}");
        carry_out(&mut fleet, &over);
        assert!(next(&fleet, &mut remembered, STARTED + 3601, &[]).cancelled_evictions.contains_key(&name), "{phase}");
    }
}

#[test]
fn change_that_partitions_is_completed_or_rolled_back() {
    for (reached, expected) in [(true, ChangePhase::Verifying), (false, ChangePhase::RollingBack)] {
        let mut fleet = changing("Partitioning");
        let node = Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap());
        node.spec.gpus[1].resource = Some("gputenancy.io/gpu".into());
        let state = &mut node.status.as_mut().unwrap().gpus[1];
        state.step = read(json!(if reached { "Steady" } else { "SettingMode" }));
        let pass = at(&fleet, STARTED + 3600, &[]);
        let change = pass.nodes.values().next().unwrap().spec.as_ref().unwrap().gpus[1].change.clone().unwrap();
        assert_eq!(change.phase, expected);
    }
}

#[test]
fn cordon_ends_with_the_change_that_it_was_for() {
    let mut fleet = changing("Held");
    fleet.pools.iter_mut().for_each(|pool| pool.spec.advertiser = Advertiser::NvidiaDevicePlugin);
    Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap()).spec.advertiser = Advertiser::NvidiaDevicePlugin;
    cordon(&mut fleet);
    let over = at(&fleet, STARTED + 3600, &[]);
    carry_out(&mut fleet, &over);
    let lifted = at(&fleet, STARTED + 3601, &[]);
    assert_eq!(lifted.nodes.values().next().unwrap().plugin.cordon, Some(CordonAction::Lift));
}

#[test]
fn cordon_ends_with_a_gpu_node_that_is_deleted_during_a_change() {
    let mut fleet = changing("Held");
    cordon(&mut fleet);
    for pools in [2, 1, 0] {
        fleet.pools.truncate(pools);
        let mut remembered = Remembered::default();
        next(&fleet, &mut remembered, STARTED, &[]);
        let mut deleted = fleet.clone();
        deleted.gpu_nodes.clear();
        for second in 1..3 {
            let pass = next(&deleted, &mut remembered, STARTED + second, &[]);
            let work = pass.nodes.values().next().expect("until it is written");
            assert_eq!((work.plugin.cordon.clone(), work.spec.clone()), (Some(CordonAction::Lift), None), "{pools}");
        }
    }
}

/// The operator has cordoned the node.
fn cordon(fleet: &mut Fleet) {
    let mut node = (*fleet.nodes["n"]).clone();
    node.spec.unschedulable = true;
    let mark = (names::CORDONED.to_owned(), Timestamp::from_second(STARTED).unwrap().to_string());
    node.metadata.annotations.get_or_insert_default().extend([mark]);
    fleet.nodes.insert("n".into(), Arc::new(node));
}
