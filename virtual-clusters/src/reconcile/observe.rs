//! What is read before anything is decided: the tenant's namespace, and the virtual cluster inside it.

use gputenancy_crds::{GpuTenant, VirtualCluster, VirtualClusterBackend};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::{Client, ResourceExt as _};

use crate::{
    access::{self, AccessError},
    args::Standard,
    context::Context,
    host::{Host, HostError, Live, Policy},
    host_api::Priorities,
    inside::{
        account::{self, Account},
        catalog::CatalogError,
        connect::{self, Admin, CallError, timed},
        nodes::{self, Nodes},
        orphans::{self, PodInside, PodsError},
        priorities,
        refusals::{self, Refusals},
    },
    kubeconfig::IssuedKubeconfig,
    memory::Memory,
    names,
};

/// The tenant's namespace.
pub(super) struct Namespace {
    /// The objects that this program has applied, or the workload that another program has.
    pub live: Vec<Live>,
    /// What limits and isolates the tenant and is missing, as kinds and names.
    pub missing_policy: Option<String>,
    /// The Service of an adopted vCluster.
    pub service: Option<Service>,
    /// Pods of the control plane.
    pub control_plane: Vec<Pod>,
    /// Pods that the syncer has made. They can be too many, which stops nothing else.
    pub synced: Result<Vec<Pod>, HostError>,
}

/// Reads the namespace, if the operator has bound this program's rights there for this tenant.
pub(super) async fn namespace(
    tenant: &GpuTenant,
    cluster: &VirtualCluster,
    context: &Context,
    host: &Host,
) -> Result<Namespace, HostError> {
    host.bound().await?;
    let (name, refused) = (tenant.name_any(), |error| host.refused(error));
    let (live, service) = match cluster.backend {
        VirtualClusterBackend::Helm => (host.applied().await.map_err(refused)?, None),
        VirtualClusterBackend::External => {
            let service = host.service(&name).await;
            let service =
                service.map_err(|error| HostError::Service { name: name.clone(), source: Box::new(error) })?;
            (host.workloads().await.map_err(refused)?, service)
        }
    };
    let policy = Policy::of(tenant, context.standard.limit_range);
    let missing_policy = host.missing_policy(&policy).await.map_err(refused)?;
    let control_plane = host.control_plane_pods().await;
    let control_plane = control_plane.map_err(|error| HostError::ControlPlanePods(Box::new(error)))?;
    let synced = host.synced_pods().await.map_err(refused);
    Ok(Namespace { live, missing_policy, service, control_plane, synced })
}

/// The virtual cluster.
pub(super) struct Inside {
    /// A client of its API server.
    pub client: Client,
    /// The credentials that it uses.
    pub admin: Admin,
    /// The kubeconfig in the Secret of the namespace.
    pub issued: Option<IssuedKubeconfig>,
    /// The team's account.
    pub account: Account,
    /// Its nodes.
    pub nodes: Result<Nodes, CallError>,
    /// Pods that the quota refuses.
    pub refusals: Result<Refusals, CallError>,
    /// Its pods; `None`: there is nothing to compare them with.
    pub pods: Option<Result<Vec<PodInside>, PodsError>>,
    /// The classes of this cluster that its pods may name.
    pub priorities: Result<Priorities, CatalogError>,
}

/// Reads the virtual cluster. The pods of the namespace must have been read before: a pod inside that is not listed was deleted then, and not only
/// made later.
pub(super) async fn inside(
    tenant: &GpuTenant,
    cluster: &VirtualCluster,
    (context, host, namespace): (&Context, &Host, &Namespace),
    memory: &Memory,
) -> Result<Inside, AccessError> {
    let name = tenant.name_any();
    let secrets = host.secrets();
    let read = async |secret: &str| {
        let found = secrets.get_opt(secret).await;
        found.map_err(|error| AccessError::Read { secret: secret.to_owned(), source: Box::new(error) })
    };
    let secret = names::admin_secret(&name);
    let admin = read(&secret).await?.as_ref().and_then(Admin::of).ok_or(AccessError::NoAdmin(secret))?;
    let client = match &memory.connection {
        Some((known, client)) if *known == admin => client.clone(),
        _ => connect::client(&admin, &access::service(tenant, cluster)).await?,
    };
    let issued = read(names::KUBECONFIG_SECRET).await?.as_ref().and_then(IssuedKubeconfig::of);
    let account = timed(account::read(&client)).await?;
    // at the same time, so that a slow server takes no longer
    let synced = namespace.synced.as_ref().is_ok_and(|synced| !synced.is_empty());
    let pods = async { if synced { Some(timed(orphans::pods(&client)).await) } else { None } };
    let (nodes, refusals, pods, priorities) = tokio::join!(
        timed(nodes::list(&client)),
        timed(refusals::find(&client, tenant)),
        pods,
        granted_priorities(tenant, context)
    );
    let pods = match pods {
        None if refusals.as_ref().is_ok_and(|refusals| !refusals.all.is_empty()) => {
            Some(timed(orphans::pods(&client)).await)
        }
        pods => pods,
    };
    Ok(Inside { client, admin, issued, account, nodes, refusals, pods, priorities })
}

/// The `PriorityClasses` that the tenant's pods may name.
async fn granted_priorities(tenant: &GpuTenant, context: &Context) -> Result<Priorities, CatalogError> {
    let Standard { priority_classes, .. } = &context.standard;
    let names = || priority_classes.0.iter().chain(tenant.spec.priority_classes.iter().flatten());
    if names().next().is_none() {
        return Ok(Priorities::new());
    }
    let host = context.host_api.priorities().await;
    let host = host.map_err(|error| CatalogError::PriorityClasses(Box::new(error)))?;
    Ok(priorities::granted(names(), &host))
}
