//! Capsule beside this operator and beside a client: how fast a tenant's namespace, quota, limit range and network policy are there,
//! the same ones in each way, one after the other in a cluster where the others are not. Capsule runs twice: with the webhooks of its
//! chart, and with as few as it can do with. With both operators a tenant has one owner and a namespace one more object for that, a
//! role binding, and one of the operator's own: a `GpuGrant` here, a `RuleStatus` there. The clock runs from the first request until
//! every tenant has all four and keeps them: what is deleted and made again on the way counts.

use std::time::Instant;

use e2e::{
    Result, World,
    actor::Actor,
    objects::delete_everything,
    product,
    scene::{mig_profile, pool, tenant},
    wait::{PATIENCE, eventually},
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
    many::{IN_FLIGHT, until_all},
    writes::Writes,
};

mod capsule;
mod four;
mod presence;

pub use capsule::built;
use capsule::{VERSION, WORKERS, Webhooks};
use four::{Four, all_there, create, each};

/// The owner of all tenants.
const OWNER: &str = "bench-owner";
/// What the names of tenants begin with, of whomever they are.
const PREFIX: &str = "peer-";
/// Objects that are asked for.
const OBJECTS: f64 = 4.0;

/// Onboards as many tenants in each way.
pub async fn measure(world: &World, tenants: usize) -> Result<()> {
    capsule::remove(world, PREFIX).await?;
    clear(world).await?;
    let (ours, ready, four) = ours(world, tenants).await?;
    product::uninstall(&world.lab).await?;
    let others = others(world, &four, tenants).await;
    product::install(&world.lab, &[]).await?;
    let Others { guarded, bare, floor } = others?;

    println!(
        "peer: {tenants} tenants, each a namespace, a quota, a limit range and a network policy; {IN_FLIGHT} requests in flight"
    );
    // what Kubernetes itself writes into a namespace: an account, a certificate, the quota's status
    let kubernetes = floor.writes.sum() - OBJECTS;
    let capsule =
        format!("Capsule {VERSION}, with a role binding and a RuleStatus each; {WORKERS} workers, no client throttle");
    for (who, run) in [
        ("a client that creates just these", &floor),
        ("this operator, with a role binding and a GpuGrant each", &ours),
        (&format!("{capsule}; its chart's webhooks"), &guarded),
        (&format!("{capsule}; as few webhooks as it can do with"), &bare),
    ] {
        let Run { seconds, deleted, writes, work } = run;
        let (looks, milliseconds) = work.each(tenants);
        println!(
            "  {who}: {:.1} tenants/s, ratio {:.2} to the client; {deleted} objects deleted on the way",
            rate(tenants, *seconds),
            floor.seconds / seconds,
        );
        println!(
            "    each {:.1} writes, {kubernetes:.1} of them by Kubernetes' own controllers, {looks:.1} reads, {milliseconds:.0} ms of the API server's processor time",
            writes.sum(),
        );
        println!("    {writes}");
    }
    println!(
        "  this operator beside Capsule: ratio {:.2}, with few webhooks {:.2}",
        guarded.seconds / ours.seconds,
        bare.seconds / ours.seconds
    );
    println!("  this operator's tenants Ready, their quotas in force: {:.1} tenants/s", rate(tenants, ready));
    Ok(())
}

/// The ways without this product.
struct Others {
    /// Capsule with the webhooks that its chart has on by default.
    guarded: Run,
    /// Capsule with the fewest.
    bare: Run,
    /// The client.
    floor: Run,
}

/// Capsule twice, and then the client, where this product is not.
async fn others(world: &World, four: &Four, tenants: usize) -> Result<Others> {
    let guarded = peer(world, Webhooks::Default, four, tenants).await?;
    let bare = peer(world, Webhooks::Fewest, four, tenants).await?;
    Ok(Others { guarded, bare, floor: floor(world, four, tenants).await? })
}

#[expect(clippy::cast_precision_loss, reason = "thousands")]
fn rate(tenants: usize, seconds: f64) -> f64 {
    tenants as f64 / seconds
}

/// What one way took.
struct Run {
    /// Seconds until all was there for good.
    seconds: f64,
    /// Objects that were deleted on the way.
    deleted: usize,
    /// For each tenant.
    writes: Writes,
    /// All that the API server did.
    work: Load,
}

/// Times some work until all of its objects are there.
async fn timed(world: &World, tenants: usize, work: impl Future<Output = Result<()>>) -> Result<Run> {
    quiet(world).await?;
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

/// This operator; also seconds until all tenants were Ready, and what is in a namespace of theirs.
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
        let created = each(PREFIX, tenants, async |name| {
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

/// Capsule, which is gone afterwards.
async fn peer(world: &World, webhooks: Webhooks, four: &Four, tenants: usize) -> Result<Run> {
    let onboarded = async {
        capsule::install(world, webhooks).await?;
        timed(world, tenants, capsule::onboard(world, four, PREFIX, tenants)).await
    };
    let onboarded = onboarded.await;
    // in any case: its webhooks would refuse what comes next
    let removed = capsule::remove(world, PREFIX).await;
    let (run, ()) = (onboarded?, removed?);
    Ok(run)
}

/// A client that writes the same objects.
async fn floor(world: &World, four: &Four, tenants: usize) -> Result<Run> {
    let client = &world.client;
    let work = each(PREFIX, tenants, async |name| four.write(client, &name).await);
    let run = timed(world, tenants, work).await?;
    clear(world).await?;
    Ok(run)
}

/// Deletes the namespaces that a client has left.
async fn clear(world: &World) -> Result<()> {
    let namespaces = Api::<Namespace>::all(world.client.clone());
    for namespace in namespaces.list_metadata(&ListParams::default()).await? {
        if namespace.name_any().starts_with(PREFIX) {
            namespaces.delete(&namespace.name_any(), &DeleteParams::default()).await?;
        }
    }
    capsule::namespaces_gone(world, PREFIX).await
}

/// Waits until next to nothing is written any more.
async fn quiet(world: &World) -> Result<()> {
    eventually("an API server that rests", PATIENCE, || async {
        let before = Writes::of(world).await?;
        tokio::time::sleep(std::time::Duration::from_secs(3)).await;
        let more = Writes::of(world).await?.since(&before, 1).sum();
        Ok(if more < 5.0 { Ok(()) } else { Err(format!("{more} writes in three seconds")) })
    })
    .await
}
