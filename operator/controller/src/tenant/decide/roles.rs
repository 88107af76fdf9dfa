//! The namespaces that concern a tenant, and what each is to it. Pure.

use gputenancy_crds::{
    names,
    projection::{SlimNamespace, tenant_of},
};
use kube::ResourceExt as _;

use crate::tenant::observe::Observed;

/// Relation of a namespace to the tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Listed, and does not exist.
    Missing,
    /// Listed, and not the tenant's.
    Foreign,
    /// Listed to be adopted, labelled as adoptable, and of no tenant.
    Adoptable,
    /// The tenant's, and being deleted.
    Terminating,
    /// The tenant's, and listed.
    Active,
    /// The tenant's, and no longer listed.
    Retained,
}

/// All of them with their roles: listed ones first, in the order of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roles(Vec<(String, Role)>);

impl Roles {
    /// From an observation.
    pub fn of(seen: &Observed) -> Self {
        let tenant = seen.name();
        let listed = seen.tenant.spec.namespaces.iter().map(|n| (n.name.clone(), n.adopt));
        let mut roles: Vec<(String, Role)> = listed
            .map(|(name, adopt)| {
                let role = match seen.namespaces.get(&name) {
                    None => Role::Missing,
                    Some(ns) if tenant_of(&**ns).is_none() && adopt && can_be_adopted(seen, ns) => Role::Adoptable,
                    Some(ns) if tenant_of(&**ns).as_ref() != Some(&tenant) => Role::Foreign,
                    Some(ns) if ns.metadata.deletion_timestamp.is_some() => Role::Terminating,
                    Some(_) => Role::Active,
                };
                (name, role)
            })
            .collect();
        for (name, ns) in &seen.namespaces {
            if tenant_of(&**ns).as_ref() == Some(&tenant) && !roles.iter().any(|(n, _)| n == name) {
                let terminating = ns.metadata.deletion_timestamp.is_some();
                roles.push((name.clone(), if terminating { Role::Terminating } else { Role::Retained }));
            }
        }
        Self(roles)
    }

    /// Each with its role.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Role)> {
        self.0.iter().map(|(name, role)| (name.as_str(), *role))
    }

    /// The namespaces of this role.
    pub fn with(&self, wanted: Role) -> impl Iterator<Item = &str> {
        self.iter().filter(move |(_, role)| *role == wanted).map(|(name, _)| name)
    }

    /// The namespaces that are the tenant's, or will be once they are created.
    pub fn own(&self) -> impl Iterator<Item = &str> {
        self.iter().filter(|(_, role)| !matches!(role, Role::Foreign | Role::Adoptable)).map(|(name, _)| name)
    }

    /// The namespaces that have managed objects.
    pub fn managed(&self) -> impl Iterator<Item = &str> {
        let managed = |role| matches!(role, Role::Active | Role::Missing | Role::Retained);
        self.iter().filter(move |(_, role)| managed(*role)).map(|(name, _)| name)
    }
}

fn can_be_adopted(seen: &Observed, namespace: &SlimNamespace) -> bool {
    namespace.metadata.deletion_timestamp.is_none()
        && namespace.metadata.name.as_ref() != Some(&seen.operator_namespace)
        // the policy gputenancy-operator-namespace refuses the write without it
        && namespace.labels().get(names::ADOPTABLE_LABEL).is_some_and(|value| value == "true")
}
