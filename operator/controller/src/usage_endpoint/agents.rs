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
    time::{Instant, timeout, timeout_at},
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
/// For one agent: less than for all, so that a few that hang leave time for the others.
const PATIENCE_FOR_ONE: Duration = Duration::from_secs(2);
/// For a connection: longer than one takes in a cluster, and a small part of [`PATIENCE`], so that many nodes that are down leave time as well.
const LONGEST_CONNECT: Duration = Duration::from_millis(500);

/// Why the agent of a node cannot be read.
#[derive(Debug, thiserror::Error)]
enum AgentError {
    #[error("no Ready pod of the agent is on the node")]
    NotReady,
    #[error("{0}")]
    Connect(#[from] std::io::Error),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("not read in time")]
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
    let agents = nodes.into_iter().map(|node| {
        let text = text(addresses.get(&*node).copied(), port);
        (node, text)
    });
    read_all(families, agents, scope).await
}

/// Adds the tenant's series of these agents, each a node and the future of its text.
async fn read_all<F: Future<Output = Result<String, AgentError>>>(
    families: &mut Families,
    agents: impl Iterator<Item = (String, F)>,
    scope: Scope<'_>,
) -> Result<(), Refusal> {
    let deadline = Instant::now() + PATIENCE;
    let jobs = agents.map(|(node, text)| async move {
        let read = timeout_at(deadline.min(Instant::now() + PATIENCE_FOR_ONE), text).await;
        (node, read.unwrap_or(Err(AgentError::Timeout)))
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
    let connect = TcpStream::connect((address.ok_or(AgentError::NotReady)?, port));
    let connection = timeout(LONGEST_CONNECT, connect).await.map_err(|_| AgentError::Timeout)??;
    Ok(agent_metrics::read(connection, MOST).await?)
}

#[cfg(test)]
mod tests {
    use futures::{
        FutureExt as _,
        future::{BoxFuture, pending, ready},
    };

    use super::*;

    type Text = BoxFuture<'static, Result<String, AgentError>>;

    fn agents(name: &str, count: usize, text: impl Fn() -> Text) -> Vec<(String, Text)> {
        (0..count).map(|number| (format!("{name}-{number}"), text())).collect()
    }

    fn hung() -> Text {
        pending().boxed()
    }

    fn answered() -> Text {
        ready(Ok("# TYPE gputenancy_x gauge\ngputenancy_x{tenant=\"team-a\"} 1\n".to_owned())).boxed()
    }

    /// Agents that are read and those that are not.
    async fn counts(agents: Vec<(String, Text)>) -> (usize, usize) {
        let namespaces = BTreeSet::new();
        let scope = Scope { tenant: "team-a", namespaces: &namespaces };
        let (mut families, began) = (Families::default(), Instant::now());
        read_all(&mut families, agents.into_iter(), scope).await.unwrap();
        assert!(began.elapsed() < PATIENCE + Duration::from_millis(100), "{:?}", began.elapsed());
        let text = families.to_string();
        (text.matches("gputenancy_x{").count(), text.matches("gputenancy_usage_agent_unreadable{").count())
    }

    #[tokio::test(start_paused = true)]
    async fn agents_that_hang_leave_time_for_five_hundred_others() {
        let mut all = agents("hung", AT_ONCE, hung);
        all.extend(agents("node", 500, answered));
        assert_eq!(counts(all).await, (500, AT_ONCE));
    }

    #[tokio::test(start_paused = true)]
    async fn five_hundred_agents_that_hang_end_in_time_and_are_reported() {
        assert_eq!(counts(agents("hung", 500, hung)).await, (0, 500));
    }
}
