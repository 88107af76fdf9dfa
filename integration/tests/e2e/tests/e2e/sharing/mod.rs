//! Shares of GPUs: the exercise of the usual time-slicing tutorial, five modes on one node, and replicas that change under load.

mod dedicated_pools;
mod fraction_annotations;
mod gpu_equivalents;
mod mps;
mod nvidia_plugin;
mod nvidia_plugin_shares;
mod strategies;
mod vgpu;

use std::collections::{BTreeMap, BTreeSet};

use e2e::{
    Error, Result, World,
    fixtures::{merged, mig_profile, pod_spec, pool, tenant, workload},
    objects::{PodIdentity, allocatable, ensure, gpu_node, running},
    scenario::{self, pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{GpuNode, GpuState};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};
use serde_json::{Value, json};

const NODE: &str = "gpu-1";
pub(crate) const TEAM: &str = "sharers";
const SHARED: &str = "nvidia.com/gpu.shared";
pub(crate) const SLICE: &str = "nvidia.com/mig-3g.40gb.shared";

/// A profile with this device.
pub(crate) fn profile(name: &str, device: Value) -> Value {
    let support = json!({"expected": "neighbours on the GPU are noticed", "incident": "a pod does not start although a share is free"});
    json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": name},
        "spec": {"device": device, "support": support},
    })
}

fn turns(replicas: i32) -> Value {
    profile("turns", json!({"timeSlice": {"replicas": replicas}}))
}

/// A tenant that has accepted what shares do not isolate.
pub(crate) fn sharer(guarantees: &[(&str, i32)]) -> Value {
    let mut sharer = tenant(TEAM, guarantees);
    let spec = sharer["spec"].take();
    sharer["spec"] = merged(spec, json!({"trust": "Internal", "sharing": {"acknowledgedBy": "platform@example.com"}}));
    sharer
}

/// A pool whose first GPU is time-sliced, and whose others are left alone.
fn fixed_pool(replicas: i32) -> Value {
    let mut fixed = pool("p", NODE, &["turns"]);
    let layout = json!({"mode": "Fixed", "fixed": [{"gpus": "0", "profiles": [{"name": "turns", "count": replicas}]}]});
    let spec = fixed["spec"].take();
    fixed["spec"] = merged(spec, json!({"layout": layout}));
    fixed
}

/// UUIDs of the devices that each pod sees, by pod.
pub(crate) async fn uuids(
    world: &World,
    pods: impl IntoIterator<Item = &String>,
) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let mut seen = BTreeMap::new();
    for pod in pods {
        let shown = scenario::visible_gpus(world, TEAM, pod).await?;
        let words = shown.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
        let (instances, gpus): (Vec<&str>, Vec<&str>) =
            words.filter(|w| w.starts_with("GPU-") || w.starts_with("MIG-")).partition(|w| w.starts_with("MIG-"));
        // an instance is shown with its GPU
        let devices = if instances.is_empty() { gpus } else { instances };
        seen.insert(pod.clone(), devices.into_iter().map(str::to_owned).collect());
    }
    Ok(seen)
}

/// The message of a pod that the scheduler cannot place.
async fn unschedulable(world: &World, app: &str) -> Result<String> {
    let pods = Api::<Pod>::namespaced(world.client.clone(), TEAM);
    eventually(&format!("a Pending pod of {app}"), PATIENCE, || async {
        let found = pods.list(&ListParams::default().labels(&format!("app={app}"))).await?;
        let conditions = found.items.iter().flat_map(|p| p.status.iter().flat_map(|s| s.conditions.iter().flatten()));
        let waits = conditions.filter(|c| c.reason.as_deref() == Some("Unschedulable")).find_map(|c| c.message.clone());
        Ok(waits.ok_or_else(|| format!("{} pods", found.items.len())))
    })
    .await
}

#[tokio::test]
async fn time_sliced_gpu_runs_four_pods_and_a_fifth_waits() {
    let world = World::enter().await.unwrap();
    let body = async {
        world.set(&[turns(4)]).await?;
        world.set(&[fixed_pool(4), sharer(&[("turns", 5)])]).await?;
        pool_ready(&world, "p").await?;
        ensure(allocatable(&world.client, NODE, SHARED).await? == 4, "one GPU in four turns is four devices")?;

        let three: Vec<Value> = ["a", "b", "c"].map(|name| workload(TEAM, name, SHARED, 1)).into();
        world.set(&three).await?;
        world.pods_ready(TEAM, 3).await?;
        let fourth = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "d", "namespace": TEAM}, "spec": pod_spec(SHARED),
        });
        world.set(&[fourth]).await?;
        let four = world.pods_ready(TEAM, 4).await?;
        let seen = uuids(&world, four.keys()).await?;
        let one: BTreeSet<&String> = seen.values().flatten().collect();
        ensure(one.len() == 1 && seen.values().all(|s| s.len() == 1), format!("all four see one GPU: {seen:?}"))?;

        world.set(&[workload(TEAM, "e", SHARED, 1)]).await?;
        let waits = unschedulable(&world, "e").await?;
        ensure(waits.contains(&format!("Insufficient {SHARED}")), waits)?;
        ensure(running(&world.client, TEAM).await? == four, "the others run on")?;

        world.kubectl(&["delete", "pod", "-n", TEAM, "d"]).await?;
        let four = world.pods_ready(TEAM, 4).await?;
        fault_reaches_each_pod(&world, four.keys(), &one).await
    };
    world.keeping_evidence("time-slicing", body).await;
}

#[tokio::test]
async fn time_sliced_instances_run_pods_of_which_each_is_attributed() {
    let world = World::enter().await.unwrap();
    let body = async {
        let slices = |replicas: i32| {
            profile("slices", json!({"timeSlice": {"replicas": replicas, "of": {"mig": {"profile": "3g.40gb"}}}}))
        };
        let team = |slices: i32| sharer(&[("slices", slices), ("mig-3g", 1)]);
        world.set(&[slices(2), mig_profile("mig-3g", "3g.40gb")]).await?;
        world.set(&[pool("p", NODE, &["slices", "mig-3g"]), team(2)]).await?;
        tenant_ready(&world, TEAM).await?;
        world.set(&[workload(TEAM, "w", SLICE, 3), workload(TEAM, "alone", "nvidia.com/mig-3g.40gb", 1)]).await?;
        let three = world.pods_ready(TEAM, 3).await?;
        let alone: Vec<&String> = three.keys().filter(|pod| pod.starts_with("alone")).collect();
        let seen = uuids(&world, three.keys()).await?;
        let instances: BTreeSet<&String> = seen.values().flatten().collect();
        ensure(instances.len() == 2 && alone.len() == 1, format!("two on one instance, one alone: {seen:?}"))?;

        // each process is of the pod that NVML and kubelet agree on
        let attributed = eventually("a process of each pod", PATIENCE, || async {
            let node = gpu_node(&world.client, NODE).await?;
            let gpus = || node.status.iter().flat_map(|s| &s.gpus);
            let shares = gpus().flat_map(|g| &g.shares).filter(|s| s.device.clients == 1);
            let owners: BTreeSet<String> = shares.filter_map(|s| Some(s.device.owner.as_ref()?.pod.clone())).collect();
            let holders = gpus().map(|g| g.holders.len()).sum::<usize>();
            Ok(if owners.len() == 2 && holders == 0 {
                Ok(owners)
            } else {
                Err(format!("{owners:?}, {holders} others"))
            })
        })
        .await?;
        ensure(
            attributed.iter().all(|pod| three.contains_key(pod) && !alone.contains(&pod)),
            format!("{attributed:?}"),
        )?;

        // more time-slices: the third pod starts on the same instance, and the others run on
        world.set(&[slices(3), team(3)]).await?;
        let four = world.pods_ready(TEAM, 4).await?;
        ensure(three.keys().all(|pod| four.contains_key(pod)), format!("{three:?} run on: {four:?}"))?;
        let seen = uuids(&world, four.keys()).await?;
        ensure(seen.values().flatten().collect::<BTreeSet<_>>().len() == 2, format!("three on one instance: {seen:?}"))
    };
    world.keeping_evidence("time-sliced-instances", body).await;
}

/// An Xid of the shared GPU is an event on each pod with a share of it, on no other pod, and on the node.
async fn fault_reaches_each_pod<'a>(
    world: &World,
    pods: impl Iterator<Item = &'a String>,
    gpu: &BTreeSet<&String>,
) -> Result<()> {
    let gpu = gpu.first().ok_or_else(|| Error::Wrong("no GPU".into()))?;
    let uuid = gpu.split("::").next().unwrap_or_default();
    world.nvsim(NODE, &["xid", uuid, "31"]).await?;
    let expected: BTreeSet<String> = pods.cloned().collect();
    eventually("an event of the node with all pods", PATIENCE, || async {
        let found = scenario::pod_events(world, "default", "GpuProgramFault").await?;
        // those of earlier tests in this lab name other pods
        let names_all = |event: &String| expected.iter().all(|pod| event.contains(pod.as_str()));
        Ok(if found.iter().any(names_all) { Ok(()) } else { Err(format!("{expected:?}: {found:?}")) })
    })
    .await?;
    eventually("an event of each pod", PATIENCE, || async {
        let found = scenario::pod_events(world, TEAM, "GpuProgramFault").await?;
        let named: BTreeSet<String> =
            found.iter().filter_map(|e| e.split_once(": ")).map(|(pod, _)| pod.to_owned()).collect();
        Ok(if named == expected { Ok(()) } else { Err(format!("{named:?}, expected {expected:?}")) })
    })
    .await
}

#[tokio::test]
async fn replicas_change_under_load_and_only_owners_of_removed_shares_leave() {
    let world = World::enter().await.unwrap();
    let body = async {
        world.set(&[turns(4)]).await?;
        world.set(&[pool("p", NODE, &["turns"]), sharer(&[("turns", 4)])]).await?;
        tenant_ready(&world, TEAM).await?;
        world.set(&[workload(TEAM, "w", SHARED, 4)]).await?;
        let four = world.pods_ready(TEAM, 4).await?;

        world.set(&[turns(6), sharer(&[("turns", 6)])]).await?;
        shares_become(&world, &[6]).await?;
        ensure(running(&world.client, TEAM).await? == four, "more replicas evict no pod")?;

        // the guarantee first: six devices of two for each GPU would need the second GPU
        world.set(&[sharer(&[("turns", 2)]), turns(2)]).await?;
        shares_become(&world, &[2]).await?;
        let stayed: BTreeMap<String, PodIdentity> = eventually("two pods that stay", PATIENCE, || async {
            let now = running(&world.client, TEAM).await?;
            let stayed: BTreeMap<_, _> = now.into_iter().filter(|(name, id)| four.get(name) == Some(id)).collect();
            Ok(if stayed.len() == 2 { Ok(stayed) } else { Err(format!("{stayed:?}")) })
        })
        .await?;
        let evicted = scenario::pod_events(&world, TEAM, "Evicted").await?;
        let names: BTreeSet<&str> = evicted.iter().filter_map(|e| e.split_once(": ")).map(|(pod, _)| pod).collect();
        let left: BTreeSet<&str> = four.keys().filter(|p| !stayed.contains_key(*p)).map(String::as_str).collect();
        ensure(names == left, format!("evicted {names:?}, expected {left:?}"))
    };
    world.keeping_evidence("replicas", body).await;
}

/// Waits until the shared GPUs of the node have these numbers of shares, all advertised, and nothing changes.
async fn shares_become(world: &World, expected: &[usize]) -> Result<()> {
    eventually(&format!("shared GPUs with {expected:?} shares"), PATIENCE, || async {
        let node = gpu_node(&world.client, NODE).await?;
        let changing = node.spec.gpus.iter().any(|g| g.change.is_some());
        let gpus = node.status.iter().flat_map(|s| &s.gpus);
        let counts: Vec<usize> = gpus.map(|g| g.shares.iter().filter(|s| s.device.allocatable).count()).collect();
        let counts: Vec<usize> = counts.into_iter().filter(|n| *n > 0).collect();
        Ok(if counts == expected && !changing { Ok(()) } else { Err(format!("{counts:?}, changing: {changing}")) })
    })
    .await
}

/// The modes, each with its profiles and the number of its devices on one GPU.
pub(crate) const MODES: [&[(&str, &str, i32)]; 5] = [
    &[("gpu", "nvidia.com/gpu", 1)],
    &[("mig-3g", "nvidia.com/mig-3g.40gb", 1), ("mig-1g", "nvidia.com/mig-1g.10gb", 4)],
    &[("turns", SHARED, 4)],
    &[("mps-large", "gputenancy.io/mps-large", 1), ("mps-small", "gputenancy.io/mps-small", 4)],
    &[("frac-large", "gputenancy.io/frac-large", 1), ("frac-small", "gputenancy.io/frac-small", 4)],
];

pub(crate) fn catalog() -> Vec<Value> {
    vec![
        profile("gpu", json!({"whole": {}})),
        mig_profile("mig-3g", "3g.40gb"),
        mig_profile("mig-1g", "1g.10gb"),
        turns(4),
        profile("mps-large", json!({"mps": {"memory": "30Gi", "threads": 50}})),
        profile("mps-small", json!({"mps": {"memory": "10Gi", "threads": 10}})),
        profile("frac-large", json!({"fraction": {"memory": "30Gi", "compute": 40}})),
        profile("frac-small", json!({"fraction": {"memory": "10Gi", "compute": 15}})),
    ]
}

/// What a GPU is now.
fn mode(gpu: &GpuState, node: &GpuNode) -> String {
    let spec = node.spec.gpus.iter().find(|s| s.uuid == gpu.uuid);
    match spec.and_then(|s| s.sharing.as_ref()) {
        Some(sharing) => format!("{:?}", sharing.mode),
        None if gpu.instances.is_empty() => "Whole".into(),
        None => "Mig".into(),
    }
}

#[tokio::test]
async fn five_modes_on_one_node_run_twenty_pods() {
    let world = World::enter().await.unwrap();
    let body = async {
        // the simulated driver is installed again, with five GPUs
        world.reinstall(&["simulator.uninstallOnExit=true"]).await?;
        world.reinstall(&["simulator.uninstallOnExit=true", "simulator.gpus=5"]).await?;
        let all: Vec<(&str, &str, i32)> = MODES.iter().flat_map(|m| m.iter().copied()).collect();
        let names: Vec<&str> = all.iter().map(|(name, ..)| *name).collect();
        let guarantees: Vec<(&str, i32)> = all.iter().map(|(name, _, n)| (*name, *n)).collect();
        world.set(&catalog()).await?;
        world.set(&[pool("p", NODE, &names), sharer(&guarantees)]).await?;
        tenant_ready(&world, TEAM).await?;
        pool_ready(&world, "p").await?;
        for (name, resource, count) in &all {
            let found = allocatable(&world.client, NODE, resource).await?;
            ensure(found == i64::from(*count), format!("{name}: {found} of {count} in allocatable"))?;
        }
        let pods: Vec<Value> = all.iter().map(|(name, resource, n)| workload(TEAM, name, resource, *n)).collect();
        world.set(&pods).await?;
        let ready = world.pods_ready(TEAM, 20).await?;

        let node = gpu_node(&world.client, NODE).await?;
        let gpus = &node.status.as_ref().unwrap().gpus;
        let modes: BTreeSet<String> = gpus.iter().map(|g| mode(g, &node)).collect();
        let expected = ["Fraction", "Mig", "Mps", "TimeSlice", "Whole"].map(str::to_owned);
        ensure(modes == expected.into(), format!("{modes:?}"))?;
        each_pod_owns_one_device(&world, &ready).await?;
        let seen = uuids(&world, ready.keys()).await?;
        ensure(seen.values().all(|s| s.len() == 1), format!("each pod sees one device: {seen:?}"))?;
        let distinct: BTreeSet<&String> = seen.values().flatten().collect();
        ensure(distinct.len() == 9, format!("four GPUs and five instances are seen: {distinct:?}"))
    };
    let result = world.keeping_evidence("five-modes", body);
    result.await;
    world.reinstall(&["simulator.uninstallOnExit=true"]).await.unwrap();
}

/// By the node's status, every pod owns one device, with one process.
pub(crate) async fn each_pod_owns_one_device(world: &World, pods: &BTreeMap<String, PodIdentity>) -> Result<()> {
    eventually("one device with one process for each pod", PATIENCE, || async {
        let node = gpu_node(&world.client, NODE).await?;
        let gpus = node.status.iter().flat_map(|s| &s.gpus);
        let owned =
            gpus.clone().flat_map(GpuState::devices).filter_map(|d| Some((d.owner.as_ref()?.pod.clone(), d.clients)));
        let owned: Vec<(String, i32)> = owned.collect();
        let owners: BTreeSet<&String> = owned.iter().map(|(pod, _)| pod).collect();
        let unattributed: Vec<String> = gpus.flat_map(|g| &g.holders).map(ToString::to_string).collect();
        let good = owners == pods.keys().collect() && owned.len() == pods.len() && owned.iter().all(|(_, n)| *n == 1);
        Ok(if good && unattributed.is_empty() { Ok(()) } else { Err(format!("{owned:?}; {unattributed:?}")) })
    })
    .await
}
