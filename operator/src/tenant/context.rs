//! State of the tenant controller between reconciles, and what a reconcile observes: the caches, its own last writes, refusals.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use gputenancy_crds::{GpuTenant, names};
use gputenancy_engine::{
    projection::{SlimNamespace, SlimQuota, tenant_of},
    quota::write_fence::WriteFence,
};
use gputenancy_service::events::Publisher;
use k8s_openapi::jiff::Timestamp;
use kube::{Resource, ResourceExt as _, runtime::reflector::ObjectRef};
use tokio::sync::watch;

use super::{
    TenantError, budget,
    observe::Observed,
    pull::Pulls,
    refused_controllers::{Refused, RefusedControllers, newest_pods},
    render,
    standard::Standard,
    wake_controllers::{Wake, WakeTarget},
};
use crate::{
    apply::Writer,
    cache::{Caches, QuotaRefusal, Store, Trigger, pull, version},
    fleet_view::FleetView,
    metrics::Metrics,
};

/// How long a decision waits for the cache to show our last write.
const LONGEST_LAG: Duration = Duration::from_secs(5);
/// How long after a limit has come down no other is raised: a pod that was admitted before may not be there yet, and the quota
/// controller, which counts pods that are, may have left it out. Most are there in a few milliseconds.
pub(super) const STEADY: Duration = Duration::from_millis(500);

/// Objects whose last write has to be seen before the next decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kept {
    Quota,
    Binding,
    Viewers,
    Grant,
    Network,
    Limits,
    Classes,
    /// By namespace and name, with a slash between them.
    Pull,
    Account,
    /// By name, as the binding.
    TenantRole,
    TenantBinding,
}

impl Kept {
    /// What people call it.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Quota => "quota",
            Self::Binding => "owners' role binding",
            Self::Viewers => "viewers' role binding",
            Self::Grant => "grant",
            Self::Network => "network policy",
            Self::Limits => "limit range",
            Self::Classes => "quota for PriorityClasses",
            Self::Pull => "image pull secret",
            Self::Account => "ServiceAccount default",
            Self::TenantRole => "ClusterRole of the tenant",
            Self::TenantBinding => "ClusterRoleBinding of the tenant",
        }
    }
}

/// What the command line says about tenants.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Our own namespace, which no tenant gets.
    pub home: String,
    /// Write a condition into the status of refused controllers once there is headroom.
    pub wake_controllers: bool,
}

/// What the controller works with.
pub struct Context {
    pub(super) caches: Caches,
    pub(super) writer: Writer,
    pub(super) publisher: Publisher,
    view: watch::Receiver<Arc<FleetView>>,
    /// What every tenant gets alike.
    standard: Arc<Standard>,
    settings: Settings,
    pub(super) metrics: Arc<Metrics>,
    /// Versions of what was written last, by namespace: a decision about budgets needs to see its quota, and what is not seen
    /// yet would be written once more.
    written: Mutex<HashMap<(Kept, String), (u64, Instant)>>,
    /// Since when tenants are in a transient state that their status does not report yet.
    passing: Mutex<HashMap<String, Instant>>,
    /// Failed reconciles in a row, by tenant.
    failures: Mutex<HashMap<String, u32>>,
    /// Which quotas can be relied on.
    fence: Mutex<WriteFence>,
    /// Refused controllers by tenant.
    refused: Mutex<HashMap<String, RefusedControllers>>,
    /// What was in force of quotas when they were seen last, and when one of their limits has come down, by namespace.
    lowered: Mutex<HashMap<String, (budget::InForce, Instant)>>,
}

impl Context {
    /// What the controller works with; `view` is the fleet as its pass has found it, `term` grows from leader to leader, `standard` is
    /// what every tenant gets alike.
    pub fn new(
        term: u64,
        (settings, standard): (Settings, Standard),
        caches: Caches,
        writer: Writer,
        publisher: Publisher,
        view: watch::Receiver<Arc<FleetView>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (written, passing, failures, refused, lowered) = Default::default();
        let fence = Mutex::new(WriteFence::new(term));
        let standard = Arc::new(standard);
        Self {
            caches,
            writer,
            publisher,
            view,
            standard,
            settings,
            metrics,
            written,
            passing,
            failures,
            fence,
            refused,
            lowered,
        }
    }

    /// The tenants of a trigger.
    pub(super) fn tenants_of(&self, trigger: Trigger) -> Vec<ObjectRef<GpuTenant>> {
        let all = || self.caches.tenants.state().into_iter();
        match trigger {
            Trigger::Tenant(name) => vec![ObjectRef::new(&name)],
            Trigger::AllTenants => all().map(|t| ObjectRef::from_obj(&*t)).collect(),
            Trigger::Namespace(namespace) => {
                if let Some(owner) = self.caches.namespaces.get("", &namespace).and_then(|ns| tenant_of(&*ns)) {
                    return vec![ObjectRef::new(&owner)];
                }
                let listing = all().filter(|t| t.spec.namespaces.iter().any(|n| n.name == namespace));
                listing.map(|t| ObjectRef::from_obj(&*t)).collect()
            }
        }
    }

    pub(super) fn observe(&self, tenant: &GpuTenant) -> Observed {
        let me = tenant.name_any();
        let mut names = self.caches.namespaces.names_of_tenant(&me);
        let listed: BTreeSet<&String> = tenant.spec.namespaces.iter().map(|n| &n.name).collect();
        names.extend(listed.iter().map(|name| (*name).clone()));
        let namespaces = names.into_iter().filter_map(|name| {
            let found = self.caches.namespaces.get("", &name)?;
            // the label may have changed since the names were read
            let concerned = listed.contains(&name) || found.labels().get(names::TENANT_LABEL) == Some(&me);
            concerned.then_some((name, found))
        });
        let namespaces: BTreeMap<_, _> = namespaces.collect();
        let quotas = each(&namespaces, |ns| self.caches.quotas.get(ns, render::QUOTA));
        let bindings = of(&self.caches.bindings, render::OWNERS, &namespaces);
        let viewers = of(&self.caches.bindings, render::VIEWERS, &namespaces);
        let networks = of(&self.caches.policies, render::NETWORK, &namespaces);
        let limits = of(&self.caches.limits, render::LIMITS, &namespaces);
        let classes = each(&namespaces, |ns| self.caches.quotas.get(ns, render::CLASSES));
        let grants = of(&self.caches.grants, names::GRANT, &namespaces);
        let pulls = self.pulls(&namespaces);
        let (standard, home, api_endpoints) =
            (self.standard.clone(), self.settings.home.clone(), self.caches.api_endpoints());
        let view = self.view.borrow().clone();
        let (firm, unseen) = {
            let mut fence = self.fence();
            let unseen = fence.unseen(&me, |name| namespaces.contains_key(name));
            let firm = |(ns, q): &(&String, &Arc<SlimQuota>)| {
                fence.is_fenced(&me, ns, version(&***q), budget::fencing_token(q))
            };
            (quotas.iter().filter(firm).map(|(ns, _)| ns.clone()).collect(), unseen)
        };
        // a budget in one place does not move, unless one profile's goes to another
        let counting = quotas.len() > 1 || tenant.spec.gpu_equivalents.is_some();
        let unsteady = self.unsteady(&quotas, counting);
        let here = quotas.keys().filter(|_| counting).flat_map(|ns| self.caches.pods.in_namespace(ns));
        let counted = budget::counted(here.collect::<Vec<_>>().iter().map(|p| &**p));
        let (tenant, refused, now) = (tenant.clone(), RefusedControllers::default(), Timestamp::now());
        let mut seen = Observed {
            tenant,
            namespaces,
            quotas,
            bindings,
            viewers,
            networks,
            limits,
            classes,
            pulls,
            standard,
            api_endpoints,
            home,
            grants,
            firm,
            unsteady,
            counted,
            unseen,
            refused,
            view,
            now,
        };
        seen.refused = self.refused_of(&seen);
        seen
    }

    /// The image pull secrets of these namespaces, and those that may be copied there.
    fn pulls(&self, namespaces: &BTreeMap<String, Arc<SlimNamespace>>) -> Pulls {
        let caches = &self.caches.pulls;
        let mut pulls = Pulls::default();
        for (name, stores) in &caches.named {
            let source = stores.source.get(&self.settings.home, name);
            pulls.sources.insert(name.clone(), source);
            let here = of(&stores.secrets, name, namespaces).into_iter();
            pulls.secrets.extend(here.map(|(namespace, secret)| ((namespace, name.clone()), secret)));
        }
        pulls.accounts = caches.accounts.iter().flat_map(|store| of(store, pull::ACCOUNT, namespaces)).collect();
        pulls
    }

    /// Namespaces in which a limit in force has come down within [`STEADY`], as far as this leader can know; of a budget that does not move
    /// nothing is remembered, and nothing wanted.
    fn unsteady(&self, quotas: &BTreeMap<String, Arc<SlimQuota>>, moves: bool) -> BTreeSet<String> {
        let mut lowered = self.lowered.lock().unwrap_or_else(PoisonError::into_inner);
        let mut unsteady = BTreeSet::new();
        if !moves {
            for namespace in quotas.keys() {
                lowered.remove(namespace);
            }
            return unsteady;
        }
        for (namespace, quota) in quotas {
            let now = budget::InForce::of(quota);
            let since = match lowered.get(namespace) {
                Some((before, since)) if !now.fell_from(before) => *since,
                _ => Instant::now(),
            };
            lowered.insert(namespace.clone(), (now, since));
            if since.elapsed() < STEADY {
                unsteady.insert(namespace.clone());
            }
        }
        unsteady
    }

    /// Follows the controllers that this tenant's quotas refused.
    fn refused_of(&self, seen: &Observed) -> RefusedControllers {
        let refusals: Vec<Refused> = seen.quotas.keys().flat_map(|namespace| self.refusals_in(namespace)).collect();
        let mut all = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let old = all.remove(&seen.name()).unwrap_or_default();
        let (new, waited) = old.update(&refusals, &seen.quota_states(), seen.now);
        for time in waited {
            self.metrics.budget_moved(time.as_secs_f64());
        }
        if !new.is_empty() {
            all.insert(seen.name(), new.clone());
        }
        new
    }

    fn refusals_in(&self, namespace: &str) -> Vec<Refused> {
        let refusals = self.caches.refusals.of(namespace);
        if refusals.is_empty() {
            return Vec::new();
        }
        let newest_pods = newest_pods(self.caches.pods.in_namespace(namespace).iter().map(|pod| &**pod));
        let refused = |refusal: QuotaRefusal| Refused {
            namespace: namespace.to_owned(),
            target: WakeTarget::of(&refusal.controller).filter(|_| self.settings.wake_controllers),
            version: refusal.version,
            at: refusal.at,
            amounts: refusal.requested(),
            newest_pod: newest_pods.get(&refusal.uid).copied(),
            uid: refusal.uid,
        };
        refusals.into_iter().map(refused).collect()
    }

    /// A controller was woken.
    pub(super) fn woken(&self, tenant: &str, wake: &Wake) {
        let mut all = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(refused) = all.get_mut(tenant) {
            refused.woken(wake);
        }
    }

    /// A namespace whose quota a later leader has written.
    pub(super) fn outranked_in(&self, seen: &Observed) -> Option<String> {
        let fence = self.fence();
        let mut quotas = seen.quotas.iter();
        quotas
            .find(|(_, q)| fence.is_superseded(version(&***q), budget::fencing_token(q)))
            .map(|(namespace, _)| namespace.clone())
    }

    /// Forgets a tenant that has gone.
    pub(super) fn forget(&self, seen: &Observed) {
        self.has_passed(&seen.name());
        self.fence().forget(&seen.name());
        let mut lowered = self.lowered.lock().unwrap_or_else(PoisonError::into_inner);
        lowered.retain(|namespace, _| !seen.namespaces.contains_key(namespace));
    }

    pub(super) fn fence(&self) -> std::sync::MutexGuard<'_, WriteFence> {
        self.fence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For how long a tenant has been in a state that passes by itself.
    pub(super) fn passes_for(&self, tenant: &str) -> Duration {
        self.passing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(tenant.to_owned())
            .or_insert_with(Instant::now)
            .elapsed()
    }

    /// A tenant is in such a state no longer.
    pub(super) fn has_passed(&self, tenant: &str) {
        self.passing.lock().unwrap_or_else(PoisonError::into_inner).remove(tenant);
    }

    /// Counts failed reconciles of a tenant in a row; a success ends the row.
    pub(super) fn failures(&self, tenant: &str, failed: bool) -> u32 {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if !failed {
            failures.remove(tenant);
            return 0;
        }
        let count = failures.entry(tenant.to_owned()).or_default();
        *count = count.saturating_add(1);
        *count
    }

    /// Remembers the version that a write produced.
    pub(super) fn note(&self, kept: Kept, namespace: String, applied: &impl Resource) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.insert((kept, namespace), (version(applied), Instant::now()));
    }

    /// Have the caches seen what we wrote last into these namespaces?
    pub(super) fn caught_up(&self, seen: &Observed) -> Result<(), TenantError> {
        for namespace in seen.namespaces.keys() {
            let mut all = vec![
                (Kept::Quota, namespace.clone(), seen.quotas.get(namespace).map(|o| version(&**o))),
                (Kept::Binding, namespace.clone(), seen.bindings.get(namespace).map(|o| o.version)),
                (Kept::Viewers, namespace.clone(), seen.viewers.get(namespace).map(|o| o.version)),
                (Kept::Grant, namespace.clone(), seen.grants.get(namespace).map(|o| o.version)),
                (Kept::Network, namespace.clone(), seen.networks.get(namespace).map(|o| o.version)),
                (Kept::Limits, namespace.clone(), seen.limits.get(namespace).map(|o| o.version)),
                (Kept::Classes, namespace.clone(), seen.classes.get(namespace).map(|o| version(&**o))),
                (Kept::Account, namespace.clone(), seen.pulls.accounts.get(namespace).map(|o| version(&**o))),
            ];
            all.extend(seen.pulls.sources.keys().map(|name| {
                let shown = seen.pulls.secrets.get(&(namespace.clone(), name.clone()));
                (Kept::Pull, format!("{namespace}/{name}"), shown.map(|o| version(&**o)))
            }));
            for (kept, which, shown) in all {
                if !self.is_shown(kept, which, shown) {
                    return Err(TenantError::Lagging(format!("the {} of namespace {namespace}", kept.words())));
                }
            }
        }
        Ok(())
    }

    /// Does the cache, which shows this version of an object, show what was written last?
    pub(super) fn is_shown(&self, kept: Kept, which: String, shown: Option<u64>) -> bool {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (kept, which);
        let Some((last, since)) = written.get(&key).copied() else { return true };
        // an object that was deleted meanwhile is never shown in the version that was written
        if since.elapsed() < LONGEST_LAG && shown.is_none_or(|shown| shown < last) {
            return false;
        }
        written.remove(&key);
        true
    }
}

/// Objects of this name in these namespaces.
fn of<V>(store: &Store<V>, name: &str, namespaces: &BTreeMap<String, Arc<SlimNamespace>>) -> BTreeMap<String, Arc<V>> {
    each(namespaces, |ns| store.get(ns, name))
}

fn each<V>(
    namespaces: &BTreeMap<String, Arc<SlimNamespace>>,
    get: impl Fn(&str) -> Option<Arc<V>>,
) -> BTreeMap<String, Arc<V>> {
    namespaces.keys().filter_map(|ns| Some((ns.clone(), get(ns)?))).collect()
}
