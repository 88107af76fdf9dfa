//! Several virtual clusters over one pool at once; one of them has a pool of its own too, and another one shares.

use e2e::{
    Result, World,
    fixtures::{mig_profile, pool},
    objects::ensure,
    scenario::tenant_ready,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};
use serde_json::json;

use super::{
    Inside,
    inside::{SPACE, pod},
    install, shares, virtual_cluster_ready, virtual_tenant,
};

pub(super) const TEAMS: [&str; 3] = ["vc-1", "vc-2", "vc-3"];
const RESOURCE: &str = "nvidia.com/mig-1g.10gb";

/// X1 with three real control planes; the benchmark `virtual-clusters` has ten.
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
