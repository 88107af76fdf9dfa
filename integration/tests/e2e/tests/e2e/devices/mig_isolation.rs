//! Two teams with an instance each on one GPU: neither sees the other's, and what one of them breaks does not reach the other.

use e2e::{
    Error, Result, World,
    fixtures::{mig_profile, pool, tenant, workload},
    objects::{self, ensure},
    scenario::{MIG_3G, devices_by_pod, pod_events, tenant_ready, wait_for_devices},
    wait::{PATIENCE, eventually},
};

const NODE: &str = "gpu-1";
/// The team that breaks things, and its neighbour.
const TEAMS: [&str; 2] = ["loud", "quiet"];

#[tokio::test]
async fn neighbours_on_a_mig_gpu_see_and_reach_nothing_of_each_other() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("mig-isolation", two_halves(&world)).await;
}

async fn two_halves(world: &World) -> Result<()> {
    let [loud, quiet] = TEAMS;
    world.set(&[mig_profile("mig-3g", "3g.40gb")]).await?;
    world.set(&TEAMS.map(|team| tenant(team, &[("mig-3g", 1)]))).await?;
    // last: a guarantee that comes while a GPU is being partitioned is served on another one
    world.set(&[pool("p", NODE, &["mig-3g"])]).await?;
    for team in TEAMS {
        tenant_ready(world, team).await?;
        world.set(&[workload(team, "w", MIG_3G, 1)]).await?;
        world.pods_ready(team, 1).await?;
    }
    wait_for_devices(world, &[NODE], 2).await?;
    let before = objects::running(&world.client, quiet).await?;
    let (pod, (_, gpu, start)) = device(world, loud).await?;
    ensure(device(world, quiet).await?.1.1 == gpu, "the two halves are on two GPUs")?;

    let [of_loud, of_quiet] = [listed(world, loud).await?, listed(world, quiet).await?];
    ensure(of_loud != of_quiet, format!("both teams see {of_loud}"))?;

    // more memory than the instance has
    let beyond = world.kubectl(&["exec", "-n", loud, &pod, "--", "gpu-work", "hold", "--memory", "45Gi"]).await;
    ensure(beyond.is_err(), format!("45 GiB on an instance of 40: {beyond:?}"))?;
    let node = objects::gpu_node(&world.client, NODE).await?;
    let gpus = node.status.iter().flat_map(|status| &status.gpus);
    let instances = gpus.filter(|g| g.index == gpu).flat_map(|g| &g.instances);
    let instance = instances.filter(|i| i.start == start).map(|i| i.gi.to_string()).next().unwrap_or_default();
    world.nvsim(NODE, &["xid", &gpu.to_string(), "31", "--instance", &instance]).await?;
    eventually("an event of the pod that broke", PATIENCE, || async {
        let found = pod_events(world, loud, "GpuProgramFault").await?;
        Ok(if found.iter().any(|e| e.starts_with(&pod)) { Ok(()) } else { Err(format!("{found:?}")) })
    })
    .await?;
    let reached = pod_events(world, quiet, "GpuProgramFault").await?;
    ensure(reached.is_empty(), format!("a fault of {loud} is reported to {quiet}: {reached:?}"))?;
    let after = objects::running(&world.client, quiet).await?;
    ensure(after == before, format!("the pods of {quiet} were disturbed: {before:?}, {after:?}"))?;
    tenant_ready(world, quiet).await.map(drop)
}

/// The pod of a team, and the position of its device.
async fn device(world: &World, team: &str) -> Result<(String, (String, i32, i32))> {
    let pods = objects::running(&world.client, team).await?;
    let mut held = devices_by_pod(world).await?.into_iter();
    held.find(|(pod, _)| pods.contains_key(pod)).ok_or_else(|| Error::Wrong(format!("no device of {team}")))
}

/// UUID of the one MIG device that `nvidia-smi` lists to a team.
async fn listed(world: &World, team: &str) -> Result<String> {
    let list = world.kubectl(&["exec", "-n", team, "deployment/w", "--", "/usr/bin/nvidia-smi", "-L"]).await?;
    let mut devices = list.lines().filter_map(|line| line.trim().strip_prefix("MIG ")?.split_once("UUID: "));
    let (Some((_, uuid)), None) = (devices.next(), devices.next()) else {
        return Err(Error::Wrong(format!("one MIG device for {team}:\n{list}")));
    };
    Ok(uuid.trim_end_matches(')').to_owned())
}
