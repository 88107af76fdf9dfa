//! What pods do on their devices, by the agents' metrics and by `kubectl gpu top`.

mod all_modes;
mod prometheus;
mod team_endpoint;

use e2e::{
    Error, Result, World,
    fixtures::{deployment, merged, mig_profile, pool, restricted_spec, tenant},
    objects::ensure,
    product,
    scenario::{pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use serde_json::{Value, json};

const NODE: &str = "gpu-1";
const IMAGE: &str = "lab.local/gputenancy-workload:dev";

#[tokio::test]
async fn tiny_kernels_are_busy_but_idle_on_hopper_and_an_instance_has_activity() {
    let world = World::enter().await.unwrap();
    let body = async {
        world.reinstall(&["simulator.uninstallOnExit=true"]).await?;
        world
            .reinstall(&[
                "simulator.uninstallOnExit=true",
                "simulator.board=h100-80gb",
                "simulator.gpus=3",
                "agent.usageInterval=2s",
            ])
            .await?;
        on_hopper(&world).await
    };
    let result = world.keeping_evidence("usage-hopper", body);
    result.await;
    world.reinstall(&["simulator.uninstallOnExit=true"]).await.unwrap();
}

#[tokio::test]
async fn sharers_have_their_own_time_and_an_instance_of_ampere_has_memory_alone() {
    let world = World::enter().await.unwrap();
    let body = async {
        world.reinstall(&["agent.usageInterval=2s"]).await?;
        on_ampere(&world).await
    };
    let result = world.keeping_evidence("usage-ampere", body);
    result.await;
    world.reinstall(&[]).await.unwrap();
}

/// Kernels one after another, of so many blocks.
fn busy(namespace: &str, name: &str, resource: &str, blocks: u32) -> Value {
    let command = format!(
        "while /usr/bin/cuda-work launch --iteration 1 --micros 2000 --millis 60000 --blocks {blocks}; do :; done"
    );
    let spec = restricted_spec(json!({
        "name": "work", "image": IMAGE, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", command],
        "resources": {"limits": {resource: "1"}},
    }));
    deployment(namespace, name, 1, &merged(spec, json!({"terminationGracePeriodSeconds": 2})))
}

fn whole(name: &str) -> Value {
    json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": name},
        "spec": {"device": {"whole": {}}, "support": {"expected": "the whole board", "incident": "less"}},
    })
}

/// Rows of `kubectl gpu top` for pods whose name begins so.
async fn top(world: &World, prefix: &str) -> Result<Vec<Value>> {
    let output = product::kubectl_gpu(&world.lab.kubeconfig_path(), &["top", "-o", "json"]).await?;
    ensure(output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let report: Value =
        serde_json::from_str(&text).map_err(|e| Error::Text { what: text.clone(), why: e.to_string() })?;
    let pods = report["pods"].as_array().cloned().unwrap_or_default();
    let of_pod = |pod: &Value| pod["pod"].as_str().is_some_and(|name| name.starts_with(prefix));
    let rows = pods.iter().filter(|pod| of_pod(pod)).flat_map(|pod| {
        let tenant = pod["tenant"].clone();
        pod["devices"].as_array().cloned().unwrap_or_default().into_iter().map(move |mut device| {
            device["tenant"] = tenant.clone();
            device
        })
    });
    Ok(rows.collect())
}

/// The only row of a pod, once it is as wanted.
async fn row(world: &World, prefix: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
    eventually(&format!("{prefix}: {what}"), PATIENCE, || async {
        let rows = top(world, prefix).await?;
        Ok(match rows.as_slice() {
            [row] if wanted(row) => Ok(row.clone()),
            rows => Err(format!("{rows:?}")),
        })
    })
    .await
}

fn above(row: &Value, field: &str, limit: f64) -> bool {
    row[field].as_f64().is_some_and(|value| value > limit)
}

async fn on_hopper(world: &World) -> Result<()> {
    world.set(&[mig_profile("mig-1g", "1g.10gb"), whole("gpu")]).await?;
    world.set(&[pool("p", NODE, &["mig-1g", "gpu"])]).await?;
    world.set(&[tenant("team-a", &[("gpu", 2)]), tenant("team-b", &[("mig-1g", 2)])]).await?;
    tenant_ready(world, "team-a").await?;
    tenant_ready(world, "team-b").await?;
    pool_ready(world, "p").await?;
    world
        .set(&[
            busy("team-a", "tiny", "nvidia.com/gpu", 1),
            busy("team-a", "large", "nvidia.com/gpu", 1320),
            busy("team-b", "slice", "nvidia.com/mig-1g.10gb", 1320),
        ])
        .await?;
    let tiny = row(world, "tiny-", "is busy but idle", |row| {
        row["note"].as_str().is_some_and(|note| note.starts_with("busy but idle"))
    })
    .await?;
    ensure(above(&tiny, "utilization", 0.85) && !above(&tiny, "smActive", 0.02), tiny.to_string())?;
    ensure(tiny["tenant"] == "team-a" && tiny["source"] == "gpm", tiny.to_string())?;
    // the first sample covers only the end of its interval
    let large = row(world, "large-", "works", |row| {
        above(row, "utilization", 0.85) && above(row, "smActive", 0.8) && row["note"].is_null()
    })
    .await?;
    ensure(large["source"] == "gpm", large.to_string())?;
    let slice = row(world, "slice-", "works", |row| above(row, "utilization", 0.85)).await?;
    ensure(slice["mode"] == "mig" && slice["source"] == "gpm" && slice["tenant"] == "team-b", slice.to_string())
}

async fn on_ampere(world: &World) -> Result<()> {
    let shared = json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": "quarter"},
        "spec": {"device": {"timeSlice": {"replicas": 4}}, "support": {"expected": "neighbours", "incident": "no time"}},
    });
    world.set(&[mig_profile("mig-1g", "1g.10gb"), shared]).await?;
    world.set(&[pool("p", NODE, &["mig-1g", "quarter"])]).await?;
    let mut team = tenant("team", &[("mig-1g", 2), ("quarter", 4)]);
    let spec = team["spec"].take();
    team["spec"] = merged(spec, json!({"trust": "Internal", "sharing": {"acknowledgedBy": "platform@example.com"}}));
    world.set(&[team]).await?;
    tenant_ready(world, "team").await?;
    pool_ready(world, "p").await?;
    let share = "nvidia.com/gpu.shared";
    world
        .set(&[
            busy("team", "one", share, 1080),
            busy("team", "two", share, 1080),
            busy("team", "slice", "nvidia.com/mig-1g.10gb", 1080),
        ])
        .await?;
    for name in ["one-", "two-"] {
        // a sample of utilization may come before the first scan that finds the process
        let of_share = row(world, name, "has memory and a part of the time", |row| {
            above(row, "utilization", 0.1) && above(row, "memoryUsed", 0.0)
        })
        .await?;
        ensure(of_share["source"] == "process" && of_share["smActive"].is_null(), of_share.to_string())?;
    }
    let slice = row(world, "slice-", "holds memory", |row| above(row, "memoryUsed", 0.0)).await?;
    ensure(slice["utilization"].is_null() && slice["note"] == "no source of utilization", slice.to_string())?;
    metrics(world).await
}

/// The series of operator and agent that the statuses and the table do not show.
async fn metrics(world: &World) -> Result<()> {
    let agent = world.agents_on(NODE).await?.first().map(kube::ResourceExt::name_any);
    let agent = agent.ok_or_else(|| Error::Wrong("no agent".into()))?;
    let path = format!("/api/v1/namespaces/{}/pods/{agent}:9410/proxy/metrics", product::NAMESPACE);
    eventually("seconds of devices that the team had", PATIENCE, || async {
        let text = world.kubectl(&["get", "--raw", &path]).await?;
        let of = |wanted: &[&str]| {
            let line = text.lines().find(|line| wanted.iter().all(|part| line.contains(part)));
            line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        };
        let seconds = "gputenancy_device_seconds_total{tenant=\"team\"";
        let (slices, active) = (
            [seconds, "mode=\"time-slice\"", "state=\"allocated\""],
            [seconds, "mode=\"time-slice\"", "state=\"active\""],
        );
        let (unknown, instances) =
            ([seconds, "mode=\"mig\"", "state=\"unknown\""], [seconds, "mode=\"mig\"", "state=\"allocated\""]);
        let seen = [of(&slices), of(&active), of(&unknown), of(&instances)];
        let good = matches!(seen, [Some(allocated), Some(active), Some(unknown), Some(instances)]
            if active > 0.0 && active <= allocated && (unknown - instances).abs() < 1e-6 && unknown > 0.0);
        let board = of(&["gputenancy_gpu_power_watts{"]).is_some_and(|watts| watts > 60.0);
        Ok(if good && board { Ok(()) } else { Err(format!("{seen:?}, power {board}")) })
    })
    .await?;
    let operators = world
        .kubectl(&[
            "get",
            "pods",
            "-n",
            product::NAMESPACE,
            "-l",
            "app.kubernetes.io/name=gputenancy-operator",
            "-o",
            "name",
        ])
        .await?;
    eventually("budget of the team in the leader's metrics", PATIENCE, || async {
        let mut all = String::new();
        for pod in operators.split_whitespace().filter_map(|pod| pod.strip_prefix("pod/")) {
            let path = format!("/api/v1/namespaces/{}/pods/{pod}:8080/proxy/metrics", product::NAMESPACE);
            all += &world.kubectl(&["get", "--raw", &path]).await?;
        }
        let has = |line: &str| all.lines().any(|l| l == line);
        let good = has("gputenancy_tenant_devices{tenant=\"team\",profile=\"quarter\",state=\"budget\"} 4")
            && has("gputenancy_tenant_devices{tenant=\"team\",profile=\"quarter\",state=\"used\"} 2")
            && has("gputenancy_pool_gpus{pool=\"p\"} 2");
        let shown: Vec<&str> = all.lines().filter(|l| l.starts_with("gputenancy_tenant_")).collect();
        Ok(if good { Ok(()) } else { Err(shown.join("\n")) })
    })
    .await
}
