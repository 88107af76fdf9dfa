//! Pods are created and deleted on two nodes, while layouts change, agents restart, and exporters query kubelet's pod
//! resources. Such queries make kubelet lose a pending allocation now and then (kubernetes/kubernetes#137534).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use e2e::{
    Error, Result, World,
    fixtures::{mig_profile, pod_spec, tenant},
    kubelet::PodResources,
    objects::{ensure, set_guarantee},
    product,
    scenario::tenant_ready,
    wait::rounds,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use lab::NodeHandle;
use serde_json::{Value, json};

/// Duration of one round in seconds. `GPUTENANCY_ROUNDS=10` makes it five minutes, in which kubelet has shown its error now and then.
const ROUND: u64 = 30;

/// Duration of the test in seconds.
fn seconds() -> u64 {
    ROUND * u64::from(rounds())
}

/// Is this the reason of a pod that kubelet's admission refused: `UnexpectedAdmissionError`, `OutOfnvidia.com/…`?
fn kubelet_refused(reason: &str) -> bool {
    reason.contains("Admission") || reason.starts_with("OutOf")
}

/// Has the agent refused a device that kubelet allocates twice? That is the remedy for kubelet's error, and the pod is replaced.
fn dropped_by_kubelet(message: &str) -> bool {
    message.contains("kubernetes/kubernetes#137534")
}

/// One of this many pods may meet kubelet's error: it needs a query between two calls of kubelet, and a busy machine has many.
const PODS_FOR_EACH_DROPPED: usize = 100;
/// Fewest pods of a run. It also has a changed guarantee and a restarted agent.
const LEAST_PODS: usize = 50;

/// A random generator with a fixed seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[tokio::test]
async fn allocation_under_churn_gives_each_device_to_one_pod() {
    let world = World::enter().await.unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let exporters = NODES.map(|node| tokio::spawn(query_until(over.clone(), world.lab.node(node).unwrap())));
    world.keeping_evidence("churn", churn(&world)).await;
    over.store(true, Ordering::Relaxed);
    for exporter in exporters {
        let answers = exporter.await.unwrap();
        assert!(answers > seconds(), "kubelet answered only {answers} queries");
    }
}

/// Queries kubelet's pod resources as a metrics exporter does, and returns the number of answers.
async fn query_until(over: Arc<AtomicBool>, node: NodeHandle) -> u64 {
    let pods = PodResources::at(&node.kubelet_file("pod-resources/kubelet.sock")).unwrap();
    let mut answers = 0;
    while !over.load(Ordering::Relaxed) {
        // kubelet limits all clients together to 100 queries a second
        if let Ok(owners) = pods.owners("nvidia.com/mig-").await {
            // exporters look these ids up in NVML
            assert!(owners.keys().all(|id| id.starts_with("MIG-")), "{:?}", owners.keys());
            answers += 1;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    answers
}

async fn churn(world: &World) -> Result<()> {
    let both = json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuPool", "metadata": {"name": "all"},
        "spec": {
            "nodeSelector": {"matchLabels": {"gputenancy.io/lab-gpu": "true"}}, "profiles": ["mig-1g", "mig-2g", "mig-3g"],
            "disruption": {"maxUnavailable": 2, "settleTime": "0s"},
        },
    });
    world
        .set(&[
            mig_profile("mig-1g", "1g.10gb"),
            mig_profile("mig-2g", "2g.20gb"),
            mig_profile("mig-3g", "3g.40gb"),
            both,
        ])
        .await?;
    world.set(&[tenant("churn", &[("mig-1g", 8), ("mig-2g", 4), ("mig-3g", 1)])]).await?;
    tenant_ready(world, "churn").await?;
    let marks = history_lengths(world).await?;

    let pods = Api::<Pod>::namespaced(world.client.clone(), "churn");
    let (start, mut random, mut number) = (Instant::now(), Random(2026), 0);
    let (mut changes, mut restarts) = (0, 0);
    let mut refused = BTreeMap::<String, u32>::new();
    let (mut failed, mut dropped) = (BTreeSet::new(), BTreeSet::new());
    while start.elapsed() < Duration::from_secs(seconds()) || number <= LEAST_PODS || changes == 0 || restarts == 0 {
        let alive = pods.list(&ListParams::default()).await?.items;
        for pod in &alive {
            let status = pod.status.as_ref();
            if let Some(reason) = status.and_then(|s| s.reason.as_deref()).filter(|r| kubelet_refused(r)) {
                let message = status.and_then(|s| s.message.as_deref()).unwrap_or_default();
                let of = if dropped_by_kubelet(message) { &mut dropped } else { &mut failed };
                of.insert(format!("{}: {reason}: {message}", pod.name_any()));
            }
        }
        match random.below(100) {
            0..=54 if alive.len() < 50 => {
                number += 1;
                let resource = ["nvidia.com/mig-1g.10gb", "nvidia.com/mig-2g.20gb", "nvidia.com/mig-3g.40gb"]
                    [usize::try_from(random.below(3)).unwrap_or(0)];
                let body: Pod = serde_json::from_value(
                    json!({"metadata": {"name": format!("p{number}")}, "spec": pod_spec(resource)}),
                )
                .map_err(|e| Error::Wrong(e.to_string()))?;
                match pods.create(&PostParams::default(), &body).await {
                    Ok(_) => {}
                    Err(kube::Error::Api(status)) if status.is_forbidden() => {
                        *refused.entry(resource.into()).or_default() += 1;
                    }
                    Err(other) => return Err(other.into()),
                }
            }
            0..=93 => {
                if let Some(pod) = alive.get(usize::try_from(random.below(alive.len().max(1) as u64)).unwrap_or(0)) {
                    pods.delete(&pod.name_any(), &DeleteParams::default()).await.ok();
                }
            }
            94..=97 => {
                let one_g = i32::try_from(4 + random.below(8)).unwrap_or(4);
                let three_g = i32::try_from(random.below(3)).unwrap_or(1);
                set_guarantee(&world.client, "churn", "mig-1g", one_g).await?;
                set_guarantee(&world.client, "churn", "mig-3g", three_g).await?;
                changes += 1;
            }
            _ => {
                let agent = [
                    "delete",
                    "pod",
                    "-n",
                    product::NAMESPACE,
                    "-l",
                    "app.kubernetes.io/name=gputenancy-agent",
                    "--field-selector",
                ];
                let node = format!("spec.nodeName=gpu-{}", 1 + random.below(2));
                world.kubectl(&[&agent[..], &[&node, "--wait=false"]].concat()).await?;
                restarts += 1;
            }
        }
        tokio::time::sleep(Duration::from_millis(150)).await;
    }

    ensure(failed.is_empty(), format!("pods that kubelet refused: {failed:?}"))?;
    let few = dropped.len() <= number.div_ceil(PODS_FOR_EACH_DROPPED);
    ensure(few, format!("of {number} pods kubelet dropped {dropped:?}"))?;
    let attached = check_exclusive_use(world, &marks).await?;

    pods.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    set_guarantee(&world.client, "churn", "mig-1g", 8).await?;
    set_guarantee(&world.client, "churn", "mig-3g", 1).await?;
    world.pods_ready("churn", 0).await?;
    tenant_ready(world, "churn").await?;
    world.set(&[e2e::fixtures::workload("churn", "again", "nvidia.com/mig-1g.10gb", 8)]).await?;
    world.pods_ready("churn", 8).await?;
    println!(
        "churn: {number} pods created, {attached} attached, {refused:?} refused by quota, {} dropped by kubelet, {changes} \
         changed guarantees, {restarts} restarted agents",
        dropped.len()
    );
    Ok(())
}

/// Checks the simulator's history since the marks: no process attached to a device that another pod used. Returns the attachments.
async fn check_exclusive_use(world: &World, marks: &BTreeMap<&'static str, usize>) -> Result<u32> {
    let (mut attached, mut doubles) = (0, Vec::new());
    for (node, line) in records(world, marks).await? {
        if line["event"] == "attach" {
            attached += 1;
            if line["others"].as_array().is_some_and(|others| others.iter().any(|o| *o != line["owner"])) {
                doubles.push(format!("{node}: {line}"));
            }
        }
    }
    ensure(attached > 0, "the history has no attachment")?;
    ensure(doubles.is_empty(), format!("devices held by two pods: {doubles:?}"))?;
    Ok(attached)
}

const NODES: [&str; 2] = ["gpu-1", "gpu-2"];

async fn history(world: &World, node: &str) -> Result<Vec<String>> {
    Ok(world.nvsim(node, &["history"]).await?.lines().map(String::from).collect())
}

async fn history_lengths(world: &World) -> Result<BTreeMap<&'static str, usize>> {
    let mut lengths = BTreeMap::new();
    for node in NODES {
        lengths.insert(node, history(world, node).await?.len());
    }
    Ok(lengths)
}

async fn records(world: &World, marks: &BTreeMap<&'static str, usize>) -> Result<Vec<(&'static str, Value)>> {
    let mut records = Vec::new();
    for node in NODES {
        for line in history(world, node).await?.iter().skip(marks.get(node).copied().unwrap_or(0)) {
            let value =
                serde_json::from_str(line).map_err(|e| Error::Text { what: line.clone(), why: e.to_string() })?;
            records.push((node, value));
        }
    }
    Ok(records)
}
