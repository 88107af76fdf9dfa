//! Interrupting a change in each of its phases, such as by a kill of the leading operator.

use std::collections::BTreeSet;

use futures::{StreamExt, TryStreamExt, pin_mut};
use gputenancy_crds::{ChangePhase, GpuNode};
use k8s_openapi::api::{coordination::v1::Lease, core::v1::Pod};
use kube::{
    Api, ResourceExt,
    runtime::{WatchStreamExt, watcher},
};

use crate::{
    Error, Result, World, objects, product,
    wait::{PATIENCE, eventually},
};

/// Phases of changes on a node.
pub type Phases = BTreeSet<ChangePhase>;

/// Prints the processes of a program in a pod.
const FIND: &str = r#"for p in /proc/[0-9]*; do
  if grep -qs "^$2" "$p/comm" && grep -qs "pod$1" "$p/cgroup"; then echo "${p#/proc/}"; fi
done"#;

/// Kills them, as the kernel does when memory runs out, and prints those that it killed.
const KILL: &str = r#"for p in /proc/[0-9]*; do
  if grep -qs "^$2" "$p/comm" && grep -qs "pod$1" "$p/cgroup" && kill -9 "${p#/proc/}"; then echo "${p#/proc/}"; fi
done"#;

/// The phases of all changes on a node, as the API server has them now.
pub async fn phases(world: &World, node: &str) -> Result<Phases> {
    Ok(of(&objects::gpu_node(&world.client, node).await?))
}

fn of(node: &GpuNode) -> Phases {
    node.spec.gpus.iter().filter_map(|g| Some(g.change.as_ref()?.phase)).collect()
}

/// Calls `interrupt` in every phase of the changes on a node, once for each; it returns the phases that it interrupted. Ends
/// with all of them when no change is left and `wanted` holds, because no change runs between those of two GPUs either.
pub async fn in_phases(
    world: &World,
    node: &str,
    wanted: impl Fn(&GpuNode) -> bool,
    interrupt: impl AsyncFn(ChangePhase) -> Result<Phases>,
) -> Result<Phases> {
    let api = Api::<GpuNode>::all(world.client.clone());
    let config = watcher::Config::default().fields(&format!("metadata.name={node}"));
    let nodes = watcher(api, config).default_backoff().applied_objects().map_err(|e| Error::Wrong(e.to_string()));
    pin_mut!(nodes);
    let mut hit = Phases::new();
    loop {
        let next = tokio::time::timeout(PATIENCE, nodes.next()).await;
        let Ok(Some(seen)) = next else {
            return Err(Error::Wrong(format!("no progress after interruptions in {hit:?}")));
        };
        let seen = seen?;
        let phases = of(&seen);
        if let Some(phase) = phases.difference(&hit).next().copied() {
            hit.extend(interrupt(phase).await?);
        }
        if phases.is_empty() && wanted(&seen) {
            return Ok(hit);
        }
    }
}

/// Kills the leading operator with SIGKILL; kubelet restarts it, and the lease holder continues.
pub async fn kill_leader(world: &World) -> Result<()> {
    eventually("a leader killed", PATIENCE, || async {
        let (node, killed) = leader(world, KILL).await?;
        Ok(if killed.is_empty() { Err(format!("no operator of the lease runs on {node}")) } else { Ok(()) })
    })
    .await
}

/// The leading operator's node and processes.
pub async fn leading(world: &World) -> Result<(String, Vec<String>)> {
    eventually("a leader", PATIENCE, || async {
        let (node, processes) = leader(world, FIND).await?;
        if processes.is_empty() {
            return Ok(Err(format!("no operator of the lease runs on {node}")));
        }
        Ok(Ok((node, processes)))
    })
    .await
}

/// Runs a script for the pod that holds the operator's lease, and returns its node and the lines that it prints.
async fn leader(world: &World, script: &str) -> Result<(String, Vec<String>)> {
    let lease = Api::<Lease>::namespaced(world.client.clone(), product::NAMESPACE).get("gputenancy-operator").await?;
    let holder = lease.spec.and_then(|s| s.holder_identity).unwrap_or_default();
    let pod = Api::<Pod>::namespaced(world.client.clone(), product::NAMESPACE).get(&holder).await?;
    let (uid, node) = (pod.uid().unwrap_or_default(), objects::identity(&pod).node);
    let lines = world.on_node(&node, &["sh", "-c", script, "leader", &uid, "gputenancy-oper"]).await?;
    Ok((node, lines.split_whitespace().map(str::to_owned).collect()))
}

/// Kills the agent of a node with SIGKILL; kubelet restarts it.
pub async fn kill_agent(world: &World, node: &str) -> Result<()> {
    eventually("a killed agent", PATIENCE, || async {
        let agents = world.agents_on(node).await?;
        let uid = agents.first().and_then(ResourceExt::uid).ok_or_else(|| Error::Wrong("no agent".into()))?;
        let killed = world.on_node(node, &["sh", "-c", KILL, "kill", &uid, "gputenancy-age"]).await?;
        Ok(if killed.trim().is_empty() { Err("the agent does not run".to_owned()) } else { Ok(()) })
    })
    .await
}
