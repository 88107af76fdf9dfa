//! Objects that the agent's events are about, and their publication.

use std::sync::Arc;

use futures::future::BoxFuture;
use gputenancy_cluster::events::{Notice, Publisher};
use gputenancy_crds::{DeviceOwner, GROUP};
use k8s_openapi::api::core::v1::ObjectReference;

/// Publishes an event; tests replace it.
pub type Publish = Arc<dyn Fn(Notice) -> BoxFuture<'static, ()> + Send + Sync>;

/// Publishes through the API server.
pub fn publish(publisher: Publisher) -> Publish {
    Arc::new(move |notice| {
        let publisher = publisher.clone();
        Box::pin(async move { publisher.publish(notice).await })
    })
}

/// The `GpuNode` of a node.
pub fn gpu_node(node: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some(format!("{GROUP}/v1alpha1")),
        kind: Some("GpuNode".to_owned()),
        name: Some(node.to_owned()),
        ..ObjectReference::default()
    }
}

/// The pod of a container.
pub fn pod(owner: &DeviceOwner) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        namespace: Some(owner.namespace.clone()),
        name: Some(owner.pod.clone()),
        ..ObjectReference::default()
    }
}
