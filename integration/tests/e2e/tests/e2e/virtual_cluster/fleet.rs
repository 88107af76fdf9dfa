//! Several virtual clusters over one pool at once; one of them has a pool of its own too, and another one shares.

use std::collections::BTreeSet;

use e2e::{
    Result, World,
    fixtures::{mig_profile, pool},
    objects::ensure,
    scenario::{tenant_ready, wait_for_devices},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};
use serde_json::json;

use super::{
    Inside, START,
    inside::{SPACE, pod},
    install, shares, virtual_cluster_ready, virtual_tenant,
};

pub(super) const TEAMS: [&str; 3] = ["vc-1", "vc-2", "vc-3"];
const RESOURCE: &str = "nvidia.com/mig-1g.10gb";

#[tokio::test]
async fn several_virtual_clusters_share_one_pool() {
    let world = World::attach().await.unwrap();
    world.keeping_evidence("virtual-cluster-fleet", fleet(&world)).await;
}

async fn fleet(world: &World) -> Result<()> {
    install(world).await?;
    world.set(&[shares::profile(), mig_profile("mig-1g", "1g.10gb")]).await?;
    world.set(&[pool("p", "gpu-1", &["mig-1g", shares::PROFILE])]).await?;
    world.set(&shares::own_pool()).await?;
    let [first, second, third] = TEAMS;
    let dedicated = virtual_tenant(first, &[("mig-1g", 2), (shares::OWN_PROFILE, 2)]);
    let plain = virtual_tenant(second, &[("mig-1g", 2)]);
    world.set(&[dedicated, plain, shares::sharing_tenant(third)]).await?;
    for team in TEAMS {
        virtual_cluster_ready(world, team).await?;
        tenant_ready(world, team).await?;
    }
    for team in TEAMS {
        let inside = Inside::open(world, team).await?;
        inside.must(&["create", "namespace", SPACE]).await?;
        // the same names in each
        inside.set(&[pod("one", RESOURCE, "1", json!({})), pod("two", RESOURCE, "1", json!({}))]).await?;
        inside.running(2).await?;
        let names = inside.must(&["get", "pods", "-A", "-o", "jsonpath={.items[*].metadata.name}"]).await?;
        ensure(!TEAMS.iter().any(|other| names.contains(other)), format!("pods of others inside {team}: {names}"))?;
    }
    let running = Api::<Pod>::all(world.client.clone())
        .list(&ListParams::default().labels("vcluster.loft.sh/namespace=ml"))
        .await?;
    ensure(running.items.len() == 2 * TEAMS.len(), format!("{} pods", running.items.len()))?;
    shares::pool_of_one_team(world, first, second).await?;
    shares::limits_hold(world, third).await
}

/// Ten teams apply at once, and each runs a pod within its budget of one device, and no second one.
#[tokio::test]
async fn ten_virtual_clusters_are_ready_over_one_pool_at_once() {
    let world = World::attach().await.unwrap();
    world.keeping_evidence("ten-virtual-clusters", ten(&world)).await;
}

async fn ten(world: &World) -> Result<()> {
    let teams: Vec<String> = (0..10).map(|i| format!("ten-{i}")).collect();
    install(world).await?;
    world.set(&[mig_profile("mig-1g", "1g.10gb"), pool("p", "gpu-1", &["mig-1g"])]).await?;
    world.set(&teams.iter().map(|team| virtual_tenant(team, &[("mig-1g", 1)])).collect::<Vec<_>>()).await?;
    for team in &teams {
        // all ten start on the same two cores
        e2e::virtual_cluster::ready(world, team, START * 3).await?;
        tenant_ready(world, team).await?;
    }
    for team in &teams {
        let inside = Inside::open(world, team).await?;
        inside.must(&["create", "namespace", SPACE]).await?;
        inside.set(&[pod("one", RESOURCE, "1", json!({}))]).await?;
        inside.running(1).await?;
        inside.set(&[pod("beyond", RESOURCE, "1", json!({}))]).await?;
        inside.event("beyond", "the budget of profile mig-1g is used up: 1 of 1").await?;
    }
    let devices = wait_for_devices(world, &["gpu-1"], teams.len()).await?;
    let places: BTreeSet<_> = devices.values().collect();
    ensure(places.len() == teams.len(), format!("two pods on one device: {devices:?}"))
}
