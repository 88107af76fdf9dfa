//! Labels of NVIDIA's unmodified gpu-feature-discovery, compared with `GpuNode.status`.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{Board, BoardProfile, GpuNode, names};
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};

use crate::{
    Error, Result, World, objects, product,
    wait::{PATIENCE, eventually},
};

/// Labels of a node, by name.
pub type Labels = BTreeMap<String, String>;

/// Folder of the `/proc` and `/sys` files that a real driver provides.
const TREES: &str = "/run/feature-discovery";
/// Folder from which NVIDIA's container toolkit would mount NVML.
const LIBRARIES: &str = "/run/nvidia/driver/usr/lib/x86_64-linux-gnu";
/// Media and copy engines in the order in which `GpuNode.status.boards[].profiles[].engines` has them.
const ENGINES: [&str; 5] = ["copy", "decoder", "encoder", "jpeg", "ofa"];

/// A number that both sources should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The label.
    pub label: String,
    /// The value of gpu-feature-discovery, if any.
    pub nvidia: Option<String>,
    /// The value from `GpuNode.status`, if any.
    pub ours: Option<String>,
}

/// Runs gpu-feature-discovery once on a node and returns its labels.
pub async fn labels(world: &World, node: &str) -> Result<Labels> {
    let (script, program) =
        (checkout("integration/sim/nvml-sim/tests/with-driver"), checkout("target/toolset/bin/gpu-feature-discovery"));
    world.on_node(node, &["mkdir", "-p", &format!("{TREES}/mnt")]).await?;
    world.nvsim(node, &["materialize", "--root", TREES]).await?;
    let library = format!("LD_LIBRARY_PATH={LIBRARIES}");
    let run = ["env", &library, &script, TREES, &program, "--oneshot", "--no-timestamp", "--mig-strategy=mixed"];
    let quiet = ["--use-node-feature-api=false", "--device-discovery-strategy=nvml", "--output-file="];
    Ok(parse(&world.on_node(node, &[run.as_slice(), &quiet].concat()).await?))
}

fn checkout(path: &str) -> String {
    product::root().join(path).display().to_string()
}

fn parse(output: &str) -> Labels {
    output.lines().filter_map(|line| line.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

/// Runs gpu-feature-discovery on a node and compares; a number that differs is an error.
pub async fn compare_on(world: &World, node: &str) -> Result<Vec<Row>> {
    let labels = labels(world, node).await?;
    let rows = compare(&labels, &objects::gpu_node(&world.client, node).await?)?;
    let differ: Vec<&Row> = rows.iter().filter(|row| row.nvidia != row.ours).collect();
    objects::ensure(differ.is_empty(), format!("{node}: gpu-feature-discovery and GpuNode.status differ: {differ:?}"))?;
    on_the_node(world, node, &about_mig(&labels)).await?;
    Ok(rows)
}

/// Waits until the operator's labels of the node equal those of gpu-feature-discovery.
async fn on_the_node(world: &World, node: &str, theirs: &Labels) -> Result<()> {
    let nodes = Api::<Node>::all(world.client.clone());
    eventually(&format!("NVIDIA's labels on {node}"), PATIENCE, || async {
        let ours = about_mig(nodes.get(node).await?.labels());
        Ok(if ours == *theirs { Ok(()) } else { Err(format!("{ours:?} and not {theirs:?}")) })
    })
    .await
}

/// Labels about MIG devices. The number of multiprocessors is left out: NVML reports it only to programs that open the device.
fn about_mig(labels: &Labels) -> Labels {
    let of_mig = labels.iter().filter(|(l, _)| l.starts_with("nvidia.com/mig-") && !l.ends_with(".multiprocessors"));
    of_mig.map(|(label, value)| (label.clone(), value.clone())).collect()
}

/// Every number that both sources have, in the order of the labels.
pub fn compare(labels: &Labels, node: &GpuNode) -> Result<Vec<Row>> {
    let expected = expected(node)?;
    let theirs = labels.keys().filter(|label| has_counterpart(label));
    let all: BTreeSet<&String> = expected.keys().chain(theirs).collect();
    let row = |label: &String| Row {
        label: label.clone(),
        nvidia: labels.get(label).cloned(),
        ours: expected.get(label).cloned(),
    };
    Ok(all.into_iter().map(row).collect())
}

/// Does `GpuNode.status` have a counterpart of this label?
fn has_counterpart(label: &str) -> bool {
    let known = |what: &str| [".count", ".memory", ".slices.gi", ".slices.ci"].contains(&what);
    let engine = |what: &str| what.strip_prefix(".engines.").is_some_and(|e| ENGINES.contains(&e));
    let of = |cut: usize| label.get(cut..).is_some_and(|what| known(what) || engine(what));
    label.starts_with("nvidia.com/mig-") && label.match_indices('.').any(|(cut, _)| of(cut))
}

/// The labels that gpu-feature-discovery must set for this `GpuNode.status`.
fn expected(node: &GpuNode) -> Result<Labels> {
    let status = node.status.clone().unwrap_or_default();
    let mut labels = Labels::new();
    let mut set = |label: String, value: String| drop(labels.insert(label, value));
    set("nvidia.com/gpu.count".into(), status.gpus.len().to_string());
    if let Some(version) = status.driver_version {
        set("nvidia.com/cuda.driver-version.full".into(), version);
    }
    if let Some(version) = status.cuda_version {
        set("nvidia.com/cuda.runtime-version.full".into(), version);
    }
    if let [board] = status.boards.as_slice() {
        set("nvidia.com/gpu.product".into(), board.product.clone());
        set("nvidia.com/gpu.memory".into(), mib(&board.memory)?);
    }
    let mut counts: BTreeMap<(i32, &str), usize> = BTreeMap::new();
    for gpu in &status.gpus {
        gpu.instances.iter().for_each(|i| *counts.entry((gpu.board, &i.profile)).or_default() += 1);
    }
    for ((board, name), count) in counts {
        let profile = profile(&status.boards, board, name)?;
        let resource = names::mig_resource(name);
        set(format!("{resource}.count"), count.to_string());
        set(format!("{resource}.memory"), mib(&profile.memory)?);
        set(format!("{resource}.slices.gi"), profile.slices.to_string());
        set(format!("{resource}.slices.ci"), profile.slices.to_string());
        for (engine, count) in ENGINES.iter().zip(&profile.engines) {
            set(format!("{resource}.engines.{engine}"), count.to_string());
        }
    }
    Ok(labels)
}

fn profile<'a>(boards: &'a [Board], board: i32, name: &str) -> Result<&'a BoardProfile> {
    let board = usize::try_from(board).ok().and_then(|index| boards.get(index));
    let found = board.and_then(|b| b.profiles.iter().find(|p| p.name == name));
    found.ok_or_else(|| Error::Wrong(format!("GpuNode.status has an instance {name} and no board that offers it")))
}

fn mib(memory: &gputenancy_crds::MemoryText) -> Result<String> {
    let mib =
        memory.mib().map_err(|why| Error::Text { what: "memory in GpuNode.status".into(), why: why.to_string() })?;
    Ok(mib.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> GpuNode {
        let profile = serde_json::json!({"id": 19, "name": "1g.10gb+me", "slices": 1, "memory": "9728Mi", "size": 1,
            "starts": [0], "max": 1, "engines": [1, 1, 0, 1, 1]});
        let instance = serde_json::json!({"start": 0, "profile": "1g.10gb+me", "gi": 1, "device": {}});
        let status = serde_json::json!({
            "boards": [{"product": "NVIDIA-A", "memory": "80Gi", "slices": 7, "memorySlices": 8, "profiles": [profile]}],
            "gpus": [{"uuid": "GPU-0", "index": 0, "board": 0, "instances": [instance]}],
        });
        let mut node = GpuNode::new("n", gputenancy_crds::GpuNodeSpec::default());
        node.status = serde_json::from_value(status).unwrap();
        node
    }

    #[test]
    fn instance_yields_a_label_for_each_number() {
        let expected = expected(&node()).unwrap();
        let get = |label: &str| expected.get(label).map(String::as_str);
        assert_eq!(get("nvidia.com/mig-1g.10gb.me.count"), Some("1"));
        assert_eq!(get("nvidia.com/mig-1g.10gb.me.memory"), Some("9728"));
        assert_eq!(get("nvidia.com/mig-1g.10gb.me.engines.jpeg"), Some("1"));
        assert_eq!(get("nvidia.com/gpu.memory"), Some("81920"));
    }

    #[test]
    fn label_of_one_side_only_is_a_mismatch() {
        let mut labels = expected(&node()).unwrap();
        assert!(compare(&labels, &node()).unwrap().iter().all(|row| row.nvidia == row.ours));
        labels.insert("nvidia.com/mig-2g.20gb.count".into(), "1".into());
        labels.insert("nvidia.com/mig-2g.20gb.product".into(), "has no counterpart".into());
        labels.remove("nvidia.com/gpu.count");
        let rows = compare(&labels, &node()).unwrap();
        let differ: Vec<&str> = rows.iter().filter(|r| r.nvidia != r.ours).map(|r| r.label.as_str()).collect();
        assert_eq!(differ, ["nvidia.com/gpu.count", "nvidia.com/mig-2g.20gb.count"]);
    }
}
