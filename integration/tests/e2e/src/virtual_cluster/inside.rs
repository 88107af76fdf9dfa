//! Access to a virtual cluster from the host: a kubeconfig, through a forwarded port.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use lab::Lab;
use tempfile::NamedTempFile;
use tokio::task::JoinHandle;

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
    forward: JoinHandle<()>,
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
        let inside = Self {
            lab: world.lab.clone(),
            kubeconfig: file,
            server: format!("https://127.0.0.1:{port}"),
            certified: format!("{name}.{name}.svc"),
            forward: tokio::spawn(forward(world.lab.clone(), name.to_owned(), port)),
        };
        let start = Instant::now();
        loop {
            let Err(last) = inside.once(&["get", "namespaces", "--request-timeout=10s"]).await else {
                return Ok(inside);
            };
            if start.elapsed() > limit {
                let what = format!("an answer of the virtual cluster {name}");
                return Err(Error::Late { what, seconds: limit.as_secs(), last });
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Runs kubectl inside: its output, or its errors. It is tried again while the forwarding or the control plane starts again.
    pub async fn kubectl(&self, args: &[&str]) -> std::result::Result<String, String> {
        let mut tries = 0;
        loop {
            // the last: a control plane that starts does not know its accounts yet
            let broken = [
                "connection refused",
                "was refused",
                "connection reset",
                "EOF",
                "asked for the client to provide credentials",
            ];
            match self.once(args).await {
                Err(error) if tries < 100 && broken.iter().any(|words| error.contains(words)) => tries += 1,
                answer => return answer,
            }
            tokio::time::sleep(AGAIN * 2).await;
        }
    }

    async fn once(&self, args: &[&str]) -> std::result::Result<String, String> {
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

impl Drop for Inside {
    fn drop(&mut self) {
        self.forward.abort();
    }
}

/// Forwards until it is aborted: kubectl ends when there is no running pod, and when one of its connections breaks.
async fn forward(lab: Lab, name: String, port: u16) {
    loop {
        if let Ok(mut command) = lab.host_command("kubectl") {
            command.args(["port-forward", "-n", &name, &format!("service/{name}"), &format!("{port}:443")]);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
            drop(command.status().await);
        }
        tokio::time::sleep(AGAIN).await;
    }
}
