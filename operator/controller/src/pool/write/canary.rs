//! Creates and deletes canary pods.

use gputenancy_decisions::{
    change::CanaryRequest,
    pool::decide::canary::{OrphanedCanary, render},
};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;

use super::{WriteError, Written, failed, state::NodeContext};
use crate::apply::Part;

/// Creates a canary pod; one that exists is the same.
pub async fn create(node: NodeContext<'_>, request: CanaryRequest) -> Result<(), WriteError> {
    let (writer, home) = (&node.writer.writer, &node.writer.namespaces.home);
    let doing = format!("creating canary pod {}", request.name);
    let created = async {
        let pod = render(&request, node.name, home).map_err(kube::Error::SerdeError)?;
        writer.create_in(Part::Pool, home, &pod).await
    };
    if created.await.map_err(failed(doing))? {
        tracing::info!(pod = request.name, device = request.device, "created canary pod");
    }
    Ok(())
}

/// Deletes a canary pod that no change needs.
pub async fn delete(node: NodeContext<'_>, canary: OrphanedCanary) -> Result<Written, WriteError> {
    let OrphanedCanary { pod, uid } = canary;
    let writer = &node.writer.writer;
    match writer.delete(&Api::<Pod>::namespaced(writer.client(), &pod.namespace), &pod.name, Some(uid)).await {
        // another pod has the name by now
        Err(kube::Error::Api(status)) if status.is_conflict() => Ok(Written::Done),
        deleted => deleted.map(|()| Written::Done).map_err(failed(format!("deleting canary pod {pod}"))),
    }
}
