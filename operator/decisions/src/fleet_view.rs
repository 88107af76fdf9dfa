//! What a pass over the fleet found that tenants need; published as a whole, never changed in place.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gputenancy_crds::{
    FractionSize, GpuTenant, Guarantee, Isolation, PoolTaint, Price, Queueing, QueueingSystem, SharingMode, Support,
    Trust, names, reasons::Reason,
};

use crate::quota::Weight;

/// The fleet at one time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FleetView {
    /// False before the first pass, when nothing is known about any tenant.
    pub complete: bool,
    /// The catalog.
    pub profiles: BTreeMap<String, ProfileView>,
    /// Resource names of all GPUs: every quota of a tenant names them all.
    pub resources: BTreeSet<String>,
    /// Share of a whole GPU that one device of a resource counts as; without resources that no board of a pool can carry.
    pub weights: BTreeMap<String, Weight>,
    /// Result of the plan by tenant.
    pub tenants: BTreeMap<Arc<str>, TenantView>,
    /// Devices that pods hold, by namespace and resource.
    pub held: BTreeMap<Claim, i32>,
    /// Devices that processes of deleted pods use, by namespace and resource. No quota counts them.
    pub retained_devices: BTreeMap<Claim, i32>,
    /// Unscheduled pods, by namespace and resource.
    pub waiting: BTreeMap<Claim, i32>,
    /// What limits the memory of the devices that pods hold, by namespace.
    pub limits: BTreeMap<String, MemoryLimit>,
    /// The pools.
    pub pools: BTreeMap<String, PoolView>,
}

/// A pool as tenants and their queues see it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PoolView {
    /// How jobs wait for its devices.
    pub queueing: Queueing,
    /// The taint on its nodes.
    pub taint: Option<PoolTaint>,
    /// Resources of the profiles that it may offer.
    pub resources: BTreeSet<String>,
    /// Devices that pods hold or could get now, by resource: NVML, kubelet and the Node's allocatable agree on them. Without those that are withdrawn while
    /// a pod still holds them.
    pub devices: BTreeMap<String, i32>,
}

/// What limits the memory of some devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// The weakest means.
    pub means: Isolation,
    /// GPUs whose devices have no limit, each with the reason and what to do.
    pub unlimited: BTreeMap<String, String>,
}

impl Default for MemoryLimit {
    /// Of no devices: as strong as can be.
    fn default() -> Self {
        Self { means: Isolation::Hardware, unlimited: BTreeMap::new() }
    }
}

impl MemoryLimit {
    /// Counts more devices.
    pub fn add(&mut self, other: &Self) {
        self.means = self.means.max(other.means);
        self.unlimited.extend(other.unlimited.iter().map(|(gpu, why)| (gpu.clone(), why.clone())));
    }
}

/// A namespace and a resource.
pub type Claim = (String, String);

/// A profile as tenants see it.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileView {
    /// Extended resource that pods request.
    pub resource: String,
    /// Least trusted tenant that may use it.
    pub trust: Trust,
    /// How its GPU is shared; `None` for a whole GPU and for MIG.
    pub sharing: Option<SharingMode>,
    /// Why it is not served, as a reason and a sentence.
    pub refused: Option<(Reason, String)>,
    /// Devices that a new pod could get now.
    pub free: i32,
    /// Terms of use.
    pub contract: Contract,
}

/// Terms of use of a profile; part of every grant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Contract {
    /// Most devices of one pod; `None`: as many as the tenant is guaranteed.
    pub max_per_pod: Option<i32>,
    /// Pools that may carry it.
    pub pools: BTreeSet<String>,
    /// What users have to accept.
    pub support: Support,
    /// Price of one device.
    pub price: Option<Price>,
    /// Size of one device, where the profile is a fraction.
    pub fraction: Option<FractionSize>,
}

/// Result of the plan for a tenant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TenantView {
    /// Generation of the tenant that was planned.
    pub generation: Option<i64>,
    /// Guarantees that cannot be met, as sentences.
    pub shortages: Box<[String]>,
}

impl FleetView {
    /// An empty fleet. Whole GPUs are named even when no profile offers them: tenants get none.
    pub fn empty() -> Self {
        Self { resources: [names::WHOLE_GPU_RESOURCE.to_owned()].into(), ..Self::default() }
    }

    /// Is the catalog the same, apart from free devices? A change of it affects every tenant.
    pub fn same_catalog(&self, old: &Self) -> bool {
        let entry = |(name, profile): (&String, &ProfileView)| {
            let ProfileView { resource, trust, sharing, refused, free: _, contract } = profile.clone();
            (name.clone(), resource, trust, sharing, refused, contract)
        };
        let catalog = |view: &Self| view.profiles.iter().map(entry).collect::<Vec<_>>();
        let queued = |view: &Self| -> Vec<(String, QueueingSystem, BTreeSet<String>)> {
            let pool =
                |(name, pool): (&String, &PoolView)| (name.clone(), pool.queueing.system, pool.resources.clone());
            view.pools.iter().map(pool).collect()
        };
        self.complete == old.complete
            && self.resources == old.resources
            && self.weights == old.weights
            && catalog(self) == catalog(old)
            && queued(self) == queued(old)
    }

    /// Tenants whose own part differs, given the [same catalog](Self::same_catalog).
    pub fn affected<'a>(&self, old: &Self, tenants: &'a [Arc<GpuTenant>]) -> impl Iterator<Item = &'a Arc<GpuTenant>> {
        // usually few of very many tenants are affected: what is equal for all is compared once
        let free = |view: &Self| view.profiles.values().map(|p| p.free).collect::<Vec<_>>();
        let same_free = self.profiles.keys().eq(old.profiles.keys()) && free(self) == free(old);
        let same_claims = self.held == old.held
            && self.retained_devices == old.retained_devices
            && self.waiting == old.waiting
            && self.limits == old.limits;
        let same = move |tenant: &GpuTenant| {
            let name = tenant.metadata.name.as_deref().unwrap_or_default();
            self.tenants.get(name) == old.tenants.get(name)
                && (same_free || self.same_free(old, tenant))
                && (same_claims || self.same_claims(old, tenant))
        };
        tenants.iter().filter(move |t| !same(t))
    }

    fn same_free(&self, old: &Self, tenant: &GpuTenant) -> bool {
        // more than the guarantee makes no difference, and in a large fleet that is nearly always free
        let free = |view: &Self, g: &Guarantee| view.profiles.get(&g.profile).map(|p| p.free.min(g.count));
        tenant.spec.gpus.iter().all(|g| free(self, g) == free(old, g))
    }

    fn same_claims(&self, old: &Self, tenant: &GpuTenant) -> bool {
        let listed = tenant.spec.namespaces.iter().map(|n| n.name.as_str());
        // a namespace that is no longer listed may still have pods
        let retained = tenant.status.iter().flat_map(|s| &s.namespaces).map(|n| n.name.as_str());
        let same = |ns: &str| {
            let pairs = [
                (&self.held, &old.held),
                (&self.retained_devices, &old.retained_devices),
                (&self.waiting, &old.waiting),
            ];
            self.limits.get(ns) == old.limits.get(ns)
                && pairs.into_iter().all(|(now, then)| of(now, ns).eq(of(then, ns)))
        };
        listed.chain(retained).all(same)
    }

    /// The system that admits jobs for a resource: that of the pools that may offer it; `None`: pools with different systems do.
    pub fn queueing_of(&self, resource: &str) -> Option<QueueingSystem> {
        let pools = self.pools.values().filter(|pool| pool.resources.contains(resource));
        let systems: BTreeSet<QueueingSystem> = pools.map(|pool| pool.queueing.system).collect();
        match systems.len() {
            0 => Some(QueueingSystem::None),
            1 => systems.into_iter().next(),
            _ => None,
        }
    }

    /// Devices of this resource that pods of these namespaces hold.
    pub fn held_by<'a>(&self, namespaces: impl Iterator<Item = &'a str>, resource: &str) -> i32 {
        sum(&self.held, namespaces, resource)
    }

    /// Retained devices of this resource, which processes of deleted pods of these namespaces use.
    pub fn retained_devices_of<'a>(&self, namespaces: impl Iterator<Item = &'a str>, resource: &str) -> i32 {
        sum(&self.retained_devices, namespaces, resource)
    }

    /// What limits the memory of the devices that pods of these namespaces hold; `None`: they hold none.
    pub fn limit_of<'a>(&self, namespaces: impl Iterator<Item = &'a str>) -> Option<MemoryLimit> {
        namespaces.filter_map(|ns| self.limits.get(ns)).fold(None, |sum: Option<MemoryLimit>, limit| {
            let mut sum = sum.unwrap_or_default();
            sum.add(limit);
            Some(sum)
        })
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
    use serde_json::json;

    use super::*;

    fn tenant() -> Arc<GpuTenant> {
        let spec = json!({"namespaces": [{"name": "a-train"}], "gpus": [{"profile": "mig-1g", "count": 1}]});
        let object = json!({"apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuTenant", "metadata": {"name": "a"}, "spec": spec});
        Arc::new(serde_json::from_value(object).unwrap())
    }

    fn profile(free: i32) -> ProfileView {
        let contract = Contract::default();
        ProfileView {
            resource: "nvidia.com/mig-1g.10gb".into(),
            trust: Trust::Untrusted,
            sharing: None,
            refused: None,
            free,
            contract,
        }
    }

    fn view() -> FleetView {
        let profiles = ["mig-1g", "mig-3g"].map(|name| (name.to_owned(), profile(3)));
        FleetView { profiles: profiles.into(), ..FleetView::empty() }
    }

    #[test]
    fn tenant_is_affected_by_its_own_plan_pods_and_free_devices_only() {
        type Edit = fn(&mut FleetView, Claim);
        let claim = |ns: &str| (ns.to_owned(), "nvidia.com/mig-1g.10gb".to_owned());
        let edits: [(Edit, &str, bool); 9] = [
            (|v, c| _ = v.held.insert(c, 1), "a-train", true),
            (|v, c| _ = v.waiting.insert(c, 1), "a-train", true),
            (|v, c| _ = v.retained_devices.insert(c, 1), "a-train", true),
            (|v, c| _ = v.held.insert(c, 1), "a-train-2", false),
            (|v, c| _ = v.limits.insert(c.0, MemoryLimit::default()), "a-train", true),
            (|v, c| _ = v.limits.insert(c.0, MemoryLimit::default()), "a-train-2", false),
            (|v, c| _ = v.tenants.insert(c.0.into(), TenantView::default()), "a", true),
            (|v, c| _ = v.tenants.insert(c.0.into(), TenantView::default()), "b", false),
            (|v, _| _ = v.profiles.insert("mig-3g".into(), profile(0)), "", false),
        ];
        for (n, (edit, name, affected)) in edits.into_iter().enumerate() {
            let mut new = view();
            edit(&mut new, claim(name));
            let (old, tenants) = (view(), [tenant()]);
            assert_eq!(new.affected(&old, &tenants).next().is_some(), affected, "edit {n}");
            assert!(new.same_catalog(&view()), "edit {n}");
        }
        let mut new = view();
        new.profiles.insert("mig-1g".into(), profile(1));
        assert!(new.affected(&view(), &[tenant()]).next().is_none(), "as many as are guaranteed are still free");
        new.profiles.insert("mig-1g".into(), profile(0));
        assert!(new.affected(&view(), &[tenant()]).next().is_some());
        new.resources.insert("nvidia.com/gpu.shared".into());
        assert!(!new.same_catalog(&view()));
        let mut heavier = view();
        heavier.weights.insert("nvidia.com/mig-1g.10gb".into(), Weight::WHOLE);
        assert!(!heavier.same_catalog(&view()));
    }
}
