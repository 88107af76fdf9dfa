//! A node of two A100-80 that NVIDIA's MIG manager carves: API server, agent, kubelet, pods, silicon and the MIG manager, each a few fields.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use gputenancy_crds::{
    AgentStep, ChangePhase, DeviceOwner, DeviceState, GpuNode, GpuPool, InstanceState, Layout, MigManagerStep, MigMode,
    ids::PodName, names,
};
use gputenancy_plan::seen;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::{
    fleet::{Fleet, Refusals},
    partitioner::{MigConfigs, Shape, base, is_engaged, is_whole},
    pool::{
        decision::{FleetDecision, Remembered, decide},
        read::{inventory::Inventory, tolerated::Tolerated},
    },
};

/// What the MIG manager does wrong the next time that it carves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Parts do not stop: `pending` for ever, parts paused.
    Stuck,
    /// mig-parted fails.
    Failed,
    /// mig-parted fails, and the parts stay paused.
    FailedPaused,
    /// It says success and has carved nothing.
    Lies,
    /// mig-parted clears what it has to carve, and fails then.
    Cleared,
}

/// NVIDIA's MIG manager.
#[derive(Clone, Debug, Default)]
pub struct Manager {
    /// The value that it acted on last.
    handled: Option<String>,
    /// Its file, as kubelet has brought it.
    file: MigConfigs,
    /// At work for this value: pods are being waited for.
    at_work: Option<String>,
    pub faults: VecDeque<Fault>,
    pub dead: bool,
}

pub struct World {
    pub now: Timestamp,
    pub fleet: Fleet,
    pub manager: Manager,
    /// What each GPU has: MIG mode, and profiles by start.
    silicon: Vec<(bool, BTreeMap<i32, String>)>,
    /// Pods by GPU and start.
    pods: BTreeMap<PodName, (usize, i32)>,
    remembered: Remembered,
    /// The pool, while it is deleted.
    shelf: Vec<GpuPool>,
    pub evicted: BTreeSet<PodName>,
    pub story: Vec<String>,
}

const LABELS: &str = "nvidia.com/gpu.deploy.device-plugin";

fn read<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

fn size(profile: &str) -> i32 {
    if profile.starts_with('1') { 1 } else { 4 }
}

fn starts(profile: &str) -> Vec<i32> {
    if profile.starts_with('1') { (0..7).collect() } else { vec![0, 4] }
}

impl World {
    pub fn new() -> Self {
        let meta = |name: &str| json!({"name": name, "uid": format!("u-{name}"), "generation": 1});
        let support = json!({"expected": "e", "incident": "i"});
        let mig = |name: &str, shape: &str| {
            read(json!({"metadata": meta(name), "spec": {"device": {"mig": {"profile": shape}}, "support": support}}))
        };
        let board = json!({
            "product": "NVIDIA-A100-SXM4-80GB", "memory": "81920Mi", "slices": 7, "memorySlices": 8, "modeNeedsReset": true,
            "profiles": [
                {"id": 0, "name": "7g.80gb", "slices": 7, "memory": "81152Mi", "size": 8, "starts": [0], "max": 1, "engines": [7, 5, 0, 1, 1]},
                {"id": 9, "name": "3g.40gb", "slices": 3, "memory": "40448Mi", "size": 4, "starts": [0, 4], "max": 2, "engines": [3, 2, 0, 0, 0]},
                {"id": 19, "name": "1g.10gb", "slices": 1, "memory": "9728Mi", "size": 1, "starts": [0, 1, 2, 3, 4, 5, 6], "max": 7, "engines": [1, 0, 0, 0, 0]},
            ],
        });
        let gpu = |i: i32| json!({"uuid": format!("GPU-{i}"), "index": i, "pciBusId": format!("0{i}"), "board": 0, "health": "Healthy", "step": "Unmanaged"});
        let pool = json!({
            "nodeSelector": {"matchLabels": {"x": "y"}}, "profiles": ["small", "half"], "partitioner": "MigManager",
            "disruption": {"maxUnavailable": 2},
        });
        let fleet = Fleet {
            profiles: vec![mig("small", "1g.10gb"), mig("half", "3g.40gb")],
            pools: vec![read(json!({"metadata": meta("p"), "spec": pool}))],
            dra: BTreeSet::new(),
            maintenance: BTreeMap::new(),
            tenants: vec![Arc::new(read(json!({"metadata": meta("t"), "spec": {"namespaces": [{"name": "t"}]}})))],
            gpu_nodes: [(
                "n".to_owned(),
                Arc::new(read(json!({"metadata": meta("n"), "spec": {}, "status": {"observedGeneration": 1, "gpus": [gpu(0), gpu(1)], "boards": [board]}}))),
            )]
            .into(),
            nodes: [(
                "n".to_owned(),
                Arc::new(read(json!({
                    "metadata": {"name": "n", "labels": {"x": "y", LABELS: "true", "nvidia.com/gpu.deploy.dcgm": "false"}},
                    "status": {"allocatable": {}, "conditions": [{"type": "Ready", "status": "True"}]},
                }))),
            )]
            .into(),
            pods: BTreeMap::new(),
            mig_configs: MigConfigs::default(),
            plugin_configs: crate::plugin::PluginConfigs::default(),
            agent_pods: None,
            queues: None,
        };
        Self {
            now: Timestamp::from_second(1_000_000).unwrap(),
            fleet,
            manager: Manager::default(),
            silicon: vec![(false, BTreeMap::new()), (false, BTreeMap::new())],
            pods: BTreeMap::new(),
            remembered: Remembered::default(),
            shelf: Vec::new(),
            evicted: BTreeSet::new(),
            story: Vec::new(),
        }
    }

    pub fn node(&self) -> &GpuNode {
        &self.fleet.gpu_nodes["n"]
    }

    pub fn label(&self, name: &str) -> Option<String> {
        self.fleet.nodes["n"].metadata.labels.as_ref().unwrap().get(name).cloned()
    }

    pub fn set_label(&mut self, name: &str, value: &str) {
        self.story.push(format!("{name}={value}"));
        let mut node = (*self.fleet.nodes["n"]).clone();
        node.metadata.labels.get_or_insert_default().insert(name.to_owned(), value.to_owned());
        self.fleet.nodes.insert("n".into(), Arc::new(node));
    }

    pub fn guarantee(&mut self, profile: &str, count: i32) {
        let tenant = Arc::make_mut(&mut self.fleet.tenants[0]);
        let others = tenant.spec.gpus.iter().filter(|g| g.profile != profile).cloned();
        tenant.spec.gpus = others.chain([read(json!({"profile": profile, "count": count}))]).collect();
        *tenant.metadata.generation.get_or_insert_default() += 1;
    }

    /// The pool is deleted, or made again.
    pub fn pooled(&mut self, pooled: bool) {
        self.story.push(format!("pool {pooled}"));
        if pooled {
            self.fleet.pools.append(&mut self.shelf);
        } else {
            self.shelf.append(&mut self.fleet.pools);
        }
    }

    /// What the GPUs have.
    pub fn shapes(&self) -> Vec<Shape> {
        self.node().status.as_ref().unwrap().gpus.iter().map(Shape::seen).collect()
    }

    pub fn phases(&self) -> Vec<Option<ChangePhase>> {
        self.node().spec.gpus.iter().map(|g| g.change.as_ref().map(|c| c.phase)).collect()
    }

    pub fn passes(&mut self) -> FleetDecision {
        let inventory = Inventory {
            fleet: &self.fleet,
            now: self.now,
            refusals: &Refusals::new(),
            namespace: "home",
            tolerated: &Tolerated::default(),
            marks: &BTreeMap::new(),
            lagging: &BTreeSet::new(),
            failing: &BTreeSet::new(),
            writing: &BTreeSet::new(),
        };
        decide(&inventory, &mut self.remembered)
    }

    /// The operator passes and does so many of the things that it has decided before it crashes. False: there was nothing to do.
    pub fn operate(&mut self, things: usize) -> bool {
        let FleetDecision { nodes, requests, mig_configs, .. } = self.passes();
        let mut left = things;
        let mut next = || {
            left = left.saturating_sub(1);
            left > 0
        };
        let idle = nodes.is_empty() && requests.is_empty() && mig_configs.is_none();
        if let Some(configs) = mig_configs.filter(|_| next()) {
            self.fleet.mig_configs = MigConfigs::parse(&configs.render().unwrap());
        }
        for (_, work) in nodes {
            if let Some(spec) = work.spec {
                if !next() {
                    return true;
                }
                self.story.push(format!(
                    "spec: {:?} {:?}",
                    spec.gpus.iter().map(|g| g.change.as_ref().map(|c| c.phase)).collect::<Vec<_>>(),
                    spec.mig_manager
                ));
                let node = Arc::make_mut(self.fleet.gpu_nodes.get_mut("n").unwrap());
                assert_ne!(node.spec, spec, "a write that changes nothing");
                let before = is_whole(node);
                node.spec = spec;
                *node.metadata.generation.as_mut().unwrap() += 1;
                let let_go = before && !is_whole(node);
                assert!(!let_go || self.paused().is_empty(), "let go with paused parts: {:#?}", self.story);
            }
            for eviction in work.evictions {
                if !next() {
                    return true;
                }
                self.story.push(format!("evict {}", eviction.pod));
                self.pods.remove(&eviction.pod);
                self.fleet.pods.remove(&eviction.pod);
                self.evicted.insert(eviction.pod);
            }
        }
        for (_, ask) in requests {
            if !next() {
                return true;
            }
            if let Some(config) = ask.label {
                self.set_label(names::MIG_CONFIG_LABEL, &config);
            }
            for label in ask.unpause {
                assert_eq!(self.label(&label).as_deref(), Some(names::PAUSED));
                self.set_label(&label, "true");
            }
        }
        !idle
    }

    /// A pod takes the first device that is offered.
    pub fn arrive(&mut self) {
        let node = self.node().clone();
        for (gpu, state) in node.status.iter().flat_map(|s| &s.gpus).enumerate() {
            let is_free = |d: &DeviceState| d.allocatable && d.owner.is_none();
            let free = state.instances.iter().find(|i| i.device.as_ref().is_some_and(is_free));
            let hold = node.spec.gpus.get(gpu).map(|g| g.hold.clone()).unwrap_or_default();
            if let Some(instance) = free.filter(|i| !hold.contains(&i.start)) {
                let name =
                    PodName { namespace: "t".into(), name: format!("pod-{}", self.pods.len() + self.evicted.len()) };
                let (pod, start) = (name.name.clone(), instance.start);
                let owner =
                    json!([{"apiVersion": "v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": true}]);
                let object = json!({
                    "metadata": {"name": pod, "namespace": "t", "uid": format!("u-{pod}"), "ownerReferences": owner},
                    "spec": {"nodeName": "n"},
                });
                self.story.push(format!("{name} takes {start} of GPU {gpu}"));
                self.fleet.pods.insert(name.clone(), Arc::new(read(object)));
                self.pods.insert(name, (gpu, start));
                self.agent();
                return;
            }
        }
    }

    /// The agent reports what NVML shows, and kubelet follows at once.
    pub fn agent(&mut self) {
        let (silicon, pods) = (self.silicon.clone(), self.pods.clone());
        let node = Arc::make_mut(self.fleet.gpu_nodes.get_mut("n").unwrap());
        let spec = node.spec.clone();
        let generation = node.metadata.generation;
        let status = node.status.as_mut().unwrap();
        let mut amounts: BTreeMap<String, usize> = BTreeMap::new();
        status.observed_generation = generation;
        for (i, gpu) in status.gpus.iter_mut().enumerate() {
            let (mig, instances) = &silicon[i];
            let wanted = spec.gpus.iter().find(|g| g.uuid == gpu.uuid);
            let mut device = |start: i32, profile: Option<&str>| {
                let listed = wanted.is_some_and(|g| match profile {
                    None => !g.mig,
                    Some(p) => g.mig && g.instances.iter().any(|i| i.start == start && i.profile == p),
                });
                let owner = pods.iter().find(|(_, at)| **at == (i, start)).map(|(pod, _)| DeviceOwner {
                    namespace: pod.namespace.to_string(),
                    pod: pod.name.clone(),
                    container: "c".into(),
                });
                let held = wanted.is_some_and(|g| g.hold.contains(&start));
                let resource = profile.map_or_else(|| "nvidia.com/gpu".to_owned(), names::mig_resource);
                let allocatable = listed && !held;
                if allocatable {
                    *amounts.entry(resource.clone()).or_default() += 1;
                }
                let clients = i32::from(owner.is_some());
                let resource = listed.then_some(resource);
                DeviceState { resource, allocatable, owner, clients, ..DeviceState::default() }
            };
            gpu.mig = Some(MigMode { enabled: *mig, pending: None });
            gpu.whole = (!mig).then(|| device(0, None));
            gpu.instances = instances
                .iter()
                .map(|(start, profile)| InstanceState {
                    start: *start,
                    profile: profile.clone(),
                    gi: *start,
                    ci: Some(0),
                    uuid: None,
                    device: Some(device(*start, Some(profile))),
                })
                .collect();
            let place = |l: &Layout| l.instances.iter().map(|i| (i.start, i.profile.clone())).collect::<BTreeSet<_>>();
            gpu.step = match wanted {
                None => AgentStep::Unmanaged,
                Some(w) if w.mig == *mig && place(&w.layout()) == place(&seen(gpu)) => AgentStep::Steady,
                Some(_) => AgentStep::LeftAlone,
            };
        }
        let mut node = (*self.fleet.nodes["n"]).clone();
        node.status.allocatable = amounts.into_iter().map(|(r, n)| (r, read(json!(n.to_string())))).collect();
        self.fleet.nodes.insert("n".into(), Arc::new(node));
    }

    /// Kubelet brings the `ConfigMap` to the MIG manager.
    pub fn sync(&mut self) {
        self.manager.file = self.fleet.mig_configs.clone();
    }

    /// A reboot takes all instances, and all pods.
    pub fn reboot(&mut self) {
        self.story.push("reboot".into());
        for (_, instances) in &mut self.silicon {
            instances.clear();
        }
        self.pods.clear();
        self.fleet.pods.clear();
        (self.manager.at_work, self.manager.handled) = (None, None);
        // no pod starts on the node before the agent has registered its devices anew
        self.agent();
    }

    /// The MIG manager takes a step.
    pub fn manage(&mut self) {
        if self.manager.dead {
            return;
        }
        if let Some(config) = self.manager.at_work.take() {
            // the program reads its file once more when it applies: by then we may have taken the layout out
            if self.wanted(&config).is_none() {
                return self.end("failed", true);
            }
            match self.manager.faults.pop_front() {
                Some(Fault::Stuck) => {}
                Some(Fault::Failed) => self.end("failed", true),
                Some(Fault::FailedPaused) => self.end("failed", false),
                Some(Fault::Lies) => self.end("success", true),
                Some(Fault::Cleared) => {
                    self.carve(&config, false);
                    self.end("failed", true);
                }
                None => {
                    self.carve(&config, true);
                    self.end("success", true);
                }
            }
            return;
        }
        let Some(label) = self.label(names::MIG_CONFIG_LABEL) else { return };
        if self.manager.handled.as_ref() == Some(&label) {
            return;
        }
        self.manager.handled = Some(label.clone());
        let Some(wanted) = self.wanted(&label) else { return self.end("failed", true) };
        if wanted == self.silicon_shapes() {
            return self.end("success", true);
        }
        self.set_label(names::MIG_STATE_LABEL, "pending");
        self.set_label(LABELS, names::PAUSED);
        self.manager.at_work = Some(label);
    }

    fn end(&mut self, state: &str, start: bool) {
        if start {
            self.set_label(LABELS, "true");
        }
        self.set_label(names::MIG_STATE_LABEL, state);
    }

    fn silicon_shapes(&self) -> Vec<Shape> {
        let shape = |(mig, instances): &(bool, BTreeMap<i32, String>)| {
            let instances = instances.iter().map(|(s, p)| json!({"start": s, "profile": p})).collect::<Vec<_>>();
            Shape::of(&read::<Layout>(json!({"mig": mig, "instances": instances})))
        };
        self.silicon.iter().map(shape).collect()
    }

    fn wanted(&self, name: &str) -> Option<Vec<Shape>> {
        let text: Value = serde_saphyr::from_str(&self.manager.file.render().unwrap()).unwrap();
        let config = text["mig-configs"].get(name)?.as_array()?.clone();
        let mut wanted = vec![Shape::default(), Shape::default()];
        for entry in config {
            for place in entry["devices"].as_array().unwrap() {
                let counts = entry.get("mig-devices").map(|c| read(c.clone())).unwrap_or_default();
                let mig = entry["mig-enabled"].as_bool().unwrap();
                wanted[usize::try_from(place.as_u64().unwrap()).unwrap()] = Shape { mig, counts };
            }
        }
        Some(wanted)
    }

    /// As mig-parted does; nothing that a pod has may go. `create`: it does not fail after it has cleared what was there.
    fn carve(&mut self, name: &str, create: bool) {
        let wanted = self.wanted(name).unwrap();
        let shown = self.silicon_shapes();
        let mode = wanted.iter().zip(&shown).any(|(w, s)| w.mig != s.mig);
        for gpu in 0..2 {
            // these boards are all reset when one of them changes its mode
            if mode || wanted[gpu] != shown[gpu] {
                let alive: Vec<_> = self.pods.iter().filter(|(_, at)| at.0 == gpu).collect();
                assert!(alive.is_empty(), "{alive:?} loses its device: {:#?}", self.story);
                self.silicon[gpu] = (wanted[gpu].mig, if create { place(&wanted[gpu]) } else { BTreeMap::new() });
            }
        }
        let deed = if create { "carved" } else { "cleared for" };
        self.story.push(format!("{deed} {name}: {:?}", self.silicon));
    }

    /// Everybody in turn, for so long as it takes.
    pub fn settle(&mut self) {
        for _ in 0..300 {
            let mut quiet = true;
            for _ in 0..3 {
                self.agent();
                quiet &= !self.operate(usize::MAX);
                self.manage();
            }
            self.sync();
            self.agent();
            quiet &= !self.operate(usize::MAX);
            let run = self.node().spec.mig_manager.as_ref();
            let over = run.is_none_or(|r| r.step == MigManagerStep::GaveUp)
                && self.phases().iter().all(|p| p.is_none_or(|p| p >= ChangePhase::RolledBack));
            // without a pool a change stands still until nobody uses the GPU any more, which may be never
            let let_go = !self.shelf.is_empty() && !is_engaged(self.node(), self.fleet.nodes["n"].labels());
            if quiet && (let_go || (over && self.paused().is_empty())) {
                return;
            }
            // nothing happens by itself any more before some deadline
            let wait = if quiet { SignedDuration::from_mins(3) } else { SignedDuration::from_secs(10) };
            self.now = self.now.checked_add(wait).unwrap();
        }
        let last: Vec<_> = self.story.iter().rev().take(60).collect();
        panic!("it never comes to an end: {:?} {last:#?}", self.phases());
    }

    pub fn paused(&self) -> Vec<String> {
        let labels = self.fleet.nodes["n"].metadata.labels.clone().unwrap();
        labels.into_iter().filter(|(_, v)| v == names::PAUSED).map(|(k, _)| k).collect()
    }

    /// The layout that the label names is the one that is there.
    pub fn label_is_true(&self) -> bool {
        let name = self.label(names::MIG_CONFIG_LABEL).unwrap();
        crate::partitioner::MigConfig::new(&self.shapes()).name() == base(&name)
    }
}

/// Largest first, each at its last free place.
fn place(shape: &Shape) -> BTreeMap<i32, String> {
    let mut taken: BTreeMap<i32, String> = BTreeMap::new();
    let mut profiles: Vec<&String> =
        shape.counts.iter().flat_map(|(p, n)| std::iter::repeat_n(p, usize::try_from(*n).unwrap())).collect();
    profiles.sort_by_key(|p| -size(p));
    for profile in profiles {
        let free = |start: &i32| taken.iter().all(|(s, p)| s + size(p) <= *start || start + size(profile) <= *s);
        let start = starts(profile).into_iter().rev().find(free).expect("room");
        taken.insert(start, profile.clone());
    }
    taken
}
