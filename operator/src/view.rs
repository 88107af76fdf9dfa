//! What the fleet's pass has found out and tenants need to know; published as a whole, never changed in place.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{Trust, names};

/// One picture of the fleet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// A pass has been made; before the first one nothing can be said about any tenant.
    pub complete: bool,
    /// The catalog.
    pub profiles: BTreeMap<String, ProfileView>,
    /// Every resource name that could be a GPU's: a tenant's quota names them all.
    pub resources: BTreeSet<String>,
    /// What the plan says about each tenant.
    pub tenants: BTreeMap<String, TenantView>,
    /// Devices that pods hold, by namespace and resource.
    pub held: BTreeMap<Claim, i32>,
    /// Pods that wait for a node, by namespace and resource.
    pub waiting: BTreeMap<Claim, i32>,
}

/// A namespace and a resource.
pub type Claim = (String, String);

/// A profile as tenants see it.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileView {
    /// Extended resource that pods ask for.
    pub resource: String,
    /// Least trusted tenant that may use it.
    pub trust: Trust,
    /// Why nobody gets it, as a reason and a sentence; `None` when it is served.
    pub refused: Option<(&'static str, String)>,
    /// Devices that a new pod could get now.
    pub free: i32,
}

/// What the plan says about a tenant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TenantView {
    /// Generation of the tenant that the plan has seen.
    pub generation: Option<i64>,
    /// Guarantees that cannot be met, as sentences.
    pub shortages: Vec<String>,
}

impl View {
    /// A view of an empty fleet. Whole GPUs are named even when no profile offers them: tenants get none.
    pub fn empty() -> Self {
        Self { resources: [names::WHOLE_GPU_RESOURCE.to_owned()].into(), ..Self::default() }
    }

    /// Devices of this resource that pods of these namespaces hold.
    pub fn held_by<'a>(&self, namespaces: impl Iterator<Item = &'a str>, resource: &str) -> i32 {
        sum(&self.held, namespaces, resource)
    }

    /// Pods of these namespaces that wait for this resource.
    pub fn waiting_in<'a>(&self, namespaces: impl Iterator<Item = &'a str>, resource: &str) -> i32 {
        sum(&self.waiting, namespaces, resource)
    }
}

fn sum<'a>(claims: &BTreeMap<Claim, i32>, namespaces: impl Iterator<Item = &'a str>, resource: &str) -> i32 {
    namespaces.filter_map(|ns| claims.get(&(ns.to_owned(), resource.to_owned()))).sum()
}

/// Could this extended resource be a GPU's?
pub fn is_gpu_resource(resource: &str) -> bool {
    resource.starts_with("nvidia.com/") || resource.starts_with("gputenancy.io/")
}
