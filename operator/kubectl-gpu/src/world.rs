//! Everything a plan depends on, assembled from documents: the operator's fleet and details of pods.

use std::{collections::BTreeMap, sync::Arc};

use gputenancy_crds::{GpuNode, GpuPool, GpuProfile, GpuTenant, ids::PodName, projection::SlimPod};
use gputenancy_decisions::{
    fleet::{Fleet, dra_node},
    maintenance::{self, MaintenanceRequest},
};
use k8s_openapi::jiff::Timestamp;
use kube::{Resource, ResourceExt};

use crate::{
    input::{Object, Reading},
    inside::Inside,
    records::{BudgetRecord, PodRecord},
};

/// The objects of a cluster that plans depend on.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// The operator's input; its tenants are those of `tenants`, in the same order.
    pub fleet: Fleet,
    /// Every tenant, complete.
    pub tenants: Vec<GpuTenant>,
    /// Details of the fleet's pods.
    pub pods: BTreeMap<PodName, PodRecord>,
    /// `PodDisruptionBudgets`.
    pub budgets: Vec<BudgetRecord>,
    /// When it was read.
    pub taken_at: Option<Timestamp>,
}

impl World {
    /// Assembles documents; of two objects with one name the later one counts.
    pub fn of(reading: Reading) -> Self {
        let mut world = Self { taken_at: reading.taken_at, ..Self::default() };
        reading.documents.into_iter().for_each(|d| world.put(d.object));
        world
    }

    /// Applies an object as the API server does: an existing object keeps identity and status and takes the new spec.
    pub fn put(&mut self, object: Object) {
        match object {
            Object::Profile(new) => drop(put(&mut self.fleet.profiles, *new, |old, new| old.spec = new.spec)),
            Object::Pool(new) => drop(put(&mut self.fleet.pools, *new, |old, new| old.spec = new.spec)),
            Object::Tenant(new) => {
                let at = put(&mut self.tenants, *new, |old, new| old.spec = new.spec);
                let demand = self.tenants.get(at).map(|t| Arc::new(t.clone()));
                match (self.fleet.tenants.get_mut(at), demand) {
                    (Some(old), Some(new)) => *old = new,
                    (None, new) => self.fleet.tenants.extend(new),
                    (Some(_), None) => {}
                }
            }
            Object::GpuNode(node) => drop(self.fleet.gpu_nodes.insert(node.name_any(), Arc::from(node))),
            Object::Node(node) => drop(self.fleet.nodes.insert(node.name_any(), Arc::new(*node))),
            Object::Slice(slice) => self.fleet.dra.extend(dra_node(&slice)),
            Object::Maintenance(request) => self.put_maintenance(*request),
            Object::Pod(pod) => self.put_pod(*pod),
            Object::Budget(budget) => self.budgets.push(*budget),
        }
    }

    /// Deletes a tenant.
    pub fn remove_tenant(&mut self, name: &str) {
        self.tenants.retain(|t| t.name_any() != name);
        self.fleet.tenants.retain(|t| t.name_any() != name);
    }

    fn put_maintenance(&mut self, request: MaintenanceRequest) {
        let name = request.name_any();
        let nodes = &mut self.fleet.maintenance;
        for all in nodes.values_mut() {
            all.retain(|old| old.name != name);
        }
        for (node, new) in maintenance::by_node(&[Arc::new(request)]) {
            nodes.entry(node).or_default().extend(new);
        }
    }

    fn put_pod(&mut self, pod: PodRecord) {
        // The operator's projection of the same pod, by way of their common JSON.
        let slim = serde_json::to_value(&pod).and_then(serde_json::from_value::<SlimPod>).unwrap_or_default();
        if slim.requests_devices() {
            let name = PodName { namespace: pod.namespace().unwrap_or_default().into(), name: pod.name_any() };
            self.fleet.pods.insert(name.clone(), Arc::new(slim));
            self.pods.insert(name, pod);
        }
    }

    /// The profile of this name.
    pub fn profile(&self, name: &str) -> Option<&GpuProfile> {
        self.fleet.profiles.iter().find(|p| p.name_any() == name)
    }

    /// The pool of this name.
    pub fn pool(&self, name: &str) -> Option<&GpuPool> {
        self.fleet.pools.iter().find(|p| p.name_any() == name)
    }

    /// The tenant of this name.
    pub fn tenant(&self, name: &str) -> Option<&GpuTenant> {
        self.tenants.iter().find(|t| t.metadata.deletion_timestamp.is_none() && t.name_any() == name)
    }

    /// The tenant that a namespace belongs to.
    pub fn tenant_of(&self, namespace: &str) -> Option<String> {
        self.owner_of(namespace).map(ResourceExt::name_any)
    }

    /// The same, complete.
    pub fn owner_of(&self, namespace: &str) -> Option<&GpuTenant> {
        // a tenant may list a namespace that belongs to another one
        let foreign = |t: &GpuTenant| {
            let mut states = t.status.iter().flat_map(|s| &s.namespaces);
            states.any(|n| n.name == namespace && n.is_foreign())
        };
        let owns = |t: &&GpuTenant| t.spec.namespaces.iter().any(|n| n.name == namespace) && !foreign(t);
        self.tenants.iter().find(owns)
    }

    /// The pod inside a virtual cluster that a host pod was made for.
    pub fn inside(&self, namespace: &str, pod: &str) -> Option<Inside> {
        let record = self.pods.get(&PodName { namespace: namespace.into(), name: pod.into() })?;
        Inside::of(self.owner_of(namespace)?, &record.metadata)
    }

    /// A GPU of a node: its board and its state.
    pub fn gpu(&self, node: &str, uuid: &str) -> Option<(&GpuNode, &gputenancy_crds::GpuState)> {
        let node = self.fleet.gpu_nodes.get(node)?;
        Some((node, node.status.as_ref()?.gpus.iter().find(|g| g.uuid == uuid)?))
    }
}

/// Inserts or updates an object; returns its index.
fn put<K: Resource<DynamicType = ()>>(objects: &mut Vec<K>, new: K, take: impl FnOnce(&mut K, K)) -> usize {
    let at = objects.iter().position(|o| o.name_any() == new.name_any()).unwrap_or(objects.len());
    match objects.get_mut(at) {
        Some(old) => take(old, new),
        None => objects.push(new),
    }
    at
}
