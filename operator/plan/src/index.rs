//! The planner that remembers: the fleet's picture, and the plan for it, both kept up to date event by event.

use std::collections::{BTreeMap, HashSet};

use super::{
    fleet::Core,
    model::{Node, Pool, Profile, Snapshot, Tenant},
    name::{NodeName, PoolName, ProfileName, TenantName},
    outcome::Plan,
    problem::Problem,
    share::Sharing,
    snapshot::{Cluster, is_as_read, read_tenant},
};

/// One object of the fleet as it is now; `None`: it is gone.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A product. Everything is looked at anew.
    Profile(ProfileName, Option<Profile>),
    /// A pool's rules. Everything is looked at anew.
    Pool(PoolName, Option<Pool>),
    /// A team's demand.
    Tenant(TenantName, Option<Tenant>),
    /// A node, and what is on it.
    Node(NodeName, Option<Node>),
}

/// The fleet's picture and its plan. A plan after some events is the plan that [`super::plan`] makes of the picture then; only
/// what the events touch is decided and written anew.
#[derive(Debug, Default)]
pub struct Index {
    snapshot: Snapshot,
    core: Core,
    stale: bool,
}

impl Index {
    /// Takes a whole picture in.
    pub fn new(snapshot: Snapshot) -> Self {
        let core = Core::load(&snapshot);
        Self { snapshot, core, stale: true }
    }

    /// Takes one change in. What is as before costs a comparison.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::Profile(name, new) => {
                if put(&mut self.snapshot.profiles, name, new) {
                    self.core = Core::load(&self.snapshot);
                    self.stale = true;
                }
            }
            Event::Pool(name, new) => {
                if put(&mut self.snapshot.pools, name, new) {
                    self.core = Core::load(&self.snapshot);
                    self.stale = true;
                }
            }
            Event::Tenant(name, new) => {
                if put(&mut self.snapshot.tenants, name.clone(), new) {
                    self.core.tenant(&name, self.snapshot.tenants.get(&name));
                    self.stale = true;
                }
            }
            Event::Node(name, new) => {
                if put(&mut self.snapshot.nodes, name.clone(), new) {
                    self.core.node(&name, self.snapshot.nodes.get(&name));
                    self.stale = true;
                }
            }
        }
    }

    /// Takes the cluster in by what differs from what was taken in before, and says what in it makes no sense. Tenants, of which there may
    /// be very many, are read one by one: those that are as before take no room.
    pub fn read(&mut self, cluster: &Cluster<'_>) -> Vec<Problem> {
        let mut sharing = Sharing::default();
        let (supply, problems) = Snapshot::read_supply(cluster, &mut sharing);
        if self.snapshot.profiles != supply.profiles || self.snapshot.pools != supply.pools {
            let tenants = cluster.tenants.iter().map(|t| read_tenant(t, &mut sharing)).collect();
            *self = Self::new(Snapshot { tenants, ..supply });
            return problems;
        }
        for tenant in &cluster.tenants {
            if self.snapshot.tenants.get(tenant.name).is_some_and(|known| is_as_read(known, tenant)) {
                continue;
            }
            let (name, tenant) = read_tenant(tenant, &mut sharing);
            self.apply(Event::Tenant(name, Some(tenant)));
        }
        if self.snapshot.tenants.len() > cluster.tenants.len() {
            let there: HashSet<&str> = cluster.tenants.iter().map(|t| t.name).collect();
            let known = self.snapshot.tenants.keys();
            let gone: Vec<TenantName> = known.filter(|t| !there.contains(t.as_str())).cloned().collect();
            for name in gone {
                self.apply(Event::Tenant(name, None));
            }
        }
        let gone: Vec<NodeName> =
            self.snapshot.nodes.keys().filter(|n| !supply.nodes.contains_key(*n)).cloned().collect();
        for name in gone {
            self.apply(Event::Node(name, None));
        }
        for (name, node) in supply.nodes {
            self.apply(Event::Node(name, Some(node)));
        }
        problems
    }

    #[cfg(test)]
    pub(super) fn core(&self) -> &Core {
        &self.core
    }

    /// The plan for the fleet as it is now.
    pub fn plan(&mut self) -> &Plan {
        self.planned().1
    }

    /// The fleet's picture, and the plan for it.
    pub fn planned(&mut self) -> (&Snapshot, &Plan) {
        if self.stale {
            if self.core.is_crowded(&self.snapshot) {
                self.core = Core::load(&self.snapshot);
            }
            self.core.decide(&self.snapshot);
            self.stale = false;
        }
        (&self.snapshot, &self.core.plan)
    }
}

/// Puts an object into a map or takes it out; says whether that made a difference.
fn put<K: Ord, V: PartialEq>(map: &mut BTreeMap<K, V>, key: K, new: Option<V>) -> bool {
    match new {
        Some(new) if map.get(&key) == Some(&new) => false,
        Some(new) => {
            map.insert(key, new);
            true
        }
        None => map.remove(&key).is_some(),
    }
}
