//! What happens to a virtual cluster under changes from outside, kills of operator and controller, and a layout change under a pod from inside.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use e2e::{
    Error, Result, World,
    fixtures::{deployment, mig_profile, pod_spec, pool, restricted_spec, tenant},
    objects::{ensure, set_guarantee},
    scenario::{instances_ready, pool_ready, tenant_ready, wait_for_devices},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::GpuTenant;
use kube::Api;
use serde_json::{Value, json};

use super::killer::Killer;
use crate::virtual_cluster::{
    Inside, START, inside::SPACE, install, versions::chart, virtual_cluster_ready, virtual_tenant,
};

const TEAM: &str = "vc-d";

#[tokio::test]
async fn changes_are_repaired_and_kills_survived() {
    let world = World::attach().await.unwrap();
    let body = async {
        install(&world).await?;
        let before = objects(&world).await?;
        let killer = Killer::start(&world);
        world.set(&[virtual_tenant(TEAM, &[])]).await?;
        virtual_cluster_ready(&world, TEAM).await?;
        killer.stop("creation")?;
        serves_again(&world).await?;
        objects_are_helms(&world).await?;
        changes_are_repaired(&world).await?;

        let killer = Killer::start(&world);
        change_of_values(&world, &killer).await?;
        killer.stop("the change of values")?;
        serves_again(&world).await?;

        let killer = Killer::start(&world);
        world.kubectl(&["delete", "gputenant", TEAM, "--wait=false"]).await?;
        eventually("the tenant gone", START, || async {
            let left = world.kubectl(&["get", "gputenants,namespaces", "-o", "name"]).await?;
            Ok(if left.contains(TEAM) { Err(left) } else { Ok(()) })
        })
        .await?;
        killer.stop("deletion")?;
        let after = objects(&world).await?;
        let left: Vec<&String> = after.difference(&before).collect();
        ensure(left.is_empty(), format!("left after deletion: {left:?}"))
    };
    world.keeping_evidence("virtual-cluster-disruption", body).await;
}

/// All objects of the cluster but those that come and go by themselves.
async fn objects(world: &World) -> Result<BTreeSet<String>> {
    let kinds = world.kubectl(&["api-resources", "--verbs=list", "-o", "name"]).await?;
    let passing = ["events", "leases", "pods", "endpointslices", "metrics.k8s.io"];
    let kinds: Vec<&str> =
        kinds.lines().filter(|k| !passing.iter().any(|p| k.starts_with(p) || k.contains(p))).collect();
    let path = "jsonpath={range .items[*]}{.kind} {.metadata.namespace}/{.metadata.name}{'\\n'}{end}";
    let found = world.kubectl(&["get", &kinds.join(","), "-A", "-o", path, "--ignore-not-found"]).await?;
    let pods =
        world.kubectl(&["get", "pods,endpointslices,leases", "-n", TEAM, "-o", path, "--ignore-not-found"]).await?;
    Ok(found.lines().chain(pods.lines()).map(str::to_owned).collect())
}

/// A pod without a GPU.
fn sleeper(name: &str) -> Value {
    let mut spec = restricted_spec(json!({
        "name": "c", "image": "lab.local/busybox:1", "imagePullPolicy": "Never", "command": ["sleep", "3600"],
    }));
    spec["terminationGracePeriodSeconds"] = json!(0);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": SPACE}, "spec": spec})
}

/// Every object of the chart's is on the host with all its fields: the output of `helm template` with the values in the Secret of the live one.
async fn objects_are_helms(world: &World) -> Result<()> {
    let template = "go-template={{index .data \"config.yaml\" | base64decode}}";
    let values = world.kubectl(&["get", "secret", "-n", TEAM, &format!("vc-config-{TEAM}"), "-o", template]).await?;
    let rendered = chart::template(world, TEAM, &values).await?;
    for object in &rendered {
        let kind = object["kind"].as_str().unwrap_or_default();
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let live = world.kubectl(&["get", kind, "-n", TEAM, name, "-o", "json"]).await?;
        let live: Value = serde_json::from_str(&live).map_err(|e| Error::Wrong(e.to_string()))?;
        if let Some(difference) = difference(object, &live, "") {
            return Err(Error::Wrong(format!("{kind} {name}: {difference}")));
        }
    }
    let ours = world
        .kubectl(&[
            "get",
            "serviceaccounts,secrets,configmaps,roles,rolebindings,services,statefulsets,deployments",
            "-n",
            TEAM,
            "-l",
            "app.kubernetes.io/managed-by=gputenancy-virtual-clusters",
            "-o",
            "name",
        ])
        .await?;
    let ours: Vec<&str> = ours.lines().filter(|name| !name.ends_with("gputenancy-kubeconfig")).collect();
    ensure(ours.len() == rendered.len(), format!("{} objects are helm's, and these are here: {ours:?}", rendered.len()))
}

/// The first field that helm rendered and the live object has not, or has otherwise. Quantities are written in more than one way.
fn difference(rendered: &Value, live: &Value, at: &str) -> Option<String> {
    match (rendered, live) {
        (Value::Object(rendered), Value::Object(live)) => rendered
            .iter()
            .find_map(|(key, value)| difference(value, live.get(key).unwrap_or(&Value::Null), &format!("{at}.{key}"))),
        (Value::Array(rendered), Value::Array(live)) if rendered.len() == live.len() => {
            rendered.iter().zip(live).enumerate().find_map(|(i, (r, l))| difference(r, l, &format!("{at}[{i}]")))
        }
        // what is empty is left out
        (rendered, Value::Null) if is_empty(rendered) => None,
        (Value::Null, _) => None,
        _ if at.contains(".resources.") => live.is_null().then(|| format!("{at}: {rendered} is missing")),
        _ => (rendered != live).then(|| format!("{at}: helm {rendered}, live {live}")),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Array(all) => all.is_empty(),
        Value::Object(all) => all.is_empty(),
        Value::Bool(true) | Value::String(_) => false,
    }
}

async fn changes_are_repaired(world: &World) -> Result<()> {
    let secret = format!("vc-config-{TEAM}");
    let role = format!("vc-{TEAM}");
    let workload =
        world.kubectl(&["get", "deployments,statefulsets", "-n", TEAM, "-l", "app=vcluster", "-o", "name"]).await?;
    let workload = workload.trim().to_owned();
    let read =
        |what: &'static [&'static str]| async move { world.kubectl(&[&["get", "-n", TEAM], what].concat()).await };
    let config = read(&["secret", "vc-config-vc-d", "-o", "jsonpath={.data}"]).await?;
    let before = repairs(world).await?;
    world.kubectl(&["label", "service", "-n", TEAM, TEAM, "app=other", "--overwrite"]).await?;
    world.kubectl(&["delete", "role", "-n", TEAM, &role]).await?;
    world
        .kubectl(&[
            "patch",
            "secret",
            "-n",
            TEAM,
            &secret,
            "--type=merge",
            "-p",
            r#"{"data": {"config.yaml": "e30="}}"#,
        ])
        .await?;
    world.kubectl(&["scale", "-n", TEAM, &workload, "--replicas=0"]).await?;
    eventually("label, Role, Secret and replicas back", PATIENCE, || async {
        let label = read(&["service", TEAM, "-o", "jsonpath={.metadata.labels.app}"]).await?;
        let role = read(&["role", "vc-vc-d", "-o", "name", "--ignore-not-found"]).await?;
        let data = read(&["secret", "vc-config-vc-d", "-o", "jsonpath={.data}"]).await?;
        let replicas = world.kubectl(&["get", "-n", TEAM, &workload, "-o", "jsonpath={.spec.replicas}"]).await?;
        let right = label == "vcluster" && !role.is_empty() && data == config && replicas == "1";
        Ok(if right { Ok(()) } else { Err(format!("{label:?} {role:?} {replicas:?}, Secret {}", data == config)) })
    })
    .await?;
    let scaled = workload.replace("deployment.apps/", "Deployment ").replace("statefulset.apps/", "StatefulSet ");
    for object in ["Role vc-vc-d", "Secret vc-config-vc-d", "Service vc-d", &scaled] {
        repair_reported(world, &before, object).await?;
    }
    serves_again(world).await?;
    let before = repairs(world).await?;
    // the garbage collector deletes what the syncer has made, since the Service owns it
    world.kubectl(&["delete", "service", "-n", TEAM, TEAM]).await?;
    eventually("the Service back", PATIENCE, || async {
        let there = read(&["service", TEAM, "-o", "name", "--ignore-not-found"]).await?;
        Ok(if there.is_empty() { Err("gone".into()) } else { Ok(()) })
    })
    .await?;
    repair_reported(world, &before, "Service vc-d").await?;
    serves_again(world).await
}

/// Names and messages of the events about repairs.
async fn repairs(world: &World) -> Result<BTreeSet<String>> {
    let path = "jsonpath={range .items[*]}{.metadata.name} {.message}{'\\n'}{end}";
    let selector = format!("reason=VirtualClusterRepaired,involvedObject.name={TEAM}");
    let events = world.kubectl(&["get", "events", "-n", "default", "--field-selector", &selector, "-o", path]).await?;
    Ok(events.lines().map(str::to_owned).collect())
}

/// Waits for an event of a repair of this object, which is none of those before.
async fn repair_reported(world: &World, before: &BTreeSet<String>, object: &str) -> Result<()> {
    eventually(&format!("an event of the repair of {object}"), PATIENCE, || async {
        let events = repairs(world).await?;
        let found = events.difference(before).any(|event| event.contains(&format!("{object},")));
        Ok(if found { Ok(()) } else { Err(format!("{events:?}")) })
    })
    .await
}

/// The virtual cluster answers, and pods made inside start.
async fn serves_again(world: &World) -> Result<()> {
    virtual_cluster_ready(world, TEAM).await?;
    // Without a volume, a new pod of the control plane starts empty and with other keys, and the old one may still answer: what was made there is
    // gone. A pod that is collected as the dependent of a former Service would go again.
    let space = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}});
    let made = json!({"apiVersion": "v1", "kind": "List", "items": [space, sleeper("new")]});
    let own = format!("new-x-{SPACE}-x-{TEAM}");
    let state = "jsonpath={.metadata.ownerReferences[0].uid} {.status.phase}";
    eventually("a pod made inside to run, as a dependent of the present Service", START, || async {
        let inside = match Inside::open_within(world, TEAM, Duration::from_secs(20)).await {
            Ok(inside) => inside,
            Err(error) => return Ok(Err(error.to_string())),
        };
        if let Err(error) = inside.apply(&made).await {
            return Ok(Err(error));
        }
        let pod = world.kubectl(&["get", "pod", "-n", TEAM, &own, "-o", state, "--ignore-not-found"]).await?;
        let service = world.kubectl(&["get", "service", "-n", TEAM, TEAM, "-o", "jsonpath={.metadata.uid}"]).await?;
        let runs = pod == format!("{service} Running");
        Ok(if runs { Ok(()) } else { Err(format!("the pod {own} is {pod}, and the Service is {service}")) })
    })
    .await?;
    Inside::open(world, TEAM).await?.must(&["delete", "pod", "-n", SPACE, "new"]).await.map(drop)
}

/// A change of values makes a new pod of the control plane.
async fn change_of_values(world: &World, killer: &Killer) -> Result<()> {
    let change = json!({"spec": {"virtualCluster": {"values": {"controlPlane": {"statefulSet": {"annotations": {"team.example/note": "changed"}}}}}}});
    let change = change.to_string();
    world.kubectl(&["patch", "gputenant", TEAM, "--type=merge", "-p", &change]).await?;
    eventually("the changed value on the workload", START, || async {
        let path = "jsonpath={.items[*].metadata.annotations.team\\.example/note}";
        let note =
            world.kubectl(&["get", "deployments,statefulsets", "-n", TEAM, "-l", "app=vcluster", "-o", path]).await?;
        Ok(if note.trim() == "changed" { Ok(()) } else { Err(note) })
    })
    .await?;
    // also in the reconciles that follow
    killer.more_kills_of_controller(2).await?;
    virtual_cluster_ready(world, TEAM).await
}

#[tokio::test]
async fn layout_change_moves_a_pod_from_inside_and_says_so_there() {
    let world = World::attach().await.unwrap();
    world.keeping_evidence("virtual-cluster-layout", layout_change(&world)).await;
}

const SMALL: &str = "small";
const RESOURCE: &str = "nvidia.com/mig-1g.10gb";

async fn layout_change(world: &World) -> Result<()> {
    install(world).await?;
    world.set(&[mig_profile("mig-1g", "1g.10gb"), mig_profile("mig-3g", "3g.40gb")]).await?;
    let mut fill = pool("p", "gpu-1", &["mig-1g", "mig-3g"]);
    fill["spec"]["layout"] = json!({"spare": {"policy": "Fill", "profile": "mig-1g"}});
    world.set(&[fill, virtual_tenant(SMALL, &[("mig-1g", 14)]), tenant("big", &[("mig-3g", 0)])]).await?;
    virtual_cluster_ready(world, SMALL).await?;
    tenant_ready(world, SMALL).await?;
    pool_ready(world, "p").await?;
    let inside = Inside::open(world, SMALL).await?;
    inside.must(&["create", "namespace", SPACE]).await?;
    inside.set(&[deployment(SPACE, "w", 14, &pod_spec(RESOURCE))]).await?;
    inside.running(14).await?;
    let held = wait_for_devices(world, &["gpu-1"], 14).await?;
    // one pod stays on each GPU
    let keep = |gpu: i32| held.iter().find(|(_, (_, g, _))| *g == gpu).map(|(pod, _)| pod.clone());
    let (Some(first), Some(second)) = (keep(0), keep(1)) else {
        return Err(Error::Wrong(format!("pods on both GPUs: {held:?}")));
    };
    let virtual_name = |host: &str| host.trim_end_matches(&format!("-x-{SPACE}-x-{SMALL}")).to_owned();
    for pod in held.keys().filter(|p| **p != first && **p != second) {
        let cost = "controller.kubernetes.io/pod-deletion-cost=-100";
        inside.must(&["annotate", "pod", "-n", SPACE, &virtual_name(pod), cost]).await?;
    }
    inside.must(&["scale", "deployment", "-n", SPACE, "w", "--replicas=2"]).await?;
    wait_for_devices(world, &["gpu-1"], 2).await?;
    let before = two_pods(&inside).await?;
    set_guarantee(&world.client, SMALL, "mig-1g", 2).await?;
    set_guarantee(&world.client, "big", "mig-3g", 3).await?;
    instances_ready(world, "3g.40gb", 3).await?;
    inside.running(2).await?;
    let after = two_pods(&inside).await?;
    let moved: Vec<&String> = before.keys().filter(|name| !after.contains_key(*name)).collect();
    ensure(moved.len() == 1, format!("one pod moves, the other stays: before {before:?}, after {after:?}"))?;
    let moved = moved[0].clone();
    eventually("the announced change and the removed device as events inside", PATIENCE, || async {
        let events = inside.all_events().await?;
        let about: Vec<&String> =
            events.iter().filter(|(name, _)| *name == moved).map(|(_, message)| message).collect();
        let says = |words: &str| about.iter().any(|message| message.contains(words));
        let right = says("because 3 of mig-3g are guaranteed and 1 exists") && says("is removed");
        Ok(if right { Ok(()) } else { Err(format!("{about:?}")) })
    })
    .await?;
    let tenant = Api::<GpuTenant>::all(world.client.clone()).get(SMALL).await?;
    let used: i32 = tenant.status.iter().flat_map(|s| &s.gpus).map(|g| g.used).sum();
    ensure(used == 2, format!("{used} devices in use"))
}

/// Waits for two pods inside: one that ends is deleted there after its device is free.
async fn two_pods(inside: &Inside) -> Result<BTreeMap<String, String>> {
    eventually("two pods inside", PATIENCE, || async {
        let pods = uids(inside).await?;
        Ok(if pods.len() == 2 { Ok(pods) } else { Err(format!("{pods:?}")) })
    })
    .await
}

/// Names and uids of the pods inside.
async fn uids(inside: &Inside) -> Result<BTreeMap<String, String>> {
    let path = "jsonpath={range .items[*]}{.metadata.name} {.metadata.uid}{'\\n'}{end}";
    let pods = inside.must(&["get", "pods", "-n", SPACE, "-o", path]).await?;
    Ok(pods.lines().filter_map(|l| l.split_once(' ')).map(|(name, uid)| (name.to_owned(), uid.to_owned())).collect())
}
