//! The rest of `integration/bypass`, written inside a virtual cluster while neither operator nor controller runs: lists of a tenant, batch
//! schedulers, and claims. Each is refused with its own text, or has no effect for the reason that its manifest states ([`INSIDE`]).

use e2e::{
    Error, Result, World,
    fixtures::{merged, mig_profile, pool},
    objects::ensure,
    product,
    scenario::tenant_ready,
    wait::{PATIENCE, eventually},
};
use serde_json::{Value, json};

use super::hostile::{Cases, TEAM, admitted_by_pod_security};
use crate::virtual_cluster::{Inside, busybox, inside::SPACE, install, scale, virtual_cluster_ready, virtual_tenant};
use e2e::manifests::{manifests, refusal};

/// Annotation of a manifest: why it has no effect when it is written inside.
const INSIDE: &str = "gputenancy.io/no-effect-inside";
const FILES: [&str; 4] = ["namespaces.yaml", "batch-schedulers.yaml", "claims.yaml", "claims-v1beta1.yaml"];
/// What the syncer makes on the host, and what it does not.
const KINDS: &str = "pods,services,ingresses.networking.k8s.io,persistentvolumeclaims,configmaps,resourceclaims,resourceclaimtemplates,jobs,statefulsets,deployments";
const SCHEDULERS: &str = "policies.schedulerNames={default-scheduler,kai-scheduler,volcano}";

#[tokio::test]
async fn bypasses_written_inside_are_refused_or_have_no_effect_on_the_host() {
    let world = World::attach().await.unwrap();
    let outcome = bypasses(&world).await;
    // also after a failure: the next test needs both
    scale(&world, "gputenancy-operator", 2).await.unwrap();
    scale(&world, "gputenancy-virtual-clusters", 1).await.unwrap();
    world.keeping_evidence("virtual-cluster-bypasses", async { outcome }).await;
}

async fn bypasses(world: &World) -> Result<()> {
    let inside = team(world).await?;
    for deployment in ["gputenancy-operator", "gputenancy-virtual-clusters"] {
        scale(world, deployment, 0).await?;
    }
    let mut cases = Cases::default();
    let written = write(world, &inside).await?;
    refused(&inside, &written, &mut cases).await?;
    without_effect(world, &written, &mut cases).await?;
    absent(world, &written, &mut cases).await?;
    pods_with_claims_do_not_run(world, &inside, &written, &mut cases).await?;
    labels_given_later(world, &inside, &mut cases).await?;
    cases.all_held(120)
}

/// The team of `integration/bypass`, administrator inside, with a pod that runs.
async fn team(world: &World) -> Result<Inside> {
    install(world).await?;
    let flags = ["--reset-then-reuse-values", "--force-conflicts"];
    product::install_with(&world.lab, &[SCHEDULERS], &flags).await?;
    let mut slice = mig_profile("mig-1g", "1g.10gb");
    slice["spec"]["maxPerPod"] = json!(1);
    let mut team = virtual_tenant(TEAM, &[("mig-1g", 2)]);
    let lists = json!({
        "priorityClasses": ["batch"], "queues": ["team-t"], "ingressHosts": ["t.example.com", "*.t.example.com"],
        // the images of the lab's own pods, too
        "imageRegistries": ["docker.io/library", "registry.example.com:5000/t", "lab.local"],
    });
    team["spec"] = merged(team["spec"].take(), lists);
    team["spec"]["virtualCluster"]["values"] = json!({"sync": {"toHost": {"ingresses": {"enabled": true}}}});
    world.set(&[slice, pool("p", "gpu-1", &["mig-1g"]), team]).await?;
    virtual_cluster_ready(world, TEAM).await?;
    tenant_ready(world, TEAM).await?;
    let inside = Inside::open(world, TEAM).await?;
    inside.must(&["create", "namespace", SPACE]).await?;
    inside.set(&[busybox(SPACE, "probe", "sleep 3600")]).await?;
    inside.running(1).await?;
    Ok(inside)
}

/// A manifest that was written inside.
struct Written {
    object: Value,
    name: String,
    kind: String,
    /// Text of its refusal on the host.
    words: String,
    /// The answer inside, if it was refused there.
    error: Option<String>,
}

impl Written {
    fn harmless(&self) -> bool {
        self.object["metadata"]["annotations"][INSIDE].is_string()
    }

    fn what(&self) -> String {
        format!("{} {}", self.kind, self.name)
    }
}

/// Writes all manifests inside, one by one. Pods have what the Pod Security Standard asks for, so that it is not what refuses them.
async fn write(world: &World, inside: &Inside) -> Result<Vec<Written>> {
    let mut all = Vec::new();
    for file in FILES {
        for mut object in manifests(world, file).await? {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let (name, kind) = (text(&object["metadata"]["name"]), text(&object["kind"]));
            object["metadata"]["namespace"] = json!(SPACE);
            if kind == "Pod" {
                admitted_by_pod_security(&mut object);
            } else if let Some(template) = object.pointer_mut("/spec/template") {
                admitted_by_pod_security(template);
            }
            let words = refusal(&object).ok_or_else(|| Error::Wrong(format!("{name} has no text of its refusal")))?;
            let error = inside.apply(&object).await.err();
            all.push(Written { object, name, kind, words, error });
        }
    }
    ensure(all.len() >= 75, format!("{} manifests", all.len()))?;
    let harmless = all.iter().filter(|w| w.harmless()).count();
    ensure(all.len() - harmless >= 40, format!("{harmless} of {} manifests are harmless", all.len()))?;
    Ok(all)
}

/// Each of the others is refused with its text: as the answer inside, or in an event of the object inside.
async fn refused(inside: &Inside, written: &[Written], cases: &mut Cases) -> Result<()> {
    let judged: Vec<&Written> = written.iter().filter(|w| !w.harmless()).collect();
    let words = |w: &Written, events: &[(String, String)]| -> Vec<String> {
        let of = events.iter().filter(|(object, _)| *object == w.name).map(|(_, message)| message.clone());
        w.error.iter().cloned().chain(of).collect()
    };
    let said = |w: &Written, events: &[(String, String)]| words(w, events).iter().any(|text| text.contains(&w.words));
    // what is silent is a case below
    let waited = eventually("the text of each refusal inside", PATIENCE, || async {
        let events = inside.all_events().await?;
        let silent: Vec<&str> = judged.iter().filter(|w| !said(w, &events)).map(|w| w.name.as_str()).collect();
        Ok(if silent.is_empty() { Ok(()) } else { Err(silent.join(" ")) })
    });
    drop(waited.await);
    let events = inside.all_events().await?;
    for w in judged {
        cases.check(&format!("{} refused with {:?}", w.what(), w.words), said(w, &events), words(w, &events));
    }
    Ok(())
}

/// The objects of the team's namespace on the host.
async fn on_host(world: &World) -> Result<Vec<Value>> {
    let text = world.kubectl(&["get", KINDS, "-n", TEAM, "-o", "json"]).await?;
    let list: Value = serde_json::from_str(&text).map_err(|error| Error::Wrong(error.to_string()))?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

/// Name inside of a synced object.
fn name_inside(object: &Value) -> &str {
    object["metadata"]["annotations"]["vcluster.loft.sh/object-name"].as_str().unwrap_or_default()
}

/// Nothing of what is refused, and nothing that stays inside, is on the host, where all that has no effect has arrived before.
async fn absent(world: &World, written: &[Written], cases: &mut Cases) -> Result<()> {
    let host = on_host(world).await?;
    let arrives = |w: &Written| w.harmless() && ["Pod", "Ingress"].contains(&w.kind.as_str());
    for w in written.iter().filter(|w| !arrives(w)) {
        let there = host.iter().filter(|object| object["kind"] == w.kind.as_str());
        let same = |object: &&Value| name_inside(object) == w.name || object["metadata"]["name"] == w.name.as_str();
        let found: Vec<&Value> = there.filter(same).collect();
        cases.check(&format!("{} on the host", w.what()), found.is_empty(), found);
    }
    let claims: Vec<&Value> =
        host.iter().filter(|o| o["kind"].as_str().is_some_and(|k| k.starts_with("ResourceClaim"))).collect();
    cases.check("claims of devices on the host", claims.is_empty(), claims);
    Ok(())
}

/// What has no effect is on the host without what makes it a bypass there, or stays inside.
async fn without_effect(world: &World, written: &[Written], cases: &mut Cases) -> Result<()> {
    let harmless: Vec<&Written> = written.iter().filter(|w| w.harmless()).collect();
    // the pods of a DaemonSet are refused, and claims stay inside: see `absent`
    let arrives = |w: &&&Written| w.kind != "DaemonSet" && !w.kind.starts_with("ResourceClaim");
    let made_of = |w: &Written, object: &Value| match w.kind.as_str() {
        "Pod" | "Ingress" => object["kind"] == w.kind.as_str() && name_inside(object) == w.name,
        _ => object["kind"] == "Pod" && name_inside(object).starts_with(&format!("{}-", w.name)),
    };
    // what does not arrive is a case below
    let waited = eventually("what has no effect on the host", PATIENCE, || async {
        let host = on_host(world).await?;
        let all = harmless.iter().filter(arrives).all(|w| host.iter().any(|object| made_of(w, object)));
        Ok(if all { Ok(()) } else { Err(String::new()) })
    });
    drop(waited.await);
    let host = on_host(world).await?;
    for w in harmless {
        let what = format!("{} without effect", w.what());
        if w.kind.starts_with("ResourceClaim") {
            // Kubernetes inside knows no such version, or asks for a label of the namespace there
            let own = ["no matches for kind", "admin access to devices requires the"];
            let harmless = w.error.as_ref().is_none_or(|error| own.iter().any(|text| error.contains(text)));
            cases.check(&what, harmless, &w.error);
            continue;
        }
        let made: Vec<&Value> = host.iter().filter(|object| made_of(w, object)).collect();
        let right = if w.kind == "DaemonSet" {
            made.is_empty()
        } else {
            !made.is_empty() && made.iter().all(|object| has_no_effect(w, object))
        };
        cases.check(&what, right, (&w.error, made));
    }
    Ok(())
}

/// The object that the syncer has made of this one is no bypass.
fn has_no_effect(w: &Written, object: &Value) -> bool {
    match w.kind.as_str() {
        "Pod" => {
            let containers = object["spec"]["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
            let resources = |c: &Value| c["resources"]["limits"].as_object().cloned().unwrap_or_default();
            !containers.iter().flat_map(resources).any(|(resource, _)| resource.starts_with("nvidia.com/"))
        }
        "Ingress" => {
            let notes = object["metadata"]["annotations"].as_object();
            let secrets = notes.into_iter().flatten().filter(|(key, _)| key.ends_with("-secret"));
            let values: Vec<&str> = secrets.filter_map(|(_, value)| value.as_str()).collect();
            !values.is_empty() && values.iter().all(|value| value.starts_with(&format!("{TEAM}/")))
        }
        // a controller that stays inside: its labels are not those of its pods
        _ => {
            let labels = w.object["metadata"]["labels"].as_object();
            labels.is_some_and(|all| all.iter().all(|(key, value)| object["metadata"]["labels"][key] != *value))
        }
    }
}

/// A pod that names one of the claims inside does not run: the host has no claim of that name.
async fn pods_with_claims_do_not_run(
    world: &World,
    inside: &Inside,
    written: &[Written],
    cases: &mut Cases,
) -> Result<()> {
    let claims = written.iter().filter(|w| w.kind.starts_with("ResourceClaim") && w.error.is_none());
    let claims: Vec<(String, &str)> = claims
        .map(|w| {
            let field = if w.kind == "ResourceClaim" { "resourceClaimName" } else { "resourceClaimTemplateName" };
            (w.name.clone(), field)
        })
        .collect();
    ensure(claims.len() >= 15, format!("{} claims", claims.len()))?;
    let pods: Vec<Value> = claims
        .iter()
        .map(|(claim, field)| {
            let mut pod = busybox(SPACE, &format!("with-{claim}"), "sleep 3600");
            pod["spec"]["resourceClaims"] = json!([{"name": "d", (*field): claim}]);
            pod["spec"]["containers"][0]["resources"] = json!({"claims": [{"name": "d"}]});
            pod
        })
        .collect();
    inside.set(&pods).await?;
    // made after them, and runs
    inside.set(&[busybox(SPACE, "later", "sleep 3600")]).await?;
    inside.must(&["wait", "--for=condition=Ready", "pod/later", "-n", SPACE, "--timeout=4m"]).await?;
    let host = on_host(world).await?;
    for (claim, _) in &claims {
        let name = format!("with-{claim}");
        let node = host.iter().filter(|o| o["kind"] == "Pod" && name_inside(o) == name).map(|o| &o["spec"]["nodeName"]);
        let node: Vec<&Value> = node.filter(|node| node.is_string()).collect();
        cases.check(&format!("pod {name} on a node"), node.is_empty(), node);
    }
    let made: Vec<&Value> = host.iter().filter(|o| o["kind"] == "ResourceClaim").collect();
    cases.check("claims of these pods on the host", made.is_empty(), made);
    Ok(())
}

/// A pod in the team's queue goes to no other one by a label or annotation that it gets later.
async fn labels_given_later(world: &World, inside: &Inside, cases: &mut Cases) -> Result<()> {
    let mut queued = busybox(SPACE, "queued", "sleep 3600");
    queued["spec"]["schedulerName"] = json!("volcano");
    queued["metadata"]["annotations"] = json!({"scheduling.volcano.sh/queue-name": "team-t"});
    let mut labelled = busybox(SPACE, "labelled", "sleep 3600");
    labelled["spec"]["schedulerName"] = json!("kai-scheduler");
    labelled["metadata"]["labels"] = json!({"kai.scheduler/queue": "team-t"});
    inside.set(&[queued, labelled]).await?;
    let arrived = |name: &'static str| async move {
        let host = on_host(world).await?;
        let found = host.into_iter().find(|o| o["kind"] == "Pod" && name_inside(o) == name);
        Ok(found.ok_or_else(|| "not there".to_owned()))
    };
    for (name, patch, words, at, kept) in [
        (
            "queued",
            json!({"annotations": {"scheduling.volcano.sh/queue-name": "team-x"}}),
            "names a queue that tenant t may not use",
            "/metadata/annotations/scheduling.volcano.sh~1queue-name",
            "team-t",
        ),
        (
            "labelled",
            json!({"labels": {"kai.scheduler/queue": "team-x"}}),
            "team-x",
            "/metadata/labels/kai.scheduler~1queue",
            "team-t",
        ),
    ] {
        eventually(&format!("{name} on the host"), PATIENCE, || arrived(name)).await?;
        let patch = json!({"metadata": patch}).to_string();
        inside.must(&["patch", "pod", "-n", SPACE, name, "--type=merge", "-p", &patch]).await?;
        let said = inside.event(name, words).await.map_err(|error| error.to_string());
        cases.check(&format!("later queue of {name} refused"), said.is_ok(), said);
        let pod = eventually(&format!("{name} on the host"), PATIENCE, || arrived(name)).await?;
        let queue = pod.pointer(at).cloned().unwrap_or_default();
        cases.check(&format!("queue of {name} on the host"), queue == kept, queue);
    }
    Ok(())
}
