//! Reading `GpuNode` objects: layouts, availability and devices in use of every GPU.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use gputenancy_crds::{
    ChangePhase, DeviceState, GpuNode, GpuPool, GpuPoolSpec, GpuSpec, GpuState, Health, InstanceSpec, Isolation,
    MemoryScrub, Partitioner, ShareMinimum, ShareState, SharingMode, names, slice_of,
};

use super::{
    Cluster, Interner, NodeFacts,
    layout::{is_realized, mig_enabled, plain, seen},
};
use crate::{
    board::BoardGeometry,
    cursor::Cursor,
    ownership::ConflictingOwner,
    problem::Problem,
    snapshot::{Availability, Gpu, InUse, Node, Unlimited},
};
use gputenancy_crds::ids::{GpuUuid, NodeName, PodName, PoolName};

/// The objects of the nodes of the last snapshot, so that only nodes that have changed since are read again.
#[derive(Debug, Default)]
pub(super) struct NodeReader {
    inputs: BTreeMap<NodeName, NodeInput>,
    /// Number of the present reading.
    reading: u64,
    /// Some pod had a priority in the last reading.
    prioritized: bool,
}

/// The objects of one node, apart from the priorities of pods.
#[derive(Debug)]
struct NodeInput {
    /// The object; a changed one is another.
    gpus: Arc<GpuNode>,
    pool: PoolName,
    rules: Rules,
    ready: bool,
    foreign: bool,
    marked: Option<Arc<str>>,
    withdrawn: BTreeMap<String, String>,
    /// Number of the reading that found the node last.
    reading: u64,
}

/// The rules of a pool that the reading of its nodes follows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Rules {
    read_only: bool,
    demanded: ShareMinimum,
}

impl Rules {
    fn of(pool: &GpuPool) -> Self {
        let GpuPoolSpec { partitioner, enforcement, .. } = &pool.spec;
        let demanded = ShareMinimum { minimum: enforcement.minimum, unscrubbed_memory: enforcement.unscrubbed_memory };
        Self { read_only: *partitioner == Partitioner::None, demanded }
    }
}

impl NodeReader {
    /// Brings `nodes`, as this reader left them, up to date with the cluster; true: a node differs.
    pub fn read(
        &mut self,
        (cluster, members): (&Cluster<'_>, &BTreeMap<NodeName, Vec<PoolName>>),
        nodes: &mut BTreeMap<NodeName, Node>,
        interner: &mut Interner,
        problems: &mut Vec<Problem>,
    ) -> bool {
        let name = |p: &GpuPool| PoolName::from(p.metadata.name.clone().unwrap_or_default());
        let pools: BTreeMap<PoolName, Rules> = cluster.pools.iter().map(|p| (name(p), Rules::of(p))).collect();
        let prioritized = !cluster.priorities.is_empty();
        let priorities = std::mem::replace(&mut self.prioritized, prioritized) || prioritized;
        self.reading += 1;
        let mut facts: Vec<&NodeFacts<'_>> = cluster.nodes.iter().collect();
        facts.sort_by_key(|facts| facts.name);
        let mut differs = false;
        let mut members = Cursor::of(members);
        let mut known = self.inputs.iter_mut().peekable();
        let mut read = Vec::new();
        for facts in facts {
            let Some((name, selecting)) = members.entry(facts.name) else { continue };
            let [pool] = selecting.as_slice() else {
                problems.push(Problem::NodeInTwoPools { node: name.clone(), pools: selecting.clone() });
                continue;
            };
            if let Some(ConflictingOwner { by, sign, remedy }) = facts.foreign.clone() {
                problems.push(Problem::ForeignPartitioner { node: name.clone(), pool: pool.clone(), by, sign, remedy });
            }
            let Some(gpus) = facts.gpus else { continue };
            let rules = pools.get(pool).copied().unwrap_or_default();
            let (ready, foreign) = (facts.ready, facts.foreign.is_some());
            while known.next_if(|(known, _)| *known < name).is_some() {}
            if let Some((_, known)) = known.next_if(|(known, _)| *known == name) {
                known.reading = self.reading;
                let same = Arc::ptr_eq(&known.gpus, gpus)
                    && known.pool == *pool
                    && (known.rules, known.ready, known.foreign) == (rules, ready, foreign)
                    && known.marked.as_deref() == facts.marked.as_deref()
                    && is_same(&known.withdrawn, facts);
                if same && (!priorities || nodes.get(name).is_some_and(|node| has_priorities(cluster, node))) {
                    continue;
                }
            }
            let node = node(cluster, facts, gpus, (pool, rules), interner);
            if nodes.get(name) != Some(&node) {
                differs = true;
                nodes.insert(name.clone(), node);
            }
            let (gpus, pool) = (Arc::clone(gpus), pool.clone());
            let marked = facts.marked.as_deref().map(Arc::from);
            let own = |(uuid, why): (&&str, &Cow<'_, str>)| ((*uuid).to_owned(), why.clone().into_owned());
            let withdrawn = facts.withdrawn.iter().map(own).collect();
            let input = NodeInput { gpus, pool, rules, ready, foreign, marked, withdrawn, reading: self.reading };
            read.push((name.clone(), input));
        }
        self.inputs.extend(read);
        self.inputs.retain(|_, input| input.reading == self.reading);
        if self.inputs.len() < nodes.len() {
            differs = true;
            nodes.retain(|name, _| self.inputs.contains_key(name));
        }
        differs
    }
}

/// Whether the same GPUs are withdrawn for the same reasons.
fn is_same(known: &BTreeMap<String, String>, facts: &NodeFacts<'_>) -> bool {
    let found = facts.withdrawn.iter().map(|(uuid, why)| (*uuid, why.as_ref()));
    known.iter().map(|(uuid, why)| (uuid.as_str(), why.as_str())).eq(found)
}

/// Whether the pods of a node have the priorities that were read.
fn has_priorities(cluster: &Cluster<'_>, node: &Node) -> bool {
    let mut used = node.gpus.values().flat_map(|gpu| &gpu.used);
    used.all(|used| {
        let pod = used.pod.as_ref();
        used.priority == priority(cluster, pod.map(|pod| (&*pod.namespace, &*pod.name)))
    })
}

/// Value of the priority class of a pod, by namespace and name.
fn priority(cluster: &Cluster<'_>, pod: Option<(&str, &str)>) -> i32 {
    pod.and_then(|pod| cluster.priorities.get(&pod)).copied().unwrap_or(0)
}

fn node(
    cluster: &Cluster<'_>,
    facts: &NodeFacts<'_>,
    agreement: &GpuNode,
    (pool, Rules { read_only, demanded }): (&PoolName, Rules),
    interner: &mut Interner,
) -> Node {
    let admitted = demanded.unscrubbed_memory.admits(scrub(agreement));
    let (boards, gpus) = read_node(cluster, facts, agreement, (read_only, admitted), interner);
    Node { pool: pool.clone(), boards, gpus, unlimited: unlimited(demanded.minimum, agreement) }
}

/// Whether the driver of a node overwrites freed memory.
fn scrub(node: &GpuNode) -> MemoryScrub {
    node.status.as_ref().and_then(|status| status.memory_scrub).unwrap_or_default()
}

/// Shares that the node cannot limit as its pool demands.
fn unlimited(minimum: Isolation, node: &GpuNode) -> Unlimited {
    let given = node.status.as_ref().and_then(|status| status.enforcement.as_ref());
    let means = |mode: SharingMode| given.map(|given| given.of(mode)).unwrap_or_default();
    let modes = [SharingMode::TimeSlice, SharingMode::Mps, SharingMode::Fraction].map(|mode| (mode, means(mode)));
    let weak: BTreeMap<SharingMode, Isolation> =
        modes.into_iter().filter(|(_, means)| !means.is_at_least(minimum)).collect();
    if weak.is_empty() {
        return Unlimited::default();
    }
    let why = match given {
        Some(given) => given.reason.clone().unwrap_or_default(),
        None => "its agent has not reported what limits shares: wait, or update the agent".to_owned(),
    };
    Unlimited { modes: weak, why }
}

type Read = (Vec<Arc<BoardGeometry>>, BTreeMap<GpuUuid, Gpu>);

fn read_node(
    cluster: &Cluster<'_>,
    facts: &NodeFacts<'_>,
    node: &GpuNode,
    (read_only, admitted): (bool, bool),
    interner: &mut Interner,
) -> Read {
    let Some(status) = &node.status else { return Read::default() };
    let boards = status.boards.iter().map(|b| interner.board(BoardGeometry::from(b))).collect();
    let gpus = status.gpus.iter().map(|state| {
        let spec = node.spec.gpus.iter().find(|g| g.uuid == state.uuid);
        let change = spec.and_then(|s| s.change.as_ref());
        // a change that partitions nothing yet goes no further on a marked node or GPU
        let stays = facts.mark(&state.uuid).is_some() && change.is_some_and(|c| c.phase < ChangePhase::Partitioning);
        let base = match (spec, change) {
            _ if read_only => Some(interner.layout(seen(state))),
            (Some(spec), _) if facts.foreign.is_some() => Some(interner.layout_of(spec)),
            (Some(_), Some(change)) if stays => Some(interner.layout(plain(change.from.clone()))),
            (Some(_), Some(change)) if change.phase < ChangePhase::RollingBack => {
                Some(interner.layout(plain(change.to.clone())))
            }
            (Some(_), Some(change)) if change.phase == ChangePhase::RollingBack => {
                Some(interner.layout(plain(change.from.clone())))
            }
            (Some(spec), _) => Some(interner.layout_of(spec)),
            (None, _) => mig_enabled(state).then(|| interner.layout(seen(state))),
        };
        let gpu = Gpu {
            index: state.index,
            board: usize::try_from(state.board).unwrap_or(usize::MAX),
            base,
            availability: if admitted { availability(facts, spec, state, interner) } else { UNSCRUBBED },
            changing: !stays && change.is_some_and(|c| c.phase <= ChangePhase::RollingBack),
            used: devices_in_use(cluster, spec, state, interner),
        };
        (GpuUuid::from(state.uuid.as_str()), gpu)
    });
    (boards, gpus.collect())
}

/// A GPU of a node whose driver leaves freed memory as it is, in a pool that refuses such nodes.
const UNSCRUBBED: Availability =
    Availability::Unavailable("its driver leaves freed memory as it is (condition MemoryScrubbed of the GpuNode)");

fn availability(
    facts: &NodeFacts<'_>,
    spec: Option<&GpuSpec>,
    state: &GpuState,
    interner: &mut Interner,
) -> Availability {
    use ChangePhase::{Canary, Partitioning, RolledBack, RollingBack, Stuck, Verifying};
    let change = spec.and_then(|s| s.change.as_ref());
    let (phase, mark) = (change.map(|c| c.phase), facts.mark(&state.uuid));
    match (state.health, phase) {
        (Health::Lost, _) => Availability::Unavailable("NVML lost it"),
        (Health::Unhealthy, _) => Availability::Unavailable("it is unhealthy"),
        _ if !facts.ready => Availability::Unavailable("the Node is not Ready, or its agent does not report"),
        (_, Some(Stuck)) if mark.is_none() && facts.foreign.is_none() && !is_realized(spec, state) => {
            change.map_or(Availability::Free, |c| Availability::Broken(interner.layout(plain(c.to.clone()))))
        }
        // instances that exist may stay in use; missing ones come back when their owner creates them
        _ if facts.foreign.is_some() && !is_realized(spec, state) => {
            Availability::Unavailable("another component partitions its node")
        }
        _ if mark.is_some() => Availability::Marked(interner.text(mark.unwrap_or_default())),
        _ if facts.foreign.is_some() => Availability::Frozen,
        (_, Some(Partitioning | Canary | Verifying | RollingBack)) => Availability::Frozen,
        (_, Some(RolledBack | Stuck)) => {
            change.map_or(Availability::Free, |c| Availability::Failed(interner.layout(plain(c.to.clone()))))
        }
        _ => Availability::Free,
    }
}

fn devices_in_use(
    cluster: &Cluster<'_>,
    spec: Option<&GpuSpec>,
    state: &GpuState,
    interner: &mut Interner,
) -> Vec<InUse> {
    let held = |start: i32| state.holders.iter().any(|h| h.start.unwrap_or(start) == start);
    let mut in_use = |d: &DeviceState, (start, share): (i32, bool), profile: Option<&str>, resource: &str| {
        let owner = d.owner.as_ref();
        let priority = priority(cluster, owner.map(|o| (&*o.namespace, &*o.pod)));
        InUse {
            start,
            share,
            profile: profile.map(|p| interner.text(p)),
            resource: interner.text(resource),
            pod: owner.map(|o| PodName { namespace: interner.text(&o.namespace), name: o.pod.clone() }),
            unattributed: owner.is_none() && held(start),
            priority,
            memory: None,
        }
    };
    let busy = |d: &DeviceState, start: i32| d.owner.is_some() || d.clients > 0 || held(start);
    let mut used = Vec::new();
    if let Some(whole) = state.whole.as_ref().filter(|w| busy(w, 0)) {
        let named = whole.resource.as_deref().or_else(|| spec.and_then(|s| s.resource.as_deref()));
        used.push(in_use(whole, (0, false), None, named.unwrap_or(names::WHOLE_GPU_RESOURCE)));
    }
    let exclusive = state.instances.iter().filter_map(|i| Some((i, i.device.as_ref()?)));
    for (i, device) in exclusive.filter(|(i, device)| busy(device, i.start)) {
        let listed = spec.and_then(|s| s.exclusive(i.start, &i.profile));
        let named = device.resource.clone().or_else(|| listed.map(InstanceSpec::resource_name));
        let resource = named.unwrap_or_else(|| names::mig_resource(&i.profile));
        used.push(in_use(device, (i.start, false), Some(&i.profile), &resource));
    }
    // a process on the whole GPU is on no share of its own: owners and clients show who uses one
    // a process on an instance without an owner is on the first of its time-slices
    let mig = mig_enabled(state);
    let unowned = |start: i32| {
        let mut slices = state.shares.iter().filter(|s| slice_of(s.number).0 == start);
        slices.all(|s| s.device.owner.is_none())
    };
    let strange = |number: i32| mig && slice_of(number) == (number, 0) && held(number) && unowned(number);
    let busy = |s: &&ShareState| s.device.owner.is_some() || s.device.clients > 0 || strange(s.number);
    for share in state.shares.iter().filter(busy) {
        let listed = || spec.and_then(|s| s.share_resource(share.number));
        let Some(named) = share.device.resource.clone().or_else(listed) else { continue };
        let start = slice_of(share.number).0;
        let instance = state.instances.iter().find(|i| mig && i.start == start);
        let memory = share.memory.as_ref().and_then(|memory| memory.mib().ok());
        let found = in_use(&share.device, (share.number, true), instance.map(|i| i.profile.as_str()), &named);
        used.push(InUse { memory, ..found });
    }
    // a start that NVML shows twice counts once
    used.sort_by_key(|u| (u.start, u.share));
    used.dedup_by_key(|u| (u.start, u.share));
    used
}
