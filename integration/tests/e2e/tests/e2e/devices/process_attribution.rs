//! Unattributed processes, which use a device that kubelet did not allocate to their pod: a change waits for them and names them.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use e2e::{
    Error, Result, World,
    fixtures::{mig_profile, pool, tenant, workload},
    objects::{self, ensure},
    product,
    scenario::{instances_ready, pod_events, tenant_ready},
    wait::{PATIENCE, eventually},
};
use futures::{TryStreamExt as _, future};
use gputenancy_crds::{DeviceProcesses, DeviceState, GpuNode, GpuPool};
use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kube::{
    Api, ResourceExt,
    api::ListParams,
    runtime::{WatchStreamExt as _, watcher},
};
use serde_json::{Value, json};

/// The driver root of a node.
const DRIVER: &str = "/run/nvidia/driver";
/// Variables by which a program finds the driver.
const LIBRARIES: &str = "LD_LIBRARY_PATH=/run/nvidia/driver/usr/lib/x86_64-linux-gnu";
const STATE: &str = "NVSIM_STATE=/run/nvidia/driver/run/nvsim";

/// Time within which a new process is in the status.
const LISTED: Duration = Duration::from_secs(10);
/// Starts of a process to measure that time. The machines are small and busy, so the fastest counts.
const STARTS: usize = 3;

/// Namespace of the monitor.
const MONITORING: &str = "monitoring";

#[tokio::test]
async fn unattributed_processes_delay_the_change_and_are_named() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("unattributed-processes", two_processes(&world)).await;
}

/// One process on each GPU: of an administrator's shell, and of a monitor's pod.
async fn two_processes(world: &World) -> Result<()> {
    let mut supply = pool("p", "gpu-1", &["mig-1g", "mig-3g"]);
    // the change removes all small devices while the processes use two of them
    supply["spec"]["disruption"]["allowOutage"] = true.into();
    world.set(&[mig_profile("mig-1g", "1g.10gb"), mig_profile("mig-3g", "3g.40gb"), supply]).await?;
    world.set(&[tenant("t", &[("mig-1g", 14)])]).await?;
    tenant_ready(world, "t").await?;
    let shell = start_process(world, &device(world, 0).await?).await?;
    world.set(&[namespace(), monitor(&device(world, 1).await?)]).await?;
    world.pods_ready(MONITORING, 1).await?;
    world.set(&[tenant("t", &[("mig-3g", 4)])]).await?;
    let named = [
        format!("process {shell} (gpu-work) uses 1g.10gb at 0 and belongs to no pod: end it"),
        "(gpu-work) of container spy of pod monitoring/monitor uses 1g.10gb at 0".to_owned(),
    ];
    let pools = Api::<GpuPool>::all(world.client.clone());
    eventually("both processes in the pool's changes", PATIENCE, || async {
        let changes = pools.get("p").await?.status.unwrap_or_default().changes;
        let listed = |text: &String| changes.iter().any(|c| c.message.contains(text));
        Ok(if named.iter().all(listed) { Ok(()) } else { Err(format!("{changes:?}")) })
    })
    .await?;
    let lives = |pid: &str| format!("/proc/{pid}/stat");
    world.on_node("gpu-1", &["cat", &lives(&shell)]).await?;
    world.pods_ready(MONITORING, 1).await?;
    world.on_node("gpu-1", &["kill", "-9", &shell]).await?;
    world.kubectl(&["delete", "namespace", MONITORING]).await?;
    instances_ready(world, "3g.40gb", 4).await.map(drop)
}

#[tokio::test]
async fn terminating_pods_leave_no_unattributed_process() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("terminating-pods", fourteen_terminate(&world)).await;
}

#[tokio::test]
async fn process_with_an_open_device_file_alone_is_listed() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("open-device-file", open_file(&world)).await;
}

#[tokio::test]
async fn new_processes_are_listed_within_ten_seconds() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("processes-in-time", listed_in_time(&world)).await;
}

/// From the start of a container with a CUDA context to its tenant's name in the status.
async fn listed_in_time(world: &World) -> Result<()> {
    world
        .set(&[mig_profile("mig-3g", "3g.40gb"), pool("p", "gpu-1", &["mig-3g"]), tenant("t", &[("mig-3g", 3)])])
        .await?;
    tenant_ready(world, "t").await?;
    let pods = Api::<Pod>::namespaced(world.client.clone(), "t");
    let mut taken = Vec::new();
    for start in 1..=STARTS {
        let name = format!("w{start}");
        world.set(&[workload("t", &name, "nvidia.com/mig-3g.40gb", 1)]).await?;
        let started = eventually("the container to start", PATIENCE, || async {
            let found = pods.list(&ListParams::default().labels(&format!("app={name}"))).await?.items;
            let statuses = found.into_iter().filter_map(|pod| pod.status?.container_statuses?.into_iter().next());
            let mut times = statuses.filter_map(|status| status.state?.running?.started_at);
            Ok(times.next().ok_or_else(|| "it does not run".to_owned()))
        })
        .await?;
        eventually("the process with its tenant", PATIENCE, || async {
            let node = objects::gpu_node(&world.client, "gpu-1").await?;
            let gpus = node.status.iter().flat_map(|status| &status.gpus);
            let devices = gpus.flat_map(|gpu| gpu.instances.iter().filter_map(|i| i.device.as_ref()));
            let processes: Vec<_> = devices.flat_map(|device| &device.processes).cloned().collect();
            let of_pod = |p: &DeviceProcesses| {
                let pod = p.container.as_ref().map(|c| c.pod.as_str()).unwrap_or_default();
                pod.starts_with(&format!("{name}-")) && p.tenant.as_deref() == Some("t")
            };
            Ok(if processes.iter().any(of_pod) { Ok(()) } else { Err(format!("{processes:?}")) })
        })
        .await?;
        taken.push(Timestamp::now().duration_since(started.0).unsigned_abs());
    }
    ensure(taken.iter().min().is_some_and(|fastest| *fastest <= LISTED), format!("listed after {taken:?}"))
}

#[tokio::test]
async fn container_of_each_process_is_shown_with_its_memory_and_memory_of_no_process_is_a_ghost() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("attributed-processes", attributed(&world)).await;
}

/// One pod with 1 GiB on an instance, and then 900 MiB of the instance that no process explains.
async fn attributed(world: &World) -> Result<()> {
    world
        .set(&[mig_profile("mig-3g", "3g.40gb"), pool("p", "gpu-1", &["mig-3g"]), tenant("t", &[("mig-3g", 1)])])
        .await?;
    tenant_ready(world, "t").await?;
    world.set(&[workload("t", "w", "nvidia.com/mig-3g.40gb", 1)]).await?;
    world.pods_ready("t", 1).await?;
    let (gpu, instance) = eventually("the container with tenant and memory", PATIENCE, || async {
        let node = objects::gpu_node(&world.client, "gpu-1").await?;
        let gpus = node.status.into_iter().flat_map(|status| status.gpus);
        let owned = gpus.flat_map(|gpu| gpu.instances.clone().into_iter().map(move |instance| (gpu.clone(), instance)));
        let mut owned = owned.filter(|(_, i)| i.device.as_ref().is_some_and(|d| d.owner.is_some()));
        let Some((gpu, instance)) = owned.next() else { return Ok(Err("no device has an owner".to_owned())) };
        let device = instance.device.clone().unwrap_or_default();
        Ok(match device.processes.as_slice() {
            [only]
                if only.container == device.owner
                    && only.tenant.as_deref() == Some("t")
                    && only.count == 1
                    && only
                        .memory
                        .as_ref()
                        .is_some_and(|m| m.mib().is_ok_and(|mib| (1_024..=1_536).contains(&mib))) =>
            {
                Ok((gpu, instance))
            }
            other => Err(format!("{other:?}")),
        })
    })
    .await?;
    layers(world, &gpu.uuid, instance.gi, 0).await?;
    let (index, gi) = (gpu.index.to_string(), instance.gi.to_string());
    world.nvsim("gpu-1", &["leak", &index, "900", "--instance", &gi]).await?;
    let ghost = |mib: Option<i64>| async move {
        eventually(&format!("ghost memory of {mib:?} MiB"), PATIENCE, || async {
            let node = objects::gpu_node(&world.client, "gpu-1").await?;
            let gpus = node.status.iter().flat_map(|status| &status.gpus);
            let found: Vec<_> = gpus.flat_map(|gpu| &gpu.ghost_memory).collect();
            let shown = found.iter().map(|ghost| ghost.memory.mib().ok());
            Ok(if shown.eq(mib.into_iter().map(Some)) { Ok(()) } else { Err(format!("{found:?}")) })
        })
        .await
    };
    // in steps of 256 MiB
    let outcome = ghost(Some(1_024)).await;
    let (events, counted) =
        (pod_events(world, "default", "GhostMemory").await, layers(world, &gpu.uuid, instance.gi, 900 << 20).await);
    world.nvsim("gpu-1", &["leak", &index, "0", "--instance", &gi]).await?;
    outcome?;
    counted?;
    let events = events?;
    ensure(events.iter().any(|e| e.contains("900 MiB of GPU instance")), format!("{events:?}"))?;
    world.pods_ready("t", 1).await?;
    ghost(None).await
}

/// The layers of an instance are all of its memory, and this much is of no process.
async fn layers(world: &World, uuid: &str, gi: i32, unattributed: u64) -> Result<()> {
    let agents = world.agents_on("gpu-1").await?;
    let agent = agents.first().map(ResourceExt::name_any).ok_or_else(|| Error::Wrong("no agent".into()))?;
    let path = format!("/api/v1/namespaces/{}/pods/{agent}:9410/proxy/metrics", product::NAMESPACE);
    let prefix = format!("gputenancy_agent_device_memory_bytes{{gpu=\"{uuid}\",instance=\"{gi}\",layer=");
    eventually("the layers of the instance", PATIENCE, || async {
        let text = world.kubectl(&["get", "--raw", &path]).await?;
        let rest: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(&prefix)).collect();
        let of = |layer: &str| {
            let line = rest.iter().find(|line| line.starts_with(&format!("\"{layer}\"")));
            line.and_then(|line| line.rsplit_once(' ')?.1.parse::<u64>().ok())
        };
        let all: Option<Vec<u64>> = ["reserved", "processes", "unattributed", "free"].into_iter().map(of).collect();
        let Some(all) = all else { return Ok(Err(format!("{rest:?}"))) };
        // as in integration/sim/silicon/boards/a100-80gb.yaml
        let (sum, total) = (all.iter().sum::<u64>(), 40_448_u64 << 20);
        let near = sum.abs_diff(total) <= total / 50;
        Ok(if near && all.get(2) == Some(&unattributed) { Ok(()) } else { Err(format!("{all:?}, {sum} of {total}")) })
    })
    .await
}

/// A process that NVML does not list, as a monitoring daemon. The simulated device nodes have no driver and can be opened for their path only.
async fn open_file(world: &World) -> Result<()> {
    let gpu = |status: gputenancy_crds::GpuNodeStatus| status.gpus.into_iter().next();
    // O_PATH; descriptor 9 stays open in the program that follows
    let hold = r#"POSIX::dup2(POSIX::open("/dev/nvidia0", 010000000), 9); exec "sleep", "1000""#;
    let start = format!("perl -MPOSIX -e '{hold}' >/dev/null 2>&1 & echo $!");
    let listed = |pid: &str, there: bool| {
        let pid = pid.to_owned();
        async move {
            eventually(&format!("the process listed: {there}"), PATIENCE, || async {
                let node = objects::gpu_node(&world.client, "gpu-1").await?;
                let unlisted = node.status.and_then(gpu).map(|gpu| gpu.unlisted).unwrap_or_default();
                let found = unlisted.iter().find(|h| h.pid.to_string() == pid && h.container.is_none());
                let right = found.is_some() == there && found.is_none_or(|h| h.command == "sleep");
                Ok(if right { Ok(()) } else { Err(format!("{unlisted:?}")) })
            })
            .await
        }
    };
    let mut taken = Vec::new();
    for _ in 0..STARTS {
        let pid = world.on_node("gpu-1", &["sh", "-c", &start]).await?.trim().to_owned();
        let started = Instant::now();
        let outcome = listed(&pid, true).await;
        taken.push(started.elapsed());
        world.on_node("gpu-1", &["kill", "-9", &pid]).await?;
        outcome?;
        listed(&pid, false).await?;
    }
    ensure(taken.iter().min().is_some_and(|fastest| *fastest <= LISTED), format!("listed after {taken:?}"))
}

/// Checks every status written meanwhile, because the planner may read any of them.
async fn fourteen_terminate(world: &World) -> Result<()> {
    world.set(&[mig_profile("mig-1g", "1g.10gb"), pool("p", "gpu-1", &["mig-1g"])]).await?;
    world.set(&[tenant("t", &[("mig-1g", 14)])]).await?;
    tenant_ready(world, "t").await?;
    world.set(&[workload("t", "w", "nvidia.com/mig-1g.10gb", 14)]).await?;
    world.pods_ready("t", 14).await?;
    let used = |d: &DeviceState| d.owner.is_some() && d.clients > 0;
    all_devices(world, "used by its owner", used).await?;

    let nodes = Api::<GpuNode>::all(world.client.clone());
    let (mut statuses, mut unattributed) = (0, BTreeSet::new());
    let updates = watcher(nodes, watcher::Config::default().fields("metadata.name=gpu-1")).applied_objects();
    let following = updates.try_for_each(|node| {
        statuses += 1;
        let instances = node.status.iter().flat_map(|s| &s.gpus).flat_map(|g| g.instances.iter().map(move |i| (g, i)));
        let is_odd = |d: &DeviceState| d.owner.is_none() && d.clients > 0;
        let odd = instances.filter(|(_, i)| i.device.as_ref().is_some_and(is_odd));
        unattributed.extend(odd.map(|(g, i)| format!("status {statuses}: GPU {} at {}", g.index, i.start)));
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
    ensure(statuses > 1, "too few statuses")?;
    ensure(unattributed.is_empty(), format!("unattributed while their pods terminated: {unattributed:?}"))
}

/// Waits until all fourteen devices of gpu-1 satisfy a predicate.
async fn all_devices(world: &World, what: &str, so: impl Fn(&DeviceState) -> bool) -> Result<()> {
    eventually(&format!("every device {what}"), PATIENCE, || async {
        let node = objects::gpu_node(&world.client, "gpu-1").await?;
        let devices =
            node.status.iter().flat_map(|s| &s.gpus).flat_map(|g| g.instances.iter().filter_map(|i| i.device.as_ref()));
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

/// Starts a process outside of any pod that uses a device, and returns its process id.
async fn start_process(world: &World, device: &str) -> Result<String> {
    let program = product::root().join("target/debug/gpu-work").display().to_string();
    let start = format!("{LIBRARIES} {STATE} CUDA_VISIBLE_DEVICES={device} {program} hold >/dev/null 2>&1 & echo $!");
    let pid = world.on_node("gpu-1", &["sh", "-c", &start]).await?;
    Ok(pid.trim().to_owned())
}

fn namespace() -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": MONITORING}})
}

/// A privileged pod that uses a device without requesting one.
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
