//! What others say about a node, and the maintenance windows of its pool, which are closed here.

use super::*;

/// The settled fleet with a window that is closed, and the node that has most of the small instances.
fn windowed() -> (World, String) {
    let mut world = World::new();
    let disruption =
        json!({"notice": "30s", "windows": [{"schedule": "0 2 * * *", "duration": "1h", "timeZone": "UTC"}]});
    world.fleet.pools[0].spec.disruption = read(disruption);
    world.fleet.pools[0].spec.health = read(json!({"clearAfter": "0s"}));
    let node = world.fleet.gpu_nodes.keys().max_by_key(|node| small(&world, node)).unwrap().clone();
    assert!(small(&world, &node) > 0);
    (world, node)
}

/// Small instances of a node.
fn small(world: &World, node: &str) -> usize {
    let gpus = world.fleet.gpu_nodes[node].status.iter().flat_map(|status| &status.gpus);
    gpus.flat_map(|gpu| &gpu.instances).filter(|instance| instance.profile == "1g.10gb").count()
}

fn elsewhere(world: &World, node: &str) -> usize {
    world.fleet.gpu_nodes.keys().filter(|other| *other != node).map(|other| small(world, other)).sum()
}

/// Sets the conditions of a node, besides that it is ready.
fn says(world: &mut World, node: &str, types: &[&str]) {
    let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:00Z"});
    let others = types.iter().map(|type_| json!({"type": type_, "status": "True", "reason": "R"}));
    let conditions: Vec<Value> = std::iter::once(ready).chain(others).collect();
    let mut changed = (*world.fleet.nodes[node]).clone();
    changed.status.conditions = read(json!(conditions));
    world.fleet.nodes.insert(node.to_owned(), Arc::new(changed));
}

/// Decides and carries out a few times.
fn settle(world: &mut World, remembered: &mut Remembered) -> FleetDecision {
    let mut last = FleetDecision::default();
    for _ in 0..12 {
        last = world.decide(remembered);
        world.carry_out(&last);
        world.now += 31;
    }
    last
}

/// GPUs of the pool that wait, each with what it waits for.
fn waiting(world: &World) -> Vec<String> {
    let status = world.fleet.pools[0].status.clone().unwrap();
    status.pending.into_iter().map(|pending| pending.message).collect()
}

#[test]
fn guarantees_lost_to_a_fault_are_restored_outside_windows_and_those_of_a_planned_maintenance_wait() {
    let (world, node) = windowed();
    let lost = small(&world, &node);
    for (types, ignores, restored) in [
        (&["GpuMemWatch"][..], true, true),
        (&["MaintenancePlanned", "GpuMemWatch"], true, true),
        (&["MaintenancePlanned"], true, false),
        (&["GpuMemWatch"], false, false),
    ] {
        let (mut world, _) = windowed();
        world.fleet.pools[0].spec.health.faults_ignore_windows = ignores;
        let before = elsewhere(&world, &node);
        says(&mut world, &node, types);
        settle(&mut world, &mut Remembered::default());
        let gained = elsewhere(&world, &node) - before;
        // the fleet has nine guaranteed instances, and more that fit beside them
        assert_eq!(
            gained > 0,
            restored,
            "{types:?} {ignores}: {lost} lost, {gained} gained, waiting {:?}",
            waiting(&world)
        );
        assert_eq!(
            waiting(&world).iter().any(|w| w.contains("nextWindow=1970-01-13T02:00:00Z")),
            !restored,
            "{types:?} {ignores}"
        );
    }
}

#[test]
fn maintenance_request_waits_for_a_window_until_it_starts() {
    let (mut world, node) = windowed();
    let starts = Timestamp::from_second(world.now + 1000).unwrap();
    let maintenance = crate::maintenance::Maintenance { name: "m".into(), starts: Some(starts) };
    world.fleet.maintenance.insert(node.clone(), vec![maintenance]);
    let (mut remembered, before) = (Remembered::default(), elsewhere(&world, &node));
    let rest = settle(&mut world, &mut remembered);
    assert_eq!((elsewhere(&world, &node), rest.wake), (before, Some(starts)));
    let marked = world.fleet.pools[0].status.clone().unwrap().conditions;
    let marked = &marked.iter().find(|c| c.type_ == "NodesMarked").unwrap().message;
    assert!(marked.contains("MaintenanceRequest m of NVSentinel names it, which starts at"), "{marked}");
    world.now = starts.as_second();
    settle(&mut world, &mut remembered);
    assert!(elsewhere(&world, &node) > before, "{:?}", waiting(&world));
}

#[test]
fn change_that_would_come_anyway_waits_for_a_window_beside_a_fault() {
    let (mut world, node) = windowed();
    let mut remembered = Remembered::default();
    Arc::make_mut(&mut world.fleet.tenants[0]).spec.gpus.push(read(json!({"profile": "large", "count": 6})));
    settle(&mut world, &mut remembered);
    let large = |world: &World| {
        let gpus = world.fleet.gpu_nodes.values().flat_map(|node| node.status.iter().flat_map(|status| &status.gpus));
        gpus.flat_map(|gpu| &gpu.instances).filter(|instance| instance.profile == "3g.40gb").count()
    };
    assert_eq!((large(&world), waiting(&world).len()), (0, 3));
    let before = elsewhere(&world, &node);
    says(&mut world, &node, &["GpuMemWatch"]);
    settle(&mut world, &mut remembered);
    assert!(elsewhere(&world, &node) > before, "{:?}", waiting(&world));
    // beside the small ones some are made of what is left of the same GPU
    let waiting = waiting(&world);
    let closed = !waiting.is_empty() && waiting.iter().all(|why| why.contains("nextWindow="));
    assert!(large(&world) <= 4 && closed, "{} {waiting:?}", large(&world));
}

/// A pod on every whole GPU, of a tenant that is guaranteed none.
fn occupy(world: &mut World) {
    for (name, node) in &mut world.fleet.gpu_nodes {
        for gpu in &mut Arc::make_mut(node).status.as_mut().unwrap().gpus {
            let Some(whole) = gpu.whole.as_mut().filter(|_| gpu.instances.is_empty()) else { continue };
            let pod = format!("{name}-{}", gpu.index);
            whole.owner = Some(read(json!({"namespace": "v", "pod": pod, "container": "c"})));
            let key = PodName { namespace: "v".into(), name: pod.clone() };
            let object = json!({"metadata": {"name": pod, "namespace": "v", "uid": pod, "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": true}]},
                "spec": {"nodeName": name, "containers": [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}]}, "status": {"phase": "Running"}});
            world.fleet.pods.insert(key, Arc::new(read(object)));
        }
    }
}

#[test]
fn eviction_for_a_fault_keeps_its_notice_and_ends_with_the_fault() {
    for recovers in [false, true] {
        let (mut world, node) = windowed();
        occupy(&mut world);
        let (mut remembered, pods, before) = (Remembered::default(), world.fleet.pods.len(), elsewhere(&world, &node));
        says(&mut world, &node, &["GpuMemWatch"]);
        for _ in 0..3 {
            let decision = world.decide(&mut remembered);
            world.carry_out(&decision);
            world.now += 1;
        }
        let reason = |world: &World| {
            let gpus = world.fleet.gpu_nodes.values().flat_map(|node| &node.spec.gpus);
            gpus.filter_map(|gpu| gpu.change.clone()).map(|change| (change.phase, change.reason)).next()
        };
        let (phase, why) = reason(&world).unwrap();
        assert_eq!(phase, ChangePhase::Noticed);
        let clause = format!("(outside spec.disruption.windows, as it restores what node {node} had)");
        assert!(why.ends_with(&clause), "{why}");
        assert_eq!(world.fleet.pods.len(), pods, "evicted before the end of the notice");
        if recovers {
            says(&mut world, &node, &[]);
        }
        settle(&mut world, &mut remembered);
        let (evicted, gained) = (pods - world.fleet.pods.len(), elsewhere(&world, &node) - before);
        assert_eq!(
            (evicted > 0, gained > 0),
            (!recovers, !recovers),
            "{evicted} evicted, {gained} gained: {:?}",
            waiting(&world)
        );
    }
}

/// Decides and carries out a few times within a notice.
fn notify(world: &mut World, remembered: &mut Remembered) {
    for _ in 0..3 {
        let decision = world.decide(remembered);
        world.carry_out(&decision);
        world.now += 1;
    }
}

/// Changes in progress, with their nodes.
fn begun(world: &World) -> Vec<(String, gputenancy_crds::Change)> {
    let of = |(name, node): (&String, &Arc<GpuNode>)| {
        let changes = node.spec.gpus.iter().filter_map(|gpu| gpu.change.clone());
        changes.map(|change| (name.clone(), change)).collect::<Vec<_>>()
    };
    world.fleet.gpu_nodes.iter().flat_map(of).collect()
}

#[test]
fn change_that_began_without_windows_is_not_urgent_beside_a_fault() {
    let (mut world, _) = windowed();
    let windows = std::mem::take(&mut world.fleet.pools[0].spec.disruption.windows);
    occupy(&mut world);
    Arc::make_mut(&mut world.fleet.tenants[0]).spec.gpus.push(read(json!({"profile": "large", "count": 2})));
    let (mut remembered, pods) = (Remembered::default(), world.fleet.pods.len());
    notify(&mut world, &mut remembered);
    let changing = begun(&world);
    assert!(changing.iter().any(|(_, change)| change.phase == ChangePhase::Noticed), "{changing:?}");
    let idle = |node: &&str| small(&world, node) == 0 && changing.iter().all(|(name, _)| name != node);
    let faulty = NODES.into_iter().find(idle).unwrap();
    world.fleet.pools[0].spec.disruption.windows = windows;
    says(&mut world, faulty, &["GpuMemWatch"]);
    settle(&mut world, &mut remembered);
    assert_eq!((world.fleet.pods.len(), begun(&world)), (pods, Vec::new()), "{:?}", waiting(&world));
}

#[test]
fn reason_names_no_faulty_node_that_lost_nothing_of_it() {
    let (mut world, node) = windowed();
    let other = NODES.into_iter().find(|other| *other != node && small(&world, other) == 0).unwrap();
    let labels = read(json!({"x": "z"}));
    Arc::make_mut(world.fleet.nodes.get_mut(other).unwrap()).metadata.labels = labels;
    let mut remembered = Remembered::default();
    settle(&mut world, &mut remembered);
    occupy(&mut world);
    says(&mut world, &node, &["GpuMemWatch"]);
    says(&mut world, other, &["GpuMemWatch"]);
    notify(&mut world, &mut remembered);
    let changing = begun(&world);
    let clause = format!("(outside spec.disruption.windows, as it restores what node {node} had)");
    assert!(
        !changing.is_empty() && changing.iter().all(|(_, change)| change.reason.ends_with(&clause)),
        "{changing:?}"
    );
    // the fault of the other pool alone keeps it no longer
    let pods = world.fleet.pods.len();
    says(&mut world, &node, &[]);
    settle(&mut world, &mut remembered);
    assert_eq!((world.fleet.pods.len(), begun(&world)), (pods, Vec::new()));
}
