//! At rest the product writes nothing, by the API server's request metrics.

use std::time::Duration;

use e2e::{Result, World, objects::ensure, requests::writes, scenario};
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry};
use kube::{Api, ResourceExt, api::ListParams};

/// Times of the last write of each of the product's field managers to each node.
async fn node_writes(world: &World) -> Result<Vec<String>> {
    let nodes = Api::<Node>::all(world.client.clone()).list(&ListParams::default()).await?;
    let of = |node: &Node| {
        let ours =
            node.managed_fields().iter().filter(|f| f.manager.as_deref().is_some_and(|m| m.starts_with("gputenancy")));
        let line =
            |f: &ManagedFieldsEntry| format!("{} {:?} {:?} {:?}", node.name_any(), f.manager, f.subresource, f.time);
        ours.map(line).collect::<Vec<_>>()
    };
    Ok(nodes.iter().flat_map(of).collect())
}

#[tokio::test]
async fn programs_at_rest_write_nothing_for_two_minutes() {
    let world = World::enter().await.unwrap();
    let body = async {
        scenario::onboard(&world).await?;
        scenario::start_pods(&world).await?;
        tokio::time::sleep(Duration::from_secs(30)).await;
        let marks = node_writes(&world).await?;
        let before = writes(&world).await?;
        tokio::time::sleep(Duration::from_mins(2)).await;
        let after = writes(&world).await?;
        let grown: Vec<String> = after
            .iter()
            .filter(|(key, count)| **count > before.get(*key).copied().unwrap_or(0.0))
            // kubelet writes statuses of nodes and pods; the product's own are checked by field manager below
            .filter(|(key, _)| !(key.contains("subresource=\"status\"") && key.contains("group=\"\"")))
            .map(|(key, count)| format!("{key} {} -> {count}", before.get(key).copied().unwrap_or(0.0)))
            .collect();
        ensure(grown.is_empty(), format!("writes at rest: {}", grown.join("; ")))?;
        ensure(!before.is_empty(), "the API server counts writes")?;
        let now = node_writes(&world).await?;
        ensure(
            now == marks && !now.is_empty(),
            format!("writes of the product's field managers to nodes: {marks:?} -> {now:?}"),
        )
    };
    world.keeping_evidence("quiet", body).await;
}
