//! Creates and deletes the objects of the simulated fleet.

use std::{fmt::Debug, ops::Range, time::Duration};

use e2e::{
    Error, Result, World,
    fixtures::{merged, mig_profile, restricted_spec, tenant},
    wait::{PATIENCE, eventually},
};
use futures::{StreamExt, TryStreamExt, stream};
use gputenancy_crds::{GpuNode, GpuNodeStatus, GpuTenant, condition, names};
use http::Request;
use k8s_openapi::{
    api::{
        coordination::v1::Lease,
        core::v1::{Node, Pod},
    },
    jiff::Timestamp,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    agents::{self, Agents, LEASES},
    node::{self, CONTAINER, LABEL, NAME, PODS},
};
use crate::many::until_all;

/// Concurrent requests that create objects.
const IN_FLIGHT: usize = 24;
/// Nodes that are created before their leases are renewed: a few seconds, as the node lifecycle controller waits for 50 s.
const PART: usize = 50;
/// Pause between two looks for nodes that are not Ready.
const REPORTS: Duration = Duration::from_secs(10);
/// Profiles of the pool, with NVIDIA's names. All tenants have guarantees of the first.
const PROFILES: [(&str, &str); 4] =
    [("mig-1g", node::SHAPE), ("mig-2g", "2g.20gb"), ("mig-3g", "3g.40gb"), ("mig-7g", "7g.80gb")];
/// Scheduler of the pods.
pub const SCHEDULER: &str = "bench-fleet";
/// Profile whose guarantee is raised to measure the delay of a decision.
pub const RAISED: &str = "mig-3g";

/// Sizes of the fleet, and the status of a real agent to copy versions and board from.
pub struct Population {
    /// Pods of each tenant, and its guarantee.
    pub each: usize,
    real: GpuNodeStatus,
}

/// Number of tenants of a fleet.
pub fn tenants(nodes: usize) -> usize {
    (nodes / 5).clamp(20, 1000)
}

impl Population {
    /// For fleets of at most this many nodes.
    pub fn new(most: usize, real: GpuNodeStatus) -> Self {
        Self { each: (most * PODS).div_ceil(tenants(most)).max(20), real }
    }

    /// Creates pool and profiles.
    pub async fn pool(&self, world: &World) -> Result<()> {
        let mut objects: Vec<Value> = PROFILES.map(|(name, shape)| mig_profile(name, shape)).into();
        objects.push(json!({
            "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuPool", "metadata": {"name": NAME},
            "spec": {
                "nodeSelector": {"matchLabels": {LABEL: NAME}}, "profiles": PROFILES.map(|(name, _)| name),
                // all at once: else the fleet is filled by eight GPUs at a time
                "disruption": {"maxUnavailable": "100%"},
                // the taint keeps other pods off nodes without a kubelet
                "health": {"toleratedTaints": [LABEL]},
            },
        }));
        world.set(&objects).await
    }

    /// Creates nodes with these indices and their GPU nodes; their leases are renewed from then on.
    pub async fn nodes(&self, world: &World, range: Range<usize>, agents: &Agents) -> Result<()> {
        for start in range.clone().step_by(PART) {
            let end = range.end.min(start + PART);
            each(start..end, |index| self.node(&world.client, index)).await?;
            agents.heartbeats_of(end);
        }
        Ok(())
    }

    async fn node(&self, client: &Client, index: usize) -> Result<()> {
        agents::create_lease(client, index).await?;
        let (nodes, name, merge) = (Api::<Node>::all(client.clone()), node::name(index), PatchParams::default());
        nodes.create(&PostParams::default(), &typed(node::manifest(index))?).await?;
        let status = node::status(&now());
        nodes.patch_status(&name, &merge, &Patch::Merge(status)).await?;
        let gpu_nodes = Api::<GpuNode>::all(client.clone());
        let gpu_node = json!({
            "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuNode",
            "metadata": {"name": name, "labels": {LABEL: NAME}}, "spec": {"gpus": []},
        });
        gpu_nodes.create(&PostParams::default(), &typed(gpu_node)?).await?;
        let GpuNode { metadata, spec, status } = node::gpu_node(&self.real, index, self.each);
        // by the operator's field manager: entries of another one would stay when the operator replaces them
        let manager = PatchParams::apply(&format!("{}/pool", names::OPERATOR_MANAGER)).force();
        let listed = json!({"apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuNode", "metadata": {"name": name}, "spec": spec});
        let applied = gpu_nodes.patch(&name, &manager, &Patch::Apply(listed)).await?;
        if applied.metadata.generation != metadata.generation {
            return Err(Error::Wrong(format!("GpuNode {name} has generation {:?}", applied.metadata.generation)));
        }
        gpu_nodes.patch_status(&name, &merge, &Patch::Merge(json!({"status": status}))).await?;
        Ok(())
    }

    /// Creates tenants with these indices.
    pub async fn tenants(&self, world: &World, range: Range<usize>) -> Result<()> {
        let api = Api::<GpuTenant>::all(world.client.clone());
        let guarantee = i32::try_from(self.each).unwrap_or(i32::MAX);
        let body = |index| tenant(&node::tenant_name(index), &[(PROFILES[0].0, guarantee)]);
        let create = |index| {
            let (api, body) = (&api, body(index));
            async move {
                api.create(&PostParams::default(), &typed(body)?).await?;
                Ok(())
            }
        };
        each(range, create).await
    }

    /// Waits until this many tenants are Ready.
    pub async fn tenants_ready(&self, world: &World, count: usize) -> Result<()> {
        let api = Api::<GpuTenant>::all(world.client.clone());
        let ready = |t: &GpuTenant| t.status.as_ref().is_some_and(|s| condition::is_true(&s.conditions, "Ready"));
        until_all(&api, &format!("{NAME}-tenant-"), count, ready).await.map(drop)
    }

    /// Creates the pods of nodes with these indices.
    pub async fn pods(&self, world: &World, range: Range<usize>) -> Result<()> {
        let pods = range.start * PODS..range.end * PODS;
        each(pods, |index| self.pod(&world.client, index / PODS, index % PODS)).await
    }

    async fn pod(&self, client: &Client, index: usize, pod: usize) -> Result<()> {
        let (namespace, name) = node::pod_name(index, pod, self.each);
        let image = "lab.local/gputenancy-workload:dev";
        let container = json!({"name": CONTAINER, "image": image, "resources": {"limits": {node::resource(): "1"}}});
        // a policy refuses `nodeName` in a manifest: the benchmark is the scheduler
        let alone = json!({
            "schedulerName": SCHEDULER, "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
        });
        let spec = merged(restricted_spec(container), alone);
        let body: Pod = typed(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {LABEL: NAME}}, "spec": spec,
        }))?;
        let api = Api::<Pod>::namespaced(client.clone(), &namespace);
        // the service account of a new namespace may not exist yet, and concurrent updates of a quota conflict
        eventually(&format!("pod {namespace}/{name} created"), PATIENCE, || async {
            match api.create(&PostParams::default(), &body).await {
                Ok(_) => Ok(Ok(())),
                Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(Ok(())),
                Err(error) => Err(error.into()),
            }
        })
        .await?;
        bind(client, &namespace, &name, &node::name(index)).await?;
        let now = now();
        let condition = |type_: &str| json!({"type": type_, "status": "True", "lastTransitionTime": now});
        let running = json!({
            "name": CONTAINER, "image": image, "imageID": "", "ready": true, "restartCount": 0,
            "state": {"running": {"startedAt": now}},
        });
        let conditions = ["Initialized", "ContainersReady", "Ready"].map(condition);
        let status = json!({"status": {
            "phase": "Running", "startTime": now, "containerStatuses": [running],
            "conditions": conditions,
        }});
        api.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await?;
        Ok(())
    }
}

async fn bind(client: &Client, namespace: &str, pod: &str, node: &str) -> Result<()> {
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": {"kind": "Node", "name": node},
    });
    let request = Request::post(format!("/api/v1/namespaces/{namespace}/pods/{pod}/binding"));
    let request = request.header("Content-Type", "application/json").body(binding.to_string().into_bytes());
    let request = request.map_err(|e| Error::Text { what: "a request".into(), why: e.to_string() })?;
    client.request::<Value>(request).await?;
    Ok(())
}

/// Deletes nodes, GPU nodes and leases; the pods go with them or with their namespaces.
pub async fn remove(client: &Client) -> Result<()> {
    all_gone(Api::<GpuNode>::all(client.clone()), "GPU nodes").await?;
    all_gone(Api::<Node>::all(client.clone()), "nodes").await?;
    all_gone(Api::<Lease>::namespaced(client.clone(), LEASES), "leases").await
}

async fn all_gone<K>(api: Api<K>, what: &str) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let ours = ListParams::default().labels(&format!("{LABEL}={NAME}"));
    // with thousands of objects one request may time out
    eventually(&format!("{what} of the benchmark deleted"), PATIENCE * 2, || async {
        // no kubelet ends the pods
        api.delete_collection(&DeleteParams::default().grace_period(0), &ours).await?;
        let left = api.list_metadata(&ours).await?.items.len();
        Ok(if left == 0 { Ok(()) } else { Err(format!("{left} {what}")) })
    })
    .await
}

/// Number of nodes of the benchmark that are not Ready: the node lifecycle controller missed heartbeats.
pub async fn unready(client: &Client) -> Result<usize> {
    Ok(unready_nodes(client).await?.len())
}

/// Reports nodes Ready that are not, as their kubelets would: a fleet that is being filled may delay heartbeats. It ends with an error only.
pub async fn keep_ready(client: &Client) -> Result<()> {
    let (api, merge) = (Api::<Node>::all(client.clone()), PatchParams::default());
    loop {
        tokio::time::sleep(REPORTS).await;
        for name in unready_nodes(client).await? {
            api.patch_status(&name, &merge, &Patch::Merge(node::ready(&now()))).await?;
        }
    }
}

async fn unready_nodes(client: &Client) -> Result<Vec<String>> {
    let ours = ListParams::default().labels(&format!("{LABEL}={NAME}"));
    let nodes = Api::<Node>::all(client.clone()).list(&ours).await?;
    Ok(nodes.iter().filter(|n| !lab::node_is_ready(n)).map(ResourceExt::name_any).collect())
}

fn now() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

async fn each<F>(range: Range<usize>, create: impl Fn(usize) -> F) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    stream::iter(range).map(create).buffer_unordered(IN_FLIGHT).try_collect().await
}

fn typed<K: DeserializeOwned>(value: Value) -> Result<K> {
    serde_json::from_value(value).map_err(|e| Error::Text { what: "an object".into(), why: e.to_string() })
}
