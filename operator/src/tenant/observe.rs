//! What a tenant's decision looks at.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

pub use gputenancy_crds::quota::resource_key as quota_key;
use gputenancy_crds::{
    GpuGrantSpec, GpuTenant, GrantedProfile, Network,
    reasons::{self, Reason},
};
use gputenancy_engine::{
    projection::{SlimNamespace, SlimQuota, tenant_of},
    quota::{Amounts, unknown_weight_message},
};
use k8s_openapi::{api::networking::v1::NetworkPolicySpec, jiff::Timestamp};
use kube::ResourceExt as _;

use super::{network, pull::Pulls, refused_controllers::RefusedControllers, render, standard::Standard};
use crate::{
    cache::{ApiEndpoint, OwnedObject},
    fleet_view::FleetView,
};

/// One tenant and all that concerns it, as the caches have it.
#[derive(Clone)]
pub struct Observed {
    /// The tenant.
    pub tenant: GpuTenant,
    /// Namespaces that it lists, and those with its label.
    pub namespaces: BTreeMap<String, Arc<SlimNamespace>>,
    /// Our quota in each namespace.
    pub quotas: BTreeMap<String, Arc<SlimQuota>>,
    /// Our owners' role binding in each namespace that has one.
    pub bindings: BTreeMap<String, Arc<OwnedObject>>,
    /// Our viewers' role binding in each namespace that has one.
    pub viewers: BTreeMap<String, Arc<OwnedObject>>,
    /// Our network policy in each namespace that has one.
    pub networks: BTreeMap<String, Arc<OwnedObject>>,
    /// Our limit range in each namespace that has one.
    pub limits: BTreeMap<String, Arc<OwnedObject>>,
    /// Our quota that knows `PriorityClasses` in each namespace that has one.
    pub classes: BTreeMap<String, Arc<SlimQuota>>,
    /// Its image pull secrets.
    pub pulls: Pulls,
    /// What every tenant gets alike.
    pub standard: Arc<Standard>,
    /// Where the API server answers.
    pub api_endpoints: BTreeSet<ApiEndpoint>,
    /// Our own namespace, which no tenant gets.
    pub home: String,
    /// Our grant in each namespace.
    pub grants: BTreeMap<String, Arc<OwnedObject>>,
    /// Namespaces whose quota nobody can raise unseen.
    pub firm: BTreeSet<String>,
    /// Namespaces in which a limit has come down just now.
    pub unsteady: BTreeSet<String>,
    /// What live pods ask for, by namespace and quota key.
    pub counted: BTreeMap<String, Amounts>,
    /// Namespaces whose quota was written and that are not seen yet.
    pub unseen: BTreeSet<String>,
    /// Its controllers whose pods were refused.
    pub refused: RefusedControllers,
    /// The fleet.
    pub view: Arc<FleetView>,
    /// The time, for deadlines and transition times.
    pub now: Timestamp,
}

/// What a namespace is to the tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Listed, and not there.
    Missing,
    /// Listed, and somebody else's.
    Foreign,
    /// Listed to be adopted, and nobody's.
    Adoptable,
    /// On its way out.
    Terminating,
    /// Ours and listed.
    Active,
    /// Ours, and no longer listed.
    Retained,
}

/// A guarantee that cannot be granted at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// A reason in CamelCase.
    pub reason: Reason,
    /// What is wrong and what to do.
    pub message: String,
}

impl Observed {
    /// The tenant's name.
    pub fn name(&self) -> String {
        self.tenant.name_any()
    }

    /// All namespaces with their roles: listed ones first, in the order of the list.
    pub fn roles(&self) -> Vec<(String, Role)> {
        let me = self.name();
        let listed = self.tenant.spec.namespaces.iter().map(|n| (n.name.clone(), n.adopt));
        let mut roles: Vec<(String, Role)> = listed
            .map(|(name, adopt)| {
                let role = match self.namespaces.get(&name) {
                    None => Role::Missing,
                    Some(ns) if tenant_of(&**ns).is_none() && adopt && self.can_be_taken(ns) => Role::Adoptable,
                    Some(ns) if tenant_of(&**ns).as_ref() != Some(&me) => Role::Foreign,
                    Some(ns) if ns.metadata.deletion_timestamp.is_some() => Role::Terminating,
                    Some(_) => Role::Active,
                };
                (name, role)
            })
            .collect();
        for (name, ns) in &self.namespaces {
            if tenant_of(&**ns).as_ref() == Some(&me) && !roles.iter().any(|(n, _)| n == name) {
                let going = ns.metadata.deletion_timestamp.is_some();
                roles.push((name.clone(), if going { Role::Terminating } else { Role::Retained }));
            }
        }
        roles
    }

    /// May a namespace that is nobody's be adopted?
    pub fn can_be_taken(&self, namespace: &SlimNamespace) -> bool {
        namespace.metadata.deletion_timestamp.is_none() && namespace.metadata.name.as_ref() != Some(&self.home)
    }

    /// Spec of the network policy of each namespace; none for a tenant that is open.
    pub fn network(&self) -> Option<NetworkPolicySpec> {
        let isolated = || network::isolated(&self.name(), &self.api_endpoints, &self.standard.egress);
        (self.tenant.spec.network == Network::Isolated).then(isolated)
    }

    /// Is the grant of a namespace as it should be?
    pub fn has_grant(&self, namespace: &str) -> bool {
        let wanted = || render::grant(&self.name(), namespace, self.grant(namespace));
        self.grants.get(namespace).is_some_and(|present| present.is_like(&wanted()))
    }

    /// Guarantees that are refused, with the reason.
    pub fn refusals(&self) -> Vec<Refusal> {
        self.tenant.spec.gpus.iter().filter_map(|g| self.granted(&g.profile).err()).collect()
    }

    /// The resource of a profile that the tenant may have.
    pub fn granted(&self, profile: &str) -> Result<String, Refusal> {
        let me = self.name();
        let Some(found) = self.view.profiles.get(profile) else {
            let message = format!("profile {profile} does not exist: create GpuProfile {profile} or correct spec.gpus");
            return Err(Refusal { reason: reasons::PROFILE_NOT_FOUND, message });
        };
        if let Some((reason, message)) = &found.refused {
            return Err(Refusal { reason: *reason, message: message.clone() });
        }
        let trust = self.tenant.spec.trust;
        if trust < found.trust {
            let message = format!(
                "tenant {me} (trust {trust:?}) may not use profile {profile} (trust {:?} or higher): raise spec.trust or choose a profile isolated by hardware",
                found.trust
            );
            return Err(Refusal { reason: reasons::TRUST_TOO_LOW, message });
        }
        if self.tenant.spec.gpu_equivalents.is_some() && !self.view.weights.contains_key(&found.resource) {
            return Err(Refusal { reason: reasons::WEIGHT_UNKNOWN, message: unknown_weight_message(profile) });
        }
        Ok(found.resource.clone())
    }

    /// What pods of a namespace may ask for. A namespace that is no longer listed gets nothing.
    pub fn grant(&self, namespace: &str) -> GpuGrantSpec {
        let spec = &self.tenant.spec;
        let mut grant = GpuGrantSpec { tenant: self.name(), ..GpuGrantSpec::default() };
        if !spec.namespaces.iter().any(|n| n.name == namespace) {
            return grant;
        }
        let mut pools = BTreeSet::new();
        for guarantee in spec.gpus.iter().filter(|g| g.count > 0) {
            let Ok(resource) = self.granted(&guarantee.profile) else { continue };
            let Some(found) = self.view.profiles.get(&guarantee.profile) else { continue };
            let most = found.contract.max_per_pod.unwrap_or(i32::MAX).min(guarantee.count);
            let granted = grant.resources.entry(resource.clone()).or_default();
            *granted = most.max(*granted);
            pools.extend(found.contract.pools.iter().cloned());
            grant.profiles.push(GrantedProfile {
                name: guarantee.profile.clone(),
                resource_name: resource,
                budget: guarantee.count,
                expected: found.contract.support.expected.clone(),
                incident: found.contract.support.incident.clone(),
            });
        }
        grant.profiles.sort_by(|a, b| a.name.cmp(&b.name));
        grant.pools = pools.into_iter().collect();
        grant.priority_classes.clone_from(&spec.priority_classes);
        grant.queues.clone_from(&spec.queues);
        grant
    }

    /// Did we make this namespace?
    pub fn made_by_us(&self, namespace: &str) -> bool {
        self.namespaces.get(namespace).is_some_and(|ns| ns.annotations().contains_key(render::CREATED_FOR))
    }
}
