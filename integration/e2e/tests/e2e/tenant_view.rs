//! `kubectl gpu tenant` says how a tenant stands, to the platform's people and to the team.

use std::process::{Command, Output};

use e2e::{
    Error, Result, World,
    objects::ensure,
    product,
    scene::{mig_profile, pool, tenant, workload},
    story::{MIG_1G, pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use serde_json::{Value, json};

/// Runs the program with this kubeconfig, in JSON.
fn ask(kubeconfig: &Value, args: &[&str]) -> Result<Output> {
    let io = |source| Error::Io { what: "kubectl-gpu".into(), source };
    let file = tempfile::NamedTempFile::new().map_err(io)?;
    std::fs::write(file.path(), kubeconfig.to_string()).map_err(io)?;
    let program = product::root().join("target/debug/kubectl-gpu");
    Command::new(program).arg("tenant").args(args).env("KUBECONFIG", file.path()).output().map_err(io)
}

fn report(kubeconfig: &Value, args: &[&str]) -> Result<Value> {
    let output = ask(kubeconfig, &[args, &["-o", "json"]].concat())?;
    ensure(output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())?;
    serde_json::from_slice(&output.stdout).map_err(|e| Error::Text { what: "a report".into(), why: e.to_string() })
}

/// A team with two namespaces and two devices, of which it wants three in one of them.
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

async fn body(world: &World) -> Result<()> {
    let text = world.kubectl(&["config", "view", "--raw", "--minify", "-o", "json"]).await?;
    let admin: Value =
        serde_json::from_str(&text).map_err(|e| Error::Text { what: "kubeconfig".into(), why: e.to_string() })?;
    short_team(world).await?;
    let seen = eventually("the refused controller is named, and the budget spread", PATIENCE, || async {
        let seen = report(&admin, &["team"])?;
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
    ensure(shares[0]["limit"] == "2" && shares[0]["used"] == "2", format!("all of it lies in team-dev: {shares:?}"))?;
    ensure(shares[1]["limit"] == "0", format!("and nothing in team-prod: {shares:?}"))?;
    ensure(seen["profiles"][0]["contract"]["isolation"] == "Hardware", format!("{seen}"))?;
    ensure(seen["notVisible"].as_array().is_some_and(Vec::is_empty), format!("{seen}"))?;

    // somebody of the team: what the namespaces show, and what is hidden
    let mut owner = admin.clone();
    owner["users"][0]["user"]["as"] = json!("ann");
    owner["users"][0]["user"]["as-groups"] = json!(["the-team", "system:authenticated"]);
    let seen = report(&owner, &["team", "-n", "team-dev,team-prod"])?;
    let gpu = &seen["profiles"][0];
    ensure(gpu["budget"] == 2 && gpu["used"] == 2 && gpu["available"].is_null(), format!("{seen}"))?;
    ensure(gpu["namespaces"].as_array().is_some_and(|n| n.len() == 2), format!("{seen}"))?;
    ensure(seen["waiting"][0]["reason"] == "QuotaExceeded", format!("{seen}"))?;
    let hidden = seen["notVisible"].to_string();
    ensure(hidden.contains("GpuTenant team") && !hidden.contains("GpuProfiles"), hidden)?;

    // and a stranger sees nothing, and is told what to do
    let mut stranger = admin.clone();
    stranger["users"][0]["user"]["as"] = json!("eve");
    let output = ask(&stranger, &["team"])?;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure(output.status.code() == Some(1) && told.contains("name one of the team's namespaces with -n"), told)?;
    let output = ask(&admin, &["nobody"])?;
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure(output.status.code() == Some(1) && told.contains("there is no GpuTenant nobody"), told)
}

#[tokio::test]
async fn a_tenant_is_shown_to_the_platform_and_to_the_team() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("tenant-view", body(&world)).await;
}
