//! A vCluster that exists before its tenant, from `helm template` and `kubectl apply`: it is adopted without a write to an object of its chart,
//! is held to quota and policies of the tenant, and runs on when it is released. Its values are those of the samples for Flux and Argo CD.

use std::collections::BTreeMap;

use e2e::{
    Error, Result, World,
    actor::{Actor, Verb},
    fixtures::{merged, mig_profile, pod_spec, pool, tenant},
    objects::{self, ensure},
    scenario::{tenant_ready, wait_for_devices},
    virtual_cluster::{VERSION, chart_values},
    wait::{PATIENCE, eventually},
};
use serde_json::{Value, json};

use super::{
    Inside, START,
    inside::{SPACE, pod},
    install, remove_virtual_cluster,
    versions::chart,
    virtual_cluster_ready,
};

const TEAM: &str = "vc-x";
const NODE: &str = "gpu-1";
const RESOURCE: &str = "nvidia.com/mig-1g.10gb";

#[tokio::test]
async fn existing_vcluster_is_adopted_without_a_write_and_runs_on_when_released() {
    let world = World::attach().await.unwrap();
    let outcome = adoption(&world).await;
    // also after a failure: the operator deletes no namespace that it has adopted
    let cleaned = async {
        world.kubectl(&["delete", "gputenant", TEAM, "--ignore-not-found", "--timeout=4m"]).await?;
        world.kubectl(&["delete", "namespace", TEAM, "--ignore-not-found", "--timeout=4m"]).await
    };
    let cleaned = cleaned.await.map(drop);
    world.keeping_evidence("virtual-cluster-external", async { outcome.and(cleaned) }).await;
}

async fn adoption(world: &World) -> Result<()> {
    install(world).await?;
    world.set(&[mig_profile("mig-1g", "1g.10gb"), pool("p", NODE, &["mig-1g"])]).await?;
    let applied = installed(world).await?;
    let before = versions(world, &applied).await?;

    let mut team = tenant(TEAM, &[("mig-1g", 1)]);
    team["spec"]["namespaces"] = json!([{"name": TEAM, "adopt": true}]);
    let cluster = json!({"virtualCluster": {"version": VERSION, "backend": "External"}});
    team["spec"] = merged(team["spec"].take(), cluster);
    world.set(&[team]).await?;
    virtual_cluster_ready(world, TEAM).await?;
    tenant_ready(world, TEAM).await?;
    let inside = Inside::open(world, TEAM).await?;
    inside.must(&["create", "namespace", SPACE]).await?;
    inside.set(&[pod("one", RESOURCE, "1", json!({}))]).await?;
    inside.running(1).await?;
    wait_for_devices(world, &[NODE], 1).await?;
    held_to_quota_and_policies(world).await?;
    unchanged(world, &applied, &before).await?;

    let running = objects::running(&world.client, TEAM).await?;
    ensure(running.contains_key(&format!("one-x-{SPACE}-x-{TEAM}")), format!("{running:?}"))?;
    drop(inside);
    remove_virtual_cluster(world, TEAM).await?;
    tenant_ready(world, TEAM).await?;
    unchanged(world, &applied, &before).await?;
    let kubeconfig = ["get", "secret", "-n", TEAM, "gputenancy-kubeconfig", "-o", "name", "--ignore-not-found"];
    let left = world.kubectl(&kubeconfig).await?;
    ensure(left.is_empty(), format!("left: {left}"))?;
    let now = objects::running(&world.client, TEAM).await?;
    ensure(now == running, format!("before {running:?}, now {now:?}"))?;
    serves(world).await
}

/// A pod beyond the budget and one that Pod Security forbids are refused; a new pod of the control plane is admitted.
async fn held_to_quota_and_policies(world: &World) -> Result<()> {
    let selector = format!("app=vcluster,release={TEAM}");
    let text = world.kubectl(&["get", "pods", "-n", TEAM, "-l", &selector, "-o", "json"]).await?;
    let list: Value = serde_json::from_str(&text).map_err(|e| Error::Wrong(e.to_string()))?;
    let mut pod = list["items"][0].clone();
    ensure(pod["spec"]["containers"].is_array(), format!("no pod of the control plane: {text}"))?;
    pod["metadata"] = json!({"name": "again", "labels": pod["metadata"]["labels"]});
    for key in ["nodeName", "hostname", "subdomain"] {
        pod["spec"].as_object_mut().map(|spec| spec.remove(key));
    }
    pod["status"] = json!({});
    let of = |spec: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec});
    let host = of(merged(pod_spec(RESOURCE), json!({"hostNetwork": true})));
    let path = format!("/api/v1/namespaces/{TEAM}/pods");
    for (pod, refusal) in [
        (pod, None),
        (of(pod_spec(RESOURCE)), Some("exceeded quota: gputenancy, requested: requests.nvidia.com/mig-1g.10gb=1")),
        (host, Some("violates PodSecurity")),
    ] {
        Actor::Admin.check(&world.client, Verb::Create, &path, &pod, refusal).await?;
    }
    Ok(())
}

/// Applies the chart's objects in a namespace of no tenant, and waits until the vCluster serves. Returns kinds and names.
async fn installed(world: &World) -> Result<Vec<(String, String)>> {
    let rendered = chart::template(world, TEAM, &chart_values(TEAM)?.to_string()).await?;
    let labels = json!({"gputenancy.io/adoptable": "true"});
    let space = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM, "labels": labels}});
    world.set(&[&[space], rendered.as_slice()].concat()).await?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let named = rendered.iter().map(|object| (text(&object["kind"]), text(&object["metadata"]["name"])));
    let named: Vec<(String, String)> = named.collect();
    let workload = named.iter().find(|(kind, _)| ["Deployment", "StatefulSet"].contains(&kind.as_str()));
    let (kind, name) = workload.unwrap_or_else(|| panic!("no workload: {named:?}"));
    world.kubectl(&["rollout", "status", &format!("{kind}/{name}"), "-n", TEAM, "--timeout=4m"]).await?;
    serves(world).await?;
    Ok(named)
}

/// The vCluster answers its own administrator.
async fn serves(world: &World) -> Result<()> {
    let template = "go-template={{index .data \"config\" | base64decode}}";
    let secret = format!("vc-{TEAM}");
    let kubeconfig = eventually("the administrator's kubeconfig", PATIENCE, || async {
        Ok(Ok(world.kubectl(&["get", "secret", "-n", TEAM, &secret, "-o", template]).await?))
    })
    .await?;
    e2e::virtual_cluster::Inside::connect(world, TEAM, &kubeconfig, START).await.map(drop)
}

/// The version of each of these objects, by kind and name.
async fn versions(world: &World, named: &[(String, String)]) -> Result<BTreeMap<(String, String), String>> {
    let mut versions = BTreeMap::new();
    for (kind, name) in named {
        let path = "jsonpath={.metadata.resourceVersion}";
        let version = world.kubectl(&["get", kind, "-n", TEAM, name, "-o", path]).await?;
        versions.insert((kind.clone(), name.clone()), version);
    }
    Ok(versions)
}

async fn unchanged(
    world: &World,
    named: &[(String, String)],
    before: &BTreeMap<(String, String), String>,
) -> Result<()> {
    let now = versions(world, named).await?;
    ensure(now == *before, format!("before {before:?}, now {now:?}"))
}
