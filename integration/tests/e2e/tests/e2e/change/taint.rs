//! The taint of a pool keeps pods without a GPU off its nodes and is removed with the pool; other taints stay. Taints, their mark and
//! labels that are removed or changed by hand are repaired.

use std::collections::{BTreeMap, BTreeSet};

use e2e::{
    Result, World,
    fixtures::{mig_profile, pool, tenant, workload},
    objects::{self, ensure},
    scenario::{pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{GpuPool, condition, names};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

/// The taint of the pool, as `kubectl taint` writes it.
const OURS: &str = "nvidia.com/gpu=a100:NoSchedule";
const THEIRS: &str = "example.com/rack=7:PreferNoSchedule";

fn pool_with_taint(key: &str) -> Value {
    let mut pool = pool("p", "gpu-1", &["mig-1g"]);
    pool["spec"]["taint"] = json!({"key": key, "value": "a100"});
    pool
}

/// The taints of gpu-1, and the operator's annotation.
async fn taints(world: &World) -> Result<(BTreeSet<String>, Option<String>)> {
    let node = Api::<Node>::all(world.client.clone()).get("gpu-1").await?;
    let text = |t: &k8s_openapi::api::core::v1::Taint| {
        format!("{}={}:{}", t.key, t.value.as_deref().unwrap_or_default(), t.effect)
    };
    let all = node.spec.iter().flat_map(|s| s.taints.iter().flatten()).map(text).collect();
    Ok((all, node.annotations().get(names::TAINTED).cloned()))
}

async fn taints_become(world: &World, what: &str, wanted: &[&str], mark: Option<&str>) -> Result<()> {
    let wanted: BTreeSet<String> = wanted.iter().map(|t| (*t).to_owned()).collect();
    eventually(what, PATIENCE, || async {
        let seen = taints(world).await?;
        Ok(if seen == (wanted.clone(), mark.map(str::to_owned)) { Ok(()) } else { Err(format!("{seen:?}")) })
    })
    .await
}

/// The operator's labels of gpu-1.
async fn labels(world: &World) -> Result<BTreeMap<String, String>> {
    let mut labels = Api::<Node>::all(world.client.clone()).get("gpu-1").await?.labels().clone();
    labels.retain(|label, _| [names::POOL_LABEL, names::LAYOUT_LABEL].contains(&label.as_str()));
    Ok(labels)
}

/// Labels that are removed or changed by hand come back.
async fn labels_are_repaired(world: &World) -> Result<()> {
    let before = labels(world).await?;
    ensure(before.get(names::POOL_LABEL).is_some_and(|pool| pool == "p"), "the node has the label of its pool")?;
    for edit in
        [format!("{}-", names::POOL_LABEL), format!("{}=other", names::POOL_LABEL), format!("{}-", names::LAYOUT_LABEL)]
    {
        world.kubectl(&["label", "--overwrite", "node", "gpu-1", &edit]).await?;
        eventually(&format!("the labels of the node after {edit}"), PATIENCE, || async {
            let now = labels(world).await?;
            Ok(if now == before { Ok(()) } else { Err(format!("{now:?}")) })
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn pool_taint_excludes_other_pods_and_is_removed_with_the_pool() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("taint", taint_lifecycle(&world)).await;
    world.kubectl(&["taint", "node", "gpu-1", "example.com/rack-"]).await.unwrap();
}

async fn taint_lifecycle(world: &World) -> Result<()> {
    world.kubectl(&["taint", "node", "gpu-1", THEIRS]).await?;
    world
        .set(&[mig_profile("mig-1g", "1g.10gb"), pool_with_taint("nvidia.com/gpu"), tenant("small", &[("mig-1g", 1)])])
        .await?;
    tenant_ready(world, "small").await?;
    pool_ready(world, "p").await?;
    taints_become(world, "the pool's taint next to another", &[OURS, THEIRS], Some(OURS)).await?;
    // pods with a GPU tolerate the taint without a field of their own; other pods stay pending
    world.set(&[workload("small", "w", "nvidia.com/mig-1g.10gb", 1)]).await?;
    world.pods_ready("small", 1).await?;
    let plain = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain", "namespace": "default"},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": "gpu-1"}, "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "c", "image": "lab.local/gputenancy-workload:dev", "imagePullPolicy": "Never", "command": ["sleep", "600"]}],
        },
    });
    world.set(&[plain]).await?;
    let pods = Api::<Pod>::namespaced(world.client.clone(), "default");
    eventually("the scheduler to reject a pod without a GPU", PATIENCE, || async {
        let pod = pods.get("plain").await?;
        let all = pod.status.iter().flat_map(|s| s.conditions.iter().flatten());
        let words: Vec<&str> = all.filter_map(|c| c.message.as_deref()).collect();
        Ok(if words.iter().any(|w| w.contains("untolerated taint")) { Ok(()) } else { Err(words.join("; ")) })
    })
    .await?;
    // a removed taint is restored
    world.kubectl(&["taint", "node", "gpu-1", "nvidia.com/gpu-"]).await?;
    taints_become(world, "the pool's taint to be restored", &[OURS, THEIRS], Some(OURS)).await?;
    world.kubectl(&["annotate", "node", "gpu-1", &format!("{}-", names::TAINTED)]).await?;
    taints_become(world, "the mark of the pool's taint to be restored", &[OURS, THEIRS], Some(OURS)).await?;
    labels_are_repaired(world).await?;
    // a key that pods of tenants do not tolerate is refused, and the operator's taint is removed
    world.set(&[pool_with_taint("example.com/gpu")]).await?;
    eventually("the tolerated key in the pool's condition", PATIENCE, || async {
        let status = Api::<GpuPool>::all(world.client.clone()).get("p").await?.status.unwrap_or_default();
        let ready = objects::condition(&status.conditions, condition::READY).cloned();
        let named = ready
            .as_ref()
            .is_some_and(|c| c.reason == "TaintNotTolerated" && c.message.contains("write nvidia.com/gpu"));
        Ok(if named { Ok(()) } else { Err(format!("{ready:?}")) })
    })
    .await?;
    taints_become(world, "only the other taint", &[THEIRS], None).await?;
    eventually("the pod without a GPU to run", PATIENCE, || async {
        let phase = pods.get("plain").await?.status.and_then(|s| s.phase).unwrap_or_default();
        Ok(if phase == "Running" { Ok(()) } else { Err(phase) })
    })
    .await?;
    world.kubectl(&["delete", "pod", "plain", "--now"]).await?;
    // the taint is removed with the pool, even while a pod of a tenant runs
    world.set(&[pool_with_taint("nvidia.com/gpu")]).await?;
    taints_become(world, "the pool's taint", &[OURS, THEIRS], Some(OURS)).await?;
    world.kubectl(&["delete", "gpupool", "p", "--wait=false"]).await?;
    taints_become(world, "only the other taint", &[THEIRS], None).await?;
    let node = Api::<Node>::all(world.client.clone()).get("gpu-1").await?;
    ensure(!node.annotations().contains_key(names::TAINTED), "the annotation is left")
}
