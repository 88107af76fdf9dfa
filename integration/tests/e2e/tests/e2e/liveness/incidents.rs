//! Incidents of the platform: what breaks the isolation of a tier is reported to the team and to the platform.

use e2e::{
    Result, World,
    fixtures::{deployment, mig_profile, pool, restricted_spec, tenant},
    objects,
    scenario::{self, tenant_ready},
    wait::{PATIENCE, eventually},
};
use serde_json::json;

const NODE: &str = "gpu-1";
const TEAM: &str = "slices";
const RESOURCE: &str = "nvidia.com/mig-3g.40gb";

#[tokio::test]
async fn mig_mode_turned_off_under_a_pod_is_an_incident() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("incidents", async { mode_turned_off(&world).await }).await;
}

async fn mode_turned_off(world: &World) -> Result<()> {
    world.set(&[mig_profile("half", "3g.40gb"), pool("p", NODE, &["half"]), tenant(TEAM, &[("half", 1)])]).await?;
    tenant_ready(world, TEAM).await?;
    // NVML resets no GPU with a process on it: a notebook between two runs has none
    let notebook = restricted_spec(json!({
        "name": "notebook", "image": "lab.local/busybox:1", "imagePullPolicy": "Never", "command": ["sleep", "100000"],
        "resources": {"limits": {RESOURCE: "1"}},
    }));
    world.set(&[deployment(TEAM, "w", 1, &notebook)]).await?;
    let pods = world.pods_ready(TEAM, 1).await?;
    let pod = pods.into_keys().next().unwrap_or_default();
    let node = objects::gpu_node(&world.client, NODE).await?;
    let gpus = node.status.iter().flat_map(|status| &status.gpus);
    let with_instance = gpus.filter(|gpu| !gpu.instances.is_empty()).map(|gpu| gpu.index.to_string());
    for gpu in with_instance {
        world.nvsim(NODE, &["reset", &gpu, "--mig-off"]).await?;
    }
    for (namespace, who) in [(TEAM, pod.as_str()), ("default", NODE)] {
        let prefix = format!("{who}: ");
        eventually(&format!("an event DeviceLost of {who}"), PATIENCE, || async {
            let found = scenario::pod_events(world, namespace, "DeviceLost").await?;
            Ok(if found.iter().any(|text| text.starts_with(&prefix)) { Ok(()) } else { Err(format!("{found:?}")) })
        })
        .await?;
    }
    // the agent restores the layout, and a new pod gets a device of it
    world.kubectl(&["delete", "pod", "-n", TEAM, &pod, "--wait=false", "--grace-period=1"]).await?;
    tenant_ready(world, TEAM).await?;
    eventually("another pod with a device", PATIENCE, || async {
        let running = objects::running(&world.client, TEAM).await?;
        let other = running.len() == 1 && !running.contains_key(&pod);
        Ok(if other { Ok(()) } else { Err(format!("{running:?}")) })
    })
    .await
}
