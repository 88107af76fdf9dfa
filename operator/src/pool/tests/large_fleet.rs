//! Decisions about many nodes. `FLEET_NODES=5000 cargo test --workspace --lib -p gputenancy-operator large_fleet -- --nocapture` prints how
//! long one takes.

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

#[test]
fn fleet_at_rest_is_not_written_and_one_changed_status_concerns_its_pool_only() {
    let nodes: u32 = std::env::var("FLEET_NODES").ok().and_then(|n| n.parse().ok()).unwrap_or(20);
    let (mut fleet, mut remembered) = (large(nodes), Remembered::default());
    for second in 0..2 {
        let pass = next(&fleet, &mut remembered, second, &[]);
        carry_out(&mut fleet, &pass);
    }
    let rest = next(&fleet, &mut remembered, 10, &[]);
    assert!(rest.nodes.is_empty() && rest.labels.is_empty() && rest.pools.is_empty(), "{rest:?}");

    let rounds = 5;
    let start = Instant::now();
    for round in 0..rounds {
        let node = Arc::make_mut(fleet.gpu_nodes.get_mut(&format!("n{round:05}")).unwrap());
        node.status.as_mut().unwrap().gpus[0].instances[0].device.as_mut().unwrap().owner = None;
        let pass = next(&fleet, &mut remembered, 100, &[]);
        assert!(pass.nodes.is_empty() && pass.labels.is_empty(), "{pass:?}");
        assert_eq!(pass.pools["p"].profiles[0].allocated, i32::try_from(nodes * PODS - round - 1).unwrap());
    }
    println!("{nodes} nodes: {:?} for each decision about one changed status", start.elapsed() / rounds);
}
