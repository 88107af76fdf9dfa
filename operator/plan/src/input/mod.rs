//! From the cluster's objects to the planner's snapshot. Reading never fails: what is invalid becomes a problem.
//!
//! `profiles`, `pools` and `nodes` read one kind each; `selector` decides which pool a node belongs to. `layout` brings layouts into
//! one form, so that equal ones compare equal. `interner` keeps one copy of equal values.

mod interner;
mod layout;
mod nodes;
mod pools;
mod profiles;
mod selector;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gputenancy_crds::{
    GpuNode, GpuPool, GpuProfile, Guarantee, QueueingSystem, TenantNamespace, Trust, quantity::Amount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use self::nodes::NodeReader;
pub use self::{
    interner::Interner,
    layout::{has_layout, plain, seen},
    profiles::{resource_name, trust_needed},
    selector::membership,
};
use crate::{
    board::PARTS,
    ownership::ConflictingOwner,
    problem::Problem,
    snapshot::{Snapshot, Tenant},
};
use gputenancy_crds::ids::{NodeName, PoolName, TenantName};

/// A node as the cluster shows it.
#[derive(Clone, Debug)]
pub struct NodeFacts<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
    /// Node and agent are ready: their status is current.
    pub ready: bool,
    /// Another owner of its GPUs: the plan leaves them unchanged.
    pub foreign: Option<ConflictingOwner>,
    /// The verdict of other products about it, as a clause such as `it is cordoned`: it takes no new demand. `None`: nothing.
    pub marked: Option<Cow<'a, str>>,
    /// The verdicts of other products about single GPUs of it, by UUID, as a clause: such a GPU takes no new demand, and the others are as they were.
    pub withdrawn: BTreeMap<&'a str, Cow<'a, str>>,
    /// Its `GpuNode`, once the agent has written it; a changed one is another object.
    pub gpus: Option<&'a Arc<GpuNode>>,
}

impl NodeFacts<'_> {
    /// The verdict of other products about the node, or about this GPU of it.
    fn mark(&self, uuid: &str) -> Option<&str> {
        self.marked.as_deref().or_else(|| self.withdrawn.get(uuid).map(Cow::as_ref))
    }
}

/// The facts about a tenant that the planner needs.
#[derive(Clone, Debug)]
pub struct TenantFacts<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its namespaces.
    pub namespaces: &'a [TenantNamespace],
    /// Those of them that exist and are not its own, with the tenant that has each. A tenant without any other can run no pod, so its
    /// guarantees do not count.
    pub refused: BTreeMap<&'a str, Option<&'a str>>,
    /// How far it is trusted.
    pub trust: Trust,
    /// It accepts what shares of a GPU do not isolate: `spec.sharing`.
    pub acknowledged: bool,
    /// Rank of its guarantees.
    pub priority: i32,
    /// Its guarantees.
    pub gpus: &'a [Guarantee],
    /// Its cap over all profiles, in whole GPUs: `spec.gpuEquivalents`.
    pub equivalents: Option<&'a str>,
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
    pub priorities: BTreeMap<(&'a str, &'a str), i32>,
}

impl Snapshot {
    /// Reads the cluster, and reports what in it is invalid.
    pub fn read(cluster: &Cluster<'_>) -> (Self, Vec<Problem>) {
        let mut snapshot = Self::default();
        let members = membership(&cluster.pools, cluster.nodes.iter().map(|n| (n.name, n.labels)));
        let (_, problems) = Reader::default().read(cluster, &members, &mut snapshot);
        (snapshot, problems)
    }
}

/// The objects of the last snapshot, so that only nodes that have changed since are read again.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    interner: Interner,
    nodes: NodeReader,
}

impl Reader {
    /// Brings the snapshot, as this reader left it, up to date with the cluster. Answers whether it differs, and what in the cluster is
    /// invalid. `members` is the [`membership`] of the cluster's nodes.
    pub fn read(
        &mut self,
        cluster: &Cluster<'_>,
        members: &BTreeMap<NodeName, Vec<PoolName>>,
        snapshot: &mut Snapshot,
    ) -> (bool, Vec<Problem>) {
        let (Self { interner, nodes }, mut problems) = (self, Vec::new());
        let (profiles, refused) = profiles::read(cluster, interner, &mut problems);
        let name = |p: &GpuPool| p.metadata.name.clone().unwrap_or_default().into();
        let pools = cluster.pools.iter().map(|p| (name(p), pools::read(p, &mut problems))).collect();
        let queued = queued(&cluster.pools);
        let tenants = cluster.tenants.iter().map(|t| read_tenant(t, &queued, interner, &mut problems)).collect();
        let mut differs = nodes.read((cluster, members), &mut snapshot.nodes, interner, &mut problems);
        let several = members.iter().filter(|(_, pools)| pools.len() > 1);
        let overlaps = several.map(|(node, pools)| (node.clone(), pools.clone())).collect();
        differs |= update(&mut snapshot.profiles, profiles);
        differs |= update(&mut snapshot.refused, refused);
        differs |= update(&mut snapshot.pools, pools);
        differs |= update(&mut snapshot.tenants, tenants);
        differs |= update(&mut snapshot.overlaps, overlaps);
        if differs {
            interner.forget_unused();
        }
        problems.sort();
        problems.dedup();
        (differs, problems)
    }
}

/// Replaces a value by a new one; true: it differs.
fn update<T: PartialEq>(old: &mut T, new: T) -> bool {
    let differs = *old != new;
    if differs {
        *old = new;
    }
    differs
}

/// Profiles of which every pool that offers them has queues, so that what is borrowed is reclaimed.
fn queued<'a>(pools: &[&'a GpuPool]) -> BTreeSet<&'a str> {
    let offered = |queued: bool| {
        let pools = pools.iter().filter(move |p| (p.spec.queueing.system != QueueingSystem::None) == queued);
        pools.flat_map(|p| p.spec.profiles.iter().map(String::as_str)).collect::<BTreeSet<_>>()
    };
    &offered(true) - &offered(false)
}

fn read_tenant(
    tenant: &TenantFacts<'_>,
    queued: &BTreeSet<&str>,
    interner: &mut Interner,
    problems: &mut Vec<Problem>,
) -> (TenantName, Tenant) {
    let own = tenant.namespaces.iter().filter(|n| !tenant.refused.contains_key(n.name.as_str()));
    let namespaces: BTreeSet<Arc<str>> = own.map(|n| interner.text(&n.name)).collect();
    let served = !namespaces.is_empty() || tenant.refused.is_empty();
    problems.extend(tenant.refused.iter().map(|(namespace, owner)| Problem::NamespaceConflict {
        tenant: tenant.name.into(),
        namespace: (*namespace).to_owned(),
        owner: owner.map(Into::into),
        served,
    }));
    let mut guarantees = BTreeMap::new();
    for guarantee in tenant.gpus.iter().filter(|_| served) {
        *guarantees.entry(interner.text(&guarantee.profile)).or_default() +=
            u32::try_from(guarantee.count).unwrap_or(0);
    }
    let borrowing = tenant.gpus.iter().filter(|g| served && g.borrow > 0 && queued.contains(g.profile.as_str()));
    let borrows = borrowing.map(|g| (interner.text(&g.profile), u32::try_from(g.borrow).unwrap_or(0)));
    let borrows = borrows.collect();
    let read = Tenant {
        namespaces: namespaces.into_iter().collect(),
        trust: tenant.trust,
        acknowledged: tenant.acknowledged,
        priority: tenant.priority.clamp(-5, 5),
        guarantees,
        borrows,
        cap: tenant.equivalents.and_then(cap),
    };
    (tenant.name.into(), read)
}

/// A cap in 840ths of a GPU, rounded down; `None`: not a number, which the API server refuses.
fn cap(text: &str) -> Option<i64> {
    let thousandths = Amount::parse(&Quantity(text.to_owned()))?.milli();
    i64::try_from(thousandths.checked_mul(i128::from(PARTS))? / 1000).ok()
}
