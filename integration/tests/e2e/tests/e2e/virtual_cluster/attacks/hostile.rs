//! A team that is administrator inside its virtual cluster, and hostile, while neither operator nor controller runs: what holds it are the
//! host's policies, quotas and network rules. The same pods are tried with the syncer's credentials, as if they had been stolen.

use std::collections::BTreeSet;

use e2e::{
    Result, World,
    actor::{Actor, Verb},
    fixtures::{merged, mig_profile, pool},
    objects::ensure,
    scenario::tenant_ready,
    wait::{PATIENCE, eventually},
};
use serde_json::{Value, json};

use super::network;
use crate::virtual_cluster::{
    Inside, busybox,
    inside::{SPACE, pod},
    install, scale,
    usual::usual_workloads,
    virtual_cluster_ready, virtual_tenant,
};
use e2e::manifests::{manifests, refusal};

/// The team of `integration/bypass`.
pub(super) const TEAM: &str = "t";
/// The second team.
pub(super) const OTHER: &str = "other";
const RESOURCE: &str = "nvidia.com/mig-1g.10gb";
/// The syncer's identity on the host.
const SYNCER: Actor = Actor::Account(TEAM, "vc-t");
/// Port of web servers.
pub(super) const PORT: u16 = 8080;

#[tokio::test]
async fn hostile_team_inside_gets_nothing_past_the_host() {
    let world = World::attach().await.unwrap();
    let outcome = hostile(&world).await;
    // also after a failure: the next test needs both
    scale(&world, "gputenancy-operator", 2).await.unwrap();
    scale(&world, "gputenancy-virtual-clusters", 1).await.unwrap();
    for object in ["pv/theirs", "runtimeclass/nvidia-legacy", "priorityclass/urgent"] {
        world.kubectl(&["delete", "--ignore-not-found", object, "--wait=false"]).await.unwrap();
    }
    world.keeping_evidence("virtual-cluster-hostile", async { outcome }).await;
}

async fn hostile(world: &World) -> Result<()> {
    install(world).await?;
    let inside = two_teams(world).await?;
    for deployment in ["gputenancy-operator", "gputenancy-virtual-clusters"] {
        scale(world, deployment, 0).await?;
    }
    usual_workloads(world, &inside, TEAM).await?;
    let mut cases = Cases::default();
    refused_pods(world, &inside, &mut cases).await?;
    marks_of_another_team(world, &inside, &mut cases).await?;
    volumes(world, &inside, &mut cases).await?;
    services(world, &inside, &mut cases).await?;
    debug_containers(world, &inside, &mut cases).await?;
    nodes(world, &inside, &mut cases).await?;
    quota(world, &inside, &mut cases).await?;
    network::unreachable(world, &inside, &mut cases).await?;
    stolen_syncer(world, &mut cases).await?;
    cases.all_held(120)
}

/// What was tried, and what got through.
#[derive(Default)]
pub(super) struct Cases {
    tried: usize,
    wrong: Vec<String>,
}

impl Cases {
    pub(super) fn check(&mut self, what: &str, held: bool, seen: impl std::fmt::Debug) {
        self.tried += 1;
        if !held {
            self.wrong.push(format!("{what}: {seen:?}"));
        }
    }

    pub(super) fn all_held(self, least: usize) -> Result<()> {
        ensure(self.wrong.is_empty(), self.wrong.join("\n"))?;
        ensure(self.tried >= least, format!("{} cases were tried", self.tried))
    }
}

/// The hostile team with a pod of its own inside, and a second team with a virtual cluster and a web server.
async fn two_teams(world: &World) -> Result<Inside> {
    let mut slice = mig_profile("mig-1g", "1g.10gb");
    slice["spec"]["maxPerPod"] = json!(1);
    world.set(&[slice, mig_profile("mig-2g", "2g.20gb"), mig_profile("mig-3g", "3g.40gb")]).await?;
    let mut team = virtual_tenant(TEAM, &[("mig-1g", 2)]);
    team["spec"]["priorityClasses"] = json!(["batch"]);
    team["spec"]["queues"] = json!(["team-t"]);
    let other = virtual_tenant(OTHER, &[("mig-3g", 1)]);
    let legacy = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia-legacy"}, "handler": "runc"});
    let urgent = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 1000});
    let theirs = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "theirs"}, "spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "", "hostPath": {"path": "/var/lib/theirs"}}});
    world.set(&[pool("p", "gpu-1", &["mig-1g", "mig-2g", "mig-3g"]), team, other, legacy, urgent, theirs]).await?;
    for team in [OTHER, TEAM] {
        virtual_cluster_ready(world, team).await?;
        tenant_ready(world, team).await?;
    }
    let serve = format!("mkdir -p /tmp/w; echo theirs > /tmp/w/index.html; exec httpd -f -p {PORT} -h /tmp/w");
    world.set(&[busybox(OTHER, "web", &serve)]).await?;
    world.kubectl(&["wait", "--for=condition=Ready", "pod/web", "-n", OTHER, "--timeout=4m"]).await?;
    let inside = Inside::open(world, TEAM).await?;
    inside.must(&["create", "namespace", SPACE]).await?;
    inside.set(&[busybox(SPACE, "probe", "sleep 3600"), busybox(SPACE, "debugged", "sleep 3600")]).await?;
    inside.running(2).await?;
    Ok(inside)
}

/// The name of a synced object on the host.
pub(super) fn on_host(name: &str) -> String {
    format!("{name}-x-{SPACE}-x-{TEAM}")
}

/// All pods of `integration/bypass`, made inside: each is refused there, or with an event, and none exists on the host.
async fn refused_pods(world: &World, inside: &Inside, cases: &mut Cases) -> Result<()> {
    // what the pods name exists inside, so that only the host can refuse them
    let classes = ["nvidia-legacy", "nvidia-x"].map(|name| {
        json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": name}, "handler": "runc"})
    });
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1"}});
    let objects: Vec<Value> = classes.into_iter().chain([node]).collect();
    drop(inside.apply(&json!({"apiVersion": "v1", "kind": "List", "items": objects})).await);
    let mut pods = Vec::new();
    for file in ["resources.yaml", "environment.yaml", "devices.yaml", "placement.yaml", "mounts.yaml"] {
        pods.extend(manifests(world, file).await?.into_iter().filter(|object| object["kind"] == "Pod"));
    }
    ensure(pods.len() >= 80, format!("{} pods", pods.len()))?;
    for pod in &mut pods {
        pod["metadata"]["namespace"] = json!(SPACE);
        admitted_by_pod_security(pod);
    }
    // those that Pod Security refuses as well, and a device plugin in the form of a DaemonSet
    pods.extend(privileged());
    let list = json!({"apiVersion": "v1", "kind": "List", "items": pods});
    let refused_inside = inside.apply(&list).await.err().unwrap_or_default();
    let names: Vec<&str> = pods.iter().filter_map(|p| p["metadata"]["name"].as_str()).collect();
    // priority classes are not taken over from inside, and namespaces of affinity are those of this virtual cluster
    let cleared = |pod: &&Value| {
        let affinity = |kind: &str| pod["spec"]["affinity"][kind].is_object();
        pod["spec"]["priorityClassName"].is_string() || affinity("podAntiAffinity") || affinity("podAffinity")
    };
    let cleared: Vec<&str> = pods.iter().filter(cleared).filter_map(|p| p["metadata"]["name"].as_str()).collect();
    let asked = names.iter().copied().filter(|name| !refused_inside.contains(&format!("\"{name}\"")));
    let asked: Vec<&str> = asked.filter(|name| !cleared.contains(name)).collect();
    ensure(asked.len() >= 60, format!("most pods are refused inside: {refused_inside}"))?;
    inside.set(&[device_plugin()]).await?;
    let expected: Vec<&str> = asked.iter().copied().chain(["device-plugin"]).collect();
    let seen = eventually("an event about each refused pod", PATIENCE, || async {
        let events = inside.all_events().await?;
        let refusal =
            |m: &str| ["forbidden", "denied the request", "PodSecurity", "is invalid"].iter().any(|w| m.contains(w));
        let about = |name: &str, object: &str| {
            object == name || (name == "device-plugin" && object.starts_with("device-plugin-"))
        };
        let silent: Vec<&str> = expected
            .iter()
            .copied()
            .filter(|name| !events.iter().any(|(object, message)| about(name, object) && refusal(message)))
            .collect();
        Ok(if silent.is_empty() { Ok(()) } else { Err(silent.join(" ")) })
    })
    .await;
    cases.check("an event about each refused pod", seen.is_ok(), seen.map_err(|e| e.to_string()));
    let host = world.kubectl(&["get", "pods", "-n", TEAM, "-o", "jsonpath={.items[*].metadata.name}"]).await?;
    let classes =
        world.kubectl(&["get", "pods", "-n", TEAM, "-o", "jsonpath={.items[*].spec.priorityClassName}"]).await?;
    cases.check("priority classes of pods on the host", classes.is_empty(), classes);
    for pod in names.iter().copied().filter(|name| !cleared.contains(name)).chain(["device-plugin"]) {
        let there = host.split(' ').any(|name| name.starts_with(&format!("{pod}-")) && name.contains("-x-ml-"));
        cases.check(&format!("{pod} on the host"), !there, &host);
    }
    inside.kubectl(&["delete", "daemonset", "-n", SPACE, "device-plugin"]).await.ok();
    inside
        .kubectl(&[&["delete", "pods", "-n", SPACE, "--wait=false", "--ignore-not-found"], names.as_slice()].concat())
        .await
        .ok();
    Ok(())
}

/// Adds what the Pod Security Standard `restricted` asks for, so that it is not what refuses the pod.
pub(super) fn admitted_by_pod_security(pod: &mut Value) {
    let own = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    pod["spec"]["securityContext"] =
        json!({"runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}});
    for list in ["containers", "initContainers"] {
        for container in pod["spec"][list].as_array_mut().into_iter().flatten() {
            container["securityContext"] = own.clone();
        }
    }
}

/// Pods that reach for the host.
fn privileged() -> Vec<Value> {
    let container = |security: Value| json!({"containers": [merged(json!({"name": "c", "image": "i"}), json!({"securityContext": security}))]});
    let with = |fields: Value| merged(container(json!({})), fields);
    let specs = [
        ("host-network", with(json!({"hostNetwork": true}))),
        ("host-pid", with(json!({"hostPID": true}))),
        ("host-ipc", with(json!({"hostIPC": true}))),
        ("host-users", with(json!({"hostUsers": true, "hostPID": true}))),
        ("privileged", container(json!({"privileged": true}))),
        ("all-capabilities", container(json!({"capabilities": {"add": ["SYS_ADMIN"]}}))),
        ("root", container(json!({"runAsUser": 0}))),
        (
            "host-port",
            json!({"containers": [{"name": "c", "image": "i", "ports": [{"containerPort": 80, "hostPort": 80}]}]}),
        ),
    ];
    let pod = |(name, spec): (&str, Value)| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": SPACE}, "spec": spec});
    specs.into_iter().map(pod).collect()
}

/// As NVIDIA's device plugin is installed: privileged, with kubelet's folder.
fn device_plugin() -> Value {
    json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "device-plugin", "namespace": SPACE}, "spec": {
        "selector": {"matchLabels": {"app": "device-plugin"}},
        "template": {"metadata": {"labels": {"app": "device-plugin"}}, "spec": {
            "volumes": [{"name": "kubelet", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}}],
            "containers": [{"name": "c", "image": "i", "securityContext": {"privileged": true}, "volumeMounts": [{"name": "kubelet", "mountPath": "/var/lib/kubelet/device-plugins"}]}],
        }},
    }})
}

/// Labels and annotations of another team change nothing: the pod is marked as this virtual cluster's.
async fn marks_of_another_team(world: &World, inside: &Inside, cases: &mut Cases) -> Result<()> {
    let mut spoof = busybox(SPACE, "spoof", "sleep 3600");
    spoof["metadata"]["labels"] = json!({"gputenancy.io/tenant": "other", "vcluster.loft.sh/managed-by": "other", "vcluster.loft.sh/namespace": "theirs"});
    spoof["metadata"]["annotations"] = json!({
        "vcluster.loft.sh/object-name": "web", "vcluster.loft.sh/object-namespace": "theirs",
        "vcluster.loft.sh/object-uid": "none", "vcluster.loft.sh/object-host-name": "web",
    });
    spoof["spec"]["priorityClassName"] = json!("system-node-critical");
    inside.set(&[spoof]).await?;
    inside.running(3).await?;
    let host = world.kubectl(&["get", "pod", "-n", TEAM, &on_host("spoof"), "-o", "json"]).await?;
    let host: Value = serde_json::from_str(&host).unwrap_or_default();
    let (labels, notes) = (&host["metadata"]["labels"], &host["metadata"]["annotations"]);
    for (what, seen, right) in [
        ("label managed-by", &labels["vcluster.loft.sh/managed-by"], TEAM),
        ("label namespace", &labels["vcluster.loft.sh/namespace"], SPACE),
        ("annotation object-name", &notes["vcluster.loft.sh/object-name"], "spoof"),
        ("annotation object-namespace", &notes["vcluster.loft.sh/object-namespace"], SPACE),
        ("annotation object-host-name", &notes["vcluster.loft.sh/object-host-name"], &on_host("spoof")),
    ] {
        cases.check(what, seen == right, seen);
    }
    let priority = host["spec"]["priority"].as_i64().unwrap_or(0);
    cases.check(
        "priority class of the system",
        priority <= 0 && host["spec"]["priorityClassName"].is_null(),
        &host["spec"]["priorityClassName"],
    );
    inside.must(&["delete", "pod", "-n", SPACE, "spoof", "--wait=false"]).await.map(drop)
}

/// Volumes of the host are not reached by names.
async fn volumes(world: &World, inside: &Inside, cases: &mut Cases) -> Result<()> {
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "theirs"}, "spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "", "hostPath": {"path": "/"}}});
    let claim = |name: &str, notes: Value| {
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": SPACE, "annotations": notes},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": "theirs", "resources": {"requests": {"storage": "1Gi"}}}})
    };
    let skip = json!({"vcluster.loft.sh/skip-translate": "true"});
    inside.set(&[volume, claim("named", json!({})), claim("skipped", skip.clone())]).await?;
    // a claim made after them is there: so were they, if they are let through
    let later = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "later", "namespace": SPACE},
        "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "none", "resources": {"requests": {"storage": "1Gi"}}}});
    inside.set(&[later]).await?;
    eventually("the later claim on the host", PATIENCE, || async {
        let there =
            world.kubectl(&["get", "pvc", "-n", TEAM, &on_host("later"), "-o", "name", "--ignore-not-found"]).await?;
        Ok(if there.is_empty() { Err("not there".into()) } else { Ok(()) })
    })
    .await?;
    for name in ["named", "skipped"] {
        inside.event(name, "volumeName").await?;
    }
    let claims = world.kubectl(&["get", "pvc", "-n", TEAM, "-o", "jsonpath={.items[*].spec.volumeName}"]).await?;
    cases.check("claim of a volume of the host", !claims.contains("theirs"), &claims);
    let phase = world.kubectl(&["get", "pv", "theirs", "-o", "jsonpath={.status.phase}"]).await?;
    cases.check("volume of the host", phase == "Available", phase);
    let made = world.kubectl(&["get", "pv", "-o", "name"]).await?;
    cases.check("volume made inside", made.trim() == "persistentvolume/theirs", made);
    inside.must(&["delete", "pvc", "-n", SPACE, "--all", "--wait=false"]).await?;
    inside.must(&["delete", "pv", "theirs", "--wait=false", "--ignore-not-found"]).await.map(drop)
}

async fn services(world: &World, inside: &Inside, cases: &mut Cases) -> Result<()> {
    let service = |name: &str, spec: Value| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": SPACE},
        "spec": merged(json!({"ports": [{"port": 80}], "selector": {"app": "probe"}}), spec)})
    };
    let json = async |name: &str| {
        world.kubectl(&["get", "service", "-n", TEAM, &on_host(name), "-o", "json", "--ignore-not-found"]).await
    };
    // services with a cluster IP are made on the host first: its refusal is the answer
    for (name, spec, excerpt) in [
        ("node-port", json!({"type": "NodePort"}), "services.nodeports"),
        ("balancer", json!({"type": "LoadBalancer"}), "services.nodeports"),
        ("external", json!({"externalIPs": ["10.96.0.1"]}), "spec.externalIPs"),
    ] {
        let answer = inside.apply(&service(name, spec)).await;
        cases.check(name, answer.as_ref().is_err_and(|error| error.contains(excerpt)), answer);
        let there = json(name).await?;
        cases.check(&format!("service {name} on the host"), there.is_empty(), there);
    }
    inside.set(&[service("plain", json!({}))]).await?;
    eventually("the plain service on the host", PATIENCE, || async {
        Ok(if json("plain").await?.is_empty() { Err("not there".into()) } else { Ok(()) })
    })
    .await?;
    for (what, change, excerpt) in [
        ("later node port", json!({"spec": {"type": "NodePort"}}), "services.nodeports"),
        ("later external IP", json!({"spec": {"externalIPs": ["10.96.0.1"]}}), "spec.externalIPs"),
    ] {
        let change = change.to_string();
        let answer = inside.kubectl(&["patch", "service", "-n", SPACE, "plain", "--type=merge", "-p", &change]).await;
        if answer.is_ok() {
            let seen = inside.event("plain", excerpt).await.map_err(|e| e.to_string());
            cases.check(what, seen.is_ok(), seen);
        }
        let there = json("plain").await?;
        let kept = there.contains("\"ClusterIP\"") && !there.contains("externalIPs");
        cases.check(&format!("{what} on the host"), kept, there);
    }
    inside.must(&["delete", "service", "-n", SPACE, "plain", "--wait=false"]).await.map(drop)
}

/// A container added to a running pod gets no GPU.
async fn debug_containers(world: &World, inside: &Inside, cases: &mut Cases) -> Result<()> {
    let debug = |pod: &'static str, more: &'static str| async move {
        let base = [
            "debug",
            "-n",
            SPACE,
            pod,
            "--image=lab.local/busybox:1",
            "--image-pull-policy=Never",
            "--profile=restricted",
            "--attach=false",
        ];
        inside.must(&[&base[..], &[more, "--", "sleep", "3600"]].concat()).await
    };
    debug("debugged", "--env=NVIDIA_VISIBLE_DEVICES=all").await?;
    debug("probe", "--env=HELLO=1").await?;
    let on = |name: &'static str| async move {
        world.kubectl(&["get", "pod", "-n", TEAM, &on_host(name), "-o", "jsonpath={.spec.ephemeralContainers}"]).await
    };
    eventually("the plain debug container on the host", PATIENCE, || async {
        let there = on("probe").await?;
        Ok(if there.contains("HELLO") { Ok(()) } else { Err(there) })
    })
    .await?;
    // the syncer makes no event of it
    let seen = eventually("the refused debug container in the syncer's log", PATIENCE, || async {
        let log = world.kubectl(&["logs", "-n", TEAM, "-l", "app=vcluster", "--tail=2000"]).await?;
        let refused = log.contains("debugged-x-ml-x-t") && log.contains("devices and limits are given");
        Ok(if refused { Ok(()) } else { Err("not there") }.map_err(str::to_owned))
    })
    .await;
    cases.check("debug container refused", seen.is_ok(), seen.map_err(|e| e.to_string()));
    let there = on("debugged").await?;
    cases.check("debug container with all GPUs", !there.contains("NVIDIA_VISIBLE_DEVICES"), there);
    let plain = on("probe").await?;
    cases.check("debug container hides GPUs", plain.contains(r#""value":"void""#), plain);
    Ok(())
}

/// Nodes inside lead to no kubelet and raise no budget.
async fn nodes(world: &World, inside: &Inside, cases: &mut Cases) -> Result<()> {
    for path in
        ["/api/v1/nodes/gpu-1/proxy/pods", "/api/v1/nodes/cpu-1:10250/proxy/pods", "/api/v1/nodes/gpu-1/proxy/configz"]
    {
        let answer = inside.kubectl(&["get", "--raw", path]).await;
        cases.check(path, answer.as_ref().is_ok_and(|text| !text.contains("other")) || answer.is_err(), answer);
    }
    let name = inside.must(&["get", "nodes", "-o", "jsonpath={.items[0].metadata.name}"]).await?;
    let more = json!({"status": {"capacity": {RESOURCE: "64"}, "allocatable": {RESOURCE: "64"}}}).to_string();
    inside.must(&["patch", "node", &name, "--subresource=status", "--type=merge", "-p", &more]).await?;
    let host = world
        .kubectl(&[
            "get",
            "node",
            "gpu-1",
            "-o",
            &format!("jsonpath={{.status.capacity['{}']}}", RESOURCE.replace('.', "\\.")),
        ])
        .await?;
    cases.check("capacity of the host", host != "64", host);
    Ok(())
}

/// Twenty pods at once get the two devices of the budget.
async fn quota(world: &World, inside: &Inside, cases: &mut Cases) -> Result<()> {
    let pods: Vec<Value> = (0..20).map(|n| pod(&format!("race-{n}"), RESOURCE, "1", json!({}))).collect();
    let before =
        inside.must(&["get", "pods", "-n", SPACE, "--field-selector=status.phase=Running", "-o", "name"]).await?;
    inside.set(&pods).await?;
    inside.running(before.lines().count() + 2).await?;
    let refused = eventually("eighteen pods refused by the quota", PATIENCE, || async {
        let events = inside.all_events().await?;
        let beyond = events.iter().filter(|(_, message)| message.contains("exceeded quota: gputenancy"));
        let refused: BTreeSet<&String> = beyond.map(|(name, _)| name).filter(|n| n.starts_with("race-")).collect();
        Ok(if refused.len() >= 18 { Ok(()) } else { Err(format!("{refused:?}")) })
    })
    .await;
    cases.check("pods beyond the budget", refused.is_ok(), refused.map_err(|e| e.to_string()));
    let host = world.kubectl(&["get", "pods", "-n", TEAM, "-o", "jsonpath={.items[*].metadata.name}"]).await?;
    let raced = host.split(' ').filter(|n| n.starts_with("race-")).count();
    cases.check("devices of twenty pods", raced == 2, host);
    let names: Vec<String> = (0..20).map(|n| format!("race-{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    inside.must(&[&["delete", "pods", "-n", SPACE, "--wait=false"], names.as_slice()].concat()).await.map(drop)
}

/// The status of a pod decides about its quota, its network and its queue: the syncer's right on it changes none of them.
async fn pod_status(world: &World, cases: &mut Cases) -> Result<()> {
    let path = format!("/api/v1/namespaces/t/pods/{}/status", on_host("probe"));
    for change in [
        json!({"status": {"phase": "Succeeded"}}),
        json!({"status": {"podIP": "10.10.0.11", "podIPs": [{"ip": "10.10.0.11"}]}}),
        json!({"status": {"nominatedNodeName": "gpu-2"}}),
        json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
        json!({"metadata": {"labels": {"kai.scheduler/queue": "team-x"}}}),
        json!({"metadata": {"annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=all"}}}),
        json!({"metadata": {"finalizers": ["example.com/keep"]}}),
    ] {
        let answer = SYNCER.may(&world.client, Verb::Merge, &path, &change).await?;
        // a scheduled pod is not nominated again by anyone
        let refusals = ["spec.readinessGates", "status.nominatedNodeName: Forbidden"];
        let held = answer.as_ref().is_err_and(|status| refusals.iter().any(|words| status.message.contains(words)));
        cases.check(&format!("stolen syncer: pods/status {change}"), held, answer.map_err(|s| s.message));
    }
    // an unchanged status is no change
    let answer = SYNCER.may(&world.client, Verb::Merge, &path, &json!({"status": {}})).await?;
    cases.check("stolen syncer: no change of a status", answer.is_ok(), answer.map_err(|s| s.message));
    Ok(())
}

/// What the credentials of the syncer allow on the host: pods within all policies in its own namespace, and nothing elsewhere.
async fn stolen_syncer(world: &World, cases: &mut Cases) -> Result<()> {
    let relaxed = "pod-security.kubernetes.io/enforce=privileged";
    world.kubectl(&["label", "--overwrite", "namespace", TEAM, relaxed]).await?;
    for file in ["resources.yaml", "environment.yaml", "devices.yaml", "placement.yaml", "mounts.yaml"] {
        for mut object in manifests(world, file).await?.into_iter().filter(|object| object["kind"] == "Pod") {
            let words = refusal(&object).unwrap_or_default();
            object["metadata"].as_object_mut().unwrap().remove("namespace");
            let answer = SYNCER.may(&world.client, Verb::Create, "/api/v1/namespaces/t/pods", &object).await?;
            let held = answer.as_ref().is_err_and(|status| status.message.contains(&words));
            cases.check(&format!("stolen syncer: {}", object["metadata"]["name"]), held, answer.map_err(|s| s.message));
        }
    }
    pod_status(world, cases).await?;
    let some = json!({"metadata": {"name": "x"}});
    let label = json!({"metadata": {"labels": {"gputenancy.io/tenant": "other"}}});
    let bind = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": on_host("probe")}, "target": {"apiVersion": "v1", "kind": "Node", "name": "gpu-2"}});
    let token = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}});
    let admin = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "more"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}, "subjects": []});
    let binding = format!("/api/v1/namespaces/t/pods/{}/binding", on_host("probe"));
    for (verb, path, body) in [
        (Verb::Create, "/api/v1/namespaces/other/pods", &some),
        (Verb::Create, "/api/v1/namespaces/other/secrets", &some),
        (Verb::Delete, "/api/v1/namespaces/other/pods/web", &some),
        (Verb::Create, "/api/v1/namespaces", &some),
        (Verb::Merge, "/api/v1/namespaces/t", &label),
        (Verb::Create, "/api/v1/nodes", &some),
        (Verb::Merge, "/api/v1/nodes/gpu-1", &label),
        (Verb::Create, "/api/v1/nodes/gpu-1/proxy/run", &some),
        (Verb::Create, &binding, &bind),
        (Verb::Create, "/api/v1/persistentvolumes", &some),
        (Verb::Merge, "/api/v1/namespaces/t/resourcequotas/gputenancy", &json!({"spec": {"hard": {"pods": "999"}}})),
        (Verb::Delete, "/api/v1/namespaces/t/resourcequotas/gputenancy", &some),
        (Verb::Delete, "/api/v1/namespaces/t/limitranges/gputenancy", &some),
        (Verb::Delete, "/apis/networking.k8s.io/v1/namespaces/t/networkpolicies/gputenancy", &some),
        (
            Verb::Merge,
            "/apis/gputenancy.io/v1alpha1/namespaces/t/gpugrants/grant",
            &json!({"spec": {"resources": {"nvidia.com/gpu": 8}}}),
        ),
        (Verb::Merge, "/apis/gputenancy.io/v1alpha1/gputenants/t", &json!({"spec": {"trust": "Trusted"}})),
        (Verb::Create, "/apis/rbac.authorization.k8s.io/v1/namespaces/t/rolebindings", &admin),
        (Verb::Create, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &admin),
        (Verb::Create, "/api/v1/namespaces/gputenancy-system/serviceaccounts/gputenancy-agent/token", &token),
        (Verb::Create, "/api/v1/namespaces/kube-system/serviceaccounts/default/token", &token),
    ] {
        let answer = SYNCER.may(&world.client, verb, path, body).await?;
        let held = answer.as_ref().is_err_and(kube::core::Status::is_forbidden);
        cases.check(&format!("stolen syncer: {verb:?} {path}"), held, answer.map_err(|s| s.message));
    }
    let account = format!("--as=system:serviceaccount:{TEAM}:vc-{TEAM}");
    for (verb, resource, namespace) in [
        ("get", "secrets", "kube-system"),
        ("list", "pods", "other"),
        ("watch", "gpunodes", "default"),
        ("list", "nodes", "default"),
        ("get", "configmaps", "gputenancy-system"),
    ] {
        let answer = world.kubectl(&["auth", "can-i", verb, resource, "-n", namespace, &account]).await;
        cases.check(
            &format!("stolen syncer: {verb} {resource} in {namespace}"),
            answer.is_err(),
            answer.map_err(|e| e.to_string()),
        );
    }
    Ok(())
}
