//! What the operator knows of the cluster: one slim store per kind, and who is woken by which change.

mod demand;
pub mod doors;
mod index;
mod pack;
mod packed_store;
mod print;
mod project;
pub mod pull;
mod refusals;
mod watch;

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use gputenancy_crds::{GpuGrant, GpuNode, GpuPool, GpuProfile, GpuTenant, names};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, Resource, ResourceExt,
    core::DeserializeGuard,
    runtime::{WatchStreamExt as _, reflector::Store, watcher},
};
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::{Notify, mpsc};

use crate::migmanager::Configs;

pub use demand::{Demand, Tenants};
pub use doors::{Door, SlimEndpoints, SlimService};
pub use index::Index;
pub use packed_store::PackedStore;
pub use print::{Print, SlimLimits, SlimPolicy};
pub use project::*;
pub use pull::{PullCaches, SlimAccount, SlimSecret};
pub use refusals::{ControllerRef, QuotaRefusal, Refusals};
use watch::{Indexer, Watch};

use crate::{args::Places, foreign::DRA_DRIVER};

/// A kind that people write: an object that does not parse must not end the watch.
pub type Guarded<K> = DeserializeGuard<K>;

/// Who wants to know about changes.
#[derive(Clone)]
pub struct Wakes {
    /// The fleet's pass: profiles, pools, tenants, nodes, pods.
    pub fleet: Arc<Notify>,
    /// Tenants by name.
    pub tenants: mpsc::UnboundedSender<String>,
}

/// The stores.
#[derive(Clone)]
pub struct Caches {
    /// The catalog.
    pub profiles: Store<Guarded<GpuProfile>>,
    /// The supply.
    pub pools: Store<Guarded<GpuPool>>,
    /// The demand.
    pub tenants: Tenants,
    /// The agreements.
    pub gpu_nodes: Store<Guarded<GpuNode>>,
    /// Nodes.
    pub nodes: Store<SlimNode>,
    /// What NVIDIA's DRA driver publishes; `None`: the API server does not know such objects.
    pub slices: Option<Store<SlimSlice>>,
    /// Pods that ask for extended resources.
    pub pods: Store<SlimPod>,
    /// Their names by namespace.
    pub pods_of: Index,
    /// All namespaces.
    pub namespaces: PackedStore<SlimNamespace>,
    /// Their names by tenant, of those that have its label.
    pub namespaces_of: Index,
    /// Our quotas.
    pub quotas: PackedStore<SlimQuota>,
    /// Our role bindings.
    pub bindings: PackedStore<SlimBinding>,
    /// Our grants.
    pub grants: PackedStore<GpuGrant>,
    /// Our network policies.
    pub policies: PackedStore<SlimPolicy>,
    /// Our limit ranges.
    pub limits: PackedStore<SlimLimits>,
    /// The API server's service.
    pub service: Store<SlimService>,
    /// The API server's addresses.
    pub endpoints: Store<SlimEndpoints>,
    /// Refusals of pods by our quotas, as controllers report them.
    pub refusals: Refusals,
    /// The layouts for NVIDIA's MIG manager, of which there is one object.
    pub mig_config: Store<ConfigMap>,
    /// Image pull secrets of tenants, where the chart allows any.
    pub pulls: PullCaches,
}

impl Caches {
    /// Starts all watches; `with_slices`: the API server knows [`SlimSlice`]s.
    pub fn start(client: &Client, places: &Places, wakes: &Wakes, with_slices: bool) -> Self {
        let (pods_of, namespaces_of) = (Index::default(), Index::default());
        let ours = watcher::Config::default().labels(&format!("{}={}", names::MANAGED_BY_LABEL, names::MANAGED_BY));
        Self {
            profiles: guarded(client, wakes),
            pools: guarded(client, wakes),
            tenants: tenants(client, wakes),
            gpu_nodes: guarded(client, wakes),
            nodes: Watch {
                api: Api::all(client.clone()),
                config: watcher::Config::default(),
                project: lighten_node,
                keep: |_| true,
                key: ResourceExt::name_any,
                digest: |n: &SlimNode| digest(&(&n.metadata.labels, &n.metadata.annotations, &n.spec, &n.status)),
                index: None,
            }
            .start(fleet(wakes)),
            slices: with_slices.then(|| {
                Watch {
                    api: Api::all(client.clone()),
                    config: watcher::Config::default().fields(&format!("spec.driver={DRA_DRIVER}")),
                    project: lighten,
                    keep: |_| true,
                    key: ResourceExt::name_any,
                    digest: |s: &SlimSlice| digest(&s.spec.node_name),
                    index: None,
                }
                .start(fleet(wakes))
            }),
            pods: Watch {
                api: Api::all(client.clone()),
                config: watcher::Config::default(),
                project: lighten_pod,
                keep: SlimPod::wants_devices,
                key: |p: &SlimPod| (p.namespace(), p.name_any()),
                digest: |p| {
                    let m = &p.metadata;
                    digest(&(&m.uid, &m.deletion_timestamp, &m.annotations, &p.spec.node_name, &p.status))
                },
                index: Some(Indexer {
                    index: pods_of.clone(),
                    of: |(namespace, name)| Some((namespace.as_deref()?, name)),
                }),
            }
            .start(fleet(wakes)),
            pods_of,
            namespaces: Watch {
                api: Api::all(client.clone()),
                config: watcher::Config::default(),
                project: lighten,
                keep: |_| true,
                key: |n: &SlimNamespace| (n.name_any(), tenant_of(n)),
                digest: |n| {
                    digest(&(&n.metadata.labels, &n.metadata.deletion_timestamp, &n.metadata.annotations, &n.status))
                },
                index: Some(Indexer {
                    index: namespaces_of.clone(),
                    of: |(name, tenant)| Some((tenant.as_deref()?, name)),
                }),
            }
            .start_packed({
                let tenants = wakes.tenants.clone();
                // an unlabelled namespace may be the foreign one that a tenant waits for: its name tells
                move |(name, tenant)| drop(tenants.send(tenant.unwrap_or(format!("{OF_NAMESPACE}{name}"))))
            }),
            namespaces_of,
            quotas: owned(client, ours.clone(), wakes, lighten, |q: &SlimQuota| {
                digest(&(&q.metadata.labels, &q.metadata.annotations, &q.spec, &q.status))
            }),
            bindings: owned(client, ours.clone(), wakes, lighten_owned, |b: &SlimBinding| {
                digest(&(&b.metadata.labels, &b.role_ref, &b.subjects))
            }),
            grants: owned(client, ours.clone(), wakes, lighten_owned, |g: &GpuGrant| {
                digest(&(&g.metadata.labels, &g.spec))
            }),
            policies: owned(client, ours.clone(), wakes, lighten_owned, |p: &SlimPolicy| {
                digest(&(&p.metadata.labels, &p.spec))
            }),
            limits: owned(client, ours, wakes, lighten_owned, |l: &SlimLimits| digest(&(&l.metadata.labels, &l.spec))),
            service: service(client, wakes),
            endpoints: endpoints(client, wakes),
            refusals: Refusals::start(client, {
                let tenants = wakes.tenants.clone();
                move |namespace| drop(tenants.send(format!("{OF_NAMESPACE}{namespace}")))
            }),
            mig_config: mig_config(client, places.layouts(), wakes),
            pulls: PullCaches::start(client, places, wakes),
        }
    }

    /// The layouts that are published for NVIDIA's MIG manager; what cannot be read is written anew.
    pub fn mig_configs(&self) -> Configs {
        let objects = self.mig_config.state();
        let text = objects.first().and_then(|c| c.data.as_ref()?.get(names::MIG_CONFIG_KEY));
        text.map(|t| Configs::parse(t)).and_then(Result::ok).unwrap_or_default()
    }

    /// Where the API server answers.
    pub fn doors(&self) -> BTreeSet<Door> {
        let (services, slices) = (self.service.state(), self.endpoints.state());
        doors::doors(services.iter().map(|s| &**s), slices.iter().map(|s| &**s))
    }

    /// Waits until every store holds a first list; says which one is waited for through `waiting`.
    pub async fn ready(&self, waiting: impl Fn(&'static str)) {
        let Self {
            profiles,
            pools,
            tenants,
            gpu_nodes,
            nodes,
            slices,
            pods,
            pods_of: _,
            namespaces,
            namespaces_of: _,
            quotas,
            bindings,
            grants,
            policies,
            limits,
            service,
            endpoints,
            refusals,
            mig_config,
            pulls,
        } = self;
        wait(profiles.wait_until_ready(), "gpuprofiles", &waiting).await;
        wait(pools.wait_until_ready(), "gpupools", &waiting).await;
        wait(tenants.wait_until_ready(), "gputenants", &waiting).await;
        wait(gpu_nodes.wait_until_ready(), "gpunodes", &waiting).await;
        wait(nodes.wait_until_ready(), "nodes", &waiting).await;
        if let Some(slices) = slices {
            wait(slices.wait_until_ready(), "resourceslices", &waiting).await;
        }
        wait(pods.wait_until_ready(), "pods", &waiting).await;
        wait(namespaces.wait_until_ready(), "namespaces", &waiting).await;
        wait(quotas.wait_until_ready(), "resourcequotas", &waiting).await;
        wait(bindings.wait_until_ready(), "rolebindings", &waiting).await;
        wait(grants.wait_until_ready(), "gpugrants", &waiting).await;
        wait(policies.wait_until_ready(), "networkpolicies", &waiting).await;
        wait(limits.wait_until_ready(), "limitranges", &waiting).await;
        wait(service.wait_until_ready(), "services", &waiting).await;
        wait(endpoints.wait_until_ready(), "endpointslices", &waiting).await;
        wait(refusals.wait_until_ready(), "events", &waiting).await;
        wait(mig_config.wait_until_ready(), "configmaps", &waiting).await;
        pulls.ready(&waiting).await;
    }
}

/// Does the API server know `ResourceSlice`s?
pub async fn knows_slices(client: &Client) -> kube::Result<bool> {
    match client.list_api_group_resources("resource.k8s.io/v1").await {
        Ok(known) => Ok(known.resources.iter().any(|r| r.name == "resourceslices")),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(false),
        Err(error) => Err(error),
    }
}

/// Prefix of a wake that names a namespace instead of a tenant; no tenant's name has a slash.
pub const OF_NAMESPACE: &str = "namespace/";
/// A wake for every tenant.
pub const EVERYBODY: &str = "/";

/// A store's first list is waited for; it fails only when the writer is gone, that is when the runtime ends.
async fn wait<T>(ready: impl Future<Output = T>, name: &'static str, waiting: &impl Fn(&'static str)) {
    waiting(name);
    ready.await;
}

fn guarded<K>(client: &Client, wakes: &Wakes) -> Store<Guarded<K>>
where
    K: Resource<DynamicType = (), Scope = kube::core::ClusterResourceScope>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    Watch {
        api: Api::all(client.clone()),
        config: watcher::Config::default(),
        project: lighten,
        keep: |_| true,
        key: ResourceExt::name_any,
        digest: digest_guarded,
        index: None,
    }
    .start(fleet(wakes))
}

/// A number that differs when the object differs in more than its version, which changes with every write.
fn digest_guarded<K: Resource + Clone + Serialize>(object: &Guarded<K>) -> u64 {
    match &object.0 {
        Ok(object) => {
            let mut object = object.clone();
            object.meta_mut().resource_version = None;
            digest(&object)
        }
        Err(invalid) => digest(&invalid.metadata.generation),
    }
}

fn tenants(client: &Client, wakes: &Wakes) -> Tenants {
    let wakes = wakes.clone();
    let events = watcher(Api::<Guarded<GpuTenant>>::all(client.clone()), watcher::Config::default().streaming_lists());
    let events = events.backoff(watch::backoff()).modify(lighten);
    Tenants(watch::follow_packed(events, Tenants::how(), move |name| {
        wakes.fleet.notify_one();
        drop(wakes.tenants.send(name));
    }))
}

fn owned<K>(
    client: &Client,
    config: watcher::Config,
    wakes: &Wakes,
    project: fn(&mut K),
    digest: fn(&K) -> u64,
) -> PackedStore<K>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Serialize + DeserializeOwned + Send + Sync + 'static,
{
    let tenants = wakes.tenants.clone();
    let key = |o: &K| (o.namespace(), o.name_any(), tenant_of(o));
    Watch { api: Api::all(client.clone()), config, project, keep: |_| true, key, digest, index: None }.start_packed(
        move |(_, _, tenant)| {
            if let Some(tenant) = tenant {
                drop(tenants.send(tenant));
            }
        },
    )
}

/// The layouts for NVIDIA's MIG manager.
fn mig_config(client: &Client, namespace: &str, wakes: &Wakes) -> Store<ConfigMap> {
    Watch {
        api: Api::namespaced(client.clone(), namespace),
        config: watcher::Config::default().fields(&format!("metadata.name={}", names::MIG_CONFIG_MAP)),
        project: lighten,
        keep: |_| true,
        key: ResourceExt::name_any,
        digest: |c: &ConfigMap| digest(&c.data),
        index: None,
    }
    .start(fleet(wakes))
}

/// The API server's service.
fn service(client: &Client, wakes: &Wakes) -> Store<SlimService> {
    Watch {
        api: Api::namespaced(client.clone(), doors::NAMESPACE),
        config: watcher::Config::default().fields(&format!("metadata.name={}", doors::NAME)),
        project: lighten,
        keep: |_| true,
        key: ResourceExt::name_any,
        digest: |s: &SlimService| digest(&s.spec),
        index: None,
    }
    .start(everybody(wakes))
}

/// The addresses behind it.
fn endpoints(client: &Client, wakes: &Wakes) -> Store<SlimEndpoints> {
    Watch {
        api: Api::namespaced(client.clone(), doors::NAMESPACE),
        config: watcher::Config::default().labels(&format!("{}={}", doors::SLICE_OF, doors::NAME)),
        project: lighten,
        keep: |_| true,
        key: ResourceExt::name_any,
        digest: |e: &SlimEndpoints| digest(&(&e.endpoints, &e.ports)),
        index: None,
    }
    .start(everybody(wakes))
}

fn fleet<Key>(wakes: &Wakes) -> impl FnMut(Key) + Send + 'static {
    let fleet = wakes.fleet.clone();
    move |_| fleet.notify_one()
}

fn everybody<Key>(wakes: &Wakes) -> impl FnMut(Key) + Send + 'static {
    let tenants = wakes.tenants.clone();
    move |_| drop(tenants.send(EVERYBODY.into()))
}

/// A number that differs when the object's text differs.
pub fn digest(object: &impl Serialize) -> u64 {
    let mut hasher = DefaultHasher::new();
    serde_json::to_vec(object).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}

/// The objects of a store that parse.
pub fn valid<K: Resource<DynamicType = ()> + Clone + 'static>(store: &Store<Guarded<K>>) -> Vec<K> {
    store.state().iter().filter_map(|guarded| guarded.0.as_ref().ok().cloned()).collect()
}
