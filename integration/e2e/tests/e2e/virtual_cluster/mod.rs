//! Virtual clusters with the real vCluster. [`life`]: from the field to nothing left. [`hostile`]: what a team that is administrator inside
//! can not do, without operator. [`disruption`]: changes from outside, kills, and a layout change under a pod from inside. [`fleet`]: several at once.

mod disruption;
mod fleet;
mod hostile;
mod inside;
mod life;

use std::time::Duration;

use e2e::{
    Error, Result, World,
    fixtures::{merged, tenant},
    objects, product,
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::GpuTenant;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};
use serde_json::{Value, json};

pub(crate) use inside::Inside;

/// Time until a virtual cluster is ready or gone on a busy machine.
const START: Duration = Duration::from_mins(4);

/// Values of the chart that serve virtual clusters in the lab: its image for both roles, and requests that its nodes can give.
const VALUES: &str = r#"{
    "controlPlane": {
        "distro": {"k8s": {
            "image": {"registry": "lab.local", "repository": "vcluster", "tag": "0.36.1"}, "imagePullPolicy": "Never",
            "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}}
        }},
        "statefulSet": {
            "image": {"registry": "lab.local", "repository": "vcluster", "tag": "0.36.1"}, "imagePullPolicy": "Never",
            "persistence": {"volumeClaim": {"enabled": false}},
            "resources": {"requests": {"cpu": "50m", "memory": "128Mi", "ephemeral-storage": "1Mi"}}
        },
        "coredns": {"deployment": {"image": "lab.local/coredns:1"}}
    }
}"#;

/// Installs the product with virtual clusters, and removes the objects of earlier tests.
async fn install(world: &World) -> Result<()> {
    for image in ["lab.local/vcluster:0.36.1", "lab.local/gputenancy-virtual-clusters:dev"] {
        world.lab.load_image(image).await?;
    }
    let values = tempfile::Builder::new().suffix(".yaml").tempfile();
    let values = values.map_err(|source| Error::Io { what: "writing values".into(), source })?;
    let platform: Value = serde_json::from_str(VALUES).map_err(|error| Error::Wrong(error.to_string()))?;
    let image = json!({"repository": "lab.local/gputenancy-virtual-clusters", "tag": "dev", "pullPolicy": "Never"});
    let all = json!({"virtualClusters": {"enabled": true, "values": platform}, "image": {"virtualClusters": image}});
    std::fs::write(values.path(), all.to_string())
        .map_err(|source| Error::Io { what: "writing values".into(), source })?;
    world.reinstall_with(&[], &["--values", &values.path().display().to_string()]).await
}

/// A tenant with a virtual cluster, and with these guarantees.
fn virtual_tenant(name: &str, guarantees: &[(&str, i32)]) -> Value {
    let mut team = tenant(name, guarantees);
    team["spec"] = merged(team["spec"].take(), json!({"virtualCluster": {"version": "0.36.1"}}));
    team
}

/// Waits until the virtual cluster of a tenant is Ready.
async fn virtual_cluster_ready(world: &World, team: &str) -> Result<()> {
    eventually(&format!("the virtual cluster of {team} Ready"), START, || async {
        let tenant = Api::<GpuTenant>::all(world.client.clone()).get(team).await?;
        let status = tenant.status.unwrap_or_default().virtual_cluster.unwrap_or_default();
        let current = status.observed_generation == tenant.metadata.generation;
        let ready = status.conditions.iter().find(|c| c.type_ == "Ready");
        Ok(match ready {
            Some(c) if c.status == "True" && current => Ok(()),
            other => Err(other.map_or_else(|| "no condition".into(), |c| format!("{}: {}", c.reason, c.message))),
        })
    })
    .await
}

/// Scales a Deployment of the product and waits until exactly so many of its pods exist and are ready.
async fn scale(world: &World, deployment: &str, count: usize) -> Result<()> {
    let replicas = format!("--replicas={count}");
    world.kubectl(&["scale", "-n", product::NAMESPACE, &format!("deployment/{deployment}"), &replicas]).await?;
    let pods = Api::<Pod>::namespaced(world.client.clone(), product::NAMESPACE);
    let ours = ListParams::default().labels(&format!("app.kubernetes.io/name={deployment}"));
    eventually(&format!("{count} pods of {deployment}"), PATIENCE, || async {
        let here = pods.list(&ours).await?.items;
        let ready = here.iter().filter(|p| objects::is_ready(p)).count();
        Ok(if here.len() == count && ready == count { Ok(()) } else { Err(format!("{ready} of {}", here.len())) })
    })
    .await
}
