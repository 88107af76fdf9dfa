//! The checks of the Kubernetes multi-tenancy benchmarks (kubernetes-retired/multi-tenancy, `benchmarks/kubectl-mtb`), made as a
//! tenant's owner in a namespace of a `GpuTenant`. Profile level 1 is isolation, level 2 is self-service.
//!
//! | check | what | by |
//! |---|---|---|
//! | MTB-PL1-CC-CPI-1 | block access to cluster resources | RBAC: `cluster_resources`; more reviews: `access.rs` |
//! | MTB-PL1-BC-CPI-2 | block multi-tenant resources | RBAC, an admission policy: `operator_objects`; as other users: `bypass.rs` |
//! | MTB-PL1-BC-CPI-3 | block add capabilities | Pod Security: `pods` |
//! | MTB-PL1-BC-CPI-4 | require run as non-root | Pod Security: `pods` |
//! | MTB-PL1-BC-CPI-5 | block privileged containers | Pod Security: `pods` |
//! | MTB-PL1-BC-CPI-6 | block privilege escalation | Pod Security: `pods` |
//! | MTB-PL1-CC-TI-1 | block modification of resource quotas | RBAC: `quotas` |
//! | MTB-PL1-CC-TI-2 | block other tenants' resources | RBAC: `other_tenants` |
//! | MTB-PL1-BC-HI-1 | block hostPath | Pod Security: `pods`; where that is relaxed: `bypass.rs` |
//! | MTB-PL1-BC-HI-1, second use of the number | block `NodePort` services | a quota of 0: `node_ports` |
//! | MTB-PL1-BC-HI-3 | block host networking and ports | Pod Security: `pods` |
//! | MTB-PL1-BC-HI-4, HI-5 | block host PID, host IPC | Pod Security: `pods` |
//! | MTB-PL1-CC-FNS-1, FNS-2 | quotas of resources, of objects | `ResourceQuota`: `fairness` |
//! | MTB-PL1-CC-DI-1 | require imagePullPolicy Always | with `policies.imagePullPolicyAlways`: `images` |
//! | MTB-PL1-BC-NI-1 | no connections across tenants | NetworkPolicy: `isolation.rs` |
//! | MTB-PL2-CC-TI-1 | block escalation by roles | RBAC: `escalation`; attempts: `own_roles` |
//! | MTB-PL2-BC-OPS-3 | own roles and role bindings | RBAC, an admission policy: `own_roles` |
//! | MTB-PL2-BC-OPS-4 | own network policies | not met, by decision: see `network_policies` |
//! | pending there | storage by claims only | Pod Security: `pods` |
//! | pending there | reclaim policy Delete, no existing PVs | storage classes decide that; owners have no right on PVs: `cluster_resources` |

use std::{collections::BTreeSet, fmt::Write as _};

use e2e::{
    Error, Result, World,
    actor::{Actor, Verb},
    fixtures::{merged, tenant},
    objects::ensure,
    product,
    scenario::tenant_ready,
    wait::{PATIENCE, eventually},
};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::{core::v1::ResourceQuota, networking::v1::NetworkPolicy};
use kube::Api;
use serde_json::{Value, json};

use crate::{
    bypass::policies_type_checked,
    tokens::access::{ALL, allowed},
};

const MINE: &str = "mtb";
const OTHER: &str = "mtb-other";
const NEIGHBOUR: Actor = Actor::Person("ben", &["mtb-others"]);
const OWNER: Actor = Actor::Person("ann", &["mtb-owners"]);
/// Users with groups, as an authenticator reports them.
const ANN: (&str, &[&str]) = ("ann", &["mtb-owners", "system:authenticated"]);
const BEN: (&str, &[&str]) = ("ben", &["mtb-others", "system:authenticated"]);

/// Limits on everything that the benchmarks count; no load balancers.
fn limits() -> Value {
    json!({
        "requests.cpu": "2", "requests.memory": "2Gi", "requests.ephemeral-storage": "10Gi",
        "pods": "10", "services": "5", "replicationcontrollers": "5", "resourcequotas": "2", "secrets": "10", "configmaps": "10",
        "persistentvolumeclaims": "4", "services.nodeports": "1", "services.loadbalancers": "0",
    })
}

/// Two teams: one with limits on its objects, and one with the defaults.
async fn two_teams(world: &World) -> Result<()> {
    let mut mine = tenant(MINE, &[]);
    mine["spec"]["owners"] = json!([{"kind": "Group", "name": "mtb-owners"}]);
    mine["spec"]["viewers"] = json!([{"kind": "Group", "name": "mtb-viewers"}]);
    mine["spec"]["resources"] = limits();
    let mut other = tenant(OTHER, &[]);
    other["spec"]["owners"] = json!([{"kind": "Group", "name": "mtb-others"}]);
    world.set(&[mine, other]).await?;
    for team in [MINE, OTHER] {
        tenant_ready(world, team).await?;
    }
    // the authorizer's cache lags
    for (who, place) in [(ANN, MINE), (BEN, OTHER)] {
        eventually("the owners' rights", PATIENCE, || async {
            Ok(if allowed(world, who, Some(place), "/pods", "create").await? { Ok(()) } else { Err("not yet".into()) })
        })
        .await?;
    }
    Ok(())
}

/// Fails with the list of failed checks.
fn all_passed(checks: &[(&str, Result<()>)]) -> Result<()> {
    let mut failed = String::new();
    for (id, outcome) in checks {
        match outcome {
            Ok(()) => println!("{id}: passed"),
            Err(error) => _ = writeln!(failed, "{id}: {error}"),
        }
    }
    ensure(failed.is_empty(), failed)
}

/// The request is refused with this text.
async fn refused(world: &World, who: &Actor, verb: Verb, path: &str, body: &Value, text: &str) -> Result<()> {
    who.check(&world.client, verb, path, body, Some(text)).await
}

/// The request is admitted.
async fn admitted(world: &World, who: &Actor, verb: Verb, path: &str, body: &Value) -> Result<()> {
    who.check(&world.client, verb, path, body, None).await
}

/// Rights of a user on these resources, as `VERB RESOURCE`.
async fn granted(
    world: &World,
    who: (&str, &[&str]),
    place: Option<&str>,
    resources: &[String],
) -> Result<BTreeSet<String>> {
    let questions = resources.iter().flat_map(|resource| ALL.iter().map(move |verb| (resource.clone(), *verb)));
    let answers = stream::iter(questions.collect::<Vec<_>>()).map(|(resource, verb)| async move {
        let yes = allowed(world, who, place, &resource, verb).await?;
        Ok::<_, Error>(yes.then(|| format!("{verb} {resource}")))
    });
    let answers: Vec<Option<String>> = answers.buffer_unordered(32).try_collect().await?;
    Ok(answers.into_iter().flatten().collect())
}

/// All cluster-scoped or all namespaced resources, as `GROUP/RESOURCE`.
async fn resources(world: &World, namespaced: bool) -> Result<Vec<String>> {
    let names = world.kubectl(&["api-resources", &format!("--namespaced={namespaced}"), "-o", "name"]).await?;
    let split = |name: &str| match name.split_once('.') {
        Some((resource, group)) => format!("{group}/{resource}"),
        None => format!("/{name}"),
    };
    let all: Vec<String> = names.lines().map(split).collect();
    ensure(all.len() > 20, format!("{all:?}"))?;
    Ok(all)
}

/// MTB-PL1-CC-CPI-1. Every user may review its own access and read the catalog (`tenants.catalogReaders`).
async fn cluster_resources(world: &World) -> Result<()> {
    let granted = granted(world, ANN, None, &resources(world, false).await?).await?;
    let about_oneself = |right: &String| right.starts_with("create ") && right.contains("/selfsubject");
    let catalog = ["get", "list", "watch"].map(|verb| format!("{verb} gputenancy.io/gpuprofiles"));
    let more: Vec<_> = granted.iter().filter(|right| !about_oneself(right) && !catalog.contains(right)).collect();
    ensure(more.is_empty(), format!("{more:?}"))
}

/// MTB-PL1-CC-TI-2, in both directions.
async fn other_tenants(world: &World) -> Result<()> {
    let resources = resources(world, true).await?;
    for (who, place) in [(ANN, OTHER), (BEN, MINE)] {
        let granted = granted(world, who, Some(place), &resources).await?;
        ensure(granted.is_empty(), format!("{who:?} in {place}: {granted:?}"))?;
    }
    Ok(())
}

/// MTB-PL1-BC-CPI-2: all objects that the operator has written for the team, including the namespace.
async fn operator_objects(world: &World) -> Result<()> {
    let all = world.labelled(&format!("gputenancy.io/tenant={MINE}")).await?;
    ensure(all.len() >= 7, format!("namespace, network policy, limits, quota, grant and two bindings: {all:?}"))?;
    let as_owner = ["-n", MINE, "--dry-run=server", "--as=ann", "--as-group=mtb-owners"];
    let mut wrong = vec![];
    for object in &all {
        for words in [&["delete", "--wait=false", object][..], &["annotate", object, "example.com/mine=yes"]] {
            match world.kubectl(&[words, &as_owner].concat()).await {
                Err(error) if error.to_string().contains("forbidden") => {}
                other => wrong.push(format!("{words:?}: {:?}", other.map_err(|e| e.to_string()))),
            }
        }
    }
    ensure(wrong.is_empty(), wrong.join("\n"))
}

/// MTB-PL1-CC-TI-1.
async fn quotas(world: &World) -> Result<()> {
    let granted = granted(world, ANN, Some(MINE), &["/resourcequotas".to_owned()]).await?;
    let only: BTreeSet<String> = ["get", "list", "watch"].map(|verb| format!("{verb} /resourcequotas")).into();
    ensure(granted == only, format!("{granted:?}"))
}

/// MTB-PL2-CC-TI-1.
async fn escalation(world: &World) -> Result<()> {
    for kind in ["roles", "rolebindings", "clusterroles", "clusterrolebindings"] {
        for verb in ["bind", "escalate"] {
            let yes = allowed(world, ANN, Some(MINE), &format!("rbac.authorization.k8s.io/{kind}"), verb).await?;
            ensure(!yes, format!("{verb} {kind}"))?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn owner_has_no_rights_on_cluster_other_tenants_or_operator_objects() {
    let world = World::enter_api().await.unwrap();
    let body = async {
        two_teams(&world).await?;
        all_passed(&[
            ("MTB-PL1-CC-CPI-1", cluster_resources(&world).await),
            ("MTB-PL1-BC-CPI-2", operator_objects(&world).await),
            ("MTB-PL1-CC-TI-1", quotas(&world).await),
            ("MTB-PL1-CC-TI-2", other_tenants(&world).await),
            ("MTB-PL2-CC-TI-1", escalation(&world).await),
        ])
    };
    world.keeping_evidence("benchmarks-access", body).await;
}

fn path(namespace: &str, kind: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/{kind}")
}

/// A pod that meets every check.
fn pod() -> Value {
    let security = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"},
        "spec": {
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "c", "image": "i", "imagePullPolicy": "Always", "securityContext": security}],
        },
    })
}

/// [`pod`] with one field changed.
fn pod_with(field: &str, value: &Value) -> Value {
    let mut pod = pod();
    let (object, key) = field.rsplit_once('/').unwrap();
    pod.pointer_mut(object).unwrap()[key] = value.clone();
    pod
}

/// Refused fields of a pod: check, field, value, and text of the refusal.
fn pods() -> Vec<(&'static str, &'static str, Value, &'static str)> {
    let (all, container) = ("/spec/securityContext", "/spec/containers/0/securityContext");
    vec![
        (
            "MTB-PL1-BC-CPI-3",
            "/spec/containers/0/securityContext/capabilities",
            json!({"add": ["NET_ADMIN"], "drop": ["ALL"]}),
            "must not include \"NET_ADMIN\" in securityContext.capabilities.add",
        ),
        ("MTB-PL1-BC-CPI-4", all, json!({"seccompProfile": {"type": "RuntimeDefault"}}), "runAsNonRoot != true"),
        (
            "MTB-PL1-BC-CPI-4",
            all,
            json!({"runAsNonRoot": true, "runAsUser": 0, "seccompProfile": {"type": "RuntimeDefault"}}),
            "runAsUser=0",
        ),
        ("MTB-PL1-BC-CPI-5", container, json!({"privileged": true}), "must not set securityContext.privileged=true"),
        (
            "MTB-PL1-BC-CPI-6",
            container,
            json!({"allowPrivilegeEscalation": true, "capabilities": {"drop": ["ALL"]}}),
            "allowPrivilegeEscalation != false",
        ),
        (
            "MTB-PL1-BC-HI-1",
            "/spec/volumes",
            json!([{"name": "v", "hostPath": {"path": "/tmp"}}]),
            "restricted volume type \"hostPath\"",
        ),
        ("MTB-PL1-BC-HI-3", "/spec/hostNetwork", json!(true), "hostNetwork=true"),
        (
            "MTB-PL1-BC-HI-3",
            "/spec/containers/0/ports",
            json!([{"containerPort": 8080, "hostPort": 8080}]),
            "uses hostPort 8080",
        ),
        ("MTB-PL1-BC-HI-4", "/spec/hostPID", json!(true), "hostPID=true"),
        ("MTB-PL1-BC-HI-5", "/spec/hostIPC", json!(true), "hostIPC=true"),
        (
            "pending: storage by claim only",
            "/spec/volumes",
            json!([{"name": "v", "nfs": {"server": "192.0.2.1", "path": "/"}}]),
            "restricted volume type \"nfs\"",
        ),
    ]
}

/// MTB-PL1-CC-FNS-1 and FNS-2: every limit of the tenant is enforced, and requests beyond it are refused.
async fn fairness(world: &World) -> Result<()> {
    let quota = Api::<ResourceQuota>::namespaced(world.client.clone(), MINE).get("gputenancy").await?;
    let in_force = quota.status.and_then(|s| s.hard).unwrap_or_default();
    let named = limits();
    let missing: Vec<&String> = named.as_object().unwrap().keys().filter(|k| !in_force.contains_key(*k)).collect();
    ensure(missing.is_empty(), format!("{missing:?} of {in_force:?}"))?;
    ensure(allowed(world, ANN, Some(MINE), "/resourcequotas", "list").await?, "owners do not see their quota")?;
    let big = pod_with("/spec/containers/0/resources", &json!({"requests": {"cpu": "3"}}));
    let words = "exceeded quota: gputenancy, requested: requests.cpu=3";
    refused(world, &OWNER, Verb::Create, &path(MINE, "pods"), &big, words).await?;
    let balancer = service(json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": false}));
    let words = "exceeded quota: gputenancy, requested: services.loadbalancers=1";
    refused(world, &OWNER, Verb::Create, &path(MINE, "services"), &balancer, words).await
}

/// MTB-PL1-BC-HI-1, second use of the number: no node ports, neither of `NodePort` nor of `LoadBalancer` services, unless the tenant
/// allows some. A quota counts both; of none, a policy names the remedy for the second.
async fn node_ports(world: &World) -> Result<()> {
    let (mine, other) = (path(MINE, "services"), path(OTHER, "services"));
    let port = service(json!({"type": "NodePort"}));
    let balancer = |ports: bool| service(json!({"type": "LoadBalancer", "allocateLoadBalancerNodePorts": ports}));
    let words = "exceeded quota: gputenancy, requested: services.nodeports=1, used: services.nodeports=0, limited: services.nodeports=0";
    refused(world, &NEIGHBOUR, Verb::Create, &other, &port, words).await?;
    let remedy = "spec.allocateLoadBalancerNodePorts: write false";
    refused(world, &NEIGHBOUR, Verb::Create, &other, &balancer(true), remedy).await?;
    admitted(world, &NEIGHBOUR, Verb::Create, &other, &balancer(false)).await?;
    admitted(world, &NEIGHBOUR, Verb::Create, &other, &service(json!({}))).await?;
    admitted(world, &OWNER, Verb::Create, &mine, &port).await?;
    // not in the benchmarks: external IPs (CVE-2020-8554)
    let words = "spec.externalIPs would take what all pods of the cluster send";
    let thief = service(json!({"externalIPs": ["192.0.2.1"]}));
    refused(world, &NEIGHBOUR, Verb::Create, &other, &thief, words).await?;
    // updates of an existing service
    NEIGHBOUR.does(&world.client, Verb::Create, &other, &service(json!({}))).await?;
    let later = json!({"spec": {"externalIPs": ["192.0.2.1"]}});
    refused(world, &NEIGHBOUR, Verb::Merge, &format!("{other}/x"), &later, words).await?;
    let later = json!({"spec": {"type": "NodePort"}});
    refused(world, &NEIGHBOUR, Verb::Merge, &format!("{other}/x"), &later, "exceeded quota: gputenancy").await
}

/// A service with these fields in its spec.
fn service(fields: Value) -> Value {
    let spec = merged(json!({"selector": {"app": "web"}, "ports": [{"port": 80}]}), fields);
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": spec})
}

#[tokio::test]
async fn pod_security_and_quotas_refuse_host_access_and_excess_objects() {
    let world = World::enter_api().await.unwrap();
    let body = async {
        two_teams(&world).await?;
        let at = path(MINE, "pods");
        let mut checks =
            vec![("a pod that meets all checks", admitted(&world, &OWNER, Verb::Create, &at, &pod()).await)];
        for (check, field, value, words) in pods() {
            checks.push((check, refused(&world, &OWNER, Verb::Create, &at, &pod_with(field, &value), words).await));
        }
        checks.push(("MTB-PL1-CC-FNS-1, FNS-2", fairness(&world).await));
        checks.push(("MTB-PL1-BC-HI-1, node ports", node_ports(&world).await));
        all_passed(&checks)
    };
    world.keeping_evidence("benchmarks-pods", body).await;
}

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces";

/// A role of the team's own, with one rule.
fn role(group: &str, resource: &str, verb: &str) -> Value {
    let rule = json!({"apiGroups": [group], "resources": [resource], "verbs": [verb]});
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "own"}, "rules": [rule]})
}

/// A binding of a role to a group.
fn binding(name: &str, kind: &str, role: &str) -> Value {
    let group = "rbac.authorization.k8s.io";
    let to = json!({"apiGroup": group, "kind": kind, "name": role});
    let who = json!([{"apiGroup": group, "kind": "Group", "name": "mtb-readers"}]);
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": name}, "roleRef": to, "subjects": who})
}

/// MTB-PL2-BC-OPS-3: an owner grants a subset of its rights, never more (MTB-PL2-CC-TI-1), and not in the operator's bindings.
async fn own_roles(world: &World) -> Result<()> {
    let (roles, bindings) = (format!("{RBAC}/{MINE}/roles"), format!("{RBAC}/{MINE}/rolebindings"));
    let kinds = ["roles", "rolebindings"].map(|kind| format!("rbac.authorization.k8s.io/{kind}"));
    let granted = granted(world, ANN, Some(MINE), &kinds).await?;
    ensure(granted.len() == kinds.len() * ALL.len(), format!("{granted:?}"))?;
    for (path, object) in [(&roles, role("", "pods", "get")), (&bindings, binding("readers", "Role", "own"))] {
        OWNER.does(&world.client, Verb::Create, path, &object).await?;
    }
    let cat: (&str, &[&str]) = ("cat", &["mtb-readers", "system:authenticated"]);
    eventually("the granted right", PATIENCE, || async {
        Ok(if allowed(world, cat, Some(MINE), "/pods", "get").await? { Ok(()) } else { Err("not yet".into()) })
    })
    .await?;
    for (place, verb) in [(Some(MINE), "delete"), (Some(OTHER), "get"), (None, "get")] {
        ensure(!allowed(world, cat, place, "/pods", verb).await?, format!("{verb} in {place:?}"))?;
    }
    let words = "attempting to grant RBAC permissions not currently held";
    for (group, resource, verb) in [
        ("", "resourcequotas", "update"),
        ("networking.k8s.io", "networkpolicies", "create"),
        ("gputenancy.io", "gpugrants", "patch"),
        ("rbac.authorization.k8s.io", "roles", "escalate"),
        ("*", "*", "*"),
    ] {
        refused(world, &OWNER, Verb::Create, &roles, &renamed(role(group, resource, verb)), words).await?;
        let more = json!({"rules": role(group, resource, verb)["rules"]});
        refused(world, &OWNER, Verb::Merge, &format!("{roles}/own"), &more, words).await?;
    }
    for cluster_role in ["cluster-admin", "admin", "edit", "gputenancy-operator"] {
        let more = binding("more", "ClusterRole", cluster_role);
        refused(world, &OWNER, Verb::Create, &bindings, &more, words).await?;
    }
    // the owner role for other users, but not through the operator's binding, which names the tenant's owners
    admitted(world, &OWNER, Verb::Create, &bindings, &binding("more", "ClusterRole", "gputenancy:tenant-owner"))
        .await?;
    let words = "choose another name for one of your own";
    let owners = format!("{bindings}/gputenancy-owners");
    let more = json!({"subjects": binding("", "", "")["subjects"]});
    refused(world, &OWNER, Verb::Merge, &owners, &more, words).await?;
    refused(world, &OWNER, Verb::Delete, &owners, &json!({}), words).await?;
    refused(world, &OWNER, Verb::Delete, &bindings, &json!({}), words).await?;
    let viewers = binding("gputenancy-viewers", "ClusterRole", "view");
    refused(world, &NEIGHBOUR, Verb::Create, &format!("{RBAC}/{OTHER}/rolebindings"), &viewers, words).await
}

fn renamed(mut role: Value) -> Value {
    role["metadata"]["name"] = json!("more");
    role
}

/// MTB-PL1-CC-DI-1 with `policies.imagePullPolicyAlways`, for init containers too.
async fn images(world: &World) -> Result<()> {
    let at = path(MINE, "pods");
    let words =
        |container: &str| format!("imagePullPolicy of container {container}: write Always; an image that a node has");
    for policy in ["IfNotPresent", "Never"] {
        let lax = pod_with("/spec/containers/0/imagePullPolicy", &json!(policy));
        eventually("the new policy to be enforced", PATIENCE, || async {
            Ok(refused(world, &OWNER, Verb::Create, &at, &lax, &words("c")).await.map_err(|e| e.to_string()))
        })
        .await?;
        let mut init = pod();
        init["spec"]["initContainers"] = init["spec"]["containers"].clone();
        init["spec"]["initContainers"][0]["name"] = json!("i");
        admitted(world, &OWNER, Verb::Create, &at, &init).await?;
        init["spec"]["initContainers"][0]["imagePullPolicy"] = json!(policy);
        refused(world, &OWNER, Verb::Create, &at, &init, &words("i")).await?;
    }
    admitted(world, &OWNER, Verb::Create, &at, &pod()).await
}

#[tokio::test]
async fn image_pull_policy_always_is_enforced_when_enabled() {
    let world = World::enter_api().await.unwrap();
    let body = async {
        two_teams(&world).await?;
        let lax = pod_with("/spec/containers/0/imagePullPolicy", &json!("IfNotPresent"));
        admitted(&world, &OWNER, Verb::Create, &path(MINE, "pods"), &lax).await?;
        product::install(&world.lab, &["policies.imagePullPolicyAlways=true"]).await?;
        policies_type_checked(&world).await?;
        all_passed(&[("MTB-PL1-CC-DI-1", images(&world).await)])
    };
    let outcome = Box::pin(body).await;
    product::install(&world.lab, &[]).await.unwrap();
    world.keeping_evidence("benchmarks-images", async { outcome }).await;
}

/// MTB-PL2-BC-OPS-4 is not met, by decision: policies are additive, so a team's own policy could admit every peer. The operator's
/// policy admits the team's namespaces and labelled platform namespaces.
async fn network_policies(world: &World) -> Result<()> {
    let all = format!("/apis/networking.k8s.io/v1/namespaces/{MINE}/networkpolicies");
    let open = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "open"}, "spec": {"podSelector": {}, "ingress": [{}]}});
    refused(world, &OWNER, Verb::Create, &all, &open, "forbidden").await?;
    let granted = granted(world, ANN, Some(MINE), &["networking.k8s.io/networkpolicies".to_owned()]).await?;
    let only = ["get", "list", "watch"].map(|verb| format!("{verb} networking.k8s.io/networkpolicies"));
    ensure(granted == only.into(), format!("{granted:?}"))?;
    let policy = Api::<NetworkPolicy>::namespaced(world.client.clone(), MINE).get("gputenancy").await?;
    let lets_in = serde_json::to_value(policy.spec.and_then(|s| s.ingress)).unwrap();
    let from = |labels: Value| json!({"namespaceSelector": {"matchLabels": labels}});
    let (own, platform) = (json!({"gputenancy.io/tenant": MINE}), json!({"gputenancy.io/reaches-tenants": "true"}));
    ensure(lets_in == json!([{"from": [from(own), from(platform)]}]), lets_in.to_string())
}

#[tokio::test]
async fn owner_manages_own_roles_but_no_network_policies() {
    let world = World::enter_api().await.unwrap();
    let body = async {
        two_teams(&world).await?;
        all_passed(&[
            ("MTB-PL2-BC-OPS-3", own_roles(&world).await),
            ("MTB-PL2-BC-OPS-4, not met by decision", network_policies(&world).await),
        ])
    };
    world.keeping_evidence("benchmarks-self-service", body).await;
}
