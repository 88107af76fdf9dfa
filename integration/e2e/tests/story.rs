//! The demo's story, every number checked.
#![allow(
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that panics says what it found"
)]

use e2e::{
    Result, World,
    objects::{allocatable, ensure, layouts, set_guarantee},
    story::{self, GROWN, MIG_1G, MIG_3G, TEAM_A, TEAM_B},
};

#[tokio::test]
async fn a_grown_guarantee_moves_only_the_pods_that_must_move() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("story", tell(&world)).await;
}

async fn tell(world: &World) -> Result<()> {
    story::onboard(world).await?;
    let before = story::start_pods(world).await?;

    for pod in before.keys() {
        let (namespace, profile) = if pod.starts_with("notebook") { (TEAM_A, "1g.10gb") } else { (TEAM_B, "3g.40gb") };
        let seen = story::inside(world, namespace, pod).await?;
        let instances = seen.matches("MIG-").count();
        ensure(instances == 1 && seen.contains(profile), format!("{pod} should see one {profile}, sees: {seen}"))?;
    }
    let held = story::holdings(world).await?;
    ensure(held.len() == 4, format!("four pods hold four devices: {held:?}"))?;

    let refusal = story::refused(world, TEAM_A, MIG_1G).await?;
    for words in ["exceeded quota", "requests.nvidia.com/mig-1g.10gb=1", "limited: requests.nvidia.com/mig-1g.10gb=2"] {
        ensure(refusal.contains(words), format!("{words:?} in {refusal:?}"))?;
    }
    let refusal = story::refused(world, TEAM_A, MIG_3G).await?;
    ensure(refusal.contains("limited: requests.nvidia.com/mig-3g.40gb=0"), refusal)?;

    // GPUs of team-a's pods: all but the best-filled one must be given up to seven 3g instances.
    let mut on_gpu = std::collections::BTreeMap::<_, usize>::new();
    for (pod, (node, gpu, _)) in &held {
        if pod.starts_with("notebook") {
            *on_gpu.entry((node.clone(), *gpu)).or_default() += 1;
        }
    }
    let must_move = 2 - on_gpu.values().copied().max().unwrap_or(0);
    ensure(must_move == 1, format!("the sample spreads team-a over two GPUs: {held:?}"))?;

    set_guarantee(&world.client, TEAM_B, "mig-3g", GROWN).await?;
    story::settled(world, "3g.40gb", 7).await?;
    story::tenant_ready(world, TEAM_B).await?;
    let mut after = world.pods_ready(TEAM_A, 2).await?;
    after.extend(world.pods_ready(TEAM_B, 2).await?);
    let untouched = before.iter().filter(|(name, life)| after.get(*name) == Some(*life)).count();
    ensure(
        untouched == before.len() - must_move,
        format!("only {must_move} moves; before {before:?}, after {after:?}"),
    )?;
    ensure(before.keys().filter(|p| p.starts_with("trainer")).all(|p| before[p] == after[p]), "team-b's pods stay")?;

    let mut threes = 0;
    for name in ["gpu-1", "gpu-2"] {
        let node = e2e::objects::gpu_node(&world.client, name).await?;
        let here = layouts(&node).iter().flatten().filter(|i| i.ends_with(":3g.40gb")).count();
        let offered = allocatable(&world.client, name, MIG_3G).await?;
        ensure(i64::try_from(here).ok() == Some(offered), format!("{name}: NVML {here}, allocatable {offered}"))?;
        ensure(node.spec.gpus.iter().all(|g| g.hold.is_empty()), "nothing is held at the end")?;
        threes += here;
    }
    ensure(threes == 7, format!("seven 3g instances, not {threes}"))
}
