//! The last scene of the demo, with the real vCluster: a team next to others in one pool sees its budget in a cluster of its own, runs a pod
//! there, and the next test finds nothing of it.

use e2e::{
    Result, World,
    objects::{delete_everything, ensure},
    scenario::{self, MIG_1G, TEAM_A, TEAM_B},
    virtual_cluster::{self, scene},
};

#[tokio::test]
async fn team_with_a_virtual_cluster_runs_a_pod_within_its_budget_next_to_other_teams() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("demo-virtual-cluster", run(&world)).await;
}

async fn run(world: &World) -> Result<()> {
    let missing = virtual_cluster::lacking()?;
    ensure(missing.is_none(), format!("not built: {missing:?}; run `make virtual-clusters`"))?;
    scenario::onboard(world).await?;
    let before = scenario::start_pods(world).await?;
    virtual_cluster::serve(world).await?;
    let inside = scene::start(world).await?;
    let nodes = scene::budget(world, &inside).await?;
    ensure(nodes.contains("CAPACITY"), nodes)?;

    let pod = scene::notebook(world, &inside).await?;
    let slices = pod.gpus.matches("MIG-").count();
    ensure(slices == 1 && pod.gpus.contains("1g.10gb"), format!("one slice: {}", pod.gpus))?;
    ensure(pod.inside.contains("notebook") && pod.inside.contains("Running"), pod.inside)?;
    let described = scene::described(&inside).await?;
    ensure(described.contains(MIG_1G), described)?;
    // one device is used and the other one is not: together they are the budget
    scene::budget(world, &inside).await?;

    let mut after = world.pods_ready(TEAM_A, 2).await?;
    after.extend(world.pods_ready(TEAM_B, 2).await?);
    ensure(before == after, format!("pods of other teams moved: {before:?}, {after:?}"))?;
    drop(inside);
    // as the next run of the demo does it, while the controller still runs
    delete_everything(&world.client).await?;
    let left = world.labelled(&format!("gputenancy.io/tenant={}", scene::TEAM)).await?;
    ensure(left.is_empty(), format!("left: {left:?}"))
}
