//! A virtual cluster that Flux installs: source-controller and helm-controller of its project take vCluster's chart from a Helm repository.

use e2e::{
    Error, Result, World,
    fixtures::{mig_profile, pool},
    objects::ensure,
    product,
    scenario::{tenant_ready, wait_for_devices},
    wait::{PATIENCE, eventually},
};
use serde_json::{Value, json};

use super::{
    Inside, START,
    inside::{SPACE, pod},
    install, remove_virtual_cluster, virtual_cluster_ready, virtual_tenant,
};

const TEAM: &str = "vc-f";
const NODE: &str = "gpu-1";
const RESOURCE: &str = "nvidia.com/mig-1g.10gb";
/// What the controller hands to Flux, and what Flux makes of it.
const HANDED: &str =
    "helmreleases.helm.toolkit.fluxcd.io,helmrepositories.source.toolkit.fluxcd.io,helmcharts.source.toolkit.fluxcd.io";

#[tokio::test]
async fn flux_installs_a_virtual_cluster_and_leaves_nothing() {
    let world = World::attach().await.unwrap();
    let outcome = installed_by_flux(&world).await;
    if outcome.is_err() {
        // with Flux, which takes its finalizers off
        world.kubectl(&["delete", "gputenant", TEAM, "--ignore-not-found", "--timeout=4m"]).await.ok();
    }
    let stopped = world.lab.stop_flux().await.map_err(Error::from);
    world.keeping_evidence("virtual-cluster-flux", async { outcome.and(stopped) }).await;
}

async fn installed_by_flux(world: &World) -> Result<()> {
    install(world).await?;
    let repository = world.lab.start_flux(&["vcluster-0.36.1.tgz"]).await?;
    let values = ["virtualClusters.flux=true".to_owned(), format!("virtualClusters.repository={repository}")];
    let values = values.each_ref().map(String::as_str);
    product::install_with(&world.lab, &values, &["--reset-then-reuse-values", "--force-conflicts"]).await?;
    let mut team = virtual_tenant(TEAM, &[("mig-1g", 1)]);
    team["spec"]["virtualCluster"]["backend"] = json!("FluxHelmRelease");
    world.set(&[mig_profile("mig-1g", "1g.10gb"), pool("p", NODE, &["mig-1g"]), team]).await?;
    virtual_cluster_ready(world, TEAM).await?;
    tenant_ready(world, TEAM).await?;
    flux_has_installed(world).await?;
    pod_runs_inside(world).await?;
    flux_restores_and_stops(world).await?;
    removal_leaves_nothing(world).await
}

/// The objects of these kinds in the team's namespace, as JSON.
async fn objects(world: &World, kinds: &str) -> Result<Vec<Value>> {
    let text = world.kubectl(&["get", kinds, "-n", TEAM, "-o", "json"]).await?;
    let list: Value = serde_json::from_str(&text).map_err(|error| Error::Wrong(error.to_string()))?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

/// Helm's own record of the release is Flux's, and so are the objects of the chart.
async fn flux_has_installed(world: &World) -> Result<()> {
    let releases = objects(world, "helmreleases.helm.toolkit.fluxcd.io").await?;
    let history = releases.first().map(|release| release["status"]["history"][0].clone()).unwrap_or_default();
    let seen = (&history["status"], &history["chartVersion"], &history["namespace"]);
    ensure(seen == (&json!("deployed"), &json!("0.36.1"), &json!(TEAM)), format!("{seen:?}"))?;
    let workloads = objects(world, "statefulsets,deployments").await?;
    let helm = workloads.iter().filter(|w| w["metadata"]["name"] == TEAM);
    let labels: Vec<&Value> = helm.map(|w| &w["metadata"]["labels"]["helm.toolkit.fluxcd.io/name"]).collect();
    ensure(labels == [&json!(TEAM)], format!("workloads of Flux's release: {labels:?}"))
}

/// With the kubeconfig that it was given, the team runs a pod on a device.
async fn pod_runs_inside(world: &World) -> Result<()> {
    let inside = Inside::open(world, TEAM).await?;
    inside.must(&["create", "namespace", SPACE]).await?;
    inside.set(&[pod("one", RESOURCE, "1", json!({}))]).await?;
    inside.running(1).await?;
    let held = wait_for_devices(world, &[NODE], 1).await?;
    ensure(held.contains_key(&format!("one-x-{SPACE}-x-{TEAM}")), format!("devices of synced pods: {held:?}"))
}

/// `suspend` suspends the release, which does not start the control plane again; without it all is ready as before.
async fn flux_restores_and_stops(world: &World) -> Result<()> {
    let suspend = async |on: bool| {
        let patch = json!({"spec": {"virtualCluster": {"suspend": on}}}).to_string();
        world.kubectl(&["patch", "gputenant", TEAM, "--type=merge", "-p", &patch]).await
    };
    suspend(true).await?;
    eventually("no pod of the control plane, and a suspended release", PATIENCE, || async {
        let pods = world.kubectl(&["get", "pods", "-n", TEAM, "-l", "app=vcluster", "-o", "name"]).await?;
        let releases = objects(world, "helmreleases.helm.toolkit.fluxcd.io").await?;
        let suspended = releases.iter().any(|release| release["spec"]["suspend"] == true);
        Ok(if pods.trim().is_empty() && suspended { Ok(()) } else { Err(format!("{pods}, suspended: {suspended}")) })
    })
    .await?;
    suspend(false).await?;
    virtual_cluster_ready(world, TEAM).await
}

/// Without the field Flux uninstalls its release; then the tenant goes with its namespace.
async fn removal_leaves_nothing(world: &World) -> Result<()> {
    remove_virtual_cluster(world, TEAM).await?;
    let left = world.labelled("app.kubernetes.io/managed-by=gputenancy-virtual-clusters").await?;
    ensure(left.is_empty(), format!("left: {left:?}"))?;
    let kinds = format!("{HANDED},statefulsets,deployments,services,persistentvolumeclaims,secrets,roles,pods");
    for object in objects(world, &kinds).await? {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        // the pull secrets and roles of the tenant are the operator's
        let of_the_operator = object["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "gputenancy-operator";
        ensure(of_the_operator, format!("left: {} {name}", object["kind"]))?;
    }
    tenant_ready(world, TEAM).await?;
    world.kubectl(&["delete", "gputenant", TEAM, "--wait=false"]).await?;
    eventually("the tenant and its namespace gone", START, || async {
        let tenants = world.kubectl(&["get", "gputenants", "-o", "name"]).await?;
        let namespaces = world.kubectl(&["get", "namespaces", TEAM, "-o", "name", "--ignore-not-found"]).await?;
        Ok(if tenants.is_empty() && namespaces.is_empty() { Ok(()) } else { Err(format!("{tenants} {namespaces}")) })
    })
    .await
}
