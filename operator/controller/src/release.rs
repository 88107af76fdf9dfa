//! Removes our finalizers, so that an uninstalled operator leaves nothing that cannot be deleted.
//!
//! What stays: users' profiles, pools and tenants, the namespaces of tenants with all that we wrote into them, and
//! the MIG layouts as they are. The agreements (`GpuNode`), our labels and taints on nodes go: without agents they are nobody's.

use std::{fmt::Debug, sync::Arc};

use gputenancy_crds::{GpuNode, GpuPool, GpuProfile, GpuTenant, names, projection::SlimNode};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{ListParams, PartialObjectMeta},
    core::ClusterResourceScope,
};

use serde_json::json;

use crate::{
    apply::{Part, Writer, has_finalizer},
    metrics::Metrics,
    pool::without_ours,
};

/// Removes our finalizer from every object of our kinds.
pub async fn finalizers(client: Client) -> kube::Result<()> {
    let writer = Writer::new(client.clone(), Arc::new(Metrics::default()));
    of::<GpuTenant>(&client, &writer).await?;
    of::<GpuPool>(&client, &writer).await?;
    of::<GpuProfile>(&client, &writer).await?;
    of::<GpuNode>(&client, &writer).await?;
    let agreements: Api<GpuNode> = Api::all(client.clone());
    for node in listed::<GpuNode>(&client).await? {
        writer.delete(&agreements, &node.name_any(), node.uid()).await?;
    }
    for node in Api::<SlimNode>::all(client.clone()).list(&ListParams::default()).await? {
        untaint(&writer, &node).await?;
        if [names::POOL_LABEL, names::SIMULATED_LABEL].iter().any(|l| node.labels().contains_key(*l)) {
            // an apply that names no label takes back ours, and leaves a label of the same name that somebody else set
            let fields = json!({"metadata": {"uid": node.uid()}});
            writer.apply_fields::<Node>(Part::Pool, &node.name_any(), fields).await?;
        }
    }
    Ok(())
}

/// Takes our taint back. Whoever changes the node's taints at the same moment has the last word, and the hook is run again.
async fn untaint(writer: &Writer, node: &SlimNode) -> kube::Result<()> {
    let Some(mark) = node.annotations().get(names::TAINTED) else { return Ok(()) };
    let fields = json!({
        "metadata": {"resourceVersion": node.resource_version(), "annotations": {names::TAINTED: null}},
        "spec": {"taints": without_ours(&node.spec.taints, Some(mark))},
    });
    writer.merge(&Api::<Node>::all(writer.client()), &node.name_any(), &fields).await.map(drop)
}

/// Reads metadata only: an object that does not parse must be let go as well.
async fn of<K>(client: &Client, writer: &Writer) -> kube::Result<()>
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + Debug,
{
    for object in listed::<K>(client).await?.iter().filter(|o| has_finalizer(*o)) {
        tracing::info!(kind = %K::kind(&()), name = object.name_any(), "removing the finalizer");
        writer.set_finalizer(object, false).await?;
    }
    Ok(())
}

async fn listed<K>(client: &Client) -> kube::Result<Vec<PartialObjectMeta<K>>>
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + Debug,
{
    let api: Api<PartialObjectMeta<K>> = Api::all(client.clone());
    match api.list(&ListParams::default()).await {
        Ok(listed) => Ok(listed.items),
        // the CRD is gone, and its objects with it; after the last one of the group the API server says so in plain text, without a reason
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}
