//! Image pull secrets: copied into a tenant's namespaces, kept as they should be, written by nobody else, and taken away again.

use std::{collections::BTreeMap, time::Duration};

use e2e::{
    Result, World,
    actor::{Actor, Verb},
    objects::{self, ensure, says},
    product::NAMESPACE,
    scene::tenant,
    story::tenant_ready,
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::GpuTenant;
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::at_rest::writes;

/// What the chart is told.
const ALLOWED: &str = "tenants.imagePullSecrets={registry,mirror}";
const TYPE: &str = "kubernetes.io/dockerconfigjson";
/// Somebody of the team.
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
    let done = Actor::Admin.does(&world.client, Verb::Apply, &path(namespace, name), &body).await?;
    ensure(done.is_ok(), format!("{:?}", done.err()))
}

/// Deletes a Secret, if it is there.
async fn remove(world: &World, namespace: &str, name: &str) -> Result<()> {
    Actor::Admin.does(&world.client, Verb::Delete, &path(namespace, name), &json!({})).await.map(drop)
}

async fn found(world: &World, namespace: &str, name: &str) -> Result<Option<Secret>> {
    Ok(Api::<Secret>::namespaced(world.client.clone(), namespace).get_opt(name).await?)
}

/// Whom the account of pods that name none names there.
async fn named(world: &World, namespace: &str) -> Result<Vec<String>> {
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

/// Waits until the account of a namespace names these, in whatever order.
async fn comes_to_name(world: &World, namespace: &str, wanted: &[&str]) -> Result<()> {
    eventually(&format!("default of {namespace} names {wanted:?}"), PATIENCE, || async {
        let mut names = named(world, namespace).await?;
        names.sort();
        Ok(if names == wanted { Ok(()) } else { Err(format!("{names:?}")) })
    })
    .await
}

async fn comes_to_say(world: &World, name: &str, reason: &str, words: &[&str]) -> Result<()> {
    let api = Api::<GpuTenant>::all(world.client.clone());
    eventually(&format!("tenant {name} says {reason}"), PATIENCE, || async {
        let status = api.get(name).await?.status.unwrap_or_default();
        let said = says(&status.conditions, "PullSecretsReady", "False", reason, words);
        Ok(said.and_then(|()| says(&status.conditions, "Stalled", "True", reason, &[])))
    })
    .await
}

fn puller(names: &[&str]) -> Value {
    let mut puller = tenant("puller", &[]);
    puller["spec"]["owners"] = json!([{"kind": "Group", "name": "pullers"}]);
    puller["spec"]["namespaces"] = json!([{"name": "puller"}, {"name": "puller-old", "adopt": true}]);
    puller["spec"]["imagePullSecrets"] = json!(names);
    puller
}

fn pod() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {
            "securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "web", "image": "registry.example.com/web:1",
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    })
}

/// A lab with the feature switched on; what the tests make beside tenants is gone.
async fn enter() -> World {
    let world = World::bare().await.unwrap();
    world.renew(&[ALLOWED]).await.unwrap();
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
async fn copies_come_follow_are_set_right_and_go_again() {
    let world = enter().await;
    let body = async {
        let outcome = async {
            come(&world).await?;
            pods_have_it(&world).await?;
            follow(&world).await?;
            are_set_right(&world).await?;
            rest(&world).await?;
            go(&world).await
        };
        let outcome = Box::pin(outcome).await;
        objects::delete_everything(&world.client).await?;
        clean(&world).await?;
        outcome
    };
    world.keeping_evidence("pull-secrets", Box::pin(body)).await;
}

async fn come(world: &World) -> Result<()> {
    // a namespace that is adopted has an account that names a Secret of its own
    world.set(&[json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "puller-old"}})]).await?;
    comes_to_name(world, "puller-old", &[]).await?;
    let own = r#"{"imagePullSecrets": [{"name": "own"}]}"#;
    world.kubectl(&["patch", "serviceaccount", "default", "-n", "puller-old", "--type=merge", "-p", own]).await?;
    world.set(&[puller(&["registry"])]).await?;
    comes_to_say(world, "puller", "PullSecretMissing", &["has no Secret registry"]).await?;
    put(world, NAMESPACE, "registry", "Opaque", "one").await?;
    comes_to_say(world, "puller", "PullSecretOtherType", &["is of type Opaque"]).await?;
    ensure(found(world, "puller", "registry").await?.is_none(), "nothing of another type is copied")?;
    remove(world, NAMESPACE, "registry").await?;
    put(world, NAMESPACE, "registry", TYPE, "one").await?;
    tenant_ready(world, "puller").await?;
    for namespace in ["puller", "puller-old"] {
        copied(world, namespace, "registry", "one").await?;
    }
    ensure(named(world, "puller").await? == ["registry"], "the account of a new namespace")?;
    ensure(named(world, "puller-old").await? == ["own", "registry"], "the account of one that was adopted")
}

/// Pods of the team get it from their account; the API server's admission reads accounts a moment late.
async fn pods_have_it(world: &World) -> Result<()> {
    eventually("a pod that pulls with it", PATIENCE, || async {
        let made = ANN.may(&world.client, Verb::Create, "/api/v1/namespaces/puller/pods", &pod()).await?;
        let given = made.map(|pod| pod["spec"]["imagePullSecrets"].clone()).map_err(|status| status.message);
        Ok(given.and_then(|g| if g == json!([{"name": "registry"}]) { Ok(()) } else { Err(g.to_string()) }))
    })
    .await
}

async fn follow(world: &World) -> Result<()> {
    put(world, NAMESPACE, "registry", TYPE, "two").await?;
    for namespace in ["puller", "puller-old"] {
        copied(world, namespace, "registry", "two").await?;
    }
    // a second name, of which one namespace has a Secret of the team's own
    put(world, NAMESPACE, "mirror", TYPE, "m").await?;
    let theirs = secret("puller", "mirror", "Opaque", "theirs");
    let made = ANN.does(&world.client, Verb::Create, "/api/v1/namespaces/puller/secrets", &theirs).await?;
    let made = made.map_err(|s| e2e::Error::Wrong(s.message))?;
    world.set(&[puller(&["registry", "mirror"])]).await?;
    comes_to_say(world, "puller", "PullSecretForeign", &["Secret mirror of namespace puller", "left alone"]).await?;
    copied(world, "puller-old", "mirror", "m").await?;
    comes_to_name(world, "puller-old", &["mirror", "own", "registry"]).await?;
    let kept = found(world, "puller", "mirror").await?;
    let version = kept.as_ref().and_then(ResourceExt::resource_version);
    ensure(version.as_deref() == made["metadata"]["resourceVersion"].as_str(), "the team's own was touched")?;
    comes_to_name(world, "puller", &["registry"]).await?;
    let gone = ANN.does(&world.client, Verb::Delete, &path("puller", "mirror"), &json!({})).await?;
    ensure(gone.is_ok(), format!("{:?}", gone.err()))?;
    copied(world, "puller", "mirror", "m").await?;
    tenant_ready(world, "puller").await.map(drop)
}

async fn are_set_right(world: &World) -> Result<()> {
    let one = path("puller", "registry");
    let other = json!({"stringData": {".dockerconfigjson": content("forged")}});
    let frozen = json!({"immutable": true, "stringData": {".dockerconfigjson": content("frozen")}});
    for (verb, body) in [(Verb::Merge, &other), (Verb::Merge, &frozen), (Verb::Delete, &json!({}))] {
        let done = Actor::Admin.does(&world.client, verb, &one, body).await?;
        ensure(done.is_ok(), format!("{:?}", done.err()))?;
        copied(world, "puller", "registry", "two").await?;
    }
    // the team may write its account: ours comes back, theirs stays
    let account = "/api/v1/namespaces/puller/serviceaccounts/default";
    let theirs = json!({"imagePullSecrets": [{"name": "theirs"}]});
    let done = ANN.does(&world.client, Verb::Merge, account, &theirs).await?;
    ensure(done.is_ok(), format!("{:?}", done.err()))?;
    comes_to_name(world, "puller", &["mirror", "registry", "theirs"]).await?;
    let done = ANN.does(&world.client, Verb::Delete, account, &json!({})).await?;
    ensure(done.is_ok(), format!("{:?}", done.err()))?;
    comes_to_name(world, "puller", &["mirror", "registry"]).await?;
    tenant_ready(world, "puller").await.map(drop)
}

/// Writes of Secrets and accounts, by the API server's count.
async fn counted(world: &World) -> Result<BTreeMap<String, f64>> {
    let mut all = writes(world).await?;
    all.retain(|key, _| key.contains("resource=\"secrets\"") || key.contains("resource=\"serviceaccounts\""));
    Ok(all)
}

/// Versions of what the operator has written.
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

/// Nothing is written at rest, nor by an operator that has just started.
async fn rest(world: &World) -> Result<()> {
    tokio::time::sleep(Duration::from_secs(5)).await;
    let (before, at) = (counted(world).await?, versions(world).await?);
    let deployment = "deployment/gputenancy-operator";
    world.kubectl(&["rollout", "restart", "-n", NAMESPACE, deployment]).await?;
    world.kubectl(&["rollout", "status", "-n", NAMESPACE, deployment, "--timeout=240s"]).await?;
    // a leader that serves a new tenant has looked at all of them
    world.set(&[tenant("later", &[])]).await?;
    tenant_ready(world, "later").await?;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let after = counted(world).await?;
    // a new namespace gets its account from Kubernetes
    let ours = |key: &str| !(key.contains("resource=\"serviceaccounts\"") && key.contains("verb=\"POST\""));
    let grown: Vec<_> = after.iter().filter(|(k, n)| ours(k) && before.get(*k) != Some(n)).collect();
    ensure(grown.is_empty(), format!("written at rest: {grown:?}"))?;
    ensure(versions(world).await? == at && at.iter().all(Option::is_some), format!("{at:?}"))?;
    ensure(before.keys().any(|k| k.contains("resource=\"secrets\"")), "the API server counts writes of Secrets")
}

async fn gone(world: &World, namespace: &str, name: &str) -> Result<()> {
    eventually(&format!("no {name} in {namespace}"), PATIENCE, || async {
        Ok(if found(world, namespace, name).await?.is_none() { Ok(()) } else { Err("still there".into()) })
    })
    .await
}

async fn go(world: &World) -> Result<()> {
    world.set(&[puller(&["registry", "nobodys"])]).await?;
    let words = ["image pull secret nobodys is not allowed", "tenants.imagePullSecrets"];
    comes_to_say(world, "puller", "PullSecretNotAllowed", &words).await?;
    for (namespace, left) in [("puller", &["registry"][..]), ("puller-old", &["own", "registry"])] {
        gone(world, namespace, "mirror").await?;
        comes_to_name(world, namespace, left).await?;
    }
    world.set(&[puller(&["registry"])]).await?;
    tenant_ready(world, "puller").await?;
    // copies outlive a source that is missing, and the namespace that is let go loses them
    remove(world, NAMESPACE, "registry").await?;
    comes_to_say(world, "puller", "PullSecretMissing", &["copies that exist stay"]).await?;
    copied(world, "puller", "registry", "two").await?;
    world.kubectl(&["delete", "gputenant", "puller", "--timeout=4m"]).await?;
    ensure(found(world, "puller-old", "registry").await?.is_none(), "a copy in a namespace that was let go")?;
    ensure(named(world, "puller-old").await? == ["own"], "an account in a namespace that was let go")
}

#[tokio::test]
async fn teams_change_no_copy_and_the_operator_writes_no_other_secret() {
    let world = enter().await;
    let body = async {
        let outcome = Box::pin(everybody_keeps_to_what_is_theirs(&world)).await;
        objects::delete_everything(&world.client).await?;
        clean(&world).await?;
        outcome
    };
    world.keeping_evidence("pull-secret-policies", Box::pin(body)).await;
}

/// Who, what, where, and with which words it is refused; `None`: allowed.
type Case = (&'static str, Actor, Verb, String, Value, Option<&'static str>);

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

/// `registry` is a copy in this namespace, `mirror` the team's own.
const SECRETS: &str = "/api/v1/namespaces/puller/secrets";

fn of_the_team() -> Vec<Case> {
    let copies = Some("copies that the operator has made for spec.imagePullSecrets");
    let (ours, theirs) = (path("puller", "registry"), path("puller", "mirror"));
    let case = |name, verb, path: &str, body, refusal| (name, ANN, verb, path.to_owned(), body, refusal);
    vec![
        case("changes a copy", Verb::Merge, &ours, changed(), copies),
        case("deletes a copy", Verb::Delete, &ours, json!({}), copies),
        case("disowns a copy", Verb::Merge, &ours, label(Value::Null), copies),
        case("deletes all", Verb::Delete, SECRETS, json!({}), copies),
        case("changes its own", Verb::Merge, &theirs, changed(), None),
        case("passes one off", Verb::Merge, &theirs, label(json!("gputenancy")), copies),
        case("makes its own", Verb::Create, SECRETS, secret("puller", "new", "Opaque", "x"), None),
        case("makes a copy", Verb::Create, SECRETS, copy("puller", "new", TYPE), copies),
    ]
}

fn of_the_operator() -> Vec<Case> {
    let no_other = Some("the operator may write no Secrets but its copies");
    let by_name = Some("cannot patch resource");
    let (ours, theirs) = (path("puller", "registry"), path("puller", "mirror"));
    let source = path(NAMESPACE, "registry");
    let case = |name, verb, path: &str, body, refusal| (name, Actor::Operator, verb, path.to_owned(), body, refusal);
    let makes = |name, (namespace, secret): (&str, &str), type_, refusal| {
        let body = copy(namespace, secret, type_);
        (name, Actor::Operator, Verb::Apply, path(namespace, secret), body, refusal)
    };
    vec![
        ("changes a copy", Actor::Admin, Verb::Merge, ours.clone(), changed(), None),
        makes("makes a copy", ("puller-old", "mirror"), TYPE, None),
        case("deletes a copy", Verb::Delete, &ours, json!({}), None),
        makes("makes one of another name", ("puller", "x"), TYPE, by_name),
        case("creates without a name", Verb::Create, SECRETS, copy("puller", "mirror", TYPE), Some("cannot create")),
        makes("makes one elsewhere", ("default", "mirror"), TYPE, no_other),
        case("changes a source", Verb::Merge, &source, label(json!("gputenancy")), no_other),
        makes("takes the team's", ("puller", "mirror"), TYPE, no_other),
        case("deletes the team's", Verb::Delete, &theirs, json!({}), no_other),
        case("disowns a copy", Verb::Merge, &ours, label(Value::Null), no_other),
        makes("makes one of another type", ("puller-old", "mirror"), "Opaque", no_other),
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

async fn everybody_keeps_to_what_is_theirs(world: &World) -> Result<()> {
    put(world, NAMESPACE, "registry", TYPE, "one").await?;
    world.set(&[json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "puller-old"}})]).await?;
    world.set(&[puller(&["registry"])]).await?;
    tenant_ready(world, "puller").await?;
    put(world, "puller", "mirror", TYPE, "theirs").await?;
    let mut wrong = vec![];
    for (name, actor, verb, path, body, expected) in [of_the_team(), of_the_operator(), of_accounts()].concat() {
        match (actor.may(&world.client, verb, &path, &body).await?, expected) {
            (Ok(_), None) => {}
            (Err(status), Some(words)) if status.message.contains(words) => {}
            (answer, expected) => {
                let answer = answer.map(drop).map_err(|s| s.message);
                wrong.push(format!("{actor:?} {name} ({path}): expected {expected:?}, got {answer:?}"));
            }
        }
    }
    ensure(wrong.is_empty(), wrong.join("\n"))?;
    // owners can read what their pods pull with, others cannot
    for (group, may) in [("pullers", true), ("guests", false)] {
        let one = format!("{SECRETS}/registry");
        let asked = world.kubectl(&["get", "--raw", &one, "--as", "somebody", "--as-group", group]).await;
        ensure(asked.is_ok() == may, format!("{group} may read it: {:?}", asked.map(drop)))?;
    }
    Ok(())
}
