//! A virtual cluster from one version of vCluster to the next, with both real, while operator and controller are killed again and again: device,
//! pods and data stay, also in an upgrade that is rolled back. The way back is refused.

use std::collections::BTreeSet;

use e2e::{
    Error, Result, World,
    fixtures::{deployment, mig_profile, pod_spec, pool},
    objects::{self, PodIdentity, check_condition, ensure, patch_tenant},
    product,
    scenario::{tenant_ready, wait_for_devices},
    virtual_cluster::VERSION,
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::GpuTenant;
use kube::Api;
use serde_json::{Value, json};

use super::rollback::{image_of_kubernetes, upgrade_without_image_is_rolled_back};
use crate::virtual_cluster::{
    Inside,
    inside::{SPACE, pod},
    install,
    interruptions::killer::Killer,
    virtual_cluster_ready, virtual_tenant, volume,
};

pub(super) const TEAM: &str = "vc-u";
/// The version before [`VERSION`].
pub(super) const OLD: &str = "0.36.0";
/// SHA-256 of its packed chart.
const OLD_SHA256: &str = "baa797c691e10078aeb01f1ba0bfcaeaef36876f676a7586b995d087816ef66d";
const NODE: &str = "gpu-1";
/// Where the control plane runs.
pub(super) const NODE_OF_VOLUME: &str = "cpu-1";
const RESOURCE: &str = "nvidia.com/mig-1g.10gb";

#[tokio::test]
async fn upgrade_keeps_pods_and_data_and_a_downgrade_is_refused() {
    let world = World::attach().await.unwrap();
    world.keeping_evidence("virtual-cluster-upgrade", upgrade(&world)).await;
}

async fn upgrade(world: &World) -> Result<()> {
    install_both(world).await?;
    volume(world, TEAM, NODE_OF_VOLUME).await?;
    let mut team = virtual_tenant(TEAM, &[("mig-1g", 2)]);
    team["spec"]["virtualCluster"] = json!({"version": OLD, "storage": {"size": "1Gi", "class": TEAM}});
    world.set(&[mig_profile("mig-1g", "1g.10gb"), pool("p", NODE, &["mig-1g"]), team]).await?;
    virtual_cluster_ready(world, TEAM).await?;
    runs(world, OLD).await?;
    // other tests find no volume: it goes with its claim
    world.kubectl(&["delete", "persistentvolume", TEAM, "--wait=false"]).await?;
    tenant_ready(world, TEAM).await?;
    let inside = Inside::open(world, TEAM).await?;
    inside.must(&["create", "namespace", SPACE]).await?;
    let kept = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept", "namespace": SPACE}, "data": {"written": OLD}});
    inside.set(&[kept, deployment(SPACE, "w", 1, &pod_spec(RESOURCE))]).await?;
    inside.running(1).await?;
    let devices = wait_for_devices(world, &[NODE], 1).await?;
    let (pods, data, earlier) = (host_pods(world).await?, data(&inside).await?, events(world).await?);
    ensure(pods.len() == 1, format!("{pods:?}"))?;

    upgrade_without_image_is_rolled_back(world).await?;
    unchanged(world, &inside, (&pods, &data)).await?;
    let earlier: BTreeSet<String> = events(world).await?.union(&earlier).cloned().collect();

    let killer = Killer::start(world);
    set_version(world, VERSION).await?;
    virtual_cluster_ready(world, TEAM).await?;
    runs(world, VERSION).await?;
    killer.stop("the upgrade")?;
    virtual_cluster_ready(world, TEAM).await?;
    rendered(world, VERSION, ("True", "ObjectsApplied"), VERSION).await?.map_err(Error::Wrong)?;
    eventually("an event of the upgrade", PATIENCE, || async {
        let new: Vec<String> = events(world).await?.difference(&earlier).cloned().collect();
        // a kill after a write of the status can lose some of them
        let of_controller =
            [" UpgradeStarted vCluster ", " ControlPlaneStarting virtual cluster: ", " Ready virtual cluster: "];
        let found = new.iter().any(|event| of_controller.iter().any(|words| event.contains(words)));
        Ok(if found { Ok(()) } else { Err(format!("{new:?}")) })
    })
    .await?;
    unchanged(world, &inside, (&pods, &data)).await?;
    // the new syncer does its work
    inside.apply(&pod("new", RESOURCE, "1", json!({}))).await.map_err(Error::Wrong)?;
    inside.running(2).await?;
    let both = wait_for_devices(world, &[NODE], 2).await?;
    ensure(devices.iter().all(|(pod, place)| both.get(pod) == Some(place)), format!("{devices:?}, then {both:?}"))?;

    set_version(world, OLD).await?;
    eventually("the refused downgrade", PATIENCE, || async {
        let why = "spec.virtualCluster.version: 0.36.0 may not follow 0.36.1: its data cannot be read by an earlier version; \
                   restore a snapshot into a new virtual cluster instead";
        rendered(world, VERSION, ("False", "VersionRefused"), why).await
    })
    .await?;
    runs(world, VERSION).await?;
    set_version(world, VERSION).await?;
    virtual_cluster_ready(world, TEAM).await?;
    runs(world, VERSION).await?;
    unchanged(world, &inside, (&pods, &data)).await
}

/// Installs the product with both versions, as a platform does that adds one to `virtualClusters.charts`; the image of the control plane is
/// that of the chart's own version.
async fn install_both(world: &World) -> Result<()> {
    install(world).await?;
    world.lab.load_image(&format!("lab.local/vcluster:{OLD}")).await?;
    let io = |source| Error::Io { what: "the values of the product".into(), source };
    let text = std::fs::read_to_string(product::root().join("helm/gputenancy/values.yaml")).map_err(io)?;
    let defaults: Value = serde_saphyr::from_str(&text).map_err(|e| Error::Wrong(e.to_string()))?;
    let mut charts = defaults["virtualClusters"]["charts"].as_array().cloned().unwrap_or_default();
    let file = format!("/usr/share/gputenancy/charts/vcluster-{OLD}.tgz");
    charts.push(json!({"version": OLD, "file": file, "sha256": OLD_SHA256}));
    let kubernetes = image_of_kubernetes(world).await?;
    let values = json!({"controlPlane": {"statefulSet": {"image": {"tag": ""}}, "distro": {"k8s": kubernetes}}});
    let values = json!({"virtualClusters": {"charts": charts, "values": values}});
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().map_err(io)?;
    std::fs::write(file.path(), values.to_string()).map_err(io)?;
    let flags = ["--reset-then-reuse-values", "--values", &file.path().display().to_string()];
    product::install_with(&world.lab, &[], &flags).await.map(drop)
}

pub(super) async fn set_version(world: &World, version: &str) -> Result<()> {
    let change = json!({"spec": {"virtualCluster": {"version": version}}});
    patch_tenant(&world.client, TEAM, change).await.map(drop)
}

/// The `StatefulSet` is of this version's chart, it and its pod have this version's image, and the program there reports the version.
pub(super) async fn runs(world: &World, version: &str) -> Result<()> {
    let image = format!("lab.local/vcluster:{version}");
    let path = "jsonpath={.metadata.labels.chart} {.spec.template.spec.containers[0].image}";
    let workload = world.kubectl(&["get", "statefulset", "-n", TEAM, TEAM, "-o", path]).await?;
    ensure(workload == format!("vcluster-{version} {image}"), format!("StatefulSet: {workload}"))?;
    let path = "jsonpath={.status.containerStatuses[0].image} {.status.containerStatuses[0].ready}";
    let running = world.kubectl(&["get", "pod", "-n", TEAM, &format!("{TEAM}-0"), "-o", path]).await?;
    ensure(running == format!("{image} true"), format!("pod: {running}"))?;
    let log = world.kubectl(&["logs", "-n", TEAM, &format!("{TEAM}-0")]).await?;
    let started = log.lines().find(|line| line.contains("vCluster version"));
    ensure(started.is_some_and(|line| line.contains(&format!("\"{version}\""))), format!("log: {started:?}"))
}

/// Is this the version of the status, and has `ChartRendered` this status, reason and excerpt?
pub(super) async fn rendered(
    world: &World,
    version: &str,
    (status, reason): (&str, &str),
    excerpt: &str,
) -> Result<std::result::Result<(), String>> {
    let tenant = Api::<GpuTenant>::all(world.client.clone()).get(TEAM).await?;
    let found = tenant.status.and_then(|status| status.virtual_cluster).unwrap_or_default();
    if found.version.as_deref() != Some(version) {
        return Ok(Err(format!("status.virtualCluster.version: {:?}", found.version)));
    }
    Ok(check_condition(&found.conditions, "ChartRendered", status, reason, &[excerpt]))
}

/// Pods of the team's namespace inside on the host, by name.
async fn host_pods(world: &World) -> Result<Vec<(String, PodIdentity)>> {
    let all = objects::running(&world.client, TEAM).await?;
    Ok(all.into_iter().filter(|(name, _)| name.contains(&format!("-x-{SPACE}-x-"))).collect())
}

/// What a team has written inside: content and identity.
async fn data(inside: &Inside) -> Result<String> {
    inside.must(&["get", "configmap", "-n", SPACE, "kept", "-o", "jsonpath={.metadata.uid} {.data}"]).await
}

/// The same pods run since before, without a restart, and the data is the same.
async fn unchanged(world: &World, inside: &Inside, (pods, kept): (&[(String, PodIdentity)], &str)) -> Result<()> {
    let now = host_pods(world).await?;
    ensure(pods.iter().all(|pod| now.contains(pod)), format!("before {pods:?}, now {now:?}"))?;
    let found = data(inside).await?;
    ensure(found == kept, format!("before {kept}, now {found}"))
}

/// Name, reason and message of the events about the tenant.
async fn events(world: &World) -> Result<BTreeSet<String>> {
    let path = "jsonpath={range .items[*]}{.metadata.name} {.reason} {.message}{'\\n'}{end}";
    let about = format!("involvedObject.name={TEAM}");
    let events = world.kubectl(&["get", "events", "-n", "default", "--field-selector", &about, "-o", path]).await?;
    Ok(events.lines().map(str::to_owned).collect())
}
