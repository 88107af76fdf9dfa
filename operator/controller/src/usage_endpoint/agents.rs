//! Reads the agents of the nodes on which a tenant's pods run, and keeps of each text only the tenant's series.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    time::Duration,
};

use futures::{StreamExt as _, stream};
use gputenancy_cluster::agent_metrics::{self, ReadError};
use gputenancy_crds::projection::SlimAgentPod;
use tokio::{
    net::TcpStream,
    time::{Instant, timeout_at},
};

use super::{
    access::Refusal,
    selection::{Families, Scope},
};
use crate::cache::Caches;

/// Agents that are read at once for one request.
const AT_ONCE: usize = 16;
/// Most bytes of an agent's text: that of 8 GPUs × 7 instances has a quarter of a million.
const MOST: u64 = 2 << 20;
/// Most series of an answer: about 4 MiB.
const MOST_SERIES: usize = 16_000;
/// For all agents together, so that a scrape ends within Prometheus' timeout of 10 s when a rack is down.
const PATIENCE: Duration = Duration::from_secs(4);

/// Why the agent of a node cannot be read.
#[derive(Debug, thiserror::Error)]
enum AgentError {
    #[error("no Ready pod of the agent is on the node")]
    NotReady,
    #[error("{0}")]
    Connect(#[from] std::io::Error),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("not read within {} s", PATIENCE.as_secs())]
    Timeout,
}

/// Adds the tenant's series of these nodes, and stops as soon as there are more than an answer may have: until then nothing else bounds the memory.
pub async fn add(
    families: &mut Families,
    caches: &Caches,
    nodes: BTreeSet<String>,
    port: u16,
    scope: Scope<'_>,
) -> Result<(), Refusal> {
    let pods = caches.agent_pods.as_ref().ok_or(Refusal::NoAgents)?.state();
    let addresses: BTreeMap<&str, IpAddr> = pods.iter().filter_map(|pod| address(pod)).collect();
    let deadline = Instant::now() + PATIENCE;
    let jobs = nodes.into_iter().map(|node| {
        let address = addresses.get(&*node).copied();
        async move {
            let read = timeout_at(deadline, text(address, port)).await;
            (node, read.unwrap_or(Err(AgentError::Timeout)))
        }
    });
    let mut texts = stream::iter(jobs).buffer_unordered(AT_ONCE);
    let mut unreadable = BTreeSet::new();
    while let Some((node, read)) = texts.next().await {
        match read {
            Ok(text) => {
                families.add_agent(&node, &text, scope);
                if families.series() > MOST_SERIES {
                    return Err(Refusal::TooLong(MOST_SERIES));
                }
            }
            Err(error) => {
                tracing::debug!(node, %error, tenant = scope.tenant, "the agent cannot be read for a team");
                unreadable.insert(node);
            }
        }
    }
    families.add_unreadable(unreadable.iter().map(String::as_str));
    Ok(())
}

/// Node and address of an agent that is Ready: a pod that ends may have given its address away.
fn address(pod: &SlimAgentPod) -> Option<(&str, IpAddr)> {
    let ready = pod.status.conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
    let here = ready && pod.metadata.deletion_timestamp.is_none();
    let address = pod.status.pod_ip.as_deref().filter(|_| here)?;
    Some((pod.spec.node_name.as_deref()?, address.parse().ok()?))
}

async fn text(address: Option<IpAddr>, port: u16) -> Result<String, AgentError> {
    let connection = TcpStream::connect((address.ok_or(AgentError::NotReady)?, port)).await?;
    Ok(agent_metrics::read(connection, MOST).await?)
}
