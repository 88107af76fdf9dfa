//! `kubectl gpu tenant` with the rights of an administrator, of an owner, and of an unrelated user.

use std::process::Output;

use e2e::{
    Error, Result, World,
    fixtures::{mig_profile, pool, tenant, workload},
    objects::{ensure, patch_tenant},
    product,
    scenario::{MIG_1G, pool_ready, tenant_ready},
    wait::{PATIENCE, eventually},
};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::Api;
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

    // an owner reads the same as the platform's people
    let mut owner = admin.clone();
    owner["users"][0]["user"]["as"] = json!("ann");
    owner["users"][0]["user"]["as-groups"] = json!(["the-team", "system:authenticated"]);
    let seen = report(&owner, &["team"]).await?;
    let gpu = &seen["profiles"][0];
    ensure(gpu["budget"] == 2 && gpu["used"] == 2 && gpu["available"] == 2, format!("{seen}"))?;
    ensure(gpu["namespaces"].as_array().is_some_and(|n| n.len() == 2), format!("{seen}"))?;
    ensure(seen["waiting"][0]["reason"] == "QuotaExceeded", format!("{seen}"))?;
    ensure(seen["notVisible"].as_array().is_some_and(Vec::is_empty), format!("{seen}"))?;

    // a user with rights in the namespaces alone: what these show, and what is hidden
    for namespace in ["team-dev", "team-prod"] {
        let binding = ["create", "rolebinding", "guest", "--clusterrole=gputenancy:tenant-viewer", "--user=gus"];
        world.kubectl(&[&binding[..], &["-n", namespace]].concat()).await?;
    }
    let mut guest = admin.clone();
    guest["users"][0]["user"]["as"] = json!("gus");
    guest["users"][0]["user"]["as-groups"] = json!(["system:authenticated"]);
    let seen = report(&guest, &["team", "-n", "team-dev,team-prod"]).await?;
    let gpu = &seen["profiles"][0];
    ensure(gpu["budget"] == 2 && gpu["used"] == 2 && gpu["available"].is_null(), format!("{seen}"))?;
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

/// `kubectl get` as this user of the group.
async fn get(world: &World, (user, group): (&str, &str), args: &[&str]) -> Result<String> {
    let (user, group) = (format!("--as={user}"), format!("--as-group={group}"));
    world
        .kubectl(&[&["get"][..], args, &[user.as_str(), group.as_str(), "--as-group=system:authenticated"]].concat())
        .await
}

/// The role by which team-a is read and its binding, without what changes with every write.
async fn roles(world: &World) -> Result<[Option<Value>; 2]> {
    let name = "gputenancy-tenant-team-a";
    let role = Api::<ClusterRole>::all(world.client.clone()).get_opt(name).await?;
    let binding = Api::<ClusterRoleBinding>::all(world.client.clone()).get_opt(name).await?;
    let role = role.map(|r| json!([r.metadata.labels, r.rules]));
    Ok([role, binding.map(|b| json!([b.metadata.labels, b.role_ref, b.subjects]))])
}

async fn roles_become(world: &World, what: &str, wanted: &[Option<Value>; 2]) -> Result<()> {
    eventually(what, PATIENCE, || async {
        let found = roles(world).await?;
        Ok(if found == *wanted { Ok(()) } else { Err(format!("{found:?}")) })
    })
    .await
}

async fn own_tenant(world: &World) -> Result<()> {
    for team in ["team-a", "team-b"] {
        let mut object = tenant(team, &[]);
        object["spec"]["owners"] = json!([{"kind": "Group", "name": format!("{team}-owners")}]);
        object["spec"]["viewers"] = json!([{"kind": "User", "name": format!("{team}-auditor")}]);
        world.set(&[object]).await?;
        tenant_ready(world, team).await?;
    }
    let ann = ("ann", "team-a-owners");
    for reader in [ann, ("team-a-auditor", "guests")] {
        eventually("the tenant is readable", PATIENCE, || async {
            Ok(get(world, reader, &["gputenant", "team-a"]).await.map_err(|e| e.to_string()))
        })
        .await?;
        // list and watch need the name as field selector
        get(world, reader, &["gputenants", "--field-selector=metadata.name=team-a"]).await?;
        for refused in [&["gputenants"][..], &["gputenant", "team-b"]] {
            let answer = get(world, reader, refused).await.map_err(|e| e.to_string());
            ensure(answer.as_ref().is_err_and(|e| e.contains("Forbidden")), format!("{refused:?}: {answer:?}"))?;
        }
    }
    let wanted = roles(world).await?;
    ensure(wanted.iter().all(Option::is_some), format!("{wanted:?}"))?;

    // edits are reverted
    let name = "gputenancy-tenant-team-a";
    let more = r#"[{"op": "add", "path": "/rules/0/resourceNames/-", "value": "team-b"}]"#;
    world.kubectl(&["patch", "clusterrole", name, "--type=json", "-p", more]).await?;
    roles_become(world, "the role is as before", &wanted).await?;
    world.kubectl(&["label", "clusterrole", name, "app.kubernetes.io/managed-by-"]).await?;
    let more = r#"[{"op": "add", "path": "/subjects/-", "value": {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "eve"}}]"#;
    world.kubectl(&["patch", "clusterrolebinding", name, "--type=json", "-p", more]).await?;
    roles_become(world, "the binding is as before", &wanted).await?;
    world.kubectl(&["delete", "clusterrole,clusterrolebinding", name]).await?;
    roles_become(world, "both are there again", &wanted).await?;

    // without owners and viewers there is no role, and nothing is left of a deleted tenant
    patch_tenant(&world.client, "team-a", json!({"spec": {"owners": [], "viewers": []}})).await?;
    roles_become(world, "both are gone", &[None, None]).await?;
    patch_tenant(&world.client, "team-a", json!({"spec": {"owners": [{"kind": "Group", "name": "team-a-owners"}]}}))
        .await?;
    eventually("the tenant is readable again", PATIENCE, || async {
        Ok(get(world, ann, &["gputenant", "team-a"]).await.map_err(|e| e.to_string()))
    })
    .await?;
    world.kubectl(&["delete", "gputenant", "team-a"]).await?;
    roles_become(world, "nothing is left", &[None, None]).await
}

#[tokio::test]
async fn owner_and_viewer_read_their_own_tenant_until_it_is_deleted() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("own-tenant", Box::pin(own_tenant(&world))).await;
}
