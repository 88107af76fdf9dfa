//! Usual workloads made inside reach the host, while no operator runs: the policies that stop a hostile team do not stop usual work.

use std::collections::BTreeSet;

use e2e::{
    Result, World,
    objects::ensure,
    wait::{PATIENCE, eventually},
};
use serde_json::json;

use super::{Inside, inside::SPACE};
use e2e::manifests::{manifests, pod_of};

/// A pod with a `ResourceClaim`: vCluster's open-source syncer takes no claims over, and the pod stays inside.
const NOT_SYNCED: [&str; 1] = ["with-claim"];

/// Makes all of `integration/bypass/admitted.yaml` inside, pods of its controllers as pods. Each pod gets to the host, or has an event that
/// the team's quota is used up, which is the last that admission checks. Returns the number of objects.
pub(super) async fn usual_workloads(world: &World, inside: &Inside, team: &str) -> Result<usize> {
    let all = manifests(world, "admitted.yaml").await?;
    let (mut objects, mut pods) = (Vec::new(), BTreeSet::new());
    for mut object in all {
        if let Some(pod) = pod_of(&object) {
            object = pod;
        }
        object["metadata"]["namespace"] = json!(SPACE);
        if object["kind"] == "Pod" {
            let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            // from a Deployment's template, and one that is a Pod
            ensure(pods.insert(name.clone()), format!("two manifests named {name}"))?;
        }
        objects.push(object);
    }
    ensure(objects.len() >= 40, format!("{} manifests", objects.len()))?;
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "batch"}, "value": 1000});
    inside.set(&[class]).await?;
    inside.set(&objects).await?;
    eventually("each usual pod on the host, or refused by quota alone", PATIENCE, || async {
        let names = r#"jsonpath={range .items[*]}{.metadata.annotations.vcluster\.loft\.sh/object-name}{"\n"}{end}"#;
        let host = world.kubectl(&["get", "pods", "-n", team, "-o", names]).await?;
        let there: BTreeSet<&str> = host.lines().collect();
        let events = inside.all_events().await?;
        let of_quota = |name: &str| events.iter().any(|(of, message)| of == name && message.contains("exceeded quota"));
        let missing: Vec<String> = pods
            .iter()
            .filter(|name| !NOT_SYNCED.contains(&name.as_str()) && !there.contains(name.as_str()) && !of_quota(name))
            .map(|name| {
                let of: Vec<&str> = events.iter().filter(|(of, _)| of == name).map(|(_, m)| m.as_str()).collect();
                format!("{name}: {of:?}")
            })
            .collect();
        Ok(if missing.is_empty() { Ok(()) } else { Err(missing.join("\n")) })
    })
    .await?;
    let names: Vec<&str> = pods.iter().map(String::as_str).collect();
    inside.must(&[&["delete", "pods", "-n", SPACE, "--wait=false"], names.as_slice()].concat()).await?;
    let services = ["database", "in-the-cluster", "load-balancer-without-node-ports"];
    inside.must(&[&["delete", "services", "-n", SPACE], services.as_slice()].concat()).await?;
    Ok(objects.len())
}
