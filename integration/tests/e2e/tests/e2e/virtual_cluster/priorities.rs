//! `PriorityClasses` inside a virtual cluster: a pod gets one that its tenant is granted, and the host's default otherwise. What the team writes inside
//! does not change that.

use e2e::{
    Error, Result, World,
    actor::{Actor, Verb},
    fixtures::{merged, mig_profile, pool},
    objects::ensure,
    scenario::tenant_ready,
    wait::{PATIENCE, eventually},
};
use serde_json::{Value, json};

use super::{Inside, busybox, inside::SPACE, install, virtual_cluster_ready, virtual_tenant};

const TEAM: &str = "vc-p";
/// The syncer's identity on the host.
const SYNCER: Actor = Actor::Account(TEAM, "vc-vc-p");
/// Default class of the host, with its value.
const DEFAULT: (&str, i64) = ("e2e-standard", 10);
/// The class that the tenant is granted.
const GRANTED: (&str, i64) = ("e2e-batch", 1000);
/// A class of the host that no tenant is granted.
const FOREIGN: (&str, i64) = ("e2e-urgent", 2000);
/// A class that exists only inside.
const OWN: (&str, i64) = ("own", 1_000_000);
/// Annotation by which the name of a class gets to the host.
const ANNOTATION: &str = "gputenancy.io/priority-class";

#[tokio::test]
async fn pods_inside_get_the_granted_priority_classes_and_no_others() {
    let world = World::attach().await.unwrap();
    let outcome = priorities(&world).await;
    world.forget_installed();
    // the cleanup between tests deletes objects of tenants only
    for class in [DEFAULT.0, GRANTED.0, FOREIGN.0] {
        world.kubectl(&["delete", "priorityclass", class, "--ignore-not-found"]).await.unwrap();
    }
    world.keeping_evidence("virtual-cluster-priorities", async { outcome }).await;
}

async fn priorities(world: &World) -> Result<()> {
    // the chart reads which class is the default; an earlier test may have installed it with the same values
    let default = merged(class(DEFAULT), json!({"globalDefault": true}));
    world.set(&[default, merged(class(GRANTED), json!({"preemptionPolicy": "Never"})), class(FOREIGN)]).await?;
    world.forget_installed();
    install(world).await?;
    let mut team = virtual_tenant(TEAM, &[("mig-1g", 1)]);
    team["spec"]["priorityClasses"] = json!([GRANTED.0]);
    world.set(&[mig_profile("mig-1g", "1g.10gb"), pool("p", "gpu-1", &["mig-1g"]), team]).await?;
    virtual_cluster_ready(world, TEAM).await?;
    tenant_ready(world, TEAM).await?;
    let inside = Inside::open(world, TEAM).await?;
    inside.must(&["create", "namespace", SPACE]).await?;

    class_inside(&inside, GRANTED.0, Some(GRANTED.1)).await?;
    class_inside(&inside, DEFAULT.0, Some(DEFAULT.1)).await?;
    class_inside(&inside, FOREIGN.0, None).await?;
    names_are_carried(&inside).await?;
    // one of the team, and one with the name of a class of the host
    inside.set(&[class(OWN), class((FOREIGN.0, 5))]).await?;
    let pods = [
        ("granted", Some(GRANTED.0), None, GRANTED),
        ("annotated", None, Some(GRANTED.0), GRANTED),
        ("default", Some(DEFAULT.0), None, DEFAULT),
        ("unnamed", None, None, DEFAULT),
        ("own", Some(OWN.0), None, DEFAULT),
        ("foreign", Some(FOREIGN.0), None, DEFAULT),
        ("forged", None, Some(FOREIGN.0), DEFAULT),
        ("forged-system", Some(OWN.0), Some("system-node-critical"), DEFAULT),
        ("system", Some("system-node-critical"), None, DEFAULT),
    ];
    let objects: Vec<Value> = pods.iter().map(|(name, class, note, _)| pod(name, *class, *note)).collect();
    inside.set(&objects).await?;
    inside.running(pods.len()).await?;
    for (name, _, _, expected) in pods {
        has_priority(world, name, expected).await?;
    }
    the_grant_is_removed(world, &inside, pods.len()).await
}

/// Without its grant the class is gone inside, and new pods get the default of the host, also by a class of that name that the team makes.
async fn the_grant_is_removed(world: &World, inside: &Inside, running: usize) -> Result<()> {
    let none = r#"{"spec": {"priorityClasses": null}}"#;
    world.kubectl(&["patch", "gputenant", TEAM, "--type=merge", "-p", none]).await?;
    class_inside(inside, GRANTED.0, None).await?;
    let refused = inside.apply(&pod("refused", Some(GRANTED.0), None)).await;
    ensure(
        refused.as_ref().is_err_and(|error| error.contains("no PriorityClass with name")),
        format!("a pod with a class that is gone: {refused:?}"),
    )?;
    the_host_ignores(world, GRANTED.0).await?;
    inside.set(&[class((GRANTED.0, 2_000_000))]).await?;
    let pods = [pod("later", Some(GRANTED.0), None), pod("later-annotated", None, Some(GRANTED.0))];
    inside.set(&pods).await?;
    inside.running(running + pods.len()).await?;
    has_priority(world, "later", DEFAULT).await?;
    has_priority(world, "later-annotated", DEFAULT).await?;
    // one that exists keeps what it has
    has_priority(world, "granted", GRANTED).await?;
    // the team's own is not touched
    class_inside(inside, GRANTED.0, Some(2_000_000)).await
}

fn class((name, value): (&str, i64)) -> Value {
    json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value})
}

/// A pod with this class, and with this one in its annotation.
fn pod(name: &str, class: Option<&str>, annotation: Option<&str>) -> Value {
    let mut pod = busybox(SPACE, name, "sleep 3600");
    if let Some(class) = class {
        pod["spec"]["priorityClassName"] = json!(class);
    }
    if let Some(class) = annotation {
        pod["metadata"]["annotations"] = json!({ANNOTATION: class});
    }
    pod
}

/// Waits until the class has this value inside, or does not exist there.
async fn class_inside(inside: &Inside, name: &str, value: Option<i64>) -> Result<()> {
    let expected = value.map(|value| value.to_string()).unwrap_or_default();
    eventually(&format!("PriorityClass {name} inside: {value:?}"), PATIENCE, || async {
        let path = "jsonpath={.value}";
        let seen = inside.kubectl(&["get", "priorityclass", name, "--ignore-not-found", "-o", path]).await;
        Ok(if seen.as_ref() == Ok(&expected) { Ok(()) } else { Err(format!("{seen:?}")) })
    })
    .await
}

/// Waits until the policy inside writes the names of classes into pods: its API server enforces it a moment after it exists.
async fn names_are_carried(inside: &Inside) -> Result<()> {
    let named = json!({"spec": pod("trial", Some(GRANTED.0), None)["spec"]}).to_string();
    eventually("the policy inside", PATIENCE, || async {
        let trial =
            ["run", "trial", "-n", SPACE, "--image=i", "--dry-run=server", "-o", "jsonpath={.metadata.annotations}"];
        let notes = inside.kubectl(&[&trial[..], &["--overrides", named.as_str()]].concat()).await;
        let carried = notes.as_ref().is_ok_and(|notes| notes.contains(ANNOTATION) && notes.contains(GRANTED.0));
        Ok(if carried { Ok(()) } else { Err(format!("{notes:?}")) })
    })
    .await
}

/// Waits until the host does not set this class for pods of the syncer any more: its API server reads the grant a moment later.
async fn the_host_ignores(world: &World, class: &str) -> Result<()> {
    let mut pod = pod("trial", None, Some(class));
    pod["metadata"]["namespace"] = json!(TEAM);
    pod["metadata"]["labels"] = json!({"vcluster.loft.sh/managed-by": TEAM});
    let path = format!("/api/v1/namespaces/{TEAM}/pods");
    eventually(&format!("the host to ignore {class}"), PATIENCE, || async {
        let answer = SYNCER.may(&world.client, Verb::Create, &path, &pod).await?;
        Ok(match answer {
            Ok(pod) if pod["spec"]["priorityClassName"] == DEFAULT.0 => Ok(()),
            Ok(pod) => Err(pod["spec"]["priorityClassName"].to_string()),
            Err(status) => Err(status.message),
        })
    })
    .await
}

/// The pod on the host has the class, value and preemption policy of the host.
async fn has_priority(world: &World, name: &str, (class, value): (&str, i64)) -> Result<()> {
    let host = format!("{name}-x-{SPACE}-x-{TEAM}");
    let pod = world.kubectl(&["get", "pod", "-n", TEAM, &host, "-o", "json"]).await?;
    let pod: Value = serde_json::from_str(&pod).map_err(|error| Error::Wrong(error.to_string()))?;
    let spec = &pod["spec"];
    let seen = (&spec["priorityClassName"], &spec["priority"], &spec["preemptionPolicy"]);
    let preemption = if class == GRANTED.0 { "Never" } else { "PreemptLowerPriority" };
    ensure(
        seen == (&json!(class), &json!(value), &json!(preemption)),
        format!("{name}: expected {class}, got {seen:?}"),
    )
}
