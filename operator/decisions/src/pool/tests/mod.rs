//! Passes over fleets made by hand.

mod bypass;
mod deleted;
mod devices;
mod enforcement;
mod fault_recovery;
mod flapping;
mod incremental;
mod large_fleet;
mod marks;
mod newer_release;
mod overlap;
mod plugin_configs;
mod refused;
mod silent_agents;
mod warnings;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gputenancy_crds::{
    Advertiser, ChangePhase, GpuNodeSpec, GpuPool, GpuTenant, GpuTenantStatus, Partitioner, Trust, condition,
    ids::PodName, names,
};
use gputenancy_plan::Snapshot;
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::{
    decide::gpu_changes::intent,
    decision::{FleetDecision, Remembered, decide},
    derive::{Derivations, devices::NodeDevices},
    read::{inventory::Inventory, tolerated::Tolerated},
};
use crate::fleet::{Fleet, Refusals};

fn read<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

/// One node `n` with two GPUs without MIG, a profile of whole GPUs, a tenant that is guaranteed one, and these pools.
fn fleet(pools: &[&str]) -> Fleet {
    let gpu =
        |i: i32| json!({"uuid": format!("GPU-{i}"), "index": i, "board": 0, "health": "Healthy", "step": "Unmanaged"});
    let meta = |name: &str| json!({"name": name, "uid": format!("u-{name}"), "generation": 1});
    let support = json!({"expected": "e", "incident": "i"});
    Fleet {
        profiles: vec![
            read(json!({"metadata": meta("gpu"), "spec": {"device": {"whole": {}}, "support": support}})),
            read(json!({"metadata": meta("turns"), "spec": {"device": {"timeSlice": {"replicas": 4}}, "support": support}})),
        ],
        pools: pools
            .iter()
            .map(|name| read(json!({"metadata": meta(name), "spec": {"nodeSelector": {"matchLabels": {"x": "y"}}, "profiles": ["gpu"]}})))
            .collect(),
        tenants: vec![Arc::new(read(
            json!({"metadata": meta("t"), "spec": {"namespaces": [{"name": "t"}], "gpus": [{"profile": "gpu", "count": 1}]}}),
        ))],
        gpu_nodes: [(
            "n".to_owned(),
            Arc::new(read(json!({
                "metadata": meta("n"), "spec": {},
                "status": {"observedGeneration": 1, "simulated": true, "gpus": [gpu(0), gpu(1)],
                    "boards": [{"product": "Tesla-T4", "memory": "15360Mi", "slices": 0, "memorySlices": 0}]},
            }))),
        )]
        .into(),
        nodes: [(
            "n".to_owned(),
            Arc::new(read(json!({
                "metadata": {"name": "n", "labels": {"x": "y"}},
                "status": {"allocatable": {"nvidia.com/gpu": "2", "cpu": "4"}, "conditions": [{"type": "Ready", "status": "True"}]},
            }))),
        )]
        .into(),
        dra: BTreeSet::new(),
        maintenance: BTreeMap::new(),
        pods: BTreeMap::new(),
        mig_configs: crate::partitioner::MigConfigs::default(),
        plugin_configs: crate::plugin::PluginConfigs::default(),
        agent_pods: None,
        queues: None,
    }
}

fn at(fleet: &Fleet, seconds: i64, lagging: &[&str]) -> FleetDecision {
    next(fleet, &mut Remembered::default(), seconds, lagging)
}

/// A pass that goes on from the plan of the last one.
fn next(fleet: &Fleet, remembered: &mut Remembered, seconds: i64, lagging: &[&str]) -> FleetDecision {
    decided(fleet, remembered, seconds, [lagging, &[], &[]])
}

/// A pass with nodes whose `GpuNode` lags, could not be written, and is being written.
fn decided(fleet: &Fleet, remembered: &mut Remembered, seconds: i64, nodes: [&[&str]; 3]) -> FleetDecision {
    let [lagging, failing, writing] = nodes.map(|n| n.iter().map(|n| (*n).to_owned()).collect::<BTreeSet<String>>());
    let now = Timestamp::from_second(seconds).unwrap();
    let inventory = Inventory {
        fleet,
        now,
        refusals: &Refusals::new(),
        namespace: "home",
        tolerated: &Tolerated::default(),
        marks: &BTreeMap::new(),
        lagging: &lagging,
        failing: &failing,
        writing: &writing,
    };
    decide(&inventory, remembered)
}

/// Carries out a pass as an API server and an agent would.
fn carry_out(fleet: &mut Fleet, pass: &FleetDecision) {
    for (name, work) in &pass.nodes {
        let node = Arc::make_mut(fleet.gpu_nodes.get_mut(name.as_str()).unwrap());
        if let Some(spec) = &work.spec {
            node.spec = spec.clone();
        }
        let (spec, status) = (node.spec.clone(), node.status.as_mut().unwrap());
        for gpu in &mut status.gpus {
            let listed = spec.gpus.iter().any(|g| g.uuid == gpu.uuid);
            let step = if listed { "Steady" } else { "Unmanaged" };
            gpu.step = read(json!(step));
            gpu.whole = listed.then(|| read(json!({"resource": "nvidia.com/gpu", "allocatable": true})));
        }
    }
    for (name, labels) in &pass.labels {
        let mut node = (*fleet.nodes[name.as_str()]).clone();
        node.metadata.labels.get_or_insert_default().extend(labels.clone());
        fleet.nodes.insert(name.to_string(), Arc::new(node));
    }
    for pool in &mut fleet.pools {
        pool.status = pass.pools.get(&pool.name_any()).cloned().or(pool.status.take());
    }
    for profile in &mut fleet.profiles {
        profile.status = pass.profiles.get(&profile.name_any()).cloned().or(profile.status.take());
    }
}

fn settled() -> Fleet {
    let mut fleet = fleet(&["p"]);
    for second in 0..20 {
        let pass = at(&fleet, second, &[]);
        carry_out(&mut fleet, &pass);
    }
    fleet
}

fn reason_of(conditions: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition]) -> (&str, &str) {
    conditions.iter().find(|c| c.type_ == condition::READY).map(|c| (c.status.as_str(), c.reason.as_str())).unwrap()
}

#[test]
fn a_fleet_settles_and_then_nothing_is_written() {
    let fleet = settled();
    assert_eq!(fleet.gpu_nodes["n"].spec.gpus.len(), 2);
    let status = fleet.pools[0].status.clone().unwrap();
    assert_eq!(reason_of(&status.conditions), ("True", "Ready"));
    assert_eq!((status.nodes, status.gpus, status.summary.as_deref()), (Some(1), Some(2), Some("gpu 0/2")));
    let rest = at(&fleet, 10_000, &[]);
    assert!(
        rest.nodes.is_empty() && rest.labels.is_empty() && rest.pools.is_empty() && rest.profiles.is_empty(),
        "{rest:?}"
    );
    assert_eq!(rest.wake, None);
}

#[test]
fn nodes_carry_the_pools_name_and_the_mark_of_simulation() {
    let fleet = settled();
    assert_eq!(fleet.nodes["n"].labels()[names::POOL_LABEL], "p");
    assert_eq!(fleet.nodes["n"].labels()[names::SIMULATED_LABEL], "true");
}

#[test]
fn two_pools_on_one_node_are_both_told_and_neither_acts() {
    let fleet = fleet(&["p", "q"]);
    let pass = at(&fleet, 0, &[]);
    assert!(pass.nodes.is_empty());
    for pool in ["p", "q"] {
        let conditions = &pass.pools[pool].conditions;
        assert_eq!(reason_of(conditions), ("False", "PoolOverlap"));
        assert!(conditions.iter().any(|c| c.message.contains("node n is selected by pools p, q")), "{conditions:?}");
    }
}

#[test]
fn an_overlap_leaves_devices_as_they_are_and_heals_by_itself() {
    let mut fleet = settled();
    let second: GpuPool = GpuPool { status: None, ..fleet.pools[0].clone() };
    fleet
        .pools
        .push(GpuPool { metadata: kube::api::ObjectMeta { name: Some("q".into()), ..second.metadata }, ..second });
    let name = PodName { namespace: "t".into(), name: "w".into() };
    let notice = json!({names::EVICTION_NOTICE: "1970-01-01T00:00:00Z: why"});
    let meta = json!({"name": "w", "namespace": "t", "uid": "w", "annotations": notice});
    fleet.pods.insert(name.clone(), Arc::new(read(json!({"metadata": meta, "spec": {"nodeName": "n"}}))));
    let canary = PodName { namespace: "home".into(), name: "c".into() };
    let meta = json!({"name": "c", "namespace": "home", "uid": "c", "labels": {names::CANARY_LABEL: "x"},
        "annotations": {names::CANARY_NODE: "n"}});
    fleet.pods.insert(canary.clone(), Arc::new(read(json!({"metadata": meta, "spec": {"nodeName": "n"}}))));
    let pass = at(&fleet, 30, &[]);
    assert!(pass.nodes.is_empty() && pass.labels.is_empty(), "{pass:?}");
    assert!(pass.cancelled_evictions.contains_key(&name), "no change needs it any more: {pass:?}");
    assert!(pass.orphaned_canaries.is_empty(), "{pass:?}");
    carry_out(&mut fleet, &pass);
    fleet.pools.pop();
    let alone = at(&fleet, 31, &[]);
    assert!(alone.cancelled_evictions.contains_key(&name) && !alone.orphaned_canaries.is_empty(), "{alone:?}");
    fleet.pods.clear();
    assert_eq!(reason_of(&at(&fleet, 31, &[]).pools["p"].conditions), ("True", "Ready"));
}

#[test]
fn a_node_whose_agreement_lags_behind_is_left_alone() {
    assert!(at(&fleet(&["p"]), 0, &["n"]).nodes.is_empty());
    assert!(!at(&fleet(&["p"]), 0, &[]).nodes.is_empty());
}

#[test]
fn a_deleted_pool_gives_up_idle_gpus_at_once_and_waits_for_busy_ones() {
    let mut fleet = settled();
    fleet.pools[0].metadata.deletion_timestamp = Some(Time(Timestamp::from_second(100).unwrap()));
    let busy = Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap()).status.as_mut().unwrap();
    busy.gpus[1].whole.as_mut().unwrap().owner = Some(read(json!({"namespace": "t", "pod": "w", "container": "c"})));
    let pass = at(&fleet, 101, &[]);
    let left: Vec<&str> =
        pass.nodes.values().next().unwrap().spec.as_ref().unwrap().gpus.iter().map(|g| g.uuid.as_str()).collect();
    assert_eq!(left, ["GPU-1"]);
    assert!(pass.finished.is_empty());
    let message = &pass.pools["p"].conditions.iter().find(|c| c.type_ == "Ready").unwrap().message;
    assert!(message.contains("GPU 1 of node n (pods t/w)"), "{message}");
    assert_eq!(pass.wake.map(Timestamp::as_second), Some(400), "patience ends");
    assert_eq!(at(&fleet, 400, &[]).finished, ["p".to_owned()].into());
}

#[test]
fn change_of_a_node_that_leaves_its_pool_is_cancelled_until_it_partitions() {
    for (phase, stays) in [("Noticed", false), ("Evicting", false), ("Partitioning", true)] {
        let mut fleet = settled();
        let layout = json!({"resource": "nvidia.com/gpu"});
        let node = Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap());
        let time = "1970-01-01T00:00:10Z";
        node.spec.gpus[1].change = Some(read(json!({"phase": phase, "from": layout, "to": layout, "startedAt": time,
            "phaseSince": time, "reason": "r"})));
        node.spec.gpus[1].hold = vec![0];
        let owner = read(json!({"namespace": "t", "pod": "w", "container": "c"}));
        node.status.as_mut().unwrap().gpus[1].whole.as_mut().unwrap().owner = Some(owner);
        let mut kubernetes = (*fleet.nodes["n"]).clone();
        kubernetes.metadata.labels.as_mut().unwrap().remove("x");
        fleet.nodes.insert("n".into(), Arc::new(kubernetes));
        let spec = at(&fleet, 30, &[]).nodes.values().next().unwrap().spec.clone().unwrap();
        let gpu = spec.gpus.iter().find(|g| g.uuid == "GPU-1").expect("it is in use");
        assert_eq!((gpu.change.is_some(), gpu.hold.is_empty()), (stays, !stays), "{phase}");
    }
}

#[test]
fn share_in_a_pool_of_nvidias_plugin_is_not_served() {
    let mut fleet = fleet(&["p"]);
    fleet.pools[0].spec.profiles.push("turns".into());
    fleet.pools[0].spec.advertiser = Advertiser::NvidiaDevicePlugin;
    let conditions = &at(&fleet, 0, &[]).pools["p"].conditions;
    let refusal = conditions.iter().find(|c| c.reason == "NotServed").unwrap();
    assert!(refusal.message.contains("set spec.advertiser and spec.partitioner of the pool to Agent"), "{refusal:?}");
}

#[test]
fn interval_that_the_driver_cannot_be_given_is_reported() {
    let mut fleet = fleet(&["p"]);
    let applied = |fleet: &Fleet| {
        let conditions = at(fleet, 0, &[]).profiles["turns"].conditions.clone();
        conditions.into_iter().find(|c| c.type_ == "IntervalApplied").map(|c| (c.status, c.reason))
    };
    assert_eq!(applied(&fleet), None);
    fleet.profiles[1].spec.device.time_slice.as_mut().unwrap().interval = gputenancy_crds::Interval::Long;
    assert_eq!(applied(&fleet), Some(("False".into(), "IntervalNotApplied".into())));
}

#[test]
fn tenants_are_told_how_many_one_pod_may_have_and_where() {
    let mut fleet = fleet(&["p"]);
    let told = |fleet: &Fleet, profile: &str| {
        let contract = at(fleet, 0, &[]).view.profiles[profile].contract.clone();
        (contract.max_per_pod, contract.pools.into_iter().collect::<Vec<_>>(), contract.support.expected)
    };
    assert_eq!(told(&fleet, "gpu"), (None, vec!["p".into()], "e".into()), "as many as are guaranteed");
    assert_eq!(told(&fleet, "turns"), (Some(1), vec![], "e".into()), "one of a shared device, and no pool carries it");
    fleet.profiles[0].spec.max_per_pod = Some(4);
    fleet.profiles[1].spec.max_per_pod = Some(2);
    assert_eq!((told(&fleet, "gpu").0, told(&fleet, "turns").0), (Some(4), Some(2)));
}

#[test]
fn a_held_device_is_neither_free_nor_allocated() {
    let mut fleet = settled();
    let node = Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap());
    node.spec.gpus[0].hold = vec![0];
    let found = NodeDevices::of(&fleet.gpu_nodes["n"], true);
    let count = &found.by_resource["nvidia.com/gpu"];
    assert_eq!((count.total, count.free, count.unschedulable, count.allocated), (2, 1, 1, 0));
}

/// The settled fleet, where the profile's resource gets another name: the GPU that is guaranteed has to change.
fn renamed(windows: &Value) -> Fleet {
    let mut fleet = settled();
    fleet.profiles[0].spec.resource_name = Some("gputenancy.io/gpu".into());
    fleet.pools[0].spec.disruption.windows = serde_json::from_value(windows.clone()).unwrap();
    fleet
}

#[test]
fn outside_of_the_window_nothing_is_written_and_the_pool_says_when() {
    let fleet = renamed(&json!([{"schedule": "0 2 * * *", "duration": "1h", "timeZone": "UTC"}]));
    let closed = at(&fleet, 3600, &[]);
    assert!(closed.nodes.is_empty(), "{:?}", closed.nodes);
    let status = &closed.pools["p"];
    let (_, reason) = reason_of(&status.conditions);
    let window = status.next_window.clone().unwrap();
    assert_eq!((reason, window.start.0.as_second(), window.end.0.as_second()), ("ChangePlanned", 7200, 10_800));
    let told: Vec<&str> = status.pending.iter().map(|p| p.message.as_str()).collect();
    assert_eq!(told, ["Pending: nextWindow=1970-01-01T02:00:00Z"]);
    assert_eq!(closed.wake.map(Timestamp::as_second), Some(7200));
    let open = at(&fleet, 7200, &[]);
    assert_eq!(open.nodes.len(), 1);
    assert_eq!(open.wake.map(|at| at.as_second() <= 10_800), Some(true), "the status has to follow when it closes");
}

#[test]
fn a_window_that_cannot_be_read_begins_nothing_and_is_named() {
    let fleet = renamed(&json!([{"schedule": "0 2 * * *", "duration": "1h", "timeZone": "Mars/Olympus"}]));
    let pass = at(&fleet, 7200, &[]);
    assert!(pass.nodes.is_empty());
    let conditions = &pass.pools["p"].conditions;
    assert_eq!(reason_of(conditions), ("False", "InvalidWindow"));
    assert!(conditions.iter().any(|c| c.message.contains("spec.disruption.windows[0].timeZone")), "{conditions:?}");
}

#[test]
fn pool_status_counts_guaranteed_devices_that_are_missing() {
    let mut fleet = settled();
    assert_eq!(fleet.pools[0].status.clone().unwrap().unmet, Some(0));
    Arc::make_mut(&mut fleet.tenants[0]).spec.gpus[0].count = 5;
    assert_eq!(at(&fleet, 100, &[]).pools["p"].unmet, Some(3), "the fleet has two");
}

#[test]
fn a_notice_without_a_change_is_taken_back() {
    let mut fleet = settled();
    let pod = |uid: &str, node: &str| {
        let annotations = json!({names::EVICTION_NOTICE: "1970-01-01T00:00:00Z: why"});
        let meta = json!({"name": uid, "namespace": "t", "uid": uid, "annotations": annotations});
        Arc::new(read(json!({"metadata": meta, "spec": {"nodeName": node}})))
    };
    for (uid, node) in [("stays", "n"), ("elsewhere", "of-nobody")] {
        let name = PodName { namespace: "t".into(), name: uid.into() };
        fleet.pods.insert(name, pod(uid, node));
    }
    let spared = at(&fleet, 100, &[]).cancelled_evictions;
    assert_eq!(spared.into_values().collect::<Vec<_>>(), ["stays"], "nothing is said of nodes that cannot be judged");
    assert!(at(&fleet, 100, &["n"]).cancelled_evictions.is_empty());
}

fn label(fleet: &mut Fleet, labels: &[(&str, &str)]) {
    let mut node = (*fleet.nodes["n"]).clone();
    let has = node.metadata.labels.get_or_insert_default();
    has.extend(labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    fleet.nodes.insert("n".into(), Arc::new(node));
}

fn condition_of(pass: &FleetDecision, type_: &str) -> (String, String, String) {
    let found = pass.pools["p"].conditions.iter().find(|c| c.type_ == type_).unwrap();
    (found.status.clone(), found.reason.clone(), found.message.clone())
}

const THEIRS: &[(&str, &str)] =
    &[("nvidia.com/mig.config", "all-1g.10gb"), ("nvidia.com/gpu.deploy.mig-manager", "true")];

#[test]
fn a_node_that_somebody_else_carves_is_left_alone_and_its_change_stands_still() {
    let mut fleet = renamed(&json!([]));
    let begun = at(&fleet, 100, &[]);
    carry_out(&mut fleet, &begun);
    let under_way = fleet.gpu_nodes["n"].spec.clone();
    assert!(under_way.gpus.iter().any(|g| g.change.is_some()));
    label(&mut fleet, THEIRS);
    let found = at(&fleet, 200, &[]);
    let (status, reason, message) = condition_of(&found, "ForeignPartitioner");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "Found"));
    for word in ["node n ", "NVIDIA's MIG manager", "nvidia.com/mig.config=all-1g.10gb", "gpu.deploy.mig-manager=false"]
    {
        assert!(message.contains(word), "{word}: {message}");
    }
    assert_eq!(condition_of(&found, "Ready").1, "ForeignPartitioner");
    assert_eq!(found.conflicting, ["NVIDIA's MIG manager"]);
    let written = found.nodes.values().next().unwrap();
    let expected = GpuNodeSpec { partitioner: Partitioner::None, ..GpuNodeSpec::default() };
    let told = written.spec.clone().unwrap();
    assert_eq!(GpuNodeSpec { gpus: Vec::new(), ..told.clone() }, expected, "the agent is told to leave it alone");
    let pods = (&written.evictions, &written.notices, &written.canaries);
    assert!(pods.0.is_empty() && pods.1.is_empty() && pods.2.is_empty() && found.labels.is_empty());
    let layouts = |spec: &GpuNodeSpec| spec.gpus.iter().map(|g| (g.layout(), g.hold.clone())).collect::<Vec<_>>();
    assert_eq!(layouts(&told), layouts(&under_way));
    carry_out(&mut fleet, &found);
    let rest = at(&fleet, 100_000, &[]);
    assert!(rest.nodes.is_empty() && rest.labels.is_empty() && rest.pools.is_empty(), "{rest:?}");
}

#[test]
fn when_the_other_owner_is_gone_the_change_goes_on_with_its_time_again() {
    let mut fleet = renamed(&json!([]));
    for (second, sign) in [(100, "x"), (200, "")] {
        let pass = at(&fleet, second, &[]);
        carry_out(&mut fleet, &pass);
        if !sign.is_empty() {
            label(&mut fleet, THEIRS);
        }
    }
    assert_eq!(fleet.gpu_nodes["n"].spec.partitioner, Partitioner::None);
    label(&mut fleet, &[("nvidia.com/gpu.deploy.mig-manager", "false")]);
    let back = at(&fleet, 100_000, &[]);
    assert_eq!(condition_of(&back, "ForeignPartitioner").0, "False");
    carry_out(&mut fleet, &back);
    let spec = &fleet.gpu_nodes["n"].spec;
    assert_eq!(spec.partitioner, Partitioner::Agent);
    let since: Vec<i64> = spec.gpus.iter().filter_map(|g| Some(g.change.as_ref()?.phase_since.0.as_second())).collect();
    assert_eq!(since, [100_000]);
    // the agent withdraws what is held, and the change goes on
    let silicon = Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap()).status.as_mut().unwrap();
    silicon.gpus.iter_mut().flat_map(|g| &mut g.whole).for_each(|whole| whole.allocatable = false);
    let on = at(&fleet, 100_001, &[]);
    let spec = on.nodes.values().next().unwrap().spec.as_ref().unwrap();
    let phases: Vec<_> = spec.gpus.iter().filter_map(|g| Some(g.change.as_ref()?.phase)).collect();
    assert_eq!(phases, [ChangePhase::Partitioning]);
}

#[test]
fn an_overlooked_node_outside_of_every_pool_is_nobodys_business() {
    let mut fleet = fleet(&[]);
    label(&mut fleet, THEIRS);
    let pass = at(&fleet, 0, &[]);
    assert!(pass.nodes.is_empty() && pass.conflicting.is_empty(), "{pass:?}");
}

#[test]
fn a_node_taken_out_of_the_pool_is_given_up_though_somebody_else_carves_it() {
    let mut fleet = settled();
    label(&mut fleet, THEIRS);
    let pass = at(&fleet, 30, &[]);
    carry_out(&mut fleet, &pass);
    fleet.pools.clear();
    let pass = at(&fleet, 40, &[]);
    assert_eq!(pass.nodes.values().next().unwrap().spec, Some(GpuNodeSpec::default()));
}

#[test]
fn a_pool_that_is_only_read_tells_its_agents() {
    let mut fleet = settled();
    fleet.pools[0].spec.partitioner = Partitioner::None;
    let pass = at(&fleet, 30, &[]);
    carry_out(&mut fleet, &pass);
    assert_eq!(fleet.gpu_nodes["n"].spec.partitioner, Partitioner::None);
    assert!(at(&fleet, 31, &[]).nodes.is_empty());
}

#[test]
fn other_owners_are_told_once_when_they_come_and_once_when_they_go() {
    let mut fleet = settled();
    let mut told = Vec::new();
    for second in 0..6 {
        let before = fleet.pools[0].status.clone().unwrap().conditions;
        if second == 1 {
            fleet.dra.insert("n".into());
        } else if second == 4 {
            fleet.dra.clear();
        }
        let pass = at(&fleet, 100 + second, &[]);
        carry_out(&mut fleet, &pass);
        let now = fleet.pools[0].status.clone().unwrap().conditions;
        told.extend(super::status::pools::events(&before, &now).into_iter().map(|event| event.reason));
    }
    assert_eq!(told, ["ForeignPartitioner", "Ready", "ForeignPartitionerGone"]);
}

#[test]
fn a_nodes_labels_tell_how_it_is_carved_and_whether_that_changes() {
    let mut fleet = settled();
    let label = |fleet: &Fleet, name: &str| fleet.nodes["n"].labels()[name].clone();
    let before = label(&fleet, names::LAYOUT_LABEL);
    assert_eq!(label(&fleet, names::ENFORCEMENT_LABEL), "Hardware");
    assert_eq!((before.len(), label(&fleet, names::LAYOUT_STATE_LABEL).as_str()), (16, "steady"));
    fleet.profiles[0].spec.resource_name = Some("gputenancy.io/gpu".into());
    let mut states = Vec::new();
    for second in 0..20 {
        let pass = at(&fleet, 100 + second, &[]);
        carry_out(&mut fleet, &pass);
        states.push(label(&fleet, names::LAYOUT_STATE_LABEL));
    }
    states.dedup();
    assert!(states.contains(&"changing".to_owned()), "{states:?}");
    Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap()).spec.gpus[1].mig = true;
    let pass = at(&fleet, 150, &[]);
    carry_out(&mut fleet, &pass);
    assert_ne!(label(&fleet, names::LAYOUT_LABEL), before);
    fleet.pools.clear();
    let pass = at(&fleet, 200, &[]);
    let left: Vec<&String> = pass.labels.values().next().unwrap().keys().collect();
    assert_eq!(left, [names::SIMULATED_LABEL], "the pool's labels go with it");
}

#[test]
fn pass_with_a_kept_plan_decides_the_same_as_a_first_pass() {
    let mut fleet = fleet(&["p"]);
    let mut remembered = Remembered::default();
    for second in 0..40 {
        match second {
            8 => Arc::make_mut(&mut fleet.tenants[0]).spec.gpus[0].count = 2,
            16 => Arc::make_mut(&mut fleet.tenants[0]).spec.gpus[0].count = 3,
            24 => fleet.pools[0].spec.disruption.allow_outage = true,
            32 => drop(Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap()).status.as_mut().unwrap().gpus.pop()),
            _ => {}
        }
        let pass = next(&fleet, &mut remembered, second, &[]);
        // all nodes are new to a first pass
        let first = FleetDecision { visited: pass.visited.clone(), ..at(&fleet, second, &[]) };
        assert_eq!(format!("{pass:?}"), format!("{first:?}"), "after {second} s");
        carry_out(&mut fleet, &pass);
    }
}

#[test]
fn priorities_of_tenants_and_pods_and_allowed_outages_reach_the_planner() {
    let mut fleet = settled();
    let whole = json!({"allocatable": true, "owner": {"namespace": "t", "pod": "one", "container": "c"}});
    Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap()).status.as_mut().unwrap().gpus[0].whole = Some(read(whole));
    let pod =
        json!({"metadata": {"name": "one", "namespace": "t", "uid": "one"}, "spec": {"nodeName": "n", "priority": 7}});
    fleet.pods.insert(PodName { namespace: "t".into(), name: "one".into() }, Arc::new(read(pod)));
    Arc::make_mut(&mut fleet.tenants[0]).spec.priority = 3;
    fleet.pools[0].spec.disruption.allow_outage = true;
    let (snapshot, _) = Snapshot::read(&fleet.cluster());
    let used = snapshot.nodes["n"].gpus.values().flat_map(|g| &g.used).map(|u| u.priority);
    assert_eq!(used.collect::<Vec<_>>(), [7]);
    assert_eq!((snapshot.tenants["t"].priority, snapshot.pools["p"].allow_outage), (3, true));
}

#[test]
fn the_intent_is_what_people_ask_for_in_whatever_order_and_nothing_that_runs() {
    let mut asked = fleet(&["p"]);
    let mut other = (*asked.tenants[0]).clone();
    other.metadata.name = Some("u".into());
    asked.tenants.push(Arc::new(other));
    let mut same = asked.clone();
    same.tenants.reverse();
    let tenant = Arc::make_mut(&mut same.tenants[0]);
    (tenant.metadata.generation, tenant.status) = (Some(9), Some(GpuTenantStatus::default()));
    same.nodes.clear();
    assert_eq!(intent(&same), intent(&asked));
    let edits: [fn(&mut GpuTenant); 8] = [
        |t| t.metadata.name = Some("v".into()),
        |t| t.spec.namespaces[0].name = "v".into(),
        |t| t.spec.namespaces = Vec::new(),
        |t| t.spec.trust = Trust::Internal,
        |t| t.spec.priority = 1,
        |t| t.spec.gpus[0].profile = "turns".into(),
        |t| t.spec.gpus[0].count = 2,
        |t| {
            t.spec.sharing =
                Some(gputenancy_crds::TenantSharing { acknowledged_by: Some("a".into()), ..Default::default() });
        },
    ];
    let edited = |of: usize, edit: fn(&mut GpuTenant)| {
        let mut fleet = asked.clone();
        edit(Arc::make_mut(&mut fleet.tenants[of]));
        intent(&fleet)
    };
    for (n, edit) in edits.into_iter().enumerate() {
        assert_ne!(edited(0, edit), intent(&asked), "edit {n}");
    }
    assert_ne!(edited(0, edits[6]), edited(1, edits[6]), "what one asks for is not what another does");
}
