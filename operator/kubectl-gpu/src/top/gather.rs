//! Reads the metrics of the agents through ports that the API server forwards, as `kubectl port-forward` does: nothing has to be opened in the cluster.

use std::{collections::BTreeMap, fmt::Debug, time::Duration};

use futures::{StreamExt as _, stream};
use gputenancy_cluster::{
    agent_metrics::{self, Agent},
    error::sentence,
};
use gputenancy_crds::{GpuNode, GpuTenant};
use k8s_openapi::api::core::v1::{ContainerStatus, Namespace, Pod};
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use serde::de::DeserializeOwned;

use crate::{args::TopArgs, units::time_limit};

/// Label of the agents' pods.
const SELECTOR: &str = "app.kubernetes.io/name=gputenancy-agent";
/// Name of the port of their metrics.
const PORT: &str = "http";
/// Most bytes of an answer: 60,000 series.
const MOST: u64 = 16 << 20;
/// Agents that are read at once.
const AT_ONCE: usize = 32;

/// Why nothing can be shown.
#[derive(Debug, thiserror::Error)]
pub enum TopError {
    /// The pods cannot be listed.
    #[error("listing the agents' pods ({SELECTOR}): {}; needs list of pods and create of pods/portforward in the chart's namespace (--agent-namespace)", sentence(.0))]
    List(#[source] Box<kube::Error>),
    /// There is none.
    #[error(
        "no agent runs in namespace {namespace}{on}: name the chart's namespace with --agent-namespace, or see that the chart is installed and a node matches agent.nodeSelectors"
    )]
    NoAgent {
        /// Where it was looked for.
        namespace: String,
        /// The node, with a preposition; empty for all.
        on: String,
    },
    /// None could be read.
    #[error("no agent could be read: {0}")]
    Unreadable(String),
    /// No tenant has the name of `--tenant`.
    #[error("there is no GpuTenant {0}: kubectl get gputenants lists them")]
    NoTenant(String),
    /// No namespace has the name of `-n`.
    #[error("there is no namespace {0}: kubectl get namespaces lists them")]
    NoNamespace(String),
}

/// What the agents report, and what is not known.
#[derive(Clone, Debug, Default)]
pub struct Gathered {
    /// The metrics of the agents that were read.
    pub agents: Vec<Agent>,
    /// Nodes whose agent was not read, each with the reason.
    pub not_read: Vec<String>,
    /// What the user may not read, in sentences.
    pub not_visible: Vec<String>,
}

/// Why an agent cannot be read.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("{}", sentence(.0))]
    Forward(#[from] kube::Error),
    #[error("its port is not forwarded")]
    NoStream,
    #[error(transparent)]
    Read(#[from] agent_metrics::ReadError),
    #[error("no answer within {}", time_limit(.0))]
    Timeout(Duration),
}

/// The metrics of all agents, or of the agent on one node; and the nodes whose agent could not be read, with the reason.
///
/// # Errors
/// When no agent can be listed or read.
pub async fn gather(client: &Client, args: &TopArgs, limit: Duration) -> Result<Gathered, TopError> {
    // a pod of a team with the agents' label in another namespace is none
    let agents: Api<Pod> = Api::namespaced(client.clone(), &args.agent_namespace);
    let labelled = ListParams::default().labels(SELECTOR);
    let (pods, expected) = tokio::join!(agents.list(&labelled), expected(client));
    let pods = pods.map_err(|error| TopError::List(error.into()))?.items;
    let (expected, not_visible) = match expected {
        Ok(nodes) => (nodes, Vec::new()),
        Err(error) => {
            (Vec::new(), vec![format!("gpunodes, and so nodes without a pod of the agent: {}", sentence(&error))])
        }
    };
    let wanted = |node: &str| args.node.as_deref().is_none_or(|wanted| wanted == node);
    if !pods.iter().filter_map(node_of).any(wanted) {
        let on = args.node.as_ref().map(|node| format!(" on node {node}")).unwrap_or_default();
        return Err(TopError::NoAgent { namespace: args.agent_namespace.clone(), on });
    }
    let (pods, mut not_read) = chosen(pods, &expected, wanted);
    let read = |(node, pod): (String, Pod)| async move {
        let text = tokio::time::timeout(limit, metrics(client, &pod)).await.unwrap_or(Err(ReadError::Timeout(limit)));
        match text {
            Ok(text) => Ok(Agent::parse(&node, &text)),
            Err(error) => Err(format!("{node}: {error}")),
        }
    };
    let found: Vec<_> = stream::iter(pods).map(read).buffer_unordered(AT_ONCE).collect().await;
    let mut agents = Vec::new();
    for agent in found {
        match agent {
            Ok(agent) => agents.push(agent),
            Err(reason) => not_read.push(reason),
        }
    }
    agents.sort_by(|a, b| a.node.cmp(&b.node));
    not_read.sort();
    match (agents.is_empty(), not_read.first()) {
        (true, Some(first)) => Err(TopError::Unreadable(first.clone())),
        _ => Ok(Gathered { agents, not_read, not_visible }),
    }
}

/// Nodes that have an agent, or should have one.
async fn expected(client: &Client) -> kube::Result<Vec<String>> {
    let nodes = Api::<GpuNode>::all(client.clone()).list_metadata(&ListParams::default()).await?.items;
    let kept = nodes.iter().filter(|node| node.metadata.deletion_timestamp.is_none());
    Ok(kept.map(|node| node.metadata.name.clone().unwrap_or_default()).collect())
}

/// An error if the tenant or the namespace of the flags does not exist. Names that may not be read count as existing.
///
/// # Errors
/// When one does not exist.
pub async fn check_names(client: &Client, args: &TopArgs) -> Result<(), TopError> {
    if let Some(tenant) = &args.tenant
        && is_missing(Api::<GpuTenant>::all(client.clone()), tenant).await
    {
        return Err(TopError::NoTenant(tenant.clone()));
    }
    if let Some(namespace) = &args.namespace
        && is_missing(Api::<Namespace>::all(client.clone()), namespace).await
    {
        return Err(TopError::NoNamespace(namespace.clone()));
    }
    Ok(())
}

async fn is_missing<K: Clone + DeserializeOwned + Debug>(api: Api<K>, name: &str) -> bool {
    matches!(api.get_metadata_opt(name).await, Ok(None))
}

/// The pod to read on each wanted node, and the wanted nodes without one, each with the reason. Pure.
fn chosen(pods: Vec<Pod>, expected: &[String], wanted: impl Fn(&str) -> bool) -> (Vec<(String, Pod)>, Vec<String>) {
    let mut on_nodes: BTreeMap<String, Vec<Pod>> = expected.iter().map(|node| (node.clone(), Vec::new())).collect();
    for pod in pods {
        if let Some(node) = node_of(&pod).map(str::to_owned) {
            on_nodes.entry(node).or_default().push(pod);
        }
    }
    on_nodes.retain(|node, _| wanted(node));
    let (mut read, mut not_read) = (Vec::new(), Vec::new());
    for (node, mut pods) in on_nodes {
        // during an update a node has two
        pods.sort_by_key(|pod| (not_running(pod).is_some(), pod.metadata.deletion_timestamp.is_some(), !is_ready(pod)));
        let reason = pods.first().map_or_else(|| Some("no pod of the agent".to_owned()), not_running);
        match (reason, pods.into_iter().next()) {
            (None, Some(pod)) => read.push((node, pod)),
            (reason, _) => not_read.push(format!("{node}: {}", reason.unwrap_or_default())),
        }
    }
    (read, not_read)
}

/// The node of a pod; before it is scheduled, the node that its DaemonSet made it for.
fn node_of(pod: &Pod) -> Option<&str> {
    let spec = pod.spec.as_ref()?;
    let intended = || {
        let affinity = spec.affinity.as_ref()?.node_affinity.as_ref()?;
        let terms = &affinity.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms;
        let mut fields = terms.iter().flat_map(|term| term.match_fields.iter().flatten());
        let name = fields.find(|field| field.key == "metadata.name")?;
        name.values.as_ref()?.first().map(String::as_str)
    };
    spec.node_name.as_deref().or_else(intended)
}

fn is_ready(pod: &Pod) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Why a pod of the agent cannot answer; `None` if its containers run.
fn not_running(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or("Unknown");
    let mut containers = status.into_iter().flat_map(|status| {
        status.init_container_statuses.iter().chain(&status.container_statuses).flatten().filter_map(stopped)
    });
    let stopped = containers.next();
    if phase == "Running" {
        return stopped.map(|reason| format!("its container is not running: {reason}"));
    }
    let unscheduled = || {
        let mut conditions = status?.conditions.iter().flatten();
        let condition =
            conditions.find(|condition| condition.type_ == "PodScheduled" && condition.status == "False")?;
        condition.reason.as_deref()
    };
    let reason = stopped.or_else(unscheduled).or_else(|| status?.reason.as_deref());
    Some(reason.map_or_else(|| format!("its pod is {phase}"), |reason| format!("its pod is {phase}: {reason}")))
}

/// Why a container waits or has failed.
fn stopped(container: &ContainerStatus) -> Option<&str> {
    let state = container.state.as_ref()?;
    let waiting = state.waiting.as_ref().map(|waiting| waiting.reason.as_deref().unwrap_or("waiting"));
    // an init container ends with 0
    let failed = state.terminated.as_ref().filter(|terminated| terminated.exit_code != 0);
    waiting.or_else(|| failed.map(|failed| failed.reason.as_deref().unwrap_or("terminated")))
}

/// `/metrics` of an agent.
async fn metrics(client: &Client, pod: &Pod) -> Result<String, ReadError> {
    let port = port(pod);
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let mut forwarded = api.portforward(&pod.name_any(), &[port]).await?;
    let stream = forwarded.take_stream(port).ok_or(ReadError::NoStream)?;
    Ok(agent_metrics::read(stream, MOST).await?)
}

/// The port of the metrics; that of the chart's default if the pod names none.
fn port(pod: &Pod) -> u16 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let named = ports.find(|port| port.name.as_deref() == Some(PORT));
    named.and_then(|port| u16::try_from(port.container_port).ok()).unwrap_or(agent_metrics::PORT)
}

#[cfg(test)]
mod tests {
    use gputenancy_cluster::testing::{Answer, MockServer, Request};
    use serde_json::{Value, json};

    use super::*;

    /// A pod of the agent on a node, with the state of its container.
    fn pod(name: &str, node: &str, phase: &str, state: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"nodeName": node, "containers": []},
            "status": {"phase": phase, "containerStatuses": [{
                "name": "agent", "image": "x", "imageID": "", "ready": false, "restartCount": 0, "state": state,
            }]},
        }))
        .unwrap()
    }

    fn running() -> Value {
        json!({"running": {}})
    }

    fn waiting(reason: &str) -> Value {
        json!({"waiting": {"reason": reason}})
    }

    /// Names of the pods to read, and the nodes without one.
    fn names(pods: Vec<Pod>, expected: &[&str], node: Option<&str>) -> (Vec<String>, Vec<String>) {
        let expected: Vec<String> = expected.iter().map(|name| (*name).to_owned()).collect();
        let (read, not_read) = chosen(pods, &expected, |name| node.is_none_or(|wanted| wanted == name));
        (read.into_iter().map(|(_, pod)| pod.name_any()).collect(), not_read)
    }

    #[test]
    fn node_without_a_running_agent_is_listed_with_the_reason() {
        let pods = || {
            let mut unscheduled = pod("u", "n5", "Pending", &running());
            let fields = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n5"]}]}],
            }}});
            let spec = unscheduled.spec.as_mut().unwrap();
            (spec.node_name, spec.affinity) = (None, serde_json::from_value(fields).unwrap());
            let status = json!({"phase": "Pending", "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"},
            ]});
            unscheduled.status = serde_json::from_value(status).unwrap();
            vec![
                pod("a", "n1", "Running", &running()),
                pod("b", "n2", "Pending", &waiting("ErrImageNeverPull")),
                pod("c", "n3", "Running", &waiting("CrashLoopBackOff")),
                unscheduled,
            ]
        };
        let expected = [
            "n2: its pod is Pending: ErrImageNeverPull",
            "n3: its container is not running: CrashLoopBackOff",
            "n4: no pod of the agent",
            "n5: its pod is Pending: Unschedulable",
        ];
        let (read, not_read) = names(pods(), &["n1", "n2", "n4"], None);
        assert_eq!(read, ["a"]);
        assert_eq!(not_read, expected);
        let (read, not_read) = names(pods(), &["n1", "n2", "n4"], Some("n4"));
        assert!(read.is_empty());
        assert_eq!(not_read, ["n4: no pod of the agent"]);
    }

    #[test]
    fn one_pod_of_a_node_is_read_during_an_update() {
        let mut ends = pod("old", "n1", "Running", &running());
        ends.metadata.deletion_timestamp = serde_json::from_value(json!("2026-11-01T11:00:00Z")).unwrap();
        let failed = pod("evicted", "n1", "Failed", &json!({"terminated": {"exitCode": 137, "reason": "Error"}}));
        let new = pod("new", "n1", "Running", &running());
        assert_eq!(names(vec![failed.clone(), ends, new], &[], None), (vec!["new".to_owned()], Vec::new()));
        assert_eq!(names(vec![failed], &[], None).1, ["n1: its pod is Failed: Error"]);
    }

    /// Errors about a tenant and a namespace with an API server that gives this answer to everything.
    async fn checked(answer: fn() -> Answer) -> [Option<String>; 2] {
        let client = MockServer::new(move |_: &Request| answer()).client();
        let of_tenant = TopArgs { tenant: Some("nosuch".into()), ..TopArgs::default() };
        let in_namespace = TopArgs { namespace: Some("nosuch".into()), ..TopArgs::default() };
        let tenant = check_names(&client, &of_tenant).await;
        let namespace = check_names(&client, &in_namespace).await;
        [tenant, namespace].map(|result| result.err().map(|error| error.to_string()))
    }

    #[tokio::test]
    async fn name_that_does_not_exist_is_an_error_and_one_that_may_not_be_read_is_none() {
        let missing = ["GpuTenant nosuch: kubectl get gputenants", "namespace nosuch: kubectl get namespaces"];
        let missing = missing.map(|text| Some(format!("there is no {text} lists them")));
        assert_eq!(checked(Answer::not_found).await, missing);
        assert_eq!(checked(|| Answer::failure(403, "Forbidden", "no")).await, [None, None]);
    }

    #[tokio::test]
    async fn nodes_that_may_not_be_listed_are_an_error_of_their_list_only() {
        let server = MockServer::new(|_: &Request| Answer::failure(403, "Forbidden", "no"));
        assert!(expected(&server.client()).await.is_err());
        let node = json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": {"name": "n1"},
        });
        let server = MockServer::new(move |_: &Request| Answer::list([node.clone()]));
        assert_eq!(expected(&server.client()).await.unwrap(), ["n1"]);
    }
}
