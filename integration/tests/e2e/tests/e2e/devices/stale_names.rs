//! Resource names without devices: those of the agent leave the Node, those of other plugins stay.

use e2e::{
    Result, World,
    fixtures::{mig_profile, pool, tenant},
    objects::ensure,
    scenario::{pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{GpuPool, GpuProfile, GpuTenant};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};

const NODE: &str = "gpu-1";
/// Of a plugin of another vendor, of one of NVIDIA's for other devices, and of NVIDIA's for GPUs of a kind that this node does not have.
const OTHERS: [&str; 3] = ["example.com/fpga", "nvidia.com/hostdev", "nvidia.com/gpu.shared"];
/// Names that agents of earlier versions of the profiles have left.
const STALE: usize = 200;

/// Names of resources in capacity and allocatable of the node.
async fn names(world: &World) -> Result<Vec<String>> {
    let status = Api::<Node>::all(world.client.clone()).get(NODE).await?.status.unwrap_or_default();
    let amounts = [status.capacity, status.allocatable].into_iter().flatten().flatten();
    let mut names: Vec<String> = amounts.map(|(name, _)| name).filter(|name| name.contains('/')).collect();
    names.sort();
    names.dedup();
    Ok(names)
}

#[tokio::test]
async fn names_without_devices_leave_the_node_unless_they_are_of_other_plugins() {
    let world = World::enter().await.unwrap();
    let body = each_kind(&world).await;
    // also after a failure, for the next test
    let none: serde_json::Map<String, Value> = OTHERS.iter().map(|name| ((*name).to_owned(), Value::Null)).collect();
    drop(amounts(&world, &none).await);
    world.keeping_evidence("stale-names", async { body }).await;
}

async fn amounts(world: &World, amounts: &serde_json::Map<String, Value>) -> Result<()> {
    let patch = json!({"status": {"capacity": amounts, "allocatable": amounts}});
    Api::<Node>::all(world.client.clone()).patch_status(NODE, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

async fn each_kind(world: &World) -> Result<()> {
    let mut leaving = mig_profile("leaving", "1g.10gb");
    leaving["spec"]["resourceName"] = json!("gputenancy.io/leaving");
    world.set(&[leaving, mig_profile("mig-3g", "3g.40gb"), pool("p", NODE, &["leaving", "mig-3g"])]).await?;
    world.set(&[tenant("t", &[("leaving", 1), ("mig-3g", 1)])]).await?;
    tenant_ready(world, "t").await?;
    pool_ready(world, "p").await?;
    ensure(names(world).await?.iter().any(|name| name == "gputenancy.io/leaving"), "no device of the profile")?;

    // the profile goes, other devices need its room, and kubelet keeps its name
    let gpus = json!({"spec": {"gpus": [{"profile": "mig-3g", "count": 4}]}});
    Api::<GpuTenant>::all(world.client.clone()).patch("t", &PatchParams::default(), &Patch::Merge(gpus)).await?;
    let spec = json!({"spec": {"profiles": ["mig-3g"]}});
    Api::<GpuPool>::all(world.client.clone()).patch("p", &PatchParams::default(), &Patch::Merge(spec)).await?;
    // refused until the profile's status says that nothing uses it
    let profiles = Api::<GpuProfile>::all(world.client.clone());
    eventually("the profile to be deleted", PATIENCE, || async {
        profiles.delete("leaving", &DeleteParams::default()).await?;
        Ok(Ok(()))
    })
    .await?;
    let stale = (0..STALE).map(|n| (format!("gputenancy.io/old-{n}"), json!("0")));
    let zero: serde_json::Map<String, Value> =
        stale.chain(OTHERS.iter().map(|name| ((*name).to_owned(), json!("0")))).collect();
    amounts(world, &zero).await?;

    eventually("names that kubelet does not know to be gone", PATIENCE, || async {
        let old = names(world).await?.iter().filter(|name| name.starts_with("gputenancy.io/old-")).count();
        Ok(if old == 0 { Ok(()) } else { Err(format!("{old} left")) })
    })
    .await?;
    // kubelet forgets a plugin five minutes after it has stopped
    eventually("the name of the deleted profile to be gone", PATIENCE * 3, || async {
        let names = names(world).await?;
        Ok(if names.iter().any(|name| name == "gputenancy.io/leaving") { Err(format!("{names:?}")) } else { Ok(()) })
    })
    .await?;
    let left = names(world).await?;
    ensure(
        OTHERS.iter().all(|name| left.iter().any(|left| left == name)),
        format!("a name of others is gone: {left:?}"),
    )?;
    ensure(left.iter().any(|name| name == "nvidia.com/mig-3g.40gb"), format!("a name in use is gone: {left:?}"))
}
