//! Reads a running cluster once, with lists.

use std::fmt::Debug;

use futures::{StreamExt as _, stream};
use gputenancy_cluster::{client, error::sentence, kubeconfig};
use gputenancy_crds::{
    GpuNode, GpuPool, GpuProfile, GpuTenant,
    projection::{SlimNode, SlimSlice},
};
use gputenancy_decisions::maintenance::MaintenanceRequest;
use k8s_openapi::jiff::Timestamp;
use kube::{
    Api, Client, Config, Resource,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use serde::de::DeserializeOwned;

use crate::{
    args::ClusterArgs,
    input::{Document, Object, Reading},
    records::{BudgetRecord, PodRecord},
    world::World,
};

/// Objects in one page of a list.
const PAGE: u32 = 500;
/// What to do about an API server that does not answer.
const REMEDY: &str =
    "; check that it runs and can be reached from here, or name another cluster with --kubeconfig and --context";
/// Namespaces of virtual clusters that are listed at once.
const VIRTUAL_LISTS: usize = 8;

/// Why the cluster cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// There is no usable configuration.
    #[error(
        "no cluster: {0}; name one with --kubeconfig and --context (plan, status and catalog also take --snapshot FILE)"
    )]
    Config(String),
    /// Rights are missing.
    #[error(
        "listing {}: {first}; have an administrator grant list in the whole cluster: ClusterRole gputenancy:viewer for the custom resources, view for pods and budgets, and a rule for nodes. For one team: kubectl gpu tenant NAME",
        .kinds.join(", ")
    )]
    Forbidden {
        /// The kinds that may not be listed.
        kinds: Vec<String>,
        /// The answer of the API server about the first.
        first: String,
    },
    /// A list failed.
    #[error("listing {what}: {}", sentence(&**source))]
    List {
        /// The kind.
        what: String,
        /// The error.
        source: Box<kube::Error>,
    },
}

impl ClusterError {
    fn is_forbidden(&self) -> bool {
        matches!(self, Self::List { source, .. } if is_forbidden(source))
    }
}

/// Collects the kinds that may not be listed, so that all are named at once.
#[derive(Default)]
struct Refused(Vec<(String, String)>);

impl Refused {
    /// The objects; none where they may not be listed.
    fn take<K>(&mut self, answer: Result<Vec<K>, ClusterError>) -> Result<Vec<K>, ClusterError> {
        match answer {
            Err(ClusterError::List { what, source }) if is_forbidden(&source) => {
                self.0.push((what, sentence(&*source)));
                Ok(Vec::new())
            }
            answer => answer,
        }
    }

    fn checked(self) -> Result<(), ClusterError> {
        let Some((_, first)) = self.0.first().cloned() else { return Ok(()) };
        Err(ClusterError::Forbidden { kinds: self.0.into_iter().map(|(kind, _)| kind).collect(), first })
    }
}

fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.is_forbidden())
}

/// A client for the cluster of the flags, or else for kubectl's current one. Each answer has the time limit of the flags.
pub async fn client(args: &ClusterArgs) -> Result<Client, ClusterError> {
    let mut config = config(args).await?;
    config.connect_timeout = Some(args.request_timeout);
    config.read_timeout = Some(args.request_timeout);
    // the user repeats the command; waiting for four attempts looks like a command that hangs
    config.default_retry = false;
    named(config)
}

/// The same for watches, which are silent for minutes; and the address of the server.
pub async fn watching(args: &ClusterArgs) -> Result<(Client, String), ClusterError> {
    let mut config = config(args).await?;
    config.connect_timeout = Some(args.request_timeout);
    let server = config.cluster_url.to_string();
    Ok((named(config)?, server.trim_end_matches('/').to_owned()))
}

fn named(config: Config) -> Result<Client, ClusterError> {
    client::named(config, REMEDY).map_err(|error| ClusterError::Config(sentence(&error)))
}

async fn config(args: &ClusterArgs) -> Result<Config, ClusterError> {
    let ClusterArgs { kubeconfig: file, context, user, groups, request_timeout: _ } = args;
    let unreadable = |error: &KubeconfigError| kubeconfig::sentence(error, file.as_deref());
    let mut config = match file.as_ref().map_or_else(Kubeconfig::read, Kubeconfig::read_from) {
        // in a pod, as kubectl does it
        Err(error) if file.is_none() && context.is_none() => {
            Config::incluster().map_err(|_| ClusterError::Config(unreadable(&error)))?
        }
        read => {
            let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
            let usable = async { Config::from_custom_kubeconfig(read?, &options).await };
            usable.await.map_err(|error| ClusterError::Config(unreadable(&error)))?
        }
    };
    if config.cluster_url.scheme().is_none() {
        let server = config.cluster_url.to_string();
        let server = server.trim_end_matches('/');
        return Err(ClusterError::Config(format!(
            "the server {server} of the kubeconfig has no scheme: write https://{server}"
        )));
    }
    config.auth_info.impersonate = user.clone().or(config.auth_info.impersonate);
    if !groups.is_empty() && config.auth_info.impersonate.is_none() {
        return Err(ClusterError::Config("--as-group needs a user: add --as".to_owned()));
    }
    if !groups.is_empty() {
        config.auth_info.impersonate_groups = Some(groups.clone());
    }
    Ok(config)
}

/// Everything a plan depends on, and what may not be read, in sentences.
pub async fn read(client: &Client) -> Result<(World, Vec<String>), ClusterError> {
    let (profiles, pools, tenants, gpu_nodes, nodes, slices, maintenance, pods, budgets) = futures::join!(
        list::<GpuProfile>(client),
        list::<GpuPool>(client),
        list::<GpuTenant>(client),
        list::<GpuNode>(client),
        list::<SlimNode>(client),
        list_if_served::<SlimSlice>(client),
        maintenance(client),
        list::<PodRecord>(client),
        list::<BudgetRecord>(client),
    );
    let mut refused = Refused::default();
    let (profiles, pools, tenants) = (refused.take(profiles)?, refused.take(pools)?, refused.take(tenants)?);
    let (gpu_nodes, nodes, slices) = (refused.take(gpu_nodes)?, refused.take(nodes)?, refused.take(slices)?);
    let (pods, budgets) = (refused.take(pods)?, refused.take(budgets)?);
    refused.checked()?;
    let maintenance = maintenance?;
    let objects = (profiles.into_iter().map(|o| Object::Profile(Box::new(o))))
        .chain(pools.into_iter().map(|o| Object::Pool(Box::new(o))))
        .chain(tenants.into_iter().map(|o| Object::Tenant(Box::new(o))))
        .chain(gpu_nodes.into_iter().map(|o| Object::GpuNode(Box::new(o))))
        .chain(nodes.into_iter().map(|o| Object::Node(Box::new(o))))
        .chain(slices.into_iter().map(|o| Object::Slice(Box::new(o))))
        .chain(maintenance.iter().flatten().cloned().map(|o| Object::Maintenance(Box::new(o))))
        .chain(pods.into_iter().map(|o| Object::Pod(Box::new(o))))
        .chain(budgets.into_iter().map(|o| Object::Budget(Box::new(o))));
    let hidden = "MaintenanceRequests of NVSentinel may not be listed: nodes that they name count as supply here";
    let not_visible = if maintenance.is_none() { vec![hidden.to_owned()] } else { Vec::new() };
    Ok((world(objects), not_visible))
}

/// `None` where the user may not list them. The API server also says so of a kind that it does not serve.
async fn maintenance(client: &Client) -> Result<Option<Vec<MaintenanceRequest>>, ClusterError> {
    match list_if_served(client).await {
        Err(error) if error.is_forbidden() => Ok(None),
        answer => answer.map(Some),
    }
}

/// What a status of the fleet depends on: the custom resources, Nodes, and the pods of virtual clusters; and what may not be read, in
/// sentences.
pub async fn read_fleet(client: &Client) -> Result<(World, Vec<String>), ClusterError> {
    let (profiles, pools, tenants, gpu_nodes, nodes) = futures::join!(
        list::<GpuProfile>(client),
        list::<GpuPool>(client),
        list::<GpuTenant>(client),
        list::<GpuNode>(client),
        list::<SlimNode>(client),
    );
    let mut refused = Refused::default();
    let (profiles, pools, tenants) = (refused.take(profiles)?, refused.take(pools)?, refused.take(tenants)?);
    let (gpu_nodes, nodes) = (refused.take(gpu_nodes)?, refused.take(nodes)?);
    refused.checked()?;
    let (pods, not_visible) = virtual_pods(client, &tenants).await?;
    let objects = (profiles.into_iter().map(|o| Object::Profile(Box::new(o))))
        .chain(pools.into_iter().map(|o| Object::Pool(Box::new(o))))
        .chain(tenants.into_iter().map(|o| Object::Tenant(Box::new(o))))
        .chain(gpu_nodes.into_iter().map(|o| Object::GpuNode(Box::new(o))))
        .chain(nodes.into_iter().map(|o| Object::Node(Box::new(o))))
        .chain(pods.into_iter().map(|o| Object::Pod(Box::new(o))));
    Ok((world(objects), not_visible))
}

/// Pods in the namespaces of virtual clusters: agents report host pods, whose annotations name the pods inside.
async fn virtual_pods(client: &Client, tenants: &[GpuTenant]) -> Result<(Vec<PodRecord>, Vec<String>), ClusterError> {
    let places = tenants.iter().filter(|t| t.spec.virtual_cluster.is_some()).flat_map(|t| &t.spec.namespaces);
    let lists = places.map(|place| async move {
        let answer = pages(Api::<PodRecord>::namespaced(client.clone(), &place.name)).await;
        (format!("pods of namespace {}: their names in the virtual cluster", place.name), answer)
    });
    let answers: Vec<_> = stream::iter(lists.collect::<Vec<_>>()).buffered(VIRTUAL_LISTS).collect().await;
    let (mut pods, mut not_visible) = (Vec::new(), Vec::new());
    for (what, answer) in answers {
        match answer {
            Err(error) if error.is_forbidden() => not_visible.push(what),
            answer => pods.extend(answer?),
        }
    }
    Ok((pods, not_visible))
}

/// What the catalog depends on, and what may not be read, in sentences. Every user of the catalog may read profiles; pools are left out
/// where they are forbidden.
pub async fn read_catalog(client: &Client) -> Result<(World, Vec<String>), ClusterError> {
    let (profiles, pools) = futures::join!(list::<GpuProfile>(client), list::<GpuPool>(client));
    let (pools, not_visible) = match pools {
        Err(error) if error.is_forbidden() => {
            (Vec::new(), vec!["GpuPools: pools of each profile, and tolerations of their taints".to_owned()])
        }
        pools => (pools?, Vec::new()),
    };
    let objects = (profiles?.into_iter().map(|o| Object::Profile(Box::new(o))))
        .chain(pools.into_iter().map(|o| Object::Pool(Box::new(o))));
    Ok((world(objects), not_visible))
}

fn world(objects: impl Iterator<Item = Object>) -> World {
    let documents = objects.map(|object| Document { file: "(cluster)".into(), line: 0, object }).collect();
    let now = Timestamp::now();
    let taken_at = Timestamp::from_second(now.as_second()).unwrap_or(now);
    World::of(Reading { documents, taken_at: Some(taken_at), ignored: Vec::new() })
}

/// Empty where the API server does not serve the kind.
async fn list_if_served<K>(client: &Client) -> Result<Vec<K>, ClusterError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    match list(client).await {
        // of a group that it does not know the API server says so in plain text, without a reason
        Err(ClusterError::List { source, .. }) if matches!(&*source, kube::Error::Api(s) if s.code == 404) => {
            Ok(Vec::new())
        }
        answer => answer,
    }
}

async fn list<K>(client: &Client) -> Result<Vec<K>, ClusterError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    pages(Api::<K>::all(client.clone())).await
}

async fn pages<K>(api: Api<K>) -> Result<Vec<K>, ClusterError>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let (mut objects, mut params) = (Vec::new(), ListParams::default().limit(PAGE));
    loop {
        let page = api
            .list(&params)
            .await
            .map_err(|source| ClusterError::List { what: K::plural(&()).into_owned(), source: Box::new(source) })?;
        objects.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(objects),
        }
    }
}

#[cfg(test)]
mod tests {
    use gputenancy_cluster::testing::{Answer, MockServer, Request};

    use super::*;

    /// The maintenance of an API server that gives this answer to everything.
    async fn found(
        answer: impl Fn() -> Answer + Send + Sync + 'static,
    ) -> Result<Option<Vec<MaintenanceRequest>>, ClusterError> {
        maintenance(&MockServer::new(move |_: &Request| answer()).client()).await
    }

    #[tokio::test]
    async fn maintenance_is_none_where_its_kind_is_not_served_and_unknown_where_it_may_not_be_listed() {
        let unknown = || Answer::Text(404, "404 page not found\n".into());
        assert_eq!(found(unknown).await.unwrap(), Some(vec![]));
        assert_eq!(found(Answer::not_found).await.unwrap(), Some(vec![]));
        assert_eq!(found(|| Answer::failure(403, "Forbidden", "no")).await.unwrap(), None);
        assert!(found(|| Answer::Text(500, "no".into())).await.is_err());
    }
}
