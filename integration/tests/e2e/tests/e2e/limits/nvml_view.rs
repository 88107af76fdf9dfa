//! What NVML shows in a container with a share: two teams on one GPU.

use e2e::{
    Result, World,
    fixtures::{deployment, merged, pool, restricted_spec, tenant},
    objects::ensure,
    scenario::tenant_ready,
    wait::{PATIENCE, eventually},
};
use serde_json::{Value, json};

/// (81,920 - 512) / 4 - 640 MiB.
const SHARE: u64 = 19_712;
/// MiB of a context.
const CONTEXT: u64 = 640;

#[tokio::test]
async fn nvidia_smi_and_cuda_show_the_share_and_no_process_of_the_neighbour() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("nvml-view", async { two_teams(&world).await }).await;
}

async fn two_teams(world: &World) -> Result<()> {
    world
        .set(&[
            json!({
                "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": "turns"},
                "spec": {
                    "device": {"timeSlice": {"replicas": 4}},
                    "support": {"expected": "neighbours", "incident": "less memory than the part"},
                },
            }),
            pool("p", "gpu-1", &["turns"]),
        ])
        .await?;
    // each team has another number of blocks of 64 MiB
    let teams = [("left", 10), ("right", 20)];
    for (team, _) in teams {
        let mut object = tenant(team, &[("turns", 1)]);
        let spec = object["spec"].take();
        let sharing = json!({"trust": "Internal", "sharing": {"acknowledgedBy": "platform@example.com"}});
        object["spec"] = merged(spec, sharing);
        world.set(&[object]).await?;
    }
    for (team, _) in teams {
        tenant_ready(world, team).await?;
    }
    world.set(&teams.map(|(team, blocks)| program(team, blocks))).await?;
    for (team, _) in teams {
        allocated(world, team).await?;
    }
    let mut gpus = Vec::new();
    for (team, blocks) in teams {
        gpus.push(views(world, team, 64 * blocks).await?);
    }
    ensure(gpus[0] == gpus[1], format!("both teams on one GPU: {gpus:?}"))
}

/// Checks what the programs of a team's container see, which has allocated so many MiB, and returns the GPU.
async fn views(world: &World, team: &str, allocated: u64) -> Result<String> {
    let smi = async |arguments: &[&str]| run(world, team, &[&["/usr/bin/nvidia-smi"], arguments].concat()).await;
    let csv = "--format=csv,noheader,nounits";
    let memory = smi(&["--query-gpu=memory.total,memory.used,memory.free,utilization.gpu", csv]).await?;
    let free = SHARE - allocated;
    ensure(memory == format!("{SHARE}, {allocated}, {free}, 0"), format!("NVML's memory of {team}: {memory}"))?;
    let processes = smi(&["--query-compute-apps=pid,used_memory", "--format=csv,noheader"]).await?;
    let own = format!("1, {} MiB", allocated + CONTEXT);
    ensure(processes == own, format!("NVML's processes of {team}: {processes}"))?;
    let table = smi(&[]).await?;
    let listed = table.lines().filter(|line| line.contains("cuda-work")).count();
    let usage = format!("{allocated}MiB / {SHARE}MiB");
    ensure(table.contains(&usage) && listed == 1, format!("nvidia-smi of {team}:\n{table}"))?;
    // a second process, which counts its context
    let cuda = run(world, team, &["/usr/bin/cuda-work", "show"]).await?;
    let expected = format!("total={SHARE}MiB free={}MiB device={SHARE}MiB", free - CONTEXT);
    ensure(cuda == expected, format!("CUDA's memory of {team}: {cuda}"))?;
    let list = smi(&["-L"]).await?;
    let gpu = smi(&["--query-gpu=uuid", csv]).await?;
    ensure(list.contains(&format!("(UUID: {gpu})")), format!("nvidia-smi -L of {team}: {list}"))?;
    Ok(gpu)
}

/// Output of a program in the container of a team.
async fn run(world: &World, team: &str, command: &[&str]) -> Result<String> {
    let exec = ["exec", "-n", team, "deployment/work", "--"];
    Ok(world.kubectl(&[&exec, command].concat()).await?.trim().to_owned())
}

/// A Deployment of one pod that allocates and stays.
fn program(namespace: &str, blocks: u64) -> Value {
    let spec = restricted_spec(json!({
        "name": "work", "image": "lab.local/gputenancy-workload:dev", "imagePullPolicy": "Never",
        "command": ["/usr/bin/cuda-work", "allocate", "--count", blocks.to_string(), "--all", "--hold"],
        "resources": {"limits": {"nvidia.com/gpu.shared": "1"}},
    }));
    deployment(namespace, "work", 1, &merged(spec, json!({"terminationGracePeriodSeconds": 2})))
}

/// Waits until the program has its memory.
async fn allocated(world: &World, team: &str) -> Result<()> {
    eventually(&format!("memory of {team}"), PATIENCE, || async {
        let text = world.kubectl(&["logs", "-n", team, "-l", "app=work"]).await.unwrap_or_default();
        if text.contains("total=") {
            return Ok(Ok(()));
        }
        let pods = world.kubectl(&["get", "pods", "-n", team, "-o", "wide"]).await?;
        Ok(Err(format!("{text}{pods}")))
    })
    .await
}
