//! Several virtual clusters over one pool at once.

use e2e::{
    Result, World,
    fixtures::{mig_profile, pool},
    objects::ensure,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};
use serde_json::json;

use super::{
    Inside,
    inside::{SPACE, pod},
    install, virtual_cluster_ready, virtual_tenant,
};

const TEAMS: [&str; 3] = ["vc-1", "vc-2", "vc-3"];
const RESOURCE: &str = "nvidia.com/mig-1g.10gb";

/// X1 with three real control planes; the benchmark `virtual-clusters` has ten.
#[tokio::test]
async fn several_virtual_clusters_share_one_pool() {
    let world = World::attach().await.unwrap();
    world.keeping_evidence("virtual-cluster-fleet", fleet(&world)).await;
}

async fn fleet(world: &World) -> Result<()> {
    install(world).await?;
    world.set(&[mig_profile("mig-1g", "1g.10gb"), pool("p", "gpu-1", &["mig-1g"])]).await?;
    world.set(&TEAMS.map(|team| virtual_tenant(team, &[("mig-1g", 2)]))).await?;
    for team in TEAMS {
        virtual_cluster_ready(world, team).await?;
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
    ensure(running.items.len() == 2 * TEAMS.len(), format!("{} pods", running.items.len()))
}
