//! A program reads the notice of its eviction from a volume, writes a checkpoint before SIGTERM, and its next pod resumes from there.

use e2e::{
    Error, Result, World,
    fixtures::{merged, restricted_spec, tenant, two_small_pods_of},
    objects::{ensure, set_guarantee},
    scenario::{instances_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use k8s_openapi::{api::core::v1::Event, jiff::Timestamp};
use kube::{Api, api::ListParams};
use serde_json::{Value, json};

const NODE: &str = "gpu-1";
/// The folder of the team's volume on the node.
const FOLDER: &str = "/var/lib/checkpoints";
/// The volume, its class and the claim of the team.
const VOLUME: &str = "checkpoints";

/// A program as a team would write it. It reads the annotations of its pod from a volume.
const PROGRAM: &str = r#"
say() { echo "$1 $(hostname) $(date +%s)" >> /state/log; }
trap 'say terminated; exit 0' TERM
[ -e /state/checkpoint ] && say resumed
while true; do
  if [ -z "$saved" ] && grep -q gputenancy.io/eviction-notice /podinfo/annotations; then
    touch /state/checkpoint; saved=1; say checkpoint
  fi
  sleep 1 & wait $!
done
"#;

#[tokio::test]
async fn program_reads_its_notice_writes_a_checkpoint_before_sigterm_and_resumes() {
    let world = World::enter().await.unwrap();
    let body = checkpointed(&world).await;
    world.kubectl(&["delete", "persistentvolume", VOLUME, "--ignore-not-found", "--wait=false"]).await.unwrap();
    world.keeping_evidence("checkpoints", async { body }).await;
}

async fn checkpointed(world: &World) -> Result<()> {
    world.on_node(NODE, &["sh", "-c", &format!("rm -rf {FOLDER} && mkdir -m 777 {FOLDER}")]).await?;
    world.set(&[volume(), tenant("small", &[])]).await?;
    tenant_ready(world, "small").await?;
    world.set(&[claim()]).await?;
    two_small_pods_of(world, &program()).await?;
    let rules = json!({"spec": {"disruption": {"notice": "20s"}}}).to_string();
    world.kubectl(&["patch", "gpupool", "p", "--type=merge", "-p", &rules]).await?;
    set_guarantee(&world.client, "small", "mig-1g", 2).await?;
    set_guarantee(&world.client, "big", "mig-3g", 3).await?;
    instances_ready(world, "3g.40gb", 3).await?;
    let resumed = eventually("the next pod to resume", PATIENCE, || async {
        let lines = log(world).await?;
        let resumed = lines.iter().find(|(what, ..)| what == "resumed").cloned();
        Ok(resumed.ok_or_else(|| format!("{lines:?}")))
    })
    .await?;
    let lines = log(world).await?;
    let time = |what: &str, pod: &str| {
        let found = lines.iter().find(|(w, p, _)| w == what && p == pod).map(|(.., at)| *at);
        found.ok_or_else(|| Error::Wrong(format!("no line `{what}` of {pod}: {lines:?}")))
    };
    let noticed: Vec<&String> = lines.iter().filter(|(w, ..)| w == "checkpoint").map(|(_, pod, _)| pod).collect();
    let [pod] = noticed.as_slice() else { return Err(Error::Wrong(format!("one checkpoint: {lines:?}"))) };
    let (written, ended) = (time("checkpoint", pod)?, time("terminated", pod)?);
    let deadline = deadline(world, pod).await?;
    ensure(written < deadline, format!("checkpoint at {written}, after the deadline {deadline}"))?;
    ensure(ended >= deadline, format!("SIGTERM at {ended}, before the deadline {deadline}"))?;
    ensure(resumed.1 != **pod && resumed.2 >= ended, format!("{resumed:?} after {pod} ended at {ended}"))
}

/// Unix time, in seconds, before which the notice says that the pod is not evicted.
async fn deadline(world: &World, pod: &str) -> Result<i64> {
    let events = Api::<Event>::namespaced(world.client.clone(), "small").list(&ListParams::default()).await?;
    let notice =
        |e: &Event| e.reason.as_deref() == Some("EvictionNotice") && e.involved_object.name.as_deref() == Some(pod);
    let text = events.items.into_iter().find(notice).and_then(|e| e.message).unwrap_or_default();
    let time = text.split_once(": ").and_then(|(time, _)| time.parse::<Timestamp>().ok());
    time.map(Timestamp::as_second).ok_or_else(|| Error::Wrong(format!("a notice of {pod} with its time: `{text}`")))
}

/// The lines that the programs wrote: what happened, in which pod, at which Unix time in seconds.
async fn log(world: &World) -> Result<Vec<(String, String, i64)>> {
    let text = world.on_node(NODE, &["sh", "-c", &format!("cat {FOLDER}/log 2>/dev/null || true")]).await?;
    let line = |line: &str| {
        let mut words = line.split_whitespace().map(str::to_owned);
        Some((words.next()?, words.next()?, words.next()?.parse().ok()?))
    };
    Ok(text.lines().filter_map(line).collect())
}

/// The spec of its pods.
fn program() -> Value {
    let spec = restricted_spec(json!({
        "name": "work", "image": "lab.local/busybox:1", "imagePullPolicy": "Never", "command": ["sh", "-c", PROGRAM],
        "resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}},
        "volumeMounts": [{"name": "podinfo", "mountPath": "/podinfo"}, {"name": "state", "mountPath": "/state"}],
    }));
    let annotations = json!({"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}});
    let volumes = json!([
        {"name": "podinfo", "downwardAPI": {"items": [annotations]}},
        {"name": "state", "persistentVolumeClaim": {"claimName": VOLUME}},
    ]);
    merged(spec, json!({"terminationGracePeriodSeconds": 5, "volumes": volumes}))
}

fn volume() -> Value {
    let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [NODE]});
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": VOLUME},
        "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": VOLUME, "local": {"path": FOLDER},
            "claimRef": {"namespace": "small", "name": VOLUME},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    })
}

fn claim() -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": VOLUME, "namespace": "small"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": VOLUME, "volumeName": VOLUME,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    })
}
