//! A team postpones the end of its pods neither by the notice of an eviction nor by hooks that do not end.

use std::time::Duration;

use e2e::{
    Error, Result, World,
    fixtures::{merged, mig_profile, pool, restricted_spec, tenant, two_small_pods, workload},
    objects::{ensure, gpu_node, set_guarantee},
    scenario::{instances_ready, pod_events, pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use lab::node::NodeHandle;
use serde_json::json;
use tokio::time::sleep;

const DEVICE: &str = "nvidia.com/mig-1g.10gb";
/// Time that a deleted pod has after its grace period before the agent stops it.
const MARGIN: Duration = Duration::from_secs(30);

#[tokio::test]
async fn eviction_happens_although_its_notice_is_removed_again_and_again() {
    let world = World::enter().await.unwrap();
    let body = async {
        two_small_pods(&world).await?;
        let rules = json!({"spec": {"disruption": {"notice": "8s", "drainTimeout": "60s"}}}).to_string();
        world.kubectl(&["patch", "gpupool", "p", "--type=merge", "-p", &rules]).await?;
        set_guarantee(&world.client, "small", "mig-1g", 2).await?;
        set_guarantee(&world.client, "big", "mig-3g", 3).await?;
        // as an administrator: policies refuse it to a team
        let strip = async {
            loop {
                let remove = ["annotate", "pods", "-n", "small", "--all", "gputenancy.io/eviction-notice-"];
                world.kubectl(&remove).await.ok();
                sleep(Duration::from_millis(300)).await;
            }
        };
        tokio::select! {
            () = strip => Err(Error::Wrong("the loop has ended".into())),
            changed = instances_ready(&world, "3g.40gb", 3) => changed.map(drop),
        }?;
        let notices = pod_events(&world, "small", "EvictionNotice").await?;
        ensure((1..=4).contains(&notices.len()), format!("{} notices: {notices:?}", notices.len()))
    };
    world.keeping_evidence("notice-removed", body).await;
}

#[tokio::test]
async fn deleted_pod_whose_hook_does_not_end_is_stopped_and_frees_its_device() {
    let world = World::enter().await.unwrap();
    let body = async {
        world.set(&[mig_profile("mig-1g", "1g.10gb")]).await?;
        world.set(&[pool("p", "gpu-1", &["mig-1g"]), tenant("t", &[("mig-1g", 1)])]).await?;
        tenant_ready(&world, "t").await?;
        pool_ready(&world, "p").await?;
        let endless = json!(["sh", "-c", "trap '' TERM; while true; do sleep 1; done"]);
        let spec = restricted_spec(json!({
            "name": "c", "image": "lab.local/busybox:1", "imagePullPolicy": "Never", "command": endless,
            "lifecycle": {"postStart": {"exec": {"command": endless}}}, "resources": {"limits": {DEVICE: "1"}},
        }));
        let spec = merged(spec, json!({"terminationGracePeriodSeconds": 2}));
        let pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hangs", "namespace": "t"}, "spec": spec});
        world.set(&[pod]).await?;
        owned(&world).await?;
        // its container has to run before kubelet learns of the deletion
        eventually("the hook to run", PATIENCE, || async {
            let processes = world.on_node("gpu-1", &["ps", "-ef"]).await?;
            let hooks = processes.lines().filter(|line| line.contains("trap '' TERM")).count();
            Ok(if hooks >= 2 { Ok(()) } else { Err(format!("{hooks} of 2 processes")) })
        })
        .await?;
        world.kubectl(&["delete", "pod", "-n", "t", "hangs", "--wait=false"]).await?;
        eventually("the event about the stopped container", MARGIN + PATIENCE, || async {
            let events = pod_events(&world, "t", "StoppedAfterDeadline").await?;
            let reported = events.iter().any(|e| e.starts_with("hangs: containers c still ran 30 seconds after"));
            Ok(if reported { Ok(()) } else { Err(format!("{events:?}")) })
        })
        .await?;
        let pods = Api::<Pod>::namespaced(world.client.clone(), "t");
        eventually("the pod to be gone", PATIENCE, || async {
            Ok(if pods.get_opt("hangs").await?.is_none() { Ok(()) } else { Err("it is still there".into()) })
        })
        .await?;
        // the only device of the team
        world.set(&[workload("t", "next", DEVICE, 1)]).await?;
        world.pods_ready("t", 1).await.map(drop)
    };
    world.keeping_evidence("hook-without-end", body).await;
}

#[tokio::test]
async fn program_of_a_deleted_pod_gets_sigterm_although_kubelet_is_down() {
    let world = World::enter().await.unwrap();
    let node = world.lab.node("gpu-1").unwrap();
    let body = without_kubelet(&world, &node).await;
    node.start_component("kubelet").await.unwrap();
    world.lab.nodes_ready().await.unwrap();
    world.keeping_evidence("deleted-without-kubelet", async { body }).await;
}

async fn without_kubelet(world: &World, node: &NodeHandle) -> Result<()> {
    world.set(&[mig_profile("mig-1g", "1g.10gb")]).await?;
    world.set(&[pool("p", "gpu-1", &["mig-1g"]), tenant("t", &[("mig-1g", 1)])]).await?;
    tenant_ready(world, "t").await?;
    pool_ready(world, "p").await?;
    let spec = restricted_spec(json!({
        "name": "c", "image": "lab.local/busybox:1", "imagePullPolicy": "Never", "resources": {"limits": {DEVICE: "1"}},
        "command": ["sh", "-c", "trap 'echo saved; exit 0' TERM; while true; do sleep 1 & wait $!; done"],
    }));
    let spec = merged(spec, json!({"terminationGracePeriodSeconds": 2}));
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hangs", "namespace": "t"}, "spec": spec});
    world.set(&[pod]).await?;
    world.pods_ready("t", 1).await?;
    owned(world).await?;
    node.stop_component("kubelet").await?;
    world.kubectl(&["delete", "pod", "-n", "t", "hangs", "--wait=false"]).await?;
    eventually("the program to get SIGTERM", MARGIN + PATIENCE, || async {
        let log = world.on_node("gpu-1", &["sh", "-c", "cat /var/log/pods/t_hangs_*/c/*.log"]).await?;
        Ok(if log.contains("saved") { Ok(()) } else { Err(log) })
    })
    .await?;
    let events = pod_events(world, "t", "StoppedAfterDeadline").await?;
    ensure(events.iter().any(|e| e.starts_with("hangs: ")), format!("{events:?}"))
}

/// Kubelet has given the pod its device.
async fn owned(world: &World) -> Result<()> {
    eventually("the pod to own a device", PATIENCE, || async {
        let node = gpu_node(&world.client, "gpu-1").await?;
        let mut devices = node.status.iter().flat_map(|s| &s.gpus).flat_map(gputenancy_crds::GpuState::devices);
        let owns = devices.any(|d| d.owner.as_ref().is_some_and(|o| o.pod == "hangs"));
        Ok(if owns { Ok(()) } else { Err("no device has this owner".into()) })
    })
    .await
}
