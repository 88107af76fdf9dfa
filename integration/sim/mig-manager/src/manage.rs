//! Watching the node, and one reconfiguration in the order of NVIDIA's program.

use std::{path::Path, pin::pin};

use futures::StreamExt as _;
use gputenancy_crds::names::MIG_CONFIG_LABEL;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, ResourceExt as _,
    runtime::{WatchStreamExt as _, watcher},
};
use tokio::sync::watch;

use crate::{
    args::Args,
    config::{ConfigError, Selected},
    labels::Labels,
    partition::{self, PartitionError},
};

/// Annotation on the node by which a test makes partitioning fail: `fail`, or `fail-paused` with components left paused.
const FAULT: &str = "mig-manager.test/fault";

/// Error of a reconfiguration or of the program.
#[derive(Debug, thiserror::Error)]
pub enum ManageError {
    /// The API server refused.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// The config cannot be loaded.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Partitioning failed.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// Pods did not stop in time: the state stays `pending` and the components paused, as with NVIDIA's program.
    #[error("components of the GPU Operator did not stop")]
    DidNotStop,
    /// A failure injected by a test.
    #[error("injected failure")]
    Fault,
    /// The partitioning thread ended.
    #[error("partitioning ended: {0}")]
    Join(#[from] tokio::task::JoinError),
}

/// Acts on every new value of the label; failures are logged.
pub async fn follow(args: Args) -> Result<(), ManageError> {
    let client = Client::try_default().await?;
    let (seen, mut latest) = watch::channel(String::new());
    let (api, name) = (Api::<Node>::all(client.clone()), args.node_name.clone());
    tokio::spawn(async move {
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let mut nodes = pin!(watcher(api, config).default_backoff().applied_objects());
        while let Some(node) = nodes.next().await {
            let Ok(node) = node else { continue };
            let value = node.labels().get(MIG_CONFIG_LABEL).cloned().unwrap_or_default();
            seen.send_if_modified(|old| {
                let changed = !value.is_empty() && *old != value;
                if changed {
                    old.clone_from(&value);
                }
                changed
            });
        }
    });
    while latest.changed().await.is_ok() {
        let wanted = latest.borrow_and_update().clone();
        tracing::info!(wanted, "the label has a new value");
        if let Err(error) = reconfigure(&client, &args, &wanted).await {
            tracing::error!(%error, wanted, "failed; waiting for another value");
        }
    }
    Ok(())
}

async fn reconfigure(client: &Client, args: &Args, wanted: &str) -> Result<(), ManageError> {
    let labels = Labels::read(client, &args.node_name).await?;
    let config = match Selected::read(&args.config_file, wanted) {
        Ok(config) => config,
        Err(error) => return failed(&labels, error.into()).await,
    };
    if blocking(&args.driver_root, &config, partition::is_applied).await.unwrap_or(false) {
        labels.start().await?;
        labels.state("success").await?;
        return Ok(());
    }
    labels.state("pending").await?;
    labels.pause().await?;
    if !labels.parts_are_gone(&args.namespace, args.wait).await? {
        return Err(ManageError::DidNotStop);
    }
    let node = Api::<Node>::all(client.clone()).get(&args.node_name).await?;
    match node.annotations().get(FAULT).map(String::as_str) {
        Some("fail-paused") => {
            labels.state("failed").await?;
            return Err(ManageError::Fault);
        }
        Some(_) => return failed(&labels, ManageError::Fault).await,
        None => {}
    }
    if let Err(error) = blocking(&args.driver_root, &config, partition::apply).await {
        return failed(&labels, error).await;
    }
    labels.start().await?;
    labels.state("success").await?;
    Ok(())
}

async fn failed(labels: &Labels, error: ManageError) -> Result<(), ManageError> {
    labels.start().await?;
    labels.state("failed").await?;
    Err(error)
}

/// Runs blocking NVML calls on a thread.
async fn blocking<T: Send + 'static>(
    root: &Path,
    config: &Selected,
    work: fn(&Path, &Selected) -> Result<T, PartitionError>,
) -> Result<T, ManageError> {
    let (root, config) = (root.to_owned(), config.clone());
    Ok(tokio::task::spawn_blocking(move || work(&root, &config)).await??)
}
