//! The program that follows the label protocol of NVIDIA's MIG manager, in a namespace of its own as the GPU Operator is.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    Result, World,
    wait::{PATIENCE, eventually},
};

/// The namespace.
pub const NAMESPACE: &str = "gpu-operator";
/// The managed node.
pub const NODE: &str = "gpu-1";
/// Seconds it waits for the GPU Operator's pods to stop.
pub const WAIT: u64 = 5;
/// Limit of a change by the MIG manager: kubelet updates the mounted layout about once a minute.
pub const LIMIT: Duration = Duration::from_mins(8);
/// Annotation of the node with a fault of the MIG manager.
const FAULT: &str = "mig-manager.test/fault";
/// Labels as before any MIG manager.
const LABELS: [&str; 7] = [
    "nvidia.com/mig.config-",
    "nvidia.com/mig.config.state-",
    "nvidia.com/gpu.deploy.gpu-feature-discovery-",
    "nvidia.com/gpu.deploy.dcgm-exporter-",
    "nvidia.com/gpu.deploy.nvsm-",
    "nvidia.com/gpu.deploy.dcgm=true",
    "nvidia.com/gpu.deploy.device-plugin=false",
];

/// Creates the namespace, stops the MIG manager of an earlier test, and resets its labels.
pub async fn prepare(world: &World) -> Result<()> {
    world.apply(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}).to_string()).await?;
    stop(world).await?;
    world.kubectl(&[&["label", "node", NODE, "--overwrite"][..], &LABELS].concat()).await?;
    world.kubectl(&["annotate", "node", NODE, &format!("{FAULT}-")]).await.map(drop)
}

/// Removes the MIG manager and its labels: for other pools they mean a conflicting owner. Without any nothing is done.
pub async fn remove(world: &World) -> Result<()> {
    let node = Api::<Node>::all(world.client.clone()).get(NODE).await?;
    let name = |label: &&str| label.split('=').next().unwrap_or_default().trim_end_matches('-').to_owned();
    let pods = Api::<Pod>::namespaced(world.client.clone(), NAMESPACE).list(&ListParams::default()).await?;
    let labelled = LABELS.iter().any(|label| node.labels().contains_key(&name(label)));
    if pods.items.is_empty() && !labelled && !node.annotations().contains_key(FAULT) {
        return Ok(());
    }
    stop(world).await?;
    let labels: Vec<String> = LABELS.iter().map(|label| format!("{}-", name(label))).collect();
    let labels = labels.iter().map(String::as_str);
    world.kubectl(&["label", "node", NODE].into_iter().chain(labels).collect::<Vec<_>>()).await?;
    world.kubectl(&["annotate", "node", NODE, &format!("{FAULT}-")]).await.map(drop)
}

/// Stops the MIG manager.
pub async fn stop(world: &World) -> Result<()> {
    let kinds = ["delete", "daemonsets,pods", "--all", "--namespace", NAMESPACE, "--wait", "--timeout=2m"];
    world.kubectl(&kinds).await.map(drop)
}

/// Starts the MIG manager.
pub async fn start(world: &World) -> Result<()> {
    world.set(&objects()).await?;
    world.pods_ready(NAMESPACE, 1).await.map(drop)
}

/// Annotates the pod, so that kubelet updates its mounted `ConfigMap` at once instead of within a minute.
pub async fn nudge(world: &World) -> Result<()> {
    let pods = Api::<Pod>::namespaced(world.client.clone(), NAMESPACE);
    for pod in pods.list(&ListParams::default().labels("app=mig-manager")).await? {
        let beat = k8s_openapi::jiff::Timestamp::now().as_second() / 5;
        let patch = json!({"metadata": {"annotations": {"mig-manager.test/nudge": beat.to_string()}}});
        pods.patch(&pod.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await?;
    }
    Ok(())
}

/// A label of the node.
pub async fn label(world: &World, name: &str) -> Result<Option<String>> {
    let node = Api::<Node>::all(world.client.clone()).get(NODE).await?;
    Ok(node.labels().get(name).cloned())
}

/// Waits until a label of the node satisfies a predicate, and returns its value.
pub async fn label_becomes(world: &World, name: &str, good: impl Fn(&str) -> bool) -> Result<String> {
    eventually(&format!("label {name} of {NODE}"), PATIENCE, || async {
        nudge(world).await?;
        let value = label(world, name).await?.unwrap_or_default();
        Ok(if good(&value) { Ok(value) } else { Err(value) })
    })
    .await
}

fn objects() -> Vec<Value> {
    let account = json!({"name": "mig-manager", "namespace": NAMESPACE});
    let api = "rbac.authorization.k8s.io";
    let labels = json!({"app": "mig-manager"});
    let container = json!({
        "name": "mig-manager", "image": "lab.local/gputenancy-mig-manager:dev", "imagePullPolicy": "Never",
        "args": [format!("--wait={WAIT}"), "--driver-root=/run/nvidia/driver", format!("--namespace={NAMESPACE}")],
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "securityContext": {"privileged": true},
        "volumeMounts": [
            {"name": "config", "mountPath": "/mig-parted-config"},
            {"name": "run-nvidia", "mountPath": "/run/nvidia", "mountPropagation": "HostToContainer"},
            {"name": "dev", "mountPath": "/dev"},
        ],
    });
    vec![
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}),
        json!({
            "apiVersion": format!("{api}/v1"), "kind": "ClusterRole", "metadata": {"name": "mig-manager"},
            "rules": [
                {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
                {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]},
            ],
        }),
        json!({
            "apiVersion": format!("{api}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": "mig-manager"},
            "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": "mig-manager"},
            "subjects": [{"kind": "ServiceAccount", "name": "mig-manager", "namespace": NAMESPACE}],
        }),
        json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": account,
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {
                    "serviceAccountName": "mig-manager", "nodeSelector": {"kubernetes.io/hostname": NODE}, "hostPID": true,
                    "terminationGracePeriodSeconds": 1, "tolerations": [{"operator": "Exists"}], "containers": [container],
                    "volumes": [
                        {"name": "config", "configMap": {"name": "gputenancy-mig-config"}},
                        {"name": "run-nvidia", "hostPath": {"path": "/run/nvidia"}},
                        {"name": "dev", "hostPath": {"path": "/dev"}},
                    ],
                }},
            },
        }),
    ]
}
