//! `kubectl gpu plan` predicts exactly what happens, with the cluster and from a snapshot.

use std::{collections::BTreeSet, path::Path};

use e2e::{
    Error, Result, World,
    fixtures::{mig_profile, pool, tenant, workload},
    objects::{self, ensure},
    product::kubectl_gpu,
    scenario::{instances_ready, pool_ready, tenant_ready},
};
use kube::ResourceExt as _;
use serde_json::{Value, json};

async fn preview(kubeconfig: &Path, args: &[&str], code: i32) -> Result<Value> {
    let output = kubectl_gpu(kubeconfig, &[&["plan", "--exit-code", "-o", "json"], args].concat()).await?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    ensure(
        output.status.code() == Some(code),
        format!("{args:?}: exit code {:?}, not {code}: {stderr}", output.status.code()),
    )?;
    serde_json::from_slice(&output.stdout).map_err(|e| Error::Text { what: "a preview".into(), why: e.to_string() })
}

/// Two full GPUs of one node: fourteen pods of `small`, one on each slice.
async fn two_full_gpus(world: &World) -> Result<()> {
    let profiles = [mig_profile("mig-1g", "1g.10gb"), mig_profile("mig-3g", "3g.40gb")];
    world.set(&profiles).await?;
    world
        .set(&[
            pool("p", "gpu-1", &["mig-1g", "mig-3g"]),
            tenant("small", &[("mig-1g", 14)]),
            tenant("big", &[("mig-3g", 0)]),
        ])
        .await?;
    tenant_ready(world, "small").await?;
    tenant_ready(world, "big").await?;
    pool_ready(world, "p").await?;
    world.set(&[workload("small", "w", "nvidia.com/mig-1g.10gb", 14)]).await?;
    world.pods_ready("small", 14).await.map(drop)
}

#[tokio::test]
async fn plan_preview_matches_the_change_with_cluster_and_snapshot() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("plan-preview", compare(&world)).await;
}

async fn compare(world: &World) -> Result<()> {
    two_full_gpus(world).await?;
    let before = objects::running(&world.client, "small").await?;
    let folder = tempfile::tempdir().map_err(|source| Error::Io { what: "a folder".into(), source })?;
    let (manifests, snapshot) = (folder.path().join("new.yaml"), folder.path().join("cluster.yaml"));
    let new = json!({"apiVersion": "v1", "kind": "List", "items": [
        tenant("small", &[("mig-1g", 11)]), tenant("big", &[("mig-3g", 1)]),
    ]});
    std::fs::write(&manifests, new.to_string()).map_err(|source| Error::Io { what: "manifests".into(), source })?;
    let (manifests, snapshot) = (manifests.display().to_string(), snapshot.display().to_string());

    let cluster = world.lab.kubeconfig_path();
    let mut online = preview(&cluster, &["-f", &manifests], 3).await?;
    let changes = online["changes"].as_array().cloned().unwrap_or_default();
    ensure(changes.len() == 1, format!("one GPU is enough: {changes:?}"))?;
    let leaving: BTreeSet<String> = online["evictions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|e| e["pod"].as_str().map(str::to_owned))
        .collect();
    ensure(leaving.len() == 3, format!("a 3g instance takes the place of three pods: {online}"))?;
    ensure(online["evictions"][0]["controller"] == "Deployment/w", format!("{}", online["evictions"]))?;

    // the same plan from a snapshot, without a cluster; only the time differs
    let taken = kubectl_gpu(&cluster, &["snapshot", "-f", &snapshot]).await?;
    ensure(taken.status.success(), String::from_utf8_lossy(&taken.stderr).into_owned())?;
    let mut offline = preview(Path::new("/nonexistent"), &["--snapshot", &snapshot, "-f", &manifests], 3).await?;
    for answer in [&mut online, &mut offline] {
        answer["takenAt"] = Value::Null;
    }
    ensure(offline == online, format!("offline {offline}, with the cluster {online}"))?;

    world.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", &manifests]).await?;
    let config = cluster.clone();
    let followed = tokio::spawn(async move { kubectl_gpu(&config, &["changes"]).await });
    instances_ready(world, "3g.40gb", 1).await?;
    tenant_ready(world, "big").await?;
    let followed = followed.await.map_err(|e| Error::Wrong(e.to_string()))??;
    let lines = String::from_utf8_lossy(&followed.stdout).into_owned();
    ensure(
        followed.status.success() && lines.contains("gpu-1 GPU"),
        format!("output of kubectl gpu changes: {lines}"),
    )?;

    let after = world.pods_ready("small", 11).await?;
    let gone: BTreeSet<String> = before.keys().filter(|pod| !after.contains_key(*pod)).cloned().collect();
    ensure(gone == leaving, format!("planned evictions: {leaving:?}; evicted: {gone:?}"))?;
    ensure(
        after.iter().all(|(pod, identity)| before.get(pod) == Some(identity)),
        "a pod outside of the plan was disturbed",
    )?;
    let node = objects::gpu_node(&world.client, "gpu-1").await?;
    for change in &changes {
        let state = node.status.iter().flat_map(|s| &s.gpus).find(|g| change["uuid"] == g.uuid.as_str());
        let mut shown: Vec<(i32, String)> =
            state.iter().flat_map(|s| &s.instances).map(|i| (i.start, format!("{}@{}", i.profile, i.start))).collect();
        shown.sort();
        let shown = shown.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(" ");
        ensure(change["to"] == shown.as_str(), format!("planned {}, {} has {shown}", change["to"], node.name_any()))?;
    }
    preview(&cluster, &["-f", &manifests], 0).await.map(drop)
}
