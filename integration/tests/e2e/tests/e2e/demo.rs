//! The scenario of the demo, with every number checked.

use std::collections::{BTreeMap, BTreeSet};

use e2e::{
    Result, World, discovery,
    objects::{PodIdentity, allocatable, ensure, gpu_node},
    plan_preview::{self, BeforeAfter, Gpu, Layouts, PlanPreview},
    product,
    scenario::{self, GROWN, GROWN_TO, MIG_1G, MIG_3G, NODES, TEAM_A, TEAM_B, TEAM_C, h100},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::GpuTenant;
use kube::Api;
use serde_json::Value;

type Pods = BTreeMap<String, PodIdentity>;

#[tokio::test]
async fn demo_change_matches_plan_and_evicts_only_planned_pods() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("demo", run(&world)).await;
}

async fn run(world: &World) -> Result<()> {
    scenario::onboard(world).await?;
    let before = scenario::start_pods(world).await?;
    pods_see_their_own_instance(world, &before).await?;
    feature_discovery_agrees(world, &scenario::layouts(world).await?).await?;
    quota_and_policy_refuse(world).await?;

    let had = scenario::layouts(world).await?;
    let preview = plan_predicts(world, &had).await?;
    world.sample(GROWN).await?;
    scenario::instances_ready(world, "3g.40gb", GROWN_TO).await?;
    scenario::tenant_ready(world, TEAM_B).await?;
    let mut after = world.pods_ready(TEAM_A, 2).await?;
    after.extend(world.pods_ready(TEAM_B, 2).await?);

    let planned = preview.layouts(&had);
    layouts_match_plan(world, &preview, &planned, &had).await?;
    evictions_match_plan(world, &preview, &before, &after).await?;
    feature_discovery_agrees(world, &planned).await?;
    allocatable_matches_plan(world, &planned, &preview).await?;
    no_pod_waits(world).await?;
    team_c_shares_two_gpus(world, &after).await?;
    nothing_needs_attention(world).await?;
    tiny_kernels_are_noted_next_to_work_on_h100s(world, &after).await
}

/// A node with H100s joins the pool. Of two programs that keep a GPU busy, only the one with tiny kernels has a note. The pods of other teams run on.
async fn tiny_kernels_are_noted_next_to_work_on_h100s(world: &World, others: &Pods) -> Result<()> {
    h100::join(world).await?;
    h100::start(world).await?;
    let h100::SideBySide { table, tiny, training } = h100::side_by_side(world).await?;
    for device in [&tiny, &training] {
        let by_gpm = device["node"] == product::H100_NODE && device["source"] == "gpm";
        ensure(by_gpm && h100::part(device, "utilization") > 0.85, device.to_string())?;
    }
    let active = [&tiny, &training].map(|device| h100::part(device, "smActive"));
    ensure(active[0] > 0.0 && active[0] < 0.02 && active[1] > 0.8, format!("SM activity {active:?}"))?;
    let line = |pod: &str| table.lines().find(|line| line.contains(&format!("{pod}-"))).unwrap_or_default();
    let noted = [h100::TINY, h100::TRAINING].map(|pod| line(pod).contains("busy but idle"));
    ensure(noted == [true, false] && line(h100::TRAINING).contains(product::H100_NODE), table.clone())?;
    let mut now = world.pods_ready(TEAM_A, 2).await?;
    now.extend(world.pods_ready(TEAM_B, 2).await?);
    ensure(&now == others, format!("pods of other teams moved: {others:?}, {now:?}"))
}

/// Once the agents list team-c's programs, nothing needs attention, and no pod of team-c has a warning.
async fn nothing_needs_attention(world: &World) -> Result<()> {
    let args = ["status", "-o", "json"];
    eventually("six devices of team-c have processes, and nothing needs attention", PATIENCE, || async {
        let done = product::kubectl_gpu(&world.lab.kubeconfig_path(), &args).await?;
        let report: Value = serde_json::from_slice(&done.stdout).unwrap_or_default();
        let devices = report["nodes"]
            .as_array()
            .into_iter()
            .flatten()
            .flat_map(|node| node["gpus"].as_array().into_iter().flatten());
        let devices = devices.flat_map(|gpu| gpu["devices"].as_array().into_iter().flatten());
        let with_processes = devices.filter(|device| {
            device["tenant"] == TEAM_C && device["containers"].as_array().is_some_and(|all| !all.is_empty())
        });
        let (count, attention) = (with_processes.count(), report["attention"].to_string());
        Ok(if count == 6 && attention == "[]" { Ok(()) } else { Err(format!("{count} devices: {attention}")) })
    })
    .await?;
    let bypasses = scenario::pod_events(world, TEAM_C, "MemoryLimitBypassed").await?;
    ensure(bypasses.is_empty(), format!("programs of the samples bypass their limits: {bypasses:?}"))
}

/// Four pods take turns on one GPU, two have fractions of another one, and the pods of the other teams run on.
async fn team_c_shares_two_gpus(world: &World, others: &Pods) -> Result<()> {
    let seen = scenario::share(world).await?;
    let of = |app: &str| -> BTreeSet<&String> {
        seen.iter().filter(|(pod, _)| pod.starts_with(app)).map(|(_, gpu)| gpu).collect()
    };
    let (turns, parts) = (of("experiment"), of("service"));
    let apart = turns.len() == 1 && parts.len() == 1 && turns != parts;
    ensure(apart && seen.values().all(|gpu| !gpu.contains("MIG-")), format!("one GPU for each mode: {seen:?}"))?;
    let mut now = world.pods_ready(TEAM_A, 2).await?;
    now.extend(world.pods_ready(TEAM_B, 2).await?);
    ensure(&now == others, format!("pods of other teams moved: {others:?}, {now:?}"))
}

/// Every Deployment is complete, so the refusal of a replacement for an evicted pod no longer counts.
async fn no_pod_waits(world: &World) -> Result<()> {
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

async fn pods_see_their_own_instance(world: &World, pods: &Pods) -> Result<()> {
    for pod in pods.keys() {
        let (namespace, profile) = if pod.starts_with("notebook") { (TEAM_A, "1g.10gb") } else { (TEAM_B, "3g.40gb") };
        let seen = scenario::visible_gpus(world, namespace, pod).await?;
        let instances = seen.matches("MIG-").count();
        ensure(instances == 1 && seen.contains(profile), format!("{pod} should see one {profile}, sees: {seen}"))?;
    }
    scenario::wait_for_devices(world, &NODES, 4).await.map(drop)
}

/// gpu-feature-discovery and `GpuNode.status` have the same numbers, and these match the layouts.
async fn feature_discovery_agrees(world: &World, layouts: &Layouts) -> Result<()> {
    for node in NODES {
        let rows = discovery::compare_on(world, node).await?;
        let counted = rows.iter().filter_map(|row| {
            let profile = row.label.strip_prefix("nvidia.com/mig-")?.strip_suffix(".count")?;
            Some((profile.to_owned(), row.nvidia.as_ref()?.parse::<usize>().ok()?))
        });
        let mut existing = BTreeMap::<String, usize>::new();
        for instance in layouts.iter().filter(|((n, _), _)| n == node).flat_map(|(_, layout)| layout) {
            let (_, profile) = instance.split_once(':').unwrap();
            *existing.entry(profile.into()).or_default() += 1;
        }
        let counted: BTreeMap<String, usize> = counted.collect();
        ensure(counted == existing, format!("{node}: labels {counted:?}, layouts {existing:?}"))?;
        let memory = |profile: &str| rows.iter().find(|r| r.label == format!("nvidia.com/mig-{profile}.memory"));
        for profile in existing.keys() {
            let expected = if profile == "1g.10gb" { "9728" } else { "40448" };
            let seen = memory(profile).and_then(|row| row.nvidia.as_deref());
            ensure(seen == Some(expected), format!("{node}: {profile} has {expected} MiB, label {seen:?}"))?;
        }
    }
    Ok(())
}

async fn quota_and_policy_refuse(world: &World) -> Result<()> {
    let refusal = scenario::refused_pod(world, TEAM_A, MIG_1G).await?;
    for words in ["exceeded quota", "requests.nvidia.com/mig-1g.10gb=1", "limited: requests.nvidia.com/mig-1g.10gb=2"] {
        ensure(refusal.contains(words), format!("{words:?} in {refusal:?}"))?;
    }
    let refusal = scenario::refused_pod(world, TEAM_A, MIG_3G).await?;
    ensure(
        refusal.contains("may not use nvidia.com/mig-3g.40gb here; this namespace may use: nvidia.com/mig-1g.10gb"),
        refusal,
    )
}

/// The plan names one pod of team-a, its device and the reason of its eviction, and changes nothing.
async fn plan_predicts(world: &World, had: &Layouts) -> Result<PlanPreview> {
    let held = scenario::devices_by_pod(world).await?;
    let (json, code) = plan_preview::run(world, GROWN, "json").await?;
    let (table, _) = plan_preview::run(world, GROWN, "table").await?;
    let preview = PlanPreview::read(&json)?;
    ensure(code == 3 && preview.problems.is_empty(), format!("exit code {code}, expected 3 (evictions):\n{table}"))?;

    ensure(preview.evictions.len() == 1, format!("expected one eviction; devices {held:?}, plan:\n{table}"))?;
    let evicted = &preview.evictions[0];
    let (node, gpu, start) = held.get(&evicted.pod).cloned().unwrap_or_default();
    let has = format!("1g.10gb at {start} of {node} GPU {gpu}");
    ensure(
        evicted.namespace == TEAM_A && evicted.devices == [has.as_str()],
        format!("{evicted:?} does not list its device; devices {held:?}"),
    )?;
    for words in [format!("{TEAM_A}/{}", evicted.pod), has, "because 7 of mig-3g are guaranteed and 2 exist".into()] {
        ensure(table.contains(&words), format!("{words:?} in the plan:\n{table}"))?;
    }
    ensure(preview.changed().contains(&(node, gpu)), "the evicted pod's GPU does not change")?;
    let grows = Some(BeforeAfter { before: 2, after: 7 });
    ensure(preview.devices("mig-3g") == grows, format!("expected mig-3g from 2 to 7:\n{table}"))?;

    let records = scenario::changes(world).await?;
    ensure(records.is_empty() && &scenario::layouts(world).await? == had, "the plan changed the cluster")?;
    Ok(preview)
}

async fn layouts_match_plan(world: &World, preview: &PlanPreview, planned: &Layouts, had: &Layouts) -> Result<()> {
    let has = scenario::layouts(world).await?;
    ensure(&has == planned, format!("planned {planned:?}, NVML shows {has:?}"))?;
    let changed = has.iter().filter(|(gpu, layout)| had.get(*gpu) != Some(*layout)).map(|(gpu, _)| gpu.clone());
    let changed: BTreeSet<Gpu> = changed.collect();
    ensure(changed == preview.changed(), format!("planned changes of {:?}, changed {changed:?}", preview.changed()))
}

async fn evictions_match_plan(world: &World, preview: &PlanPreview, before: &Pods, after: &Pods) -> Result<()> {
    let moved: BTreeSet<&str> =
        before.iter().filter(|(pod, identity)| after.get(*pod) != Some(identity)).map(|(p, _)| p.as_str()).collect();
    let planned: BTreeSet<&str> = preview.evictions.iter().map(|e| e.pod.as_str()).collect();
    ensure(
        moved == planned,
        format!("planned to move {planned:?}, moved {moved:?}; before {before:?}, after {after:?}"),
    )?;
    eventually("events Evicted on the evicted pods only", PATIENCE, || async {
        let mut events = scenario::pod_events(world, TEAM_A, "Evicted").await?;
        events.extend(scenario::pod_events(world, TEAM_B, "Evicted").await?);
        let of = |pod: &&str| events.iter().any(|event| event.starts_with(&format!("{pod}: ")));
        let evicted: BTreeSet<&str> = before.keys().map(String::as_str).filter(of).collect();
        Ok(if evicted == planned { Ok(()) } else { Err(format!("planned {planned:?}, events {events:?}")) })
    })
    .await
}

/// Allocatable equals the layouts and the plan, and no device is withdrawn.
async fn allocatable_matches_plan(world: &World, layouts: &Layouts, preview: &PlanPreview) -> Result<()> {
    let mut sums = BTreeMap::<&str, i64>::new();
    for name in NODES {
        let here = layouts.iter().filter(|((node, _), _)| node == name).flat_map(|(_, layout)| layout);
        let count = |profile: &str| i64::try_from(here.clone().filter(|i| i.ends_with(profile)).count()).unwrap();
        for (profile, resource, existing) in
            [("mig-1g", MIG_1G, count(":1g.10gb")), ("mig-3g", MIG_3G, count(":3g.40gb"))]
        {
            let offered = allocatable(&world.client, name, resource).await?;
            ensure(existing == offered, format!("{name}: {existing} instances of {resource}, {offered} allocatable"))?;
            *sums.entry(profile).or_default() += offered;
        }
        let node = gpu_node(&world.client, name).await?;
        ensure(node.spec.gpus.iter().all(|g| g.hold.is_empty()), "a device is withdrawn at the end")?;
    }
    for (profile, offered) in &sums {
        let planned = preview.devices(profile).map(|d| d.after);
        ensure(planned == Some(*offered), format!("{profile}: planned {planned:?}, allocatable {offered}"))?;
    }
    ensure(sums["mig-3g"] == 7, format!("seven of mig-3g, not {sums:?}"))
}
