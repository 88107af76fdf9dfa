//! What the controller of tenants remembers between looks, and what it observes: the caches, its own last writes, controllers' words.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use gputenancy_crds::{GpuTenant, names};
use gputenancy_service::events::Publisher;
use k8s_openapi::jiff::Timestamp;
use kube::{
    Resource, ResourceExt as _,
    runtime::reflector::{ObjectRef, Store},
};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::{
    ROOM, TenantError, budget,
    fence::Fence,
    observe::Observed,
    passing::Passing,
    pull::Pulls,
    queue::Name,
    refused_controllers::{Refused, RefusedControllers, newest_pods},
    render,
    standard::Standard,
    wake_controllers::{Wake, WakeTarget},
};
use crate::{
    apply::Writer,
    cache::{
        Caches, EVERYBODY, OF_NAMESPACE, PackedStore, QuotaRefusal, SlimNamespace, SlimPod, SlimQuota, pull, tenant_of,
    },
    metrics::Metrics,
    view::View,
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
    view: watch::Receiver<Arc<View>>,
    /// What every tenant gets alike.
    standard: Arc<Standard>,
    settings: Settings,
    pub(super) metrics: Arc<Metrics>,
    /// Versions of what was written last, by namespace: a decision about budgets needs to see its quota, and what is not seen
    /// yet would be written once more.
    written: Mutex<HashMap<(Kept, String), (u64, Instant)>>,
    /// States that pass by themselves and that nobody has been told of.
    passing: Mutex<Passing>,
    /// Which quotas can be relied on.
    fence: Mutex<Fence>,
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
        view: watch::Receiver<Arc<View>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (written, passing, refused, lowered) = Default::default();
        let fence = Mutex::new(Fence::new(term));
        let standard = Arc::new(standard);
        Self { caches, writer, publisher, view, standard, settings, metrics, written, passing, fence, refused, lowered }
    }

    /// The tenants that a word means: one by name, the one that has a namespace or else all that list it, or all.
    pub(super) fn meant_by(&self, word: &str) -> Vec<Name> {
        if word == EVERYBODY {
            return self.caches.tenants.names();
        }
        let Some(namespace) = word.strip_prefix(OF_NAMESPACE) else { return vec![word.into()] };
        if let Some(owner) = self.caches.namespaces.get("", namespace).and_then(|ns| tenant_of(&*ns)) {
            return vec![owner.into()];
        }
        let tenants = self.caches.tenants.demands().into_iter();
        let list = tenants.filter(|t| t.namespaces.iter().any(|n| n.name == namespace));
        list.map(|t| t.name.clone()).collect()
    }

    pub(super) fn observe(&self, tenant: &GpuTenant) -> Observed {
        let me = tenant.name_any();
        let mut names = self.caches.namespaces_of.of(&me);
        let listed: BTreeSet<&String> = tenant.spec.namespaces.iter().map(|n| &n.name).collect();
        names.extend(listed.iter().map(|name| (*name).clone()));
        let namespaces = names.into_iter().filter_map(|name| {
            let found = self.caches.namespaces.get("", &name)?;
            // the label may have come off since the index was told
            let concerned = listed.contains(&name) || found.labels().get(names::TENANT_LABEL) == Some(&me);
            concerned.then_some((name, found))
        });
        let namespaces: BTreeMap<_, _> = namespaces.collect();
        let quotas = of(&self.caches.quotas, render::QUOTA, &namespaces);
        let bindings = of(&self.caches.bindings, render::OWNERS, &namespaces);
        let viewers = of(&self.caches.bindings, render::VIEWERS, &namespaces);
        let networks = of(&self.caches.policies, render::NETWORK, &namespaces);
        let limits = of(&self.caches.limits, render::LIMITS, &namespaces);
        let classes = of(&self.caches.quotas, render::CLASSES, &namespaces);
        let grants = of(&self.caches.grants, names::GRANT, &namespaces);
        let pulls = self.pulls(&namespaces);
        let (standard, home, doors) = (self.standard.clone(), self.settings.home.clone(), self.caches.doors());
        let view = self.view.borrow().clone();
        let (firm, unseen) = {
            let mut fence = self.fence();
            let unseen = fence.unseen(&me, |name| namespaces.contains_key(name));
            let firm = |(ns, q): &(&String, &Arc<SlimQuota>)| fence.is_firm(&me, ns, version(&***q), budget::stamp(q));
            (quotas.iter().filter(firm).map(|(ns, _)| ns.clone()).collect(), unseen)
        };
        // a budget in one place does not move, unless one profile's goes to another
        let counting = quotas.len() > 1 || tenant.spec.gpu_equivalents.is_some();
        let unsteady = self.unsteady(&quotas, counting);
        let here = quotas.keys().filter(|_| counting).flat_map(|ns| self.pods_in(ns));
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
            doors,
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

    fn pods_in(&self, namespace: &str) -> Vec<Arc<SlimPod>> {
        let names = self.caches.pods_of.of(namespace);
        names.iter().filter_map(|pod| self.caches.pods.get(&ObjectRef::new(pod).within(namespace))).collect()
    }

    /// The image pull secrets of these namespaces, and those that may be copied there.
    fn pulls(&self, namespaces: &BTreeMap<String, Arc<SlimNamespace>>) -> Pulls {
        let caches = &self.caches.pulls;
        let mut pulls = Pulls::default();
        for (name, stores) in &caches.named {
            let source = stores.source.get(&ObjectRef::new(name).within(&self.settings.home));
            pulls.sources.insert(name.clone(), source);
            let here = stored(&stores.secrets, name, namespaces).into_iter();
            pulls.secrets.extend(here.map(|(namespace, secret)| ((namespace, name.clone()), secret)));
        }
        pulls.accounts = caches.accounts.iter().flat_map(|store| stored(store, pull::ACCOUNT, namespaces)).collect();
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
        let (new, waited) = old.update(&refusals, &seen.standings(), seen.now);
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
        let newest_pods = newest_pods(self.pods_in(namespace).iter().map(|pod| &**pod));
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
            .find(|(_, q)| fence.is_outranked(version(&***q), budget::stamp(q)))
            .map(|(namespace, _)| namespace.clone())
    }

    /// Forgets a tenant that has gone.
    pub(super) fn forget(&self, seen: &Observed) {
        self.has_passed(&seen.name());
        self.fence().forget(&seen.name());
        let mut lowered = self.lowered.lock().unwrap_or_else(PoisonError::into_inner);
        lowered.retain(|namespace, _| !seen.namespaces.contains_key(namespace));
    }

    pub(super) fn fence(&self) -> std::sync::MutexGuard<'_, Fence> {
        self.fence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For how long a tenant has been in a state that passes by itself.
    pub(super) fn passes_for(&self, tenant: &str) -> Duration {
        self.passing.lock().unwrap_or_else(PoisonError::into_inner).lasts(tenant, Instant::now())
    }

    /// A tenant is in such a state no longer.
    pub(super) fn has_passed(&self, tenant: &str) {
        self.passing.lock().unwrap_or_else(PoisonError::into_inner).is_over(tenant);
    }

    pub(super) fn note(&self, kept: Kept, namespace: String, applied: &impl Resource) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        written.insert((kept, namespace), (version(applied), Instant::now()));
    }

    /// Have the caches seen what we wrote last into these namespaces?
    pub(super) fn caught_up(&self, seen: &Observed) -> Result<(), TenantError> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        for namespace in seen.namespaces.keys() {
            let mut all = vec![
                (Kept::Quota, namespace.clone(), seen.quotas.get(namespace).map(|o| version(&**o))),
                (Kept::Binding, namespace.clone(), seen.bindings.get(namespace).map(|o| version(&**o))),
                (Kept::Viewers, namespace.clone(), seen.viewers.get(namespace).map(|o| version(&**o))),
                (Kept::Grant, namespace.clone(), seen.grants.get(namespace).map(|o| version(&**o))),
                (Kept::Network, namespace.clone(), seen.networks.get(namespace).map(|o| version(&**o))),
                (Kept::Limits, namespace.clone(), seen.limits.get(namespace).map(|o| version(&**o))),
                (Kept::Classes, namespace.clone(), seen.classes.get(namespace).map(|o| version(&**o))),
                (Kept::Account, namespace.clone(), seen.pulls.accounts.get(namespace).map(|o| version(&**o))),
            ];
            all.extend(seen.pulls.sources.keys().map(|name| {
                let shown = seen.pulls.secrets.get(&(namespace.clone(), name.clone()));
                (Kept::Pull, format!("{namespace}/{name}"), shown.map(|o| version(&**o)))
            }));
            for (kept, which, shown) in all {
                let key = (kept, which);
                let Some((last, since)) = written.get(&key).copied() else { continue };
                // an object that somebody deleted meanwhile is never seen in the version that we wrote
                let patient = since.elapsed() < LONGEST_LAG;
                if patient && shown.is_none_or(|shown| shown < last) {
                    return Err(TenantError::Lagging(format!("the {} of namespace {namespace}", kept.words())));
                }
                written.remove(&key);
            }
        }
        if written.is_empty() {
            written.shrink_to(ROOM);
        }
        Ok(())
    }
}

/// Objects of this name in these namespaces.
fn of<K>(
    store: &PackedStore<K>,
    name: &str,
    namespaces: &BTreeMap<String, Arc<SlimNamespace>>,
) -> BTreeMap<String, Arc<K>>
where
    K: DeserializeOwned,
{
    namespaces.keys().filter_map(|ns| Some((ns.clone(), store.get(ns, name)?))).collect()
}

/// As [`of`], from a store that has them as they are.
fn stored<K>(
    store: &Store<K>,
    name: &str,
    namespaces: &BTreeMap<String, Arc<SlimNamespace>>,
) -> BTreeMap<String, Arc<K>>
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    let one = |ns: &String| Some((ns.clone(), store.get(&ObjectRef::new(name).within(ns))?));
    namespaces.keys().filter_map(one).collect()
}

pub(super) fn version(object: &impl Resource) -> u64 {
    object.meta().resource_version.as_deref().and_then(|v| v.parse().ok()).unwrap_or(u64::MAX)
}
