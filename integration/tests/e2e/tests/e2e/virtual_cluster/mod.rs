//! Virtual clusters with the real vCluster. [`life`]: from the field to nothing left, with pods that are [`waiting`], a [`connect`] from outside and
//! a [`interruptions::restore`] of its tenant. [`attacks::hostile`]: what a team
//! that is administrator inside can not do, without operator ([`attacks::bypasses`]), what its pods can not reach ([`attacks::network`]), and [`usual`] what it can.
//! [`priorities`]: the classes of its pods. [`interruptions::disruption`]: changes from outside, kills ([`interruptions::killer`]), and a layout change under a pod from inside.
//! [`fleet`]: several at once, with [`shares`] and a pool of one team. [`versions::upgrade`]: to the next version and not back, after a [`versions::rollback`]. [`interruptions::suspend`]: stopped and started again,
//! and what becomes of volumes. [`external`]: one that existed before. [`versions::chart`]: vCluster's own chart.

mod attacks;
mod connect;
mod external;
mod fleet;
mod inside;
mod interruptions;
mod life;
mod priorities;
mod shares;
mod usual;
mod versions;
mod waiting;

use std::time::Duration;

use e2e::{
    Result, World,
    fixtures::{merged, restricted_spec, tenant},
    objects, product,
    virtual_cluster::VERSION,
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{GpuTenant, VIRTUAL_CLUSTER_FINALIZER};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::{Value, json};

pub(crate) use e2e::virtual_cluster::serve_afresh as install;
pub(crate) use inside::Inside;

/// Time until a virtual cluster is ready or gone on a busy machine.
const START: Duration = Duration::from_mins(4);

/// A tenant with a virtual cluster, and with these guarantees.
fn virtual_tenant(name: &str, guarantees: &[(&str, i32)]) -> Value {
    let mut team = tenant(name, guarantees);
    team["spec"] = merged(team["spec"].take(), json!({"virtualCluster": {"version": VERSION}}));
    team
}

/// Waits until the virtual cluster of a tenant is Ready.
async fn virtual_cluster_ready(world: &World, team: &str) -> Result<()> {
    e2e::virtual_cluster::ready(world, team, START).await
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

/// A volume on a node for the control plane of this tenant, which is also the name of its class: the lab has no `StorageClass`.
async fn volume(world: &World, team: &str, node: &str) -> Result<()> {
    let folder = format!("/var/lib/{team}");
    world.on_node(node, &["sh", "-c", &format!("rm -rf {folder} && mkdir -m 777 {folder}")]).await?;
    let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [node]});
    let spec = json!({
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": team, "local": {"path": folder},
        "claimRef": {"namespace": team, "name": format!("data-{team}-0")},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
    });
    world
        .set(&[json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": team}, "spec": spec})])
        .await
}

/// Removes `spec.virtualCluster`, and waits until the controller has let the tenant go.
async fn remove_virtual_cluster(world: &World, team: &str) -> Result<()> {
    let patch = r#"[{"op": "remove", "path": "/spec/virtualCluster"}]"#;
    world.kubectl(&["patch", "gputenant", team, "--type=json", "-p", patch]).await?;
    eventually(&format!("the virtual cluster of {team} gone"), START, || async {
        let tenant = Api::<GpuTenant>::all(world.client.clone()).get(team).await?;
        if tenant.finalizers().iter().any(|f| f == VIRTUAL_CLUSTER_FINALIZER) {
            let status = tenant.status.and_then(|s| s.virtual_cluster).unwrap_or_default();
            return Ok(Err(status.conditions.iter().map(|c| c.message.clone()).collect::<Vec<_>>().join("; ")));
        }
        Ok(Ok(()))
    })
    .await
}

/// A pod without a GPU that runs a command.
fn busybox(namespace: &str, name: &str, command: &str) -> Value {
    let mut spec = restricted_spec(json!({
        "name": "c", "image": "lab.local/busybox:1", "imagePullPolicy": "Never", "command": ["sh", "-c", command],
    }));
    spec["terminationGracePeriodSeconds"] = json!(0);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}}, "spec": spec})
}
