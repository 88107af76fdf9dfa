//! `kubectl gpu tenant` with the rights of an administrator, of an owner, and of an unrelated user.

use std::process::Output;

use e2e::{
    Error, Result, World,
    fixtures::{mig_profile, pool, tenant, workload},
    objects::ensure,
    product,
    scenario::{MIG_1G, pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use serde_json::{Value, json};

/// Runs `kubectl gpu tenant` with this kubeconfig.
async fn tenant_command(kubeconfig: &Value, args: &[&str]) -> Result<Output> {
    let io = |source| Error::Io { what: "kubectl-gpu".into(), source };
    let file = tempfile::NamedTempFile::new().map_err(io)?;
    std::fs::write(file.path(), kubeconfig.to_string()).map_err(io)?;
    product::kubectl_gpu(file.path(), &[&["tenant"], args].concat()).await
}

async fn report(kubeconfig: &Value, args: &[&str]) -> Result<Value> {
    let output = tenant_command(kubeconfig, &[args, &["-o", "json"]].concat()).await?;
    ensure(output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())?;
    serde_json::from_slice(&output.stdout).map_err(|e| Error::Text { what: "a report".into(), why: e.to_string() })
}

/// A team with a guarantee of two devices, two namespaces, and a Deployment of three pods in one of them.
async fn short_team(world: &World) -> Result<()> {
    let mut team = tenant("team", &[("mig-1g", 2)]);
    team["spec"]["namespaces"] = json!([{"name": "team-dev"}, {"name": "team-prod"}]);
    team["spec"]["owners"] = json!([{"kind": "Group", "name": "the-team"}]);
    team["spec"]["resources"] = json!({"pods": "10"});
    world.set(&[mig_profile("mig-1g", "1g.10gb"), pool("p", "gpu-1", &["mig-1g"]), team]).await?;
    tenant_ready(world, "team").await?;
    pool_ready(world, "p").await?;
    world.set(&[workload("team-dev", "w", MIG_1G, 3)]).await?;
    world.pods_ready("team-dev", 2).await.map(drop)
}

async fn reports(world: &World) -> Result<()> {
    let text = world.kubectl(&["config", "view", "--raw", "--minify", "-o", "json"]).await?;
    let admin: Value =
        serde_json::from_str(&text).map_err(|e| Error::Text { what: "kubeconfig".into(), why: e.to_string() })?;
    short_team(world).await?;
    let seen = eventually("the refused controller and the numbers in the report", PATIENCE, || async {
        let seen = report(&admin, &["team"]).await?;
        let refused = seen["waiting"]
            .as_array()
            .is_some_and(|all| all.iter().any(|w| w["reason"] == "QuotaExceeded" && w["namespace"] == "team-dev"));
        let gpu = &seen["profiles"][0];
        let numbers = [&gpu["budget"], &gpu["used"], &gpu["available"], &gpu["waiting"]].map(Value::as_i64);
        let as_it_is = refused && numbers == [Some(2), Some(2), Some(2), Some(1)];
        Ok(if as_it_is { Ok(seen) } else { Err(seen.to_string()) })
    })
    .await?;
    let shares: Vec<_> = seen["profiles"][0]["namespaces"].as_array().into_iter().flatten().collect();
    ensure(shares.len() == 2, format!("{shares:?}"))?;
    ensure(shares[0]["limit"] == "2" && shares[0]["used"] == "2", format!("shares of team-dev: {shares:?}"))?;
    ensure(shares[1]["limit"] == "0", format!("shares of team-prod: {shares:?}"))?;
    ensure(seen["profiles"][0]["contract"]["isolation"] == "Hardware", format!("{seen}"))?;
    ensure(seen["notVisible"].as_array().is_some_and(Vec::is_empty), format!("{seen}"))?;

    // an owner sees the objects of its namespaces, and which objects are not visible
    let mut owner = admin.clone();
    owner["users"][0]["user"]["as"] = json!("ann");
    owner["users"][0]["user"]["as-groups"] = json!(["the-team", "system:authenticated"]);
    let seen = report(&owner, &["team", "-n", "team-dev,team-prod"]).await?;
    let gpu = &seen["profiles"][0];
    ensure(gpu["budget"] == 2 && gpu["used"] == 2 && gpu["available"].is_null(), format!("{seen}"))?;
    ensure(gpu["namespaces"].as_array().is_some_and(|n| n.len() == 2), format!("{seen}"))?;
    ensure(seen["waiting"][0]["reason"] == "QuotaExceeded", format!("{seen}"))?;
    let hidden = seen["notVisible"].to_string();
    ensure(hidden.contains("GpuTenant team") && !hidden.contains("GpuProfiles"), hidden)?;

    // an unrelated user gets an error with the remedy
    let mut unrelated = admin.clone();
    unrelated["users"][0]["user"]["as"] = json!("eve");
    let output = tenant_command(&unrelated, &["team"]).await?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure(output.status.code() == Some(1) && stderr.contains("name one of the team's namespaces with -n"), stderr)?;
    let output = tenant_command(&admin, &["missing"]).await?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure(output.status.code() == Some(1) && stderr.contains("there is no GpuTenant missing"), stderr)
}

#[tokio::test]
async fn tenant_command_reports_to_platform_and_team() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("tenant-view", reports(&world)).await;
}
