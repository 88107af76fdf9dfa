//! An upgrade whose image does not exist, with the real vCluster: the former version comes back on the same volume.

use e2e::{
    Error, Result, World,
    objects::ensure,
    virtual_cluster::VERSION,
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::GpuTenant;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Api;
use serde_json::{Value, json};

use super::upgrade::{NODE_OF_VOLUME, OLD, TEAM, rendered, runs, set_version};
use crate::virtual_cluster::{scale, virtual_cluster_ready};

const CONTROLLER: &str = "gputenancy-virtual-clusters";
/// Name of the image as that of the programs of Kubernetes, which both versions have.
const KUBERNETES: &str = "lab.local/vcluster:kubernetes";
const CTR: [&str; 3] = ["ctr", "--namespace=k8s.io", "images"];

/// Raises the version while its image is on no node that the control plane can use. After the deadline the former version runs again. The
/// controller does not run meanwhile: the begin of the upgrade is set back by the time that it would have waited.
pub(super) async fn upgrade_without_image_is_rolled_back(world: &World) -> Result<()> {
    ctr(world, &["remove", &image()]).await?;
    let outcome = rolled_back(world).await;
    // also after a failure: other tests need it
    ctr(world, &["tag", "--force", KUBERNETES, &image()]).await?;
    scale(world, CONTROLLER, 1).await?;
    outcome
}

/// Gives the image its second name, and returns the values of vCluster's chart with it.
pub(super) async fn image_of_kubernetes(world: &World) -> Result<Value> {
    ctr(world, &["tag", "--force", &image(), KUBERNETES]).await?;
    Ok(json!({"image": {"tag": "kubernetes"}}))
}

fn image() -> String {
    format!("lab.local/vcluster:{VERSION}")
}

async fn ctr(world: &World, args: &[&str]) -> Result<()> {
    world.on_node(NODE_OF_VOLUME, &[CTR.as_slice(), args].concat()).await.map(drop)
}

async fn rolled_back(world: &World) -> Result<()> {
    set_version(world, VERSION).await?;
    let api = Api::<GpuTenant>::all(world.client.clone());
    eventually("a control plane without its image", PATIENCE, || async {
        let status = api.get(TEAM).await?.status.and_then(|s| s.virtual_cluster).unwrap_or_default();
        let begun = status.upgrade.as_ref().is_some_and(|upgrade| upgrade.since.is_some());
        let why = status.conditions.iter().find(|c| c.type_ == "ControlPlaneReady").map(|c| c.message.clone());
        let right = begun && why.as_ref().is_some_and(|why| why.contains("ErrImageNeverPull"));
        Ok(if right { Ok(()) } else { Err(format!("{:?}, {why:?}", status.upgrade)) })
    })
    .await?;
    scale(world, CONTROLLER, 0).await?;
    let begin = Timestamp::now() - SignedDuration::from_mins(11);
    let earlier = json!({"status": {"virtualCluster": {"upgrade": {"since": begin.to_string()}}}}).to_string();
    world.kubectl(&["patch", "gputenant", TEAM, "--subresource=status", "--type=merge", "-p", &earlier]).await?;
    scale(world, CONTROLLER, 1).await?;
    let why = format!(
        "the control plane of vCluster {VERSION} was not ready within 10 minutes (pod {TEAM}-0: ErrImageNeverPull"
    );
    eventually("the upgrade taken back", PATIENCE, || async {
        rendered(world, OLD, ("False", "UpgradeFailed"), &why).await
    })
    .await?;
    eventually(&format!("{OLD} to run"), PATIENCE, || async { Ok(runs(world, OLD).await.map_err(|e| e.to_string())) })
        .await?;
    let since = api.get(TEAM).await?.status.and_then(|s| s.virtual_cluster).and_then(|v| v.upgrade);
    ensure(since.is_some_and(|upgrade| upgrade.failed.is_some()), "status.virtualCluster.upgrade.failed is not set")?;
    reported(world).await?;
    // once more without a change of the virtual cluster
    set_version(world, OLD).await?;
    virtual_cluster_ready(world, TEAM).await
}

/// An event says it, with the remedy.
async fn reported(world: &World) -> Result<()> {
    let remedy = format!("Set spec.virtualCluster.version to {OLD}");
    let selector = format!("reason=UpgradeFailed,involvedObject.name={TEAM}");
    eventually("an event of the failed upgrade", PATIENCE, || async {
        let path = "jsonpath={.items[*].message}";
        let events =
            world.kubectl(&["get", "events", "-n", "default", "--field-selector", &selector, "-o", path]).await?;
        Ok::<_, Error>(if events.contains(&remedy) { Ok(()) } else { Err(events) })
    })
    .await
}
