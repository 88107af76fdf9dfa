//! A device is handed over only when it is clean: the process of a pod that was deleted with force keeps its device from other pods. A finalizer
//! of a pod without processes keeps nothing.

use e2e::{
    Error, Result, World,
    actor::{Actor, Verb},
    fixtures::{mig_profile, pod_spec, pool, tenant, workload},
    objects::{ensure, gpu_node, set_guarantee},
    scenario::{self, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{DeviceState, GpuState, Holder, InstanceState, names};
use k8s_openapi::api::core::v1::{Pod, ResourceQuota};
use kube::{Api, api::ListParams};
use serde_json::{Value, json};

const NODE: &str = "gpu-1";
const DEVICE: &str = "nvidia.com/mig-3g.40gb";
/// An owner of both tenants.
const TEAM: [&str; 2] = ["--as=ann", "--as-group=teams"];
/// A `ServiceAccount` of the team `first`, to which an owner has given all rights of owners.
const ACCOUNT: [&str; 1] = ["--as=system:serviceaccount:first:ci"];
/// A pod of the team `first` that its finalizer keeps.
const KEPT: &str = "/api/v1/namespaces/first/pods/kept";
const FORCED: [&str; 5] = ["delete", "--force", "--grace-period=0", "--wait=false", "--dry-run=server"];

#[tokio::test]
async fn device_of_a_forgotten_pod_is_given_to_no_other_until_its_process_has_ended() {
    let world = World::enter().await.unwrap();
    let outcome = forgotten_pod(&world).await;
    // also after a failure: the namespace is deleted before the next test
    let free = json!({"metadata": {"finalizers": null}});
    Actor::Admin.does(&world.client, Verb::Merge, KEPT, &free).await.ok();
    world.keeping_evidence("handover", async { outcome }).await;
}

async fn forgotten_pod(world: &World) -> Result<()> {
    // so long that kubelet cuts the container's id off the name of its log
    let lingers = &format!("lingers{}", "-long".repeat(40));
    world.set(&[mig_profile("mig-3g", "3g.40gb"), pool("p", NODE, &["mig-3g"])]).await?;
    // the four devices that two GPUs can have
    let owned = |name: &str, count| {
        let mut tenant = tenant(name, &[("mig-3g", count)]);
        tenant["spec"]["owners"] = json!([{"kind": "Group", "name": "teams"}]);
        tenant
    };
    world.set(&[owned("first", 1), owned("second", 3)]).await?;
    tenant_ready(world, "first").await?;
    tenant_ready(world, "second").await?;
    let mut spec = pod_spec(DEVICE);
    spec["containers"][0]["command"] = json!(["/usr/bin/gpu-work", "hold", "--ignore-sigterm"]);
    spec["terminationGracePeriodSeconds"] = 600.into();
    team_deletes_ended_pods(world).await?;
    // its budget and its device are those of the pods before
    start(world, &pod(lingers, spec)).await?;
    world.pods_ready("first", 1).await?;
    let owned = |d: &DeviceState| d.clients > 0 && d.owner.as_ref().is_some_and(|o| o.pod == *lingers);
    let held = |_: &GpuState, i: &InstanceState| i.device.as_ref().is_some_and(owned);
    let place = instance(world, "the pod's device with its process", held).await?;
    // no request may give it more time than the tenant's limit
    for what in [["pod", lingers], ["pods", "--all"]] {
        let longer = [&["delete", "-n", "first", "--wait=false", "--grace-period=601"][..], &what[..]].concat();
        let answer = world.kubectl(&longer).await.err().map(|e| e.to_string()).unwrap_or_default();
        ensure(answer.contains("may take at most 600 seconds to end"), format!("{longer:?}: {answer:?}"))?;
    }
    world.kubectl(&["delete", "pod", "-n", "first", lingers, "--wait=false"]).await?;
    team_deletes_no_running_pod_with_force(world, &TEAM, lingers).await?;
    account_has_the_rights_of_owners(world, lingers).await?;
    team_deletes_no_running_pod_with_force(world, &ACCOUNT, lingers).await?;
    // an administrator may
    world.kubectl(&["delete", "pod", "-n", "first", lingers, "--force", "--grace-period=0"]).await?;

    // it still counts against the team's budget, which the API server's quota does not see
    let headroom = async |limit: &'static str| {
        let quota = format!("a quota of {limit}");
        eventually(&quota, PATIENCE, || async {
            let quota = Api::<ResourceQuota>::namespaced(world.client.clone(), "first").get(names::QUOTA).await?;
            let hard = quota.status.and_then(|s| s.hard).unwrap_or_default();
            let found = hard.get(&format!("requests.{DEVICE}")).map(|q| q.0.clone());
            Ok(if found.as_deref() == Some(limit) { Ok(()) } else { Err(format!("{found:?}")) })
        })
        .await
    };
    headroom("0").await?;
    // another tenant asks, and gets the others
    world.set(&[workload("second", "w", DEVICE, 3)]).await?;
    world.pods_ready("second", 3).await?;
    let pods = Api::<Pod>::namespaced(world.client.clone(), "second").list(&ListParams::default()).await?.items;
    ensure(pods.len() == 3, format!("{} pods: some were refused", pods.len()))?;
    let named = |h: &&Holder| h.container.as_ref().is_some_and(|c| c.namespace == "first" && c.pod == *lingers);
    let kept = |gpu: &GpuState, i: &InstanceState| {
        let Some(device) = &i.device else { return false };
        let withdrawn = device.owner.is_none() && !device.allocatable && device.resource.is_none();
        let former = device.former_owner.as_ref().is_some_and(|o| o.pod == *lingers);
        withdrawn && former && gpu.holders.iter().any(|h| named(&h) && h.start == Some(i.start))
    };
    ensure(
        instance(world, "a withdrawn device with its process", kept).await? == place,
        "another device was withdrawn",
    )?;

    // nothing is free: a fourth pod waits, and is not refused by kubelet
    set_guarantee(&world.client, "second", "mig-3g", 4).await?;
    world.set(&[workload("second", "w", DEVICE, 4)]).await?;
    unschedulable(world).await?;
    // a pod without a node has no process
    let pending = ["-n", "second", "pods", "--field-selector=status.phase=Pending"];
    world.kubectl(&[&TEAM[..], &FORCED[..], &pending[..]].concat()).await?;
    let node = gpu_node(&world.client, NODE).await?;
    let holder = node.status.iter().flat_map(|s| &s.gpus).flat_map(|g| &g.holders).find(named);
    let pid = holder.map(|h| h.pid.to_string()).ok_or_else(|| Error::Wrong("the process is not named".into()))?;
    world.on_node(NODE, &["kill", "-9", &pid]).await?;
    world.pods_ready("second", 4).await?;
    headroom("1").await?;
    let at_last = |gpu: &GpuState, i: &InstanceState| {
        (gpu.index, i.start) == place && i.device.as_ref().is_some_and(|d| d.owner.is_some())
    };
    instance(world, "the device of the next pod", at_last).await.map(drop)
}

/// A pod of the team `first`.
fn pod(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "first"}, "spec": spec})
}

/// Creates a pod once the quota has counted the end of the one before.
async fn start(world: &World, pod: &Value) -> Result<()> {
    eventually("a free budget", PATIENCE, || async { world.set(std::slice::from_ref(pod)).await.map(Ok) }).await
}

/// The team deletes ended pods plainly and with force. One that its finalizer keeps holds neither budget nor device.
async fn team_deletes_ended_pods(world: &World) -> Result<()> {
    let pods = Api::<Pod>::namespaced(world.client.clone(), "first");
    let phase = async |name: &'static str, phase: &'static str| {
        eventually(&format!("pod {name} {phase}"), PATIENCE, || async {
            let found = pods.get(name).await?.status.and_then(|status| status.phase);
            Ok(if found.as_deref() == Some(phase) { Ok(()) } else { Err(format!("{found:?}")) })
        })
        .await
    };
    let team = [&TEAM[..], &["-n", "first"]].concat();
    for (name, command, ends) in [("works", "/bin/true", "Succeeded"), ("breaks", "/bin/false", "Failed")] {
        let mut spec = pod_spec(DEVICE);
        spec["restartPolicy"] = "Never".into();
        spec["containers"][0]["command"] = json!([command]);
        start(world, &pod(name, spec)).await?;
        phase(name, ends).await?;
        let plainly = ["delete", "pod", name, "--wait=false", "--dry-run=server"];
        world.kubectl(&[&team[..], &plainly[..]].concat()).await?;
        world.kubectl(&[&team[..], &FORCED[..], &["pod", name]].concat()).await?;
        world.kubectl(&[&team[..], &["delete", "pod", name, "--force", "--grace-period=0"]].concat()).await?;
    }
    let mut kept = pod("kept", pod_spec(DEVICE));
    kept["metadata"]["finalizers"] = json!(["example.com/keep"]);
    start(world, &kept).await?;
    world.pods_ready("first", 1).await?;
    world.kubectl(&[&team[..], &["delete", "pod", "kept", "--wait=false"]].concat()).await?;
    eventually("the end of the pod's container", PATIENCE, || async {
        let pod = pods.get("kept").await?;
        let statuses = pod.status.and_then(|status| status.container_statuses).unwrap_or_default();
        let ended = statuses.iter().all(|status| status.state.as_ref().is_some_and(|state| state.terminated.is_some()));
        Ok(if ended && !statuses.is_empty() { Ok(()) } else { Err(format!("{statuses:?}")) })
    })
    .await
}

/// An owner gives a `ServiceAccount` all rights of owners.
async fn account_has_the_rights_of_owners(world: &World, running: &str) -> Result<()> {
    let team = [&TEAM[..], &["-n", "first"]].concat();
    world.kubectl(&[&team[..], &["create", "serviceaccount", "ci"]].concat()).await?;
    let bind = ["create", "rolebinding", "ci", "--clusterrole=gputenancy:tenant-owner", "--serviceaccount=first:ci"];
    world.kubectl(&[&team[..], &bind[..]].concat()).await?;
    let evict = ["auth", "can-i", "create", "pods/eviction", "-n", "first"];
    let delete = ["auth", "can-i", "delete", "pods", "-n", "first"];
    eventually(&format!("the right to delete {running}"), PATIENCE, || async {
        for right in [&evict[..], &delete[..]] {
            world.kubectl(&[&ACCOUNT[..], right].concat()).await?;
        }
        Ok(Ok(()))
    })
    .await
}

/// A forced deletion frees the quota while the process runs on.
async fn team_deletes_no_running_pod_with_force(world: &World, user: &[&str], running: &str) -> Result<()> {
    let team = [user, &["-n", "first"]].concat();
    let wrong = |what: &str, answer: &str| format!("{user:?}: {what}: {answer:?}");
    let refusal = "gracePeriodSeconds: 0 removes a pod";
    for what in [["pod", running], ["pods", "--all"]] {
        let answer = world.kubectl(&[&team[..], &FORCED[..], &what[..]].concat()).await;
        let answer = answer.err().map(|e| e.to_string()).unwrap_or_default();
        ensure(answer.contains(refusal), wrong(what[1], &answer))?;
    }
    let all = ["delete", "--raw", "/api/v1/namespaces/first/pods?gracePeriodSeconds=0&dryRun=All"];
    let answer = world.kubectl(&[user, &all[..]].concat()).await.err().map(|e| e.to_string()).unwrap_or_default();
    ensure(answer.contains(refusal), wrong("a collection", &answer))?;
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": running, "namespace": "first"}, "deleteOptions": {"gracePeriodSeconds": 0}});
    let path = format!("/api/v1/namespaces/first/pods/{running}/eviction");
    let actor = if user == ACCOUNT { Actor::Account("first", "ci") } else { Actor::Person("ann", &["teams"]) };
    actor.check(&world.client, Verb::Create, &path, &eviction, Some(refusal)).await?;
    world
        .kubectl(&[&team[..], &["delete", "--now", "--wait=false", "--dry-run=server", "pod", running]].concat())
        .await
        .map(drop)
}

#[tokio::test]
async fn device_with_memory_of_no_process_gets_no_pod_until_it_is_free() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("unexplained-memory", leaked(&world)).await;
}

async fn leaked(world: &World) -> Result<()> {
    world.set(&[mig_profile("mig-3g", "3g.40gb"), pool("p", NODE, &["mig-3g"])]).await?;
    world.set(&[tenant("second", &[("mig-3g", 4)])]).await?;
    tenant_ready(world, "second").await?;
    let free = |_: &GpuState, i: &InstanceState| i.device.as_ref().is_some_and(|d| d.allocatable);
    let (gpu, start) = instance(world, "a free device", free).await?;
    let here = |g: &GpuState, i: &InstanceState| (g.index, i.start) == (gpu, start);
    let node = gpu_node(&world.client, NODE).await?;
    let states = node.status.iter().flat_map(|s| &s.gpus);
    let gi = states.flat_map(|g| g.instances.iter().filter(move |i| here(g, i))).map(|i| i.gi.to_string()).next();
    let (gpu, gi) = (gpu.to_string(), gi.unwrap_or_default());
    world.nvsim(NODE, &["leak", &gpu, "900", "--instance", &gi]).await?;

    let withheld = |g: &GpuState, i: &InstanceState| {
        let Some(device) = &i.device else { return false };
        let memory = device.unexplained_memory.as_ref().and_then(|m| m.mib().ok());
        here(g, i) && memory == Some(900) && !device.allocatable
    };
    instance(world, "the device withdrawn", withheld).await?;
    let events = scenario::pod_events(world, "default", "UnexplainedMemory").await?;
    ensure(events.iter().any(|e| e.contains("900 MiB")), format!("{events:?}"))?;
    world.set(&[workload("second", "w", DEVICE, 4)]).await?;
    world.pods_ready("second", 3).await?;
    unschedulable(world).await?;

    world.nvsim(NODE, &["leak", &gpu, "0", "--instance", &gi]).await?;
    world.pods_ready("second", 4).await?;
    instance(world, "the device of the fourth pod", |g, i| {
        here(g, i) && i.device.as_ref().is_some_and(|d| d.owner.is_some())
    })
    .await
    .map(drop)
}

/// Waits for an instance that satisfies a predicate, and returns the index of its GPU and its start.
async fn instance(world: &World, what: &str, so: impl Fn(&GpuState, &InstanceState) -> bool) -> Result<(i32, i32)> {
    eventually(what, PATIENCE, || async {
        let node = gpu_node(&world.client, NODE).await?;
        let gpus = node.status.iter().flat_map(|s| &s.gpus);
        let found = gpus.flat_map(|g| g.instances.iter().map(move |i| (g, i))).find(|(g, i)| so(g, i));
        Ok(found.map(|(g, i)| (g.index, i.start)).ok_or_else(|| format!("{:?}", node.status.map(|s| s.gpus))))
    })
    .await
}

/// Waits until the pod of `second` is Pending for want of a device.
async fn unschedulable(world: &World) -> Result<()> {
    let pods = Api::<Pod>::namespaced(world.client.clone(), "second");
    eventually("a Pending pod", PATIENCE, || async {
        let found = pods.list(&ListParams::default().labels("app=w")).await?.items;
        let conditions = found.iter().flat_map(|p| p.status.iter().flat_map(|s| s.conditions.iter().flatten()));
        let waits = conditions.filter_map(|c| c.message.clone()).any(|m| m.contains(&format!("Insufficient {DEVICE}")));
        Ok(if waits { Ok(()) } else { Err(format!("{} pods", found.len())) })
    })
    .await
}
