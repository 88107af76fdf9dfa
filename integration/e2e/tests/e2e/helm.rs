//! Helm installs, upgrades and uninstalls the product in the lab, with tenants at work.

use e2e::{
    Error, Result, World, objects, product, story,
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{GpuNode, GpuPool, GpuProfile, GpuTenant, names};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};

async fn finalizers<K>(world: &World) -> Result<Vec<String>>
where
    K: kube::Resource<DynamicType = (), Scope = kube::core::ClusterResourceScope>,
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let all = Api::<K>::all(world.client.clone()).list(&ListParams::default()).await?;
    Ok(all.iter().flat_map(|o| o.finalizers().iter().map(|f| format!("{}: {f}", o.name_any()))).collect())
}

async fn nothing_of_the_product_is_left(world: &World) -> Result<()> {
    eventually("only the kinds are left of the product", PATIENCE, || async {
        let left = world.labelled("app.kubernetes.io/part-of=gputenancy").await?;
        Ok(if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) })
    })
    .await?;
    let release = world.labelled("owner=helm").await?;
    objects::ensure(release.is_empty(), format!("helm still knows {release:?}"))?;
    let in_namespace =
        world.kubectl(&["get", "pods,leases,secrets,jobs", "-n", product::NAMESPACE, "-o", "name"]).await?;
    objects::ensure(in_namespace.trim().is_empty(), format!("left in {}: {in_namespace}", product::NAMESPACE))?;
    let agreements = Api::<GpuNode>::all(world.client.clone()).list(&ListParams::default()).await?;
    objects::ensure(agreements.items.is_empty(), "GpuNodes without an agent")?;
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
async fn an_upgrade_disturbs_nobody_and_an_uninstall_leaves_users_what_is_theirs() {
    let world = World::enter().await.unwrap();
    let body = async {
        story::onboard(&world).await?;
        let before = story::start_pods(&world).await?;

        // every pod of the product is replaced, no pod of a tenant is
        product::install(&world.lab, &["operator.podAnnotations.test=upgrade", "agent.podAnnotations.test=upgrade"])
            .await?;
        world.agents_ready().await?;
        for tenant in [story::TEAM_A, story::TEAM_B] {
            story::tenant_ready(&world, tenant).await?;
        }
        let mut after = world.pods_ready(story::TEAM_A, 2).await?;
        after.extend(world.pods_ready(story::TEAM_B, 2).await?);
        objects::ensure(before == after, format!("pods before {before:?}, after {after:?}"))?;

        product::uninstall(&world.lab).await?;
        nothing_of_the_product_is_left(&world).await?;
        let kinds = world.kubectl(&["get", "crd", "-o", "name"]).await?;
        objects::ensure(kinds.matches("gputenancy.io").count() == 5, format!("the kinds stay: {kinds}"))?;
        let stuck = [
            finalizers::<GpuTenant>(&world).await?,
            finalizers::<GpuPool>(&world).await?,
            finalizers::<GpuProfile>(&world).await?,
        ];
        objects::ensure(stuck.iter().all(Vec::is_empty), format!("finalizers without a controller: {stuck:?}"))?;

        // what is theirs runs on, and goes when they say so, with no operator there
        let mut still = world.pods_ready(story::TEAM_A, 2).await?;
        still.extend(world.pods_ready(story::TEAM_B, 2).await?);
        objects::ensure(before == still, format!("pods before {before:?}, after the uninstall {still:?}"))?;
        let tenants = Api::<GpuTenant>::all(world.client.clone());
        objects::ensure(tenants.list(&ListParams::default()).await?.items.len() == 2, "tenants are the users' own")?;
        tenants.delete(story::TEAM_A, &DeleteParams::default()).await?;
        eventually("a tenant deleted with no operator there", PATIENCE, || async {
            Ok(tenants.get_opt(story::TEAM_A).await?.map_or(Ok(()), |t| Err(format!("{:?}", t.metadata))))
        })
        .await?;

        // the namespace was the operator's to delete; without one it is the administrator's
        world.kubectl(&["delete", "namespace", story::TEAM_A]).await?;

        // and the product comes back to what it finds
        product::install(&world.lab, &[]).await?;
        story::tenant_ready(&world, story::TEAM_B).await?;
        let again = world.pods_ready(story::TEAM_B, 2).await?;
        let team_b = before.into_iter().filter(|(pod, _)| again.contains_key(pod)).collect();
        objects::ensure(again == team_b, "team-b's pods ran on throughout")?;
        Ok::<(), Error>(())
    };
    world.keeping_evidence("helm", body).await;
}
