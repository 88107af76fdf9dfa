//! Decisions about many nodes.

use std::time::Instant;

use gputenancy_crds::{GpuNode, names};

use super::*;

const GPUS: u32 = 8;
const PODS: u32 = 4;
const SHAPE: &str = "1g.10gb";

/// Nodes at rest with eight A100 each in seven instances, and four pods that own a device each; a tenant for every five nodes.
fn large(nodes: u32) -> Fleet {
    let meta = |name: &str| json!({"name": name, "uid": format!("u-{name}"), "generation": 1});
    let support = json!({"expected": "e", "incident": "i"});
    let tenants = nodes.div_ceil(5);
    let mut fleet = Fleet {
        profiles: vec![read(
            json!({"metadata": meta("mig-1g"), "spec": {"device": {"mig": {"profile": SHAPE}}, "support": support}}),
        )],
        pools: vec![read(
            json!({"metadata": meta("p"), "spec": {"nodeSelector": {"matchLabels": {"x": "y"}}, "profiles": ["mig-1g"]}}),
        )],
        ..fleet(&[])
    };
    fleet.tenants = (0..tenants)
        .map(|t| {
            let name = format!("t{t:04}");
            Arc::new(read(json!({"metadata": meta(&name), "spec": {"namespaces": [{"name": name}],
                "gpus": [{"profile": "mig-1g", "count": 20}]}})))
        })
        .collect();
    (fleet.gpu_nodes, fleet.nodes) = (BTreeMap::new(), BTreeMap::new());
    for node in 0..nodes {
        let name = format!("n{node:05}");
        let tenant = format!("t{:04}", node / 5);
        let uuid = |gpu: u32| format!("GPU-{node:08}-0000-0000-0000-{gpu:012}");
        let instances: Vec<Value> = (0..7).map(|start| json!({"start": start, "profile": SHAPE})).collect();
        let gpus: Vec<Value> =
            (0..GPUS).map(|gpu| json!({"uuid": uuid(gpu), "mig": true, "instances": instances})).collect();
        let states: Vec<Value> = (0..GPUS)
            .map(|gpu| {
                let instances: Vec<Value> = (0..7)
                    .map(|start| {
                        let taken = gpu < PODS && start == 0;
                        let owner = taken
                            .then(|| json!({"namespace": tenant, "pod": format!("{name}-{gpu}"), "container": "work"}));
                        json!({"start": start, "profile": SHAPE, "gi": start + 7, "ci": 0,
                            "uuid": format!("MIG-{node:08}-0000-{gpu:04}-{start:04}-000000000000"),
                            "device": {"resource": names::mig_resource(SHAPE), "allocatable": true, "owner": owner,
                                "clients": i32::from(taken)}})
                    })
                    .collect();
                json!({"uuid": uuid(gpu), "index": gpu, "board": 0, "health": "Healthy", "step": "Steady",
                    "mig": {"enabled": true}, "instances": instances})
            })
            .collect();
        let board = json!({"product": "NVIDIA A100-SXM4-80GB", "memory": "81920Mi", "slices": 7, "memorySlices": 8,
            "profiles": [{"id": 19, "name": SHAPE, "slices": 1, "memory": "9728Mi", "size": 1, "starts": [0, 1, 2, 3, 4, 5, 6],
                "max": 7, "engines": [1, 0, 0, 0, 0, 0]}]});
        let gpu_node: GpuNode = read(json!({
            "metadata": meta(&name), "spec": {"gpus": gpus},
            "status": {"observedGeneration": 1, "gpus": states, "boards": [board]},
        }));
        fleet.gpu_nodes.insert(name.clone(), Arc::new(gpu_node));
        let pods = (0..PODS).map(|gpu| {
            let pod = format!("{name}-{gpu}");
            let key = PodName { namespace: tenant.clone().into(), name: pod.clone() };
            let pod = json!({
                "metadata": {"name": pod, "namespace": tenant, "uid": format!("u-{pod}")},
                "spec": {"nodeName": name, "containers": [{"resources": {"requests": {names::mig_resource(SHAPE): "1"}}}]},
                "status": {"phase": "Running"},
            });
            (key, Arc::new(read(pod)))
        });
        fleet.pods.extend(pods);
        let node = json!({
            "metadata": {"name": name, "labels": {"x": "y"}},
            "status": {"allocatable": {names::mig_resource(SHAPE): "56", "cpu": "64"},
                "conditions": [{"type": "Ready", "status": "True"}]},
        });
        fleet.nodes.insert(name, Arc::new(read(node)));
    }
    fleet
}

/// Removes the owner of a device, or restores it: one changed status.
fn toggle_owner(fleet: &mut Fleet, node: u32) {
    let name = format!("n{node:05}");
    let tenant = format!("t{:04}", node / 5);
    let gpu_node = Arc::make_mut(fleet.gpu_nodes.get_mut(&name).unwrap());
    let device = gpu_node.status.as_mut().unwrap().gpus[0].instances[0].device.as_mut().unwrap();
    let owner = json!({"namespace": tenant, "pod": format!("{name}-0"), "container": "work"});
    device.owner = if device.owner.is_some() { None } else { Some(read(owner)) };
}

#[test]
fn fleet_at_rest_is_not_written_and_one_changed_status_concerns_its_pool_only() {
    let nodes = 20;
    let (mut fleet, mut remembered) = settled_large(nodes);
    let rest = next(&fleet, &mut remembered, 10, &[]);
    assert!(rest.nodes.is_empty() && rest.labels.is_empty() && rest.pools.is_empty(), "{rest:?}");
    assert!(rest.pool_names.is_empty(), "{rest:?}");
    for round in 0..5 {
        toggle_owner(&mut fleet, round);
        let pass = next(&fleet, &mut remembered, 100, &[]);
        assert!(pass.nodes.is_empty() && pass.labels.is_empty(), "{pass:?}");
        assert_eq!(pass.pools["p"].profiles[0].allocated, i32::try_from(nodes * PODS - round - 1).unwrap());
    }
}

/// Copies the pool's name to `GpuNode`s.
pub(super) fn name_pools(fleet: &mut Fleet, decision: &FleetDecision) {
    for name in &decision.pool_names {
        let pool = fleet.nodes.get(name.as_str()).and_then(|node| node.labels().get(names::POOL_LABEL)).cloned();
        let labels =
            Arc::make_mut(fleet.gpu_nodes.get_mut(name.as_str()).unwrap()).metadata.labels.get_or_insert_default();
        match pool {
            Some(pool) => drop(labels.insert(names::POOL_LABEL.to_owned(), pool)),
            None => drop(labels.remove(names::POOL_LABEL)),
        }
    }
}

fn settled_large(nodes: u32) -> (Fleet, Remembered) {
    let (mut fleet, mut remembered) = (large(nodes), Remembered::default());
    for second in 0..2 {
        let pass = next(&fleet, &mut remembered, second, &[]);
        carry_out(&mut fleet, &pass);
        name_pools(&mut fleet, &pass);
    }
    (fleet, remembered)
}

/// The shortest of so many rounds, in milliseconds.
fn shortest(rounds: u32, mut work: impl FnMut()) -> f64 {
    let times = (0..rounds).map(|_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64() * 1000.0
    });
    times.fold(f64::INFINITY, f64::min)
}

/// Times of decisions about one fleet, by name, in milliseconds.
fn measured(nodes: u32) -> Vec<(&'static str, f64)> {
    let (mut fleet, mut remembered) = settled_large(nodes);
    let mut times = Vec::new();
    times.push(("first", shortest(1, || drop(at(&fleet, 100, &[])))));
    let rounds = std::env::var("FLEET_ROUNDS").map_or(10, |n| n.parse().unwrap());
    // a new plan would exist before the old one is dropped, at another address
    let place = |remembered: &Remembered| {
        remembered.planner.planned().plan.gpus.values().next().map(|gpu| std::ptr::from_ref(gpu).addr())
    };
    let before = place(&remembered);
    times.push(("at rest", shortest(rounds, || drop(next(&fleet, &mut remembered, 100, &[])))));
    assert!(before.is_some() && before == place(&remembered), "planned again at rest");
    let mut node = 0;
    times.push((
        "one changed status",
        shortest(rounds, || {
            node = (node + 1) % nodes;
            toggle_owner(&mut fleet, node);
            drop(next(&fleet, &mut remembered, 100, &[]));
        }),
    ));
    let snapshot = remembered.planner.planned().snapshot.clone();
    times.push(("  of it: plan of the fleet", shortest(rounds, || drop(gputenancy_plan::plan(&snapshot)))));
    let mut count = 20;
    times.push((
        "one raised guarantee",
        shortest(rounds, || {
            count += 1;
            Arc::make_mut(&mut fleet.tenants[0]).spec.gpus[0].count = count;
            drop(next(&fleet, &mut remembered, 100, &[]));
        }),
    ));
    let layout = json!({"mig": true, "instances": []});
    let change = json!({"phase": "Stuck", "from": layout, "to": layout, "startedAt": "1970-01-01T00:00:00Z",
        "phaseSince": "1970-01-01T00:00:00Z", "intent": "i", "reason": "r"});
    let failed = Arc::make_mut(fleet.gpu_nodes.get_mut("n00000").unwrap());
    failed.spec.gpus[0].change = Some(read(change));
    times.push((
        "one status, next to a failed change",
        shortest(rounds, || {
            node = (node + 1) % nodes;
            toggle_owner(&mut fleet, node);
            drop(next(&fleet, &mut remembered, 100, &[]));
        }),
    ));
    times
}

/// `FLEET_NODES='100 1000 5000' cargo test -p gputenancy-operator --lib fleet_at_rest_is_not_planned -- --nocapture` prints the shortest times of
/// decisions, in brackets the ratio to the first fleet. Add `--release` for times of a release build, and `FLEET_ROUNDS=50` for more rounds
/// than 10.
#[test]
fn fleet_at_rest_is_not_planned_again() {
    let sizes = std::env::var("FLEET_NODES").unwrap_or_else(|_| "20".to_owned());
    let sizes: Vec<u32> = sizes.split_whitespace().map(|n| n.parse().unwrap()).collect();
    let all: Vec<_> = sizes.iter().map(|nodes| measured(*nodes)).collect();
    println!("nodes: {sizes:?}");
    for (row, (name, base)) in all[0].iter().enumerate() {
        let columns = all.iter().map(|times| format!("{:10.3} ms ({:6.1})", times[row].1, times[row].1 / base));
        println!("{name:36}{}", columns.collect::<String>());
    }
}
