//! Reads the metrics of the agents through ports that the API server forwards, as `kubectl port-forward` does: nothing has to be opened in the cluster.

use std::time::Duration;

use futures::{StreamExt as _, stream};
use gputenancy_cluster::{
    agent_metrics::{self, Agent},
    error::sentence,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt as _, api::ListParams};

use crate::args::TopArgs;

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
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
}

/// The metrics of all agents, or of the one on a node; and the nodes whose agent could not be read, with the reason.
///
/// # Errors
/// When no agent can be listed or read.
pub async fn gather(client: &Client, args: &TopArgs, limit: Duration) -> Result<(Vec<Agent>, Vec<String>), TopError> {
    // a pod of a team with the agents' label in another namespace is none
    let agents: Api<Pod> = Api::namespaced(client.clone(), &args.agent_namespace);
    let pods =
        agents.list(&ListParams::default().labels(SELECTOR)).await.map_err(|error| TopError::List(error.into()))?;
    let on_node = |pod: &Pod| {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
        let running = pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
        running && node.is_some() && args.node.as_deref().is_none_or(|wanted| node == Some(wanted))
    };
    let pods: Vec<Pod> = pods.items.into_iter().filter(on_node).collect();
    if pods.is_empty() {
        let on = args.node.as_ref().map(|node| format!(" on node {node}")).unwrap_or_default();
        return Err(TopError::NoAgent { namespace: args.agent_namespace.clone(), on });
    }
    let read = |pod: Pod| async move {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).unwrap_or_default();
        let text = tokio::time::timeout(limit, metrics(client, &pod)).await.unwrap_or(Err(ReadError::Timeout(limit)));
        match text {
            Ok(text) => Ok(Agent::parse(&node, &text)),
            Err(error) => Err((node, error)),
        }
    };
    let found: Vec<_> = stream::iter(pods).map(read).buffer_unordered(AT_ONCE).collect().await;
    let (mut agents, mut not_read) = (Vec::new(), Vec::new());
    for agent in found {
        match agent {
            Ok(agent) => agents.push(agent),
            Err((node, error)) => not_read.push(format!("{node}: {error}")),
        }
    }
    agents.sort_by(|a, b| a.node.cmp(&b.node));
    not_read.sort();
    match (agents.is_empty(), not_read.first()) {
        (true, Some(first)) => Err(TopError::Unreadable(first.clone())),
        _ => Ok((agents, not_read)),
    }
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
