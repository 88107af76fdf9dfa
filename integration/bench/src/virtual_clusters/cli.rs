//! `vcluster create` as its users run it, with the chart and the values that this platform renders for a tenant of the same name.

use std::{path::PathBuf, process::Stdio, time::Instant};

use e2e::{
    Error, Result, World,
    objects::ensure,
    virtual_cluster::{Inside, VERSION, chart_values},
    wait::eventually,
};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::Api;
use lab::place::Folders;
use serde_json::json;

use super::LIMIT;

/// The virtual cluster and its namespace, which the command creates.
pub const NAME: &str = "vc-cli";
const PROGRAM: &str = "vclusterctl";

/// The program, if it has not been built.
pub fn lacking() -> Result<Option<PathBuf>> {
    let file = Folders::find()?.toolset.join("bin").join(PROGRAM);
    Ok((!file.exists()).then_some(file))
}

/// Creates the virtual cluster; seconds until the kubeconfig in its Secret works.
pub async fn create(world: &World) -> Result<f64> {
    let io = |source| Error::Io { what: PROGRAM.into(), source };
    let folders = Folders::find()?;
    let folder = tempfile::tempdir().map_err(io)?;
    let (file, config) = (folder.path().join("values.yaml"), folder.path().join("config.json"));
    std::fs::write(&file, chart_values(NAME)?.to_string()).map_err(io)?;
    std::fs::write(&config, json!({"telemetryDisabled": true}).to_string()).map_err(io)?;
    // it runs the helm of PATH
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::iter::once(folders.toolset.join("bin")).chain(std::env::split_paths(&path));
    let path = std::env::join_paths(path).map_err(|e| Error::Wrong(e.to_string()))?;
    let mut command = world.lab.host_command(PROGRAM)?;
    command.args(["create", NAME, "--namespace", NAME, "--driver", "helm", "--connect=false", "--add=false"]);
    command.arg("--local-chart-dir").arg(folders.chart(&format!("vcluster-{VERSION}.tgz"))?);
    command.arg("--values").arg(&file).arg("--config").arg(&config);
    // not from a folder that has a file with the chart's name, and without requests to GitHub
    command.current_dir(folder.path()).env("PATH", path).env("VCLUSTER_SKIP_VERSION_CHECK", "true");
    command.stdin(Stdio::null()).kill_on_drop(true);

    let start = Instant::now();
    let output = command.output().await.map_err(io)?;
    ensure(
        output.status.success(),
        format!(
            "vcluster create: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ),
    )?;
    let secrets = Api::<Secret>::namespaced(world.client.clone(), NAME);
    let kubeconfig = eventually("the Secret with the kubeconfig", LIMIT, || async {
        let data = secrets.get(&format!("vc-{NAME}")).await?.data.unwrap_or_default();
        let config = data.get("config").map(|ByteString(bytes)| String::from_utf8_lossy(bytes).into_owned());
        Ok(config.filter(|config| !config.is_empty()).ok_or_else(|| "no kubeconfig in it".to_owned()))
    })
    .await?;
    let inside = Inside::connect(world, NAME, &kubeconfig, LIMIT).await?;
    let took = start.elapsed().as_secs_f64();
    drop(inside);
    Ok(took)
}

/// Deletes the namespace, with all that the command has created, also by an earlier run.
pub async fn remove(world: &World) -> Result<()> {
    world.kubectl(&["delete", "namespace", NAME, "--ignore-not-found", "--wait=false"]).await?;
    eventually(&format!("namespace {NAME} deleted"), LIMIT, || async {
        let left = world.kubectl(&["get", "namespace", NAME, "-o", "name", "--ignore-not-found"]).await?;
        Ok(if left.trim().is_empty() { Ok(()) } else { Err(left) })
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_a_tenant_of_this_name() {
        let values = chart_values(NAME).unwrap();
        assert_eq!(values["policies"]["podSecurityStandard"], "restricted");
        assert_eq!(values["controlPlane"]["proxy"]["extraSANs"], json!(["vc-cli.vc-cli.svc"]));
        assert_eq!(values["controlPlane"]["statefulSet"]["image"]["registry"], "lab.local");
    }
}
