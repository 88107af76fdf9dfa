//! A team's own access to its virtual cluster: the kubeconfig it was given, through a forwarded port.

use std::time::Duration;

use e2e::{
    Error, Result, World,
    fixtures::{merged, pod_spec},
    objects::ensure,
    wait::{PATIENCE, eventually},
};
use serde_json::{Value, json};

/// The namespace of the team's pods inside.
pub(crate) const SPACE: &str = "ml";

/// A team inside its virtual cluster.
pub(crate) struct Inside(e2e::virtual_cluster::Inside);

impl std::ops::Deref for Inside {
    type Target = e2e::virtual_cluster::Inside;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl Inside {
    /// Fetches the kubeconfig of a team and waits until it works.
    pub(crate) async fn open(world: &World, team: &str) -> Result<Self> {
        Self::open_within(world, team, PATIENCE).await
    }

    /// As [`Inside::open`], with a limit for the first answer.
    pub(crate) async fn open_within(world: &World, team: &str, limit: Duration) -> Result<Self> {
        let kubeconfig = e2e::virtual_cluster::Inside::kubeconfig_of(world, team).await?.map_err(Error::Wrong)?;
        ensure(kubeconfig.contains("token") && !kubeconfig.contains("client-key"), "a token and no certificate")?;
        e2e::virtual_cluster::Inside::connect(world, team, &kubeconfig, limit).await.map(Self)
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
