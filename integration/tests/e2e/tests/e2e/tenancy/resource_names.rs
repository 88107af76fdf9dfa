//! Resource names at the limits of Kubernetes, and names that differ in a sign only: each has its devices, its quota and its socket.

use e2e::{
    Result, World,
    fixtures::{mig_profile, pool, tenant, workload},
    interrupt,
    objects::{allocatable, ensure},
    scenario::{pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use kube::{Api, api::PostParams};
use serde_json::json;

const NODE: &str = "gpu-1";
const TEAM: &str = "named";

/// Resource names of one pool: the longest one, its neighbour that differs in the last character, and three that differ in a sign.
fn resources() -> [String; 5] {
    let long = |last: &str| format!("gputenancy.io/{}{last}", "a".repeat(62));
    [long("b"), long("c"), "gputenancy.io/x-y".into(), "gputenancy.io/x_y".into(), "gputenancy.io/x.y".into()]
}

async fn each_is_advertised(world: &World, what: &str) -> Result<()> {
    eventually(&format!("{what}: a device of each resource"), PATIENCE, || async {
        let mut missing = Vec::new();
        for resource in resources() {
            match allocatable(&world.client, NODE, &resource).await? {
                1 => {}
                other => missing.push(format!("{other} of {resource}")),
            }
        }
        Ok(if missing.is_empty() { Ok(()) } else { Err(missing.join(", ")) })
    })
    .await
}

#[tokio::test]
async fn longest_and_similar_resource_names_are_served_side_by_side() {
    let world = World::enter().await.unwrap();
    let body = async {
        let (mut objects, mut names) = (Vec::new(), Vec::new());
        for (number, resource) in resources().into_iter().enumerate() {
            let name = format!("n{number}");
            let mut profile = mig_profile(&name, "1g.10gb");
            profile["spec"]["resourceName"] = json!(resource);
            objects.push(profile);
            names.push(name);
        }
        world.set(&objects).await?;
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let guarantees: Vec<(&str, i32)> = names.iter().map(|name| (*name, 1)).collect();
        world.set(&[pool("p", NODE, &names), tenant(TEAM, &guarantees)]).await?;
        tenant_ready(&world, TEAM).await?;
        pool_ready(&world, "p").await?;
        each_is_advertised(&world, "at first").await?;

        let pods: Vec<_> =
            names.iter().zip(resources()).map(|(name, resource)| workload(TEAM, name, &resource, 1)).collect();
        world.set(&pods).await?;
        let before = world.pods_ready(TEAM, names.len()).await?;
        interrupt::kill_agent(&world, NODE).await?;
        each_is_advertised(&world, "after a restart of the agent").await?;
        ensure(world.pods_ready(TEAM, names.len()).await? == before, "a pod was disturbed")?;

        // one character more is refused, and says what to write
        let mut longer = mig_profile("longer", "1g.10gb");
        longer["spec"]["resourceName"] = json!(format!("gputenancy.io/{}", "a".repeat(64)));
        let longer = serde_json::from_value(longer).unwrap();
        let profiles = Api::<gputenancy_crds::GpuProfile>::all(world.client.clone());
        let refused = profiles.create(&PostParams::default(), &longer).await.map(drop).map_err(|e| e.to_string());
        let names_the_limit = refused.as_ref().is_err_and(|why| why.contains("63"));
        ensure(names_the_limit, format!("64 characters after the slash: {refused:?}"))
    };
    world.keeping_evidence("resource-names", body).await;
}
