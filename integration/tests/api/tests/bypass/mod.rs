//! Admission policies while no operator runs: every bypass of a team's grant is refused with its reason, and usual workloads are
//! admitted unchanged.

mod claims;
mod cordons;
mod other_products;
mod plugins;
mod unmanaged_namespaces;

use e2e::{
    Error, Result, World,
    actor::{Actor, Verb},
    fixtures::{merged, mig_profile, pool, tenant},
    manifests::{REFUSED, manifests, pod_of, refusal},
    objects::{self, ensure},
    product,
    scenario::tenant_ready,
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::GpuGrant;
use k8s_openapi::api::{admissionregistration::v1::ValidatingAdmissionPolicy, core::v1::Pod};
use kube::{Api, ResourceExt as _, api::ListParams};
use serde_json::{Value, json};

use self::{
    claims::{admin_access_without_label, marks_of_the_scheduler},
    cordons::only_daemon_sets_tolerate_cordons,
    plugins::{annotations_of_plugins, notices, sizes},
};

pub(crate) const OWNER: Actor = Actor::Person("ann", &["team-t"]);

/// A team with one profile, and another team.
pub(crate) async fn two_teams(world: &World) -> Result<()> {
    let mut t = tenant("t", &[("mig-1g", 2)]);
    t["spec"]["priorityClasses"] = json!(["batch"]);
    t["spec"]["queues"] = json!(["team-t"]);
    t["spec"]["imageRegistries"] = json!(["docker.io/library", "registry.example.com:5000/t"]);
    t["spec"]["ingressHosts"] = json!(["t.example.com", "*.t.example.com"]);
    t["spec"]["owners"] = json!([{"kind": "Group", "name": "team-t"}]);
    let mut slice = mig_profile("mig-1g", "1g.10gb");
    slice["spec"]["maxPerPod"] = json!(1);
    let shapes = [slice, mig_profile("mig-2g", "2g.20gb"), mig_profile("mig-3g", "3g.40gb")];
    world.set(&shapes).await?;
    world.set(&[pool("p", "gpu-1", &["mig-1g", "mig-2g", "mig-3g"]), t, tenant("other", &[("mig-3g", 1)])]).await?;
    tenant_ready(world, "t").await?;
    tenant_ready(world, "other").await.map(drop)
}

/// API path of the collection of this kind in the team's namespace.
pub(crate) fn collection(object: &Value) -> String {
    let (api, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
    let root = if api.contains('/') { format!("/apis/{api}") } else { format!("/api/{api}") };
    let plural = if kind.ends_with('s') { "es" } else { "s" };
    format!("{root}/namespaces/t/{}{plural}", kind.to_lowercase())
}

/// Scales the operator, and waits until so many run.
pub(crate) async fn operators(world: &World, count: usize) -> Result<()> {
    let replicas = format!("--replicas={count}");
    world.kubectl(&["scale", "-n", product::NAMESPACE, "deployment/gputenancy-operator", &replicas]).await?;
    let pods = Api::<Pod>::namespaced(world.client.clone(), product::NAMESPACE);
    let ours = ListParams::default().labels("app.kubernetes.io/name=gputenancy-operator");
    eventually(&format!("{count} operators"), PATIENCE, || async {
        let here = pods.list(&ours).await?.items;
        let ready = here.iter().filter(|p| objects::is_ready(p)).count();
        Ok(if here.len() == count && ready == count { Ok(()) } else { Err(format!("{ready} of {}", here.len())) })
    })
    .await
}

#[tokio::test]
async fn toleration_policy_require_refuses_gpu_pod_without_toleration() {
    let world = World::enter_api().await.unwrap();
    let body = async {
        two_teams(&world).await?;
        product::install(&world.lab, &["policies.gpuTaint.toleration=Require"]).await?;
        policies_type_checked(&world).await?;
        let gpu = json!({"limits": {"nvidia.com/mig-1g.10gb": "1"}});
        let there = json!([{"key": "nvidia.com/gpu", "operator": "Exists"}]);
        for (resources, tolerations, refused) in
            [(&gpu, json!([]), true), (&gpu, there, false), (&json!({}), json!([]), false)]
        {
            let restricted = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
            let container = json!({"name": "c", "image": "i", "resources": resources, "securityContext": restricted});
            let security = json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"securityContext": security, "tolerations": tolerations, "containers": [container]}});
            eventually("the new policy to be enforced", PATIENCE, || async {
                let answer = OWNER.may(&world.client, Verb::Create, "/api/v1/namespaces/t/pods", &pod).await?;
                let words = answer.err().map(|s| s.message).unwrap_or_default();
                let right = if refused {
                    words.contains("add to spec.tolerations the key nvidia.com/gpu")
                } else {
                    words.is_empty()
                };
                Ok(if right { Ok(()) } else { Err(format!("{pod}: {words:?}")) })
            })
            .await?;
        }
        Ok(())
    };
    let outcome = body.await;
    product::install(&world.lab, &[]).await.unwrap();
    world.keeping_evidence("bypass-toleration", async { outcome }).await;
}

#[tokio::test]
async fn queues_by_labels_and_annotations_of_batch_schedulers_are_judged() {
    let world = World::enter_api().await.unwrap();
    let body = async {
        two_teams(&world).await?;
        product::install(&world.lab, &["policies.schedulerNames={default-scheduler,kai-scheduler,volcano}"]).await?;
        policies_type_checked(&world).await?;
        let all = manifests(&world, "batch-schedulers.yaml").await?;
        ensure(all.len() >= 12, format!("{} manifests", all.len()))?;
        for mut object in all {
            let name = object["metadata"]["name"].to_string();
            let words = refusal(&object).ok_or_else(|| Error::Wrong(format!("{name} has no annotation {REFUSED}")))?;
            object["metadata"].as_object_mut().unwrap().remove("namespace");
            eventually(&format!("{name} refused"), PATIENCE, || async {
                let answer = OWNER.may(&world.client, Verb::Create, &collection(&object), &object).await?;
                let message = answer.err().map(|status| status.message).unwrap_or_default();
                Ok(if message.contains(&words) { Ok(()) } else { Err(message) })
            })
            .await?;
        }
        queue_of_a_pod_that_waits(&world).await?;
        labels_of_kai(&world).await
    };
    let outcome = body.await;
    product::install(&world.lab, &[]).await.unwrap();
    world.keeping_evidence("bypass-queues", async { outcome }).await;
}

/// A pod in the team's own queue is admitted, and goes to no other one later.
async fn queue_of_a_pod_that_waits(world: &World) -> Result<()> {
    const QUEUE: &str = "scheduling.volcano.sh/queue-name";
    let container = json!({"name": "c", "image": "i", "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "queued", "labels": {"project": "team-t"}, "annotations": {QUEUE: "team-t"}}, "spec": {
        "schedulerName": "volcano", "schedulingGates": [{"name": "example.com/later"}], "containers": [container],
        "securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}}});
    OWNER.does(&world.client, Verb::Create, "/api/v1/namespaces/t/pods", &pod).await?;
    let path = "/api/v1/namespaces/t/pods/queued";
    for (body, refused) in [
        (json!({"metadata": {"annotations": {QUEUE: "team-x"}}}), Some("names a queue that tenant t may not use")),
        (json!({"metadata": {"labels": {"project": "team-x"}}}), Some("label project: team-x is no queue of tenant t")),
        (json!({"metadata": {"annotations": {QUEUE: null}}}), None),
        (json!({"metadata": {"annotations": {"example.com/note": "x"}, "labels": {"project": null}}}), None),
    ] {
        OWNER.check(&world.client, Verb::Merge, path, &body, refused).await?;
    }
    Ok(())
}

/// A pod may have labels of KAI that give it no more than its own queue and class do, and gets no others later.
async fn labels_of_kai(world: &World) -> Result<()> {
    const PREEMPTIBILITY: &str = "kai.scheduler/preemptibility";
    let container = json!({"name": "c", "image": "i", "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}});
    let labels = json!({"kai.scheduler/queue": "team-t", "kai.scheduler/node-pool": "b", "priorityClassName": "batch", PREEMPTIBILITY: "preemptible"});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "kai", "labels": labels}, "spec": {
        "schedulerName": "kai-scheduler", "schedulingGates": [{"name": "example.com/later"}], "containers": [container],
        "securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}}});
    OWNER.does(&world.client, Verb::Create, "/api/v1/namespaces/t/pods", &pod).await?;
    for (key, value, refused) in [
        ("priorityClassName", json!("train"), Some("label priorityClassName: train is not granted")),
        (PREEMPTIBILITY, json!("non-preemptible"), Some("label kai.scheduler/preemptibility")),
        ("kai.scheduler/queue", Value::Null, Some("label kai.scheduler/node-pool")),
        ("kai.scheduler/node-pool", json!("c"), None),
        ("app", json!("x"), None),
    ] {
        let body = json!({"metadata": {"labels": {key: value}}});
        OWNER.check(&world.client, Verb::Merge, "/api/v1/namespaces/t/pods/kai", &body, refused).await?;
    }
    Ok(())
}

#[tokio::test]
async fn policies_without_operator_refuse_every_bypass_and_admit_usual_workloads() {
    let world = World::enter_api().await.unwrap();
    let body = async {
        two_teams(&world).await?;
        policies_type_checked(&world).await?;
        operators(&world, 0).await?;
        usual_workloads(&world).await?;
        built_in_validation(&world).await?;
        admin_access_without_label(&world).await?;
        only_daemon_sets_tolerate_cordons(&world).await?;
        bypasses(&world).await?;
        pod_updates(&world).await?;
        annotations_of_plugins(&world, WAITING).await?;
        sizes(&world).await?;
        marks_of_the_scheduler(&world, WAITING).await?;
        debug_container_gets_no_gpu(&world).await?;
        grace_periods(&world).await?;
        operator_objects(&world).await?;
        without_a_grant(&world).await
    };
    let outcome = body.await;
    // also after a failure: the next test needs an operator and no finalizer in the namespace
    let free = json!({"metadata": {"finalizers": null}});
    Actor::Admin.does(&world.client, Verb::Merge, WAITING, &free).await.ok();
    operators(&world, 2).await.unwrap();
    world.kubectl(&["delete", "--ignore-not-found", "runtimeclass", "nvidia-legacy"]).await.unwrap();
    world.kubectl(&["delete", "--ignore-not-found", "priorityclass", "batch", "urgent"]).await.unwrap();
    world.keeping_evidence("bypass", async { outcome }).await;
}

/// The API server's type check has no warning about any policy of the chart.
pub(crate) async fn policies_type_checked(world: &World) -> Result<()> {
    let policies = Api::<ValidatingAdmissionPolicy>::all(world.client.clone());
    let all = policies.list(&ListParams::default().labels("app.kubernetes.io/part-of=gputenancy")).await?.items;
    ensure(all.len() >= 10, format!("{} policies", all.len()))?;
    for policy in all {
        eventually("the type check of a policy", PATIENCE, || async {
            let status = policies.get(&policy.name_any()).await?.status.unwrap_or_default();
            let checked = status.observed_generation == policy.metadata.generation;
            Ok(if checked { Ok(()) } else { Err(policy.name_any()) })
        })
        .await?;
        let status = policies.get(&policy.name_any()).await?.status.unwrap_or_default();
        let warnings = status.type_checking.and_then(|t| t.expression_warnings).unwrap_or_default();
        ensure(warnings.is_empty(), format!("{}: {warnings:?}", policy.name_any()))?;
    }
    Ok(())
}

/// The first difference between a sent and a stored object, without fields that the API server adds.
fn changed(sent: &Value, kept: &Value, at: &str) -> Option<String> {
    match (sent, kept) {
        (Value::Object(sent), Value::Object(kept)) => sent.iter().find_map(|(key, value)| {
            let kept = kept.get(key).unwrap_or(&Value::Null);
            changed(value, kept, &format!("{at}.{key}"))
        }),
        // Kubernetes appends tolerations and volumes
        (Value::Array(sent), Value::Array(kept)) if sent.len() <= kept.len() => {
            sent.iter().zip(kept).enumerate().find_map(|(i, (s, k))| changed(s, k, &format!("{at}[{i}]")))
        }
        // quantities are stored as strings
        (Value::Number(sent), Value::String(kept)) if sent.to_string() == *kept => None,
        _ => (sent != kept).then(|| format!("{at}: {sent} -> {kept}")),
    }
}

/// A pod gets one toleration of the GPU taint if it requests a GPU, and none otherwise; the error, if any.
async fn toleration_error(world: &World, pod: &Value) -> Result<Option<String>> {
    let mut sent = pod.clone();
    sent["metadata"].as_object_mut().unwrap().remove("namespace");
    let Ok(kept) = OWNER.may(&world.client, Verb::Create, &collection(&sent), &sent).await? else { return Ok(None) };
    let lists = ["containers", "initContainers"].iter().filter_map(|list| kept["spec"][list].as_array());
    if let Some(container) = lists.flatten().find(|container| !hides_other_gpus(container)) {
        return Ok(Some(format!(
            "{}: {container} lacks NVIDIA_VISIBLE_DEVICES=void, or has it with a GPU",
            pod["metadata"]["name"]
        )));
    }
    let tolerations = kept["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
    let count = tolerations.iter().filter(|t| t["key"] == "nvidia.com/gpu").count();
    let lists = ["containers", "initContainers"].iter().filter_map(|list| kept["spec"][list].as_array());
    let expected = usize::from(lists.flatten().any(has_gpu));
    Ok((count != expected).then(|| format!("{}: {count} tolerations, not {expected}", pod["metadata"]["name"])))
}

/// A container without a GPU has one variable that keeps NVIDIA's runtime from giving it all; one with a GPU has none.
fn hides_other_gpus(container: &Value) -> bool {
    let env = container["env"].as_array().map(Vec::as_slice).unwrap_or_default();
    let values: Vec<_> = env.iter().filter(|e| e["name"] == "NVIDIA_VISIBLE_DEVICES").map(|e| &e["value"]).collect();
    if has_gpu(container) { values.is_empty() } else { values == [&json!("void")] }
}

/// The container asks for a GPU. An amount of zero asks for none.
fn has_gpu(container: &Value) -> bool {
    let limits = container["resources"]["limits"].as_object();
    limits.is_some_and(|limits| limits.iter().any(|(k, amount)| k.starts_with("nvidia.com/") && amount != "0"))
}

async fn usual_workloads(world: &World) -> Result<()> {
    world.set(&[json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "batch"}, "value": 1000})]).await?;
    let all = manifests(world, "admitted.yaml").await?;
    ensure(all.len() >= 50, format!("{} manifests of usual workloads", all.len()))?;
    let mut wrong = vec![];
    for object in all {
        let pod = pod_of(&object);
        if object["kind"] == "Pod" || pod.is_some() {
            wrong.extend(toleration_error(world, pod.as_ref().unwrap_or(&object)).await?);
        }
        for mut sent in std::iter::once(object).chain(pod) {
            // written by kubectl's dry run
            sent["metadata"].as_object_mut().unwrap().remove("namespace");
            let name = format!("{} {}", sent["kind"], sent["metadata"]["name"]);
            match OWNER.may(&world.client, Verb::Create, &collection(&sent), &sent).await? {
                Ok(kept) => wrong.extend(changed(&sent, &kept, "").map(|what| format!("{name}: {what}"))),
                Err(status) => wrong.push(format!("{name}: {}", status.message)),
            }
        }
    }
    ensure(wrong.is_empty(), wrong.join("\n"))
}

/// Refusals by the Pod Security Standard and by built-in validation.
async fn built_in_validation(world: &World) -> Result<()> {
    let limits = json!({"limits": {"nvidia.com/mig-1g.10gb": "1"}});
    let base = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [{"name": "c", "image": "i", "resources": limits}]}});
    let (security, half) = ("violates PodSecurity", json!({"limits": {"nvidia.com/mig-1g.10gb": "500m"}}));
    for (at, value, words) in [
        ("containers", json!([{"name": "c", "image": "i", "resources": half}]), "must be an integer"),
        ("hostPID", json!(true), security),
        ("hostIPC", json!(true), security),
        ("hostNetwork", json!(true), security),
        ("volumes", json!([{"name": "v", "hostPath": {"path": "/tmp"}}]), security),
        ("containers", json!([{"name": "c", "image": "i", "securityContext": {"privileged": true}}]), security),
        (
            "containers",
            json!([{"name": "c", "image": "i", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]),
            security,
        ),
        (
            "containers",
            json!([{"name": "c", "image": "i", "ports": [{"containerPort": 80, "hostPort": 80}]}]),
            security,
        ),
    ] {
        let mut pod = base.clone();
        pod["spec"][at] = value;
        OWNER.check(&world.client, Verb::Create, "/api/v1/namespaces/t/pods", &pod, Some(words)).await?;
    }
    root_in_a_user_namespace(world).await
}

/// With `hostUsers: false` root of the container is an ordinary user of the node: Kubernetes admits it, without any of the other freedoms.
async fn root_in_a_user_namespace(world: &World) -> Result<()> {
    for (own, security, refused) in [
        (json!(true), json!({}), Some("runAsUser=0")),
        (json!(false), json!({}), None),
        (json!(false), json!({"procMount": "Unmasked"}), Some("procMount")),
        (json!(false), json!({"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}}), Some("SYS_ADMIN")),
        (json!(false), json!({"privileged": true, "allowPrivilegeEscalation": true}), Some("privileged")),
    ] {
        let restricted = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
        let container = json!({"name": "c", "image": "i", "securityContext": merged(restricted, security)});
        let seccomp = json!({"type": "RuntimeDefault"});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {
            "hostUsers": own, "securityContext": {"runAsUser": 0, "seccompProfile": seccomp}, "containers": [container]}});
        OWNER.check(&world.client, Verb::Create, "/api/v1/namespaces/t/pods", &pod, refused).await?;
    }
    Ok(())
}

/// Every manifest is refused with the text of its annotation, also with relaxed Pod Security.
async fn bypasses(world: &World) -> Result<()> {
    let relaxed = ["pod-security.kubernetes.io/enforce=privileged", "resource.kubernetes.io/admin-access=true"];
    world.kubectl(&[&["label", "--overwrite", "namespace", "t"], &relaxed[..]].concat()).await?;
    world.set(&[json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 1000})]).await?;
    world.set(&[json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia-legacy"}, "handler": "runc"})]).await?;
    let (mut wrong, mut count) = (vec![], 0);
    let files = ["resources", "environment", "devices", "placement", "claims", "mounts", "namespaces"];
    for file in files.map(|name| format!("{name}.yaml")) {
        for mut object in manifests(world, &file).await? {
            let name = format!("{file}: {}", object["metadata"]["name"]);
            let Some(words) = refusal(&object) else {
                wrong.push(format!("{name} has no annotation {REFUSED}"));
                continue;
            };
            object["metadata"].as_object_mut().unwrap().remove("namespace");
            count += 1;
            match OWNER.may(&world.client, Verb::Create, &collection(&object), &object).await? {
                Err(status) if status.message.contains(&words) => {}
                Err(status) => wrong.push(format!("{name}: expected {words:?}, got {:?}", status.message)),
                Ok(_) => wrong.push(format!("{name} is admitted")),
            }
        }
    }
    world.kubectl(&["label", "namespace", "t", "resource.kubernetes.io/admin-access-"]).await?;
    ensure(wrong.is_empty(), wrong.join("\n"))?;
    ensure(count >= 210, format!("{count} bypasses were tried"))
}

const GRANT: &str = "/apis/gputenancy.io/v1alpha1/namespaces/t/gpugrants/grant";
/// A pod that is not scheduled and has a finalizer.
pub(crate) const WAITING: &str = "/api/v1/namespaces/t/pods/waiting";

/// Policies hold for updates of an existing pod.
async fn pod_updates(world: &World) -> Result<()> {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "waiting", "finalizers": ["example.com/keep"]}, "spec": {
        "schedulingGates": [{"name": "example.com/later"}], "containers": [{"name": "c", "image": "i", "resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}]}});
    OWNER.does(&world.client, Verb::Create, "/api/v1/namespaces/t/pods", &pod).await?;
    let debug = |env: Value| json!({"spec": {"ephemeralContainers": [{"name": "debug", "image": "i", "env": env}]}});
    let tolerating = |toleration: Value| json!({"spec": {"tolerations": [toleration]}});
    let selecting = |pool: &str| json!({"spec": {"nodeSelector": {"gputenancy.io/pool": pool}}});
    let noted = |key: &str| json!({"metadata": {"annotations": {key: "nvidia.com/gpu=all"}}});
    let ephemeral = "/ephemeralcontainers";
    for (what, body, refused) in [
        (ephemeral, debug(json!([])), None),
        (ephemeral, debug(json!([{"name": "LD_LIBRARY_PATH", "value": "/usr/local/cuda/lib64"}])), None),
        (
            ephemeral,
            debug(json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])),
            Some("devices and limits are given"),
        ),
        (ephemeral, debug(json!([{"name": "CUDA_VERSION", "value": "10.2"}])), Some("devices and limits are given")),
        (ephemeral, debug(json!([{"name": "LD_PRELOAD", "value": "/tmp/x.so"}])), Some("may not load libraries")),
        (
            ephemeral,
            debug(json!([{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"}])),
            Some("compute, utility only"),
        ),
        ("", tolerating(json!({"key": "example.com/spot", "operator": "Exists"})), None),
        ("", tolerating(json!({"key": "nvidia.com/gpu", "operator": "Exists"})), None),
        ("", tolerating(json!({"operator": "Exists"})), Some("name the key of each taint")),
        ("", selecting("p"), None),
        ("", selecting("theirs"), Some("may select nodes of these pools: p")),
        ("", noted("example.com/note"), None),
        ("", noted("cdi.k8s.io/x"), Some("annotations of cdi.k8s.io")),
        ("", noted("cni.projectcalico.org/floatingIPs"), Some("past network policies")),
    ] {
        let mut body = body;
        if let Some(added) = body.pointer_mut("/spec/tolerations").and_then(Value::as_array_mut) {
            // a merge patch replaces the list, and tolerations can only be added
            let pod = Api::<Pod>::namespaced(world.client.clone(), "t").get("waiting").await?;
            let there = serde_json::to_value(pod.spec.and_then(|s| s.tolerations).unwrap_or_default()).unwrap();
            added.splice(0..0, there.as_array().unwrap().clone());
        }
        Actor::Admin.check(&world.client, Verb::Merge, &format!("{WAITING}{what}"), &body, refused).await?;
    }
    notices(world).await?;
    let listed = Some("uses images of docker.io/library, registry.example.com:5000/t");
    for (image, refused) in [("docker.io/library/i:2", None), ("ghcr.io/x/y", listed)] {
        let spec = json!({"containers": [{"name": "c", "image": image}]});
        let body = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "waiting"}, "spec": spec});
        Actor::Admin.check(&world.client, Verb::Apply, WAITING, &body, refused).await?;
    }
    Ok(())
}

/// A container for debugging gets no GPU, and those of the pod stay as they are.
async fn debug_container_gets_no_gpu(world: &World) -> Result<()> {
    let debug = json!({"spec": {"ephemeralContainers": [{"name": "debug", "image": "i"}]}});
    let kept = Actor::Admin.may(&world.client, Verb::Merge, &format!("{WAITING}/ephemeralcontainers"), &debug).await?;
    let kept = kept.map_err(|status| Error::Wrong(status.message))?;
    let all = |list: &str| kept["spec"][list].as_array().cloned().unwrap_or_default();
    ensure(all("ephemeralContainers").len() == 1, format!("{kept}"))?;
    let mut both = all("containers").into_iter().chain(all("ephemeralContainers"));
    ensure(both.all(|container| hides_other_gpus(&container)), format!("{kept}"))
}

/// Without a grant no pod is admitted, but finalizers of a pod can be removed, so that its namespace can be deleted.
async fn without_a_grant(world: &World) -> Result<()> {
    Actor::Operator.does(&world.client, Verb::Delete, GRANT, &json!({})).await?;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    eventually("a pod without a grant to be refused", PATIENCE, || async {
        let answer = OWNER.may(&world.client, Verb::Create, "/api/v1/namespaces/t/pods", &pod).await?;
        let words = answer.err().map(|status| status.message).unwrap_or_default();
        // the policy that fills in pods answers before the one that judges them
        let ours = words.contains("gputenancy-tenant-pod") && words.contains("no params found");
        Ok(if ours { Ok(()) } else { Err(words) })
    })
    .await?;
    let free = json!({"metadata": {"finalizers": null}});
    Actor::Admin.does(&world.client, Verb::Merge, WAITING, &free).await.map(drop)
}

/// An eviction may not give a pod more time to end than the tenant's limit. A DELETE of a pod without a node ends it at once.
async fn grace_periods(world: &World) -> Result<()> {
    let eviction = |seconds: i32| json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "waiting", "namespace": "t"}, "deleteOptions": {"gracePeriodSeconds": seconds}});
    let at = format!("{WAITING}/eviction");
    let words = Some("may take at most 600 seconds to end");
    Actor::Admin.check(&world.client, Verb::Create, &at, &eviction(601), words).await?;
    Actor::Admin.check(&world.client, Verb::Create, &at, &eviction(600), None).await
}

/// Only the operator writes grants, labels and quotas, whatever further rights a team has.
async fn operator_objects(world: &World) -> Result<()> {
    let grants = Api::<GpuGrant>::namespaced(world.client.clone(), "t");
    let grant = grants.get("grant").await?;
    ensure(grant.spec.resources.get("nvidia.com/mig-1g.10gb") == Some(&1), format!("{:?}", grant.spec))?;
    let (quota, binding) = ("resourcequotas/gputenancy", "rolebindings/gputenancy-owners");
    let quota = format!("/api/v1/namespaces/t/{quota}");
    let binding = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/t/{binding}");
    let label = json!({"metadata": {"labels": {"gputenancy.io/tenant": "other"}}});
    let more = json!({"spec": {"resources": {"nvidia.com/gpu": 8}}});
    let bind = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "waiting"}, "target": {"apiVersion": "v1", "kind": "Node", "name": "gpu-1"}});
    let token = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}});
    let agent = format!("/api/v1/namespaces/{}/serviceaccounts/gputenancy-agent/token", product::NAMESPACE);
    let binding_of_pod = format!("{WAITING}/binding");
    let (network, limits) = ("networkpolicies/gputenancy", "limitranges/gputenancy");
    let network = format!("/apis/networking.k8s.io/v1/namespaces/t/{network}");
    let limits = format!("/api/v1/namespaces/t/{limits}");
    let open = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "open"}, "spec": {"podSelector": {}, "ingress": [{}]}});
    let networks = network.trim_end_matches("/gputenancy");
    let node = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": [], "boundObjectRef": {"apiVersion": "v1", "kind": "Node", "name": "gpu-1"}}});
    let own_token = "/api/v1/namespaces/t/serviceaccounts/default/token";
    let cases: [(Actor, Verb, &str, &Value, &str); 17] = [
        (OWNER, Verb::Create, &binding_of_pod, &bind, "forbidden"),
        (OWNER, Verb::Create, "/api/v1/nodes/gpu-1/proxy/run", &bind, "forbidden"),
        (OWNER, Verb::Create, &agent, &token, "forbidden"),
        (OWNER, Verb::Create, own_token, &node, "tokens of a tenant are bound to no Node"),
        (OWNER, Verb::Merge, GRANT, &more, "forbidden"),
        (Actor::Admin, Verb::Merge, GRANT, &more, "written by the operator alone"),
        (Actor::Admin, Verb::Delete, GRANT, &more, "written by the operator alone"),
        (OWNER, Verb::Merge, "/api/v1/namespaces/t", &label, "forbidden"),
        (OWNER, Verb::Merge, &quota, &json!({"spec": {"hard": {"pods": "999"}}}), "forbidden"),
        (OWNER, Verb::Delete, &quota, &label, "forbidden"),
        (OWNER, Verb::Merge, &network, &json!({"spec": {"ingress": [{}]}}), "forbidden"),
        (OWNER, Verb::Delete, &network, &label, "forbidden"),
        (OWNER, Verb::Create, networks, &open, "forbidden"),
        (OWNER, Verb::Delete, &limits, &label, "forbidden"),
        (OWNER, Verb::Merge, &binding, &json!({"subjects": []}), "choose another name for one of your own"),
        (OWNER, Verb::Delete, "/apis/gputenancy.io/v1alpha1/gputenants/t", &label, "forbidden"),
        (OWNER, Verb::Create, "/api/v1/namespaces/other/pods", &json!({"metadata": {"name": "x"}}), "forbidden"),
    ];
    for (actor, verb, path, body, words) in cases {
        actor.check(&world.client, verb, path, body, Some(words)).await?;
    }
    namespace_labels(world).await
}

/// A user with rights on namespaces, but not on tenants, cannot change labels that decide what a namespace may use.
async fn namespace_labels(world: &World) -> Result<()> {
    let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "e2e-namespaces"}, "rules": [{"apiGroups": [""], "resources": ["namespaces", "namespaces/status"], "verbs": ["get", "patch"]}]});
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "e2e-namespaces"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "e2e-namespaces"}, "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "bob"}]});
    world.set(&[role, binding]).await?;
    let bob = Actor::Person("bob", &[]);
    let outcome = async {
        let (own, foreign) = ("/api/v1/namespaces/t", "/api/v1/namespaces/default");
        for (path, labels, refusal) in [
            (own, json!({"gputenancy.io/tenant": "other"}), Some("belong to the platform")),
            (own, json!({"gputenancy.io/tenant": null}), Some("belong to the platform")),
            (own, json!({"pod-security.kubernetes.io/enforce": "baseline"}), Some("belong to the platform")),
            (own, json!({"resource.kubernetes.io/admin-access": "true"}), Some("belong to the platform")),
            ("/api/v1/namespaces/t/status", json!({"gputenancy.io/tenant": "other"}), Some("belong to the platform")),
            (foreign, json!({"gputenancy.io/reaches-tenants": "true"}), Some("are reserved for the platform")),
            (foreign, json!({"gputenancy.io/tenant": "t"}), Some("belong to the platform")),
            (own, json!({"team": "blue"}), None),
            (foreign, json!({"pod-security.kubernetes.io/enforce": "baseline"}), None),
        ] {
            let body = json!({"metadata": {"labels": labels}});
            let answer = eventually("the granted right", PATIENCE, || async {
                let answer = bob.may(&world.client, Verb::Merge, path, &body).await?;
                // the authorizer's cache lags
                let early = answer.as_ref().err().is_some_and(|s| s.message.contains("cannot patch"));
                Ok(if early { Err("not yet".into()) } else { Ok(answer) })
            })
            .await?;
            let right = match (&answer, refusal) {
                (Err(status), Some(words)) => status.message.contains(words),
                (Ok(_), None) => true,
                _ => false,
            };
            ensure(right, format!("{path} {body}: {:?}", answer.map(drop).map_err(|s| s.message)))?;
        }
        Ok(())
    }
    .await;
    world.kubectl(&["delete", "clusterrole,clusterrolebinding", "e2e-namespaces"]).await?;
    outcome
}

#[tokio::test]
async fn crds_say_how_registries_and_hosts_are_written() {
    let world = World::enter_api().await.unwrap();
    let registry = Some("spec.imageRegistries: write a registry with an optional folder");
    let host = Some("spec.ingressHosts: write names of hosts in lowercase");
    for (field, value, refusal) in [
        ("imageRegistries", json!(["docker.io/library", "registry.example.com:5000/team_a/x"]), None),
        ("imageRegistries", json!(["https://registry.example.com"]), registry),
        ("imageRegistries", json!(["registry.example.com/"]), registry),
        ("imageRegistries", json!(["team-a"]), registry),
        ("imageRegistries", json!([]), Some("spec.imageRegistries")),
        ("ingressHosts", json!(["*.a.example.com", "a.example.com"]), None),
        ("ingressHosts", json!([]), None),
        ("ingressHosts", json!(["*"]), host),
        ("ingressHosts", json!(["a.example.com:443"]), host),
    ] {
        let mut team = tenant("lists", &[]);
        team["spec"][field] = value;
        let path = "/apis/gputenancy.io/v1alpha1/gputenants";
        Actor::Admin.check(&world.client, Verb::Create, path, &team, refusal).await.unwrap();
    }
}
