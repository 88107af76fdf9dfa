//! A team's own access to its virtual cluster: the kubeconfig it was given, through a forwarded port.

use std::{process::Stdio, time::Duration};

use e2e::{
    Error, Result, World,
    fixtures::{merged, pod_spec},
    objects::ensure,
    product,
    wait::{PATIENCE, eventually},
};
use serde_json::{Value, json};
use tokio::{process::Command, task::JoinHandle};

/// The namespace of the team's pods inside.
pub(crate) const SPACE: &str = "ml";

/// A team inside its virtual cluster.
pub(crate) struct Inside {
    team: &'static str,
    kubeconfig: tempfile::NamedTempFile,
    server: String,
    forward: JoinHandle<()>,
}

impl Inside {
    /// Fetches the kubeconfig of a team and waits until it works.
    pub(crate) async fn open(world: &World, team: &'static str) -> Result<Self> {
        let io = |source| Error::Io { what: "reaching the virtual cluster".into(), source };
        let output = product::kubectl_gpu(&world.lab.kubeconfig_path(), &["kubeconfig", team]).await?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure(
            text.contains("token") && !text.contains("client-key"),
            format!("a token and no certificate: {output:?}"),
        )?;
        let kubeconfig = tempfile::NamedTempFile::new().map_err(io)?;
        std::fs::write(kubeconfig.path(), &text).map_err(io)?;
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).map_err(io)?.port();
        let (admin, pair) = (world.lab.kubeconfig_path(), format!("{port}:443"));
        // kubectl ends a forwarding when one of its connections breaks
        let forward = tokio::spawn(async move {
            loop {
                let mut kubectl = Command::new(product::root().join("target/toolset/bin/kubectl"));
                kubectl.arg("--kubeconfig").arg(&admin);
                kubectl.args(["-n", team, "port-forward", &format!("service/{team}"), &pair]);
                kubectl.stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
                drop(kubectl.status().await);
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        });
        let inside = Self { team, kubeconfig, server: format!("https://127.0.0.1:{port}"), forward };
        eventually("an answer from inside", PATIENCE, || async { Ok(inside.kubectl(&["get", "ns"]).await.map(drop)) })
            .await?;
        Ok(inside)
    }

    /// Runs kubectl inside: its output, or its errors. It is tried again while the forwarding starts.
    pub(crate) async fn kubectl(&self, args: &[&str]) -> std::result::Result<String, String> {
        let mut tries = 0;
        loop {
            let answer = self.once(args).await;
            let broken = ["connection refused", "connection reset", "EOF", "lost connection"];
            match answer {
                Err(error) if tries < 30 && broken.iter().any(|words| error.contains(words)) => tries += 1,
                answer => return answer,
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    async fn once(&self, args: &[&str]) -> std::result::Result<String, String> {
        let mut command = Command::new(product::root().join("target/toolset/bin/kubectl"));
        command.arg("--kubeconfig").arg(self.kubeconfig.path());
        command.args(["--server", &self.server, "--tls-server-name", &format!("{0}.{0}.svc", self.team)]).args(args);
        command.env("HOME", std::env::temp_dir()).stdin(Stdio::null()).kill_on_drop(true);
        let output = command.output().await.map_err(|e| e.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// As [`Inside::kubectl`], and an error fails the test.
    pub(crate) async fn must(&self, args: &[&str]) -> Result<String> {
        self.kubectl(args).await.map_err(Error::Wrong)
    }

    /// Applies an object or a List; the errors are those of all its items.
    pub(crate) async fn apply(&self, object: &Value) -> std::result::Result<String, String> {
        let file = tempfile::Builder::new().suffix(".json").tempfile().map_err(|e| e.to_string())?;
        std::fs::write(file.path(), object.to_string()).map_err(|e| e.to_string())?;
        self.kubectl(&["apply", "-f", &file.path().display().to_string()]).await
    }

    /// As [`Inside::apply`], of several objects that must be admitted inside.
    pub(crate) async fn set(&self, objects: &[Value]) -> Result<()> {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        self.apply(&list).await.map(drop).map_err(Error::Wrong)
    }

    /// Messages of the events about objects with this name in the team's namespace.
    pub(crate) async fn events(&self, name: &str) -> String {
        let field = format!("involvedObject.name={name}");
        let path = "jsonpath={.items[*].message}";
        let events = self.kubectl(&["get", "events", "-n", SPACE, "--field-selector", &field, "-o", path]).await;
        events.unwrap_or_else(|error| error)
    }

    /// Name of the object and message of all events in the team's namespace.
    pub(crate) async fn all_events(&self) -> Result<Vec<(String, String)>> {
        let events = self.must(&["get", "events", "-n", SPACE, "-o", "json"]).await?;
        let events: Value = serde_json::from_str(&events).map_err(|e| Error::Wrong(e.to_string()))?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let items = events["items"].as_array().cloned().unwrap_or_default();
        Ok(items.iter().map(|e| (text(&e["involvedObject"]["name"]), text(&e["message"]))).collect())
    }

    /// Waits until an event about this object has this excerpt.
    pub(crate) async fn event(&self, name: &str, excerpt: &str) -> Result<()> {
        eventually(&format!("an event of {name} with {excerpt:?}"), PATIENCE, || async {
            let events = self.events(name).await;
            Ok(if events.contains(excerpt) { Ok(()) } else { Err(events) })
        })
        .await
    }

    /// Waits until exactly so many pods of the team's namespace are Running inside.
    pub(crate) async fn running(&self, wanted: usize) -> Result<()> {
        eventually(&format!("{wanted} pods Running inside"), PATIENCE, || async {
            let phases = self.kubectl(&["get", "pods", "-n", SPACE, "-o", "jsonpath={.items[*].status.phase}"]).await;
            let phases = phases.unwrap_or_default();
            let count = phases.split(' ').filter(|p| *p == "Running").count();
            Ok(if count == wanted { Ok(()) } else { Err(phases) })
        })
        .await
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.forward.abort();
    }
}

/// A pod in the team's namespace that asks for so many devices and holds them.
pub(crate) fn pod(name: &str, resource: &str, devices: &str, spec: Value) -> Value {
    let spec = merged(merged(pod_spec(resource), json!({"restartPolicy": "Never"})), spec);
    let mut pod =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": SPACE}, "spec": spec});
    if let Some(limit) = pod.pointer_mut("/spec/containers/0/resources/limits") {
        *limit = json!({resource: devices});
    }
    pod
}
