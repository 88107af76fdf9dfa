//! State of the tenant controller between reconciles, and what a reconcile observes.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use gputenancy_cluster::{desired::version, error::sentence, events::Publisher, watch::Store};
use gputenancy_crds::{
    GpuTenant, names,
    projection::{SlimNamespace, SlimQuota, tenant_of},
};
use gputenancy_decisions::{fleet_view::FleetView, quota::write_fence::WriteFence};
use k8s_openapi::jiff::Timestamp;
use kube::{Resource, ResourceExt as _, runtime::reflector::ObjectRef};
use tokio::sync::watch;

use super::{
    TenantError,
    decide::{budget, roles::Roles},
    memory::{ForeignAccess, TenantMemory},
    observe::{
        Observed, PullSecrets,
        foreign_access::{self, Access},
        managed::Managed,
        refused_controllers::{Refused, RefusedControllers, newest_pods},
        versions::Written,
        wake_controllers::{Wake, WakeTarget},
    },
    render::namespace_defaults::Standard,
    status::earlier_access,
};
use crate::{
    apply::Writer,
    cache::{AwaitedWindow, Caches, QuotaRefusal, Trigger},
    metrics::Metrics,
    queues::QueueView,
};

/// Time after a limit was lowered in which no other limit is raised: a pod that was admitted just before may not exist yet, and the
/// quota controller, which counts pods that exist, may have left it out. Most exist after a few milliseconds.
pub(super) const SETTLING_TIME: Duration = Duration::from_millis(500);

/// Age at which the role bindings and network policies of an adopted namespace are read again. They are not watched: the condition follows so
/// long after a person has removed some.
pub(super) const EARLIER_ACCESS_AGE: Duration = Duration::from_mins(1);
/// Time for these reads in one reconcile.
const EARLIER_ACCESS_PATIENCE: Duration = Duration::from_secs(5);

/// Settings from the command line.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The operator's namespace, which no tenant may list.
    pub home: String,
    /// Write a condition into the status of refused controllers once there is headroom.
    pub wake_controllers: bool,
    /// The controller of virtual clusters is installed.
    pub virtual_clusters: bool,
}

/// What the other controllers have decided.
pub struct Views {
    /// Of the fleet.
    pub fleet: watch::Receiver<Arc<FleetView>>,
    /// Of queues.
    pub queues: watch::Receiver<Arc<QueueView>>,
}

/// State of the controller.
pub struct Context {
    pub(super) caches: Caches,
    pub(super) writer: Writer,
    pub(super) publisher: Publisher,
    views: Views,
    /// Settings of the platform for every tenant.
    standard: Arc<Standard>,
    settings: Settings,
    pub(super) metrics: Arc<Metrics>,
    /// This leader's writes of quotas.
    fence: Mutex<WriteFence>,
    /// What is remembered of each tenant.
    memory: Mutex<HashMap<String, TenantMemory>>,
}

impl Context {
    /// The state of a new leader; `term` grows from leader to leader.
    pub fn new(
        term: u64,
        (settings, standard): (Settings, Standard),
        caches: Caches,
        writer: Writer,
        publisher: Publisher,
        views: Views,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (fence, memory) = (Mutex::new(WriteFence::new(term)), Mutex::default());
        let standard = Arc::new(standard);
        Self { caches, writer, publisher, views, standard, settings, metrics, fence, memory }
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
            Trigger::Pool(name) => {
                // the profiles of a deleted pool trigger all tenants
                let Some(pool) = self.caches.pools.get("", &name) else { return Vec::new() };
                let served = all().filter(|t| t.spec.gpus.iter().any(|g| pool.spec.profiles.contains(&g.profile)));
                served.map(|t| ObjectRef::from_obj(&*t)).collect()
            }
        }
    }

    pub(super) fn observe(&self, tenant: &GpuTenant) -> Observed {
        let name = tenant.name_any();
        let namespaces = self.namespaces(tenant);
        let quotas = each(&namespaces, |ns| self.caches.quotas.get(ns, names::QUOTA));
        let object = |kind: Managed, namespace: &str| {
            Some(((kind, namespace.to_owned()), kind.cached(&self.caches, &name, namespace)?))
        };
        let managed = namespaces.keys().flat_map(|ns| Managed::from_spec().filter_map(|kind| object(kind, ns)));
        let of_cluster = Managed::OF_CLUSTER.into_iter().filter_map(|kind| object(kind, Managed::NO_NAMESPACE));
        let (fenced, uncached) = {
            let mut fence = self.fence();
            let uncached = fence.unseen(&name, |namespace| namespaces.contains_key(namespace));
            let is_fenced = |(ns, quota): &(&String, &Arc<SlimQuota>)| {
                fence.is_fenced(&name, ns, version(&***quota), budget::fencing_token(quota))
            };
            (quotas.iter().filter(is_fenced).map(|(ns, _)| ns.clone()).collect(), uncached)
        };
        // a budget in one namespace does not move, unless it moves between profiles
        let moves = quotas.len() > 1 || tenant.spec.gpu_equivalents.is_some();
        let pods: Vec<_> = quotas.keys().filter(|_| moves).flat_map(|ns| self.caches.pods.in_namespace(ns)).collect();
        let (view, queues) = (self.views.fleet.borrow().clone(), self.views.queues.borrow().clone());
        let mut seen = Observed {
            tenant: tenant.clone(),
            managed: managed.chain(of_cluster).collect(),
            pull_secrets: self.pull_secrets(&namespaces),
            standard: self.standard.clone(),
            api_endpoints: self.caches.api_endpoints(),
            operator_namespace: self.settings.home.clone(),
            virtual_clusters: self.settings.virtual_clusters,
            readable: self.caches.tenant_roles.is_some(),
            fenced,
            recently_lowered: self.remember(&name, |memory| {
                memory.retain(&namespaces);
                recently_lowered(memory, &quotas, moves)
            }),
            requested: budget::requested(pods.iter().map(|pod| &**pod)),
            uncached,
            foreign_access: BTreeMap::new(),
            refused: RefusedControllers::default(),
            windows: self.windows(tenant, &view),
            policy_in_force: false,
            view,
            queues,
            now: Timestamp::now(),
            namespaces,
            quotas,
        };
        seen.refused = self.refused_of(&seen);
        seen.policy_in_force = seen.grants_are_cached();
        seen
    }

    /// The role bindings and network policies of others in adopted namespaces, read where they were not read within [`EARLIER_ACCESS_AGE`]. After a
    /// failure they are as before for as long: they only inform.
    pub(super) async fn earlier_access(&self, seen: &Observed, roles: &Roles) -> BTreeMap<String, Vec<Access>> {
        let until = Instant::now() + EARLIER_ACCESS_PATIENCE;
        let (tenant, mut found) = (seen.name(), BTreeMap::new());
        if seen.tenant.metadata.deletion_timestamp.is_some() {
            return found;
        }
        for (namespace, _) in earlier_access::adopted(seen, roles) {
            let mut known = self
                .remember(&tenant, |memory| memory.namespaces.get(&namespace).and_then(|of| of.foreign_access.clone()));
            if known.as_ref().is_none_or(|known| known.tried.elapsed() >= EARLIER_ACCESS_AGE) {
                let read = foreign_access::list(self.writer.client(), &tenant, &namespace);
                let read = tokio::time::timeout_at(until.into(), read).await;
                let read =
                    read.map_err(|_| "no answer in time".to_owned()).and_then(|read| read.map_err(|e| sentence(&e)));
                let read = read.inspect_err(|error| {
                    tracing::warn!(
                        error,
                        namespace,
                        "cannot list role bindings and network policies of an adopted namespace: condition EarlierAccess may be out of date"
                    );
                });
                let read = read.ok().or(known.and_then(|known| known.found));
                let now = ForeignAccess { found: read, tried: Instant::now() };
                self.remember(&tenant, |memory| {
                    memory.namespaces.entry(namespace.clone()).or_default().foreign_access = Some(now.clone());
                });
                known = Some(now);
            }
            found.extend(known.and_then(|known| known.found).map(|all| (namespace, all)));
        }
        found
    }

    /// The windows that changes of pools with profiles of the tenant wait for, by pool.
    fn windows(&self, tenant: &GpuTenant, view: &FleetView) -> BTreeMap<String, AwaitedWindow> {
        let profiles = tenant.spec.gpus.iter().filter_map(|g| view.profiles.get(&g.profile));
        let pools = profiles.flat_map(|profile| &profile.contract.pools);
        let window = |name: &String| {
            let pool = self.caches.pools.get("", name)?;
            Some((name.clone(), AwaitedWindow::of(&pool)?))
        };
        pools.filter_map(window).collect()
    }

    /// Namespaces that the tenant lists, and those with its label.
    fn namespaces(&self, tenant: &GpuTenant) -> BTreeMap<String, Arc<SlimNamespace>> {
        let owner = tenant.name_any();
        let listed: BTreeSet<&String> = tenant.spec.namespaces.iter().map(|n| &n.name).collect();
        let mut names = self.caches.namespaces.names_of_tenant(&owner);
        names.extend(listed.iter().map(|name| (*name).clone()));
        let namespaces = names.into_iter().filter_map(|name| {
            let found = self.caches.namespaces.get("", &name)?;
            // the label may have changed since the names were read
            let concerned = listed.contains(&name) || found.labels().get(names::TENANT_LABEL) == Some(&owner);
            concerned.then_some((name, found))
        });
        namespaces.collect()
    }

    /// The image pull secrets of these namespaces, and their sources.
    fn pull_secrets(&self, namespaces: &BTreeMap<String, Arc<SlimNamespace>>) -> PullSecrets {
        let caches = &self.caches.pulls;
        let mut found = PullSecrets::default();
        for (name, stores) in &caches.named {
            found.sources.insert(name.clone(), stores.source.get(&self.settings.home, name));
            let secrets = in_each(&stores.secrets, name, namespaces).into_iter();
            found.secrets.extend(secrets.map(|(namespace, secret)| ((namespace, name.clone()), secret)));
        }
        found.accounts =
            caches.accounts.iter().flat_map(|store| in_each(store, names::DEFAULT_ACCOUNT, namespaces)).collect();
        found
    }

    /// Updates the refused controllers of the tenant.
    fn refused_of(&self, seen: &Observed) -> RefusedControllers {
        let refusals: Vec<Refused> = seen.quotas.keys().flat_map(|namespace| self.refusals_in(namespace)).collect();
        let states = seen.quota_states();
        let (new, waited) = self.remember(&seen.name(), |memory| {
            let (new, waited) = std::mem::take(&mut memory.refused).update(&refusals, &states, seen.now);
            memory.refused = new.clone();
            (new, waited)
        });
        for time in waited {
            self.metrics.budget_moved(time.as_secs_f64());
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

    /// Notes that a controller was woken.
    pub(super) fn woken(&self, tenant: &str, wake: &Wake) {
        self.remember(tenant, |memory| memory.refused.woken(wake));
    }

    /// A namespace whose quota a later leader has written.
    pub(super) fn outranked_in(&self, seen: &Observed) -> Option<String> {
        let fence = self.fence();
        let mut quotas = seen.quotas.iter();
        quotas
            .find(|(_, q)| fence.is_superseded(version(&***q), budget::fencing_token(q)))
            .map(|(namespace, _)| namespace.clone())
    }

    /// Removes the state of a deleted tenant.
    pub(super) fn forget(&self, seen: &Observed) {
        self.fence().forget(&seen.name());
        lock(&self.memory).remove(&seen.name());
    }

    pub(super) fn fence(&self) -> MutexGuard<'_, WriteFence> {
        lock(&self.fence)
    }

    /// Reads and changes what is remembered of a tenant.
    pub(super) fn remember<T>(&self, tenant: &str, of: impl FnOnce(&mut TenantMemory) -> T) -> T {
        let mut all = lock(&self.memory);
        let memory = all.entry(tenant.to_owned()).or_default();
        let found = of(memory);
        if memory.is_empty() {
            all.remove(tenant);
        }
        found
    }

    /// Remembers the version that a write into a namespace of the tenant produced.
    pub(super) fn wrote(&self, tenant: &str, namespace: String, object: Written, applied: &impl Resource) {
        self.remember(tenant, |memory| memory.versions.wrote(namespace, object, version(applied)));
    }

    /// Fails while the caches do not have the last writes about the tenant.
    pub(super) fn caught_up(&self, seen: &Observed) -> Result<(), TenantError> {
        let tenant = seen.name();
        let namespaces = seen.namespaces.keys().map(String::as_str);
        for namespace in namespaces.chain([Managed::NO_NAMESPACE]) {
            let cached = |object: &Written| seen.version(namespace, object);
            if let Some(object) = self.remember(&tenant, |memory| memory.versions.lagging(namespace, cached)) {
                return Err(TenantError::Lagging(object.describe(&tenant, namespace)));
            }
        }
        Ok(())
    }
}

/// Namespaces in which an enforced limit was lowered within [`SETTLING_TIME`], as far as this leader has observed; none if the budget does not
/// move.
fn recently_lowered(
    memory: &mut TenantMemory,
    quotas: &BTreeMap<String, Arc<SlimQuota>>,
    moves: bool,
) -> BTreeSet<String> {
    if !moves {
        for namespace in memory.namespaces.values_mut() {
            namespace.enforced = None;
        }
        return BTreeSet::new();
    }
    let mut recent = BTreeSet::new();
    for (namespace, quota) in quotas {
        let now = budget::Enforced::of(quota);
        let known = &mut memory.namespaces.entry(namespace.clone()).or_default().enforced;
        let since = match known {
            Some((before, since)) if !now.is_lower_than(before) => *since,
            _ => Instant::now(),
        };
        *known = Some((now, since));
        if since.elapsed() < SETTLING_TIME {
            recent.insert(namespace.clone());
        }
    }
    recent
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Objects of this name in these namespaces.
fn in_each<V>(
    store: &Store<V>,
    name: &str,
    namespaces: &BTreeMap<String, Arc<SlimNamespace>>,
) -> BTreeMap<String, Arc<V>> {
    each(namespaces, |ns| store.get(ns, name))
}

fn each<V>(
    namespaces: &BTreeMap<String, Arc<SlimNamespace>>,
    get: impl Fn(&str) -> Option<Arc<V>>,
) -> BTreeMap<String, Arc<V>> {
    namespaces.keys().filter_map(|ns| Some((ns.clone(), get(ns)?))).collect()
}
