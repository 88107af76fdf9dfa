//! The objects that the operator manages in each namespace of a tenant: one row of properties for each type.

use std::{fmt, sync::Arc};

use gputenancy_cluster::wanted::OwnedObject;
use gputenancy_crds::{GpuGrant, names};
use k8s_openapi::api::{
    core::v1::{LimitRange, ResourceQuota},
    networking::v1::NetworkPolicy,
    rbac::v1::RoleBinding,
};
use kube::api::ApiResource;

use super::render;
use crate::cache::Caches;

/// An object that a namespace has at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Managed {
    /// The network policy of an isolated tenant.
    NetworkPolicy,
    /// The default requests of containers.
    LimitRange,
    /// The quota that admits no pod of other `PriorityClasses`.
    PriorityClassQuota,
    /// The quota that admits no pod with affinity to pods of other namespaces.
    PodAffinityQuota,
    /// The grant, without which the policies refuse every pod.
    Grant,
    /// The share of the tenant's budget.
    Quota,
    /// The role binding of the owners.
    Owners,
    /// The role binding of the viewers.
    Viewers,
    /// The role binding of the controller of virtual clusters.
    VirtualCluster,
}

impl Managed {
    /// Isolate the namespace: written before the grant, and so before the first pod.
    pub const ISOLATION: [Self; 4] =
        [Self::NetworkPolicy, Self::LimitRange, Self::PriorityClassQuota, Self::PodAffinityQuota];
    /// Give users access: written after the quota.
    pub const ACCESS: [Self; 3] = [Self::Owners, Self::Viewers, Self::VirtualCluster];

    /// All, in the order of deletion from a namespace that stays: without the grant no pod is admitted while limits are deleted.
    pub fn all() -> impl Iterator<Item = Self> {
        [Self::Grant].into_iter().chain(Self::ACCESS).chain([Self::Quota]).chain(Self::ISOLATION)
    }

    /// All whose content depends on the tenant alone; a quota's limits depend on use.
    pub fn from_spec() -> impl Iterator<Item = Self> {
        Self::all().filter(|kind| *kind != Self::Quota)
    }

    /// Type in messages, name of the object, and what its content follows.
    fn row(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::NetworkPolicy => ("network policy", render::NETWORK_POLICY, "spec.network"),
            Self::LimitRange => ("limit range", render::LIMIT_RANGE, "the platform's default requests"),
            Self::PriorityClassQuota => ("quota", render::PRIORITY_CLASS_QUOTA, "spec.priorityClasses"),
            Self::PodAffinityQuota => ("quota", render::POD_AFFINITY_QUOTA, "the platform"),
            Self::Grant => ("grant", names::GRANT, "spec.gpus and the catalog"),
            Self::Quota => ("quota", names::QUOTA, "the budget"),
            Self::Owners => ("role binding", render::OWNERS, "spec.owners"),
            Self::Viewers => ("role binding", render::VIEWERS, "spec.viewers"),
            Self::VirtualCluster => ("role binding", render::VIRTUAL_CLUSTERS, "spec.virtualCluster"),
        }
    }

    /// The object's name.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// What the object's content follows, for messages.
    pub fn follows(self) -> &'static str {
        self.row().2
    }

    /// The object's type.
    pub fn resource(self) -> ApiResource {
        match self {
            Self::NetworkPolicy => ApiResource::erase::<NetworkPolicy>(&()),
            Self::LimitRange => ApiResource::erase::<LimitRange>(&()),
            Self::Quota | Self::PriorityClassQuota | Self::PodAffinityQuota => ApiResource::erase::<ResourceQuota>(&()),
            Self::Grant => ApiResource::erase::<GpuGrant>(&()),
            Self::Owners | Self::Viewers | Self::VirtualCluster => ApiResource::erase::<RoleBinding>(&()),
        }
    }

    /// The object in a namespace, as the caches have it.
    pub fn cached(self, caches: &Caches, namespace: &str) -> Option<Arc<OwnedObject>> {
        let store = match self {
            Self::Quota | Self::PriorityClassQuota | Self::PodAffinityQuota => {
                let quota = caches.quotas.get(namespace, self.name())?;
                return Some(Arc::new(OwnedObject::of(&*quota)));
            }
            Self::NetworkPolicy => &caches.policies,
            Self::LimitRange => &caches.limits,
            Self::Grant => &caches.grants,
            Self::Owners | Self::Viewers | Self::VirtualCluster => &caches.bindings,
        };
        store.get(namespace, self.name())
    }
}

impl fmt::Display for Managed {
    /// Type and name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (type_, name, _) = self.row();
        write!(f, "{type_} {name}")
    }
}
