//! Tolerations of a cordon: the controller of `DaemonSets` writes them, and no account of a team does by its name.

use e2e::{
    Result, World,
    actor::{Actor, Verb},
    wait::{PATIENCE, eventually},
};
use serde_json::json;

const RBAC: &str = "rbac.authorization.k8s.io";
const REFUSED: Option<&str> = Some("node.kubernetes.io/unschedulable may not be tolerated by this pod");

/// Team `t` has no virtual cluster, and so no syncer: the names of its `ServiceAccounts` give no right.
pub(crate) async fn only_daemon_sets_tolerate_cordons(world: &World) -> Result<()> {
    let bindings = format!("/apis/{RBAC}/v1/namespaces/t/rolebindings");
    let group = json!({"apiGroup": RBAC, "kind": "Group", "name": "system:serviceaccounts:t"});
    let edit = json!({"apiGroup": RBAC, "kind": "ClusterRole", "name": "edit"});
    let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "e2e-accounts"}, "roleRef": edit, "subjects": [group]});
    Actor::Admin.does(&world.client, Verb::Create, &bindings, &binding).await?;
    let restricted = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    let container = json!({"name": "c", "image": "i", "securityContext": restricted});
    let toleration = json!({"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "tolerations": [toleration], "containers": [container]}});
    let path = "/api/v1/namespaces/t/pods";
    for (namespace, name, refused) in [
        ("kube-system", "daemon-set-controller", None),
        ("t", "vc-x", REFUSED),
        ("t", "vc-t", REFUSED),
        ("t", "default", REFUSED),
    ] {
        // rights take effect a moment later
        eventually("the answer to a pod that tolerates cordons", PATIENCE, || async {
            let account = Actor::Account(namespace, name);
            let answer = account.check(&world.client, Verb::Create, path, &pod, refused).await;
            Ok(answer.map_err(|error| error.to_string()))
        })
        .await?;
    }
    Actor::Admin.does(&world.client, Verb::Delete, &format!("{bindings}/e2e-accounts"), &json!({})).await.map(drop)
}
