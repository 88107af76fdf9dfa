//! This operator, Capsule, and a bare client with the same task: a namespace, quota, limit range and network policy for each tenant.
//! They run one after the other in one cluster, each alone. Capsule runs with the webhooks of its chart, and with the fewest. Both
//! operators also write a role binding and one custom resource: `GpuGrant` or `RuleStatus`. The clock runs from the first request
//! until every tenant has kept all four objects for a while, so deleted and recreated objects count.

use std::time::Instant;

use e2e::{
    Result, World,
    actor::Actor,
    fixtures::{mig_profile, pool, tenant},
    objects::delete_everything,
    product,
};
use futures::future::try_join;
use gputenancy_crds::{GpuTenant, condition};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::json;

use crate::{
    load::Load,
    many::{IN_FLIGHT, each, until_all},
    writes::Writes,
};

mod capsule;
mod four;
mod presence;

pub use capsule::built;
use capsule::{VERSION, WORKERS, Webhooks};
use four::{Four, all_there, create};

/// The owner of all tenants.
const OWNER: &str = "bench-owner";
/// Prefix of the names of all tenants.
const PREFIX: &str = "peer-";
/// Objects of each tenant.
const OBJECTS: f64 = 4.0;

/// Onboards this many tenants in each way.
pub async fn measure(world: &World, tenants: usize) -> Result<()> {
    capsule::remove(world, PREFIX).await?;
    clear(world).await?;
    let (ours, ready, four) = ours(world, tenants).await?;
    product::uninstall(&world.lab).await?;
    let others = others(world, &four, tenants).await;
    product::install(&world.lab, &[]).await?;
    let Others { guarded, minimal, floor } = others?;

    println!(
        "peer: {tenants} tenants, each a namespace, a quota, a limit range and a network policy; {IN_FLIGHT} requests in flight"
    );
    // writes by Kubernetes: ServiceAccount, CA certificate, status of the quota
    let kubernetes = floor.writes.sum() - OBJECTS;
    let capsule =
        format!("Capsule {VERSION}, with a role binding and a RuleStatus each; {WORKERS} workers, no client throttle");
    for (way, run) in [
        ("a client that creates only these", &floor),
        ("this operator, with a role binding and a GpuGrant each", &ours),
        (&format!("{capsule}; its chart's webhooks"), &guarded),
        (&format!("{capsule}; fewest webhooks"), &minimal),
    ] {
        let Run { seconds, deleted, writes, work } = run;
        let (read_requests, milliseconds) = work.each(tenants);
        println!(
            "  {way}: {:.1} tenants/s, ratio {:.2} to the client; {deleted} objects deleted meanwhile",
            rate(tenants, *seconds),
            floor.seconds / seconds,
        );
        println!(
            "    each {:.1} writes, {kubernetes:.1} of them by Kubernetes' own controllers, {read_requests:.1} reads, {milliseconds:.0} ms of the API server's processor time",
            writes.sum(),
        );
        println!("    {writes}");
    }
    println!(
        "  this operator compared with Capsule: ratio {:.2}, with few webhooks {:.2}",
        guarded.seconds / ours.seconds,
        minimal.seconds / ours.seconds
    );
    println!("  this operator's tenants Ready, with enforced quotas: {:.1} tenants/s", rate(tenants, ready));
    Ok(())
}

/// Results of the other ways.
struct Others {
    /// Capsule with the webhooks that its chart has on by default.
    guarded: Run,
    /// Capsule with the fewest.
    minimal: Run,
    /// The client.
    floor: Run,
}

/// Runs Capsule twice and then the client, without this product.
async fn others(world: &World, four: &Four, tenants: usize) -> Result<Others> {
    let guarded = peer(world, Webhooks::Default, four, tenants).await?;
    let minimal = peer(world, Webhooks::Fewest, four, tenants).await?;
    Ok(Others { guarded, minimal, floor: floor(world, four, tenants).await? })
}

#[expect(clippy::cast_precision_loss, reason = "thousands")]
fn rate(tenants: usize, seconds: f64) -> f64 {
    tenants as f64 / seconds
}

/// Result of one way.
struct Run {
    /// Seconds until all objects were present for good.
    seconds: f64,
    /// Deleted objects.
    deleted: usize,
    /// Writes per tenant.
    writes: Writes,
    /// Load of the API server.
    work: Load,
}

/// Measures work until all of its objects are present.
async fn timed(world: &World, tenants: usize, work: impl Future<Output = Result<()>>) -> Result<Run> {
    Writes::become_few(world).await?;
    let (writes, load) = (Writes::of(world).await?, Load::of(world).await?);
    let start = Instant::now();
    let (presence, ()) = try_join(all_there(&world.client, PREFIX, tenants), work).await?;
    let end = presence.complete_since().unwrap_or(start);
    Ok(Run {
        seconds: end.duration_since(start).as_secs_f64(),
        deleted: presence.deleted(),
        work: Load::of(world).await?.since(&load),
        writes: Writes::of(world).await?.since(&writes, tenants),
    })
}

/// Runs this operator; also returns the seconds until all tenants were Ready, and the objects of one namespace.
async fn ours(world: &World, tenants: usize) -> Result<(Run, f64, Four)> {
    let client = &world.client;
    delete_everything(client).await?;
    world.set(&[mig_profile("mig-1g", "1g.10gb"), pool("p", "gpu-1", &["mig-1g"])]).await?;
    let api = Api::<GpuTenant>::all(client.clone());
    let good = |t: &GpuTenant| t.status.as_ref().is_some_and(|s| condition::is_true(&s.conditions, "Ready"));
    let mut ready = 0.0;
    let work = async {
        let start = Instant::now();
        let path = "/apis/gputenancy.io/v1alpha1/gputenants";
        let created = each(PREFIX, tenants, async |name, _| {
            let mut body = tenant(&name, &[]);
            body["spec"]["owners"] = json!([{"kind": "User", "name": OWNER}]);
            create(&Actor::Admin, client, path, &body).await
        });
        try_join(created, until_all(&api, PREFIX, tenants, good)).await?;
        ready = start.elapsed().as_secs_f64();
        Ok(())
    };
    let run = timed(world, tenants, work).await?;
    let four = Four::of(world, &format!("{PREFIX}0000")).await?;
    delete_everything(client).await?;
    capsule::namespaces_gone(world, PREFIX).await?;
    Ok((run, ready, four))
}

/// Runs Capsule and removes it.
async fn peer(world: &World, webhooks: Webhooks, four: &Four, tenants: usize) -> Result<Run> {
    let onboarded = async {
        capsule::install(world, webhooks).await?;
        timed(world, tenants, capsule::onboard(world, four, PREFIX, tenants)).await
    };
    let onboarded = onboarded.await;
    // also after a failure: its webhooks would refuse later requests
    let removed = capsule::remove(world, PREFIX).await;
    let (run, ()) = (onboarded?, removed?);
    Ok(run)
}

/// Runs a client that writes the same objects.
async fn floor(world: &World, four: &Four, tenants: usize) -> Result<Run> {
    let client = &world.client;
    let work = each(PREFIX, tenants, async |name, _| four.write(client, &name).await);
    let run = timed(world, tenants, async { work.await.map(drop) }).await?;
    clear(world).await?;
    Ok(run)
}

/// Deletes the namespaces of the client.
async fn clear(world: &World) -> Result<()> {
    let namespaces = Api::<Namespace>::all(world.client.clone());
    for namespace in namespaces.list_metadata(&ListParams::default()).await? {
        if namespace.name_any().starts_with(PREFIX) {
            namespaces.delete(&namespace.name_any(), &DeleteParams::default()).await?;
        }
    }
    capsule::namespaces_gone(world, PREFIX).await
}
