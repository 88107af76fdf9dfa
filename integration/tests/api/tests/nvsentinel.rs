//! What NVSentinel does to pods of tenants: its node drainer deletes them by force, and its preflight adds init containers.

use e2e::{
    Result, World,
    actor::{Actor, Verb},
    fixtures::merged,
    objects::ensure,
    product,
    wait::{PATIENCE, eventually},
};
use serde_json::{Value, json};

use crate::bypass::{OWNER, two_teams};

const DRAINER: &str = "system:serviceaccount:nvsentinel:node-drainer";
const PODS: &str = "/api/v1/namespaces/t/pods";
const SLICE: &str = "nvidia.com/mig-1g.10gb";

/// A pod with a device that the restricted Pod Security Standard admits.
fn workload(name: &str, spec: Value) -> Value {
    let container = json!({"name": "c", "image": "i", "resources": {"limits": {SLICE: 1}, "requests": {SLICE: 1}}, "securityContext": restricted()});
    let security = json!({"runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}});
    let spec = merged(json!({"containers": [container], "securityContext": security}), spec);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
}

fn restricted() -> Value {
    json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}})
}

#[tokio::test]
async fn node_drainer_deletes_running_pods_by_force_only_with_its_preset() {
    let world = World::enter_api().await.unwrap();
    let outcome = forced(&world).await;
    world.kubectl(&["delete", "pod", "lost", "-n", "t", "--ignore-not-found", "--force"]).await.unwrap();
    world
        .kubectl(&["delete", "clusterrolebinding,clusterrole", "e2e-node-drainer", "--ignore-not-found"])
        .await
        .unwrap();
    world.reinstall_api(&[]).await.unwrap();
    world.keeping_evidence("nvsentinel-force", async { outcome }).await;
}

/// As `DeleteAfterTimeout` of the drainer deletes a pod.
async fn force(world: &World, user: &str) -> Result<String> {
    let delete = ["delete", "pod", "lost", "-n", "t", "--grace-period=0", "--force", "--dry-run=server", "--as", user];
    Ok(world.kubectl(&delete).await.err().map(|error| error.to_string()).unwrap_or_default())
}

async fn forced(world: &World) -> Result<()> {
    two_teams(world).await?;
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "delete"]}]);
    let of = |kind: &str, fields: Value| {
        let object = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": "e2e-node-drainer"}});
        merged(object, fields)
    };
    let subjects = json!([{"kind": "ServiceAccount", "namespace": "nvsentinel", "name": "node-drainer"}, {"kind": "ServiceAccount", "namespace": "t", "name": "node-drainer"}]);
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "e2e-node-drainer"});
    world
        .set(&[
            of("ClusterRole", json!({"rules": rules})),
            of("ClusterRoleBinding", json!({"roleRef": role, "subjects": subjects})),
        ])
        .await?;
    // bound to a node that does not exist: it stays as it is
    let pod = workload("lost", json!({"nodeSelector": {"example.com/none": "x"}}));
    OWNER.does(&world.client, Verb::Create, PODS, &pod).await?;
    let target = json!({"apiVersion": "v1", "kind": "Node", "name": "gone"});
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "lost"}, "target": target});
    Actor::Admin.does(&world.client, Verb::Create, &format!("{PODS}/lost/binding"), &binding).await?;

    let refused = force(world, DRAINER).await?;
    ensure(
        refused.contains("gracePeriodSeconds: 0 removes a pod of a tenant"),
        format!("without the preset: {refused}"),
    )?;
    product::install(&world.lab, &["presets.nvsentinel.enabled=true"]).await?;
    eventually("the preset to be enforced", PATIENCE, || async {
        let refused = force(world, DRAINER).await?;
        Ok(if refused.is_empty() { Ok(()) } else { Err(refused) })
    })
    .await?;
    let namesake = force(world, "system:serviceaccount:t:node-drainer").await?;
    ensure(namesake.contains("gracePeriodSeconds: 0"), format!("an account of the same name elsewhere: {namesake}"))
}

/// An init container as preflight of NVSentinel 1.28 adds it.
fn preflight(name: &str, more: Value) -> Value {
    let amounts = json!({"cpu": "100m", "memory": "500Mi", SLICE: 1});
    let container = json!({
        "name": name, "image": format!("ghcr.io/nvidia/nvsentinel/{name}:v1.28.0"),
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}, {"name": "PROCESSING_STRATEGY", "value": "EXECUTE_REMEDIATION"}],
        "resources": {"requests": amounts, "limits": {SLICE: 1}},
    });
    merged(container, more)
}

#[tokio::test]
async fn preflight_is_refused_by_name_and_admitted_without_host_folders_and_capabilities() {
    let world = World::enter_api().await.unwrap();
    let body = async {
        two_teams(&world).await?;
        // other registries than those of the team would be refused as well
        world
            .kubectl(&[
                "patch",
                "gputenant",
                "t",
                "--type=json",
                "-p",
                r#"[{"op": "remove", "path": "/spec/imageRegistries"}]"#,
            ])
            .await?;
        let socket = json!({"volumeMounts": [{"name": "nvsentinel-socket", "mountPath": "/var/run"}]});
        let lock = json!({"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}});
        let volumes = json!([{"name": "nvsentinel-socket", "hostPath": {"path": "/var/run/nvsentinel", "type": "DirectoryOrCreate"}}]);
        let by_default = workload(
            "w",
            json!({"volumes": volumes, "initContainers": [
                preflight("preflight-dcgm-diag", socket.clone()), preflight("preflight-nccl-allreduce", merged(socket.clone(), lock.clone())),
            ]}),
        );
        let answer = OWNER.may(&world.client, Verb::Create, PODS, &by_default).await?;
        let message = answer.err().map(|status| status.message).unwrap_or_default();
        for words in [
            "violates PodSecurity",
            "volume \"nvsentinel-socket\" uses restricted volume type \"hostPath\"",
            "preflight-nccl-allreduce",
            "IPC_LOCK",
        ] {
            ensure(message.contains(words), format!("{words} is not in: {message}"))?;
        }
        let one = |container| workload("w", json!({"initContainers": [container]}));
        let of_the_lock = one(preflight("preflight-nccl-allreduce", lock));
        OWNER.check(&world.client, Verb::Create, PODS, &of_the_lock, Some("IPC_LOCK")).await?;
        // as docs/node-health.md configures it
        let restricted = one(preflight("preflight-dcgm-diag", json!({"securityContext": restricted()})));
        eventually("the list of registries to be gone", PATIENCE, || async {
            let answer = OWNER.may(&world.client, Verb::Create, PODS, &restricted).await?;
            Ok(answer.map(drop).map_err(|status| status.message))
        })
        .await
    };
    world.keeping_evidence("nvsentinel-preflight", body).await;
}
