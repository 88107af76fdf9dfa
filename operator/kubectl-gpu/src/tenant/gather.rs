//! Reads the objects of a report with gets and lists. Forbidden objects are noted and left out.

use std::{collections::BTreeSet, fmt::Debug};

use futures::future::join_all;
use gputenancy_cluster::error::sentence;
use gputenancy_crds::{
    GpuGrant, GpuProfile, GpuTenant, names,
    projection::{SlimEvent, SlimQuota},
};
use k8s_openapi::{
    api::{
        apps::v1::{ReplicaSet, StatefulSet},
        batch::v1::Job,
        core::v1::{Event, Pod},
    },
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, ObjectList},
    core::{NamespaceResourceScope, Request},
};
use serde::de::DeserializeOwned;

use super::{NamespaceObjects, PendingWorkloads, PositionsError, Sources};

/// The queue in each namespace of a team.
const QUEUE: &str = "default";
/// Jobs of a namespace whose waits are read.
const MOST_WORKLOADS: u32 = 500;

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum GatherError {
    /// No tenant has this name.
    #[error("there is no GpuTenant {0}: kubectl get gputenants lists them")]
    NoTenant(String),
    /// An object cannot be read.
    #[error("reading {object}: {}", sentence(&**source))]
    Read {
        /// The object.
        object: String,
        /// The error.
        source: Box<kube::Error>,
    },
    /// The user may read neither the tenant nor one of its namespaces.
    #[error(
        "you may not read GpuTenant {tenant}, and none of the namespaces {} is a readable namespace of it: name one of the \
         team's namespaces with -n", .namespaces.join(", ")
    )]
    NoNamespace {
        /// The tenant.
        tenant: String,
        /// The namespaces that were read.
        namespaces: Vec<String>,
    },
}

/// Collects what may not be read.
#[derive(Default)]
struct Hidden(Vec<String>);

impl Hidden {
    /// The object; `None` where it is missing or forbidden.
    fn visible<T>(&mut self, what: &str, answer: kube::Result<T>) -> Result<Option<T>, GatherError> {
        match answer {
            Ok(found) => Ok(Some(found)),
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(None),
            Err(kube::Error::Api(status)) if status.is_forbidden() => {
                self.0.push(what.to_owned());
                Ok(None)
            }
            Err(error) => {
                let object = what.split(": ").next().unwrap_or(what).to_owned();
                Err(GatherError::Read { object, source: Box::new(error) })
            }
        }
    }

    /// The objects of a list; none where it is forbidden.
    fn items<K: Clone>(&mut self, what: &str, answer: kube::Result<ObjectList<K>>) -> Result<Vec<K>, GatherError> {
        Ok(self.visible(what, answer)?.map(|list| list.items).unwrap_or_default())
    }
}

/// Reads the objects of a tenant; `namespaces` are read if the tenant itself is hidden.
pub async fn gather(client: &Client, name: &str, namespaces: &[String]) -> Result<Sources, GatherError> {
    let mut hidden = Hidden::default();
    let answer = Api::<GpuTenant>::all(client.clone()).get(name).await;
    if matches!(&answer, Err(kube::Error::Api(status)) if status.is_not_found()) {
        return Err(GatherError::NoTenant(name.to_owned()));
    }
    let what = format!(
        "GpuTenant {name}: trust, conditions, what is available, names in a virtual cluster, and namespaces that -n does not name"
    );
    let tenant = hidden.visible(&what, answer)?;
    let names: Vec<String> = match &tenant {
        Some(tenant) => of_tenant(tenant),
        None if namespaces.is_empty() => [client.default_namespace(), name].map(str::to_owned).into(),
        None => namespaces.to_vec(),
    };
    let names: BTreeSet<String> = names.into_iter().collect();
    let mut namespaces_read = Vec::new();
    for read in join_all(names.iter().map(|namespace| namespace_objects(client, namespace))).await {
        let (objects, withheld) = read?;
        // without the right to read the tenant, the grant shows which tenant owns the namespace
        if tenant.is_some() || objects.grant.as_ref().is_some_and(|g| g.spec.tenant == name) {
            namespaces_read.push(objects);
            hidden.0.extend(withheld.0);
        } else if !namespaces.is_empty() {
            hidden.0.push(format!("namespace {}: it has no grant of tenant {name} that you may read", objects.name));
        }
    }
    if tenant.is_none() && namespaces_read.is_empty() {
        return Err(GatherError::NoNamespace { tenant: name.to_owned(), namespaces: names.into_iter().collect() });
    }
    let profiles = profiles(client, tenant.as_ref(), &namespaces_read, &mut hidden).await?;
    Ok(Sources {
        name: name.to_owned(),
        tenant,
        namespaces: namespaces_read,
        profiles,
        hidden: hidden.0,
        now: Timestamp::now(),
    })
}

fn of_tenant(tenant: &GpuTenant) -> Vec<String> {
    let status = tenant.status.clone().unwrap_or_default();
    let foreign = |name: &String| status.namespaces.iter().any(|n| n.name == *name && n.phase == "Foreign");
    let listed = tenant.spec.namespaces.iter().map(|n| n.name.clone());
    // retained namespaces count too
    let kept = status.namespaces.iter().map(|n| n.name.clone());
    listed.chain(kept).filter(|name| !foreign(name)).collect()
}

async fn profiles(
    client: &Client,
    tenant: Option<&GpuTenant>,
    namespaces_read: &[NamespaceObjects],
    hidden: &mut Hidden,
) -> Result<Vec<GpuProfile>, GatherError> {
    let budget = tenant.into_iter().flat_map(|t| &t.spec.gpus).map(|g| g.profile.clone());
    let granted =
        namespaces_read.iter().filter_map(|p| p.grant.as_ref()).flat_map(|g| &g.spec.profiles).map(|p| p.name.clone());
    let names: BTreeSet<String> = budget.chain(granted).collect();
    let api = Api::<GpuProfile>::all(client.clone());
    let mut withheld = Hidden::default();
    let mut profiles = Vec::new();
    for (name, answer) in names.iter().zip(join_all(names.iter().map(|name| api.get(name))).await) {
        profiles.extend(withheld.visible(name, answer)?);
    }
    if !withheld.0.is_empty() {
        hidden.0.push(format!("GpuProfiles {}: isolation and enforcement", withheld.0.join(", ")));
    }
    Ok(profiles)
}

/// Objects of one namespace.
async fn namespace_objects(client: &Client, namespace: &str) -> Result<(NamespaceObjects, Hidden), GatherError> {
    let all = ListParams::default();
    let refusals = all.clone().fields("reason=FailedCreate,type=Warning");
    let (grants, quotas) = (api::<GpuGrant>(client, namespace), api::<SlimQuota>(client, namespace));
    let pods = api::<Pod>(client, namespace);
    let (sets, stateful) = (api::<ReplicaSet>(client, namespace), api::<StatefulSet>(client, namespace));
    let jobs = api::<Job>(client, namespace);
    let (grant, quota, pods, events, sets, stateful, jobs) = tokio::join!(
        grants.get(names::GRANT),
        quotas.get(names::QUOTA),
        pods.list(&all),
        events(client, namespace, &refusals),
        sets.list(&all),
        stateful.list(&all),
        jobs.list(&all),
    );
    let mut hidden = Hidden::default();
    let of = |what: &str| format!("{what} of namespace {namespace}");
    let mut objects = NamespaceObjects {
        name: namespace.to_owned(),
        grant: hidden.visible(&of("the grant"), grant)?,
        quota: hidden.visible(&of("the quota"), quota)?,
        pods: hidden.items(&of("pods"), pods)?,
        events: hidden.items(&of("events"), events)?,
        ..NamespaceObjects::default()
    };
    let short = |existing: i32, wanted: Option<i32>| existing < wanted.unwrap_or(1);
    let sets = hidden.items(&of("ReplicaSets"), sets)?.into_iter().map(|set| {
        let existing = set.status.as_ref().map_or(0, |s| s.replicas);
        (set.uid(), short(existing, set.spec.and_then(|s| s.replicas)))
    });
    let stateful = hidden.items(&of("StatefulSets"), stateful)?.into_iter().map(|set| {
        let existing = set.status.as_ref().map_or(0, |s| s.replicas);
        (set.uid(), short(existing, set.spec.and_then(|s| s.replicas)))
    });
    let jobs = hidden.items(&of("Jobs"), jobs)?.into_iter().map(|job| (job.uid(), is_short(&job)));
    let controllers = sets.chain(stateful).chain(jobs);
    objects.controllers = controllers.map(|(uid, short)| (uid.unwrap_or_default(), short)).collect();
    if objects.grant.as_ref().is_some_and(|grant| !grant.spec.queued.is_empty()) {
        let (pending, workloads) = tokio::join!(pending(client, namespace), workloads(client, namespace));
        objects.pending = Some(pending);
        objects.workloads = hidden.items(&of("Kueue's Workloads (recent waits)"), workloads)?;
    }
    Ok((objects, hidden))
}

/// The order of the jobs that wait, by Kueue's visibility API. Without it the rest of the report is still shown.
async fn pending(client: &Client, namespace: &str) -> Result<PendingWorkloads, PositionsError> {
    let queues = format!("/apis/visibility.kueue.x-k8s.io/v1beta2/namespaces/{namespace}/localqueues");
    let request = Request::new(queues).get_subresource("pendingworkloads", QUEUE);
    let request = request.map_err(|error| PositionsError::Other(error.to_string()))?;
    client.request(request).await.map_err(|error| match &error {
        kube::Error::Api(status) if status.is_forbidden() => PositionsError::Forbidden(namespace.to_owned()),
        kube::Error::Api(status) if status.is_not_found() => PositionsError::NotServed(namespace.to_owned()),
        kube::Error::Api(status) if status.code == 503 => PositionsError::NoBackend,
        _ => PositionsError::Other(sentence(&error)),
    })
}

/// Kueue's objects of the jobs of a namespace, at most [`MOST_WORKLOADS`].
async fn workloads(client: &Client, namespace: &str) -> kube::Result<ObjectList<DynamicObject>> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", "Workload"));
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &kind);
    api.list(&ListParams::default().limit(MOST_WORKLOADS)).await
}

/// Events by the core API, which the role `view` of Kubernetes lets a team read.
async fn events(client: &Client, namespace: &str, params: &ListParams) -> kube::Result<ObjectList<SlimEvent>> {
    let request = Request::new(Event::url_path(&(), Some(namespace))).list(params);
    client.request(request.map_err(kube::Error::BuildRequest)?).await
}

fn is_short(job: &Job) -> bool {
    let (spec, status) = (job.spec.clone().unwrap_or_default(), job.status.clone().unwrap_or_default());
    let over =
        |type_: &str| matches!(type_, "Complete" | "Failed" | "Suspended" | "SuccessCriteriaMet" | "FailureTarget");
    if status.conditions.iter().flatten().any(|c| c.status == "True" && over(&c.type_)) {
        return false;
    }
    let parallel = spec.parallelism.unwrap_or(1);
    let left = spec.completions.map_or(parallel, |all| all.saturating_sub(status.succeeded.unwrap_or(0)));
    status.active.unwrap_or(0) < parallel.min(left)
}

fn api<K>(client: &Client, namespace: &str) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    Api::namespaced(client.clone(), namespace)
}
