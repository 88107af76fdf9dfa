//! Plays the agents and the kubelets' heartbeats of the simulated nodes.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use e2e::Result;
use futures::{StreamExt, stream};
use gputenancy_crds::GpuNode;
use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Node},
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt,
    api::{Patch, PatchParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::{Value, json};
use tokio::{sync::mpsc, task::JoinSet};

use super::node::{self, LABEL, NAME};

/// Concurrent answers of agents.
const IN_FLIGHT: usize = 16;
/// Namespace of the heartbeats.
pub const LEASES: &str = "kube-node-lease";
/// Seconds in which every lease is renewed once. The node lifecycle controller marks a node whose lease is older than 50 s.
const PERIOD: usize = 25;

/// Tasks that play the agents and the heartbeats, until this is dropped.
pub struct Agents {
    _tasks: JoinSet<()>,
    nodes: Arc<AtomicUsize>,
    /// Whether a node's GPUs are all in its spec and its status is current, by name.
    settled: Arc<Mutex<BTreeMap<String, bool>>>,
    spec_writes: mpsc::UnboundedReceiver<Instant>,
}

impl Agents {
    /// Starts the tasks.
    pub fn start(client: &Client) -> Self {
        let (seen, spec_writes) = mpsc::unbounded_channel();
        let (nodes, settled) = (Arc::new(AtomicUsize::new(0)), Arc::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(answer_specs(client.clone(), seen, Arc::clone(&settled)));
        tasks.spawn(renew_leases(client.clone(), nodes.clone()));
        Self { _tasks: tasks, nodes, settled, spec_writes }
    }

    /// Renews the leases of this many nodes from now on; they must exist.
    pub fn heartbeats_of(&self, nodes: usize) {
        self.nodes.store(nodes, Ordering::Relaxed);
    }

    /// Number of nodes whose GPUs are all in their specs, with a current status.
    pub fn settled(&self) -> usize {
        self.settled.lock().unwrap_or_else(PoisonError::into_inner).values().filter(|s| **s).count()
    }

    /// Forgets the spec writes until now.
    pub fn forget_spec_writes(&mut self) {
        while self.spec_writes.try_recv().is_ok() {}
    }

    /// When the next spec write was observed.
    pub async fn next_spec_write(&mut self) -> Option<Instant> {
        self.spec_writes.recv().await
    }
}

/// Creates the lease of a node, or renews it.
pub async fn create_lease(client: &Client, node: usize) -> Result<()> {
    let api = Api::<Lease>::namespaced(client.clone(), LEASES);
    let name = node::name(node);
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name, "labels": {LABEL: NAME}},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": micros()},
    });
    api.patch(&name, &PatchParams::apply("bench").force(), &Patch::Apply(lease)).await?;
    Ok(())
}

fn micros() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// Renews an equal part of the leases every second.
async fn renew_leases(client: Client, nodes: Arc<AtomicUsize>) {
    let api = Api::<Lease>::namespaced(client, LEASES);
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    let mut part = 0;
    loop {
        ticks.tick().await;
        let due = (part..nodes.load(Ordering::Relaxed)).step_by(PERIOD);
        stream::iter(due)
            .for_each_concurrent(IN_FLIGHT, |index| {
                let (api, spec) = (&api, json!({"spec": {"renewTime": micros()}}));
                async move {
                    if let Err(error) =
                        api.patch(&node::name(index), &PatchParams::default(), &Patch::Merge(spec)).await
                    {
                        eprintln!("fleet: the lease of {} is not renewed: {error}", node::name(index));
                    }
                }
            })
            .await;
        part = (part + 1) % PERIOD;
    }
}

/// Answers every spec that is newer than its status.
async fn answer_specs(
    client: Client,
    seen: mpsc::UnboundedSender<Instant>,
    settled: Arc<Mutex<BTreeMap<String, bool>>>,
) {
    let api = Api::<GpuNode>::all(client.clone());
    let ours = watcher::Config::default().labels(&format!("{LABEL}={NAME}"));
    let objects = watcher(api.clone(), ours).default_backoff().applied_objects();
    let (client, api, seen, settled) = (&client, &api, &seen, &settled);
    objects
        .for_each_concurrent(IN_FLIGHT, |object| async move {
            let Ok(object) = object else { return };
            let name = object.name_any();
            let status = object.status.as_ref();
            let observed = status.and_then(|s| s.observed_generation);
            let current = observed == object.metadata.generation;
            let listed = status.is_some_and(|s| !s.gpus.is_empty() && s.gpus.len() == object.spec.gpus.len());
            settled.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), current && listed);
            // an object without a status was created just now
            if current || observed.is_none() {
                return;
            }
            let _ = seen.send(Instant::now());
            if let Err(error) = answer(client, api, &object).await {
                eprintln!("fleet: the agent of {name} does not answer: {error}");
            }
        })
        .await;
}

async fn answer(client: &Client, api: &Api<GpuNode>, object: &GpuNode) -> Result<()> {
    let name = object.name_any();
    let index = name.rsplit('-').next().and_then(|n| n.parse().ok()).unwrap_or_default();
    let status = node::answer(index, object);
    let before = object.status.as_ref().map(node::allocatable).unwrap_or_default();
    let after = node::allocatable(&status);
    if before != after {
        let gone = before.keys().map(|resource| (resource.clone(), Value::from("0")));
        let counts = after.iter().map(|(resource, count)| (resource.clone(), Value::from(count.to_string())));
        let amounts: serde_json::Map<String, Value> = gone.chain(counts).collect();
        let patch = json!({"status": {"capacity": amounts, "allocatable": amounts}});
        let nodes = Api::<Node>::all(client.clone());
        nodes.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    }
    let patch = json!({"status": status});
    api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}
