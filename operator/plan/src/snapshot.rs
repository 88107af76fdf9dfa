//! From the cluster's objects to the planner's picture of them: total, and what makes no sense becomes a problem.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{
    self as crds, ChangePhase, GpuNode, GpuPool, GpuProfile, Guarantee, Health, Layout, TenantNamespace, Trust, names,
};
use kube::{
    ResourceExt,
    core::{Selector, SelectorExt},
};
use litemap::LiteMap;

use super::{
    board::Board,
    foreign::Foreign,
    model::{Fixed, Gpu, InUse, Mode, Node, Pool, Profile, Shape, Snapshot, Spare, Standing, Tenant},
    name::{GpuUuid, NodeName, PodName, PoolName, ProfileName, TenantName},
    problem::Problem,
    share::Sharing,
};

/// Values of priority classes by the pod's namespace and name.
type Priorities<'a> = BTreeMap<(&'a str, &'a str), i32>;

/// A node as the cluster shows it.
#[derive(Clone, Debug)]
pub struct NodeFacts<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
    /// Node and agent are there, so that what they say can be acted on.
    pub ready: bool,
    /// Somebody else who owns its GPUs: they are left as they are.
    pub foreign: Option<Foreign>,
    /// The agreement about its GPUs, once its agent has written it.
    pub gpus: Option<&'a GpuNode>,
}

/// A tenant, as far as a plan is made from it.
#[derive(Clone, Copy, Debug)]
pub struct TenantFacts<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its namespaces.
    pub namespaces: &'a [TenantNamespace],
    /// How far it is trusted.
    pub trust: Trust,
    /// Rank of its guarantees.
    pub priority: i32,
    /// Its guarantees.
    pub gpus: &'a [Guarantee],
}

/// The cluster's objects, in any order.
#[derive(Clone, Debug, Default)]
pub struct Cluster<'a> {
    /// Every `GpuProfile`.
    pub profiles: Vec<&'a GpuProfile>,
    /// Every `GpuPool`.
    pub pools: Vec<&'a GpuPool>,
    /// Every `GpuTenant`.
    pub tenants: Vec<TenantFacts<'a>>,
    /// Every node that a pool could select.
    pub nodes: Vec<NodeFacts<'a>>,
    /// Values of the pods' priority classes, by namespace and name; a pod that is not listed has 0.
    pub priorities: Priorities<'a>,
}

/// Pools that select each node, sorted; nodes that no pool selects are left out. A node belongs to a pool when there is one.
pub fn membership<'a>(
    pools: &[&GpuPool],
    nodes: impl IntoIterator<Item = (&'a str, &'a BTreeMap<String, String>)>,
) -> BTreeMap<NodeName, Vec<PoolName>> {
    let selectors: BTreeMap<PoolName, Selector> = pools
        .iter()
        .filter_map(|p| Some((PoolName::from(p.name_any()), Selector::try_from(p.spec.node_selector.clone()).ok()?)))
        .collect();
    let mut members = BTreeMap::new();
    for (node, labels) in nodes {
        let by: Vec<PoolName> =
            selectors.iter().filter(|(_, s)| !s.selects_all() && s.matches(labels)).map(|(p, _)| p.clone()).collect();
        if !by.is_empty() {
            members.insert(NodeName::from(node), by);
        }
    }
    members
}

/// Extended resource of a profile: as written, or the name that NVIDIA's plugin gives. A MIG request by size has a name of
/// its own, because boards resolve it to different instances.
pub fn resource_name(name: &str, spec: &crds::GpuProfileSpec) -> String {
    let default = || match &spec.device {
        crds::Device { whole: Some(_), .. } => names::WHOLE_GPU_RESOURCE.to_owned(),
        crds::Device { mig: Some(crds::Mig { profile: Some(profile), .. }), .. } => names::mig_resource(profile),
        _ => names::own_resource(name),
    };
    spec.resource_name.clone().unwrap_or_else(default)
}

/// Least trusted tenant that may use a profile.
pub fn trust_needed(spec: &crds::GpuProfileSpec) -> Trust {
    let exclusive = spec.device.whole.is_some() || spec.device.mig.is_some();
    spec.trust.unwrap_or(if exclusive { Trust::Untrusted } else { Trust::Internal })
}

impl Snapshot {
    /// Reads the cluster, and says what in it makes no sense.
    pub fn read(cluster: &Cluster<'_>) -> (Self, Vec<Problem>) {
        let mut sharing = Sharing::default();
        let (mut read, problems) = Self::read_supply(cluster, &mut sharing);
        read.tenants.extend(cluster.tenants.iter().map(|t| read_tenant(t, &mut sharing)));
        (read, problems)
    }

    /// As [`Self::read`], without any tenant.
    pub(super) fn read_supply(cluster: &Cluster<'_>, sharing: &mut Sharing) -> (Self, Vec<Problem>) {
        let mut problems = Vec::new();
        let profiles = read_profiles(&cluster.profiles, sharing, &mut problems);
        let pools = cluster.pools.iter().map(|p| (sharing.text(&p.name_any()), read_pool(p, &mut problems))).collect();
        let nodes = read_nodes(cluster, sharing, &mut problems);
        problems.sort();
        problems.dedup();
        (Self { profiles, pools, tenants: BTreeMap::new(), nodes }, problems)
    }
}

fn read_profiles(
    profiles: &[&GpuProfile],
    sharing: &mut Sharing,
    problems: &mut Vec<Problem>,
) -> BTreeMap<ProfileName, Profile> {
    let mut by_age: Vec<_> = profiles.to_vec();
    by_age.sort_by_key(|p| (p.metadata.creation_timestamp.as_ref().map(|t| t.0), p.name_any()));
    let mut taken: BTreeMap<String, ProfileName> = BTreeMap::new();
    let mut read = BTreeMap::new();
    for profile in by_age {
        let name: ProfileName = sharing.text(&profile.name_any());
        let resource = resource_name(name.as_str(), &profile.spec);
        if let Some(by) = taken.get(&resource) {
            problems.push(Problem::ResourceTaken { profile: name, resource, by: by.clone() });
            continue;
        }
        let shape = match shape(&profile.spec.device) {
            Ok(shape) => shape,
            Err(what) => {
                problems.push(Problem::Unreadable { object: format!("GpuProfile {name}"), what });
                continue;
            }
        };
        if let Shape::Shared(kind) = shape {
            problems.push(Problem::ProfileNotServed { profile: name.clone(), kind });
        }
        taken.insert(resource.clone(), name.clone());
        let products = profile.spec.products.iter().cloned().collect();
        read.insert(name, Profile { shape, products, resource, trust: trust_needed(&profile.spec) });
    }
    read
}

fn shape(device: &crds::Device) -> Result<Shape, String> {
    Ok(match device {
        crds::Device { whole: Some(_), .. } => Shape::Whole,
        crds::Device { mig: Some(crds::Mig { profile: Some(name), .. }), .. } => Shape::Named(name.clone()),
        crds::Device { mig: Some(crds::Mig { slices, memory, .. }), .. } => {
            let memory = memory.as_ref().map_or(Ok(0), crds::MemoryText::mib);
            Shape::AtLeast {
                slices: slices.unwrap_or(1),
                memory: memory.map_err(|e| format!("spec.device.mig.memory: {e}"))?,
            }
        }
        crds::Device { time_slice: Some(_), .. } => Shape::Shared("timeSlice"),
        crds::Device { mps: Some(_), .. } => Shape::Shared("mps"),
        crds::Device { fraction: Some(_), .. } => Shape::Shared("fraction"),
        _ => return Err("spec.device: write exactly one of whole, mig, timeSlice, mps, fraction".into()),
    })
}

fn read_pool(pool: &GpuPool, problems: &mut Vec<Problem>) -> Pool {
    let mut unreadable =
        |what: String| problems.push(Problem::Unreadable { object: format!("GpuPool {}", pool.name_any()), what });
    if let Err(error) = Selector::try_from(pool.spec.node_selector.clone()) {
        unreadable(format!("spec.nodeSelector: {error}"));
    }
    let layout = &pool.spec.layout;
    let mode = match layout.mode {
        crds::LayoutMode::Demand => Mode::Demand,
        crds::LayoutMode::Fixed => Mode::Fixed(
            layout
                .fixed
                .iter()
                .filter_map(|fixed| match indices(&fixed.gpus) {
                    Ok(indices) => Some(Fixed {
                        text: fixed.gpus.clone(),
                        indices,
                        counts: fixed.profiles.iter().fold(BTreeMap::new(), |mut counts, p| {
                            *counts.entry(p.name.as_str().into()).or_default() += u32::try_from(p.count).unwrap_or(0);
                            counts
                        }),
                    }),
                    Err(what) => {
                        unreadable(what);
                        None
                    }
                })
                .collect(),
        ),
    };
    let spare = match (layout.spare.policy, &layout.spare.profile) {
        (crds::SparePolicy::Whole, _) => Spare::Whole,
        (crds::SparePolicy::Fill, Some(profile)) => Spare::Fill(profile.as_str().into()),
        (crds::SparePolicy::Keep | crds::SparePolicy::Fill, _) => Spare::Keep,
    };
    Pool {
        profiles: pool.spec.profiles.iter().map(|p| p.as_str().into()).collect(),
        mode,
        spare,
        read_only: pool.spec.partitioner == crds::Partitioner::None,
        by_plugin: pool.spec.advertiser == crds::Advertiser::NvidiaDevicePlugin,
        allow_outage: pool.spec.disruption.allow_outage,
    }
}

/// Reads `*`, `0`, `0-3` or `0,2,4-7`; `None` is all.
fn indices(text: &str) -> Result<Option<BTreeSet<i32>>, String> {
    if text == "*" {
        return Ok(None);
    }
    let mut set = BTreeSet::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        match (first.parse::<u8>(), last.parse::<u8>()) {
            (Ok(first), Ok(last)) if first <= last => set.extend(i32::from(first)..=i32::from(last)),
            _ => return Err(format!("spec.layout.fixed: \"{text}\" names no GPUs, write it like 0-3, 0,2 or *")),
        }
    }
    Ok(Some(set))
}

/// Does this tenant still ask for what was read of it? It costs no room, unlike to read it again.
pub(super) fn is_as_read(tenant: &Tenant, facts: &TenantFacts<'_>) -> bool {
    let Tenant { namespaces, trust, priority, guarantees } = tenant;
    // each is there once in what was read: as many of them, and all of them, are the same
    let counts = |profile: &ProfileName, count: u32| {
        facts.gpus.iter().any(|g| g.profile == profile.as_str() && u32::try_from(g.count).unwrap_or(0) == count)
    };
    *trust == facts.trust
        && *priority == facts.priority.clamp(-5, 5)
        && namespaces.len() == facts.namespaces.len()
        && namespaces.iter().all(|name| facts.namespaces.iter().any(|n| *n.name == **name))
        && guarantees.len() == facts.gpus.len()
        && guarantees.iter().all(|(profile, count)| counts(profile, *count))
}

/// Reads a tenant. Its own names are shared with its pods at most, so that nobody has to remember them.
pub(super) fn read_tenant(tenant: &TenantFacts<'_>, sharing: &mut Sharing) -> (TenantName, Tenant) {
    let mut own = Sharing::default();
    let guarantees = tenant.gpus.iter().fold(LiteMap::new(), |mut sums, g| {
        *sums.entry(sharing.text(&g.profile)).or_default() += u32::try_from(g.count).unwrap_or(0);
        sums
    });
    let namespaces: BTreeSet<_> = tenant.namespaces.iter().map(|n| own.text_beside(sharing, &n.name)).collect();
    let read = Tenant {
        namespaces: namespaces.into_iter().collect(),
        trust: tenant.trust,
        priority: tenant.priority.clamp(-5, 5),
        guarantees,
    };
    (own.text_beside(sharing, tenant.name), read)
}

fn read_nodes(cluster: &Cluster<'_>, sharing: &mut Sharing, problems: &mut Vec<Problem>) -> BTreeMap<NodeName, Node> {
    let members = membership(&cluster.pools, cluster.nodes.iter().map(|n| (n.name, n.labels)));
    let mut nodes = BTreeMap::new();
    for facts in &cluster.nodes {
        let name = NodeName::from(facts.name);
        let pools = members.get(&name).map(Vec::as_slice);
        if let (Some([pool]), Some(Foreign { by, sign, remedy })) = (pools, &facts.foreign) {
            let (sign, remedy) = (sign.clone(), remedy.clone());
            problems.push(Problem::ForeignPartitioner { node: name.clone(), pool: pool.clone(), by, sign, remedy });
        }
        match (pools, facts.gpus) {
            (Some([pool]), Some(gpus)) => {
                let found = cluster.pools.iter().find(|p| p.name_any() == pool.as_str());
                let read_only = found.is_some_and(|p| p.spec.partitioner == crds::Partitioner::None);
                let node = read_node(pool.clone(), facts, read_only, (gpus, &cluster.priorities), sharing);
                nodes.insert(name, node);
            }
            (Some(pools @ [_, _, ..]), _) => {
                problems.push(Problem::NodeInTwoPools { node: name, pools: pools.to_vec() });
            }
            _ => {}
        }
    }
    nodes
}

fn read_node(
    pool: PoolName,
    facts: &NodeFacts<'_>,
    read_only: bool,
    (node, priorities): (&GpuNode, &Priorities<'_>),
    sharing: &mut Sharing,
) -> Node {
    let Some(status) = &node.status else { return Node { pool, ..Node::default() } };
    let boards = status.boards.iter().map(|b| sharing.board(Board::from(b))).collect();
    let gpus = status
        .gpus
        .iter()
        .map(|state| {
            let spec = node.spec.gpus.iter().find(|g| g.uuid == state.uuid);
            let mut gpu = read_gpu(facts, spec, state, priorities, sharing);
            if read_only {
                gpu.base = Some(sharing.layout(seen(state)));
            }
            (GpuUuid::from(state.uuid.as_str()), gpu)
        })
        .collect();
    Node { pool, boards, gpus }
}

fn read_gpu(
    facts: &NodeFacts<'_>,
    spec: Option<&crds::GpuSpec>,
    state: &crds::GpuState,
    priorities: &Priorities<'_>,
    sharing: &mut Sharing,
) -> Gpu {
    let change = spec.and_then(|s| s.change.as_ref());
    let phase = change.map(|c| c.phase);
    let standing = match (state.health, phase) {
        (Health::Lost, _) => Standing::Away("NVML lost it"),
        (Health::Unhealthy, _) => Standing::Away("it is unhealthy"),
        _ if !facts.ready => Standing::Away("its node is not ready"),
        (_, Some(ChangePhase::Stuck)) if !there(spec, state) => Standing::Away("its layout cannot be restored"),
        // what is there may stay in use; what is not there comes back when its owner says so
        _ if facts.foreign.is_some() && !there(spec, state) => Standing::Away("somebody else carves its node"),
        _ if facts.foreign.is_some() => Standing::Frozen,
        (
            _,
            Some(
                ChangePhase::Partitioning
                | ChangePhase::Trying
                | ChangePhase::Verifying
                | ChangePhase::RollingBack
                | ChangePhase::Stuck,
            ),
        ) => Standing::Frozen,
        (_, Some(ChangePhase::RolledBack)) => {
            change.map_or(Standing::Free, |c| Standing::Failed(sharing.layout(plain(c.to.clone()))))
        }
        _ => Standing::Free,
    };
    let base = match (spec, change) {
        (Some(spec), _) if facts.foreign.is_some() => Some(spec.layout()),
        (Some(_), Some(change)) if change.phase < ChangePhase::RollingBack => Some(change.to.clone()),
        (Some(_), Some(change)) if change.phase == ChangePhase::RollingBack => Some(change.from.clone()),
        (Some(spec), _) => Some(spec.layout()),
        (None, _) if state.mig.is_some_and(|m| m.enabled) => Some(seen(state)),
        (None, _) => None,
    };
    Gpu {
        index: state.index,
        board: usize::try_from(state.board).unwrap_or(usize::MAX),
        base: base.map(|layout| sharing.layout(plain(layout))),
        standing,
        moving: phase.is_some_and(|p| p <= ChangePhase::RollingBack),
        used: devices_in_use(spec, state, priorities, sharing),
    }
}

/// Does NVML show the instances that the spec lists?
fn there(spec: Option<&crds::GpuSpec>, state: &crds::GpuState) -> bool {
    let listed = spec.iter().flat_map(|s| &s.instances).map(|i| (i.start, &i.profile));
    let shown: BTreeSet<_> = state.instances.iter().map(|i| (i.start, &i.profile)).collect();
    let mig = state.mig.is_some_and(|m| m.enabled);
    spec.is_some_and(|s| s.mig == mig) && listed.collect::<BTreeSet<_>>() == shown
}

/// The layout that NVML shows.
pub fn seen(state: &crds::GpuState) -> Layout {
    let mig = state.mig.is_some_and(|m| m.enabled);
    let instances = state.instances.iter().map(|i| crds::InstanceSpec {
        start: i.start,
        profile: i.profile.clone(),
        resource: i.device.resource.clone(),
    });
    let resource = state.whole.as_ref().and_then(|w| w.resource.clone());
    plain(Layout { mig, instances: instances.collect(), resource })
}

/// The one spelling of a layout: sorted, and resources left out where they are the default or a canary's, which lasts for a moment.
pub fn plain(mut layout: Layout) -> Layout {
    let lasts = |r: &String| !names::is_canary_resource(r);
    for instance in &mut layout.instances {
        instance.resource =
            instance.resource.take().filter(|r| lasts(r) && *r != names::mig_resource(&instance.profile));
    }
    layout.instances.sort();
    layout.resource = layout.resource.filter(|r| !layout.mig && lasts(r) && r != names::WHOLE_GPU_RESOURCE);
    layout
}

fn devices_in_use(
    spec: Option<&crds::GpuSpec>,
    state: &crds::GpuState,
    priorities: &Priorities<'_>,
    sharing: &mut Sharing,
) -> Vec<InUse> {
    let held = |start: i32| state.holders.iter().any(|h| h.start.unwrap_or(start) == start);
    let mut in_use = |d: &crds::DeviceState, start: i32, profile: Option<&str>, resource: &str| {
        let owner = d.owner.as_ref();
        let priority = owner.and_then(|o| priorities.get(&(&*o.namespace, &*o.pod))).copied();
        InUse {
            start,
            profile: profile.map(|p| sharing.text(p)),
            resource: sharing.text(resource),
            pod: owner.map(|o| PodName { namespace: sharing.text(&o.namespace), name: o.pod.clone() }),
            stranger: owner.is_none() && held(start),
            priority: priority.unwrap_or(0),
        }
    };
    let busy = |d: &crds::DeviceState, start: i32| d.owner.is_some() || d.clients > 0 || held(start);
    let mut used = Vec::new();
    if let Some(whole) = state.whole.as_ref().filter(|w| busy(w, 0)) {
        let named = whole.resource.as_deref().or_else(|| spec.and_then(|s| s.resource.as_deref()));
        used.push(in_use(whole, 0, None, named.unwrap_or(names::WHOLE_GPU_RESOURCE)));
    }
    for i in state.instances.iter().filter(|i| busy(&i.device, i.start)) {
        let listed = spec.and_then(|s| s.instances.iter().find(|l| l.start == i.start && l.profile == i.profile));
        let named = i.device.resource.clone().or_else(|| listed.map(crds::InstanceSpec::resource_name));
        let resource = named.unwrap_or_else(|| names::mig_resource(&i.profile));
        used.push(in_use(&i.device, i.start, Some(&i.profile), &resource));
    }
    // a start that NVML shows twice counts once
    used.sort_by_key(|u| u.start);
    used.dedup_by_key(|u| u.start);
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_is_as_read_while_it_asks_for_the_same_in_whatever_order() {
        let names = |names: &[&str]| -> Vec<TenantNamespace> {
            names.iter().map(|n| TenantNamespace { name: (*n).into(), adopt: false }).collect()
        };
        let counts = |counts: &[(&str, i32)]| -> Vec<Guarantee> {
            counts.iter().map(|(profile, count)| Guarantee { profile: (*profile).into(), count: *count }).collect()
        };
        let same = |spaces: &[&str], gpus: &[(&str, i32)], trust, priority| {
            let (spaces, gpus) = (names(spaces), counts(gpus));
            let facts =
                |namespaces, gpus, trust, priority| TenantFacts { name: "t", namespaces, trust, priority, gpus };
            let (before, wanted) = (names(&["a", "b"]), counts(&[("x", 1), ("y", 0)]));
            let before = facts(&before, &wanted, Trust::Trusted, 5);
            let (_, read) = read_tenant(&before, &mut Sharing::default());
            let now = facts(&spaces, &gpus, trust, priority);
            let as_read = is_as_read(&read, &now);
            assert_eq!(as_read, read_tenant(&now, &mut Sharing::default()).1 == read, "{now:?}");
            as_read
        };
        let (spaces, gpus): (&[&str], &[(&str, i32)]) = (&["a", "b"], &[("x", 1), ("y", 0)]);
        assert!(same(spaces, gpus, Trust::Trusted, 5));
        assert!(same(&["b", "a"], &[("y", -1), ("x", 1)], Trust::Trusted, 7), "out of range is the end of it");
        for others in [&["a"][..], &["a", "a"], &["a", "c"], &["a", "b", "c"]] {
            assert!(!same(others, gpus, Trust::Trusted, 5));
        }
        for others in [&[("x", 1)][..], &[("x", 1), ("x", 0)], &[("x", 2), ("y", 0)], &[("x", 1), ("y", 0), ("z", 0)]] {
            assert!(!same(spaces, others, Trust::Trusted, 5));
        }
        assert!(!same(spaces, gpus, Trust::Untrusted, 5) && !same(spaces, gpus, Trust::Trusted, 4));
    }
}
