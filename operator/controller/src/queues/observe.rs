//! What the decision about queues follows from, read from the caches.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gputenancy_cluster::desired::version;
use gputenancy_crds::{QueueingSystem, names, projection::SlimPod};
use gputenancy_decisions::{
    fleet_view::FleetView,
    queues::{Cell, Supply},
};
use k8s_openapi::jiff::Timestamp;
use kube::{ResourceExt as _, api::DynamicObject};
use serde_json::Value;

use super::{
    render::{self, Key},
    teams::{self, QueuedTenant},
};
use crate::cache::{
    Caches,
    kueue::{Kind, KueueCaches},
};

/// All that concerns queues, at one moment.
#[derive(Clone, Debug, Default)]
pub struct Observed {
    /// The pools with queues.
    pub pools: BTreeMap<String, gputenancy_decisions::fleet_view::PoolView>,
    /// The tenants with queues.
    pub tenants: Vec<QueuedTenant>,
    /// Profiles of tenants that have no queue because their pools have different systems.
    pub conflicts: BTreeMap<String, Vec<String>>,
    /// Their devices.
    pub supply: Supply,
    /// The objects of Kueue.
    pub live: BTreeMap<Key, Arc<DynamicObject>>,
    /// Jobs as Kueue sees them.
    pub workloads: Vec<Arc<DynamicObject>>,
    /// The time, for transition times.
    pub now: Timestamp,
}

impl Observed {
    /// Reads the caches.
    pub fn read(caches: &Caches, kueue: &KueueCaches, view: &FleetView) -> Self {
        let pools: BTreeMap<_, _> = view
            .pools
            .iter()
            .filter(|(_, pool)| pool.queueing.system == QueueingSystem::Kueue)
            .map(|(name, pool)| (name.clone(), pool.clone()))
            .collect();
        let (mut tenants, mut conflicts) = (Vec::new(), BTreeMap::new());
        for tenant in caches.tenants.state() {
            let listed = |name: &String| tenant.spec.namespaces.iter().any(|own| &own.name == name);
            let own = caches.namespaces_of(&tenant.name_any());
            let namespaces = own.into_iter().map(|name| (name.clone(), listed(&name))).collect();
            let (queued, conflicting) = teams::queued(&tenant, view, namespaces);
            tenants.extend(queued);
            if !conflicting.is_empty() {
                conflicts.insert(tenant.name_any(), conflicting);
            }
        }
        tenants.sort_by(|a, b| a.team.name.cmp(&b.team.name));
        let live = Kind::WRITTEN.into_iter().flat_map(|kind| {
            kueue
                .of(kind)
                .into_iter()
                .map(move |object| ((kind, object.namespace().unwrap_or_default(), object.name_any()), object))
        });
        let devices = pools.iter().flat_map(|(pool, of)| {
            let flavor = render::flavor_name(pool, of);
            let cell = move |resource: &String| Cell { flavor: flavor.clone(), resource: resource.clone() };
            of.devices.iter().map(move |(resource, n)| (cell(resource), i64::from(*n)))
        });
        let supply = Supply { devices: devices.collect(), unqueued: BTreeMap::new() };
        let live = live.collect();
        let mut seen =
            Self { pools, tenants, conflicts, supply, live, workloads: kueue.workloads.state(), now: Timestamp::now() };
        if !seen.pools.is_empty() {
            let admitted = admitted_jobs(&seen.workloads);
            let pool_of = |node: &str| caches.nodes.get("", node)?.labels().get(names::POOL_LABEL).cloned();
            seen.supply.unqueued = seen.unqueued(&caches.pods.state(), &admitted, pool_of);
        }
        seen
    }

    /// Is the object older than this version, or not there yet?
    pub fn is_older(&self, key: &Key, than: u64) -> bool {
        self.live.get(key).is_none_or(|live| version(&**live) < than)
    }

    /// Devices of pods that Kueue has not admitted, by tenant; those of no tenant with a queue under an empty name.
    pub fn unqueued(
        &self,
        pods: &[Arc<SlimPod>],
        admitted: &BTreeMap<String, BTreeSet<String>>,
        pool_of: impl Fn(&str) -> Option<String>,
    ) -> BTreeMap<(String, Cell), i64> {
        let team_of: BTreeMap<&str, &str> = self
            .tenants
            .iter()
            .flat_map(|tenant| tenant.namespaces.keys().map(|ns| (ns.as_str(), tenant.team.name.as_str())))
            .collect();
        let mut sums = BTreeMap::new();
        for pod in pods.iter().filter(|pod| !pod.is_over()) {
            let Some(pool) = pod.spec.node_name.as_deref().and_then(&pool_of) else { continue };
            let Some(of_pool) = self.pools.get(&pool) else { continue };
            let owner = pod.owner_references().iter().find(|owner| owner.controller == Some(true));
            let flavor = render::flavor_name(&pool, of_pool);
            // a job of a former flavor of the pool uses devices of the present one
            if owner.is_some_and(|owner| admitted.get(&owner.uid).is_some_and(|flavors| flavors.contains(&flavor))) {
                continue;
            }
            let team = team_of.get(pod.metadata.namespace.as_deref().unwrap_or_default()).copied().unwrap_or_default();
            for resource in &of_pool.resources {
                let requested = pod.requested(resource);
                if requested > 0 {
                    let cell = Cell { flavor: flavor.clone(), resource: resource.clone() };
                    *sums.entry((team.to_owned(), cell)).or_default() += requested;
                }
            }
        }
        sums
    }
}

/// The flavors of jobs with a place in a queue's limits, by the uid of the job.
fn admitted_jobs(workloads: &[Arc<DynamicObject>]) -> BTreeMap<String, BTreeSet<String>> {
    let mut jobs: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for workload in workloads.iter().filter(|workload| has_condition(workload, "QuotaReserved")) {
        let assignments = workload.data.pointer("/status/admission/podSetAssignments").and_then(Value::as_array);
        let flavors: BTreeSet<String> = assignments
            .into_iter()
            .flatten()
            .filter_map(|assignment| assignment.get("flavors")?.as_object())
            .flat_map(|flavors| flavors.values().filter_map(Value::as_str).map(str::to_owned))
            .collect();
        for owner in workload.owner_references() {
            jobs.entry(owner.uid.clone()).or_default().extend(flavors.clone());
        }
    }
    jobs
}

/// Has the object this condition with status `True`?
pub fn has_condition(object: &DynamicObject, type_: &str) -> bool {
    let conditions = object.data.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|c| c["type"] == type_ && c["status"] == "True")
}

/// Has the operator written the object?
pub fn is_ours(object: &DynamicObject) -> bool {
    object.labels().get(names::MANAGED_BY_LABEL).is_some_and(|by| by == names::MANAGED_BY)
}
