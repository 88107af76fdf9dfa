//! The demo's story, every number checked.
#![allow(
    clippy::indexing_slicing,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that panics says what it found"
)]

use std::collections::{BTreeMap, BTreeSet};

use e2e::{
    Result, World, discovery,
    forecast::{self, Forecast, Gpu},
    objects::{Life, allocatable, ensure, gpu_node, set_guarantee},
    story::{self, GROWN, MIG_1G, MIG_3G, NODES, TEAM_A, TEAM_B},
    wait::{PATIENCE, eventually},
};

type Pods = BTreeMap<String, Life>;
type Layouts = BTreeMap<Gpu, Vec<String>>;

#[tokio::test]
async fn a_grown_guarantee_does_what_the_plan_said_and_moves_only_the_pods_that_must_move() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("story", tell(&world)).await;
}

async fn tell(world: &World) -> Result<()> {
    story::onboard(world).await?;
    let before = story::start_pods(world).await?;
    each_pod_sees_its_own_instance(world, &before).await?;
    nvidia_agrees(world, &story::layouts(world).await?).await?;
    the_quota_refuses(world).await?;

    let had = story::layouts(world).await?;
    let forecast = the_plan_says(world, &had).await?;
    set_guarantee(&world.client, TEAM_B, "mig-3g", GROWN).await?;
    story::settled(world, "3g.40gb", 7).await?;
    story::tenant_ready(world, TEAM_B).await?;
    let mut after = world.pods_ready(TEAM_A, 2).await?;
    after.extend(world.pods_ready(TEAM_B, 2).await?);

    the_plan_came_true(world, &forecast, &had).await?;
    only_the_evicted_pod_moved(world, &forecast, &before, &after).await?;
    nvidia_agrees(world, &forecast.layouts).await?;
    the_scheduler_counts(world, &forecast.layouts).await
}

async fn each_pod_sees_its_own_instance(world: &World, pods: &Pods) -> Result<()> {
    for pod in pods.keys() {
        let (namespace, profile) = if pod.starts_with("notebook") { (TEAM_A, "1g.10gb") } else { (TEAM_B, "3g.40gb") };
        let seen = story::inside(world, namespace, pod).await?;
        let instances = seen.matches("MIG-").count();
        ensure(instances == 1 && seen.contains(profile), format!("{pod} should see one {profile}, sees: {seen}"))?;
    }
    let held = story::holdings(world).await?;
    ensure(held.len() == 4, format!("four pods hold four devices: {held:?}"))
}

/// gpu-feature-discovery and `GpuNode.status` have the same numbers, and they are those of these layouts.
async fn nvidia_agrees(world: &World, layouts: &Layouts) -> Result<()> {
    for node in NODES {
        let rows = discovery::agrees(world, node).await?;
        let counted = rows.iter().filter_map(|row| {
            let profile = row.label.strip_prefix("nvidia.com/mig-")?.strip_suffix(".count")?;
            Some((profile.to_owned(), row.nvidia.as_ref()?.parse::<usize>().ok()?))
        });
        let mut carved = BTreeMap::<String, usize>::new();
        for instance in layouts.iter().filter(|((n, _), _)| n == node).flat_map(|(_, layout)| layout) {
            let (_, profile) = instance.split_once(':').unwrap();
            *carved.entry(profile.into()).or_default() += 1;
        }
        let counted: BTreeMap<String, usize> = counted.collect();
        ensure(counted == carved, format!("{node}: NVIDIA counts {counted:?}, carved are {carved:?}"))?;
        let memory = |profile: &str| rows.iter().find(|r| r.label == format!("nvidia.com/mig-{profile}.memory"));
        for profile in carved.keys() {
            let expected = if profile == "1g.10gb" { "9728" } else { "40448" };
            let seen = memory(profile).and_then(|row| row.nvidia.as_deref());
            ensure(seen == Some(expected), format!("{node}: {profile} has {expected} MiB, NVIDIA says {seen:?}"))?;
        }
    }
    Ok(())
}

async fn the_quota_refuses(world: &World) -> Result<()> {
    let refusal = story::refused(world, TEAM_A, MIG_1G).await?;
    for words in ["exceeded quota", "requests.nvidia.com/mig-1g.10gb=1", "limited: requests.nvidia.com/mig-1g.10gb=2"] {
        ensure(refusal.contains(words), format!("{words:?} in {refusal:?}"))?;
    }
    let refusal = story::refused(world, TEAM_A, MIG_3G).await?;
    ensure(refusal.contains("limited: requests.nvidia.com/mig-3g.40gb=0"), refusal)
}

/// Asked beforehand, the plan names one pod of team-a, what it has and why it must go; nothing is touched by asking.
async fn the_plan_says(world: &World, had: &Layouts) -> Result<Forecast> {
    let held = story::holdings(world).await?;
    let (text, _) = forecast::ask(world, TEAM_B, "mig-3g", GROWN).await?;
    let forecast = Forecast::read(&text)?;
    let [(pod, (gpu, device))] = forecast.evicted.iter().collect::<Vec<_>>()[..] else {
        return ensure(false, format!("one pod must move; held {held:?}, plan:\n{text}")).map(|()| forecast);
    };
    let name = pod.strip_prefix("team-a/").unwrap_or_default();
    let (node, index, start) = held.get(name).cloned().unwrap_or_default();
    ensure(
        (&node, index) == (&gpu.0, gpu.1) && device == "1g.10gb",
        format!("{pod} is evicted from what it has; held {held:?}, plan:\n{text}"),
    )?;
    for words in
        [format!("must move: {pod} (has 1g.10gb at {start})"), "because 7 of mig-3g are guaranteed and 2 exist".into()]
    {
        ensure(text.contains(&words), format!("{words:?} in the plan:\n{text}"))?;
    }
    ensure(forecast.layouts.keys().eq(had.keys()), format!("the plan has every GPU: {text}"))?;
    ensure(forecast.supply["mig-3g"] == (2, 7), format!("mig-3g grows from 2 to 7: {:?}", forecast.supply))?;
    let journals = story::changes(world).await?;
    ensure(journals.is_empty() && &story::layouts(world).await? == had, "a plan touches nothing")?;
    Ok(forecast)
}

async fn the_plan_came_true(world: &World, forecast: &Forecast, had: &Layouts) -> Result<()> {
    let has = story::layouts(world).await?;
    ensure(has == forecast.layouts, format!("planned {:?}, carved {has:?}", forecast.layouts))?;
    let changed: BTreeSet<Gpu> =
        has.iter().filter(|(gpu, layout)| had.get(gpu) != Some(layout)).map(|(g, _)| g.clone()).collect();
    ensure(changed == forecast.changes, format!("planned changes of {:?}, changed {changed:?}", forecast.changes))
}

async fn only_the_evicted_pod_moved(world: &World, forecast: &Forecast, before: &Pods, after: &Pods) -> Result<()> {
    let moved: BTreeSet<&str> =
        before.iter().filter(|(pod, life)| after.get(*pod) != Some(life)).map(|(p, _)| p.as_str()).collect();
    let planned: BTreeSet<&str> = forecast.evicted.keys().filter_map(|pod| Some(pod.split_once('/')?.1)).collect();
    ensure(
        moved == planned,
        format!("planned to move {planned:?}, moved {moved:?}; before {before:?}, after {after:?}"),
    )?;
    eventually("an event on the pod that was evicted, and on no other", PATIENCE, || async {
        let mut told = story::pod_events(world, TEAM_A, "Evicted").await?;
        told.extend(story::pod_events(world, TEAM_B, "Evicted").await?);
        let of = |pod: &&str| told.iter().any(|event| event.starts_with(&format!("{pod}: ")));
        let evicted: BTreeSet<&str> = before.keys().map(String::as_str).filter(of).collect();
        Ok(if evicted == planned { Ok(()) } else { Err(format!("planned {planned:?}, events {told:?}")) })
    })
    .await
}

/// What is carved is what the scheduler may give away, and nothing is held any more.
async fn the_scheduler_counts(world: &World, layouts: &Layouts) -> Result<()> {
    for name in NODES {
        let here = layouts.iter().filter(|((node, _), _)| node == name).flat_map(|(_, layout)| layout);
        let count = |profile: &str| i64::try_from(here.clone().filter(|i| i.ends_with(profile)).count()).unwrap();
        for (resource, carved) in [(MIG_1G, count(":1g.10gb")), (MIG_3G, count(":3g.40gb"))] {
            let offered = allocatable(&world.client, name, resource).await?;
            ensure(carved == offered, format!("{name}: {carved} of {resource} carved, {offered} allocatable"))?;
        }
        let node = gpu_node(&world.client, name).await?;
        ensure(node.spec.gpus.iter().all(|g| g.hold.is_empty()), "nothing is held at the end")?;
    }
    let threes = layouts.values().flatten().filter(|i| i.ends_with(":3g.40gb")).count();
    ensure(threes == 7, format!("seven 3g instances, not {threes}"))
}
