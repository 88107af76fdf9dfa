//! Image pull secrets: copies in a tenant's namespaces follow their source, are restored, are protected, and are removed.

use std::collections::BTreeMap;

use e2e::{
    Result, World,
    actor::{Actor, Case, Verb, check_all},
    fixtures::{restricted_spec, tenant},
    objects::{self, ensure},
    product::NAMESPACE,
    requests::writes,
    scenario::tenant_ready,
    wait::{PATIENCE, eventually, observed},
};
use gputenancy_crds::GpuTenant;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

/// The chart value that allows the secrets.
const ALLOWED: &str = "tenants.imagePullSecrets={registry,mirror}";
const TYPE: &str = "kubernetes.io/dockerconfigjson";
/// An owner of the team.
const ANN: Actor = Actor::Person("ann", &["pullers"]);

fn content(password: &str) -> String {
    json!({"auths": {"registry.example.com": {"username": "puller", "password": password}}}).to_string()
}

fn secret(namespace: &str, name: &str, type_: &str, password: &str) -> Value {
    let key = if type_ == TYPE { ".dockerconfigjson" } else { "note" };
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace},
        "type": type_, "stringData": {key: content(password)},
    })
}

fn path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/secrets/{name}")
}

/// Writes a Secret as the platform does.
async fn put(world: &World, namespace: &str, name: &str, type_: &str, password: &str) -> Result<()> {
    let body = secret(namespace, name, type_, password);
    Actor::Admin.does(&world.client, Verb::Apply, &path(namespace, name), &body).await.map(drop)
}

/// Deletes a Secret, if it is there.
async fn remove(world: &World, namespace: &str, name: &str) -> Result<()> {
    world.kubectl(&["delete", "secret", name, "-n", namespace, "--ignore-not-found"]).await.map(drop)
}

async fn found(world: &World, namespace: &str, name: &str) -> Result<Option<Secret>> {
    Ok(Api::<Secret>::namespaced(world.client.clone(), namespace).get_opt(name).await?)
}

/// Image pull secrets of the namespace's default `ServiceAccount`.
async fn account_secrets(world: &World, namespace: &str) -> Result<Vec<String>> {
    let account = Api::<ServiceAccount>::namespaced(world.client.clone(), namespace).get("default").await?;
    Ok(account.image_pull_secrets.unwrap_or_default().into_iter().map(|s| s.name).collect())
}

/// Waits until a namespace has a copy with this password.
async fn copied(world: &World, namespace: &str, name: &str, password: &str) -> Result<Secret> {
    eventually(&format!("{name} copied to {namespace}"), PATIENCE, || async {
        let Some(copy) = found(world, namespace, name).await? else { return Ok(Err("no copy".into())) };
        let data = copy.data.clone().unwrap_or_default();
        let holds = data.get(".dockerconfigjson").is_some_and(|d| d.0 == content(password).into_bytes());
        let ours = copy.labels().get("app.kubernetes.io/managed-by").is_some_and(|v| v == "gputenancy");
        let fine = holds && ours && copy.type_.as_deref() == Some(TYPE);
        Ok(if fine { Ok(copy) } else { Err(format!("{:?} {:?}", copy.metadata.labels, copy.type_)) })
    })
    .await
}

/// Waits until the default `ServiceAccount` names these secrets, in any order.
async fn account_names(world: &World, namespace: &str, wanted: &[&str]) -> Result<()> {
    eventually(&format!("default of {namespace} names {wanted:?}"), PATIENCE, || async {
        let mut names = account_secrets(world, namespace).await?;
        names.sort();
        Ok(if names == wanted { Ok(()) } else { Err(format!("{names:?}")) })
    })
    .await
}

async fn tenant_stalls(world: &World, reason: &str, excerpts: &[&str]) -> Result<()> {
    world.condition_becomes::<GpuTenant>("puller", "PullSecretsReady", "False", reason, excerpts).await?;
    world.condition_becomes::<GpuTenant>("puller", "Stalled", "True", reason, &[]).await
}

fn puller(names: &[&str]) -> Value {
    let mut puller = tenant("puller", &[]);
    puller["spec"]["owners"] = json!([{"kind": "Group", "name": "pullers"}]);
    puller["spec"]["namespaces"] = json!([{"name": "puller"}, {"name": "puller-old", "adopt": true}]);
    puller["spec"]["imagePullSecrets"] = json!(names);
    puller
}

/// The namespace that the tenant adopts.
fn adoptable() -> Value {
    let labels = json!({"gputenancy.io/adoptable": "true"});
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "puller-old", "labels": labels}})
}

fn pod() -> Value {
    let spec = restricted_spec(json!({"name": "web", "image": "registry.example.com/web:1"}));
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec})
}

/// A lab with the feature enabled, without objects of earlier tests.
async fn enter() -> World {
    let world = World::attach().await.unwrap();
    world.reinstall_api(&[ALLOWED]).await.unwrap();
    clean(&world).await.unwrap();
    world
}

async fn clean(world: &World) -> Result<()> {
    for name in ["registry", "mirror"] {
        remove(world, NAMESPACE, name).await?;
    }
    world.kubectl(&["delete", "namespace", "puller-old", "--ignore-not-found", "--timeout=4m"]).await.map(drop)
}

#[tokio::test]
async fn pull_secret_copies_follow_source_and_tenant() {
    let world = enter().await;
    let body = async {
        let outcome = async {
            copies_are_created(&world).await?;
            pods_get_the_secret(&world).await?;
            copies_follow_the_source(&world).await?;
            copies_are_restored(&world).await?;
            nothing_is_written_at_rest(&world).await?;
            copies_are_removed(&world).await
        };
        let outcome = Box::pin(outcome).await;
        objects::delete_everything(&world.client).await?;
        clean(&world).await?;
        outcome
    };
    world.keeping_evidence("pull-secrets", Box::pin(body)).await;
}

async fn copies_are_created(world: &World) -> Result<()> {
    // the ServiceAccount of the adopted namespace names a Secret already
    world.set(&[adoptable()]).await?;
    account_names(world, "puller-old", &[]).await?;
    let own = r#"{"imagePullSecrets": [{"name": "own"}]}"#;
    world.kubectl(&["patch", "serviceaccount", "default", "-n", "puller-old", "--type=merge", "-p", own]).await?;
    world.set(&[puller(&["registry"])]).await?;
    tenant_stalls(world, "PullSecretMissing", &["has no Secret registry"]).await?;
    put(world, NAMESPACE, "registry", "Opaque", "one").await?;
    tenant_stalls(world, "PullSecretInvalidType", &["is of type Opaque"]).await?;
    ensure(found(world, "puller", "registry").await?.is_none(), "a Secret of another type was copied")?;
    remove(world, NAMESPACE, "registry").await?;
    put(world, NAMESPACE, "registry", TYPE, "one").await?;
    tenant_ready(world, "puller").await?;
    for namespace in ["puller", "puller-old"] {
        copied(world, namespace, "registry", "one").await?;
    }
    ensure(account_secrets(world, "puller").await? == ["registry"], "ServiceAccount of a new namespace")?;
    ensure(account_secrets(world, "puller-old").await? == ["own", "registry"], "ServiceAccount of an adopted namespace")
}

/// Pods of the team get the secret from their `ServiceAccount`; the API server's admission cache lags.
async fn pods_get_the_secret(world: &World) -> Result<()> {
    eventually("a pod with the image pull secret", PATIENCE, || async {
        let made = ANN.may(&world.client, Verb::Create, "/api/v1/namespaces/puller/pods", &pod()).await?;
        let given = made.map(|pod| pod["spec"]["imagePullSecrets"].clone()).map_err(|status| status.message);
        Ok(given.and_then(|g| if g == json!([{"name": "registry"}]) { Ok(()) } else { Err(g.to_string()) }))
    })
    .await
}

async fn copies_follow_the_source(world: &World) -> Result<()> {
    put(world, NAMESPACE, "registry", TYPE, "two").await?;
    for namespace in ["puller", "puller-old"] {
        copied(world, namespace, "registry", "two").await?;
    }
    // a second secret, whose name the team already uses in one namespace
    put(world, NAMESPACE, "mirror", TYPE, "m").await?;
    let theirs = secret("puller", "mirror", "Opaque", "theirs");
    let made = ANN.does(&world.client, Verb::Create, "/api/v1/namespaces/puller/secrets", &theirs).await?;
    world.set(&[puller(&["registry", "mirror"])]).await?;
    tenant_stalls(world, "PullSecretConflict", &["Secret mirror of namespace puller", "does not change it"]).await?;
    copied(world, "puller-old", "mirror", "m").await?;
    account_names(world, "puller-old", &["mirror", "own", "registry"]).await?;
    let kept = found(world, "puller", "mirror").await?;
    let version = kept.as_ref().and_then(ResourceExt::resource_version);
    ensure(version.as_deref() == made["metadata"]["resourceVersion"].as_str(), "the team's own was touched")?;
    account_names(world, "puller", &["registry"]).await?;
    ANN.does(&world.client, Verb::Delete, &path("puller", "mirror"), &json!({})).await?;
    copied(world, "puller", "mirror", "m").await?;
    tenant_ready(world, "puller").await.map(drop)
}

async fn copies_are_restored(world: &World) -> Result<()> {
    let one = path("puller", "registry");
    let other = json!({"stringData": {".dockerconfigjson": content("forged")}});
    let frozen = json!({"immutable": true, "stringData": {".dockerconfigjson": content("frozen")}});
    for (verb, body) in [(Verb::Merge, &other), (Verb::Merge, &frozen), (Verb::Delete, &json!({}))] {
        Actor::Admin.does(&world.client, verb, &one, body).await?;
        copied(world, "puller", "registry", "two").await?;
    }
    // the team may change its ServiceAccount: the operator's names are restored, the team's stay
    let account = "/api/v1/namespaces/puller/serviceaccounts/default";
    let theirs = json!({"imagePullSecrets": [{"name": "theirs"}]});
    ANN.does(&world.client, Verb::Merge, account, &theirs).await?;
    account_names(world, "puller", &["mirror", "registry", "theirs"]).await?;
    ANN.does(&world.client, Verb::Delete, account, &json!({})).await?;
    account_names(world, "puller", &["mirror", "registry"]).await?;
    tenant_ready(world, "puller").await.map(drop)
}

/// Counts of writes of Secrets and `ServiceAccounts`, from the API server's metrics.
async fn write_counts(world: &World) -> Result<BTreeMap<String, f64>> {
    let mut all = writes(world).await?;
    all.retain(|key, _| key.contains("resource=\"secrets\"") || key.contains("resource=\"serviceaccounts\""));
    Ok(all)
}

/// Resource versions of the objects that the operator has written.
async fn versions(world: &World) -> Result<Vec<Option<String>>> {
    let mut all = Vec::new();
    for namespace in ["puller", "puller-old"] {
        for name in ["registry", "mirror"] {
            all.push(found(world, namespace, name).await?.and_then(|s| s.resource_version()));
        }
        let accounts = Api::<ServiceAccount>::namespaced(world.client.clone(), namespace);
        all.push(accounts.get("default").await?.resource_version());
    }
    Ok(all)
}

/// Neither an operator at rest nor a restarted one writes. Each has reconciled the tenant when it has observed a change of its viewers.
async fn nothing_is_written_at_rest(world: &World) -> Result<()> {
    let tenants = Api::<GpuTenant>::all(world.client.clone());
    observed(&tenants, "puller", &json!({"spec": {"viewers": [{"kind": "Group", "name": "guests"}]}})).await?;
    let (before, at) = (write_counts(world).await?, versions(world).await?);
    let deployment = "deployment/gputenancy-operator";
    world.kubectl(&["rollout", "restart", "-n", NAMESPACE, deployment]).await?;
    world.kubectl(&["rollout", "status", "-n", NAMESPACE, deployment, "--timeout=240s"]).await?;
    // when a new tenant is Ready, the new leader has reconciled all tenants
    world.set(&[tenant("later", &[])]).await?;
    tenant_ready(world, "later").await?;
    observed(&tenants, "puller", &json!({"spec": {"viewers": null}})).await?;
    let after = write_counts(world).await?;
    // Kubernetes creates the ServiceAccount of a new namespace
    let ours = |key: &str| !(key.contains("resource=\"serviceaccounts\"") && key.contains("verb=\"POST\""));
    let grown: Vec<_> = after.iter().filter(|(k, n)| ours(k) && before.get(*k) != Some(n)).collect();
    ensure(grown.is_empty(), format!("written at rest: {grown:?}"))?;
    ensure(versions(world).await? == at && at.iter().all(Option::is_some), format!("{at:?}"))?;
    ensure(before.keys().any(|k| k.contains("resource=\"secrets\"")), "the API server counts writes of Secrets")
}

async fn secret_removed(world: &World, namespace: &str, name: &str) -> Result<()> {
    eventually(&format!("no {name} in {namespace}"), PATIENCE, || async {
        Ok(if found(world, namespace, name).await?.is_none() { Ok(()) } else { Err("still there".into()) })
    })
    .await
}

async fn copies_are_removed(world: &World) -> Result<()> {
    world.set(&[puller(&["registry", "unlisted"])]).await?;
    let words = ["image pull secret unlisted is not allowed", "tenants.imagePullSecrets"];
    tenant_stalls(world, "PullSecretNotAllowed", &words).await?;
    for (namespace, left) in [("puller", &["registry"][..]), ("puller-old", &["own", "registry"])] {
        secret_removed(world, namespace, "mirror").await?;
        account_names(world, namespace, left).await?;
    }
    world.set(&[puller(&["registry"])]).await?;
    tenant_ready(world, "puller").await?;
    // copies outlive a missing source, and are removed from a released namespace
    remove(world, NAMESPACE, "registry").await?;
    tenant_stalls(world, "PullSecretMissing", &["copies that exist stay"]).await?;
    copied(world, "puller", "registry", "two").await?;
    world.kubectl(&["delete", "gputenant", "puller", "--timeout=4m"]).await?;
    ensure(found(world, "puller-old", "registry").await?.is_none(), "a copy in a released namespace")?;
    ensure(account_secrets(world, "puller-old").await? == ["own"], "the ServiceAccount of a released namespace")
}

#[tokio::test]
async fn pull_secret_policies_restrict_teams_and_operator() {
    let world = enter().await;
    let body = async {
        let outcome = Box::pin(check_policies(&world)).await;
        objects::delete_everything(&world.client).await?;
        clean(&world).await?;
        outcome
    };
    world.keeping_evidence("pull-secret-policies", Box::pin(body)).await;
}

const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

fn copy(namespace: &str, name: &str, type_: &str) -> Value {
    let mut copy = secret(namespace, name, type_, "x");
    copy["metadata"]["labels"] = json!({MANAGED_BY: "gputenancy"});
    copy
}

fn label(value: Value) -> Value {
    json!({"metadata": {"labels": {MANAGED_BY: value}}})
}

fn changed() -> Value {
    json!({"stringData": {".dockerconfigjson": content("forged")}})
}

/// In this namespace `registry` is a copy and `mirror` is the team's own.
const SECRETS: &str = "/api/v1/namespaces/puller/secrets";

fn of_the_team() -> Vec<Case> {
    let copies = Some("copies that the operator has made for spec.imagePullSecrets");
    let (ours, theirs) = (path("puller", "registry"), path("puller", "mirror"));
    let case = |name, verb, path: &str, body, refusal| (name, ANN, verb, path.to_owned(), body, refusal);
    vec![
        case("changes a copy", Verb::Merge, &ours, changed(), copies),
        case("deletes a copy", Verb::Delete, &ours, json!({}), copies),
        case("removes the label of a copy", Verb::Merge, &ours, label(Value::Null), copies),
        case("deletes all", Verb::Delete, SECRETS, json!({}), copies),
        case("changes its own", Verb::Merge, &theirs, changed(), None),
        case("labels its own as a copy", Verb::Merge, &theirs, label(json!("gputenancy")), copies),
        case("creates its own", Verb::Create, SECRETS, secret("puller", "new", "Opaque", "x"), None),
        case("creates a copy", Verb::Create, SECRETS, copy("puller", "new", TYPE), copies),
    ]
}

fn of_the_operator() -> Vec<Case> {
    let no_other = Some("the operator may write no Secrets but its copies");
    let by_name = Some("cannot patch resource");
    let (ours, theirs) = (path("puller", "registry"), path("puller", "mirror"));
    let source = path(NAMESPACE, "registry");
    let case = |name, verb, path: &str, body, refusal| (name, Actor::Operator, verb, path.to_owned(), body, refusal);
    let creates = |name, (namespace, secret): (&str, &str), type_, refusal| {
        let body = copy(namespace, secret, type_);
        (name, Actor::Operator, Verb::Apply, path(namespace, secret), body, refusal)
    };
    vec![
        ("changes a copy", Actor::Admin, Verb::Merge, ours.clone(), changed(), None),
        creates("creates a copy", ("puller-old", "mirror"), TYPE, None),
        case("deletes a copy", Verb::Delete, &ours, json!({}), None),
        creates("creates one of another name", ("puller", "x"), TYPE, by_name),
        case("creates without a name", Verb::Create, SECRETS, copy("puller", "mirror", TYPE), Some("cannot create")),
        creates("creates one in another namespace", ("default", "mirror"), TYPE, no_other),
        case("changes a source", Verb::Merge, &source, label(json!("gputenancy")), no_other),
        creates("overwrites the team's", ("puller", "mirror"), TYPE, no_other),
        case("deletes the team's", Verb::Delete, &theirs, json!({}), no_other),
        case("removes the label of a copy", Verb::Merge, &ours, label(Value::Null), no_other),
        creates("creates one of another type", ("puller-old", "mirror"), "Opaque", no_other),
    ]
}

fn of_accounts() -> Vec<Case> {
    let no_account = Some("the operator may change nothing of a ServiceAccount");
    let case = |name, (namespace, account): (&str, &str), body, refusal| {
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}");
        (name, Actor::Operator, Verb::Merge, path, body, refusal)
    };
    let pulls = |name: &str| json!({"imagePullSecrets": [{"name": name}]});
    let mounts = json!({"automountServiceAccountToken": true});
    let one = ("puller", "default");
    vec![
        case("names one", one, pulls("mirror"), None),
        case("names another", one, pulls("x"), no_account),
        case("names one elsewhere", ("default", "default"), pulls("mirror"), no_account),
        case("mounts a token", one, mounts, no_account),
        case("another account", (NAMESPACE, "gputenancy-agent"), pulls("mirror"), Some("cannot patch resource")),
    ]
}

async fn check_policies(world: &World) -> Result<()> {
    put(world, NAMESPACE, "registry", TYPE, "one").await?;
    world.set(&[adoptable()]).await?;
    world.set(&[puller(&["registry"])]).await?;
    tenant_ready(world, "puller").await?;
    put(world, "puller", "mirror", TYPE, "theirs").await?;
    check_all(&world.client, [of_the_team(), of_the_operator(), of_accounts()].concat()).await?;
    // owners can read the copies, other users cannot
    for (group, may) in [("pullers", true), ("guests", false)] {
        let one = format!("{SECRETS}/registry");
        let answer = world.kubectl(&["get", "--raw", &one, "--as", "user", "--as-group", group]).await;
        ensure(answer.is_ok() == may, format!("{group} reads the copy: {:?}", answer.map(drop)))?;
    }
    Ok(())
}
