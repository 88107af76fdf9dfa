//! The demo's story, every number checked.

use std::collections::{BTreeMap, BTreeSet};

use e2e::{
    Result, World, discovery,
    forecast::{self, BeforeAfter, Forecast, Gpu, Layouts},
    objects::{Life, allocatable, ensure, gpu_node},
    story::{self, GROWN, GROWN_TO, MIG_1G, MIG_3G, NODES, TEAM_A, TEAM_B},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::GpuTenant;
use kube::Api;

type Pods = BTreeMap<String, Life>;

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
    world.sample(GROWN).await?;
    story::settled(world, "3g.40gb", GROWN_TO).await?;
    story::tenant_ready(world, TEAM_B).await?;
    let mut after = world.pods_ready(TEAM_A, 2).await?;
    after.extend(world.pods_ready(TEAM_B, 2).await?);

    let planned = forecast.layouts(&had);
    the_plan_came_true(world, &forecast, &planned, &had).await?;
    only_the_evicted_pod_moved(world, &forecast, &before, &after).await?;
    nvidia_agrees(world, &planned).await?;
    the_scheduler_counts(world, &planned, &forecast).await?;
    nothing_waits(world).await
}

/// Every Deployment is complete, so the refusal of a replacement for an evicted pod no longer counts.
async fn nothing_waits(world: &World) -> Result<()> {
    let api = Api::<GpuTenant>::all(world.client.clone());
    for tenant in [TEAM_A, TEAM_B] {
        eventually(&format!("waiting is 0 in the status of {tenant}"), PATIENCE, || async {
            let gpus = api.get(tenant).await?.status.unwrap_or_default().gpus;
            let waiting: Vec<String> = gpus.iter().map(|g| format!("{} {}", g.profile, g.waiting)).collect();
            Ok(if gpus.iter().all(|g| g.waiting == 0) { Ok(()) } else { Err(waiting.join(", ")) })
        })
        .await?;
    }
    Ok(())
}

async fn each_pod_sees_its_own_instance(world: &World, pods: &Pods) -> Result<()> {
    for pod in pods.keys() {
        let (namespace, profile) = if pod.starts_with("notebook") { (TEAM_A, "1g.10gb") } else { (TEAM_B, "3g.40gb") };
        let seen = story::inside(world, namespace, pod).await?;
        let instances = seen.matches("MIG-").count();
        ensure(instances == 1 && seen.contains(profile), format!("{pod} should see one {profile}, sees: {seen}"))?;
    }
    story::all_hold(world, &NODES, 4).await.map(drop)
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
    ensure(
        refusal.contains("may not use nvidia.com/mig-3g.40gb here; this namespace may use: nvidia.com/mig-1g.10gb"),
        refusal,
    )
}

/// Asked beforehand, the plan names one pod of team-a, what it has and why it must go; nothing is touched by asking.
async fn the_plan_says(world: &World, had: &Layouts) -> Result<Forecast> {
    let held = story::holdings(world).await?;
    let (json, code) = forecast::ask(world, GROWN, "json").await?;
    let (table, _) = forecast::ask(world, GROWN, "table").await?;
    let forecast = Forecast::read(&json)?;
    ensure(code == 3 && forecast.problems.is_empty(), format!("3 says that pods are evicted, not {code}:\n{table}"))?;

    ensure(forecast.evictions.len() == 1, format!("one pod must move; held {held:?}, plan:\n{table}"))?;
    let evicted = &forecast.evictions[0];
    let (node, gpu, start) = held.get(&evicted.pod).cloned().unwrap_or_default();
    let has = format!("1g.10gb at {start} of {node} GPU {gpu}");
    ensure(
        evicted.namespace == TEAM_A && evicted.devices == [has.as_str()],
        format!("{evicted:?} loses what it has; held {held:?}"),
    )?;
    for words in [format!("{TEAM_A}/{}", evicted.pod), has, "because 7 of mig-3g are guaranteed and 2 exist".into()] {
        ensure(table.contains(&words), format!("{words:?} in the plan:\n{table}"))?;
    }
    ensure(forecast.changed().contains(&(node, gpu)), "the evicted pod's GPU changes")?;
    let grows = Some(BeforeAfter { before: 2, after: 7 });
    ensure(forecast.devices("mig-3g") == grows, format!("mig-3g grows from 2 to 7:\n{table}"))?;

    let journals = story::changes(world).await?;
    ensure(journals.is_empty() && &story::layouts(world).await? == had, "a plan touches nothing")?;
    Ok(forecast)
}

async fn the_plan_came_true(world: &World, forecast: &Forecast, planned: &Layouts, had: &Layouts) -> Result<()> {
    let has = story::layouts(world).await?;
    ensure(&has == planned, format!("planned {planned:?}, carved {has:?}"))?;
    let changed = has.iter().filter(|(gpu, layout)| had.get(*gpu) != Some(*layout)).map(|(gpu, _)| gpu.clone());
    let changed: BTreeSet<Gpu> = changed.collect();
    ensure(changed == forecast.changed(), format!("planned changes of {:?}, changed {changed:?}", forecast.changed()))
}

async fn only_the_evicted_pod_moved(world: &World, forecast: &Forecast, before: &Pods, after: &Pods) -> Result<()> {
    let moved: BTreeSet<&str> =
        before.iter().filter(|(pod, life)| after.get(*pod) != Some(life)).map(|(p, _)| p.as_str()).collect();
    let planned: BTreeSet<&str> = forecast.evictions.iter().map(|e| e.pod.as_str()).collect();
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

/// What is carved is what the scheduler may give away and what the plan said, and nothing is held any more.
async fn the_scheduler_counts(world: &World, layouts: &Layouts, forecast: &Forecast) -> Result<()> {
    let mut sums = BTreeMap::<&str, i64>::new();
    for name in NODES {
        let here = layouts.iter().filter(|((node, _), _)| node == name).flat_map(|(_, layout)| layout);
        let count = |profile: &str| i64::try_from(here.clone().filter(|i| i.ends_with(profile)).count()).unwrap();
        for (profile, resource, carved) in
            [("mig-1g", MIG_1G, count(":1g.10gb")), ("mig-3g", MIG_3G, count(":3g.40gb"))]
        {
            let offered = allocatable(&world.client, name, resource).await?;
            ensure(carved == offered, format!("{name}: {carved} of {resource} carved, {offered} allocatable"))?;
            *sums.entry(profile).or_default() += offered;
        }
        let node = gpu_node(&world.client, name).await?;
        ensure(node.spec.gpus.iter().all(|g| g.hold.is_empty()), "nothing is held at the end")?;
    }
    for (profile, offered) in &sums {
        let planned = forecast.devices(profile).map(|d| d.after);
        ensure(planned == Some(*offered), format!("{profile}: planned {planned:?}, offered {offered}"))?;
    }
    ensure(sums["mig-3g"] == 7, format!("seven of mig-3g, not {sums:?}"))
}
