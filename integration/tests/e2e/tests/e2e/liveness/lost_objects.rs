//! A `GpuNode` that is deleted, alone or with its Node, or gets an older spec while pods run on devices of every mode: all of them keep their devices.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use e2e::{
    Error, Result, World,
    actor::{Actor, Verb},
    fixtures::{pool, workload},
    objects::{PodIdentity, allocatable, ensure, gpu_node, running},
    scenario::{self, pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{GpuNode, GpuNodeSpec};
use k8s_openapi::{api::core::v1::ResourceQuota, apimachinery::pkg::api::resource::Quantity};
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::{Value, json};

use crate::sharing::{MODES, SLICE, TEAM, catalog, each_pod_owns_one_device, profile, sharer, uuids};

const NODE: &str = "gpu-1";
/// All agents and their nodes, and 22 pods, come back.
const LONG: Duration = PATIENCE.saturating_mul(2);

/// Name, resource and number of the devices of every mode.
fn all_modes() -> Vec<(&'static str, &'static str, i32)> {
    MODES.iter().flat_map(|mode| mode.iter().copied()).chain([("slices", SLICE, 2)]).collect()
}

/// What must stay the same.
#[derive(Debug, PartialEq)]
struct Held {
    pods: BTreeMap<String, PodIdentity>,
    devices: BTreeMap<String, BTreeSet<String>>,
    owners: BTreeMap<String, String>,
    budget: BTreeMap<String, Quantity>,
    allocatable: BTreeMap<&'static str, i64>,
}

async fn held(world: &World) -> Result<Held> {
    let pods = running(&world.client, TEAM).await?;
    let devices = uuids(world, pods.keys()).await?;
    let node = gpu_node(&world.client, NODE).await?;
    let mut owners = BTreeMap::new();
    for gpu in node.status.iter().flat_map(|s| &s.gpus) {
        let shares = gpu.shares.iter().map(|share| (format!("{}::{}", gpu.uuid, share.number), &share.device));
        let instances =
            gpu.instances.iter().filter_map(|i| Some((format!("{}@{}", gpu.uuid, i.start), i.device.as_ref()?)));
        let whole = gpu.whole.iter().map(|whole| (gpu.uuid.clone(), whole));
        let all = shares.chain(instances).chain(whole);
        owners.extend(all.filter_map(|(place, device)| Some((place, device.owner.as_ref()?.pod.clone()))));
    }
    let quotas = Api::<ResourceQuota>::namespaced(world.client.clone(), TEAM).list(&ListParams::default()).await?;
    let budget = quotas.items.into_iter().filter_map(|quota| quota.spec?.hard).flatten().collect();
    let mut counts = BTreeMap::new();
    for (_, resource, _) in all_modes() {
        counts.insert(resource, allocatable(&world.client, NODE, resource).await?);
    }
    Ok(Held { pods, devices, owners, budget, allocatable: counts })
}

/// Waits until the `GpuNode` has this spec again, and the agent serves it.
async fn spec_is_back(world: &World, spec: &GpuNodeSpec, former: Option<&str>) -> Result<GpuNode> {
    eventually("the spec of before", LONG, || async {
        let node = match Api::<GpuNode>::all(world.client.clone()).get_opt(NODE).await? {
            Some(node) if former != node.uid().as_deref() => node,
            other => return Ok(Err(format!("the object is {:?}", other.map(|node| node.uid())))),
        };
        let status = node.status.clone().unwrap_or_default();
        let served = status.observed_generation == node.metadata.generation;
        let retained = status.gpus.iter().filter(|gpu| gpu.retained.is_some()).count();
        let same = node.spec.gpus.iter().all(|gpu| spec.gpus.contains(gpu)) && node.spec.gpus.len() == spec.gpus.len();
        Ok(if same && served && retained == 0 {
            Ok(node)
        } else {
            Err(format!("same: {same}, served: {served}, {retained} retained: {:?}", node.spec))
        })
    })
    .await
}

/// All that was held is held, by the same pods, and no pod was evicted or is unattributed.
async fn nothing_was_lost(world: &World, what: &str, before: &Held) -> Result<()> {
    world.pods_ready(TEAM, before.pods.len()).await?;
    each_pod_owns_one_device(world, &before.pods).await?;
    tenant_ready(world, TEAM).await?;
    pool_ready(world, "p").await?;
    eventually(&format!("{what}: all as before"), LONG, || async {
        let now = held(world).await?;
        Ok(if now == *before { Ok(()) } else { Err(format!("before {before:?}, now {now:?}")) })
    })
    .await?;
    let evicted = scenario::pod_events(world, TEAM, "Evicted").await?;
    ensure(evicted.is_empty(), format!("{what}: {evicted:?}"))
}

async fn adopted(world: &World) -> Result<usize> {
    let events = world.kubectl(&["get", "events", "-A", "--field-selector=reason=LayoutAdopted", "-o", "json"]).await?;
    let list: Value = serde_json::from_str(&events).map_err(|e| Error::Text { what: events, why: e.to_string() })?;
    Ok(list["items"].as_array().map_or(0, Vec::len))
}

#[tokio::test]
async fn pods_of_every_mode_keep_their_devices_when_the_gpu_node_is_deleted_or_restored() {
    let world = World::enter().await.unwrap();
    let body = async {
        // the simulated driver is installed again, with six GPUs
        world.reinstall(&["simulator.uninstallOnExit=true"]).await?;
        world.reinstall(&["simulator.uninstallOnExit=true", "simulator.gpus=6"]).await?;
        let slices = profile("slices", json!({"timeSlice": {"replicas": 2, "of": {"mig": {"profile": "3g.40gb"}}}}));
        world.set(&[catalog(), vec![slices]].concat()).await?;
        let names: Vec<&str> = all_modes().iter().map(|(name, ..)| *name).collect();
        world.set(&[pool("p", NODE, &names), sharer(&[("gpu", 1), ("turns", 4)])]).await?;
        tenant_ready(&world, TEAM).await?;
        pool_ready(&world, "p").await?;
        let older = gpu_node(&world.client, NODE).await?.spec;

        let guarantees: Vec<(&str, i32)> = all_modes().iter().map(|(name, _, n)| (*name, *n)).collect();
        world.set(&[sharer(&guarantees)]).await?;
        tenant_ready(&world, TEAM).await?;
        pool_ready(&world, "p").await?;
        let pods: Vec<Value> =
            all_modes().iter().map(|(name, resource, n)| workload(TEAM, name, resource, *n)).collect();
        world.set(&pods).await?;
        let ready = world.pods_ready(TEAM, 22).await?;
        each_pod_owns_one_device(&world, &ready).await?;
        let (before, node) = (held(&world).await?, gpu_node(&world.client, NODE).await?);

        world.kubectl(&["delete", "gpunode", NODE]).await?;
        spec_is_back(&world, &node.spec, node.uid().as_deref()).await?;
        nothing_was_lost(&world, "GpuNode deleted", &before).await?;

        let events = adopted(&world).await?;
        // only the operator may write it
        let spec = json!({"spec": {"gpus": older.gpus}});
        let path = format!("/apis/gputenancy.io/v1alpha1/gpunodes/{NODE}");
        Actor::Operator.does(&world.client, Verb::Merge, &path, &spec).await?;
        eventually("an event about the older spec", PATIENCE, || async {
            let now = adopted(&world).await?;
            Ok(if now > events { Ok(()) } else { Err(format!("{now} events, {events} before")) })
        })
        .await?;
        let restored = spec_is_back(&world, &node.spec, None).await?;
        nothing_was_lost(&world, "older spec", &before).await?;

        world.kubectl(&["delete", "node", NODE]).await?;
        world.lab.node(NODE)?.kill_component("kubelet").await?;
        spec_is_back(&world, &node.spec, restored.uid().as_deref()).await?;
        nothing_was_lost(&world, "Node deleted", &before).await
    };
    let result = world.keeping_evidence("lost-objects", body);
    result.await;
    world.reinstall(&["simulator.uninstallOnExit=true"]).await.unwrap();
}
