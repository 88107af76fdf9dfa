//! Changes that the operator reacts to: statuses of GPU nodes, and guarantees.

use std::time::{Duration, Instant};

use e2e::{Error, Result, World, objects::set_guarantee, scenario::pool_ready, wait::PATIENCE};
use http::Request;
use kube::Client;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{
    agents::Agents,
    node::{self, CONTAINER, NAME},
    population::RAISED,
};

/// Concurrent status changes.
const IN_FLIGHT: usize = 32;
/// Guarantees raised one after the other.
const RAISES: usize = 3;

/// Status changes: a device of the next node loses its owner, and gets it again in the next round.
pub struct StatusChanges {
    nodes: usize,
    each: usize,
    next: usize,
}

impl StatusChanges {
    /// For nodes with `each` pods a tenant.
    pub fn new(nodes: usize, each: usize) -> Self {
        Self { nodes, each, next: 0 }
    }

    /// Changes so many statuses a second for this time; returns their number and the seconds that it took.
    pub async fn run(&mut self, client: &Client, rate: u32, time: Duration) -> Result<(f64, f64)> {
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / rate);
        let mut tasks = JoinSet::new();
        let start = Instant::now();
        let mut done = 0.0;
        while start.elapsed() < time {
            ticks.tick().await;
            if tasks.len() >= IN_FLIGHT {
                joined(tasks.join_next().await)?;
            }
            tasks.spawn(change(client.clone(), self.patch()?));
            done += 1.0;
        }
        while let Some(ended) = tasks.join_next().await {
            joined(Some(ended))?;
        }
        Ok((done, start.elapsed().as_secs_f64()))
    }

    /// The request that changes the next status.
    fn patch(&mut self) -> Result<Request<Vec<u8>>> {
        let (index, owner_returns) = (self.next % self.nodes, (self.next / self.nodes) % 2 == 1);
        self.next += 1;
        let (namespace, pod) = node::pod_name(index, 0, self.each);
        let owner = json!({"namespace": namespace, "pod": pod, "container": CONTAINER});
        let device = |field: &str| format!("/status/gpus/0/instances/0/device/{field}");
        let patch = if owner_returns {
            json!([{"op": "add", "path": device("owner"), "value": owner}, {"op": "replace", "path": device("clients"), "value": 1}])
        } else {
            json!([{"op": "remove", "path": device("owner")}, {"op": "replace", "path": device("clients"), "value": 0}])
        };
        let uri = format!("/apis/gputenancy.io/v1alpha1/gpunodes/{}/status", node::name(index));
        let request = Request::patch(uri).header("Content-Type", "application/json-patch+json");
        let request = request.body(patch.to_string().into_bytes());
        request.map_err(|e| Error::Text { what: "a request".into(), why: e.to_string() })
    }

    /// Gives all devices back to their owners.
    pub async fn restore(&mut self, client: &Client) -> Result<()> {
        let (round, begun) = (self.next / self.nodes, self.next % self.nodes);
        let without_owner = if round.is_multiple_of(2) { 0..begun } else { begun..self.nodes };
        for index in without_owner {
            self.next = self.nodes + index;
            change(client.clone(), self.patch()?).await?;
        }
        self.next = 0;
        Ok(())
    }
}

async fn change(client: Client, request: Request<Vec<u8>>) -> Result<()> {
    client.request::<Value>(request).await?;
    Ok(())
}

fn joined(ended: Option<std::result::Result<Result<()>, tokio::task::JoinError>>) -> Result<()> {
    match ended {
        Some(Err(error)) => Err(Error::Wrong(error.to_string())),
        Some(Ok(outcome)) => outcome,
        None => Ok(()),
    }
}

/// Raises guarantees to `count`, each of another tenant, and returns the time until the first spec write after each.
pub async fn raise_guarantees(world: &World, agents: &mut Agents, count: i32) -> Result<Vec<Duration>> {
    let mut delays = Vec::new();
    for tenant in 0..RAISES {
        pool_ready(world, NAME).await?;
        // a change in progress would write too
        tokio::time::sleep(Duration::from_secs(3)).await;
        agents.forget_spec_writes();
        let start = Instant::now();
        set_guarantee(&world.client, &node::tenant_name(tenant), RAISED, count).await?;
        match tokio::time::timeout(PATIENCE, agents.next_spec_write()).await {
            Ok(Some(at)) => delays.push(at.duration_since(start)),
            _ => return Err(Error::Wrong("a raised guarantee led to no spec write".into())),
        }
    }
    pool_ready(world, NAME).await?;
    Ok(delays)
}
