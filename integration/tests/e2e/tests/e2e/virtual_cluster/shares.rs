//! Inside virtual clusters: fractions of a GPU with their limits, and a pool of one team.

use e2e::{
    Result, World,
    fixtures::{deployment, merged, mig_profile, pool, restricted_spec},
    objects::{self, ensure},
    wait::{PATIENCE, eventually},
};
use serde_json::{Value, json};

use super::{
    Inside, busybox,
    inside::{SPACE, pod},
    virtual_tenant,
};

/// A fraction of a GPU, and its resource.
pub(super) const PROFILE: &str = "part";
const PART: &str = "gputenancy.io/part";
/// The profile of the pool of one team, and its resource.
pub(super) const OWN_PROFILE: &str = "own-slice";
const OWN: &str = "gputenancy.io/own-slice";
const OWN_NODE: &str = "gpu-2";
/// Memory of the control plane of the team with fractions.
const CONTROL_PLANE: &str = "1100Mi";

/// Prints the limits of memory and processors of its own container, in cgroups of version 2 or 1.
const LIMITS: &str = r"cd /sys/fs/cgroup
if [ -e memory.max ]; then cat memory.max; cut -d ' ' -f 1 cpu.max; else cat memory/memory.limit_in_bytes cpu/cpu.cfs_quota_us; fi";

/// A fraction of 10 GiB and a fifth of the processors.
pub(super) fn profile() -> Value {
    json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": PROFILE},
        "spec": {
            "device": {"fraction": {"memory": "10Gi", "compute": 20}},
            "support": {"expected": "neighbours", "incident": "less memory than the part"},
        },
    })
}

/// A tenant with two fractions and two MIG devices, and with limits of its control plane.
pub(super) fn sharing_tenant(name: &str) -> Value {
    let mut team = virtual_tenant(name, &[("mig-1g", 2), (PROFILE, 2)]);
    let sharing = json!({"trust": "Internal", "sharing": {"acknowledgedBy": "platform@example.com"}});
    team["spec"] = merged(team["spec"].take(), sharing);
    team["spec"]["virtualCluster"]["resources"] = json!({"limits": {"memory": CONTROL_PLANE}});
    team
}

/// A profile and a pool of one team, as in `samples/dedicated-pool.yaml`.
pub(super) fn own_pool() -> [Value; 2] {
    let mut slice = mig_profile(OWN_PROFILE, "1g.10gb");
    slice["spec"]["resourceName"] = json!(OWN);
    let mut nodes = pool("own", OWN_NODE, &[OWN_PROFILE]);
    nodes["spec"]["taint"] = json!({"key": "nvidia.com/gpu"});
    [slice, nodes]
}

/// Pods of the team with the pool run on its node; pods of another team do not, with and without a GPU.
pub(super) async fn pool_of_one_team(world: &World, owner: &str, other: &str) -> Result<()> {
    let inside = Inside::open(world, owner).await?;
    inside.set(&["own-1", "own-2"].map(|name| pod(name, OWN, "1", json!({})))).await?;
    inside.running(4).await?;
    let pods = objects::running(&world.client, owner).await?;
    let nodes: Vec<_> = pods.iter().filter(|(name, _)| name.starts_with("own-")).map(|(_, pod)| &pod.node).collect();
    ensure(nodes == [OWN_NODE, OWN_NODE], format!("pods of {owner}: {pods:?}"))?;
    drop(inside);

    let inside = Inside::open(world, other).await?;
    let mut plain = busybox(SPACE, "plain", "sleep 3600");
    plain["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": OWN_NODE});
    inside.set(&[pod("theirs", OWN, "1", json!({})), plain]).await?;
    inside.event("theirs", &format!("may not use {OWN} here")).await?;
    eventually("the taint to keep a pod without a GPU away", PATIENCE, || async {
        let path = "jsonpath={.spec.nodeName} {.status.conditions[*].message}";
        let host = format!("plain-x-{SPACE}-x-{other}");
        let pod = world.kubectl(&["get", "pod", "-n", other, &host, "-o", path, "--ignore-not-found"]).await?;
        Ok(if pod.starts_with(' ') && pod.contains("untolerated taint") { Ok(()) } else { Err(pod) })
    })
    .await?;
    let pods = objects::running(&world.client, other).await?;
    ensure(pods.values().all(|pod| pod.node != OWN_NODE), format!("pods of {other}: {pods:?}"))
}

/// A pod gets the memory of its fraction and no more; limits of containers and of the control plane are those of their pods on the host.
pub(super) async fn limits_hold(world: &World, team: &str) -> Result<()> {
    let inside = Inside::open(world, team).await?;
    let mut small = busybox(SPACE, "small", "sleep 3600");
    small["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": "100m", "memory": "64Mi"}});
    // blocks of 64 MiB
    inside.set(&[allocating("within", "100"), allocating("beyond", "2000"), small]).await?;
    let within = printed(&inside, "within").await?;
    ensure(within.contains("granted=100 code=0"), format!("within its part: {within}"))?;
    let beyond = printed(&inside, "beyond").await?;
    ensure(beyond.contains("granted=160 code=2"), format!("10 GiB are 160 blocks: {beyond}"))?;
    ensure(beyond.contains("total=10240MiB"), format!("what it sees: {beyond}"))?;
    let read = ["exec", "-n", SPACE, "small", "--", "sh", "-c", LIMITS];
    let limits =
        eventually("the limits of a container", PATIENCE, || async { Ok(inside.kubectl(&read).await) }).await?;
    ensure(limits == "67108864\n10000\n", format!("64 MiB and a tenth of a processor: {limits}"))?;

    let path = "jsonpath={.items[*].spec.containers[*].resources.limits.memory}";
    let selector = format!("app=vcluster,release={team}");
    let memory = world.kubectl(&["get", "pods", "-n", team, "-l", &selector, "-o", path]).await?;
    ensure(memory == CONTROL_PLANE, format!("memory of the control plane: {memory}"))
}

/// A Deployment of one pod that allocates so many blocks of GPU memory and keeps them.
fn allocating(name: &str, blocks: &str) -> Value {
    let spec = restricted_spec(json!({
        "name": "work", "image": "lab.local/gputenancy-workload:dev", "imagePullPolicy": "Never",
        "command": ["/usr/bin/cuda-work", "allocate", "--count", blocks, "--hold"],
        "resources": {"limits": {PART: "1"}},
    }));
    deployment(SPACE, name, 1, &merged(spec, json!({"terminationGracePeriodSeconds": 2})))
}

/// What the program printed, once it has printed its last line.
async fn printed(inside: &Inside, name: &str) -> Result<String> {
    let selector = format!("app={name}");
    eventually(&format!("output of {name}"), PATIENCE, || async {
        let text = inside.kubectl(&["logs", "-n", SPACE, "-l", &selector]).await.unwrap_or_default();
        if text.contains("total=") {
            return Ok(Ok(text));
        }
        let pods = inside.kubectl(&["get", "pods", "-n", SPACE, "-l", &selector, "-o", "wide"]).await;
        Ok(Err(format!("{text}{pods:?}; {:?}", inside.all_events().await)))
    })
    .await
}
