//! The operator's fleet controller with many nodes, on the lab's API server. Nodes, GPU nodes and pods are objects without machines:
//! the benchmark answers as their agents and renews their leases. The operator is a process outside the cluster, with the account of
//! the deployed one, which is scaled to zero meanwhile.

use std::time::{Duration, Instant};

use e2e::{
    Error, Result, World,
    objects::{delete_everything, gpu_node},
    product,
    wait::{PATIENCE, eventually},
};

mod agents;
mod changes;
mod figures;
mod node;
mod operator;
mod population;
mod watchers;

use agents::Agents;
use changes::{StatusChanges, raise_guarantees};
use figures::{Figures, Period};
use operator::{Operator, REQUESTS};
use population::{Population, SCHEDULER, tenants};
use watchers::Watchers;

use crate::onboarding::scale_operator;

/// Sizes that are measured before the wanted one.
const BASELINES: [usize; 2] = [100, 1000];
/// Time without changes.
const REST: Duration = Duration::from_secs(30);
/// Time with one change a second.
const SLOW: Duration = Duration::from_secs(30);
/// Time with [`FAST_RATE`] changes a second.
const FAST: Duration = Duration::from_secs(20);
/// Many changes a second.
const FAST_RATE: u32 = 50;
/// The operator has converged when it has written nothing for so long.
const QUIET: Duration = Duration::from_secs(10);
/// Most time until a new node has its GPUs in a spec, next to the others, on two processors.
const PER_NODE: Duration = Duration::from_secs(1);
/// Replicas of the chart.
const REPLICAS: i32 = 2;

/// Measures fleets of 100, of 1,000 and of this many nodes; smaller fleets grow to larger ones.
pub async fn measure(world: &World, nodes: usize) -> Result<()> {
    // the policies permit writes of these objects to operator, agents and kubelets only
    let schedulers = format!("policies.schedulerNames={{default-scheduler,{SCHEDULER}}}");
    product::install(&world.lab, &["policies.breakGlassGroups={system:masters}", &schedulers]).await?;
    population::remove(&world.client).await?;
    delete_everything(&world.client).await?;
    let real = gpu_node(&world.client, "gpu-1").await?.status;
    let real = real.ok_or_else(|| Error::Wrong("the agent of gpu-1 reports nothing".into()))?;
    REQUESTS.count(world).await?;
    scale_operator(world, 0).await?;

    let mut sizes: Vec<usize> = BASELINES.into_iter().filter(|size| *size < nodes).collect();
    sizes.push(nodes);
    let population = Population::new(nodes, real);
    let mut figures = Vec::new();
    let measured = sizes_one_by_one(world, &population, &sizes, &mut figures).await;
    // also after a failure, figures of smaller sizes are worth printing
    figures::print(&figures);
    let cleaned = clean(world).await;
    measured.and(cleaned)
}

async fn sizes_one_by_one(
    world: &World,
    population: &Population,
    sizes: &[usize],
    figures: &mut Vec<Figures>,
) -> Result<()> {
    let mut agents = Agents::start(&world.client);
    population.pool(world).await?;
    let (mut from, mut raised) = (0, 1);
    for size in sizes {
        let operator = Operator::start(world).await?;
        tokio::select! {
            grown = grow(world, population, &operator, &agents, (from, *size)) => grown?,
            failed = population::keep_ready(&world.client) => failed?,
        }
        figures.push(one_size(world, population, &operator, &mut agents, (*size, raised)).await?);
        operator.stop().await?;
        (from, raised) = (*size, raised + 1);
    }
    Ok(())
}

/// Adds nodes, tenants and pods, and waits until the operator has converged.
async fn grow(
    world: &World,
    population: &Population,
    operator: &Operator,
    agents: &Agents,
    (from, to): (usize, usize),
) -> Result<()> {
    let start = Instant::now();
    let done = |what: &str| eprintln!("fleet: {to} nodes, {what} after {:.0} s", start.elapsed().as_secs_f64());
    population.nodes(world, from..to, agents).await?;
    done("nodes created");
    let limit = PATIENCE + PER_NODE * u32::try_from(to - from).unwrap_or(u32::MAX);
    eventually(&format!("the GPUs of {to} nodes in specs"), limit, || async {
        let settled = agents.settled();
        Ok(if settled >= to { Ok(()) } else { Err(format!("{settled} nodes")) })
    })
    .await?;
    done("GPUs in specs");
    let (had, has) = (if from == 0 { 0 } else { tenants(from) }, tenants(to));
    population.tenants(world, had..has).await?;
    population.tenants_ready(world, has).await?;
    done("tenants Ready");
    population.pods(world, from..to).await?;
    done("pods running");
    converged(operator).await?;
    done("converged");
    Ok(())
}

/// Waits until the operator writes nothing.
async fn converged(operator: &Operator) -> Result<()> {
    eventually("an operator that writes nothing", PATIENCE * 4, || async {
        // while it is started again, it serves no counters
        let Ok(before) = operator.reading().await else { return Ok(Err("the operator does not answer".into())) };
        tokio::time::sleep(QUIET).await;
        let Ok(after) = operator.reading().await else { return Ok(Err("the operator does not answer".into())) };
        let writes = after.writes - before.writes;
        Ok(if (0.0..1.0).contains(&writes) { Ok(()) } else { Err(format!("{writes} writes in {} s", QUIET.as_secs())) })
    })
    .await
}

async fn one_size(
    world: &World,
    population: &Population,
    operator: &Operator,
    agents: &mut Agents,
    (nodes, raised): (usize, i32),
) -> Result<Figures> {
    let (client, restarts) = (&world.client, operator.restarts());
    let watchers = Watchers::start(client, operator.address);
    let mut changes = StatusChanges::new(nodes, population.each);
    let rest = period(world, operator, async {
        tokio::time::sleep(REST).await;
        Ok((0.0, REST.as_secs_f64()))
    });
    let rest = rest.await?;
    let slow = period(world, operator, changes.run(client, 1, SLOW)).await?;
    let fast = period(world, operator, changes.run(client, FAST_RATE, FAST)).await?;
    changes.restore(client).await?;
    converged(operator).await?;
    let delays = raise_guarantees(world, agents, raised).await?;
    converged(operator).await?;
    match population::unready(client).await? {
        0 => {}
        unready => return Err(Error::Wrong(format!("{unready} of {nodes} nodes are not Ready: leases came too late"))),
    }
    let (memory, observed) = (operator.memory()?, watchers.observed());
    Ok(Figures { nodes, tenants: tenants(nodes), restarts, rest, slow, fast, delays, memory, observed })
}

/// Measures the operator during some work, which returns its number of changes and its seconds.
async fn period(world: &World, operator: &Operator, work: impl Future<Output = Result<(f64, f64)>>) -> Result<Period> {
    let (asked, before) = (REQUESTS.total(world).await?, operator.reading().await?);
    let (changes, seconds) = work.await?;
    let after = operator.reading().await?;
    Ok(Period::new(seconds, changes, REQUESTS.total(world).await? - asked, before, after))
}

/// Removes all objects and restores the deployed operator.
async fn clean(world: &World) -> Result<()> {
    // tenants have finalizers, and pools wait for the devices of their nodes
    let removed = population::remove(&world.client).await;
    let restored = scale_operator(world, REPLICAS).await;
    let deleted = delete_everything(&world.client).await;
    let uncounted = REQUESTS.remove(world).await;
    removed.and(restored).and(deleted).and(uncounted)
}
