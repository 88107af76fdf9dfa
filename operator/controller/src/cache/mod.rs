//! What the operator knows of the cluster: one small store per kind, filled by one watch.
//!
//! A change of an object triggers the fleet's pass, tenants, or both. This is the lowest layer: it reads no decision.

pub mod api_endpoints;
mod awaited_window;
mod json_store;
pub mod kueue;
pub mod pull;
mod refusals;
mod triggers;

use std::{collections::BTreeSet, fmt::Debug, sync::Arc};

use futures::{StreamExt as _, TryStreamExt as _};
use gputenancy_crds::{GpuGrant, GpuNode, GpuPool, GpuProfile, GpuTenant, GpuTenantSpec, metadata::Unmanaged, names};
use k8s_openapi::api::{
    core::v1::{ConfigMap, LimitRange},
    networking::v1::NetworkPolicy,
    rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding},
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    core::{ClusterResourceScope, DeserializeGuard},
    runtime::{WatchStreamExt as _, reflector, watcher},
};
use serde::de::DeserializeOwned;

use gputenancy_cluster::{
    desired::{Owned, OwnedObject},
    rights::operator::Locations,
    watch::{self, Change, Projection, Restarts, Store, Watch},
};
use gputenancy_crds::projection::{
    SlimAgentPod, SlimNamespace, SlimNode, SlimPod, SlimQuota, SlimSlice, project_agent_pod, project_namespace,
    project_node, project_pod, project_tenant, projected, strip_metadata, tenant_label,
};
use gputenancy_decisions::{maintenance::MaintenanceRequest, ownership::DRA_DRIVER};

pub use api_endpoints::{ApiEndpoint, SlimEndpoints, SlimService};
pub use awaited_window::AwaitedWindow;
use json_store::JsonObject;
pub use json_store::JsonStore;
pub use kueue::KueueCaches;
pub use pull::{PullCaches, SlimAccount, SlimSecret};
pub use refusals::{ControllerRef, QuotaRefusal, Refusals};
use triggers::distinct;
pub use triggers::{Trigger, Triggers};

/// The stores.
#[derive(Clone)]
pub struct Caches {
    /// The catalog.
    pub profiles: Store<GpuProfile>,
    /// The supply.
    pub pools: Store<GpuPool>,
    /// The demand; kube's store, from which its `Controller` reads.
    pub tenants: reflector::Store<GpuTenant>,
    /// The layouts of nodes.
    pub gpu_nodes: Store<GpuNode>,
    /// Nodes.
    pub nodes: Store<SlimNode>,
    /// Slices of NVIDIA's DRA driver; `None`: the API server does not serve the kind.
    pub slices: Option<Store<SlimSlice>>,
    /// Maintenance that is announced to NVSentinel; empty where it is not installed.
    pub maintenance: Store<MaintenanceRequest>,
    /// Pods that request extended resources.
    pub pods: Store<SlimPod>,
    /// Pods of the agent; `None`: the chart passes no selector.
    pub agent_pods: Option<Store<SlimAgentPod>>,
    /// All namespaces, grouped by tenant.
    pub namespaces: JsonStore<SlimNamespace>,
    /// The operator's quotas.
    pub quotas: JsonStore<SlimQuota>,
    /// The operator's role bindings.
    pub bindings: Store<OwnedObject>,
    /// What lets owners and viewers read their tenant; `None`: the chart has it off.
    pub tenant_roles: Option<TenantRoles>,
    /// The operator's grants.
    pub grants: Store<OwnedObject>,
    /// The operator's network policies.
    pub policies: Store<OwnedObject>,
    /// The operator's limit ranges.
    pub limits: Store<OwnedObject>,
    /// The API server's service.
    pub service: Store<SlimService>,
    /// The API server's addresses.
    pub endpoints: Store<SlimEndpoints>,
    /// Refusals of pods by our quotas, as controllers report them.
    pub refusals: Refusals,
    /// The layouts for components that partition a node as a whole: one object.
    pub mig_config: Store<ConfigMap>,
    /// The configs for NVIDIA's device plugin: one object.
    pub plugin_configs: Store<ConfigMap>,
    /// Image pull secrets of tenants, where the chart allows any.
    pub pulls: PullCaches,
    /// Queues of Kueue; `None`: the chart has them off.
    pub kueue: Option<KueueCaches>,
}

/// `ClusterRole`s and `ClusterRoleBinding`s of tenants, without a namespace.
#[derive(Clone)]
pub struct TenantRoles {
    /// The roles.
    pub roles: Store<OwnedObject>,
    /// Their bindings.
    pub bindings: Store<OwnedObject>,
}

impl Caches {
    /// Starts all watches; `with_slices`: the API server serves `ResourceSlice`s.
    pub fn start(client: &Client, locations: &Locations, triggers: &Triggers, with_slices: bool) -> Self {
        let of_operator = format!("{}={}", names::MANAGED_BY_LABEL, names::MANAGED_BY);
        let mig_config = Api::namespaced(client.clone(), locations.layouts());
        let plugin_configs = Api::namespaced(client.clone(), locations.plugin_configs());
        let api_server = Api::namespaced(client.clone(), names::API_SERVER_NAMESPACE);
        let api_server_slices = Api::namespaced(client.clone(), names::API_SERVER_NAMESPACE);
        Self {
            profiles: custom("gpuprofiles", client, triggers.fleet()),
            pools: custom("gpupools", client, triggers.pools()),
            tenants: tenants(client, triggers),
            gpu_nodes: custom("gpunodes", client, triggers.fleet()),
            nodes: Watch::new("nodes", Api::all(client.clone()), |mut n: SlimNode| {
                project_node(&mut n);
                Some(n)
            })
            .start(triggers.fleet()),
            slices: with_slices.then(|| {
                Watch::new("resourceslices", Api::all(client.clone()), projected::<SlimSlice>)
                    .fields(&format!("spec.driver={DRA_DRIVER}"))
                    .start(triggers.fleet())
            }),
            maintenance: Watch::new(
                MaintenanceRequest::PLURAL,
                Api::all(client.clone()),
                MaintenanceRequest::projected,
            )
            .start_while_served(client.clone(), MaintenanceRequest::API_VERSION, triggers.fleet()),
            pods: Watch::new("pods", Api::all(client.clone()), |mut p: SlimPod| {
                project_pod(&mut p);
                p.requests_devices().then_some(p)
            })
            .start(triggers.pods()),
            agent_pods: agent_pods(client, locations, triggers),
            namespaces: namespaces(client, triggers),
            quotas: quotas(client, &of_operator, triggers),
            bindings: owned::<RoleBinding>("rolebindings", client, &of_operator, triggers),
            tenant_roles: locations.owners_read_tenant.then(|| TenantRoles {
                roles: owned::<ClusterRole>("clusterroles", client, &of_operator, triggers),
                bindings: owned::<ClusterRoleBinding>("clusterrolebindings", client, &of_operator, triggers),
            }),
            grants: owned::<GpuGrant>("gpugrants", client, &of_operator, triggers),
            policies: owned::<NetworkPolicy>("networkpolicies", client, &of_operator, triggers),
            limits: owned::<LimitRange>("limitranges", client, &of_operator, triggers),
            service: Watch::new("services", api_server, projected::<SlimService>)
                .fields(&format!("metadata.name={}", names::API_SERVER))
                .start(triggers.all_tenants()),
            endpoints: Watch::new("endpointslices", api_server_slices, projected::<SlimEndpoints>)
                .labels(&format!("{}={}", api_endpoints::SLICE_OF, names::API_SERVER))
                .start(triggers.all_tenants()),
            refusals: Refusals::start(client, {
                let tenants = triggers.tenants.clone();
                move |namespace| drop(tenants.send(Trigger::Namespace(namespace)))
            }),
            mig_config: Watch::new("configmaps", mig_config, projected::<ConfigMap>)
                .fields(&format!("metadata.name={}", names::MIG_CONFIG_MAP))
                .start(triggers.fleet()),
            plugin_configs: Watch::new("configmaps", plugin_configs, projected::<ConfigMap>)
                .fields(&format!("metadata.name={}", names::DEVICE_PLUGIN_CONFIG_MAP))
                .start(triggers.fleet()),
            pulls: PullCaches::start(client, locations, triggers),
            kueue: locations.kueue.then(|| KueueCaches::start(client, || triggers.queues())),
        }
    }

    /// The addresses of the API server.
    pub fn api_endpoints(&self) -> BTreeSet<ApiEndpoint> {
        let (services, slices) = (self.service.state(), self.endpoints.state());
        api_endpoints::api_endpoints(services.iter().map(|s| &**s), slices.iter().map(|s| &**s))
    }

    /// The namespaces of a tenant, also by their label: one that was taken from it is left out.
    pub fn namespaces_of(&self, tenant: &str) -> BTreeSet<String> {
        let mut names = self.namespaces.names_of_tenant(tenant);
        names.retain(|name| self.namespaces.get("", name).is_some_and(|ns| tenant_label(&*ns) == Some(tenant)));
        names
    }

    /// Waits until every store holds a first list; passes the resource that is waited for to `waiting`.
    pub async fn ready(&self, waiting: impl Fn(&'static str)) {
        self.profiles.wait_until_ready(&waiting).await;
        self.pools.wait_until_ready(&waiting).await;
        waiting("gputenants");
        // fails only when the runtime ends
        drop(self.tenants.wait_until_ready().await);
        self.gpu_nodes.wait_until_ready(&waiting).await;
        self.nodes.wait_until_ready(&waiting).await;
        if let Some(slices) = &self.slices {
            slices.wait_until_ready(&waiting).await;
        }
        self.maintenance.wait_until_ready(&waiting).await;
        self.pods.wait_until_ready(&waiting).await;
        if let Some(pods) = &self.agent_pods {
            pods.wait_until_ready(&waiting).await;
        }
        self.namespaces.wait_until_ready(&waiting).await;
        self.quotas.wait_until_ready(&waiting).await;
        let roles = self.tenant_roles.iter().flat_map(|t| [&t.roles, &t.bindings]);
        for owned in [&self.bindings, &self.grants, &self.policies, &self.limits].into_iter().chain(roles) {
            owned.wait_until_ready(&waiting).await;
        }
        self.service.wait_until_ready(&waiting).await;
        self.endpoints.wait_until_ready(&waiting).await;
        waiting("events");
        self.refusals.wait_until_ready().await;
        self.mig_config.wait_until_ready(&waiting).await;
        self.plugin_configs.wait_until_ready(&waiting).await;
        self.pulls.ready(&waiting).await;
        if let Some(kueue) = &self.kueue {
            kueue.ready(&waiting).await;
        }
    }
}

/// Does the API server serve `ResourceSlice`s?
pub async fn serves_slices(client: &Client) -> kube::Result<bool> {
    watch::serves(client, "resource.k8s.io/v1", "resourceslices").await
}

/// A custom resource that people write. An object that does not match its schema counts as absent and does not end the watch.
fn custom<K>(resource: &'static str, client: &Client, changed: impl FnMut(Change<K>) + Send + 'static) -> Store<K>
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope>
        + Clone
        + Debug
        + PartialEq
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let keep = |Unmanaged(guarded): Unmanaged<DeserializeGuard<K>>| match guarded.0 {
        Ok(object) => projected(object),
        Err(error) => {
            let name = error.metadata.name.as_deref().unwrap_or_default();
            tracing::warn!(%error, kind = %K::kind(&()), name, "object does not match its schema, ignoring it");
            None
        }
    };
    Watch::new(resource, Api::all(client.clone()), keep).start(changed)
}

fn tenants(client: &Client, triggers: &Triggers) -> reflector::Store<GpuTenant> {
    let (store, writer) = reflector::store();
    let triggers = triggers.clone();
    let api = Api::<Unmanaged<DeserializeGuard<GpuTenant>>>::all(client.clone());
    let events =
        watch::events(api, watcher::Config::default(), watch::LONGEST_DELAY).map_ok(valid_tenant).reflect(writer);
    tokio::spawn(async move {
        let (mut events, mut restarts) = (std::pin::pin!(events), Restarts::new("gputenants"));
        while let Some(event) = events.next().await {
            let trigger = match restarts.note(event) {
                Some(watcher::Event::Apply(tenant) | watcher::Event::Delete(tenant)) => {
                    Trigger::Tenant(tenant.name_any())
                }
                Some(watcher::Event::InitDone) => Trigger::AllTenants,
                Some(watcher::Event::Init | watcher::Event::InitApply(_)) | None => continue,
            };
            triggers.fleet.notify_one();
            triggers.queues.notify_one();
            drop(triggers.tenants.send(trigger));
        }
    });
    store
}

/// A tenant that does not match its schema counts as absent.
fn valid_tenant(event: watcher::Event<Unmanaged<DeserializeGuard<GpuTenant>>>) -> watcher::Event<GpuTenant> {
    use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};
    let (guarded, wrap): (_, fn(GpuTenant) -> watcher::Event<GpuTenant>) = match event {
        Apply(guarded) => (guarded, Apply),
        InitApply(guarded) => (guarded, InitApply),
        Delete(guarded) => (guarded, Delete),
        Init => return Init,
        InitDone => return InitDone,
    };
    let Unmanaged(guarded) = guarded;
    match guarded.0 {
        Ok(mut tenant) => {
            project_tenant(&mut tenant);
            wrap(tenant)
        }
        Err(error) => {
            let name = error.metadata.name.as_deref().unwrap_or_default();
            tracing::warn!(%error, tenant = name, "tenant does not match its schema, ignoring it");
            Delete(GpuTenant { metadata: error.metadata, spec: GpuTenantSpec::default(), status: None })
        }
    }
}

fn agent_pods(client: &Client, locations: &Locations, triggers: &Triggers) -> Option<Store<SlimAgentPod>> {
    let selector = Some(locations.agent_selector.as_str()).filter(|s| !s.is_empty())?;
    let keep = |mut pod: SlimAgentPod| {
        project_agent_pod(&mut pod);
        Some(pod)
    };
    let pods = Watch::new("pods", Api::namespaced(client.clone(), &locations.namespace), keep).labels(selector);
    Some(pods.start(triggers.fleet()))
}

fn namespaces(client: &Client, triggers: &Triggers) -> JsonStore<SlimNamespace> {
    let projection = json_store::projection(|n| Some(json_store::keep(n, project_namespace)));
    let (api, config) = (Api::all(client.clone()), watcher::Config::default());
    JsonStore::new(Watch { resource: "namespaces", api, config, projection }.start(triggers.tenants(
        |change: Change<JsonObject>| {
            // a namespace without the label may be one that a tenant waits for: found by its name
            let name = change.key.name;
            let trigger = |namespace: Arc<JsonObject>| {
                namespace.tenant.clone().map_or_else(|| Trigger::Namespace(name.to_string()), Trigger::Tenant)
            };
            distinct(change.old.map(trigger), change.new.map(trigger))
        },
    )))
}

fn quotas(client: &Client, selector: &str, triggers: &Triggers) -> JsonStore<SlimQuota> {
    let projection = json_store::projection(|q: SlimQuota| Some(json_store::keep(q, strip_metadata)));
    let (api, config) = (Api::all(client.clone()), watcher::Config::default().labels(selector));
    JsonStore::new(Watch { resource: "resourcequotas", api, config, projection }.start(triggers.tenants(
        |change: Change<JsonObject>| {
            let trigger = |quota: Arc<JsonObject>| quota.tenant.clone().map(Trigger::Tenant);
            distinct(change.old.and_then(trigger), change.new.and_then(trigger))
        },
    )))
}

fn owned<K>(resource: &'static str, client: &Client, selector: &str, triggers: &Triggers) -> Store<OwnedObject>
where
    K: Owned + Clone + Debug + Send + Sync + 'static,
{
    let projection = Projection {
        keep: |object: Unmanaged<K>| Some(OwnedObject::of(&object.0)),
        differs: |old: &OwnedObject, new| old.content != new.content,
        group: |_| None,
    };
    let config = watcher::Config::default().labels(selector);
    Watch { resource, api: Api::all(client.clone()), config, projection }.start(triggers.tenants(
        |change: Change<OwnedObject>| {
            let trigger = |object: Arc<OwnedObject>| Some(Trigger::Tenant(object.tenant.as_deref()?.to_owned()));
            distinct(change.old.and_then(trigger), change.new.and_then(trigger))
        },
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tenant_that_does_not_match_its_schema_counts_as_deleted() {
        let tenant = |gpus| -> Unmanaged<DeserializeGuard<GpuTenant>> {
            serde_json::from_value(json!({
                "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuTenant", "metadata": {
                    "name": "team-a", "resourceVersion": "7", "managedFields": [{"manager": "x", "time": "10000-01-01T23:58:59Z"}],
                },
                "spec": {"namespaces": [{"name": "team-a"}], "gpus": gpus},
            }))
            .unwrap()
        };
        let invalid = || tenant(json!("many"));
        for event in [watcher::Event::Apply(invalid()), watcher::Event::InitApply(invalid())] {
            assert!(matches!(valid_tenant(event), watcher::Event::Delete(t) if t.name_any() == "team-a"));
        }
        let valid = valid_tenant(watcher::Event::Apply(tenant(json!([{"profile": "mig-1g", "count": 2}]))));
        assert!(matches!(valid, watcher::Event::Apply(t) if t.spec.gpus.len() == 1));
    }
}
