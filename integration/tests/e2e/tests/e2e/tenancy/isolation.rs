//! Network isolation, default requests, adoption and viewers of tenant namespaces.

use e2e::{
    Error, Result, World,
    actor::{Actor, Verb},
    fixtures::{restricted_spec, tenant},
    objects::{self, ensure},
    product,
    scenario::{pod_events, tenant_ready},
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
    api::{DeleteParams, ListParams, ObjectMeta, PostParams},
};
use serde_json::{Value, json};

/// Ports of metrics, by program.
const METRICS: [(&str, u16); 2] = [("gputenancy-operator", 8080), ("gputenancy-agent", 9410)];
/// Port of the web servers, above 1024 for unprivileged users.
const PORT: u16 = 8080;

fn pod(namespace: &str, node: &str) -> Value {
    let serve = format!("mkdir -p /tmp/w; echo {namespace} > /tmp/w/index.html; exec httpd -f -p {PORT} -h /tmp/w");
    let mut spec = restricted_spec(json!({
        "name": "web", "image": "lab.local/busybox:1", "imagePullPolicy": "Never", "command": ["sh", "-c", serve],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
    }));
    spec["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    spec["terminationGracePeriodSeconds"] = json!(0);
    let metadata = json!({"name": "web", "namespace": namespace, "labels": {"app": "web"}});
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
}

fn service(namespace: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": namespace},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": PORT}]},
    })
}

/// Starts a web server in a namespace and returns its address.
async fn serve(world: &World, namespace: &str, node: &str) -> Result<String> {
    world.set(&[service(namespace), pod(namespace, node)]).await?;
    world.pods_ready(namespace, 1).await?;
    let pod = Api::<Pod>::namespaced(world.client.clone(), namespace).get("web").await?;
    Ok(pod.status.and_then(|s| s.pod_ip).unwrap_or_default())
}

/// Can the pod of a namespace fetch this page? One attempt; a dropped connection has no answer.
async fn reaches(world: &World, from: &str, host: &str, page: &str) -> bool {
    let ask = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 2 {host} {PORT} | grep -q {page}");
    world.kubectl(&["exec", "-n", from, "web", "--", "sh", "-c", &ask]).await.is_ok()
}

/// Waits until it can or cannot: nodes apply a policy a moment after the API server.
async fn reach_becomes(world: &World, from: &str, host: &str, page: &str, wanted: bool) -> Result<()> {
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
        reach_becomes(world, from, &by_name(to), to, true).await?;
    }
    for (from, to, address) in [("red", "blue", &blue), ("red-two", "blue", &blue), ("blue", "red", &red)] {
        reach_becomes(world, from, address, to, false).await?;
        reach_becomes(world, from, &by_name(to), to, false).await?;
    }
    // the API server's answer to plain HTTP
    let ask = "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 3 kubernetes.default.svc.cluster.local 443 | grep -q 'HTTPS server'";
    eventually("the API server to be reached by its name", PATIENCE, || async {
        let answer = world.kubectl(&["exec", "-n", "red", "web", "--", "sh", "-c", ask]).await;
        Ok(answer.map(drop).map_err(|e| e.to_string()))
    })
    .await?;
    // platform namespaces need a label
    reach_becomes(world, "watcher", &red, "red", false).await?;
    world.kubectl(&["label", "namespace", "watcher", "gputenancy.io/reaches-tenants=true"]).await?;
    for (to, host) in [("red", &red), ("blue", &blue)] {
        reach_becomes(world, "watcher", host, to, true).await?;
    }
    world.kubectl(&["label", "namespace", "watcher", "gputenancy.io/reaches-tenants-"]).await?;
    reach_becomes(world, "watcher", &red, "red", false).await?;
    metrics(world).await?;
    policy_is_restored(world, &red).await?;
    // spec.network Open admits all connections to this tenant only
    objects::patch_tenant(&world.client, "red", json!({"spec": {"network": "Open"}})).await?;
    reach_becomes(world, "watcher", &red, "red", true).await?;
    reach_becomes(world, "red", &blue, "blue", false).await?;
    ensure(network(world, "red").await?.is_none(), "an open tenant has a policy of ours")?;
    objects::patch_tenant(&world.client, "red", json!({"spec": {"network": "Isolated"}})).await?;
    reach_becomes(world, "watcher", &red, "red", false).await?;
    tenant_ready(world, "red").await.map(drop)
}

/// Metrics name teams and devices: namespaces of no tenant read them, tenants do not.
async fn metrics(world: &World) -> Result<()> {
    let pods = Api::<Pod>::namespaced(world.client.clone(), product::NAMESPACE);
    for (program, port) in METRICS {
        let of = ListParams::default().labels(&format!("app.kubernetes.io/name={program}"));
        let running = pods.list(&of).await?.items.into_iter().find(objects::is_ready);
        let running = running.ok_or_else(|| Error::Wrong(format!("no pod of {program}")))?;
        let address = running.status.and_then(|status| status.pod_ip).unwrap_or_default();
        let ask =
            format!("printf 'GET /metrics HTTP/1.0\\r\\n\\r\\n' | nc -w 2 {address} {port} | grep -q gputenancy_");
        let read = async |from: &str| world.kubectl(&["exec", "-n", from, "web", "--", "sh", "-c", &ask]).await;
        eventually(&format!("metrics of {program}"), PATIENCE, || async {
            Ok(read("watcher").await.map(drop).map_err(|e| e.to_string()))
        })
        .await?;
        ensure(read("red").await.is_err(), format!("a tenant reads the metrics of {program}"))?;
    }
    Ok(())
}

async fn network(world: &World, namespace: &str) -> Result<Option<NetworkPolicy>> {
    Ok(Api::<NetworkPolicy>::namespaced(world.client.clone(), namespace).get_opt("gputenancy").await?)
}

/// A deleted or changed policy is restored.
async fn policy_is_restored(world: &World, address: &str) -> Result<()> {
    let before = network(world, "red").await?.and_then(|p| p.spec);
    let open = json!({"spec": {"ingress": [{}]}});
    let path = "/apis/networking.k8s.io/v1/namespaces/red/networkpolicies/gputenancy";
    for (verb, body) in [(Verb::Merge, &open), (Verb::Delete, &json!({}))] {
        Actor::Admin.does(&world.client, verb, path, body).await?;
        eventually("the policy to be restored", PATIENCE, || async {
            let now = network(world, "red").await?.and_then(|p| p.spec);
            Ok(if now.is_some() && now == before { Ok(()) } else { Err(format!("{now:?}")) })
        })
        .await?;
    }
    reach_becomes(world, "watcher", address, "red", false).await
}

#[tokio::test]
async fn network_policy_isolates_tenants_and_admits_platform_namespaces() {
    let world = World::enter().await.unwrap();
    let body = async {
        delete_namespace(&world, "watcher").await?;
        world.set(&[json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "watcher"}})]).await?;
        let outcome = async {
            serve(&world, "watcher", "gpu-2").await?;
            connections(&world).await
        }
        .await;
        delete_namespace(&world, "watcher").await?;
        outcome
    };
    world.keeping_evidence("isolation", body).await;
}

/// Deletes a namespace of a test.
async fn delete_namespace(world: &World, name: &str) -> Result<()> {
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
async fn limit_range_sets_default_requests_under_a_quota() {
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
        // a limit below the default request becomes the request; no limit is added
        let limited = api.create(&PostParams::default(), &one("limited", Some("8Mi"))).await?;
        let (requested, limits) =
            (requests(&limited, "memory"), made.spec.and_then(|s| s.containers[0].resources.clone()));
        ensure(requested.as_deref() == Some("8Mi"), format!("{requested:?}"))?;
        ensure(limits.and_then(|r| r.limits).is_none(), "a limit was added")?;
        let refused = api.create(&PostParams::default(), &one("third", None)).await.map(drop);
        let words = refused.err().map(|e| e.to_string()).unwrap_or_default();
        ensure(words.contains("exceeded quota: gputenancy") && words.contains("requests.cpu"), words)?;
        // a deleted LimitRange is restored
        let limits = Api::<LimitRange>::namespaced(world.client.clone(), "frugal");
        limits.delete("gputenancy", &DeleteParams::default()).await?;
        eventually("the LimitRange to be restored", PATIENCE, || async {
            Ok(limits.get_opt("gputenancy").await?.map(drop).ok_or_else(|| "gone".into()))
        })
        .await
    };
    world.keeping_evidence("default-requests", Box::pin(body)).await;
}

/// Waits until a namespace of the tenant is refused for this reason.
async fn namespace_refused(world: &World, name: &str, excerpts: &[&str]) -> Result<()> {
    world.condition_becomes::<GpuTenant>(name, "NamespacesReady", "False", "NamespaceConflict", excerpts).await
}

#[tokio::test]
async fn namespace_adoption_requires_opt_in_and_ends_with_release() {
    let world = World::enter().await.unwrap();
    world.keeping_evidence("adopt", Box::pin(adoption(&world))).await;
    delete_namespace(&world, "old").await.unwrap();
}

/// A role binding and a network policy of the namespace before it is adopted, and a policy that opens nothing.
fn earlier_access() -> [Value; 3] {
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"});
    let devs = json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "devs"}]);
    let policy = |name: &str, ingress: Value| {
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name, "namespace": "old"},
            "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": ingress},
        })
    };
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": "ci", "namespace": "old"},
        "roleRef": role, "subjects": devs,
    });
    [binding, policy("open", json!([{}])), policy("closed", json!([]))]
}

/// The status names them with the command that removes them, and no longer once it was run.
async fn earlier_access_is_named(world: &World) -> Result<()> {
    let tenants = Api::<GpuTenant>::all(world.client.clone());
    let message = async || {
        let conditions = tenants.get("taker").await?.status.unwrap_or_default().conditions;
        Ok::<_, Error>(objects::condition(&conditions, "EarlierAccess").map(|c| c.message.clone()))
    };
    let command = "kubectl delete -n old rolebinding/ci networkpolicy/open";
    eventually("the condition EarlierAccess", PATIENCE, || async {
        let message = message().await?.unwrap_or_default();
        let right = message.contains(command) && message.contains("ClusterRole edit to Group devs");
        Ok(if right { Ok(()) } else { Err(message) })
    })
    .await?;
    let events = pod_events(world, "default", "EarlierAccess").await?;
    ensure(events.iter().any(|e| e.starts_with("taker: ")), format!("{events:?}"))?;
    world.kubectl(&command.split(' ').skip(1).collect::<Vec<_>>()).await?;
    eventually("no condition EarlierAccess", PATIENCE, || async { Ok(message().await?.map_or(Ok(()), Err)) }).await?;
    world.kubectl(&["delete", "networkpolicy", "-n", "old", "closed"]).await.map(drop)
}

/// The tenant waits for the label, with the command that sets it, and goes on once the command was run.
async fn adopted_once_labelled(world: &World) -> Result<()> {
    let command = "kubectl label namespace old gputenancy.io/adoptable=true";
    for condition in ["NamespacesReady", "Ready"] {
        let (reason, excerpts) = ("NamespaceNotAdoptable", ["namespace old", command]);
        world.condition_becomes::<GpuTenant>("taker", condition, "False", reason, &excerpts).await?;
    }
    eventually("the event NamespaceNotAdoptable", PATIENCE, || async {
        let events = pod_events(world, "default", "NamespaceNotAdoptable").await?;
        let right = events.iter().any(|e| e.starts_with("taker: ") && e.contains(command));
        Ok(if right { Ok(()) } else { Err(format!("{events:?}")) })
    })
    .await?;
    let spaces = Api::<Namespace>::all(world.client.clone());
    let labels = spaces.get("old").await?.labels().clone();
    ensure(!labels.contains_key("gputenancy.io/tenant"), format!("{labels:?}"))?;
    world.kubectl(&command.split(' ').skip(1).collect::<Vec<_>>()).await?;
    tenant_ready(world, "taker").await.map(drop)
}

/// An object of the adopted namespace that the garbage collector deletes after the tenant.
fn dependent_of(tenant: &GpuTenant) -> Value {
    let owner = json!([{"apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuTenant", "name": tenant.name_any(), "uid": tenant.uid()}]);
    let metadata = json!({"name": "dependent", "namespace": "old", "ownerReferences": owner});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
}

async fn adoption(world: &World) -> Result<()> {
    delete_namespace(world, "old").await?;
    let labels = json!({"app.kubernetes.io/managed-by": "other", "team": "old"});
    let old = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "old", "labels": labels}});
    let data = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "data", "namespace": "old"}});
    let mut objects = vec![old, data];
    objects.extend(earlier_access());
    world.set(&objects).await?;
    let taker = |adopt: bool| {
        let mut taker = tenant("taker", &[]);
        taker["spec"]["namespaces"] = json!([{"name": "taker"}, {"name": "old", "adopt": adopt}]);
        taker["spec"]["viewers"] = json!([{"kind": "Group", "name": "guests"}]);
        taker["spec"]["podSecurity"] = json!("Baseline");
        taker
    };
    world.set(&[taker(false)]).await?;
    namespace_refused(world, "taker", &["old", "adopt: true"]).await?;
    world.set(&[taker(true)]).await?;
    adopted_once_labelled(world).await?;
    let events = pod_events(world, "default", "NamespaceAdopted").await?;
    ensure(events.iter().any(|e| e.starts_with("taker: namespace old")), format!("{events:?}"))?;
    let spaces = Api::<Namespace>::all(world.client.clone());
    let labels = spaces.get("old").await?.labels().clone();
    let wanted = [
        ("app.kubernetes.io/managed-by", "other"),
        ("team", "old"),
        ("gputenancy.io/tenant", "taker"),
        ("pod-security.kubernetes.io/enforce", "baseline"),
    ];
    ensure(wanted.iter().all(|(k, v)| labels.get(*k).is_some_and(|l| l == v)), format!("{labels:?}"))?;
    earlier_access_is_named(world).await?;
    // a namespace belongs to one tenant
    let mut second = tenant("second", &[]);
    second["spec"]["namespaces"] = json!([{"name": "old", "adopt": true}]);
    world.set(&[second]).await?;
    namespace_refused(world, "second", &["belongs to tenant taker"]).await?;
    let bindings = Api::<RoleBinding>::namespaced(world.client.clone(), "old");
    ensure(bindings.get("gputenancy-viewers").await?.role_ref.name == "gputenancy:tenant-viewer", "viewers")?;
    objects::patch_tenant(&world.client, "taker", json!({"spec": {"viewers": null}})).await?;
    eventually("no viewers", PATIENCE, || async {
        let left = bindings.get_opt("gputenancy-viewers").await?;
        Ok(if left.is_none() { Ok(()) } else { Err("still bound".into()) })
    })
    .await?;
    let tenant = Api::<GpuTenant>::all(world.client.clone()).get("taker").await?;
    world.set(&[dependent_of(&tenant)]).await?;
    world.kubectl(&["delete", "gputenant", "second", "taker", "--timeout=4m"]).await?;
    let events = pod_events(world, "default", "NamespaceReleased").await?;
    ensure(events.iter().any(|e| e.starts_with("taker: namespace old")), format!("{events:?}"))?;
    ensure(spaces.get_opt("taker").await?.is_none(), "a namespace created for the tenant is left")?;
    let labels = spaces.get("old").await?.labels().clone();
    ensure(!labels.contains_key("gputenancy.io/tenant") && labels["team"] == "old", format!("{labels:?}"))?;
    let kinds = "networkpolicies,limitranges,resourcequotas,rolebindings,gpugrants";
    let left = world.kubectl(&["get", kinds, "-n", "old", "-o", "name"]).await?;
    ensure(left.trim().is_empty(), left)?;
    world.kubectl(&["get", "configmap", "data", "-n", "old"]).await?;
    // the garbage collector has deleted what the tenant owned
    eventually("the dependent of the tenant gone", PATIENCE, || async {
        let left =
            world.kubectl(&["get", "configmap", "dependent", "-n", "old", "-o", "name", "--ignore-not-found"]).await?;
        Ok(if left.is_empty() { Ok(()) } else { Err(left) })
    })
    .await?;
    ensure(spaces.get("old").await?.metadata.deletion_timestamp.is_none(), "an adopted namespace is deleted")
}
