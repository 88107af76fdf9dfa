//! `kubectl gpu connect`: the API server inside from outside of the cluster.

use std::process::Stdio;

use e2e::{
    Error, Result, World,
    objects::ensure,
    product,
    wait::{PATIENCE, eventually},
};
use tokio::process::Command;

use super::inside::SPACE;

/// A command reaches the API server inside, and so does another program while `connect` runs; afterwards no kubeconfig is left.
pub(super) async fn connect_reaches_the_api_server(world: &World, team: &str) -> Result<()> {
    let cluster = world.lab.kubeconfig_path();
    let args = ["connect", team, "--", "kubectl", "get", "namespace", SPACE, "-o", "name"];
    let output = product::kubectl_gpu(&cluster, &args).await?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let printed = text(&output.stdout);
    ensure(printed.trim() == format!("namespace/{SPACE}"), format!("{printed} {}", text(&output.stderr)))?;
    let missing =
        product::kubectl_gpu(&cluster, &["connect", team, "--", "kubectl", "get", "namespace", "none"]).await?;
    ensure(missing.status.code() == Some(1), format!("the code of the command: {}", missing.status))?;
    let unknown = product::kubectl_gpu(&cluster, &["connect", "nobody"]).await?;
    let error = text(&unknown.stderr);
    ensure(!unknown.status.success() && error.contains("there is no GpuTenant nobody"), error)?;

    let io = |source| Error::Io { what: "kubectl gpu connect".into(), source };
    let folder = tempfile::tempdir().map_err(io)?;
    let file = folder.path().join("team.kubeconfig");
    let path = file.display().to_string();
    let mut connect = product::kubectl_gpu_command(&cluster, &["connect", team, "--kubeconfig-out", &path]);
    let mut running = connect.stdout(Stdio::null()).kill_on_drop(true).spawn().map_err(io)?;
    eventually("an answer through the forwarded port", PATIENCE, || async {
        let mut command = world.lab.host_command("kubectl")?;
        command.args(["--kubeconfig", &path, "get", "namespace", SPACE, "-o", "name"]);
        let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await.map_err(io)?;
        Ok(if output.status.success() { Ok(()) } else { Err(text(&output.stderr)) })
    })
    .await?;
    let id = running.id().map(|id| id.to_string()).unwrap_or_default();
    Command::new("kill").args(["-INT", &id]).status().await.map_err(io)?;
    let ended = running.wait().await.map_err(io)?;
    ensure(ended.success() && !file.exists(), format!("{ended}, kubeconfig left: {}", file.exists()))
}
