//! Processes that use a device which kubelet has not given to them: a change waits for them and names them.

use std::collections::BTreeSet;

use e2e::{
    Error, Result, World,
    objects::{self, ensure},
    product,
    scene::{mig_profile, pool, tenant, workload},
    story::{settled, tenant_ready},
    wait::{PATIENCE, eventually},
};
use futures::{TryStreamExt as _, future};
use gputenancy_crds::{DeviceState, GpuNode, GpuPool};
use kube::{
    Api,
    runtime::{WatchStreamExt as _, watcher},
};
use serde_json::{Value, json};

/// The driver's place on a node.
const DRIVER: &str = "/run/nvidia/driver";
/// What a program needs to find it there.
const LIBRARIES: &str = "LD_LIBRARY_PATH=/run/nvidia/driver/usr/lib/x86_64-linux-gnu";
const STATE: &str = "NVSIM_STATE=/run/nvidia/driver/run/nvsim";

/// Where the monitor runs.
const MONITORING: &str = "monitoring";

#[tokio::test]
async fn processes_that_have_nothing_from_kubelet_are_waited_for_and_named_with_container_and_pod() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("orphans", two_strangers(&world)).await;
}

/// One on each GPU, as an administrator's shell and a badly written monitor would hold them.
async fn two_strangers(world: &World) -> Result<()> {
    let mut supply = pool("p", "gpu-1", &["mig-1g", "mig-3g"]);
    // all small devices go, though strangers use two of them
    supply["spec"]["disruption"]["allowOutage"] = true.into();
    world.set(&[mig_profile("mig-1g", "1g.10gb"), mig_profile("mig-3g", "3g.40gb"), supply]).await?;
    world.set(&[tenant("t", &[("mig-1g", 14)])]).await?;
    tenant_ready(world, "t").await?;
    let shell = on_the_node(world, &device(world, 0).await?).await?;
    world.set(&[namespace(), monitor(&device(world, 1).await?)]).await?;
    world.pods_ready(MONITORING, 1).await?;
    world.set(&[tenant("t", &[("mig-3g", 4)])]).await?;
    let named = [
        format!("process {shell} (gpu-work) uses 1g.10gb at 0 and belongs to no pod: end it"),
        "(gpu-work) of container spy of pod monitoring/monitor uses 1g.10gb at 0".to_owned(),
    ];
    let pools = Api::<GpuPool>::all(world.client.clone());
    eventually("the pool names both processes", PATIENCE, || async {
        let changes = pools.get("p").await?.status.unwrap_or_default().changes;
        let told = |words: &String| changes.iter().any(|c| c.message.contains(words));
        Ok(if named.iter().all(told) { Ok(()) } else { Err(format!("{changes:?}")) })
    })
    .await?;
    let lives = |pid: &str| format!("/proc/{pid}/stat");
    world.on_node("gpu-1", &["cat", &lives(&shell)]).await?;
    world.pods_ready(MONITORING, 1).await?;
    world.on_node("gpu-1", &["kill", "-9", &shell]).await?;
    world.kubectl(&["delete", "namespace", MONITORING]).await?;
    settled(world, "3g.40gb", 4).await.map(drop)
}

#[tokio::test]
async fn pods_that_leave_together_leave_no_process_behind_that_nobody_answers_for() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("leaving", fourteen_leave(&world)).await;
}

/// Every status that is written meanwhile is looked at: a plan may be made from any of them.
async fn fourteen_leave(world: &World) -> Result<()> {
    world.set(&[mig_profile("mig-1g", "1g.10gb"), pool("p", "gpu-1", &["mig-1g"])]).await?;
    world.set(&[tenant("t", &[("mig-1g", 14)])]).await?;
    tenant_ready(world, "t").await?;
    world.set(&[workload("t", "w", "nvidia.com/mig-1g.10gb", 14)]).await?;
    world.pods_ready("t", 14).await?;
    let used = |d: &DeviceState| d.owner.is_some() && d.clients > 0;
    all_devices(world, "used by its owner", used).await?;

    let nodes = Api::<GpuNode>::all(world.client.clone());
    let (mut looks, mut unanswered) = (0, BTreeSet::new());
    let words = watcher(nodes, watcher::Config::default().fields("metadata.name=gpu-1")).applied_objects();
    let following = words.try_for_each(|node| {
        looks += 1;
        let instances = node.status.iter().flat_map(|s| &s.gpus).flat_map(|g| g.instances.iter().map(move |i| (g, i)));
        let odd = instances.filter(|(_, i)| i.device.owner.is_none() && i.device.clients > 0);
        unanswered.extend(odd.map(|(g, i)| format!("look {looks}: GPU {} at {}", g.index, i.start)));
        future::ready(Ok(()))
    });
    let leaving = async {
        world.kubectl(&["scale", "deployment", "-n", "t", "w", "--replicas=0"]).await?;
        all_devices(world, "left", |d| d.owner.is_none() && d.clients == 0).await
    };
    tokio::select! {
        end = following => return Err(Error::Wrong(format!("the watch ended: {end:?}"))),
        left = leaving => left?,
    }
    ensure(looks > 1, "they were seen leaving")?;
    ensure(unanswered.is_empty(), format!("processes whose pods had just left: {unanswered:?}"))
}

/// Waits until all fourteen devices of gpu-1 are so.
async fn all_devices(world: &World, what: &str, so: impl Fn(&DeviceState) -> bool) -> Result<()> {
    eventually(&format!("every device {what}"), PATIENCE, || async {
        let node = objects::gpu_node(&world.client, "gpu-1").await?;
        let devices = node.status.iter().flat_map(|s| &s.gpus).flat_map(|g| g.instances.iter().map(|i| &i.device));
        let many = devices.filter(|d| so(d)).count();
        Ok(if many == 14 { Ok(()) } else { Err(format!("{many} of 14")) })
    })
    .await
}

/// The UUID of the first MIG device of a GPU of gpu-1.
async fn device(world: &World, gpu: usize) -> Result<String> {
    let node = objects::gpu_node(&world.client, "gpu-1").await?;
    let state = node.status.unwrap_or_default().gpus.into_iter().nth(gpu);
    let uuid = state.and_then(|g| g.instances.into_iter().next()?.uuid);
    uuid.ok_or_else(|| Error::Wrong(format!("GPU {gpu} of gpu-1 has no MIG device")))
}

/// Starts a process on the node itself that holds a device; its id there.
async fn on_the_node(world: &World, device: &str) -> Result<String> {
    let program = product::root().join("target/debug/gpu-work").display().to_string();
    let start = format!("{LIBRARIES} {STATE} CUDA_VISIBLE_DEVICES={device} {program} hold >/dev/null 2>&1 & echo $!");
    let pid = world.on_node("gpu-1", &["sh", "-c", &start]).await?;
    Ok(pid.trim().to_owned())
}

fn namespace() -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": MONITORING}})
}

/// A privileged pod that asks for no device and uses one.
fn monitor(device: &str) -> Value {
    let variable = |text: &str| text.split_once('=').map(|(name, value)| json!({"name": name, "value": value}));
    let device = format!("CUDA_VISIBLE_DEVICES={device}");
    let env: Vec<Value> = [LIBRARIES, STATE, &device].into_iter().filter_map(variable).collect();
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "monitor", "namespace": MONITORING},
        "spec": {
            "nodeName": "gpu-1", "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{
                "name": "spy", "image": "lab.local/gputenancy-workload:dev", "imagePullPolicy": "Never",
                "command": ["/usr/bin/gpu-work", "hold"], "env": env, "securityContext": {"privileged": true},
                "volumeMounts": [{"name": "dev", "mountPath": "/dev"}, {"name": "driver", "mountPath": DRIVER}],
            }],
            "volumes": [
                {"name": "dev", "hostPath": {"path": "/dev"}},
                {"name": "driver", "hostPath": {"path": DRIVER}},
            ],
        },
    })
}
