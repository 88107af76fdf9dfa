//! The scene of the demo on H100s: their performance monitoring distinguishes a GPU that works from one that only looks busy. The lab's node without GPUs
//! has two H100s while it has the label of nodes with simulated GPUs. Each step returns what it observed: the test asserts it, the demo prints it.

use gputenancy_crds::{GpuNode, names::SIMULATED_LABEL};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use lab::GPU_LABEL;
use serde_json::{Value, json};

use super::{pool_ready, tenant_ready};
use crate::{
    Error, Result, World, objects,
    product::{self, H100_NODE as NODE},
    wait::{PATIENCE, eventually},
};

/// Tenant and namespace of the team.
pub const TEAM: &str = "team-e";
/// The sample with profile, pool and tenant.
pub const SAMPLE: &str = "training/team-e.yaml";
/// The sample with the team's programs.
pub const PODS: &str = "pods/team-e.yaml";
/// The program whose kernels use one multiprocessor.
pub const TINY: &str = "tiny";
/// The program whose kernels use all multiprocessors.
pub const TRAINING: &str = "training";
/// Pods of the release on each node with simulated GPUs.
const ON_THE_NODE: &str = "app.kubernetes.io/name in (gputenancy-agent, gputenancy-simulator)";

/// The command by which the node joins the pool, as the demo prints it.
pub fn label_command() -> String {
    format!("kubectl label node {NODE} {GPU_LABEL}=true")
}

/// Gives the node its H100s, and waits until its agent reports them.
pub async fn join(world: &World) -> Result<()> {
    world.kubectl(&["label", "--overwrite", "node", NODE, &format!("{GPU_LABEL}=true")]).await?;
    let api = Api::<GpuNode>::all(world.client.clone());
    eventually(&format!("GPUs in the status of {NODE}"), PATIENCE, || async {
        let status = api.get_opt(NODE).await?.and_then(|node| node.status);
        let found = status.is_some_and(|status| !status.gpus.is_empty());
        Ok(if found { Ok(()) } else { Err("none".to_owned()) })
    })
    .await
}

/// Gives the team the H100s, and starts its two programs.
pub async fn start(world: &World) -> Result<()> {
    world.sample(SAMPLE).await?;
    tenant_ready(world, TEAM).await?;
    pool_ready(world, "inference").await?;
    world.sample(PODS).await?;
    world.pods_ready(TEAM, 2).await.map(drop)
}

/// Both programs in `kubectl gpu top`.
pub struct SideBySide {
    /// The table.
    pub table: String,
    /// The device of [`TINY`], as the JSON output has it.
    pub tiny: Value,
    /// The device of [`TRAINING`].
    pub training: Value,
}

/// Waits until `kubectl gpu top` shows that both programs keep their GPU busy, and notes that one of them uses almost nothing of it.
pub async fn side_by_side(world: &World) -> Result<SideBySide> {
    eventually("what both programs do in kubectl gpu top", PATIENCE, || async {
        let json = top(world, &["-o", "json"]).await?;
        let report: Value =
            serde_json::from_str(&json).map_err(|e| Error::Text { what: json.clone(), why: e.to_string() })?;
        let [tiny, training] = [TINY, TRAINING].map(|name| device(&report, name));
        let noted = tiny.get("note").and_then(Value::as_str).is_some_and(|note| note.starts_with("busy but idle"));
        // the first sample covers only the end of its interval
        let works = part(&training, "utilization") > 0.85 && part(&training, "smActive") > 0.8;
        if !noted || !works || training.get("note").is_some() {
            return Ok(Err(json));
        }
        Ok(Ok(SideBySide { table: top(world, &[]).await?, tiny, training }))
    })
    .await
}

async fn top(world: &World, more: &[&str]) -> Result<String> {
    let args = [&["top", "-n", TEAM][..], more].concat();
    let output = product::kubectl_gpu(&world.lab.kubeconfig_path(), &args).await?;
    objects::ensure(output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The device of the pod whose name begins so; null without a pod.
fn device(report: &Value, prefix: &str) -> Value {
    let mut pods = report.get("pods").and_then(Value::as_array).into_iter().flatten();
    let named = |pod: &&Value| pod.get("pod").and_then(Value::as_str).is_some_and(|name| name.starts_with(prefix));
    pods.find(named).and_then(|pod| pod.pointer("/devices/0")).cloned().unwrap_or_default()
}

/// A part from 0 to 1 of a device; 0 where it is not known.
pub fn part(device: &Value, field: &str) -> f64 {
    device.get(field).and_then(Value::as_f64).unwrap_or_default()
}

impl World {
    /// Takes the H100s from the node again, after the objects of the scene are deleted: the next test finds a node without GPUs.
    pub(crate) async fn h100_node_removed(&self) -> Result<()> {
        let (nodes, gpu_nodes) = (Api::<Node>::all(self.client.clone()), Api::<GpuNode>::all(self.client.clone()));
        let labelled = nodes.get_opt(NODE).await?.is_some_and(|node| node.labels().contains_key(GPU_LABEL));
        if !labelled && gpu_nodes.get_opt(NODE).await?.is_none() {
            return Ok(());
        }
        let no_label = Patch::Merge(json!({"metadata": {"labels": {GPU_LABEL: null}}}));
        nodes.patch(NODE, &PatchParams::default(), &no_label).await?;
        let pods = Api::<Pod>::namespaced(self.client.clone(), product::NAMESPACE);
        let here = ListParams::default().labels(ON_THE_NODE).fields(&format!("spec.nodeName={NODE}"));
        eventually(&format!("neither simulator nor agent on {NODE}"), PATIENCE, || async {
            let left: Vec<String> = pods.list(&here).await?.iter().map(ResourceExt::name_any).collect();
            Ok(if left.is_empty() { Ok(()) } else { Err(left.join(", ")) })
        })
        .await?;
        let nvsim = product::root().join("target/debug/nvsim").display().to_string();
        self.on_node(NODE, &[&nvsim, "uninstall", "--force"]).await?;
        // the operator marks the node as long as its GpuNode says that the GPUs are simulated
        let no_mark = Patch::Merge(json!({"metadata": {"labels": {SIMULATED_LABEL: null}}}));
        eventually(&format!("no GpuNode {NODE}"), PATIENCE, || async {
            if gpu_nodes.get_opt(NODE).await?.is_some() {
                gpu_nodes.delete(NODE, &DeleteParams::default()).await?;
                return Ok(Err("deleted a moment ago".to_owned()));
            }
            nodes.patch(NODE, &PatchParams::default(), &no_mark).await?;
            Ok(Ok(()))
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_is_that_of_the_pod_with_the_prefix() {
        let device_of = |name: &str, value: f64| json!({"pod": name, "devices": [{"utilization": value}]});
        let report = json!({"pods": [device_of("training-1-a", 0.9), device_of("tiny-1-b", 0.5)]});
        assert!((part(&device(&report, TINY), "utilization") - 0.5).abs() < 1e-9);
        assert_eq!(device(&report, "other"), Value::Null);
        assert!(part(&Value::Null, "utilization").abs() < 1e-9);
    }
}
