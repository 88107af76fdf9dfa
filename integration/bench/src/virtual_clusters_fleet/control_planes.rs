//! Control planes without machines: nodes of kwok, the values that lead to them, and the Secrets that control planes write at their start.

use std::{collections::BTreeSet, path::PathBuf};

use e2e::{Error, Result, World, product, virtual_cluster::platform_values};
use futures::{StreamExt, pin_mut};
use gputenancy_crds::{GpuTenant, condition, names};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, ResourceExt,
    api::{ObjectMeta, PostParams},
    runtime::{WatchStreamExt, watcher},
};
use lab::{Profile, image, pki::Authority, place::Folders};
use serde_json::{Value, json};
use tokio::task::JoinSet;

/// The program that simulates nodes.
pub const PROGRAM: &str = "kwok";
const IMAGE: &str = "lab.local/gputenancy-virtual-clusters:dev";
/// The image contains builds of the caller's own profile.
const PROFILE: Profile = if cfg!(debug_assertions) { Profile::Debug } else { Profile::Release };
/// Control planes of a node, which takes 250 pods.
const EACH: usize = 100;
const SELECTOR: &str = "type=kwok";

/// The first file of the controller's image that has not been built.
pub fn lacking() -> Result<Option<PathBuf>> {
    Ok(image::lacking(&Folders::find()?, PROFILE, IMAGE)?)
}

/// Adds nodes for this many control planes, and upgrades the product to one with virtual clusters, whose control planes run there.
pub async fn serve(world: &World, count: usize) -> Result<()> {
    world.lab.add_kwok_nodes(count.div_ceil(EACH)).await?;
    world.lab.load_image_of(IMAGE, PROFILE).await?;
    let io = |source| Error::Io { what: "writing values".into(), source };
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().map_err(io)?;
    let image = json!({"repository": "lab.local/gputenancy-virtual-clusters", "tag": "dev", "pullPolicy": "Never"});
    let served = json!({"enabled": true, "values": values()});
    let all = json!({"virtualClusters": served, "image": {"virtualClusters": image}});
    std::fs::write(file.path(), all.to_string()).map_err(io)?;
    // rules of the operator's role change with virtual clusters, and earlier tests have patched them
    let flags = ["--force-conflicts", "--values", &file.path().display().to_string()];
    product::install_with(&world.lab, &[], &flags).await.map(drop)
}

/// Values of vCluster's chart that lead control planes to the nodes of kwok, and no other pod.
fn values() -> Value {
    let scheduling = json!({
        "nodeSelector": {"type": "kwok"}, "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
    });
    let mut values = platform_values();
    values["controlPlane"]["statefulSet"]["scheduling"] = scheduling;
    values
}

/// Deletes the nodes; kwok itself stays, without work.
pub async fn remove_nodes(world: &World) -> Result<()> {
    world.kubectl(&["delete", "nodes", "-l", SELECTOR, "--ignore-not-found"]).await.map(drop)
}

/// Are all replicas of the tenant's control plane ready?
pub fn is_ready(tenant: &GpuTenant) -> bool {
    let cluster = tenant.status.as_ref().and_then(|s| s.virtual_cluster.as_ref());
    cluster.is_some_and(|c| condition::is_true(&c.conditions, "ControlPlaneReady"))
}

/// Writes the Secret of each tenant's control plane when that is ready, with valid certificates of an authority that signs no server. A control
/// plane writes it at its start, and the controller starts one without a Secret again. Dropping the set ends it.
pub fn write_secrets(world: &World, prefix: &'static str) -> Result<JoinSet<()>> {
    let authority = Authority::new("gputenancy-bench")?;
    let pair = authority.sign("kubernetes-super-admin", &["system:masters"], &[], &[])?;
    let parts =
        [("certificate-authority", authority.pair.cert), ("client-certificate", pair.cert), ("client-key", pair.key)];
    let data = parts.map(|(key, pem)| (key.to_owned(), ByteString(pem.into_bytes())));
    let client = world.client.clone();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let tenants = watcher(Api::<GpuTenant>::all(client.clone()), watcher::Config::default());
        let tenants = tenants.default_backoff().applied_objects();
        pin_mut!(tenants);
        let mut written = BTreeSet::new();
        while let Some(next) = tenants.next().await {
            let Ok(tenant) = next else { continue };
            let name = tenant.name_any();
            if !name.starts_with(prefix) || !is_ready(&tenant) || written.contains(&name) {
                continue;
            }
            let metadata = ObjectMeta { name: Some(names::admin_secret(&name)), ..ObjectMeta::default() };
            let secret = Secret { metadata, data: Some(data.clone().into()), ..Secret::default() };
            let secrets = Api::<Secret>::namespaced(client.clone(), &name);
            match secrets.create(&PostParams::default(), &secret).await {
                Ok(_) => {
                    written.insert(name);
                }
                // again with the next change of the tenant; a tenant without its Secret fails the run
                Err(error) => eprintln!("virtual-clusters-fleet: Secret of {name}: {error}"),
            }
        }
    });
    Ok(tasks)
}

/// Checks that the controller has reached for the API server of every tenant, and got no answer; returns one of its messages.
pub async fn unreachable(world: &World, prefix: &str, count: usize) -> Result<String> {
    let tenants = Api::<GpuTenant>::all(world.client.clone()).list(&kube::api::ListParams::default()).await?;
    let ours: Vec<_> = tenants.iter().filter(|tenant| tenant.name_any().starts_with(prefix)).collect();
    let mut example = None;
    for tenant in &ours {
        let conditions = tenant.status.iter().filter_map(|s| s.virtual_cluster.as_ref()).flat_map(|c| &c.conditions);
        let kubeconfig = conditions.into_iter().find(|c| c.type_ == "KubeconfigReady");
        let message = kubeconfig.filter(|c| c.reason == "VirtualClusterUnreachable").map(|c| c.message.as_str());
        match message {
            Some(message) if !message.contains("Secret") => example = example.or(Some(message.to_owned())),
            other => return Err(Error::Wrong(format!("{} is not unreachable: {other:?}", tenant.name_any()))),
        }
    }
    example.filter(|_| ours.len() == count).ok_or_else(|| Error::Wrong(format!("{} of {count} tenants", ours.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_planes_go_to_simulated_nodes_and_keep_the_labs_other_values() {
        let set = &values()["controlPlane"]["statefulSet"];
        assert_eq!(set["scheduling"]["nodeSelector"], json!({"type": "kwok"}));
        assert_eq!(set["persistence"]["volumeClaim"]["enabled"], false);
    }
}
