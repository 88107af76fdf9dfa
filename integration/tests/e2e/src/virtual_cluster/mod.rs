//! Virtual clusters in a lab: their images, the product with its controller of virtual clusters, and a team's own access.

mod inside;
pub mod scene;

use std::{path::PathBuf, time::Duration};

use gputenancy_crds::{GpuTenant, condition::READY};
use kube::Api;
use lab::{Profile, image, place::Folders};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

pub use inside::Inside;

use crate::{Error, Result, World, fixtures::patched, objects::condition, product, wait::eventually};

/// Version of vCluster.
pub const VERSION: &str = "0.36.1";
const IMAGES: [&str; 2] = ["lab.local/vcluster:0.36.1", "lab.local/gputenancy-virtual-clusters:dev"];
/// Rules of the operator's role change with virtual clusters, and earlier tests have patched them.
const FORCE: &str = "--force-conflicts";
/// The images contain builds of the caller's own profile.
const PROFILE: Profile = if cfg!(debug_assertions) { Profile::Debug } else { Profile::Release };

/// The first file that has not been built and that a lab needs for virtual clusters; `None`: it can serve them.
pub fn lacking() -> Result<Option<PathBuf>> {
    let folders = Folders::find()?;
    for name in IMAGES {
        if let Some(file) = image::lacking(&folders, PROFILE, name)? {
            return Ok(Some(file));
        }
    }
    Ok(None)
}

/// Values of vCluster's chart for the lab: its image for both roles, and requests that its nodes can give.
pub fn platform_values() -> Value {
    let image = json!({"registry": "lab.local", "repository": "vcluster", "tag": VERSION});
    json!({"controlPlane": {
        "distro": {"k8s": {
            "image": image, "imagePullPolicy": "Never",
            "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"cpu": "1", "memory": "256Mi"}},
        }},
        "statefulSet": {
            "image": image, "imagePullPolicy": "Never",
            // the lab has no StorageClass
            "persistence": {"volumeClaim": {"enabled": false}},
            "resources": {"requests": {"cpu": "50m", "memory": "128Mi", "ephemeral-storage": "1Mi"}},
        },
        "coredns": {"deployment": {"image": "lab.local/coredns:1"}},
    }})
}

/// Values of vCluster's chart for a tenant of this name in the lab: those of the samples, which a test compares with what the controller renders.
///
/// # Errors
/// When the sample cannot be read.
pub fn chart_values(name: &str) -> Result<Value> {
    let file = "samples/virtual-clusters/flux.yaml";
    let text = std::fs::read_to_string(product::root().join(file));
    let text = text.map_err(|source| Error::Io { what: file.into(), source })?.replace("team-x", name);
    let wrong = |why: String| Error::Text { what: file.into(), why };
    let objects: Vec<Value> = serde_saphyr::from_multiple(&text).map_err(|e| wrong(e.to_string()))?;
    let release = objects.into_iter().find(|object| object["kind"] == "HelmRelease");
    let mut release = release.ok_or_else(|| wrong("no HelmRelease".into()))?;
    Ok(patched(release.pointer_mut("/spec/values").map(Value::take).unwrap_or_default(), platform_values()))
}

/// Loads the images into all nodes, and upgrades the installed product to one that serves virtual clusters. Objects stay.
pub async fn serve(world: &World) -> Result<()> {
    let file = prepare(world).await?;
    let flags = [FORCE, "--values", &file.path().display().to_string()];
    product::install_with(&world.lab, &[], &flags).await.map(drop)
}

/// As [`serve`], and removes the objects of earlier tests.
pub async fn serve_afresh(world: &World) -> Result<()> {
    let file = prepare(world).await?;
    world.reinstall_with(&[], &[FORCE, "--values", &file.path().display().to_string()]).await
}

/// Loads the images, and writes the values of the product.
async fn prepare(world: &World) -> Result<NamedTempFile> {
    for image in IMAGES {
        world.lab.load_image_of(image, PROFILE).await?;
    }
    let io = |source| Error::Io { what: "writing values".into(), source };
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().map_err(io)?;
    let image = json!({"repository": "lab.local/gputenancy-virtual-clusters", "tag": "dev", "pullPolicy": "Never"});
    let served = json!({"enabled": true, "values": platform_values()});
    let values = json!({"virtualClusters": served, "image": {"virtualClusters": image}});
    std::fs::write(file.path(), values.to_string()).map_err(io)?;
    Ok(file)
}

/// Waits until the virtual cluster of a tenant is ready at the present generation.
pub async fn ready(world: &World, name: &str, limit: Duration) -> Result<()> {
    let api = Api::<GpuTenant>::all(world.client.clone());
    eventually(&format!("the virtual cluster of {name} Ready"), limit, || async {
        let tenant = api.get(name).await?;
        let status = tenant.status.unwrap_or_default().virtual_cluster.unwrap_or_default();
        let current = status.observed_generation == tenant.metadata.generation;
        Ok(match condition(&status.conditions, READY) {
            Some(c) if c.status == "True" && current => Ok(()),
            Some(c) => Err(format!("{}: {}", c.reason, c.message)),
            None => Err("no condition".into()),
        })
    })
    .await
}
