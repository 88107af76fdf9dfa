//! Objects and starting states that several tests use.

use serde_json::{Value, json};

pub use crate::specs::{merged, patched, restricted_spec};
use crate::{
    Error, Result, World,
    scenario::{pool_ready, tenant_ready, wait_for_devices},
};

/// A profile for a MIG shape of the A100-80.
pub fn mig_profile(name: &str, shape: &str) -> Value {
    json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": name},
        "spec": {"device": {"mig": {"profile": shape}}, "support": {"expected": "shares the board's power budget", "incident": "less memory than stated"}},
    })
}

/// A pool of one node, by host name, that may carry these profiles.
pub fn pool(name: &str, node: &str, profiles: &[&str]) -> Value {
    json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuPool", "metadata": {"name": name},
        "spec": {"nodeSelector": {"matchLabels": {"kubernetes.io/hostname": node}}, "profiles": profiles, "disruption": {"maxUnavailable": 2}},
    })
}

/// A tenant with one namespace of its own name and these guarantees.
pub fn tenant(name: &str, guarantees: &[(&str, i32)]) -> Value {
    let gpus: Vec<Value> =
        guarantees.iter().map(|(profile, count)| json!({"profile": profile, "count": count})).collect();
    json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuTenant", "metadata": {"name": name},
        "spec": {"namespaces": [{"name": name}], "gpus": gpus, "deletionProtection": false},
    })
}

/// A Deployment whose pods hold one device each with a running process.
pub fn workload(namespace: &str, name: &str, resource: &str, replicas: i32) -> Value {
    deployment(namespace, name, replicas.into(), &pod_spec(resource))
}

/// A Deployment of pods with this spec, labelled `app=NAME`.
pub fn deployment(namespace: &str, name: &str, replicas: i64, pod: &Value) -> Value {
    let labels = json!({"app": name});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    })
}

/// The spec of a pod that holds one device until it is terminated.
pub fn pod_spec(resource: &str) -> Value {
    let spec = restricted_spec(json!({
        "name": "work", "image": "lab.local/gputenancy-workload:dev", "imagePullPolicy": "Never",
        "command": ["/usr/bin/gpu-work", "hold", "--memory", "1Gi"], "resources": {"limits": {resource: "1"}},
    }));
    merged(spec, json!({"terminationGracePeriodSeconds": 2}))
}

/// The spec of a pod that requests devices of a resource, counts towards quotas, and is never scheduled.
pub fn gated_pod(resource: &str, devices: i64) -> Value {
    let mut spec = restricted_spec(json!({
        "name": "work", "image": "lab.local/gputenancy-workload:dev", "imagePullPolicy": "Never",
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {resource: devices.to_string()}},
    }));
    if let Some(fields) = spec.as_object_mut() {
        fields.insert("schedulingGates".into(), json!([{"name": "example.com/never"}]));
        fields.insert("terminationGracePeriodSeconds".into(), json!(1));
    }
    spec
}

/// A `PodDisruptionBudget` for the pods of [`workload`] `w` that permits no eviction.
pub fn no_eviction(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name, "namespace": namespace},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"app": "w"}}},
    })
}

impl World {
    /// Applies objects given as JSON.
    pub async fn set(&self, objects: &[Value]) -> Result<()> {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        self.apply(&list.to_string()).await.map(drop)
    }
}

/// One node of two GPUs; `small` has a pod on each of them, so that a third `3g.40gb` evicts one of the two.
pub async fn two_small_pods(world: &World) -> Result<()> {
    two_small_pods_of(world, &pod_spec("nvidia.com/mig-1g.10gb")).await
}

/// As [`two_small_pods`], of pods with this spec, which asks for one `1g.10gb`.
pub async fn two_small_pods_of(world: &World, spec: &Value) -> Result<()> {
    world.set(&[mig_profile("mig-1g", "1g.10gb"), mig_profile("mig-3g", "3g.40gb")]).await?;
    let mut fill = pool("p", "gpu-1", &["mig-1g", "mig-3g"]);
    if let Some(spec) = fill.pointer_mut("/spec").and_then(Value::as_object_mut) {
        spec.insert("layout".into(), json!({"spare": {"policy": "Fill", "profile": "mig-1g"}}));
    }
    world.set(&[fill, tenant("small", &[("mig-1g", 14)]), tenant("big", &[("mig-3g", 0)])]).await?;
    tenant_ready(world, "small").await?;
    tenant_ready(world, "big").await?;
    pool_ready(world, "p").await?;
    // fourteen pods fill both GPUs; then one pod is kept on each
    world.set(&[deployment("small", "w", 14, spec)]).await?;
    world.pods_ready("small", 14).await?;
    let held = wait_for_devices(world, &["gpu-1"], 14).await?;
    let keep = |gpu: i32| held.iter().find(|(_, (_, g, _))| *g == gpu).map(|(pod, _)| pod.clone());
    let (Some(first), Some(second)) = (keep(0), keep(1)) else {
        return Err(Error::Wrong(format!("pods on both GPUs: {held:?}")));
    };
    for pod in held.keys().filter(|p| **p != first && **p != second) {
        let cost = "controller.kubernetes.io/pod-deletion-cost=-100";
        world.kubectl(&["annotate", "pod", "-n", "small", pod, cost]).await?;
    }
    world.kubectl(&["scale", "deployment", "-n", "small", "w", "--replicas=2"]).await?;
    wait_for_devices(world, &["gpu-1"], 2).await.map(drop)
}

/// A canary pod as the operator writes it, with these fields of its pod, of its spec and of its container applied to it as merge patches.
pub fn canary(pod: Value, spec: Value, container: Value) -> Value {
    let device = json!({"gputenancy.io/canary_0_4": "1"});
    let all = json!({
        "name": "canary", "image": "x", "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
        "resources": {"limits": device, "requests": device},
    });
    let here = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}]});
    let affinity =
        json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [here]}}});
    let fields = json!({
        "restartPolicy": "Never", "activeDeadlineSeconds": 120, "terminationGracePeriodSeconds": 5,
        "priorityClassName": "gputenancy-canary", "serviceAccountName": "gputenancy-canary",
        "automountServiceAccountToken": false, "enableServiceLinks": false, "affinity": affinity,
        "tolerations": [{"operator": "Exists"}],
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [patched(all, container)],
    });
    let labels = json!({
        "app.kubernetes.io/name": "gputenancy-canary", "app.kubernetes.io/managed-by": "gputenancy",
        "gputenancy.io/canary": "1g.10gb",
    });
    let notes = json!({"gputenancy.io/canary-node": "gpu-1", "gputenancy.io/canary-device": "1g.10gb at 4"});
    let metadata = json!({"name": "canary", "labels": labels, "annotations": notes});
    patched(json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": patched(fields, spec)}), pod)
}
