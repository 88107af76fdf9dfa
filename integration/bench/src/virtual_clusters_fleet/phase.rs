//! One phase: some tenants are applied at once, converge, rest and are deleted, with an operator and a controller that have just started.

use std::time::{Duration, Instant};

use e2e::{
    Result, World,
    fixtures::{merged, tenant},
    virtual_cluster::VERSION,
};
use gputenancy_crds::{GpuTenant, condition};
use serde_json::{Value, json};

use super::{
    control_planes::{is_ready, unreachable, write_secrets},
    programs::{Both, Counters, REQUESTS, restart_both, restart_controller},
};
use crate::{
    load::Load,
    many::applied,
    virtual_clusters::{spread::Spread, tenants_gone},
    writes::Writes,
};

/// Pause after the last tenant.
const SETTLE: Duration = Duration::from_mins(1);
/// The same with virtual clusters. The controller publishes one event a minute about a tenant, so that of the failed connection comes with the
/// first pass after a minute; by then, passes are one and two minutes apart.
const SETTLE_VIRTUAL: Duration = Duration::from_mins(3);
/// Time at rest over which requests are counted.
const QUIET: Duration = Duration::from_mins(1);
/// Limit between two tenants.
const LIMIT: Duration = Duration::from_mins(10);

/// What the tenants have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// No virtual cluster.
    Plain,
    /// A virtual cluster.
    Virtual,
}

/// Figures of one phase.
#[derive(Clone, Debug)]
pub struct Phase {
    pub kind: Kind,
    pub tenants: usize,
    /// Seconds from the first application until the last tenant is ready, or its control plane.
    pub all: f64,
    /// Seconds from a tenant's application until then.
    pub each: Spread,
    /// Of the API server until then.
    pub load: Load,
    /// Of all programs until then, a tenant.
    pub writes: Writes,
    /// Of the controller until then.
    pub counters: Counters,
    /// The programs before the first tenant, and after the last one was ready.
    pub begin: Both,
    pub end: Both,
    pub rest: Rest,
    /// What a new controller does that finds the virtual clusters.
    pub restart: Option<Restart>,
    /// Seconds until all tenants are deleted.
    pub gone: f64,
}

/// A time without changes.
#[derive(Clone, Debug)]
pub struct Rest {
    pub seconds: f64,
    pub writes: Writes,
    /// Requests of the controller.
    pub requests: f64,
    pub counters: Counters,
    pub load: Load,
    pub begin: Both,
    pub end: Both,
    /// What the controller reports about one virtual cluster.
    pub message: Option<String>,
}

/// A restart of the controller.
#[derive(Clone, Debug)]
pub struct Restart {
    /// Seconds until it has rendered all releases.
    pub seconds: f64,
    /// Writes until it rests, a tenant.
    pub writes: Writes,
    pub memory: Both,
}

/// Measures this many tenants.
pub async fn run(world: &World, kind: Kind, count: usize) -> Result<Phase> {
    restart_both(world).await?;
    Writes::become_few(world).await?;
    let prefix = match kind {
        Kind::Plain => "vcf-plain-",
        Kind::Virtual => "vcf-virtual-",
    };
    let secrets = write_secrets(world, prefix)?;
    let (begin, counters) = (Both::of(world).await?, Counters::of(world).await?);
    let (load, writes) = (Load::of(world).await?, Writes::of(world).await?);
    let start = Instant::now();
    let good = |tenant: &GpuTenant| match kind {
        Kind::Plain => tenant.status.as_ref().is_some_and(|s| condition::is_true(&s.conditions, condition::READY)),
        Kind::Virtual => is_ready(tenant),
    };
    let waited = applied(world, prefix, count, LIMIT, |name, _| body(name, kind), good).await?;
    let all = start.elapsed().as_secs_f64();
    let (load, writes) = (Load::of(world).await?.since(&load), Writes::of(world).await?.since(&writes, count));
    let (end, counters) = (Both::of(world).await?, Counters::of(world).await?.since(&counters));
    eprintln!("virtual-clusters-fleet: {count} tenants, {kind:?}: {all:.0} s");
    let rest = rest(world, (kind, prefix, count)).await?;
    let restart = match kind {
        Kind::Plain => None,
        Kind::Virtual => Some(restarted(world, count).await?),
    };
    drop(secrets);
    let deletion = Instant::now();
    tenants_gone(world).await?;
    let each = Spread::of(waited.iter().map(Duration::as_secs_f64));
    let gone = deletion.elapsed().as_secs_f64();
    Ok(Phase { kind, tenants: count, all, each, load, writes, counters, begin, end, rest, restart, gone })
}

async fn rest(world: &World, (kind, prefix, count): (Kind, &str, usize)) -> Result<Rest> {
    tokio::time::sleep(match kind {
        Kind::Plain => SETTLE,
        Kind::Virtual => SETTLE_VIRTUAL,
    })
    .await;
    let (begin, counters, load) = (Both::of(world).await?, Counters::of(world).await?, Load::of(world).await?);
    let (start, requests, writes) = (Instant::now(), REQUESTS.total(world).await?, Writes::of(world).await?);
    tokio::time::sleep(QUIET).await;
    let writes = Writes::of(world).await?.since(&writes, 1);
    let (requests, seconds) = (REQUESTS.total(world).await? - requests, start.elapsed().as_secs_f64());
    let (counters, load) = (Counters::of(world).await?.since(&counters), Load::of(world).await?.since(&load));
    let end = Both::of(world).await?;
    let message = match kind {
        Kind::Plain => None,
        Kind::Virtual => Some(unreachable(world, prefix, count).await?),
    };
    Ok(Rest { seconds, writes, requests, counters, load, begin, end, message })
}

async fn restarted(world: &World, count: usize) -> Result<Restart> {
    let (start, writes) = (Instant::now(), Writes::of(world).await?);
    restart_controller(world, count).await?;
    let seconds = start.elapsed().as_secs_f64();
    Writes::become_few(world).await?;
    let writes = Writes::of(world).await?.since(&writes, count);
    Ok(Restart { seconds, writes, memory: Both::of(world).await? })
}

fn body(name: &str, kind: Kind) -> Value {
    let mut body = tenant(name, &[]);
    let fields = match kind {
        Kind::Plain => json!({}),
        Kind::Virtual => json!({"virtualCluster": {"version": VERSION}}),
    };
    body["spec"] = merged(body["spec"].take(), fields);
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_differ_by_their_virtual_cluster_only() {
        let (mut plain, mut with) = (body("a", Kind::Plain), body("a", Kind::Virtual));
        assert_eq!(with["spec"]["virtualCluster"].take(), json!({"version": VERSION}));
        plain["spec"]["virtualCluster"] = Value::Null;
        assert_eq!(plain, with);
    }
}
