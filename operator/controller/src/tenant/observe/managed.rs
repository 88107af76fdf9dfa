//! The objects that the operator manages in each namespace of a tenant: one row of properties for each type.

use std::{borrow::Cow, fmt, sync::Arc};

use gputenancy_cluster::desired::OwnedObject;
use gputenancy_crds::{GpuGrant, names};
use k8s_openapi::api::{
    core::v1::{LimitRange, ResourceQuota},
    networking::v1::NetworkPolicy,
    rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding},
};
use kube::api::ApiResource;

use crate::{
    cache::Caches,
    tenant::render::{self, tenant_role},
};

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
    /// The role by which owners and viewers read their tenant, of no namespace.
    TenantRole,
    /// Its binding, of no namespace.
    TenantRoleBinding,
}

impl Managed {
    /// Isolate the namespace: written before the grant, and so before the first pod.
    pub const ISOLATION: [Self; 4] =
        [Self::NetworkPolicy, Self::LimitRange, Self::PriorityClassQuota, Self::PodAffinityQuota];
    /// Give users access: written after the quota.
    pub const ACCESS: [Self; 3] = [Self::Owners, Self::Viewers, Self::VirtualCluster];

    /// Of no namespace, with a name of the tenant: a binding to a role that does not exist is refused.
    pub const OF_CLUSTER: [Self; 2] = [Self::TenantRole, Self::TenantRoleBinding];
    /// In place of the namespace of those.
    pub const NO_NAMESPACE: &str = "";

    /// All of a namespace, in the order of deletion from a namespace that stays: without the grant no pod is admitted while limits are deleted.
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
            Self::TenantRole => ("ClusterRole", tenant_role::PREFIX, "spec.owners and spec.viewers"),
            Self::TenantRoleBinding => ("ClusterRoleBinding", tenant_role::PREFIX, "spec.owners and spec.viewers"),
        }
    }

    /// The object's name.
    pub fn name(self, tenant: &str) -> Cow<'static, str> {
        let (_, name, _) = self.row();
        if Self::OF_CLUSTER.contains(&self) { Cow::Owned(format!("{name}{tenant}")) } else { Cow::Borrowed(name) }
    }

    /// Type, name and namespace, for messages.
    pub fn describe(self, tenant: &str, namespace: &str) -> String {
        let (type_, ..) = self.row();
        match namespace {
            Self::NO_NAMESPACE => format!("{type_} {}", self.name(tenant)),
            namespace => format!("{self} of namespace {namespace}"),
        }
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
            Self::TenantRole => ApiResource::erase::<ClusterRole>(&()),
            Self::TenantRoleBinding => ApiResource::erase::<ClusterRoleBinding>(&()),
        }
    }

    /// The object of a tenant in a namespace, as the caches have it.
    pub fn cached(self, caches: &Caches, tenant: &str, namespace: &str) -> Option<Arc<OwnedObject>> {
        let name = self.name(tenant);
        let store = match self {
            Self::Quota | Self::PriorityClassQuota | Self::PodAffinityQuota => {
                let quota = caches.quotas.get(namespace, &name)?;
                return Some(Arc::new(OwnedObject::of(&*quota)));
            }
            Self::NetworkPolicy => &caches.policies,
            Self::LimitRange => &caches.limits,
            Self::Grant => &caches.grants,
            Self::Owners | Self::Viewers | Self::VirtualCluster => &caches.bindings,
            Self::TenantRole => &caches.tenant_roles.as_ref()?.roles,
            Self::TenantRoleBinding => &caches.tenant_roles.as_ref()?.bindings,
        };
        store.get(namespace, &name)
    }
}

impl fmt::Display for Managed {
    /// Type and name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (type_, name, _) = self.row();
        write!(f, "{type_} {name}")
    }
}
