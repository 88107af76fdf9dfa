//! Waits for conditions by watch, with generous limits.

use crate::address::{API, API_PORT};
use crate::error::{Asking, Error, Result};
use crate::keeper::State;
use crate::lab::{Lab, inside};
use crate::node::NodeHandle;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::runtime::reflector::{ObjectRef, Store, store::Writer};
use kube::runtime::wait::Condition;
use kube::runtime::watcher::watch_object;
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::path::Path;
use std::time::Duration;

/// Limit for operations that take seconds on an idle machine.
pub const PATIENCE: Duration = Duration::from_mins(3);

/// Waits until the object satisfies the condition, and returns it (`None` when it is deleted).
pub async fn wait_for<K>(
    api: Api<K>,
    name: &str,
    what: &str,
    condition: impl Condition<K>,
    timeout: Duration,
) -> Result<Option<K>>
where
    K: Clone + Debug + Send + DeserializeOwned + Resource + 'static,
{
    let mut states = watch_object(api, name).default_backoff().boxed();
    let met = async {
        // restart a failed watch: tests restart the API server
        while let Some(state) = states.next().await {
            if let Ok(object) = state
                && condition.matches_object(object.as_ref())
            {
                return Ok(object);
            }
        }
        Err(Error::Missing(format!("the watch of {name} ended")))
    };
    let waited = tokio::time::timeout(timeout, met).await;
    waited.map_err(|_| Error::Timeout { what: format!("{name}: {what}"), after: timeout, log: None })?
}

/// Waits until the selected objects satisfy the condition; `what` names it in errors.
pub async fn wait_for_all<K>(
    api: Api<K>,
    selection: watcher::Config,
    what: &str,
    timeout: Duration,
    mut condition: impl FnMut(&[std::sync::Arc<K>]) -> bool,
) -> Result<Vec<std::sync::Arc<K>>>
where
    K: Clone + Debug + Send + Sync + DeserializeOwned + Resource<DynamicType = ()> + 'static,
{
    let writer: Writer<K> = Writer::default();
    let store: Store<K> = writer.as_reader();
    let mut events = reflector(writer, watcher(api, selection)).default_backoff().boxed();
    let mut complete = false;
    let found = async {
        loop {
            match events.try_next().await {
                Ok(Some(watcher::Event::InitDone)) => complete = true,
                Ok(Some(_)) | Err(_) => {}
                Ok(None) => return Err(Error::Missing(format!("the watch ended while waiting for {what}"))),
            }
            let state = store.state();
            if complete && condition(&state) {
                return Ok(state);
            }
        }
    };
    let waited = tokio::time::timeout(timeout, found).await;
    waited.map_err(|_| {
        let seen: Vec<_> =
            store.state().iter().map(|object| ObjectRef::from_obj(object.as_ref()).to_string()).collect();
        Error::Timeout { what: format!("{what} (seen: {})", seen.join(", ")), after: timeout, log: None }
    })?
}

/// Whether the pod is ready and not being deleted.
pub fn pod_is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    pod.metadata.deletion_timestamp.is_none()
        && conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
}

/// Whether the node is ready.
pub fn node_is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions.is_some_and(|all| all.iter().any(|one| one.type_ == "Ready" && one.status == "True"))
}

/// Waits until the API server is ready.
pub(crate) async fn wait_api(folder: &Path, state: &State, limit: Duration) -> Result<()> {
    let kubeconfig = folder.join("kubeconfig");
    let ready = async {
        while !crate::init::ready(&kubeconfig).await? {
            if !state.alive() {
                return Err(Error::Missing(format!("the lab ended; see {}", folder.join("lab.log").display())));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    };
    let log = inside(state, "/run/lab/log/kube-apiserver.log");
    let what = format!("the API server on {API}:{API_PORT}");
    tokio::time::timeout(limit, ready).await.map_err(|_| Error::Timeout { what, after: limit, log: Some(log) })?
}

impl Lab {
    /// Starts the API server and waits until it is ready.
    pub async fn start_apiserver(&self) -> Result<()> {
        self.start_component("kube-apiserver").await?;
        self.apiserver_ready().await
    }

    /// Starts the API server, the nodes and their network where a caller that was killed has left them off.
    pub async fn switch_on(&self) -> Result<()> {
        self.start_apiserver().await?;
        for name in self.node_names() {
            let node = self.node(&name)?;
            node.power_on().await?;
            node.restore_network().await?;
            node.wait_booted(PATIENCE).await?;
        }
        Ok(())
    }

    /// Waits until exactly `count` pods match the labels (`a=b,c=d`; empty: all of the namespace), all of them ready.
    pub async fn pods_ready(&self, namespace: &str, labels: &str, count: usize) -> Result<Vec<std::sync::Arc<Pod>>> {
        let api = Api::<Pod>::namespaced(self.client(), namespace);
        let what = format!("{count} ready pods [{labels}] in namespace {namespace}");
        wait_for_all(api, watcher::Config::default().labels(labels), &what, PATIENCE, |pods| {
            pods.len() == count && pods.iter().all(|pod| pod_is_ready(pod))
        })
        .await
    }

    /// Waits until the pod is ready.
    pub async fn pod_ready(&self, namespace: &str, name: &str) -> Result<Pod> {
        let api = Api::<Pod>::namespaced(self.client(), namespace);
        let ready = |pod: Option<&Pod>| pod.is_some_and(pod_is_ready);
        let pod = wait_for(api, name, "pod to be ready", ready, PATIENCE).await?;
        pod.ok_or_else(|| Error::Missing(format!("pod {namespace}/{name} is gone")))
    }

    /// Waits until all replicas of the deployment are updated and available.
    pub async fn deployment_ready(&self, namespace: &str, name: &str) -> Result<()> {
        let api = Api::<Deployment>::namespaced(self.client(), namespace);
        let ready = |deployment: Option<&Deployment>| {
            let Some(deployment) = deployment else { return false };
            let Some(status) = &deployment.status else { return false };
            let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
            status.observed_generation == deployment.metadata.generation
                && status.updated_replicas.unwrap_or(0) == wanted
                && status.replicas.unwrap_or(0) == wanted
                && status.available_replicas.unwrap_or(0) == wanted
        };
        wait_for(api, name, "deployment to be complete", ready, PATIENCE).await.map(drop)
    }

    /// Waits until all of the lab's nodes are ready.
    pub async fn nodes_ready(&self) -> Result<()> {
        let wanted = self.node_names();
        let api = Api::<Node>::all(self.client());
        let all_ready = |nodes: &[std::sync::Arc<Node>]| {
            wanted.iter().all(|name| nodes.iter().any(|node| node.name_any() == *name && node_is_ready(node)))
        };
        wait_for_all(api, watcher::Config::default(), "all nodes to be ready", PATIENCE, all_ready).await.map(drop)
    }

    /// Waits until the API server reports ready.
    pub async fn apiserver_ready(&self) -> Result<()> {
        wait_api(&self.inner.folder, &self.inner.state, PATIENCE).await
    }

    /// The nodes as the API server has them.
    pub async fn nodes(&self) -> Result<Vec<Node>> {
        let list = Api::<Node>::all(self.client()).list(&kube::api::ListParams::default()).await;
        Ok(list.asking(|| "listing nodes".to_owned())?.items)
    }
}

impl NodeHandle {
    /// Power-cycles the node and waits until it is Ready.
    pub async fn power_cycle(&self) -> Result<()> {
        self.power_off().await?;
        self.power_on().await?;
        self.wait_booted(PATIENCE).await?;
        self.wait_ready().await
    }

    /// Waits until the node is Ready, as reported by the kubelet of its present boot.
    pub async fn wait_ready(&self) -> Result<()> {
        let api = Api::<Node>::all(self.lab().client());
        let boot = self.run(&["cat", "/proc/sys/kernel/random/boot_id"]).await?;
        let boot = boot.trim().to_owned();
        let ready = move |node: Option<&Node>| {
            node.is_some_and(|node| {
                let info = node.status.as_ref().and_then(|status| status.node_info.as_ref());
                node_is_ready(node) && info.is_some_and(|info| info.boot_id == boot)
            })
        };
        wait_for(api, self.name(), "node to be ready since its last boot", ready, PATIENCE).await.map(drop)
    }
}
