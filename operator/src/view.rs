//! What the fleet's pass has found out and tenants need to know; published as a whole, never changed in place.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gputenancy_crds::{Support, Trust, names};

use crate::{cache::Demand, tenant::Weight};

/// One picture of the fleet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// A pass has been made; before the first one nothing can be said about any tenant.
    pub complete: bool,
    /// The catalog.
    pub profiles: BTreeMap<String, ProfileView>,
    /// Every resource name that could be a GPU's: a tenant's quota names them all.
    pub resources: BTreeSet<String>,
    /// What one device of a resource counts as, beside a whole GPU; a resource that no board of a pool carries is not there.
    pub weights: BTreeMap<String, Weight>,
    /// What the plan says about each tenant.
    pub tenants: BTreeMap<Arc<str>, TenantView>,
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
    pub refused: Option<(gputenancy_crds::reasons::Reason, String)>,
    /// Devices that a new pod could get now.
    pub free: i32,
    /// What it means to a user.
    pub contract: Contract,
}

/// What a user of a profile has to know; part of every grant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contract {
    /// Most that one pod may ask for; `None`: as many as the tenant is guaranteed.
    pub max_per_pod: Option<i32>,
    /// Pools that may carry it.
    pub pools: BTreeSet<String>,
    /// What a user must accept.
    pub support: Support,
}

/// What the plan says about a tenant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TenantView {
    /// Generation of the tenant that the plan has seen.
    pub generation: Option<i64>,
    /// Guarantees that cannot be met, as sentences.
    pub shortages: Box<[String]>,
}

impl View {
    /// A view of an empty fleet. Whole GPUs are named even when no profile offers them: tenants get none.
    pub fn empty() -> Self {
        Self { resources: [names::WHOLE_GPU_RESOURCE.to_owned()].into(), ..Self::default() }
    }

    /// Does it say the same about the catalog, which concerns every tenant? How many devices are free is no part of that.
    pub fn same_catalog(&self, old: &Self) -> bool {
        let entry = |(name, profile): (&String, &ProfileView)| {
            let ProfileView { resource, trust, refused, free: _, contract } = profile.clone();
            (name.clone(), resource, trust, refused, contract)
        };
        let catalog = |view: &Self| view.profiles.iter().map(entry).collect::<Vec<_>>();
        self.complete == old.complete
            && self.resources == old.resources
            && self.weights == old.weights
            && catalog(self) == catalog(old)
    }

    /// The names of those of these tenants of which it says something else, given the [same catalog](Self::same_catalog).
    pub fn concerned<'a>(
        &self,
        old: &Self,
        tenants: impl Iterator<Item = &'a Arc<Demand>>,
    ) -> impl Iterator<Item = &'a Arc<str>> {
        // mostly few are concerned, and there may be very many
        let same_free = self
            .profiles
            .iter()
            .map(|(name, p)| (name, p.free))
            .eq(old.profiles.iter().map(|(name, p)| (name, p.free)));
        let same_claims = self.held == old.held && self.waiting == old.waiting;
        let same = move |tenant: &Demand| {
            self.tenants.get(&tenant.name) == old.tenants.get(&tenant.name)
                && (same_free || self.same_free(old, tenant))
                && (same_claims || self.same_claims(old, tenant))
        };
        tenants.filter(move |t| !same(t)).map(|t| &t.name)
    }

    fn same_free(&self, old: &Self, tenant: &Demand) -> bool {
        let free = |view: &Self, profile: &str| view.profiles.get(profile).map(|p| p.free);
        tenant.gpus.iter().all(|g| free(self, &g.profile) == free(old, &g.profile))
    }

    fn same_claims(&self, old: &Self, tenant: &Demand) -> bool {
        let listed = tenant.namespaces.iter().map(|n| n.name.as_str());
        let known = tenant.known.iter().map(|name| &**name);
        let namespaces: BTreeSet<&str> = listed.chain(known).collect();
        let same =
            |ns: &str| of(&self.held, ns).eq(of(&old.held, ns)) && of(&self.waiting, ns).eq(of(&old.waiting, ns));
        namespaces.into_iter().all(same)
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

/// The claims of one namespace.
fn of<'a>(claims: &'a BTreeMap<Claim, i32>, namespace: &'a str) -> impl Iterator<Item = (&'a Claim, &'a i32)> {
    claims.range((namespace.to_owned(), String::new())..).take_while(move |((ns, _), _)| ns == namespace)
}

fn sum<'a>(claims: &BTreeMap<Claim, i32>, namespaces: impl Iterator<Item = &'a str>, resource: &str) -> i32 {
    namespaces.filter_map(|ns| claims.get(&(ns.to_owned(), resource.to_owned()))).sum()
}

#[cfg(test)]
mod tests {
    use gputenancy_crds::GpuTenant;
    use serde_json::json;

    use super::*;

    fn tenant() -> Arc<Demand> {
        let spec = json!({"namespaces": [{"name": "a-train"}], "gpus": [{"profile": "mig-1g", "count": 1}]});
        let object = json!({"apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuTenant", "metadata": {"name": "a"}, "spec": spec});
        Arc::new(Demand::from(&serde_json::from_value::<GpuTenant>(object).unwrap()))
    }

    fn profile(free: i32) -> ProfileView {
        let contract = Contract::default();
        ProfileView {
            resource: "nvidia.com/mig-1g.10gb".into(),
            trust: Trust::Untrusted,
            refused: None,
            free,
            contract,
        }
    }

    fn view() -> View {
        let profiles = ["mig-1g", "mig-3g"].map(|name| (name.to_owned(), profile(3)));
        View { profiles: profiles.into(), ..View::empty() }
    }

    #[test]
    fn a_tenant_is_concerned_by_its_own_plan_pods_and_free_devices_and_by_no_others() {
        type Edit = fn(&mut View, Claim);
        let claim = |ns: &str| (ns.to_owned(), "nvidia.com/mig-1g.10gb".to_owned());
        let edits: [(Edit, &str, bool); 6] = [
            (|v, c| _ = v.held.insert(c, 1), "a-train", true),
            (|v, c| _ = v.waiting.insert(c, 1), "a-train", true),
            (|v, c| _ = v.held.insert(c, 1), "a-train-2", false),
            (|v, c| _ = v.tenants.insert(c.0.into(), TenantView::default()), "a", true),
            (|v, c| _ = v.tenants.insert(c.0.into(), TenantView::default()), "b", false),
            (|v, _| _ = v.profiles.insert("mig-3g".into(), profile(0)), "", false),
        ];
        for (n, (edit, name, concerned)) in edits.into_iter().enumerate() {
            let mut new = view();
            edit(&mut new, claim(name));
            let (old, tenants) = (view(), [tenant()]);
            assert_eq!(new.concerned(&old, tenants.iter()).next().is_some(), concerned, "edit {n}");
            assert!(new.same_catalog(&view()), "edit {n}");
        }
        let mut new = view();
        new.profiles.insert("mig-1g".into(), profile(0));
        assert!(new.concerned(&view(), [tenant()].iter()).next().is_some());
        new.resources.insert("nvidia.com/gpu.shared".into());
        assert!(!new.same_catalog(&view()));
        let mut heavier = view();
        heavier.weights.insert("nvidia.com/mig-1g.10gb".into(), Weight::WHOLE);
        assert!(!heavier.same_catalog(&view()));
    }
}
