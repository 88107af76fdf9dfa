//! A tenant that is restored from a backup next to its virtual cluster: without status, finalizers and UID of the old one, and without grants.

use std::collections::BTreeMap;

use e2e::{Error, Result, World, objects::ensure, product, scenario::tenant_ready};
use serde_json::{Value, json};

use crate::virtual_cluster::{scale, virtual_cluster_ready};

const PROGRAMS: [(&str, usize); 2] = [("gputenancy-operator", 2), ("gputenancy-virtual-clusters", 1)];
/// What must be the same object afterwards. Endpoints, leases and events change all the time.
const KINDS: &str = "deployments,statefulsets,replicasets,services,persistentvolumeclaims,pods,secrets,configmaps,serviceaccounts,roles,\
    rolebindings,resourcequotas,networkpolicies,limitranges";

/// Deletes the tenant while neither operator nor controller runs, as a lost etcd does, makes it again, and starts both: every object of the
/// namespace is the same one, and no container was started again.
pub(crate) async fn restored_tenant_changes_nothing(world: &World, team: &str) -> Result<()> {
    let outcome = restore(world, team).await;
    // also after a failure: the next test needs both
    for (program, count) in PROGRAMS {
        scale(world, program, count).await?;
    }
    outcome
}

async fn restore(world: &World, team: &str) -> Result<()> {
    for (program, _) in PROGRAMS {
        scale(world, program, 0).await?;
    }
    let before = objects(world, team).await?;
    let pods = before.keys().filter(|key| key.starts_with("Pod ")).count();
    ensure(pods >= 4, format!("a control plane, CoreDNS and pods from inside: {:?}", before.keys()))?;

    let old = world.kubectl(&["get", "gputenant", team, "-o", "json"]).await?;
    let old: Value = serde_json::from_str(&old).map_err(|e| Error::Wrong(e.to_string()))?;
    // its grant is lost too; a policy lets only the operator delete it
    let operator = format!("--as=system:serviceaccount:{}:gputenancy-operator", product::NAMESPACE);
    world.kubectl(&["delete", "gpugrant", "-n", team, "grant", &operator]).await?;
    world.kubectl(&["delete", "gputenant", team, "--wait=false"]).await?;
    let free = r#"{"metadata": {"finalizers": null}}"#;
    world.kubectl(&["patch", "gputenant", team, "--type=merge", "-p", free]).await?;
    let backup = json!({
        "apiVersion": old["apiVersion"], "kind": old["kind"], "metadata": {"name": team}, "spec": old["spec"],
    });
    world.set(&[backup]).await?;

    for (program, count) in PROGRAMS {
        scale(world, program, count).await?;
    }
    virtual_cluster_ready(world, team).await?;
    tenant_ready(world, team).await?;
    let new = world.kubectl(&["get", "gputenant", team, "-o", "jsonpath={.metadata.uid}"]).await?;
    ensure(old["metadata"]["uid"] != new.as_str(), "the tenant is another object")?;
    let after = objects(world, team).await?;
    let changed: Vec<String> = before
        .iter()
        .filter(|(key, state)| after.get(*key) != Some(*state))
        .map(|(key, state)| format!("{key}: {state:?} before, {:?} after", after.get(key)))
        .collect();
    ensure(changed.is_empty(), format!("changed by the restore: {changed:?}"))?;
    let added: Vec<&String> = after.keys().filter(|key| !before.contains_key(*key)).collect();
    ensure(added.is_empty(), format!("made by the restore: {added:?}"))?;
    let of_team = format!("reason=VirtualClusterRepaired,involvedObject.name={team}");
    let path = "jsonpath={.items[*].message}";
    let repairs = world.kubectl(&["get", "events", "-n", "default", "--field-selector", &of_team, "-o", path]).await?;
    ensure(repairs.is_empty(), format!("repairs of unchanged objects: {repairs}"))
}

/// UID, generation and restarts of the objects of a namespace, by kind and name; without pods that end.
async fn objects(world: &World, namespace: &str) -> Result<BTreeMap<String, (String, i64, i64)>> {
    let list = world.kubectl(&["get", KINDS, "-n", namespace, "-o", "json"]).await?;
    let list: Value = serde_json::from_str(&list).map_err(|e| Error::Wrong(e.to_string()))?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let items = list["items"].as_array().cloned().unwrap_or_default();
    let lasting = items.iter().filter(|object| object["metadata"]["deletionTimestamp"].is_null());
    let entry = |object: &Value| {
        let (kind, metadata) = (text(&object["kind"]), &object["metadata"]);
        let generation = metadata["generation"].as_i64().unwrap_or_default();
        let containers = object["status"]["containerStatuses"].as_array().into_iter().flatten();
        let restarts = containers.filter_map(|c| c["restartCount"].as_i64()).sum();
        (format!("{kind} {}", text(&metadata["name"])), (text(&metadata["uid"]), generation, restarts))
    };
    Ok(lasting.map(entry).collect())
}
