//! The agent's device plugin compared with NVIDIA's, on the same node with the same devices: `GetPreferredAllocation` and `Allocate`, memory, CPU at rest, and
//! the time from a changed number of time-slices to the node's allocatable.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use e2e::{
    Error, Result, World,
    fixtures::{merged, mig_profile, pool, tenant},
    kubelet::{
        endpoint,
        plugin::{
            AllocateRequest, ContainerAllocateRequest, ContainerPreferredAllocationRequest, Empty,
            ListAndWatchResponse, PreferredAllocationRequest, device_plugin_client::DevicePluginClient,
        },
    },
    objects::allocatable,
    product,
    scenario::{pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use serde_json::{Value, json};
use tokio::process::Child;

use super::many::quantile;

const NODE: &str = "gpu-1";
const GPUS: i32 = 8;
const SLICES: i32 = 7;
const REPLICAS: i32 = 10;
/// The number of time-slices after a change.
const FEWER: i32 = 5;
const SLICE: &str = "nvidia.com/mig-1g.10gb";
const SHARED: &str = "nvidia.com/gpu.shared";
/// Time at rest over which CPU is counted.
const REST: Duration = Duration::from_secs(30);
/// `USER_HZ`, the unit of `/proc/PID/stat`: 100 on Linux.
const TICKS_PER_SECOND: f64 = 100.0;
/// Interval at which allocatable is read.
const POLL: Duration = Duration::from_millis(50);
/// Limit for one call.
const TIMEOUT: Duration = Duration::from_secs(30);

/// One plugin with one kind of device.
struct Figures {
    devices: usize,
    /// p50 and p99 of `GetPreferredAllocation`.
    preferred: [Duration; 2],
    /// p50 and p99 of `Allocate`.
    allocate: [Duration; 2],
    rss_mib: f64,
    cpu_percent: f64,
}

/// Prints the figures of both plugins, for MIG instances and for time-slices, and the ratios.
pub async fn measure(world: &World) -> Result<()> {
    let gpus = format!("simulator.gpus={GPUS}");
    world.reinstall(&["simulator.uninstallOnExit=true"]).await?;
    world.reinstall(&["simulator.uninstallOnExit=true", &gpus]).await?;
    world.nvsim(NODE, &["latency", "real"]).await?;
    let slices = ("mig-1g", mig_profile("mig-1g", "1g.10gb"), SLICE, GPUS * SLICES);
    let shares = ("turns", turns(REPLICAS), SHARED, GPUS * REPLICAS);
    for (name, profile, resource, count) in [slices, shares] {
        world.set(&[profile, supply(name, "Agent"), demand(name, count)]).await?;
        tenant_ready(world, "team").await?;
        pool_ready(world, "p").await?;
        let ours = of_plugin(world, resource, "gputenancy-agent").await?;
        world.set(&[supply(name, "NvidiaDevicePlugin")]).await?;
        let theirs = theirs(world, resource).await;
        world.set(&[supply(name, "Agent")]).await?;
        report(resource, &ours, &theirs?);
    }
    change(world).await
}

/// Prints how long a changed number of time-slices takes: from the changed profile with the agent, and from the start of NVIDIA's plugin with
/// another config, which is what its config manager does after a changed label.
async fn change(world: &World) -> Result<()> {
    let changed = async |replicas: i32| {
        let start = Instant::now();
        world.set(&[turns(replicas)]).await?;
        allocatable_becomes(world, GPUS * replicas, start).await
    };
    allocatable_becomes(world, GPUS * REPLICAS, Instant::now()).await?;
    // a tenant's guarantee of all shares would keep them
    world.set(&[demand("turns", GPUS * FEWER)]).await?;
    tenant_ready(world, "team").await?;
    let (fewer, more) = (changed(FEWER).await?, changed(REPLICAS).await?);
    world.set(&[supply("turns", "NvidiaDevicePlugin")]).await?;
    let started = async |replicas: i32| {
        let start = Instant::now();
        let running = start_theirs(world, &time_slicing(replicas)).await?;
        let took = allocatable_becomes(world, GPUS * replicas, start).await;
        stop_theirs(world, running).await?;
        took
    };
    // the agent has left as many as before
    let measured = async { Ok((started(FEWER).await?, started(REPLICAS).await?)) };
    let theirs: Result<(Duration, Duration)> = measured.await;
    world.set(&[supply("turns", "Agent")]).await?;
    let (their_fewer, their_more) = theirs?;
    println!(
        "plugin: from another number of time-slices on {GPUS} GPUs to allocatable, {REPLICAS} to {FEWER} and back"
    );
    for (name, fewer, more) in [("agent", fewer, more), ("NVIDIA", their_fewer, their_more)] {
        println!("  {name:<7} {:.2} s, {:.2} s", fewer.as_secs_f64(), more.as_secs_f64());
    }
    println!(
        "  ratio   {:.2}, {:.2}",
        fewer.as_secs_f64() / their_fewer.as_secs_f64(),
        more.as_secs_f64() / their_more.as_secs_f64()
    );
    Ok(())
}

/// Time from `start` until the node has this many time-slices.
async fn allocatable_becomes(world: &World, count: i32, start: Instant) -> Result<Duration> {
    loop {
        let now = allocatable(&world.client, NODE, SHARED).await?;
        if now == i64::from(count) {
            return Ok(start.elapsed());
        }
        if start.elapsed() > PATIENCE {
            return Err(Error::Wrong(format!("{SHARED} on {NODE} is {now}, not {count}")));
        }
        tokio::time::sleep(POLL).await;
    }
}

fn turns(replicas: i32) -> Value {
    json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": "turns"},
        "spec": {
            "device": {"timeSlice": {"replicas": replicas}},
            "sharing": {"maxReplicas": REPLICAS, "reason": "a measurement"},
            "support": {"expected": "neighbours", "incident": "a pod does not start although a share is free"},
        },
    })
}

fn supply(profile: &str, advertiser: &str) -> Value {
    let mut supply = pool("p", NODE, &[profile]);
    let spec = supply["spec"].take();
    supply["spec"] = merged(spec, json!({"advertiser": advertiser, "disruption": {"maxUnavailable": GPUS}}));
    supply
}

fn demand(profile: &str, count: i32) -> Value {
    let mut team = tenant("team", &[(profile, count)]);
    let spec = team["spec"].take();
    team["spec"] = merged(spec, json!({"trust": "Internal", "sharing": {"acknowledgedBy": "platform@example.com"}}));
    team
}

/// NVIDIA's plugin, which runs as a process of the node until it is measured.
async fn theirs(world: &World, resource: &str) -> Result<Figures> {
    let plain = "version: v1\nflags:\n  migStrategy: mixed\n".to_owned();
    let config = if resource == SHARED { time_slicing(REPLICAS) } else { plain };
    let running = start_theirs(world, &config).await?;
    let figures = of_plugin(world, resource, "nvidia-device-p").await;
    stop_theirs(world, running).await?;
    figures
}

/// A config of NVIDIA's plugin with this many time-slices of each GPU.
fn time_slicing(replicas: i32) -> String {
    format!(
        "version: v1\nflags:\n  migStrategy: mixed\nsharing:\n  timeSlicing:\n    renameByDefault: true\n    resources:\n    - name: nvidia.com/gpu\n      replicas: {replicas}\n"
    )
}

async fn start_theirs(world: &World, config: &str) -> Result<Child> {
    let path = |of: &str| product::root().join(of).display().to_string();
    let driver = "/run/nvidia/driver";
    // it ends by itself, should this program end first
    let script = format!(
        "set -e; mkdir -p /run/device-plugin/mnt; printf '%s' \"$0\" > /run/device-plugin/config.yaml; \
         {nvsim} --state {driver}/run/nvsim materialize --root /run/device-plugin --driver-root {driver}; \
         exec timeout 300 {with} /run/device-plugin {plugin} --config-file=/run/device-plugin/config.yaml \
         --device-discovery-strategy=nvml --device-list-strategy=envvar --driver-root-ctr-path={driver} \
         --nvidia-driver-root={driver} --nvidia-dev-root=/ --nvidia-cdi-hook-path={hook}",
        nvsim = path("target/debug/nvsim"),
        with = path("integration/sim/nvml-sim/tests/with-driver"),
        plugin = path("target/toolset/bin/nvidia-device-plugin"),
        hook = path("target/toolset/bin/nvidia-cdi-hook"),
    );
    let mut command = world.lab.node(NODE)?.command(&["sh", "-c", &script, config]).await?;
    let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true).spawn();
    spawned.map_err(|source| Error::Io { what: "starting NVIDIA's plugin".into(), source })
}

async fn stop_theirs(world: &World, mut running: Child) -> Result<()> {
    // `running` is the program that entered the node, and its end does not end the plugin
    world
        .on_node(NODE, &["sh", "-c", "kill $(cat /proc/[0-9]*/stat | awk '$2 == \"(nvidia-device-p)\" {print $1}')"])
        .await?;
    let _ = running.wait().await;
    Ok(())
}

/// Measures the plugin with this process name that serves the resource on the node.
async fn of_plugin(world: &World, resource: &str, process: &str) -> Result<Figures> {
    let folder = Link::to(&world.lab.node(NODE)?.kubelet_file("device-plugins"))?;
    let (socket, ids) = eventually(&format!("{process} serves {resource}"), PATIENCE, || async {
        if allocatable(&world.client, NODE, resource).await? == 0 {
            return Ok(Err("nothing is allocatable".to_owned()));
        }
        let slug = resource.rsplit('/').next().unwrap_or_default().to_owned();
        let names = std::fs::read_dir(&folder.0).into_iter().flatten().flatten();
        let own = |name: &str| name.starts_with("gputenancy-") == process.starts_with("gputenancy-");
        for entry in names {
            let name = entry.file_name().to_string_lossy().into_owned();
            // kubelet's own socket is no plugin
            if entry.path().extension().is_none_or(|end| end != "sock") || name == "kubelet.sock" || !own(&name) {
                continue;
            }
            let ids = devices(&entry.path()).await.unwrap_or_default();
            if !ids.is_empty() && (name.contains(&slug) || !name.starts_with("gputenancy-")) {
                return Ok(Ok((entry.path(), ids)));
            }
        }
        Ok(Err(format!("no socket of {process} lists devices")))
    })
    .await?;
    let [preferred, allocate] = calls(&socket, ids.clone()).await?;
    // allocations that kubelet does not report are forgotten
    tokio::time::sleep(Duration::from_secs(15)).await;
    let (_, before) = usage(world, process).await?;
    tokio::time::sleep(REST).await;
    let (rss_mib, after) = usage(world, process).await?;
    let cpu_percent = (after - before) / TICKS_PER_SECOND / REST.as_secs_f64() * 100.0;
    Ok(Figures { devices: ids.len(), preferred, allocate, rss_mib, cpu_percent })
}

/// A link to a folder of sockets, until it is dropped: the path of a socket has at most 107 bytes, and that into a node is longer.
struct Link(PathBuf);

impl Link {
    fn to(folder: &Path) -> Result<Self> {
        let link = std::env::temp_dir().join(format!("bench-{}", std::process::id()));
        let io = |source| Error::Io { what: format!("linking {} to {}", link.display(), folder.display()), source };
        std::os::unix::fs::symlink(folder, &link).map_err(io)?;
        Ok(Self(link))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // of no use after this run
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Allocates all of these devices one after the other as kubelet does it, which gets a preference first. Returns p50 and p99 of both calls.
async fn calls(socket: &Path, mut free: Vec<String>) -> Result<[[Duration; 2]; 2]> {
    let wrong = |status: tonic::Status| Error::Wrong(format!("{}: {}", socket.display(), status.message()));
    let mut client = connect(socket).await?;
    let (mut preferred, mut allocate) = (Vec::new(), Vec::new());
    while !free.is_empty() {
        let request = ContainerPreferredAllocationRequest {
            available_device_i_ds: free.clone(),
            must_include_device_i_ds: Vec::new(),
            allocation_size: 1,
        };
        let start = Instant::now();
        let answer = client.get_preferred_allocation(PreferredAllocationRequest { container_requests: vec![request] });
        let answer = answer.await.map_err(wrong)?.into_inner();
        preferred.push(start.elapsed());
        let devices_ids: Vec<String> =
            answer.container_responses.into_iter().flat_map(|container| container.device_i_ds).collect();
        if !free.iter().any(|id| devices_ids.contains(id)) {
            return Err(Error::Wrong(format!("{}: prefers {devices_ids:?} of {free:?}", socket.display())));
        }
        free.retain(|id| !devices_ids.contains(id));
        let container_requests = vec![ContainerAllocateRequest { devices_ids }];
        let start = Instant::now();
        client.allocate(AllocateRequest { container_requests }).await.map_err(wrong)?;
        allocate.push(start.elapsed());
    }
    Ok([preferred, allocate].map(|took| [0.5, 0.99].map(|share| quantile(&took, share))))
}

async fn connect(socket: &Path) -> Result<DevicePluginClient<tonic::transport::Channel>> {
    let failed = |e: tonic::transport::Error| Error::Wrong(format!("{}: {e}", socket.display()));
    let channel = endpoint(socket, TIMEOUT).map_err(failed)?.connect().await;
    channel.map(DevicePluginClient::new).map_err(failed)
}

/// Ids in the first list that a plugin sends.
async fn devices(socket: &Path) -> Result<Vec<String>> {
    let wrong = |status: tonic::Status| Error::Wrong(status.message().to_owned());
    let mut lists = connect(socket).await?.list_and_watch(Empty {}).await.map_err(wrong)?.into_inner();
    let ListAndWatchResponse { devices } = lists.message().await.map_err(wrong)?.unwrap_or_default();
    Ok(devices.into_iter().map(|device| device.id).collect())
}

/// Resident memory in MiB and processor time in ticks of a process of the node.
async fn usage(world: &World, process: &str) -> Result<(f64, f64)> {
    let script = r#"for p in /proc/[0-9]*; do n=$(cat $p/comm 2>/dev/null) || continue; case $n in "$0"*)
        echo "$(awk '/^VmRSS/{print $2}' $p/status) $(awk '{print $14+$15}' $p/stat)";; esac; done"#;
    let name: String = process.chars().take(15).collect();
    let text = world.on_node(NODE, &["sh", "-c", script, &name]).await?;
    let mut all = text.lines().filter_map(|line| {
        let (rss, ticks) = line.split_once(' ')?;
        Some((rss.parse::<f64>().ok()? / 1024.0, ticks.trim().parse::<f64>().ok()?))
    });
    all.next().ok_or_else(|| Error::Wrong(format!("{process} does not run on {NODE}")))
}

fn report(resource: &str, ours: &Figures, theirs: &Figures) {
    println!("plugin: {resource} on {GPUS} GPUs, {} and {} devices", ours.devices, theirs.devices);
    for (name, f) in [("agent", ours), ("NVIDIA", theirs)] {
        let Figures { devices: _, preferred, allocate, rss_mib, cpu_percent } = f;
        let ms = |[p50, p99]: &[Duration; 2]| {
            format!("p50 {:.2} ms, p99 {:.2} ms", p50.as_secs_f64() * 1000.0, p99.as_secs_f64() * 1000.0)
        };
        println!(
            "  {name:<7} GetPreferredAllocation {}; Allocate {}; RSS {rss_mib:.1} MiB; CPU at rest {cpu_percent:.2} % of a core",
            ms(preferred),
            ms(allocate),
        );
    }
    let ratio = |a: f64, b: f64| a / b.max(f64::MIN_POSITIVE);
    let ratios = |[p50, p99]: [Duration; 2], [their_p50, their_p99]: [Duration; 2]| {
        let [p50, p99] = [(p50, their_p50), (p99, their_p99)].map(|(a, b)| ratio(a.as_secs_f64(), b.as_secs_f64()));
        format!("p50 {p50:.1}, p99 {p99:.1}")
    };
    println!(
        "  ratio   GetPreferredAllocation {}; Allocate {}; RSS {:.2}; CPU {:.2}",
        ratios(ours.preferred, theirs.preferred),
        ratios(ours.allocate, theirs.allocate),
        ratio(ours.rss_mib, theirs.rss_mib),
        ratio(ours.cpu_percent, theirs.cpu_percent),
    );
}
