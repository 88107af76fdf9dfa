//! Install, upgrade and uninstall with helm while tenants run workloads.

use std::collections::BTreeSet;

use e2e::{
    Error, Result, World, objects, product, scenario,
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{GpuNode, GpuPool, GpuProfile, GpuTenant, names};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};

async fn finalizers<K: objects::ClusterObject>(world: &World) -> Result<Vec<String>> {
    let all = Api::<K>::all(world.client.clone()).list(&ListParams::default()).await?;
    Ok(all.iter().flat_map(|o| o.finalizers().iter().map(|f| format!("{}: {f}", o.name_any()))).collect())
}

async fn product_is_removed(world: &World) -> Result<()> {
    eventually("objects of the chart to be deleted", PATIENCE, || async {
        let left = world.labelled("app.kubernetes.io/part-of=gputenancy").await?;
        // NVIDIA's plugin may still mount it
        let kept = BTreeSet::from(["configmap/gputenancy-device-plugin".to_owned()]);
        Ok(if left == kept { Ok(()) } else { Err(format!("{left:?}")) })
    })
    .await?;
    let release = world.labelled("owner=helm").await?;
    objects::ensure(release.is_empty(), format!("helm still has {release:?}"))?;
    let in_namespace =
        world.kubectl(&["get", "pods,leases,secrets,jobs", "-n", product::NAMESPACE, "-o", "name"]).await?;
    objects::ensure(in_namespace.trim().is_empty(), format!("left in {}: {in_namespace}", product::NAMESPACE))?;
    let gpu_nodes = Api::<GpuNode>::all(world.client.clone()).list(&ListParams::default()).await?;
    objects::ensure(gpu_nodes.items.is_empty(), "a GpuNode is left")?;
    for node in Api::<Node>::all(world.client.clone()).list(&ListParams::default()).await? {
        let ours: Vec<&String> = node
            .labels()
            .keys()
            .filter(|k| [names::POOL_LABEL, names::SIMULATED_LABEL].contains(&k.as_str()))
            .collect();
        objects::ensure(ours.is_empty(), format!("{} still carries {ours:?}", node.name_any()))?;
    }
    Ok(())
}

#[tokio::test]
async fn upgrade_and_uninstall_keep_tenant_workloads() {
    let world = World::enter().await.unwrap();
    let body = async {
        scenario::onboard(&world).await?;
        let before = scenario::start_pods(&world).await?;

        // all pods of the product are replaced
        product::install(&world.lab, &["operator.podAnnotations.test=upgrade", "agent.podAnnotations.test=upgrade"])
            .await?;
        world.agents_ready().await?;
        for tenant in [scenario::TEAM_A, scenario::TEAM_B] {
            scenario::tenant_ready(&world, tenant).await?;
        }
        let mut after = world.pods_ready(scenario::TEAM_A, 2).await?;
        after.extend(world.pods_ready(scenario::TEAM_B, 2).await?);
        objects::ensure(before == after, format!("pods before {before:?}, after {after:?}"))?;

        product::uninstall(&world.lab).await?;
        product_is_removed(&world).await?;
        let kinds = world.kubectl(&["get", "crd", "-o", "name"]).await?;
        objects::ensure(kinds.matches("gputenancy.io").count() == 5, format!("CRDs after the uninstall: {kinds}"))?;
        let stuck = [
            finalizers::<GpuTenant>(&world).await?,
            finalizers::<GpuPool>(&world).await?,
            finalizers::<GpuProfile>(&world).await?,
        ];
        objects::ensure(stuck.iter().all(Vec::is_empty), format!("finalizers without a controller: {stuck:?}"))?;

        // workloads keep running, and tenants can be deleted without an operator
        let mut still = world.pods_ready(scenario::TEAM_A, 2).await?;
        still.extend(world.pods_ready(scenario::TEAM_B, 2).await?);
        objects::ensure(before == still, format!("pods before {before:?}, after the uninstall {still:?}"))?;
        let tenants = Api::<GpuTenant>::all(world.client.clone());
        objects::ensure(tenants.list(&ListParams::default()).await?.items.len() == 2, "a GpuTenant was deleted")?;
        tenants.delete(scenario::TEAM_A, &DeleteParams::default()).await?;
        eventually("a tenant to be deleted without an operator", PATIENCE, || async {
            Ok(tenants.get_opt(scenario::TEAM_A).await?.map_or(Ok(()), |t| Err(format!("{:?}", t.metadata))))
        })
        .await?;

        // without an operator the administrator deletes the namespace
        world.kubectl(&["delete", "namespace", scenario::TEAM_A]).await?;

        // a new installation takes over the existing objects
        product::install(&world.lab, &[]).await?;
        scenario::tenant_ready(&world, scenario::TEAM_B).await?;
        let again = world.pods_ready(scenario::TEAM_B, 2).await?;
        let team_b = before.into_iter().filter(|(pod, _)| again.contains_key(pod)).collect();
        objects::ensure(again == team_b, "a pod of team-b was disturbed")?;
        Ok::<(), Error>(())
    };
    world.keeping_evidence("helm", body).await;
}
