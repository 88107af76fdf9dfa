//! One tenant and all that concerns it: the input of every decision. Pure.

pub mod foreign_access;
pub mod managed;
pub mod refused_controllers;
pub mod versions;
pub mod wake_controllers;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gputenancy_cluster::desired::{OwnedObject, version};
pub use gputenancy_crds::quota::resource_key as quota_key;
use gputenancy_crds::{
    GpuGrantSpec, GpuTenant, GrantedProfile, Guarantee, QueueingSystem, VIRTUAL_CLUSTER_FINALIZER,
    projection::{SlimNamespace, SlimQuota},
};
use gputenancy_decisions::{
    entitlement::{Refusal, granted},
    fleet_view::FleetView,
    quota::Amounts,
};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;

use self::{foreign_access::Access, managed::Managed, refused_controllers::RefusedControllers, versions::Written};
use super::render::{self, namespace_defaults::Standard};
use crate::cache::{ApiEndpoint, AwaitedWindow, SlimAccount, SlimSecret, pull::Source};
use crate::queues::QueueView;

/// A tenant, its objects as the caches have them, and the state of the controller.
#[derive(Clone)]
pub struct Observed {
    /// The tenant.
    pub tenant: GpuTenant,
    /// Namespaces that it lists, and those with its label.
    pub namespaces: BTreeMap<String, Arc<SlimNamespace>>,
    /// The quota of each namespace that has one.
    pub quotas: BTreeMap<String, Arc<SlimQuota>>,
    /// The other managed objects that exist, by type and namespace; those of the cluster without one.
    pub managed: BTreeMap<(Managed, String), Arc<OwnedObject>>,
    /// Its image pull secrets.
    pub pull_secrets: PullSecrets,
    /// Settings of the platform for every tenant.
    pub standard: Arc<Standard>,
    /// Addresses and ports of the API server.
    pub api_endpoints: BTreeSet<ApiEndpoint>,
    /// The operator's namespace, which no tenant may list.
    pub operator_namespace: String,
    /// The controller of virtual clusters is installed.
    pub virtual_clusters: bool,
    /// Owners and viewers may read their tenant.
    pub readable: bool,
    /// Namespaces whose quota is fenced: no write in progress can raise it.
    pub fenced: BTreeSet<String>,
    /// Namespaces in which a limit was lowered a moment ago.
    pub recently_lowered: BTreeSet<String>,
    /// Requests of running and pending pods, by namespace and quota key.
    pub requested: BTreeMap<String, Amounts>,
    /// Namespaces whose quota was written and that the caches do not have yet.
    pub uncached: BTreeSet<String>,
    /// Role bindings and network policies of others in its adopted namespaces.
    pub foreign_access: BTreeMap<String, Vec<Access>>,
    /// Its controllers whose pods were refused.
    pub refused: RefusedControllers,
    /// The windows that changes of pools with its profiles wait for, by pool.
    pub windows: BTreeMap<String, AwaitedWindow>,
    /// The grants that the caches have refuse pods that no queue has admitted, as far as the tenant has queues.
    pub policy_in_force: bool,
    /// The fleet.
    pub view: Arc<FleetView>,
    /// The queues of all tenants.
    pub queues: Arc<QueueView>,
    /// The time, for deadlines and transition times.
    pub now: Timestamp,
}

/// Image pull secrets of one tenant, as the caches have them.
#[derive(Clone, Default)]
pub struct PullSecrets {
    /// The Secret of the operator's namespace by each name that the chart allows.
    pub sources: BTreeMap<String, Option<Arc<Source>>>,
    /// Every Secret with such a name in a namespace of the tenant, whoever owns it, by namespace and name.
    pub secrets: BTreeMap<(String, String), Arc<SlimSecret>>,
    /// The `ServiceAccount` of pods that name none, by namespace.
    pub accounts: BTreeMap<String, Arc<SlimAccount>>,
}

impl Observed {
    /// The tenant's name.
    pub fn name(&self) -> String {
        self.tenant.name_any()
    }

    /// A managed object that exists.
    pub fn managed(&self, kind: Managed, namespace: &str) -> Option<&OwnedObject> {
        self.managed.get(&(kind, namespace.to_owned())).map(|object| &**object)
    }

    /// The cached version of an object.
    pub fn version(&self, namespace: &str, object: &Written) -> Option<u64> {
        match object {
            Written::Managed(Managed::Quota) => self.quotas.get(namespace).map(|quota| version(&**quota)),
            Written::Managed(kind) => self.managed(*kind, namespace).map(|object| object.version),
            Written::PullSecret(name) => {
                let secret = self.pull_secrets.secrets.get(&(namespace.to_owned(), name.clone()));
                secret.map(|secret| version(&**secret))
            }
            Written::ServiceAccount => self.pull_secrets.accounts.get(namespace).map(|account| version(&**account)),
        }
    }

    /// Guarantees that are refused.
    pub fn refusals(&self) -> Vec<Refusal> {
        self.tenant.spec.gpus.iter().filter_map(|g| self.granted(&g.profile).err()).collect()
    }

    /// The resource of a profile that is granted to the tenant.
    pub fn granted(&self, profile: &str) -> Result<String, Refusal> {
        granted(&self.tenant, &self.view, profile)
    }

    /// Do jobs for this resource wait in a queue that admits them?
    fn queues_for(&self, resource: &str) -> bool {
        self.view.queueing_of(resource) == Some(QueueingSystem::Kueue) && self.queues.admits(&self.name())
    }

    /// What quotas admit above a guarantee: what the tenant may borrow, once pods that no queue has admitted are refused.
    pub fn borrowed(&self, guarantee: &Guarantee, resource: &str) -> i32 {
        if self.policy_in_force && self.queues_for(resource) { guarantee.borrow } else { 0 }
    }

    /// The resources that pods of a namespace may request: none in a namespace that is no longer listed.
    pub fn grant(&self, namespace: &str) -> GpuGrantSpec {
        let spec = &self.tenant.spec;
        let mut grant = GpuGrantSpec { tenant: self.name(), ..GpuGrantSpec::default() };
        if !spec.namespaces.iter().any(|n| n.name == namespace) {
            return grant;
        }
        let mut pools = BTreeSet::new();
        for guarantee in &spec.gpus {
            let Ok(resource) = self.granted(&guarantee.profile) else { continue };
            let most = guarantee.count.saturating_add(if self.queues_for(&resource) { guarantee.borrow } else { 0 });
            if most == 0 {
                continue;
            }
            let Some(found) = self.view.profiles.get(&guarantee.profile) else { continue };
            if found.sharing.is_some() && !grant.shares.contains(&resource) {
                grant.shares.push(resource.clone());
            }
            let most = found.contract.max_per_pod.unwrap_or(i32::MAX).min(most);
            let granted = grant.resources.entry(resource.clone()).or_default();
            *granted = most.max(*granted);
            if self.queues_for(&resource) && !grant.queued.contains(&resource) {
                grant.queued.push(resource.clone());
            }
            pools.extend(found.contract.pools.iter().cloned());
            grant.profiles.push(GrantedProfile {
                name: guarantee.profile.clone(),
                resource_name: resource,
                budget: guarantee.count,
                fraction: found.contract.fraction.clone(),
                expected: found.contract.support.expected.clone(),
                incident: found.contract.support.incident.clone(),
            });
        }
        grant.shares.sort();
        grant.queued.sort();
        grant.profiles.sort_by(|a, b| a.name.cmp(&b.name));
        grant.pools = pools.into_iter().collect();
        // readable in every object that the API server has accepted
        grant.max_grace_period_seconds = spec.max_grace_period.seconds().ok();
        grant.priority_classes.clone_from(&spec.priority_classes);
        grant.image_registries.clone_from(&spec.image_registries);
        grant.ingress_hosts.clone_from(&spec.ingress_hosts);
        grant.virtual_cluster = self.has_virtual_cluster();
        grant.queues.clone_from(&spec.queues);
        grant
    }

    /// Are the cached grants of all listed namespaces as they should be?
    pub fn grants_are_cached(&self) -> bool {
        let listed = self.tenant.spec.namespaces.iter().map(|n| n.name.as_str());
        listed.filter(|name| self.namespaces.contains_key(*name)).all(|name| {
            let wanted = OwnedObject::of(&render::grant(&self.tenant, name, self.grant(name)));
            self.managed(Managed::Grant, name).is_some_and(|cached| cached.content == wanted.content)
        })
    }

    /// Has the tenant a virtual cluster here, or what is left of one that is being deleted?
    pub fn has_virtual_cluster(&self) -> bool {
        let finalized = || self.tenant.finalizers().iter().any(|f| f == VIRTUAL_CLUSTER_FINALIZER);
        self.virtual_clusters && (self.tenant.spec.virtual_cluster.is_some() || finalized())
    }

    /// Did the operator create this namespace?
    pub fn created_by_operator(&self, namespace: &str) -> bool {
        self.namespaces.get(namespace).is_some_and(|ns| ns.annotations().contains_key(render::CREATED_FOR))
    }
}
