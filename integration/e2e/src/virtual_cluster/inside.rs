//! Access to a virtual cluster from the host: a kubeconfig, through a forwarded port.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use lab::Lab;
use tempfile::NamedTempFile;
use tokio::process::Child;

use crate::{Error, Result, World, product};

/// Pause between two attempts to reach the API server.
const AGAIN: Duration = Duration::from_millis(100);

/// The API server of a virtual cluster, with the rights of a kubeconfig.
pub struct Inside {
    lab: Lab,
    kubeconfig: NamedTempFile,
    server: String,
    /// Name of the server in its certificate.
    certified: String,
    forward: Child,
}

impl Inside {
    /// The kubeconfig that `kubectl gpu kubeconfig` prints for a tenant; the error is that of the command.
    pub async fn kubeconfig_of(world: &World, tenant: &str) -> Result<std::result::Result<String, String>> {
        let output = product::kubectl_gpu(&world.lab.kubeconfig_path(), &["kubeconfig", tenant]).await?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) })
    }

    /// Opens the virtual cluster of a tenant that is ready, with the team's own kubeconfig. Tenant and namespace have the same name.
    pub async fn open(world: &World, tenant: &str, limit: Duration) -> Result<Self> {
        let kubeconfig = Self::kubeconfig_of(world, tenant).await?.map_err(Error::Wrong)?;
        Self::connect(world, tenant, &kubeconfig, limit).await
    }

    /// Forwards a port to the Service and namespace of this name, and waits until an authenticated request is answered.
    pub async fn connect(world: &World, name: &str, kubeconfig: &str, limit: Duration) -> Result<Self> {
        let io = |source| Error::Io { what: "reaching a virtual cluster".into(), source };
        let file = NamedTempFile::new().map_err(io)?;
        std::fs::write(file.path(), kubeconfig).map_err(io)?;
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).map_err(io)?.port();
        let mut inside = Self {
            lab: world.lab.clone(),
            kubeconfig: file,
            server: format!("https://127.0.0.1:{port}"),
            certified: format!("{name}.{name}.svc"),
            forward: forward(&world.lab, name, port)?,
        };
        let start = Instant::now();
        loop {
            let Err(last) = inside.kubectl(&["get", "namespaces", "--request-timeout=10s"]).await else {
                return Ok(inside);
            };
            if start.elapsed() > limit {
                let what = format!("an answer of the virtual cluster {name}");
                return Err(Error::Late { what, seconds: limit.as_secs(), last });
            }
            // it ends when there is no running pod yet, and when nothing listens in the pod
            if !matches!(inside.forward.try_wait(), Ok(None)) {
                inside.forward = forward(&inside.lab, name, port)?;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Runs kubectl inside: its output, or its errors.
    pub async fn kubectl(&self, args: &[&str]) -> std::result::Result<String, String> {
        let mut command = self.lab.host_command("kubectl").map_err(|e| e.to_string())?;
        command.arg("--kubeconfig").arg(self.kubeconfig.path());
        command.args(["--server", &self.server, "--tls-server-name", &self.certified]).args(args);
        let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await.map_err(|e| e.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// As [`Inside::kubectl`], with an error of this crate.
    pub async fn must(&self, args: &[&str]) -> Result<String> {
        self.kubectl(args).await.map_err(Error::Wrong)
    }
}

fn forward(lab: &Lab, name: &str, port: u16) -> Result<Child> {
    let mut command = lab.host_command("kubectl")?;
    command
        .args(["port-forward", "-n", name, &format!("service/{name}"), &format!("{port}:443")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    command.spawn().map_err(|source| Error::Io { what: "kubectl port-forward".into(), source })
}
