//! What may happen to a fleet between two decisions.

use gputenancy_crds::{DeviceState, GpuState, projection::SlimPod};

use super::*;
use crate::{liveness::AgentPod, maintenance::Maintenance};

/// Something that happens. Numbers are taken modulo what there is.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// The decision is carried out.
    Settle,
    /// So many seconds pass.
    Time(i64),
    /// A tenant is guaranteed so many devices of a profile.
    Guarantee(usize, usize, i32),
    /// A tenant goes or comes.
    Tenant(usize),
    /// A pod of a tenant takes a device: tenant, node, device.
    PodStarts(usize, usize, usize),
    /// A pod ends.
    PodEnds(usize),
    /// A canary pod ends: which one, and whether it has passed.
    CanaryEnds(usize, bool),
    /// The MIG manager of a node reports a state.
    MigManager(usize, u8),
    /// A pod waits for a node.
    PodWaits(usize),
    /// A pod has a priority, an eviction notice, or a refused eviction.
    PodIs(usize, u8),
    /// A Node, a `GpuNode`, or both go or come.
    Node(usize, u8),
    /// A Node becomes Ready or not Ready.
    Ready(usize),
    /// The agent's pod of a node, or none that is watched.
    Agent(usize, u8),
    /// A GPU becomes unhealthy or healthy.
    Health(usize, usize),
    /// The agent of a node cannot restore a layout.
    Fails(usize),
    /// The agent of a node reports a bypass, a refused resize, a device of a former owner, or no limit of memory.
    Reports(usize, u8),
    /// Labels or taints of a node are edited, an administrator cordons it, or its maintenance is announced.
    Edit(usize, u8),
    /// The spec of a pool is edited.
    Pool(usize, u8),
    /// A pool is deleted, or created.
    PoolGoes(usize),
    /// A profile is edited.
    Profile(usize, u8),
    /// Nodes lag, could not be written, or are being written, as bits.
    Writes(u8, u8),
    /// Published configs are gone.
    Configs,
    /// The operator's remembered mark of a taint.
    Mark(usize),
    /// Another taint is tolerated.
    Tolerated(bool),
}

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        10 => Just(Step::Settle),
        4 => proptest::sample::select(vec![0, 1, 31, 61, 301, 3600]).prop_map(Step::Time),
        4 => (0..3_usize, 0..4_usize, 0..9_i32).prop_map(|(t, p, n)| Step::Guarantee(t, p, n)),
        1 => (0..3_usize).prop_map(Step::Tenant),
        6 => (0..3_usize, 0..4_usize, 0..16_usize).prop_map(|(t, n, d)| Step::PodStarts(t, n, d)),
        3 => (0..16_usize).prop_map(Step::PodEnds),
        1 => (0..3_usize).prop_map(Step::PodWaits),
        2 => (0..4_usize, any::<bool>()).prop_map(|(p, passed)| Step::CanaryEnds(p, passed)),
        2 => (0..4_usize, 0..4_u8).prop_map(|(n, k)| Step::MigManager(n, k)),
        2 => (0..16_usize, 0..4_u8).prop_map(|(p, k)| Step::PodIs(p, k)),
        2 => (0..4_usize, 0..3_u8).prop_map(|(n, k)| Step::Node(n, k)),
        2 => (0..4_usize).prop_map(Step::Ready),
        2 => (0..4_usize, 0..5_u8).prop_map(|(n, k)| Step::Agent(n, k)),
        1 => (0..4_usize, 0..2_usize).prop_map(|(n, g)| Step::Health(n, g)),
        1 => (0..4_usize).prop_map(Step::Fails),
        3 => (0..4_usize, 0..4_u8).prop_map(|(n, k)| Step::Reports(n, k)),
        4 => (0..4_usize, 0..11_u8).prop_map(|(n, k)| Step::Edit(n, k)),
        4 => (0..2_usize, 0..17_u8).prop_map(|(p, k)| Step::Pool(p, k)),
        1 => (0..2_usize).prop_map(Step::PoolGoes),
        1 => (0..4_usize, 0..3_u8).prop_map(|(p, k)| Step::Profile(p, k)),
        2 => (0..16_u8, 0..3_u8).prop_map(|(nodes, k)| Step::Writes(nodes, k)),
        1 => Just(Step::Configs),
        1 => (0..4_usize).prop_map(Step::Mark),
        1 => any::<bool>().prop_map(Step::Tolerated),
    ];
    proptest::collection::vec(step, 1..40)
}

pub fn devices(gpu: &mut GpuState) -> impl Iterator<Item = &mut DeviceState> {
    let instances = gpu.instances.iter_mut().filter_map(|i| i.device.as_mut());
    instances.chain(&mut gpu.whole).chain(gpu.shares.iter_mut().map(|s| &mut s.device))
}

fn pick<T>(all: &[T], at: usize) -> Option<&T> {
    (!all.is_empty()).then(|| &all[at % all.len()])
}

fn toggle<V>(map: &mut BTreeMap<String, V>, key: &str, value: impl FnOnce() -> V) {
    if map.remove(key).is_none() {
        map.insert(key.to_owned(), value());
    }
}

pub fn happen(world: &mut World, step: &Step) {
    let pods: Vec<PodName> = world.fleet.pods.keys().cloned().collect();
    match step {
        Step::Settle => {}
        Step::Time(seconds) => world.now += seconds,
        Step::Guarantee(tenant, profile, count) => {
            let tenants = &mut world.fleet.tenants;
            if let Some(tenant) = tenants.iter_mut().find(|t| t.name_any() == TENANTS[*tenant]) {
                let wanted = json!([{"profile": PROFILES[*profile], "count": count}]);
                Arc::make_mut(tenant).spec.gpus = read(wanted);
            }
        }
        Step::Tenant(at) => {
            let name = TENANTS[*at];
            let before = world.fleet.tenants.len();
            world.fleet.tenants.retain(|t| t.name_any() != name);
            if world.fleet.tenants.len() == before {
                world.fleet.tenants.push(tenant(name));
            }
        }
        Step::PodStarts(tenant, at, device) => pod_starts(world, TENANTS[*tenant], NODES[*at], *device),
        Step::PodEnds(at) => {
            if let Some(pod) = pick(&pods, *at) {
                world.remove_pod(pod);
            }
        }
        Step::CanaryEnds(at, passed) => {
            let canaries: Vec<PodName> = pods.into_iter().filter(|name| &*name.namespace == "home").collect();
            if let Some(name) = pick(&canaries, *at) {
                canary_ends(Arc::make_mut(world.fleet.pods.get_mut(name).unwrap()), *passed);
            }
        }
        Step::PodWaits(tenant) => put_pod(world, TENANTS[*tenant], None, "waits"),
        Step::PodIs(at, what) => {
            if let Some(name) = pick(&pods, *at) {
                pod_is(world, name, *what);
            }
        }
        Step::Node(at, which) => {
            let name = NODES[*at];
            if *which != 1 {
                toggle(&mut world.fleet.nodes, name, || node(name));
            }
            if *which != 0 {
                toggle(&mut world.fleet.gpu_nodes, name, || gpu_node(name));
            }
        }
        Step::Configs => {
            world.fleet.mig_configs = crate::partitioner::MigConfigs::default();
            world.fleet.plugin_configs = crate::plugin::PluginConfigs::default();
        }
        Step::Mark(at) => toggle(&mut world.marks, NODES[*at], || "nvidia.com/gpu=:NoSchedule".to_owned()),
        Step::Tolerated(all) => world.tolerated = if *all { "".parse().unwrap() } else { Tolerated::default() },
        Step::Writes(nodes, which) => {
            let named = NODES.iter().enumerate().filter(|(bit, _)| nodes & (1 << bit) != 0);
            let named = named.map(|(_, name)| (*name).to_owned()).collect();
            *[&mut world.lagging, &mut world.failing, &mut world.writing][usize::from(*which)] = named;
        }
        Step::Reports(at, what) => {
            if let Some(node) = world.fleet.gpu_nodes.get_mut(NODES[*at]) {
                reports(Arc::make_mut(node).status.as_mut().unwrap().gpus.first_mut().unwrap(), *what);
            }
        }
        Step::Ready(..)
        | Step::Agent(..)
        | Step::Health(..)
        | Step::Fails(_)
        | Step::Edit(..)
        | Step::MigManager(..) => {
            node_changes(world, step);
        }
        Step::Pool(at, what) => {
            let count = world.fleet.pools.len();
            if count > 0 {
                edit_pool(&mut world.fleet.pools[at % count], *what);
            }
        }
        Step::PoolGoes(at) => {
            let (name, selector) = [("p", "y"), ("q", "z")][*at];
            match world.fleet.pools.iter_mut().find(|p| p.name_any() == name) {
                Some(pool) => {
                    pool.metadata.deletion_timestamp = Some(Time(Timestamp::from_second(world.now).unwrap()));
                }
                None => world.fleet.pools.push(pool(name, selector)),
            }
        }
        Step::Profile(at, what) => {
            let profile = &mut world.fleet.profiles[*at];
            match what {
                0 => profile.spec.resource_name = Some("gputenancy.io/other".into()),
                1 => profile.spec.resource_name = None,
                _ => profile.spec.products = vec!["NVIDIA H100".into()],
            }
        }
    }
}

fn canary_ends(pod: &mut SlimPod, passed: bool) {
    let end = json!({"terminated": {"exitCode": 1, "reason": "Error", "message": "no device"}});
    let status = if passed {
        json!({"phase": "Succeeded"})
    } else {
        json!({"phase": "Failed", "containerStatuses": [{"name": "canary", "state": end}]})
    };
    pod.status = read(status);
}

fn put_pod(world: &mut World, namespace: &str, node: Option<&str>, name: &str) {
    let requests = json!({"requests": {names::mig_resource("1g.10gb"): "1"}});
    let pod = json!({
        "metadata": {"name": name, "namespace": namespace, "uid": format!("u-{name}")},
        "spec": {"nodeName": node, "containers": [{"resources": requests}]}, "status": {"phase": "Running"},
    });
    world.fleet.pods.insert(PodName { namespace: namespace.into(), name: name.into() }, Arc::new(read(pod)));
}

fn pod_starts(world: &mut World, namespace: &str, node: &str, device: usize) {
    let name = format!("{node}-{device}-{namespace}");
    let Some(gpu_node) = world.fleet.gpu_nodes.get_mut(node) else { return };
    let status = Arc::make_mut(gpu_node).status.as_mut().unwrap();
    let mut free: Vec<_> = status.gpus.iter_mut().flat_map(devices).filter(|d| d.owner.is_none()).collect();
    if free.is_empty() {
        return;
    }
    let at = device % free.len();
    free[at].owner = Some(read(json!({"namespace": namespace, "pod": name, "container": "c"})));
    free[at].clients = 1;
    put_pod(world, namespace, Some(node), &name);
}

fn pod_is(world: &mut World, name: &PodName, what: u8) {
    let pod = Arc::make_mut(world.fleet.pods.get_mut(name).unwrap());
    let now = Timestamp::from_second(world.now).unwrap();
    match what {
        0 => pod.spec.priority = Some(if pod.spec.priority == Some(7) { 0 } else { 7 }),
        1 => {
            let annotations = pod.metadata.annotations.get_or_insert_default();
            toggle(annotations, names::EVICTION_NOTICE, || "1970-01-01T00:00:00Z: why".to_owned());
        }
        2 => pod.metadata.deletion_timestamp = Some(Time(now)),
        _ => {
            let refusal = Refusal { at: now, message: "a budget".into() };
            toggle(&mut world.refusals, &pod.metadata.uid.clone().unwrap(), || refusal);
        }
    }
}

/// What an agent reports of a GPU, or no longer. Facts of shares are of a share that is there in any case.
fn reports(gpu: &mut GpuState, what: u8) {
    if gpu.shares.is_empty() {
        let owner = json!({"namespace": "t", "pod": "n0-0-t", "container": "c"});
        gpu.shares.push(read(json!({"number": 0, "device": {"allocatable": true, "owner": owner}})));
    }
    let share = &mut gpu.shares[0];
    match what {
        0 => {
            let bypass = json!({"uid": "u-n0-0-t", "used": "30Gi", "counted": "0Mi", "limit": "20Gi"});
            share.bypass = share.bypass.is_none().then(|| read(bypass));
        }
        1 => {
            let refused = json!({"memory": "10Gi", "used": "15Gi"});
            share.refused_resize = share.refused_resize.is_none().then(|| read(refused));
        }
        2 => {
            let former = json!({"namespace": "u", "pod": "gone", "container": "c"});
            (share.device.owner, share.device.former_owner) = (None, Some(read(former)));
        }
        _ => gpu.enforcement = gpu.enforcement.is_none().then(|| read(json!("None"))),
    }
}

fn node_changes(world: &mut World, step: &Step) {
    let now = Timestamp::from_second(world.now).unwrap();
    match step {
        Step::Ready(at) => {
            let Some(node) = world.fleet.nodes.get_mut(NODES[*at]) else { return };
            let ready = &mut Arc::make_mut(node).status.conditions[0];
            ready.status = if ready.status == "True" { "False" } else { "True" }.into();
            ready.last_transition_time = Some(Time(now));
        }
        Step::Agent(at, what) => {
            let since = Some(now);
            let pods = world.fleet.agent_pods.get_or_insert_with(|| {
                NODES.iter().map(|n| ((*n).to_owned(), AgentPod::Ready { since: None })).collect()
            });
            let pod = match what {
                0 => AgentPod::Absent { since },
                1 => AgentPod::NotReady { since },
                2 => AgentPod::Terminating { since: None },
                3 => AgentPod::Ready { since },
                _ => {
                    world.fleet.agent_pods = None;
                    return;
                }
            };
            pods.insert(NODES[*at].to_owned(), pod);
        }
        Step::Health(at, gpu) => {
            let Some(node) = world.fleet.gpu_nodes.get_mut(NODES[*at]) else { return };
            let health = &mut Arc::make_mut(node).status.as_mut().unwrap().gpus[*gpu].health;
            let healthy = *health == gputenancy_crds::Health::Healthy;
            *health = read(json!(if healthy { "Unhealthy" } else { "Healthy" }));
        }
        Step::Fails(at) => {
            let Some(node) = world.fleet.gpu_nodes.get_mut(NODES[*at]) else { return };
            let gpu = &mut Arc::make_mut(node).status.as_mut().unwrap().gpus[0];
            (gpu.step, gpu.instances, gpu.whole) = (read(json!("Failed")), Vec::new(), None);
        }
        Step::MigManager(at, what) => {
            let Some(node) = world.fleet.nodes.get_mut(NODES[*at]) else { return };
            let labels = Arc::make_mut(node).metadata.labels.get_or_insert_default();
            let state = ["pending", "success", "failed"].get(usize::from(*what));
            match state {
                Some(state) => drop(labels.insert(names::MIG_STATE_LABEL.to_owned(), (*state).to_owned())),
                None => drop(labels.remove(names::MIG_STATE_LABEL)),
            }
            let gpu_node = world.fleet.gpu_nodes.get_mut(NODES[*at]).filter(|_| state == Some(&"success"));
            if let Some(node) = gpu_node.filter(|node| node.spec.partitioner == Partitioner::MigManager) {
                realize(Arc::make_mut(node), true);
            }
        }
        Step::Edit(at, what) => {
            let name = NODES[*at];
            let Some(node) = world.fleet.nodes.get_mut(name) else { return };
            let node = Arc::make_mut(node);
            let labels = node.metadata.labels.get_or_insert_default();
            match what {
                0 => drop(labels.insert("x".into(), "y".into())),
                1 => drop(labels.insert("x".into(), "z".into())),
                2 => drop(labels.insert("x".into(), "none".into())),
                3 => drop(labels.remove(names::POOL_LABEL)),
                4 => drop(labels.insert(names::LAYOUT_LABEL.into(), "edited".into())),
                5 => toggle(labels, "nvidia.com/mig.config", || "all-1g.10gb".to_owned()),
                6 => toggle(labels, "nvidia.com/gpu.deploy.mig-manager", || "true".to_owned()),
                7 => node.spec.taints.clear(),
                8 => node.spec.unschedulable = !node.spec.unschedulable,
                10 => toggle(&mut world.fleet.maintenance, name, || {
                    vec![Maintenance { name: "m".into(), starts: Some(now) }]
                }),
                _ => {
                    if !world.fleet.dra.remove(name) {
                        world.fleet.dra.insert(name.to_owned());
                    }
                }
            }
        }
        _ => {}
    }
}

fn edit_pool(pool: &mut GpuPool, what: u8) {
    let spec = &mut pool.spec;
    match what {
        0 => spec.partitioner = Partitioner::None,
        1 => spec.partitioner = Partitioner::MigManager,
        2 => (spec.partitioner, spec.advertiser) = (Partitioner::Agent, Advertiser::Agent),
        3 => spec.advertiser = Advertiser::NvidiaDevicePlugin,
        4 => spec.taint = Some(read(json!({"key": "nvidia.com/gpu", "value": "", "effect": "NoSchedule"}))),
        5 => spec.taint = None,
        6 => spec.disruption.windows = read(json!([{"schedule": "0 2 * * *", "duration": "1h", "timeZone": "UTC"}])),
        7 => spec.disruption.windows = Vec::new(),
        8 => spec.rollout = Some(read(json!({"canaryNodes": 1, "soak": "5m"}))),
        9 => spec.rollout = None,
        10 => spec.disruption.max_unavailable = read(json!(2)),
        11 => spec.layout.spare = read(json!({"policy": "Whole"})),
        12 => spec.profiles.push("turns".into()),
        13 => spec.enforcement = read(json!({"onBypass": "Evict"})),
        // with the other pool's nodes: two pools select them
        14 => spec.node_selector = read(json!({"matchExpressions": [{"key": "x", "operator": "Exists"}]})),
        15 => spec.node_selector = read(json!({"matchLabels": {"x": "y"}})),
        _ => spec.verify.canary = Some(read(json!({"image": "registry.example.com/vectoradd:1"}))),
    }
}
