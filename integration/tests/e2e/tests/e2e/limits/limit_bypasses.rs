//! Ten ways around the memory limit of a share: each is without effect, or found by the audit and ended by the pool's policy.

use std::collections::BTreeSet;

use e2e::{
    Result, World,
    fixtures::{deployment, merged, pool, restricted_spec, tenant},
    objects::ensure,
    scenario::{pod_events, tenant_ready},
    wait::{PATIENCE, eventually},
};
use serde_json::{Value, json};

const NODE: &str = "gpu-1";
const TEAM: &str = "t";
/// Blocks of 64 MiB in a share: (81,920 - 512) / 8 - 640 MiB.
const BLOCKS: u64 = 149;

/// What becomes of a bypass.
enum Outcome {
    /// The audit finds it.
    Found,
    /// The limit holds: the programs get one of these numbers of blocks together.
    Held(&'static [u64]),
    /// Both: the damage is found, and gets no block.
    HeldAndFound,
}

use Outcome::{Found, Held, HeldAndFound};

/// Name, shell script and outcome.
const BYPASSES: [(&str, &str, Outcome); 10] = [
    ("path", "exec cuda-work --library $driver allocate --count 60 --hold", Found),
    (
        "copy",
        "busybox cp $driver /scratch/mine.so; exec cuda-work --library /scratch/mine.so allocate --count 60 --hold",
        Found,
    ),
    ("search", "LD_LIBRARY_PATH=/run/gputenancy/driver exec cuda-work allocate --count 60 --hold", Found),
    (
        "link",
        "busybox ln -s $driver /scratch/libcuda.so.1; LD_LIBRARY_PATH=/scratch exec cuda-work allocate --count 60 --hold",
        Found,
    ),
    (
        "namesake",
        "busybox cp $driver /scratch/libcuda.so.1; LD_LIBRARY_PATH=/scratch exec cuda-work allocate --count 60 --hold",
        Found,
    ),
    (
        "second",
        "cuda-work allocate --count 10 --hold & exec cuda-work --library $driver allocate --count 60 --hold",
        Found,
    ),
    ("environment", "exec busybox env -i /usr/bin/cuda-work allocate --count 200 --hold", Held(&[BLOCKS])),
    ("shortened", ": > /run/gputenancy/share/usage; exec cuda-work allocate --count 200 --hold", HeldAndFound),
    (
        "mount",
        "for library in $(busybox find / -name 'libcuda.so.1*' 2> /dev/null); do busybox unshare -Urm busybox mount --bind $driver $library; done; \
         exec cuda-work allocate --count 200 --hold",
        Held(&[BLOCKS]),
    ),
    (
        // each process after the first counts its context, ten blocks; the last has none if it starts when the share is full
        "processes",
        "for number in 1 2 3; do cuda-work allocate --count 90 --hold & done; wait",
        Held(&[BLOCKS - 20, BLOCKS - 10]),
    ),
];

#[tokio::test]
async fn each_way_around_the_memory_limit_is_held_or_found_and_evicted() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("limit-bypasses", async { ten_programs(&world).await }).await;
}

async fn ten_programs(world: &World) -> Result<()> {
    let turns = json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": "turns"},
        "spec": {"device": {"timeSlice": {"replicas": 8}}, "support": {"expected": "neighbours", "incident": "less memory"}},
    });
    world.set(&[turns, pool("p", NODE, &["turns"])]).await?;
    let mut team = tenant(TEAM, &[("turns", 10)]);
    let sharing = json!({"trust": "Internal", "sharing": {"acknowledgedBy": "platform@example.com"}});
    team["spec"] = merged(team["spec"].take(), sharing);
    world.set(&[team]).await?;
    tenant_ready(world, TEAM).await?;
    world.set(&BYPASSES.map(|(name, script, _)| program(name, script))).await?;
    for (name, _, outcome) in &BYPASSES {
        match outcome {
            Found => {}
            Held(blocks) => granted(world, name, blocks).await?,
            HeldAndFound => granted(world, name, &[0]).await?,
        }
    }
    let named = |wanted: fn(&Outcome) -> bool| -> BTreeSet<&str> {
        BYPASSES.iter().filter(|(.., outcome)| wanted(outcome)).map(|(name, ..)| *name).collect()
    };
    let all = named(|outcome| !matches!(outcome, Held(_)));
    reported(world, "MemoryLimitBypassed", &all, &all).await?;
    let mut supply = pool("p", NODE, &["turns"]);
    supply["spec"]["enforcement"] = json!({"onBypass": "Evict"});
    world.set(&[supply]).await?;
    // a ledger is damaged once: that bypass ends after ten samples, which may be before the policy changes
    reported(world, "Evicted", &named(|outcome| matches!(outcome, Found)), &all).await
}

/// Waits for an event about a pod of each of these programs, and fails for one that is not about an `allowed` program.
async fn reported(world: &World, reason: &str, expected: &BTreeSet<&str>, allowed: &BTreeSet<&str>) -> Result<()> {
    let all = eventually(&format!("{reason} about {expected:?}"), PATIENCE, || async {
        let notes = pod_events(world, TEAM, reason).await?;
        let missing: Vec<_> =
            expected.iter().filter(|name| !notes.iter().any(|note| note.starts_with(&format!("{name}-")))).collect();
        Ok(if missing.is_empty() { Ok(notes) } else { Err(format!("none about {missing:?}: {notes:?}")) })
    })
    .await?;
    let known = |note: &&String| allowed.iter().any(|name| note.starts_with(&format!("{name}-")));
    let others: Vec<_> = all.iter().filter(|note| !known(note)).collect();
    ensure(others.is_empty(), format!("{reason} about other pods: {others:?}"))
}

/// Waits until the programs of a pod have printed that they got one of these numbers of blocks together, and were refused one.
async fn granted(world: &World, name: &str, blocks: &[u64]) -> Result<()> {
    let selector = format!("app={name}");
    eventually(&format!("{blocks:?} blocks for {name}"), PATIENCE, || async {
        let text = world.kubectl(&["logs", "-n", TEAM, "-l", &selector]).await.unwrap_or_default();
        let numbers =
            text.lines().filter_map(|line| line.strip_prefix("granted=")?.split_once(' ')?.0.parse::<u64>().ok());
        let refused = text.contains("code=2");
        if refused && blocks.contains(&numbers.sum()) {
            return Ok(Ok(()));
        }
        let pods = world.kubectl(&["get", "pods", "-n", TEAM, "-l", &selector, "-o", "wide"]).await?;
        Ok(Err(format!("{text}{pods}")))
    })
    .await
}

/// A Deployment of one pod that runs a script on a share, with a folder for its files.
fn program(name: &str, script: &str) -> Value {
    let script = format!("driver=/run/gputenancy/driver/libcuda.so.1; PATH=/usr/bin:/bin; {script}");
    let spec = restricted_spec(json!({
        "name": "work", "image": "lab.local/gputenancy-workload:dev", "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script], "resources": {"limits": {"nvidia.com/gpu.shared": "1"}},
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    }));
    let more = json!({"terminationGracePeriodSeconds": 2, "volumes": [{"name": "scratch", "emptyDir": {}}]});
    deployment(TEAM, name, 1, &merged(spec, more))
}
