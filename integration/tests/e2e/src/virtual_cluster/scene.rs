//! The last scene of the demo: a team gets a virtual cluster, sees its budget there, and runs a pod on a MIG device. Each step returns what
//! it observed: the test asserts it, the demo prints it.

use std::time::Duration;

use gputenancy_crds::GpuTenant;
use kube::Api;
use serde_json::Value;

use super::{Inside, ready};
use crate::{
    Error, Result, World, objects, product,
    scenario::{MIG_1G, tenant_ready, visible_gpus},
    wait::{PATIENCE, eventually},
};

/// Tenant, namespace and virtual cluster of the team.
pub const TEAM: &str = "team-v";
/// The sample with the tenant.
pub const TENANT: &str = "virtual-cluster.yaml";
/// The sample with the objects that the team creates inside.
pub const INSIDE: &str = "inside/notebook.yaml";
/// The team's own namespace inside.
pub const SPACE: &str = "research";
/// Time until a virtual cluster is ready on a busy machine.
const START: Duration = Duration::from_mins(8);

/// Creates the tenant, and opens its virtual cluster when it is ready. The product must serve virtual clusters ([`super::serve`]).
pub async fn start(world: &World) -> Result<Inside> {
    world.sample(TENANT).await?;
    ready(world, TEAM, START).await?;
    tenant_ready(world, TEAM).await?;
    Inside::open(world, TEAM, PATIENCE).await
}

/// Waits until the nodes inside together show the tenant's guarantees, and returns their table.
pub async fn budget(world: &World, inside: &Inside) -> Result<String> {
    let tenant = Api::<GpuTenant>::all(world.client.clone()).get(TEAM).await?;
    let budget: i64 = tenant.spec.gpus.iter().map(|guarantee| i64::from(guarantee.count)).sum();
    eventually(&format!("nodes inside show {budget} devices"), PATIENCE, || async {
        let nodes = inside.kubectl(&["get", "nodes", "-o", "json"]).await;
        let nodes = nodes.and_then(|text| serde_json::from_str(&text).map_err(|e| e.to_string()));
        Ok(nodes.and_then(|nodes| {
            let shown = capacity(&nodes, MIG_1G);
            if shown == budget { Ok(()) } else { Err(format!("{shown} devices")) }
        }))
    })
    .await?;
    let path = MIG_1G.replace('.', r"\.");
    inside
        .must(&["get", "nodes", "-o", &format!("custom-columns=NAME:.metadata.name,CAPACITY:.status.capacity.{path}")])
        .await
}

/// Sum over nodes of their capacity for a resource.
fn capacity(nodes: &Value, resource: &str) -> i64 {
    let of = |node: &Value| node.get("status")?.get("capacity")?.get(resource)?.as_str()?.parse::<i64>().ok();
    nodes.get("items").and_then(Value::as_array).into_iter().flatten().filter_map(of).sum()
}

/// A pod that the team has created inside.
pub struct TeamPod {
    /// `kubectl get pods` inside.
    pub inside: String,
    /// Name of the pod in the tenant's namespace.
    pub name: String,
    /// The GPUs that NVML lists in it.
    pub gpus: String,
}

/// The team creates a namespace and a Deployment that asks for one device; returns its pod when it runs.
pub async fn notebook(world: &World, inside: &Inside) -> Result<TeamPod> {
    let file = product::root().join("samples").join(INSIDE).display().to_string();
    inside.must(&["apply", "-f", &file]).await?;
    let suffix = format!("-x-{SPACE}-x-{TEAM}");
    let name = eventually(&format!("a ready pod …{suffix}"), PATIENCE, || async {
        let pods = objects::running(&world.client, TEAM).await?;
        let found = pods.keys().find(|name| name.ends_with(&suffix)).cloned();
        Ok(found.ok_or_else(|| format!("{:?}", pods.keys())))
    })
    .await?;
    // the syncer copies the status a moment later
    let phase = ["get", "pods", "-n", SPACE, "-o", "jsonpath={.items[*].status.phase}"];
    eventually("the pod Running inside", PATIENCE, || async {
        let phases = inside.kubectl(&phase).await;
        Ok(phases.and_then(|phases| if phases == "Running" { Ok(()) } else { Err(phases) }))
    })
    .await?;
    let gpus = visible_gpus(world, TEAM, &name).await?.trim().to_owned();
    Ok(TeamPod { inside: inside.must(&["get", "pods", "-n", SPACE, "-o", "wide"]).await?, name, gpus })
}

/// Lines of `kubectl describe nodes` inside about the team's devices.
pub async fn described(inside: &Inside) -> Result<String> {
    let text = inside.must(&["describe", "nodes"]).await?;
    let lines = about_devices(&text, MIG_1G);
    if lines.is_empty() { Err(Error::Wrong(format!("no node with {MIG_1G}: {text}"))) } else { Ok(lines.join("\n")) }
}

/// Lines with the resource, each section after its heading, and the name of each node that has some.
fn about_devices<'a>(described: &'a str, resource: &str) -> Vec<&'a str> {
    let mut lines = Vec::new();
    let (mut name, mut heading) = (None, None);
    for line in described.lines() {
        if line.starts_with("Name:") {
            name = Some(line);
        } else if !line.starts_with(' ') {
            heading = Some(line);
        } else if line.split_whitespace().next().is_some_and(|word| word.trim_end_matches(':') == resource) {
            lines.extend(name.take());
            lines.extend(heading.take());
            lines.push(line);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn capacity_is_summed_over_nodes() {
        let nodes = json!({"items": [
            {"status": {"capacity": {"cpu": "16", MIG_1G: "2"}}},
            {"status": {"capacity": {"cpu": "16"}}},
            {"status": {"capacity": {MIG_1G: "1"}}},
        ]});
        assert_eq!((capacity(&nodes, MIG_1G), capacity(&nodes, "cpu")), (3, 32));
        assert_eq!(capacity(&json!({"message": "not found"}), MIG_1G), 0);
    }

    #[test]
    fn description_of_nodes_is_reduced_to_the_devices() {
        let text = "\
Name:               gpu-1
Roles:              <none>
Capacity:
  cpu:                     16
  nvidia.com/mig-1g.10gb:  2
Allocatable:
  cpu:                     16
  nvidia.com/mig-1g.10gb:  2
Allocated resources:
  (Total limits may be over 100 percent, i.e., overcommitted.)
  Resource                Requests  Limits
  cpu                     30m (0%)  0 (0%)
  nvidia.com/mig-1g.10gb  1         1
Events:                   <none>

Name:               cpu-1
Capacity:
  cpu:  16
";
        let expected = "\
Name:               gpu-1
Capacity:
  nvidia.com/mig-1g.10gb:  2
Allocatable:
  nvidia.com/mig-1g.10gb:  2
Allocated resources:
  nvidia.com/mig-1g.10gb  1         1";
        assert_eq!(about_devices(text, MIG_1G).join("\n"), expected);
        assert!(about_devices(text, "nvidia.com/gpu").is_empty());
    }
}
