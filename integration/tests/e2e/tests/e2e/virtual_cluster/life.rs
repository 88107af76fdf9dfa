//! A virtual cluster from one field of its tenant, with the real vCluster: its own budget inside, quotas and policies of the host, repair,
//! and nothing left afterwards.

use std::{io::Write as _, time::Instant};

use e2e::{
    Error, Result, World,
    fixtures::{mig_profile, pool, restricted_spec},
    objects::ensure,
    scenario::{tenant_ready, wait_for_devices},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::GpuTenant;
use kube::Api;
use serde_json::{Value, json};

use super::{
    Inside, START,
    connect::connect_reaches_the_api_server,
    inside::{SPACE, pod},
    install,
    interruptions::restore::restored_tenant_changes_nothing,
    remove_virtual_cluster, virtual_cluster_ready, virtual_tenant,
    waiting::{node_of_the_pods_shows_the_budget, tenant_names_refused_pods},
};

const NODE: &str = "gpu-1";
const TEAM: &str = "vc-a";
const RESOURCE: &str = "nvidia.com/mig-1g.10gb";

#[tokio::test]
async fn virtual_cluster_shows_and_keeps_its_budget_and_leaves_nothing() {
    let world = World::attach().await.unwrap();
    world.keeping_evidence("virtual-cluster", async { life(&world).await }).await;
}

async fn life(world: &World) -> Result<()> {
    install(world).await?;
    let team = virtual_tenant(TEAM, &[("mig-1g", 2)]);
    world.set(&[mig_profile("mig-1g", "1g.10gb"), pool("p", NODE, &["mig-1g"]), team]).await?;
    virtual_cluster_ready(world, TEAM).await?;
    tenant_ready(world, TEAM).await?;

    let inside = Inside::open(world, TEAM).await?;
    shows_the_budget(&inside, 2).await?;
    the_catalog_is_shown_and_kept(&inside).await?;
    pods_run_within_the_budget(world, &inside).await?;
    node_of_the_pods_shows_the_budget(&inside, RESOURCE, "2").await?;
    tenant_names_refused_pods(world, TEAM, 1).await?;
    connect_reaches_the_api_server(world, TEAM).await?;
    names_resolve(&inside).await?;
    the_budget_follows_the_tenant(world, &inside).await?;
    tenant_names_refused_pods(world, TEAM, 0).await?;
    restored_tenant_changes_nothing(world, TEAM).await?;
    deletion_with_force_ends_the_pod_on_the_host(world, &inside).await?;
    drop(inside);
    removal_leaves_nothing(world).await
}

/// All nodes inside together show this many devices, and none of the host's other resources.
async fn shows_the_budget(inside: &Inside, devices: i64) -> Result<()> {
    eventually(&format!("nodes inside show {devices} devices"), PATIENCE, || async {
        let nodes = inside.kubectl(&["get", "nodes", "-o", "json"]).await;
        let nodes: Value = match nodes.map(|text| serde_json::from_str(&text)) {
            Ok(Ok(nodes)) => nodes,
            other => return Ok(Err(format!("{other:?}"))),
        };
        let empty = Vec::new();
        let items = nodes["items"].as_array().unwrap_or(&empty);
        let of = |field: &str, resource: &str| -> i64 {
            let amounts = items.iter().filter_map(|n| n["status"][field][resource].as_str()?.parse::<i64>().ok());
            amounts.sum()
        };
        let seen = [of("capacity", RESOURCE), of("allocatable", RESOURCE), of("capacity", "nvidia.com/gpu")];
        Ok(if seen == [devices, devices, 0] { Ok(()) } else { Err(format!("{} nodes: {seen:?}", items.len())) })
    })
    .await
}

/// The catalog lists the team's profile and its runtime class exists; both come back after a deletion.
async fn the_catalog_is_shown_and_kept(inside: &Inside) -> Result<()> {
    let shown = || async {
        let catalog =
            inside.kubectl(&["get", "configmap", "-n", "kube-public", "gputenancy-catalog", "-o", "json"]).await;
        let class = inside.kubectl(&["get", "runtimeclass", "nvidia", "-o", "name"]).await;
        let lists = |text: &String| text.contains(&format!("resource: {RESOURCE}")) && text.contains("count: 2");
        Ok(if catalog.as_ref().is_ok_and(lists) && class.is_ok() {
            Ok(())
        } else {
            Err(format!("{catalog:?}, {class:?}"))
        })
    };
    eventually("the catalog inside", PATIENCE, shown).await?;
    inside.must(&["delete", "configmap", "-n", "kube-public", "gputenancy-catalog"]).await?;
    inside.must(&["delete", "runtimeclass", "nvidia"]).await?;
    eventually("the catalog inside, again", PATIENCE, shown).await
}

async fn pods_run_within_the_budget(world: &World, inside: &Inside) -> Result<()> {
    inside.must(&["create", "namespace", SPACE]).await?;
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "models.team.example"},
        "spec": {"group": "team.example", "scope": "Namespaced", "names": {"plural": "models", "kind": "Model"}, "versions": [
            {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}},
        ]},
    });
    inside.apply(&crd).await.map_err(Error::Wrong)?;
    for name in ["one", "two", "three"] {
        inside.apply(&pod(name, RESOURCE, "1", json!({}))).await.map_err(Error::Wrong)?;
    }
    inside.running(2).await?;
    let held = wait_for_devices(world, &[NODE], 2).await?;
    ensure(held.keys().all(|pod| pod.ends_with("-x-ml-x-vc-a")), format!("devices of synced pods: {held:?}"))?;
    eventually("events inside about the quota, of the host and in the team's words", PATIENCE, || async {
        let events = inside.all_events().await?;
        let says = |words: &str| events.iter().any(|(_, message)| message.contains(words));
        let right = says("exceeded quota: gputenancy") && says("the budget of profile mig-1g is used up: 2 of");
        Ok(if right { Ok(()) } else { Err(format!("{events:?}")) })
    })
    .await?;
    let described = inside.must(&["describe", "nodes"]).await?;
    ensure(described.contains(RESOURCE), described)?;
    shows_the_budget(inside, 2).await
}

/// Services are found by name, through the DNS inside.
async fn names_resolve(inside: &Inside) -> Result<()> {
    let mut spec = restricted_spec(json!({
        "name": "c", "image": "lab.local/busybox:1", "imagePullPolicy": "Never", "command": ["sleep", "3600"],
    }));
    spec["terminationGracePeriodSeconds"] = json!(0);
    let metadata = json!({"name": "dns", "namespace": SPACE});
    inside.set(&[json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})]).await?;
    inside.running(3).await?;
    let service = inside.must(&["get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}"]).await?;
    eventually("the name of the API server inside", PATIENCE, || async {
        let name = "kubernetes.default.svc.cluster.local";
        let answer = inside.kubectl(&["exec", "-n", SPACE, "dns", "--", "nslookup", name]).await;
        Ok(match answer {
            Ok(text) if text.contains(&service) => Ok(()),
            other => Err(format!("{other:?}")),
        })
    })
    .await?;
    inside.must(&["delete", "pod", "-n", SPACE, "dns"]).await.map(drop)
}

async fn the_budget_follows_the_tenant(world: &World, inside: &Inside) -> Result<()> {
    let patch = r#"{"spec": {"gpus": [{"profile": "mig-1g", "count": 3}]}}"#;
    world.kubectl(&["patch", "gputenant", TEAM, "--type=merge", "-p", patch]).await?;
    eventually("a budget of three devices in the status", PATIENCE, || async {
        let tenant = Api::<GpuTenant>::all(world.client.clone()).get(TEAM).await?;
        let budget: i32 = tenant.status.iter().flat_map(|s| &s.gpus).map(|gpu| gpu.budget).sum();
        Ok(if budget == 3 { Ok(()) } else { Err(format!("{budget} devices")) })
    })
    .await?;
    let granted = Instant::now();
    shows_the_budget(inside, 3).await?;
    let seconds = granted.elapsed().as_secs_f64();
    // not through `print!`, which the test harness captures
    let _ = writeln!(std::io::stderr(), "        {seconds:.1} s from the budget in the status to the nodes inside");
    // the third pod was refused by the quota, and starts now
    inside.running(3).await
}

/// A pod with a finalizer that is deleted inside with force ends on the host, which refuses the deletion by the syncer.
async fn deletion_with_force_ends_the_pod_on_the_host(world: &World, inside: &Inside) -> Result<()> {
    const KEEP: &str = r#"{"metadata": {"finalizers": ["team.example/keep"]}}"#;
    const FREE: &str = r#"{"metadata": {"finalizers": null}}"#;
    let host = format!("three-x-{SPACE}-x-{TEAM}");
    inside.must(&["patch", "pod", "-n", SPACE, "three", "--type=merge", "-p", KEEP]).await?;
    inside.must(&["delete", "pod", "-n", SPACE, "three", "--force", "--grace-period=0", "--wait=false"]).await?;
    eventually("the host pod gone, and the pod inside kept by its finalizer", PATIENCE, || async {
        let here = world.kubectl(&["get", "pod", "-n", TEAM, &host, "-o", "name", "--ignore-not-found"]).await?;
        let there = inside.kubectl(&["get", "pod", "-n", SPACE, "three", "-o", "name"]).await;
        Ok(if here.is_empty() && there.is_ok() { Ok(()) } else { Err(format!("{here}, inside {there:?}")) })
    })
    .await?;
    let selector = format!("reason=OrphanedPodDeleted,involvedObject.name={TEAM}");
    eventually("an event about it", PATIENCE, || async {
        let path = "jsonpath={.items[*].message}";
        let events =
            world.kubectl(&["get", "events", "-n", "default", "--field-selector", &selector, "-o", path]).await?;
        Ok(if events.contains(&host) { Ok(()) } else { Err(events) })
    })
    .await?;
    inside.must(&["patch", "pod", "-n", SPACE, "three", "--type=merge", "-p", FREE]).await?;
    inside.running(2).await
}

/// Without the field its virtual cluster goes and the namespace stays; then the tenant goes with the namespace.
async fn removal_leaves_nothing(world: &World) -> Result<()> {
    remove_virtual_cluster(world, TEAM).await?;
    let left = world.labelled("app.kubernetes.io/managed-by=gputenancy-virtual-clusters").await?;
    ensure(left.is_empty(), format!("left: {left:?}"))?;
    for kind in ["statefulsets", "deployments", "services", "persistentvolumeclaims"] {
        let left = world.kubectl(&["get", kind, "-n", TEAM, "-o", "name"]).await?;
        ensure(left.trim().is_empty(), format!("left: {left}"))?;
    }
    let secrets = world.kubectl(&["get", "secrets", "-n", TEAM, "-o", "name"]).await?;
    ensure(!secrets.contains("vc-") && !secrets.contains("kubeconfig"), format!("left: {secrets}"))?;
    tenant_ready(world, TEAM).await?;

    world.kubectl(&["delete", "gputenant", TEAM, "--wait=false"]).await?;
    eventually("the tenant and its namespace gone", START, || async {
        let tenants = world.kubectl(&["get", "gputenants", "-o", "name"]).await?;
        let namespaces = world.kubectl(&["get", "namespaces", TEAM, "-o", "name", "--ignore-not-found"]).await?;
        Ok(if tenants.is_empty() && namespaces.is_empty() { Ok(()) } else { Err(format!("{tenants} {namespaces}")) })
    })
    .await?;
    let left = world.labelled(&format!("gputenancy.io/tenant={TEAM}")).await?;
    ensure(left.is_empty(), format!("left: {left:?}"))
}
