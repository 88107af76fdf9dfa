//! Virtual clusters with the real vCluster. [`life`]: from the field to nothing left, with a [`restore`] of its tenant. [`hostile`]: what a team
//! that is administrator inside can not do, without operator, and [`usual`] what it can. [`disruption`]: changes from outside, kills, and a layout change under a pod from inside. [`fleet`]: several at once.
//! [`upgrade`]: to the next version and not back.

mod disruption;
mod fleet;
mod hostile;
mod inside;
mod life;
mod restore;
mod upgrade;
mod usual;

use std::time::Duration;

use e2e::{
    Result, World,
    fixtures::{merged, tenant},
    objects, product,
    virtual_cluster::VERSION,
    wait::{PATIENCE, eventually},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};
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
