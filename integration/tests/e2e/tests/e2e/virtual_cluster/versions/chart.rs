//! vCluster's own chart, rendered by helm.

use e2e::{Error, Result, World, objects::ensure, product};
use serde_json::Value;
use tokio::process::Command;

/// The objects of `helm template` with the chart of [`VERSION`](e2e::virtual_cluster::VERSION) and these values, for a release and namespace of
/// this name and the lab's version of Kubernetes.
pub(crate) async fn template(world: &World, release: &str, values: &str) -> Result<Vec<Value>> {
    let io = |source| Error::Io { what: "rendering vCluster's chart".into(), source };
    let wrong = |error: serde_json::Error| Error::Wrong(error.to_string());
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().map_err(io)?;
    std::fs::write(file.path(), values).map_err(io)?;
    let version = world.kubectl(&["version", "-o", "json"]).await?;
    let version: Value = serde_json::from_str(&version).map_err(wrong)?;
    let version = version["serverVersion"]["gitVersion"].as_str().unwrap_or_default().to_owned();
    let toolset = product::root().join("target/toolset");
    let mut helm = Command::new(toolset.join("bin/helm"));
    helm.args(["template", release]).arg(toolset.join("charts/vcluster-0.36.1.tgz"));
    helm.args(["--namespace", release, "--kube-version", &version, "--values"]).arg(file.path());
    let output = helm.kill_on_drop(true).output().await.map_err(io)?;
    ensure(output.status.success(), String::from_utf8_lossy(&output.stderr))?;
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().map_err(io)?;
    std::fs::write(file.path(), &output.stdout).map_err(io)?;
    let path = file.path().display().to_string();
    let parsed = world.kubectl(&["create", "--dry-run=client", "-o", "json", "-f", &path]).await?;
    let objects = serde_json::Deserializer::from_str(&parsed).into_iter::<Value>();
    let objects: Vec<Value> = objects.collect::<std::result::Result<_, _>>().map_err(wrong)?;
    ensure(objects.len() >= 7, format!("{} objects", objects.len()))?;
    Ok(objects)
}
