//! Pods inside that the quota refuses: the platform counts them, names them, and shows the team where its budget is.

use e2e::{
    Error, Result, World, product,
    wait::{PATIENCE, eventually},
};
use serde_json::Value;

use super::{Inside, inside::SPACE};

/// `kubectl gpu tenant` counts so many waiting pods of the first profile, and names each of them with the reason.
pub(super) async fn tenant_names_refused_pods(world: &World, team: &str, count: usize) -> Result<()> {
    eventually(&format!("{count} refused pods in the report about {team}"), PATIENCE, || async {
        let output = product::kubectl_gpu(&world.lab.kubeconfig_path(), &["tenant", team, "-o", "json"]).await?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let report: Value = serde_json::from_str(&text).map_err(|e| Error::Wrong(format!("{e}: {text}")))?;
        let refused = |one: &&Value| {
            let message = one["message"].as_str().unwrap_or_default();
            one["reason"] == "QuotaExceeded"
                && one["inside"]["pod"]["namespace"] == SPACE
                && message.contains("the budget of profile mig-1g is used up: 2 of 2 ")
        };
        let named = report["waiting"].as_array().into_iter().flatten().filter(refused).count();
        let right = named == count && report["profiles"][0]["waiting"] == count;
        Ok(if right { Ok(()) } else { Err(text) })
    })
    .await
}

/// The node inside on which the team's pods run shows the whole budget, because no pod with a GPU runs elsewhere.
pub(super) async fn node_of_the_pods_shows_the_budget(inside: &Inside, resource: &str, devices: &str) -> Result<()> {
    eventually(&format!("the pods' own node with {devices} devices"), PATIENCE, || async {
        let path = "jsonpath={.items[?(@.spec.nodeName)].spec.nodeName}";
        let nodes = inside.must(&["get", "pods", "-n", SPACE, "-o", path]).await?;
        let mut nodes: Vec<&str> = nodes.split_whitespace().collect();
        nodes.dedup();
        let [node] = nodes.as_slice() else { return Ok(Err(format!("nodes of pods: {nodes:?}"))) };
        let path = format!("jsonpath={{.status.capacity.{}}}", resource.replace('.', r"\."));
        let shown = inside.kubectl(&["get", "node", node, "-o", &path]).await;
        Ok(if shown.as_deref() == Ok(devices) { Ok(()) } else { Err(format!("{node}: {shown:?}")) })
    })
    .await
}
