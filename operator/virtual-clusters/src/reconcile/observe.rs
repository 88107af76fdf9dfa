//! What is read before anything is decided: the tenant's namespace, and the virtual cluster inside it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use gputenancy_crds::{GpuTenant, VirtualCluster, VirtualClusterBackend};
use k8s_openapi::api::core::v1::Service;
use kube::{Client, ResourceExt as _};

use crate::{
    access::{self, AccessError},
    args::Standard,
    context::Context,
    host::{Host, HostError, Live, Pods, Policy},
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
    render::objects,
    watches::{Scope, Watched, Watches},
};

/// Longest time for which what was read is used without a report of the watches.
const RESYNC: Duration = Duration::from_mins(5);
/// Shortest time between two reads at rest: a team decides how often objects of its namespace change.
const SHORTEST_READ: Duration = Duration::from_secs(4);
/// Most pods of the syncer that are kept until the next reconcile: a team decides how many it has.
const MOST_REMEMBERED: usize = 500;

/// The tenant's namespace.
pub(super) struct Namespace {
    /// What limits and isolates the tenant and is missing, as kinds and names.
    pub missing_policy: Option<String>,
    /// Objects of vCluster's chart: those that this program has applied, or the workload that another program has.
    pub live: Arc<Vec<Live>>,
    /// The Service of an adopted vCluster. It is always read: its labels, by which it could be watched, are the team's.
    pub service: Option<Service>,
    /// Pods of the control plane, and those that the syncer has made.
    pub pods: Arc<Pods>,
    /// The pods that the syncer has made are too many, which stops nothing else.
    pub too_many_pods: Option<HostError>,
    /// A change was reported shortly after objects or pods were read, and they are read again later.
    pub outdated: bool,
}

/// Reads the namespace, if the operator has bound this program's rights there for this tenant. What was read before is read again when a watch has
/// reported a change, and in every reconcile of a virtual cluster that is not at rest.
pub(super) async fn namespace(
    tenant: &GpuTenant,
    cluster: &VirtualCluster,
    (context, host): (&Context, &Host),
    memory: &mut Memory,
) -> Result<Namespace, HostError> {
    let name = tenant.name_any();
    if let Err(error) = host.bound().await {
        // without the binding the watches have no rights; an API server that does not answer is no reason to list everything again
        if matches!(error, HostError::NotBound { .. } | HostError::OtherTenant { .. }) {
            context.unwatch(&name);
        }
        return Err(error);
    }
    let scope = Scope { tenant: name, namespace: objects::namespace_of(tenant), backend: cluster.backend };
    let watches = context.watch(scope);
    let policy = Policy::of(tenant, context.standard.limit_range);
    let missing_policy = host.missing_policy(&policy).await.map_err(|error| host.refused(error))?;
    let (rests, mut outdated) = (memory.rests, false);
    let service = match cluster.backend {
        VirtualClusterBackend::Helm => None,
        VirtualClusterBackend::External => read_service(&tenant.name_any(), host).await?,
    };
    let live = known((&watches, Watched::Objects), rests, memory.objects.as_ref(), &mut outdated);
    let live = if let Some(live) = live {
        live
    } else {
        let read = read_objects(cluster.backend, host).await.inspect_err(|_| watches.mark(Watched::Objects))?;
        let live = Arc::new(read);
        memory.objects = Some((Instant::now(), live.clone()));
        live
    };
    let mut too_many_pods = None;
    let pods = known((&watches, Watched::Pods), rests, memory.pods.as_ref(), &mut outdated);
    let pods = if let Some(pods) = pods {
        pods
    } else {
        let read = read_pods(host).await.inspect_err(|_| watches.mark(Watched::Pods))?;
        let pods = Arc::new(read.0);
        too_many_pods = read.1;
        let few = pods.synced.as_ref().is_some_and(|synced| synced.len() <= MOST_REMEMBERED);
        memory.pods = few.then(|| (Instant::now(), pods.clone()));
        pods
    };
    Ok(Namespace { missing_policy, live, service, pods, too_many_pods, outdated })
}

/// What was read before, if it need not be read again. `outdated`: it has changed, and was read so shortly before that it is read later.
fn known<T>(
    (watches, part): (&Watches, Watched),
    rests: bool,
    known: Option<&(Instant, Arc<T>)>,
    outdated: &mut bool,
) -> Option<Arc<T>> {
    let holds = watches.take(part);
    let (at, value) = known.filter(|(at, _)| rests && at.elapsed() < RESYNC)?;
    if !holds {
        if at.elapsed() >= SHORTEST_READ {
            return None;
        }
        watches.mark(part);
        *outdated = true;
    }
    Some(value.clone())
}

async fn read_objects(backend: VirtualClusterBackend, host: &Host) -> Result<Vec<Live>, HostError> {
    let read = match backend {
        VirtualClusterBackend::Helm => host.applied().await,
        VirtualClusterBackend::External => host.workloads().await,
    };
    read.map_err(|error| host.refused(error))
}

async fn read_service(name: &str, host: &Host) -> Result<Option<Service>, HostError> {
    let read = host.service(name).await;
    read.map_err(|error| HostError::Service { name: name.to_owned(), source: Box::new(error) })
}

async fn read_pods(host: &Host) -> Result<(Pods, Option<HostError>), HostError> {
    let control_plane = host.control_plane_pods().await;
    let control_plane = control_plane.map_err(|error| HostError::ControlPlanePods(Box::new(error)))?;
    Ok(match host.synced_pods().await {
        Ok(synced) => (Pods { control_plane, synced: Some(synced) }, None),
        Err(error) => (Pods { control_plane, synced: None }, Some(host.refused(error))),
    })
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
    let synced = namespace.pods.synced.as_ref().is_some_and(|synced| !synced.is_empty());
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
