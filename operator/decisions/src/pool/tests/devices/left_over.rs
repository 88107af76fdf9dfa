//! Devices of pods that kubelet has forgotten, and the budget of their tenant.

use crate::pool::tests::*;

#[test]
fn device_that_kubelet_has_forgotten_counts_against_no_budget_while_its_pod_is_on_the_node() {
    let mut fleet = settled();
    let node = Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap());
    let used = |field: &str| json!({"allocatable": false, field: {"namespace": "t", "pod": "w", "container": "c"}});
    let gpus = &mut node.status.as_mut().unwrap().gpus;
    gpus[0].whole = Some(read(used("formerOwner")));
    let pod = |node: &str, phase: &str, count: &str| {
        let container = json!({"name": "c", "image": "i", "resources": {"requests": {"nvidia.com/gpu": count}}});
        let meta = json!({"name": "w", "namespace": "t", "uid": "u-w"});
        read(
            json!({"metadata": meta, "spec": {"nodeName": node, "containers": [container]}, "status": {"phase": phase}}),
        )
    };
    let name = PodName { namespace: "t".into(), name: "w".into() };
    let kept = |fleet: &Fleet| {
        at(fleet, 0, &[])
            .view
            .retained_devices
            .get(&("t".to_owned(), "nvidia.com/gpu".to_owned()))
            .copied()
            .unwrap_or(0)
    };
    assert_eq!(kept(&fleet), 1, "deleted by force");
    for (node, phase, count, expected) in
        [("n", "Running", "1", 0), ("n", "Failed", "1", 1), ("other", "Running", "1", 1), ("n", "Running", "0", 1)]
    {
        fleet.pods.insert(name.clone(), Arc::new(pod(node, phase, count)));
        assert_eq!(kept(&fleet), expected, "{phase} on {node} with {count}");
    }
    // the next pod of the same name has its device: the former one's process is another
    fleet.pods.insert(name, Arc::new(pod("n", "Running", "1")));
    let node = Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap());
    node.status.as_mut().unwrap().gpus[1].whole = Some(read(used("owner")));
    assert_eq!(kept(&fleet), 1);
}
