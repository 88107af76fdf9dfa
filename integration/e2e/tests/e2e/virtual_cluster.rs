//! A virtual cluster from one field of its tenant, with the real vCluster: its own budget inside, quotas and policies of the host, repair,
//! and nothing left afterwards.

use std::{process::Stdio, time::Duration};

use e2e::{
    Error, Result, World,
    fixtures::{merged, mig_profile, pod_spec, pool, tenant},
    objects::ensure,
    product,
    scenario::{tenant_ready, wait_for_devices},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{GpuTenant, VIRTUAL_CLUSTER_FINALIZER};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

const NODE: &str = "gpu-1";
const TEAM: &str = "vc-a";
const RESOURCE: &str = "nvidia.com/mig-1g.10gb";
const START: Duration = Duration::from_mins(4);

/// Values of the chart that serve virtual clusters in the lab: its image for both roles, and requests that its nodes can give.
const VALUES: &str = r#"{
    "controlPlane": {
        "distro": {"k8s": {
            "image": {"registry": "lab.local", "repository": "vcluster", "tag": "0.36.1"}, "imagePullPolicy": "Never",
            "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}}
        }},
        "statefulSet": {
            "image": {"registry": "lab.local", "repository": "vcluster", "tag": "0.36.1"}, "imagePullPolicy": "Never",
            "persistence": {"volumeClaim": {"enabled": false}},
            "resources": {"requests": {"cpu": "50m", "memory": "128Mi", "ephemeral-storage": "1Mi"}}
        },
        "coredns": {"deployment": {"image": "lab.local/coredns:1"}}
    }
}"#;

#[tokio::test]
async fn virtual_cluster_shows_and_keeps_its_budget_and_leaves_nothing() {
    let world = World::attach().await.unwrap();
    world.keeping_evidence("virtual-cluster", async { life(&world).await }).await;
}

async fn life(world: &World) -> Result<()> {
    install(world).await?;
    let mut team = tenant(TEAM, &[("mig-1g", 2)]);
    team["spec"] = merged(team["spec"].take(), json!({"virtualCluster": {"version": "0.36.1"}}));
    world.set(&[mig_profile("mig-1g", "1g.10gb"), pool("p", NODE, &["mig-1g"]), team]).await?;
    eventually("the virtual cluster Ready", START, || ready(world)).await?;
    tenant_ready(world, TEAM).await?;

    let inside = Inside::open(world).await?;
    shows_the_budget(&inside, 2).await?;
    pods_run_within_the_budget(world, &inside).await?;
    pods_pass_by_no_policy(&inside).await?;
    the_budget_follows_the_tenant(world, &inside).await?;
    changes_are_repaired(world).await?;
    drop(inside);
    removal_leaves_nothing(world).await
}

async fn install(world: &World) -> Result<()> {
    for image in ["lab.local/vcluster:0.36.1", "lab.local/gputenancy-virtual-clusters:dev"] {
        world.lab.load_image(image).await?;
    }
    let values = tempfile::Builder::new().suffix(".yaml").tempfile();
    let values = values.map_err(|source| Error::Io { what: "writing values".into(), source })?;
    let platform: Value = serde_json::from_str(VALUES).map_err(|error| Error::Wrong(error.to_string()))?;
    let image = json!({"repository": "lab.local/gputenancy-virtual-clusters", "tag": "dev", "pullPolicy": "Never"});
    let all = json!({"virtualClusters": {"enabled": true, "values": platform}, "image": {"virtualClusters": image}});
    std::fs::write(values.path(), all.to_string())
        .map_err(|source| Error::Io { what: "writing values".into(), source })?;
    world.reinstall_with(&[], &["--values", &values.path().display().to_string()]).await
}

async fn ready(world: &World) -> Result<std::result::Result<(), String>> {
    let tenant = Api::<GpuTenant>::all(world.client.clone()).get(TEAM).await?;
    let status = tenant.status.unwrap_or_default().virtual_cluster.unwrap_or_default();
    let ready = status.conditions.iter().find(|c| c.type_ == "Ready");
    Ok(match ready {
        Some(c) if c.status == "True" => Ok(()),
        other => Err(other.map_or_else(|| "no condition".into(), |c| format!("{}: {}", c.reason, c.message))),
    })
}

/// The team's own access: the kubeconfig it was given, through a forwarded port.
struct Inside {
    kubeconfig: tempfile::NamedTempFile,
    server: String,
    _forward: Child,
}

impl Inside {
    async fn open(world: &World) -> Result<Self> {
        let io = |source| Error::Io { what: "reaching the virtual cluster".into(), source };
        let output = product::kubectl_gpu(&world.lab.kubeconfig_path(), &["kubeconfig", TEAM]).await?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure(
            text.contains("token") && !text.contains("client-key"),
            format!("a token and no certificate: {output:?}"),
        )?;
        let kubeconfig = tempfile::NamedTempFile::new().map_err(io)?;
        std::fs::write(kubeconfig.path(), &text).map_err(io)?;
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).map_err(io)?.port();
        let forward = Command::new(product::root().join("target/toolset/bin/kubectl"))
            .arg("--kubeconfig")
            .arg(world.lab.kubeconfig_path())
            .args(["-n", TEAM, "port-forward", &format!("service/{TEAM}"), &format!("{port}:443")])
            .stdout(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(io)?;
        let inside = Self { kubeconfig, server: format!("https://127.0.0.1:{port}"), _forward: forward };
        eventually("an answer from inside", PATIENCE, || async { Ok(inside.kubectl(&["get", "ns"]).await.map(drop)) })
            .await?;
        Ok(inside)
    }

    /// Runs kubectl inside: its output, or its errors.
    async fn kubectl(&self, args: &[&str]) -> std::result::Result<String, String> {
        let mut command = Command::new(product::root().join("target/toolset/bin/kubectl"));
        command.arg("--kubeconfig").arg(self.kubeconfig.path());
        command.args(["--server", &self.server, "--tls-server-name", &format!("{TEAM}.{TEAM}.svc")]).args(args);
        command.env("HOME", std::env::temp_dir()).stdin(Stdio::null()).kill_on_drop(true);
        let output = command.output().await.map_err(|e| e.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    async fn apply(&self, object: &Value) -> std::result::Result<String, String> {
        let file = tempfile::Builder::new().suffix(".json").tempfile().map_err(|e| e.to_string())?;
        std::fs::write(file.path(), object.to_string()).map_err(|e| e.to_string())?;
        self.kubectl(&["apply", "-f", &file.path().display().to_string()]).await
    }

    async fn must(&self, args: &[&str]) -> Result<String> {
        self.kubectl(args).await.map_err(Error::Wrong)
    }
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

/// A pod in a namespace of the team's own.
fn pod(name: &str, devices: &str, spec: Value) -> Value {
    let spec = merged(merged(pod_spec(RESOURCE), json!({"restartPolicy": "Never"})), spec);
    let mut pod =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ml"}, "spec": spec});
    if let Some(limit) = pod.pointer_mut("/spec/containers/0/resources/limits") {
        *limit = json!({RESOURCE: devices});
    }
    pod
}

async fn pods_run_within_the_budget(world: &World, inside: &Inside) -> Result<()> {
    inside.must(&["create", "namespace", "ml"]).await?;
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "models.team.example"},
        "spec": {"group": "team.example", "scope": "Namespaced", "names": {"plural": "models", "kind": "Model"}, "versions": [
            {"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}},
        ]},
    });
    inside.apply(&crd).await.map_err(Error::Wrong)?;
    for name in ["one", "two", "three"] {
        inside.apply(&pod(name, "1", json!({}))).await.map_err(Error::Wrong)?;
    }
    eventually("two pods Running inside", PATIENCE, || async {
        let phases = inside.kubectl(&["get", "pods", "-n", "ml", "-o", "jsonpath={.items[*].status.phase}"]).await;
        let phases = phases.unwrap_or_default();
        let count = phases.split(' ').filter(|p| *p == "Running").count();
        Ok(if count == 2 { Ok(()) } else { Err(phases) })
    })
    .await?;
    let held = wait_for_devices(world, &[NODE], 2).await?;
    ensure(held.keys().all(|pod| pod.ends_with("-x-ml-x-vc-a")), format!("devices of synced pods: {held:?}"))?;
    eventually("an event inside about the quota", PATIENCE, || async {
        let events = inside.kubectl(&["get", "events", "-n", "ml", "-o", "jsonpath={.items[*].message}"]).await;
        let events = events.unwrap_or_else(|error| error);
        Ok(if events.contains("exceeded quota: gputenancy") { Ok(()) } else { Err(events) })
    })
    .await?;
    let described = inside.must(&["describe", "nodes"]).await?;
    ensure(described.contains(RESOURCE), described)?;
    shows_the_budget(inside, 2).await
}

/// Pods that would pass by scheduler, quota or isolation are refused by the host, with the reason as an event inside.
async fn pods_pass_by_no_policy(inside: &Inside) -> Result<()> {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-2"}});
    drop(inside.apply(&node).await);
    let cases = [
        ("bound", json!({"nodeName": "gpu-2"}), "spec.nodeName would pass by the scheduler"),
        ("foreign", json!({"schedulerName": "mine"}), "spec.schedulerName"),
        ("class", json!({"runtimeClassName": "nvidia-legacy"}), "spec.runtimeClassName"),
        ("anywhere", json!({"tolerations": [{"operator": "Exists"}]}), "name the key of each taint"),
        ("host", json!({"volumes": [{"name": "dev", "hostPath": {"path": "/dev"}}]}), "hostPath"),
        ("net", json!({"hostNetwork": true}), "hostNetwork"),
    ];
    for (name, spec, excerpt) in cases {
        // some are refused inside already
        let answer = inside.apply(&pod(name, "1", spec)).await;
        if answer.as_ref().is_err_and(|error| error.contains(excerpt) || error.contains("not found")) {
            continue;
        }
        eventually(&format!("pod {name} refused: {excerpt}"), PATIENCE, || async {
            let field = format!("involvedObject.name={name}");
            let path = "jsonpath={.items[*].message}";
            let events = inside.kubectl(&["get", "events", "-n", "ml", "--field-selector", &field, "-o", path]).await;
            let events = events.unwrap_or_else(|error| error);
            Ok(if events.contains(excerpt) { Ok(()) } else { Err(format!("{answer:?}; {events}")) })
        })
        .await?;
        let phase = inside.must(&["get", "pod", "-n", "ml", name, "-o", "jsonpath={.status.phase}"]).await?;
        ensure(phase != "Running", format!("{name} is {phase}"))?;
        inside.must(&["delete", "pod", "-n", "ml", name, "--wait=false"]).await?;
    }
    Ok(())
}

async fn the_budget_follows_the_tenant(world: &World, inside: &Inside) -> Result<()> {
    let patch = r#"{"spec": {"gpus": [{"profile": "mig-1g", "count": 3}]}}"#;
    world.kubectl(&["patch", "gputenant", TEAM, "--type=merge", "-p", patch]).await?;
    shows_the_budget(inside, 3).await?;
    // the third pod was refused by the quota, and starts now
    eventually("three pods Running inside", PATIENCE, || async {
        let phases = inside.kubectl(&["get", "pods", "-n", "ml", "-o", "jsonpath={.items[*].status.phase}"]).await;
        let phases = phases.unwrap_or_default();
        let count = phases.split(' ').filter(|p| *p == "Running").count();
        Ok(if count == 3 { Ok(()) } else { Err(phases) })
    })
    .await
}

async fn changes_are_repaired(world: &World) -> Result<()> {
    let uid = "jsonpath={.metadata.uid}";
    world.kubectl(&["label", "service", "-n", TEAM, TEAM, "app=other", "--overwrite"]).await?;
    world.kubectl(&["delete", "role", "-n", TEAM, "vc-vc-a"]).await?;
    eventually("the Role and the label back", PATIENCE, || async {
        let role = world.kubectl(&["get", "role", "-n", TEAM, "vc-vc-a", "-o", uid, "--ignore-not-found"]).await?;
        let label =
            world.kubectl(&["get", "service", "-n", TEAM, TEAM, "-o", "jsonpath={.metadata.labels.app}"]).await?;
        Ok(if !role.is_empty() && label == "vcluster" { Ok(()) } else { Err(format!("{role:?} {label:?}")) })
    })
    .await?;
    eventually("the event of the repair", PATIENCE, || async {
        let events = world.kubectl(&["get", "events", "-n", "default", "-o", "jsonpath={.items[*].reason}"]).await?;
        Ok(if events.contains("VirtualClusterRepaired") { Ok(()) } else { Err(events) })
    })
    .await
}

/// Without the field its virtual cluster goes and the namespace stays; then the tenant goes with the namespace.
async fn removal_leaves_nothing(world: &World) -> Result<()> {
    let patch = r#"[{"op": "remove", "path": "/spec/virtualCluster"}]"#;
    world.kubectl(&["patch", "gputenant", TEAM, "--type=json", "-p", patch]).await?;
    eventually("the virtual cluster gone and the namespace kept", START, || async {
        let tenant = Api::<GpuTenant>::all(world.client.clone()).get(TEAM).await?;
        if tenant.finalizers().iter().any(|f| f == VIRTUAL_CLUSTER_FINALIZER) {
            let status = tenant.status.and_then(|s| s.virtual_cluster).unwrap_or_default();
            return Ok(Err(status.conditions.iter().map(|c| c.message.clone()).collect::<Vec<_>>().join("; ")));
        }
        Ok(Ok(()))
    })
    .await?;
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
