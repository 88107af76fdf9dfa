//! Keeps a node's table up to date.

use std::collections::BTreeSet;
use std::path::Path;
use std::pin::pin;
use std::process::Stdio;
use std::time::Duration;

use futures::{Stream, StreamExt as _, stream};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use super::rules::Cluster;
use super::table::table;
use crate::client;
use crate::error::{During, Error, Result};

/// Debounce of changes.
const TOGETHER: Duration = Duration::from_millis(50);
/// Retry interval after a refusal by nft or the API server.
const PAUSE: Duration = Duration::from_secs(1);
/// Seconds of a watch. After five more without an event the connection is closed: after a network partition TCP's
/// retransmissions can take as long as the partition.
const WATCH_SECONDS: u32 = 10;

/// Writes the node's table whenever it changes; never returns.
pub async fn follow(node: &str, kubeconfig: &Path) {
    loop {
        if let Err(error) = session(node, kubeconfig).await {
            eprintln!("network policies: {error}");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn session(node: &str, kubeconfig: &Path) -> Result<()> {
    let client = client::from_file(kubeconfig).await?;
    let (namespaces, of_namespaces) = cached::<Namespace>(Api::all(client.clone()));
    let (pods, of_pods) = cached::<Pod>(Api::all(client.clone()));
    let (policies, of_policies) = cached::<NetworkPolicy>(Api::all(client));
    let mut changes = pin!(stream::select_all([of_namespaces.boxed(), of_pods.boxed(), of_policies.boxed()]));
    let mut last = String::new();
    while changes.next().await.is_some() {
        while tokio::time::timeout(TOGETHER, changes.next()).await.is_ok_and(|more| more.is_some()) {}
        if !(listed(&namespaces) && listed(&pods) && listed(&policies)) {
            continue;
        }
        let pods: Vec<Pod> = pods.state().iter().map(|p| Pod::clone(p)).collect();
        // of thousands of namespaces with policies few have pods
        let used: BTreeSet<String> = pods.iter().filter_map(ResourceExt::namespace).collect();
        let (namespaces, policies) = (namespaces.state(), policies.state());
        let namespaces = namespaces.iter().map(|n| (n.name_any(), n)).filter(|(name, _)| used.contains(name));
        let policies = policies.iter().filter(|p| p.metadata.namespace.as_ref().is_some_and(|ns| used.contains(ns)));
        let cluster = Cluster {
            namespaces: namespaces.map(|(name, n)| (name, n.labels().clone())).collect(),
            policies: policies.map(|p| NetworkPolicy::clone(p)).collect(),
            pods,
        };
        let text = table(&cluster.guards(node));
        if text != last {
            write(&text).await?;
            last = text;
        }
    }
    Ok(())
}

/// Has the first list arrived?
fn listed<K: reflector::Lookup<DynamicType = ()> + Clone + 'static>(store: &Store<K>) -> bool {
    use futures::FutureExt as _;
    store.wait_until_ready().now_or_never().is_some()
}

/// A cache, and a notification for each change of it.
fn cached<K>(api: Api<K>) -> (Store<K>, impl Stream<Item = ()>)
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + Sync + 'static,
{
    let (store, writer) = reflector::store();
    let slim = |object: &mut K| {
        object.managed_fields_mut().clear();
        object.annotations_mut().clear();
    };
    let events =
        watcher(api, watcher::Config::default().timeout(WATCH_SECONDS)).default_backoff().modify(slim).reflect(writer);
    let notification = |event: std::result::Result<_, watcher::Error>| {
        if let Err(error) = event {
            eprintln!("network policies: {error}");
        }
    };
    (store, events.map(notification))
}

async fn write(text: &str) -> Result<()> {
    let what = || "writing the table of network policies".to_owned();
    let mut nft = Command::new("nft");
    nft.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut nft = nft.spawn().during(what)?;
    if let Some(mut stdin) = nft.stdin.take() {
        stdin.write_all(text.as_bytes()).await.during(what)?;
    }
    let output = nft.wait_with_output().await.during(what)?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::Command { command: "nft -f -".into(), status: output.status.to_string(), stderr })
}
