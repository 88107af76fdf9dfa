//! `kubectl gpu` says beforehand exactly what then happens, in the cluster and from a snapshot.

use std::{
    collections::BTreeSet,
    path::Path,
    process::{Command, Output},
};

use e2e::{
    Error, Result, World,
    objects::{self, ensure},
    product,
    scene::{mig_profile, pool, tenant, workload},
    story::{pool_ready, settled, tenant_ready},
};
use kube::ResourceExt as _;
use serde_json::{Value, json};

/// The program as a user runs it against this cluster, or with no cluster at all.
fn kubectl_gpu(kubeconfig: &Path, args: &[&str]) -> Result<Output> {
    let program = product::root().join("target/debug/kubectl-gpu");
    let io = |source| Error::Io { what: program.display().to_string(), source };
    Command::new(&program).args(args).env("KUBECONFIG", kubeconfig).output().map_err(io)
}

fn preview(kubeconfig: &Path, args: &[&str], code: i32) -> Result<Value> {
    let output = kubectl_gpu(kubeconfig, &[&["plan", "--exit-code", "-o", "json"], args].concat())?;
    let told = String::from_utf8_lossy(&output.stderr);
    ensure(
        output.status.code() == Some(code),
        format!("{args:?}: exit code {:?}, not {code}: {told}", output.status.code()),
    )?;
    serde_json::from_slice(&output.stdout).map_err(|e| Error::Text { what: "a preview".into(), why: e.to_string() })
}

/// Two full GPUs of one node: fourteen pods of `small`, one on each slice.
async fn full_house(world: &World) -> Result<()> {
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
async fn what_is_said_beforehand_is_what_happens() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("preview", tell(&world)).await;
}

async fn tell(world: &World) -> Result<()> {
    full_house(world).await?;
    let before = objects::running(&world.client, "small").await?;
    let folder = tempfile::tempdir().map_err(|source| Error::Io { what: "a folder".into(), source })?;
    let (manifests, snapshot) = (folder.path().join("new.yaml"), folder.path().join("cluster.yaml"));
    let new = json!({"apiVersion": "v1", "kind": "List", "items": [
        tenant("small", &[("mig-1g", 11)]), tenant("big", &[("mig-3g", 1)]),
    ]});
    std::fs::write(&manifests, new.to_string()).map_err(|source| Error::Io { what: "manifests".into(), source })?;
    let (manifests, snapshot) = (manifests.display().to_string(), snapshot.display().to_string());

    let cluster = world.lab.kubeconfig_path();
    let mut said = preview(&cluster, &["-f", &manifests], 3)?;
    let changes = said["changes"].as_array().cloned().unwrap_or_default();
    ensure(changes.len() == 1, format!("one GPU is enough: {changes:?}"))?;
    let leaving: BTreeSet<String> = said["evictions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|e| e["pod"].as_str().map(str::to_owned))
        .collect();
    ensure(leaving.len() == 3, format!("a 3g instance takes the place of three pods: {said}"))?;
    ensure(said["evictions"][0]["controller"] == "Deployment/w", format!("{}", said["evictions"]))?;

    // The same question where there is no cluster: only the time of the answer differs.
    let taken = kubectl_gpu(&cluster, &["snapshot", "-f", &snapshot])?;
    ensure(taken.status.success(), String::from_utf8_lossy(&taken.stderr).into_owned())?;
    let mut offline = preview(Path::new("/nonexistent"), &["--snapshot", &snapshot, "-f", &manifests], 3)?;
    for answer in [&mut said, &mut offline] {
        answer["takenAt"] = Value::Null;
    }
    ensure(offline == said, format!("offline {offline}, with the cluster {said}"))?;

    world.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", &manifests]).await?;
    let (config, once) = (cluster.clone(), ["changes"]);
    let followed = tokio::task::spawn_blocking(move || kubectl_gpu(&config, &once));
    settled(world, "3g.40gb", 1).await?;
    tenant_ready(world, "big").await?;
    let followed = followed.await.map_err(|e| Error::Wrong(e.to_string()))??;
    let lines = String::from_utf8_lossy(&followed.stdout).into_owned();
    ensure(followed.status.success() && lines.contains("gpu-1 GPU"), format!("changes were followed: {lines}"))?;

    let after = world.pods_ready("small", 11).await?;
    let gone: BTreeSet<String> = before.keys().filter(|pod| !after.contains_key(*pod)).cloned().collect();
    ensure(gone == leaving, format!("said to leave: {leaving:?}; left: {gone:?}"))?;
    ensure(after.iter().all(|(pod, life)| before.get(pod) == Some(life)), "everybody else runs on untouched")?;
    let node = objects::gpu_node(&world.client, "gpu-1").await?;
    for change in &changes {
        let state = node.status.iter().flat_map(|s| &s.gpus).find(|g| change["uuid"] == g.uuid.as_str());
        let mut shown: Vec<(i32, String)> =
            state.iter().flat_map(|s| &s.instances).map(|i| (i.start, format!("{}@{}", i.profile, i.start))).collect();
        shown.sort();
        let shown = shown.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(" ");
        ensure(change["to"] == shown.as_str(), format!("{} was said, {} has {shown}", change["to"], node.name_any()))?;
    }
    preview(&cluster, &["-f", &manifests], 0).map(drop)
}
