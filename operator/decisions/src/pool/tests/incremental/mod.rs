//! A decision that continues from earlier ones is the same as a first one about the same objects, after any history of the fleet.

mod happen;
mod urgent;

use gputenancy_crds::{GpuNode, GpuPoolStatus};
use proptest::prelude::*;

use super::{large_fleet::name_pools, *};
use crate::{
    change::{CanaryRequest, Refusal},
    plugin::CordonAction,
    pool::read::dirty_nodes::VisitReason,
};
use happen::{Step, happen, steps};

const NODES: [&str; 4] = ["n0", "n1", "n2", "n3"];
const TENANTS: [&str; 3] = ["t", "u", "v"];
const PROFILES: [&str; 4] = ["small", "large", "gpu", "turns"];
const GPUS: i32 = 2;

/// All that a decision is made from.
struct World {
    fleet: Fleet,
    now: i64,
    refusals: Refusals,
    marks: BTreeMap<String, String>,
    lagging: BTreeSet<String>,
    failing: BTreeSet<String>,
    writing: BTreeSet<String>,
    tolerated: Tolerated,
}

fn meta(name: &str) -> Value {
    json!({"name": name, "uid": format!("u-{name}"), "generation": 1})
}

fn gpu_node(name: &str) -> Arc<GpuNode> {
    let gpu = |i: i32| {
        json!({"uuid": format!("GPU-{name}-{i}"), "index": i, "board": 0, "health": "Healthy", "step": "Unmanaged",
            "mig": {"enabled": false}, "whole": {"allocatable": false}})
    };
    let profiles = json!([
        {"id": 0, "name": "7g.80gb", "slices": 7, "memory": "81152Mi", "size": 8, "starts": [0], "max": 1, "engines": [7, 5, 0, 1, 1]},
        {"id": 9, "name": "3g.40gb", "slices": 3, "memory": "40448Mi", "size": 4, "starts": [0, 4], "max": 2, "engines": [3, 2, 0, 0, 0]},
        {"id": 19, "name": "1g.10gb", "slices": 1, "memory": "9728Mi", "size": 1, "starts": [0, 1, 2, 3, 4, 5, 6], "max": 7, "engines": [1, 0, 0, 0, 0]},
    ]);
    let board = json!({"product": "NVIDIA A100-SXM4-80GB", "memory": "81920Mi", "slices": 7, "memorySlices": 8, "profiles": profiles});
    Arc::new(read(json!({"metadata": meta(name), "spec": {},
        "status": {"observedGeneration": 1, "boards": [board], "gpus": (0..GPUS).map(gpu).collect::<Vec<_>>()}})))
}

fn node(name: &str) -> Arc<gputenancy_crds::projection::SlimNode> {
    Arc::new(read(json!({"metadata": {"name": name, "labels": {"x": "y"}},
        "status": {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:00:00Z"}]}})))
}

fn tenant(name: &str) -> Arc<GpuTenant> {
    let spec = json!({"namespaces": [{"name": name}], "gpus": [{"profile": "small", "count": 3}],
        "sharing": {"acknowledgedBy": "a"}});
    Arc::new(read(json!({"metadata": meta(name), "spec": spec})))
}

fn pool(name: &str, selector: &str) -> GpuPool {
    read(json!({"metadata": meta(name), "spec": {"nodeSelector": {"matchLabels": {"x": selector}},
        "profiles": ["small", "large", "gpu"], "disruption": {"notice": "30s"}}}))
}

impl World {
    /// A settled fleet.
    fn new() -> Self {
        let support = json!({"expected": "e", "incident": "i"});
        let device = |name: &str| match name {
            "small" => json!({"mig": {"profile": "1g.10gb"}}),
            "large" => json!({"mig": {"profile": "3g.40gb"}}),
            "turns" => json!({"timeSlice": {"replicas": 4}}),
            _ => json!({"whole": {}}),
        };
        let profile =
            |name: &&str| read(json!({"metadata": meta(name), "spec": {"device": device(name), "support": support}}));
        let mut world = Self {
            fleet: Fleet {
                profiles: PROFILES.iter().map(profile).collect(),
                pools: vec![pool("p", "y"), pool("q", "z")],
                tenants: TENANTS.iter().map(|t| tenant(t)).collect(),
                gpu_nodes: NODES.iter().map(|n| ((*n).to_owned(), gpu_node(n))).collect(),
                nodes: NODES.iter().map(|n| ((*n).to_owned(), node(n))).collect(),
                ..Fleet::default()
            },
            now: 1_000_000,
            refusals: Refusals::new(),
            marks: BTreeMap::new(),
            lagging: BTreeSet::new(),
            failing: BTreeSet::new(),
            writing: BTreeSet::new(),
            tolerated: Tolerated::default(),
        };
        for _ in 0..12 {
            let decision = world.decide(&mut Remembered::default());
            world.carry_out(&decision);
            world.now += 5;
        }
        world
    }

    fn decide(&self, remembered: &mut Remembered) -> FleetDecision {
        let inventory = Inventory {
            fleet: &self.fleet,
            now: Timestamp::from_second(self.now).unwrap(),
            refusals: &self.refusals,
            namespace: "home",
            tolerated: &self.tolerated,
            marks: &self.marks,
            lagging: &self.lagging,
            failing: &self.failing,
            writing: &self.writing,
        };
        decide(&inventory, remembered)
    }

    /// Carries out a decision as an API server, the agents and kubelet would.
    fn carry_out(&mut self, decision: &FleetDecision) {
        for (name, work) in &decision.nodes {
            if let Some((node, spec)) = self.fleet.gpu_nodes.get_mut(name.as_str()).zip(work.spec.clone()) {
                let node = Arc::make_mut(node);
                node.spec = spec;
                // the MIG manager partitions at a step of its own
                let partitions = node.spec.partitioner != Partitioner::MigManager;
                realize(node, partitions);
            }
            for eviction in &work.evictions {
                self.remove_pod(&eviction.pod.clone());
            }
            for canary in &work.canaries {
                self.create_canary(name.as_str(), canary);
            }
            if let Some((node, cordon)) = self.fleet.nodes.get_mut(name.as_str()).zip(work.plugin.cordon.as_ref()) {
                let node = Arc::make_mut(node);
                node.spec.unschedulable = match cordon {
                    CordonAction::Set => true,
                    CordonAction::Lift => false,
                    CordonAction::Unmark => node.spec.unschedulable,
                };
                let annotations = node.metadata.annotations.get_or_insert_default();
                match cordon {
                    CordonAction::Set => {
                        let since = Timestamp::from_second(self.now).unwrap().to_string();
                        annotations.insert(names::CORDONED.to_owned(), since);
                    }
                    CordonAction::Lift | CordonAction::Unmark => drop(annotations.remove(names::CORDONED)),
                }
            }
        }
        for canary in decision.orphaned_canaries.values().flatten() {
            self.fleet.pods.remove(&canary.pod);
        }
        for (name, node) in &mut self.fleet.nodes {
            let mut allocatable: BTreeMap<String, i32> = BTreeMap::new();
            let gpus = self.fleet.gpu_nodes.get(name).and_then(|n| n.status.as_ref()).into_iter().flat_map(|s| &s.gpus);
            for device in gpus.flat_map(gputenancy_crds::GpuState::devices).filter(|d| d.allocatable) {
                *allocatable.entry(device.resource.clone().unwrap_or_default()).or_default() += 1;
            }
            let allocatable: BTreeMap<String, String> =
                allocatable.into_iter().map(|(resource, n)| (resource, n.to_string())).collect();
            let allocatable = read(json!(allocatable));
            if node.status.allocatable != allocatable {
                Arc::make_mut(node).status.allocatable = allocatable;
            }
        }
        for (name, labels) in &decision.labels {
            let node = Arc::make_mut(self.fleet.nodes.get_mut(name.as_str()).unwrap());
            let has = node.metadata.labels.get_or_insert_default();
            let kept = |label: &str| label.starts_with(names::MIG_CONFIG_LABEL) || label.contains(".deploy.");
            has.retain(|l, _| kept(l) || !l.starts_with("gputenancy.io/") && !l.starts_with("nvidia.com/"));
            has.extend(labels.clone());
        }
        for (name, request) in &decision.requests {
            let node = Arc::make_mut(self.fleet.nodes.get_mut(name.as_str()).unwrap());
            let has = node.metadata.labels.get_or_insert_default();
            has.extend(request.label.iter().map(|config| (names::MIG_CONFIG_LABEL.to_owned(), config.clone())));
            has.extend(request.unpause.iter().map(|label| (label.clone(), "true".to_owned())));
        }
        for (name, change) in &decision.taints {
            let node = Arc::make_mut(self.fleet.nodes.get_mut(name.as_str()).unwrap());
            node.spec.taints.clone_from(&change.taints);
            let annotations = node.metadata.annotations.get_or_insert_default();
            match &change.mark {
                Some(mark) => drop(annotations.insert(names::TAINTED.to_owned(), mark.clone())),
                None => drop(annotations.remove(names::TAINTED)),
            }
        }
        name_pools(&mut self.fleet, decision);
        let published = |pool: &GpuPool| decision.pools.get(&pool.name_any()).cloned();
        let status = |pool: &GpuPool| -> Option<GpuPoolStatus> { published(pool).or(pool.status.clone()) };
        self.fleet.pools.iter_mut().for_each(|pool| pool.status = status(pool));
        self.fleet.pools.retain(|pool| !decision.finished.contains(&pool.name_any()));
        for profile in &mut self.fleet.profiles {
            profile.status = decision.profiles.get(&profile.name_any()).cloned().or(profile.status.take());
        }
        if let Some(configs) = &decision.mig_configs {
            self.fleet.mig_configs = configs.clone();
        }
        if let Some(write) = &decision.plugin_configs {
            self.fleet.plugin_configs = write.configs.clone();
        }
    }

    /// A canary pod waits for its start.
    fn create_canary(&mut self, node: &str, canary: &CanaryRequest) {
        let created = Timestamp::from_second(self.now).unwrap();
        let name = PodName { namespace: "home".into(), name: canary.name.clone() };
        let pod = json!({
            "metadata": {"name": canary.name, "namespace": "home", "uid": format!("u-{}", canary.name), "creationTimestamp": created,
                "labels": {names::CANARY_LABEL: "x"}, "annotations": {names::CANARY_NODE: node}},
            "spec": {"nodeName": node}, "status": {"phase": "Pending"},
        });
        self.fleet.pods.insert(name, Arc::new(read(pod)));
    }

    fn remove_pod(&mut self, pod: &PodName) {
        self.fleet.pods.remove(pod);
        for node in self.fleet.gpu_nodes.values_mut() {
            let owned = |d: &gputenancy_crds::DeviceState| {
                d.owner.as_ref().is_some_and(|o| o.pod == pod.name && *o.namespace == *pod.namespace)
            };
            if node.status.iter().flat_map(|s| &s.gpus).flat_map(gputenancy_crds::GpuState::devices).any(owned) {
                let gpus = &mut Arc::make_mut(node).status.as_mut().unwrap().gpus;
                for device in gpus.iter_mut().flat_map(happen::devices).filter(|d| owned(d)) {
                    (device.owner, device.clients) = (None, 0);
                }
            }
        }
    }
}

/// Reads the spec as an agent does. `partitions`: the layouts that it lists are made; devices that stay keep their owners.
fn realize(node: &mut GpuNode, partitions: bool) {
    let generation = node.metadata.generation.unwrap_or_default() + 1;
    node.metadata.generation = Some(generation);
    let (specs, status) = (node.spec.gpus.clone(), node.status.as_mut().unwrap());
    status.observed_generation = Some(generation);
    for gpu in &mut status.gpus {
        let Some(spec) = specs.iter().find(|spec| spec.uuid == gpu.uuid) else {
            gpu.step = read(json!("Unmanaged"));
            (gpu.instances, gpu.shares) = (Vec::new(), Vec::new());
            gpu.whole = Some(read(json!({"allocatable": false})));
            gpu.mig = Some(read(json!({"enabled": false})));
            continue;
        };
        if !partitions {
            for instance in &mut gpu.instances {
                let held = spec.hold.contains(&instance.start);
                instance.device.iter_mut().for_each(|device| device.allocatable = !held);
            }
            gpu.whole.iter_mut().for_each(|whole| whole.allocatable = spec.hold.is_empty());
            gpu.step = read(json!("Steady"));
            continue;
        }
        let before = std::mem::take(&mut gpu.instances);
        let (index, trial) = (gpu.index, &spec.trial);
        let named = |start: i32, resource: String| {
            if trial.contains(&start) { names::canary_resource(index, start) } else { resource }
        };
        let device = |start: i32, profile: &str, resource: String| {
            let same = before.iter().find(|i| i.start == start && i.profile == profile);
            let owner = same.and_then(|i| i.device.as_ref()?.owner.clone());
            json!({"resource": named(start, resource), "allocatable": !spec.hold.contains(&start), "owner": owner})
        };
        let made = spec.instances.iter().map(|i| {
            read(json!({"start": i.start, "profile": i.profile, "gi": i.start + 1, "ci": 0,
                "device": device(i.start, &i.profile, i.resource_name())}))
        });
        gpu.instances = made.collect();
        gpu.step = read(json!("Steady"));
        gpu.mig = Some(read(json!({"enabled": spec.mig})));
        let owner = gpu.whole.as_ref().and_then(|w| w.owner.clone());
        let resource = spec.resource.clone().unwrap_or_else(|| names::WHOLE_GPU_RESOURCE.to_owned());
        let whole = json!({"resource": named(0, resource), "allocatable": spec.hold.is_empty(), "owner": owner});
        gpu.whole = (!spec.mig && spec.sharing.is_none()).then(|| read(whole));
        let share = |number: i32| {
            let resource = spec.share_resource(number).map(|resource| named(number, resource));
            read(
                json!({"number": number, "device": {"resource": resource, "allocatable": !spec.hold.contains(&number)}}),
            )
        };
        gpu.shares = spec.layout().shares().into_iter().map(share).collect();
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(48),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn decision_after_any_history_is_the_same_as_a_first_one(steps in steps()) {
        let (mut world, mut remembered) = (World::new(), Remembered::default());
        for (number, step) in steps.iter().enumerate() {
            happen(&mut world, step);
            // the settling of marks, that of guarantees and the ends of overruns follow from the history
            let (demands, overruns) = (remembered.demands.clone(), remembered.overruns.clone());
            let derived = remembered.derived.history(&world.fleet);
            let mut fresh = Remembered { derived, demands, overruns, ..Remembered::default() };
            let decision = world.decide(&mut remembered);
            // all nodes are new to a first decision
            let visited = decision.visited.clone();
            let first = FleetDecision { visited, ..world.decide(&mut fresh) };
            prop_assert_eq!(format!("{:#?}", &decision), format!("{:#?}", &first), "after step {}: {:?}", number, step);
            if *step == Step::Settle {
                world.carry_out(&decision);
            }
        }
    }
}

/// Decides, carries out and goes on through all steps that are not settled, and answers which of these facts were seen.
fn reach(steps: &[Step], seen: impl Fn(&FleetDecision) -> bool) -> bool {
    let (mut world, mut remembered) = (World::new(), Remembered::default());
    world.decide(&mut remembered);
    for step in steps {
        happen(&mut world, step);
    }
    let mut found = false;
    for _ in 0..20 {
        let decision = world.decide(&mut remembered);
        found |= seen(&decision);
        world.carry_out(&decision);
        world.now += 31;
    }
    found
}

#[test]
fn steps_of_the_property_reach_canaries_requests_cordons_and_overlaps() {
    let more = Step::Guarantee(0, 1, 4);
    let canary = |decision: &FleetDecision| decision.nodes.values().any(|work| !work.canaries.is_empty());
    assert!(reach(&[Step::Pool(0, 16), more.clone()], canary));
    let request = |decision: &FleetDecision| decision.requests.values().any(|request| request.label.is_some());
    assert!(reach(&[Step::Pool(0, 1), more.clone()], request));
    let cordon =
        |decision: &FleetDecision| decision.nodes.values().any(|work| work.plugin.cordon == Some(CordonAction::Set));
    assert!(reach(&[Step::Pool(0, 3), Step::Profile(2, 0), more], cordon));
    let overlap = |decision: &FleetDecision| {
        let conditions = decision.pools.values().flat_map(|status| &status.conditions);
        conditions.into_iter().any(|condition| condition.reason == "PoolOverlap")
    };
    assert!(reach(&[Step::Edit(0, 1), Step::Pool(0, 14)], overlap));
}

#[test]
fn every_reason_to_visit_a_node_is_reached_and_a_fleet_at_rest_is_not_visited() {
    use VisitReason::{
        AgentPod, Bypass, Change, DraDevices, Lagging, Maintenance, Mark, Node, Plan, Request, Rules, Silence,
        TaintMark, Unwritten,
    };

    let (mut world, mut remembered) = (World::new(), Remembered::default());
    let first = world.decide(&mut remembered).visited;
    assert_eq!(first[&VisitReason::Node], NODES.len());
    assert_eq!(world.decide(&mut remembered).visited, BTreeMap::new());
    let steps = [
        Step::Health(0, 0),
        Step::Agent(0, 3),
        Step::Edit(1, 9),
        Step::Edit(1, 10),
        Step::Mark(0),
        Step::Writes(1, 0),
        Step::Writes(0, 0),
        Step::Profile(2, 0),
        Step::Guarantee(0, 1, 4),
        Step::Ready(2),
        Step::Edit(3, 8),
        Step::Reports(0, 0),
        Step::Pool(0, 1),
    ];
    let mut reasons = BTreeSet::new();
    for step in steps {
        happen(&mut world, &step);
        for _ in 0..3 {
            let decision = world.decide(&mut remembered);
            reasons.extend(decision.visited.keys().copied());
            world.carry_out(&decision);
        }
    }
    let all = [
        Node,
        VisitReason::GpuNode,
        AgentPod,
        DraDevices,
        Maintenance,
        TaintMark,
        Lagging,
        Rules,
        Plan,
        Unwritten,
        Change,
        Request,
        Silence,
        Mark,
        Bypass,
    ];
    assert_eq!(reasons, all.into());
}

/// The property says nothing about steps that lead nowhere.
#[test]
fn steps_of_the_property_reach_changes_evictions_and_rest() {
    let mut world = World::new();
    let rest = world.decide(&mut Remembered::default());
    assert!(rest.nodes.is_empty() && rest.labels.is_empty() && rest.phases.is_empty(), "{rest:#?}");
    happen(&mut world, &Step::PodStarts(0, 0, 0));
    happen(&mut world, &Step::Guarantee(0, 1, 4));
    let mut phases = BTreeSet::new();
    for _ in 0..20 {
        let decision = world.decide(&mut Remembered::default());
        phases.extend(decision.phases.iter().copied());
        world.carry_out(&decision);
        world.now += 31;
    }
    assert!(phases.contains(&ChangePhase::Partitioning), "{phases:?}");
    let rest = world.decide(&mut Remembered::default());
    assert!(rest.nodes.is_empty() && rest.phases.is_empty(), "{rest:#?}");
}
