//! What a namespace gets beside its quota: teams' pods cannot connect to one another's, platform namespaces can; requests are filled in;
//! what exists is adopted where that is said; viewers look.

use std::time::Duration;

use e2e::{
    Result, World,
    actor::{Actor, Verb},
    objects::{self, ensure, says},
    scene::tenant,
    story::{pod_events, tenant_ready},
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::GpuTenant;
use k8s_openapi::api::{
    core::v1::{LimitRange, Namespace, Pod},
    networking::v1::NetworkPolicy,
    rbac::v1::RoleBinding,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ObjectMeta, PostParams},
};
use serde_json::{Value, json};

/// Where the web servers listen: nobody without privileges listens below 1024.
const PORT: u16 = 8080;

fn pod(namespace: &str, node: &str) -> Value {
    let serve = format!("mkdir -p /tmp/w; echo {namespace} > /tmp/w/index.html; exec httpd -f -p {PORT} -h /tmp/w");
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web", "namespace": namespace, "labels": {"app": "web"}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "web", "image": "lab.local/busybox:1", "imagePullPolicy": "Never",
                "command": ["sh", "-c", serve],
                "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    })
}

fn service(namespace: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": namespace},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": PORT}]},
    })
}

/// A web server in a namespace, and its address.
async fn serve(world: &World, namespace: &str, node: &str) -> Result<String> {
    world.set(&[service(namespace), pod(namespace, node)]).await?;
    world.pods_ready(namespace, 1).await?;
    let pod = Api::<Pod>::namespaced(world.client.clone(), namespace).get("web").await?;
    Ok(pod.status.and_then(|s| s.pod_ip).unwrap_or_default())
}

/// Does the pod of a namespace get the page of another one's there? One try: what is dropped answers nothing.
async fn reaches(world: &World, from: &str, host: &str, page: &str) -> bool {
    let ask = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 2 {host} {PORT} | grep -q {page}");
    world.kubectl(&["exec", "-n", from, "web", "--", "sh", "-c", &ask]).await.is_ok()
}

/// Waits until it does, or does not: nodes learn of a policy a moment after the API server.
async fn comes_to_reach(world: &World, from: &str, host: &str, page: &str, wanted: bool) -> Result<()> {
    eventually(&format!("{from} reaches {host}: {wanted}"), PATIENCE, || async {
        Ok(if reaches(world, from, host, page).await == wanted { Ok(()) } else { Err("not yet".into()) })
    })
    .await
}

/// Two teams without devices, the first with two namespaces.
async fn two_teams(world: &World) -> Result<()> {
    let mut red = tenant("red", &[]);
    red["spec"]["namespaces"] = json!([{"name": "red"}, {"name": "red-two"}]);
    world.set(&[red, tenant("blue", &[])]).await?;
    for team in ["red", "blue"] {
        tenant_ready(world, team).await?;
    }
    Ok(())
}

fn by_name(namespace: &str) -> String {
    format!("web.{namespace}.svc.cluster.local")
}

async fn connections(world: &World) -> Result<()> {
    two_teams(world).await?;
    // across nodes and on one
    let red = serve(world, "red", "gpu-1").await?;
    serve(world, "red-two", "gpu-2").await?;
    let blue = serve(world, "blue", "gpu-1").await?;
    for (from, to) in [("red", "red-two"), ("red-two", "red"), ("blue", "blue")] {
        comes_to_reach(world, from, &by_name(to), to, true).await?;
    }
    for (from, to, address) in [("red", "blue", &blue), ("red-two", "blue", &blue), ("blue", "red", &red)] {
        comes_to_reach(world, from, address, to, false).await?;
        comes_to_reach(world, from, &by_name(to), to, false).await?;
    }
    // it says in plain words that it talks TLS only
    let ask = "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 3 kubernetes.default.svc.cluster.local 443 | grep -q 'HTTPS server'";
    eventually("the API server by its name", PATIENCE, || async {
        let answer = world.kubectl(&["exec", "-n", "red", "web", "--", "sh", "-c", ask]).await;
        Ok(answer.map(drop).map_err(|e| e.to_string()))
    })
    .await?;
    // the platform's own namespaces get in once they are labelled, and not before
    comes_to_reach(world, "watcher", &red, "red", false).await?;
    world.kubectl(&["label", "namespace", "watcher", "gputenancy.io/reaches-tenants=true"]).await?;
    for (to, host) in [("red", &red), ("blue", &blue)] {
        comes_to_reach(world, "watcher", host, to, true).await?;
    }
    world.kubectl(&["label", "namespace", "watcher", "gputenancy.io/reaches-tenants-"]).await?;
    comes_to_reach(world, "watcher", &red, "red", false).await?;
    comes_back(world, &red).await?;
    // an open tenant lets everybody in, and the others stay shut
    objects::patch_tenant(&world.client, "red", json!({"spec": {"network": "Open"}})).await?;
    comes_to_reach(world, "watcher", &red, "red", true).await?;
    comes_to_reach(world, "red", &blue, "blue", false).await?;
    ensure(network(world, "red").await?.is_none(), "an open tenant has a policy of ours")?;
    objects::patch_tenant(&world.client, "red", json!({"spec": {"network": "Isolated"}})).await?;
    comes_to_reach(world, "watcher", &red, "red", false).await?;
    tenant_ready(world, "red").await.map(drop)
}

async fn network(world: &World, namespace: &str) -> Result<Option<NetworkPolicy>> {
    Ok(Api::<NetworkPolicy>::namespaced(world.client.clone(), namespace).get_opt("gputenancy").await?)
}

/// A policy that is deleted or loosened is there again, as it was.
async fn comes_back(world: &World, address: &str) -> Result<()> {
    let before = network(world, "red").await?.and_then(|p| p.spec);
    let open = json!({"spec": {"ingress": [{}]}});
    let path = "/apis/networking.k8s.io/v1/namespaces/red/networkpolicies/gputenancy";
    for (verb, body) in [(Verb::Merge, &open), (Verb::Delete, &json!({}))] {
        let done = Actor::Admin.does(&world.client, verb, path, body).await?;
        ensure(done.is_ok(), format!("{:?}", done.err()))?;
        eventually("the policy as it was", PATIENCE, || async {
            let now = network(world, "red").await?.and_then(|p| p.spec);
            Ok(if now.is_some() && now == before { Ok(()) } else { Err(format!("{now:?}")) })
        })
        .await?;
    }
    comes_to_reach(world, "watcher", address, "red", false).await
}

#[tokio::test]
async fn teams_do_not_reach_one_another_and_the_platform_reaches_both() {
    let world = World::enter().await.unwrap();
    let body = async {
        gone(&world, "watcher").await?;
        world.set(&[json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "watcher"}})]).await?;
        let outcome = async {
            serve(&world, "watcher", "gpu-2").await?;
            connections(&world).await
        }
        .await;
        gone(&world, "watcher").await?;
        outcome
    };
    world.keeping_evidence("isolation", body).await;
}

/// Deletes a namespace that a test has made.
async fn gone(world: &World, name: &str) -> Result<()> {
    let api = Api::<Namespace>::all(world.client.clone());
    match api.delete(name, &DeleteParams::default()).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
        Err(error) => return Err(error.into()),
    }
    eventually(&format!("namespace {name} gone"), PATIENCE, || async {
        Ok(if api.get_opt(name).await?.is_none() { Ok(()) } else { Err("terminating".into()) })
    })
    .await
}

#[tokio::test]
async fn a_pod_that_requests_nothing_gets_the_platforms_requests_under_a_quota_of_them() {
    let world = World::enter().await.unwrap();
    let body = async {
        let mut frugal = tenant("frugal", &[]);
        frugal["spec"]["resources"] = json!({"requests.cpu": "25m", "requests.memory": "1Gi"});
        world.set(&[frugal]).await?;
        tenant_ready(&world, "frugal").await?;
        let api = Api::<Pod>::namespaced(world.client.clone(), "frugal");
        let one = |name: &str, limit: Option<&str>| -> Pod {
            let mut pod: Pod = serde_json::from_value(pod("frugal", "gpu-1")).unwrap();
            pod.metadata = ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() };
            let container = &mut pod.spec.as_mut().unwrap().containers[0];
            let limits = limit.map(|l| json!({"limits": {"memory": l}}));
            container.resources = limits.map(|l| serde_json::from_value(l).unwrap());
            pod
        };
        let made = api.create(&PostParams::default(), &one("silent", None)).await?;
        let requests = |pod: &Pod, key: &str| {
            let resources = pod.spec.as_ref()?.containers[0].resources.clone()?;
            Some(resources.requests?.get(key)?.0.clone())
        };
        let given = ["cpu", "memory", "ephemeral-storage"].map(|key| requests(&made, key).unwrap_or_default());
        ensure(given == ["10m", "16Mi", "1Mi"], format!("{given:?}"))?;
        // a limit below the default request is its own request, and no limit is made up
        let limited = api.create(&PostParams::default(), &one("limited", Some("8Mi"))).await?;
        let (asked, limits) = (requests(&limited, "memory"), made.spec.and_then(|s| s.containers[0].resources.clone()));
        ensure(asked.as_deref() == Some("8Mi"), format!("{asked:?}"))?;
        ensure(limits.and_then(|r| r.limits).is_none(), "a limit that nobody wrote")?;
        let refused = api.create(&PostParams::default(), &one("third", None)).await.map(drop);
        let words = refused.err().map(|e| e.to_string()).unwrap_or_default();
        ensure(words.contains("exceeded quota: gputenancy") && words.contains("requests.cpu"), words)?;
        // what somebody deletes is there again
        let limits = Api::<LimitRange>::namespaced(world.client.clone(), "frugal");
        limits.delete("gputenancy", &DeleteParams::default()).await?;
        eventually("the limit range again", PATIENCE, || async {
            Ok(limits.get_opt("gputenancy").await?.map(drop).ok_or_else(|| "gone".into()))
        })
        .await
    };
    world.keeping_evidence("default-requests", Box::pin(body)).await;
}

/// Waits for words of a tenant's condition.
async fn wait_says(world: &World, name: &str, type_: &str, status: &str, reason: &str, words: &[&str]) -> Result<()> {
    let api = Api::<GpuTenant>::all(world.client.clone());
    eventually(&format!("tenant {name} says {reason}"), PATIENCE, || async {
        let found = api.get(name).await?.status.unwrap_or_default();
        Ok(says(&found.conditions, type_, status, reason, words))
    })
    .await
}

#[tokio::test]
async fn a_namespace_that_exists_is_adopted_where_that_is_said_and_let_go_in_the_end() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("adopt", Box::pin(adoption(&world))).await;
    gone(&world, "old").await.unwrap();
}

async fn adoption(world: &World) -> Result<()> {
    gone(world, "old").await?;
    let labels = json!({"app.kubernetes.io/managed-by": "somebody", "team": "old"});
    let old = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "old", "labels": labels}});
    let data = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "data", "namespace": "old"}});
    world.set(&[old, data]).await?;
    let taker = |adopt: bool| {
        let mut taker = tenant("taker", &[]);
        taker["spec"]["namespaces"] = json!([{"name": "taker"}, {"name": "old", "adopt": adopt}]);
        taker["spec"]["viewers"] = json!([{"kind": "Group", "name": "guests"}]);
        taker["spec"]["podSecurity"] = json!("Baseline");
        taker
    };
    world.set(&[taker(false)]).await?;
    wait_says(world, "taker", "NamespacesReady", "False", "NamespaceForeign", &["old", "adopt: true"]).await?;
    world.set(&[taker(true)]).await?;
    tenant_ready(world, "taker").await?;
    let told = pod_events(world, "default", "NamespaceAdopted").await?;
    ensure(told.iter().any(|t| t.starts_with("taker: namespace old")), format!("{told:?}"))?;
    let spaces = Api::<Namespace>::all(world.client.clone());
    let labels = spaces.get("old").await?.labels().clone();
    let wanted = [
        ("app.kubernetes.io/managed-by", "somebody"),
        ("team", "old"),
        ("gputenancy.io/tenant", "taker"),
        ("pod-security.kubernetes.io/enforce", "baseline"),
    ];
    ensure(wanted.iter().all(|(k, v)| labels.get(*k).is_some_and(|l| l == v)), format!("{labels:?}"))?;
    // what is one tenant's is no other's
    let mut second = tenant("second", &[]);
    second["spec"]["namespaces"] = json!([{"name": "old", "adopt": true}]);
    world.set(&[second]).await?;
    wait_says(world, "second", "NamespacesReady", "False", "NamespaceForeign", &["belongs to tenant taker"]).await?;
    let bindings = Api::<RoleBinding>::namespaced(world.client.clone(), "old");
    ensure(bindings.get("gputenancy-viewers").await?.role_ref.name == "gputenancy:tenant-viewer", "viewers")?;
    objects::patch_tenant(&world.client, "taker", json!({"spec": {"viewers": null}})).await?;
    eventually("no viewers", PATIENCE, || async {
        let left = bindings.get_opt("gputenancy-viewers").await?;
        Ok(if left.is_none() { Ok(()) } else { Err("still bound".into()) })
    })
    .await?;
    world.kubectl(&["delete", "gputenant", "second", "taker", "--timeout=4m"]).await?;
    let told = pod_events(world, "default", "NamespaceReleased").await?;
    ensure(told.iter().any(|t| t.starts_with("taker: namespace old")), format!("{told:?}"))?;
    ensure(spaces.get_opt("taker").await?.is_none(), "what was made for the tenant went with it")?;
    let labels = spaces.get("old").await?.labels().clone();
    ensure(!labels.contains_key("gputenancy.io/tenant") && labels["team"] == "old", format!("{labels:?}"))?;
    let kinds = "networkpolicies,limitranges,resourcequotas,rolebindings,gpugrants";
    let left = world.kubectl(&["get", kinds, "-n", "old", "-o", "name"]).await?;
    ensure(left.trim().is_empty(), left)?;
    world.kubectl(&["get", "configmap", "data", "-n", "old"]).await?;
    // the caches of the operator have a moment to see a mistake, if there is one
    tokio::time::sleep(Duration::from_secs(2)).await;
    ensure(spaces.get("old").await?.metadata.deletion_timestamp.is_none(), "an adopted namespace is deleted")
}
