//! Specs that lack devices of running pods: deleted with their `GpuNode`, or restored from a backup.

use gputenancy_crds::{GpuSpec, reasons};

use crate::pool::tests::*;

/// Guarantees of four time-slices, two of which pods own on GPU 1; the agent has the layout and the spec has this instead.
fn lost(spec: Value) -> Fleet {
    let mut fleet = fleet(&["p"]);
    fleet.pools[0].spec.profiles = vec!["turns".into()];
    let tenant = Arc::make_mut(&mut fleet.tenants[0]);
    tenant.spec = read(json!({
        "namespaces": [{"name": "t"}], "trust": "Internal", "gpus": [{"profile": "turns", "count": 4}],
        "sharing": {"acknowledgedBy": "a@example.com"},
    }));
    let share = |number: i32| {
        let owner = (number > 1).then(|| json!({"namespace": "t", "pod": format!("w-{number}"), "container": "c"}));
        let device = json!({"resource": "nvidia.com/gpu.shared", "allocatable": true, "owner": owner, "clients": i32::from(number > 1)});
        json!({"number": number, "device": device})
    };
    let node = Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap());
    node.spec = read(spec);
    let gpu = &mut node.status.as_mut().unwrap().gpus[1];
    gpu.shares = (0..4).map(|number| read(share(number))).collect();
    gpu.retained = Some(read(json!({"sharing": shares(&[0, 1, 2, 3])})));
    for number in 2..4 {
        let name = PodName { namespace: "t".into(), name: format!("w-{number}") };
        let meta = json!({"name": name.name, "namespace": "t", "uid": name.name});
        fleet.pods.insert(name, Arc::new(read(json!({"metadata": meta, "spec": {"nodeName": "n"}}))));
    }
    fleet
}

fn shares(numbers: &[i32]) -> Value {
    json!({"mode": "TimeSlice", "shares": [{"resource": "nvidia.com/gpu.shared", "numbers": numbers}]})
}

#[test]
fn spec_without_shares_of_pods_gets_them_back_in_one_write_and_no_pod_is_evicted() {
    let at_rest = json!({"uuid": "GPU-1", "sharing": shares(&[0, 1])});
    let whole = json!({"uuid": "GPU-1", "resource": "gputenancy.io/other"});
    let begun = |phase: &str| {
        let (from, to) = (json!({"sharing": shares(&[0, 1])}), json!({}));
        json!({"phase": phase, "from": from, "to": to, "startedAt": "1970-01-01T00:00:01Z",
            "phaseSince": "1970-01-01T00:00:01Z", "reason": "r"})
    };
    let evicting = json!({"uuid": "GPU-1", "sharing": shares(&[0, 1]), "hold": [0, 1], "change": begun("Evicting")});
    let partitioning = json!({"uuid": "GPU-1", "hold": [0], "change": begun("Partitioning")});
    let stuck = json!({"uuid": "GPU-1", "change": begun("Stuck")});
    for gpus in [json!([]), json!([at_rest]), json!([whole]), json!([evicting]), json!([partitioning]), json!([stuck])]
    {
        let mut fleet = lost(json!({"gpus": gpus}));
        let pass = at(&fleet, 100, &[]);
        let work = &pass.nodes["n"];
        let expected: GpuSpec = read(json!({"uuid": "GPU-1", "sharing": shares(&[0, 1, 2, 3])}));
        let spec = work.spec.clone().unwrap();
        assert_eq!(spec.gpus.iter().find(|g| g.uuid == "GPU-1"), Some(&expected), "{gpus}");
        assert!(pass.evicted.is_empty() && work.evictions.is_empty() && work.notices.is_empty());
        let events: Vec<_> = work.events.iter().map(|e| e.reason).collect();
        assert_eq!(events, [reasons::LAYOUT_ADOPTED]);
        assert_eq!(pass.view.tenants["t"].shortages.len(), 0, "{:?}", pass.view.tenants);
        assert_eq!(pass.view.held.values().sum::<i32>(), 2);

        let node = Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap());
        node.spec = spec;
        node.metadata.generation = Some(2);
        assert!(at(&fleet, 101, &[]).nodes.is_empty(), "nothing more until the agent has read it");
        let status = Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap()).status.as_mut().unwrap();
        status.observed_generation = Some(2);
        (status.gpus[1].retained, status.gpus[1].step) = (None, read(json!("Steady")));
        assert!(at(&fleet, 102, &[]).nodes.is_empty());
    }
}

#[test]
fn layout_of_a_silent_agent_or_of_an_earlier_spec_is_not_adopted() {
    let mut silent = lost(json!({"gpus": []}));
    let mut node = (*silent.nodes["n"]).clone();
    node.status.conditions = read(json!([{"type": "Ready", "status": "Unknown"}]));
    silent.nodes.insert("n".into(), Arc::new(node));
    let mut earlier = lost(json!({"gpus": []}));
    Arc::make_mut(earlier.gpu_nodes.get_mut("n").unwrap()).metadata.generation = Some(2);
    for fleet in [silent, earlier] {
        let pass = at(&fleet, 100, &[]);
        let written = pass.nodes.get("n").and_then(|work| work.spec.clone());
        assert_eq!(written, None);
    }
}
