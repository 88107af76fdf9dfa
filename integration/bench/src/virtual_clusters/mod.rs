//! Virtual clusters: time from a tenant's application to an answer inside, compared with `vcluster create` of the same version with the same
//! values; and many tenants at once: time, memory of their control planes, and writes at rest.

mod cli;
mod memory;
pub mod spread;

use std::time::{Duration, Instant};

use e2e::{
    Error, Result, World,
    fixtures::{merged, mig_profile, tenant},
    objects::delete_everything,
    product,
    scenario::{instances_ready, pool_ready},
    virtual_cluster::{self, Inside, VERSION},
    wait::eventually,
};
use gputenancy_crds::{GpuTenant, condition};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::{many::applied, writes::Writes};
use memory::Memory;
use spread::Spread;

/// Rounds with one virtual cluster, each in both ways.
const ROUNDS: usize = 3;
/// Pause until a new virtual cluster has converged.
const SETTLE: Duration = Duration::from_mins(1);
/// Time at rest over which writes are counted.
const QUIET: Duration = Duration::from_mins(1);
/// Limit of one wait: two processors start many control planes.
const LIMIT: Duration = Duration::from_mins(20);
/// Devices of the pool: two GPUs on each of two nodes, seven slices each.
const DEVICES: usize = 28;
/// The tenant that is alone.
const ONE: &str = "vc-one";
/// Prefix of the names of many tenants.
const MANY: &str = "vc-many-";
const CONTROLLER: &str = "gputenancy-virtual-clusters";

/// Is vCluster built, with its command line? The error has the remedy.
pub fn built() -> Result<()> {
    let missing = virtual_cluster::lacking()?.or(cli::lacking()?);
    let error = |file: std::path::PathBuf| {
        Error::Wrong(format!("{} is missing: run `make peer-tools` (builds vCluster, once)", file.display()))
    };
    missing.map_or(Ok(()), |file| Err(error(file)))
}

/// Measures one virtual cluster in both ways, then this many tenants at once.
pub async fn measure(world: &World, tenants: usize) -> Result<()> {
    cli::remove(world).await?;
    delete_everything(&world.client).await?;
    let outcome = measured(world, tenants).await;
    // also after a failure
    let cleaned = async {
        cli::remove(world).await?;
        delete_everything(&world.client).await?;
        product::install(&world.lab, &[]).await
    };
    let cleaned = cleaned.await;
    outcome?;
    cleaned.map(drop)
}

async fn measured(world: &World, tenants: usize) -> Result<()> {
    virtual_cluster::serve(world).await?;
    supply(world).await?;
    println!(
        "virtual-clusters: one tenant, from its application until `kubectl get namespaces` answers inside; vCluster {VERSION}"
    );
    let (mut ours, mut theirs, mut floor) = (Vec::new(), Vec::new(), None);
    for round in 1..=ROUNDS {
        Writes::become_few(world).await?;
        let one = one(world).await?;
        tenants_gone(world).await?;
        Writes::become_few(world).await?;
        let create = cli::create(world).await?;
        println!(
            "  round {round}: this platform {one:.1} s, `vcluster create` {create:.1} s, ratio {:.2}",
            one / create
        );
        if round == ROUNDS {
            floor = Some(
                Rest::of(world, |pod| (pod.namespace().as_deref() == Some(cli::NAME)).then(|| cli::NAME.into()))
                    .await?,
            );
        }
        cli::remove(world).await?;
        ours.push(one);
        theirs.push(create);
    }
    let (one, create) = (Spread::of(ours), Spread::of(theirs));
    println!("  median: {:.1} s and {:.1} s, ratio {:.2}", one.median, create.median, one.median / create.median);
    let floor = floor.ok_or_else(|| Error::Wrong("no round was measured".into()))?;

    Writes::become_few(world).await?;
    let start = Instant::now();
    let waited = applied(world, MANY, tenants, LIMIT, body, is_ready).await?;
    let all = start.elapsed().as_secs_f64();
    println!("virtual-clusters: {tenants} tenants with a virtual cluster, applied at once");
    println!("  all Ready after {all:.1} s; each {} s", Spread::of(waited.iter().map(Duration::as_secs_f64)));
    #[expect(clippy::cast_precision_loss, reason = "tens")]
    let alone = one.median * tenants as f64;
    println!("  one after the other would take {alone:.1} s (median of one × {tenants}): ratio {:.2}", all / alone);
    let rest = Rest::of(world, |pod| {
        let namespace = pod.namespace()?;
        let controller = pod.labels().get("app.kubernetes.io/name").is_some_and(|name| name == CONTROLLER);
        if controller { Some(CONTROLLER.into()) } else { namespace.starts_with(MANY).then_some(namespace) }
    });
    report(tenants, &rest.await?, &floor);
    Ok(())
}

/// One profile and one pool, whose GPUs are partitioned before the clock starts.
async fn supply(world: &World) -> Result<()> {
    let pool = json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuPool", "metadata": {"name": "p"},
        "spec": {
            "nodeSelector": {"matchLabels": {"gputenancy.io/lab-gpu": "true"}}, "profiles": ["mig-1g"],
            "disruption": {"maxUnavailable": 2}, "layout": {"spare": {"policy": "Fill", "profile": "mig-1g"}},
        },
    });
    world.set(&[mig_profile("mig-1g", "1g.10gb"), pool]).await?;
    instances_ready(world, "1g.10gb", DEVICES).await?;
    pool_ready(world, "p").await.map(drop)
}

/// A tenant with a virtual cluster, and with one device as long as the pool has some.
fn body(name: &str, index: usize) -> Value {
    let mut body = tenant(name, &[("mig-1g", i32::from(index < DEVICES))]);
    body["spec"] = merged(body["spec"].take(), json!({"virtualCluster": {"version": VERSION}}));
    body
}

fn is_ready(tenant: &GpuTenant) -> bool {
    let conditions = tenant.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
    [condition::READY, "VirtualClusterReady"].iter().all(|type_| condition::is_true(conditions, type_))
}

/// Applies one tenant; seconds until its kubeconfig works.
async fn one(world: &World) -> Result<f64> {
    let start = Instant::now();
    world.set(&[body(ONE, 0)]).await?;
    let kubeconfig = eventually("a kubeconfig of the tenant", LIMIT, || Inside::kubeconfig_of(world, ONE)).await?;
    let inside = Inside::connect(world, ONE, &kubeconfig, LIMIT).await?;
    let took = start.elapsed().as_secs_f64();
    drop(inside);
    Ok(took)
}

/// Deletes all tenants, and waits until their virtual clusters and they are gone.
pub async fn tenants_gone(world: &World) -> Result<()> {
    world.kubectl(&["delete", "gputenants", "--all", "--wait=false"]).await?;
    eventually("no tenant left", LIMIT, || async {
        let left = world.kubectl(&["get", "gputenants", "-o", "name"]).await?;
        Ok(if left.trim().is_empty() { Ok(()) } else { Err(left) })
    })
    .await
}

/// Memory and writes at rest.
struct Rest {
    /// By group of pods, which is the namespace of a control plane.
    memory: Vec<(String, Memory)>,
    /// Of the whole cluster's API server, per minute; not divided by the number of control planes.
    writes: Writes,
}

impl Rest {
    async fn of(world: &World, group: impl Fn(&Pod) -> Option<String>) -> Result<Self> {
        tokio::time::sleep(SETTLE).await;
        let before = Writes::of(world).await?;
        tokio::time::sleep(QUIET).await;
        let writes = Writes::of(world).await?.since(&before, 1);
        Ok(Self { memory: memory::of_pods(world, group).await?, writes })
    }
}

/// Prints memory and writes of many control planes next to those of the one made by `vcluster create`.
fn report(tenants: usize, rest: &Rest, floor: &Rest) {
    let planes: Vec<&Memory> = rest.memory.iter().filter(|(group, _)| group != CONTROLLER).map(|(_, m)| m).collect();
    let (all, own) = (Spread::of(planes.iter().map(|m| m.rss_mib)), Spread::of(planes.iter().map(|m| m.own_mib)));
    let single = floor.memory.first().map(|(_, m)| m.clone()).unwrap_or_default();
    println!("  memory of all processes of a control plane's pods, of {}, in MiB:", planes.len());
    println!("    resident {all}; without pages of files {own}");
    println!(
        "    `vcluster create`: {:.1} and {:.1}, ratio of the medians {:.2} and {:.2}",
        single.rss_mib,
        single.own_mib,
        all.median / single.rss_mib,
        own.median / single.own_mib,
    );
    for (program, mib) in &single.programs {
        let each = Spread::of(planes.iter().filter_map(|m| m.programs.get(program).copied()));
        println!("    {program:<16} median {:.1}, `vcluster create` {mib:.1}", each.median);
    }
    let controller =
        rest.memory.iter().find(|(group, _)| group == CONTROLLER).map(|(_, m)| m.clone()).unwrap_or_default();
    println!("    {CONTROLLER}: {:.1}, {:.1} without pages of files", controller.rss_mib, controller.own_mib);
    #[expect(clippy::cast_precision_loss, reason = "tens")]
    let each = rest.writes.sum() / tenants.max(1) as f64;
    let (seconds, created) = (QUIET.as_secs(), floor.writes.sum());
    println!("  writes of this cluster's API server at rest over {seconds} s, without heartbeats:");
    println!("    {:.0} with {tenants}, {each:.2} each ({})", rest.writes.sum(), rest.writes);
    println!("    `vcluster create`: {created:.0} ({})", floor.writes);
    println!("    heartbeats: {}; `vcluster create`: {}", rest.writes.heartbeats(), floor.writes.heartbeats());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tenants_within_the_pool_have_a_device() {
        let count = |index| body("a", index)["spec"]["gpus"][0]["count"].as_i64();
        assert_eq!((count(0), count(DEVICES - 1), count(DEVICES)), (Some(1), Some(1), Some(0)));
        assert_eq!(body("a", 0)["spec"]["virtualCluster"], json!({"version": VERSION}));
    }

    #[test]
    fn tenant_is_ready_with_its_virtual_cluster_only() {
        let with = |types: &[&str]| {
            let mut body = body("a", 0);
            let conditions: Vec<Value> = types
                .iter()
                .map(|type_| {
                    json!({"type": type_, "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"})
                })
                .collect();
            body["status"] = json!({"conditions": conditions});
            serde_json::from_value::<GpuTenant>(body).unwrap()
        };
        assert!(is_ready(&with(&["Ready", "VirtualClusterReady"])));
        assert!(!is_ready(&with(&["Ready"])) && !is_ready(&with(&[])));
    }
}
