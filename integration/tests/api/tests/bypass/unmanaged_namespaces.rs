//! Pods in namespaces of no tenant ask for no devices of pools: they would count for no quota, and could take what a tenant is guaranteed.

use e2e::{
    Result, World,
    actor::{Actor, Case, Verb, check_all},
    fixtures::{deployment, merged, pod_spec},
    objects::ensure,
    wait::{PATIENCE, eventually},
};
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use serde_json::{Value, json};

/// A namespace of no tenant.
const ELSEWHERE: &str = "unmanaged-elsewhere";
const MAKERS: &str = "test-namespace-makers";
const SLICE: &str = "nvidia.com/mig-1g.10gb";
const REFUSED: Option<&str> = Some(
    "belongs to no GpuTenant: a pod there may not ask for nvidia.com/mig-1g.10gb, a resource that pools guarantee",
);

fn pod(limits: Value, spec: Value) -> Value {
    let container = json!({"name": "c", "image": "i", "resources": {"limits": limits}});
    let spec = merged(json!({"containers": [container]}), spec);
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec})
}

/// A pod with a GPU whose nodes meet one of these terms.
fn placed(terms: Value) -> Value {
    let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
    pod(json!({SLICE: 1}), json!({"affinity": {"nodeAffinity": required}}))
}

fn cases(namespace: &str, refused: Option<&'static str>) -> Vec<Case> {
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    let case = |name, body, refusal| (name, Actor::Admin, Verb::Create, path.clone(), body, refusal);
    let idle = json!({"name": "c", "image": "i"});
    let init = json!({"name": "i", "image": "i", "resources": {"limits": {SLICE: 1}}});
    let outside = json!({"matchExpressions": [{"key": "gputenancy.io/pool", "operator": "DoesNotExist"}]});
    let other = json!({"matchExpressions": [{"key": "example.com/rack", "operator": "Exists"}]});
    let share = refused.and(Some("may not ask for gputenancy.io/part, a resource that pools guarantee"));
    vec![
        case("a pod with a device", pod(json!({SLICE: 1}), json!({})), refused),
        case(
            "an init container with a device",
            pod(json!({}), json!({"containers": [idle], "initContainers": [init]})),
            refused,
        ),
        case("a node by name", pod(json!({SLICE: 1}), json!({"nodeName": "gpu-1"})), refused),
        case("any toleration", pod(json!({SLICE: 1}), json!({"tolerations": [{"operator": "Exists"}]})), refused),
        case("a share", pod(json!({"gputenancy.io/part": 1}), json!({})), share),
        case("off the nodes of pools by one of two terms", placed(json!([outside, other])), refused),
        case("off the nodes of pools", placed(json!([outside])), None),
        case("an amount of zero", pod(json!({SLICE: 0}), json!({})), None),
        case("a device that is no GPU", pod(json!({"nvidia.com/hostdev": 1}), json!({})), None),
        case("no device", pod(json!({"cpu": "1"}), json!({})), None),
    ]
}

#[tokio::test]
async fn pods_of_no_tenant_get_no_device_of_a_pool_unless_their_namespace_is_named() {
    let world = World::enter_api().await.unwrap();
    let outcome = judged(&world).await;
    world.kubectl(&["delete", "namespace", ELSEWHERE, "--ignore-not-found"]).await.unwrap();
    world.reinstall_api(&[]).await.unwrap();
    world.keeping_evidence("unmanaged-namespaces", async { outcome }).await;
}

/// Rights to create namespaces, and no others.
fn makers_of_namespaces() -> [Value; 2] {
    let rule = json!({"apiGroups": [""], "resources": ["namespaces"], "verbs": ["create"]});
    let group = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "namespace-makers"});
    let reference = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": MAKERS});
    let of =
        |kind: &str| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": MAKERS}});
    [
        merged(of("ClusterRole"), json!({"rules": [rule]})),
        merged(of("ClusterRoleBinding"), json!({"subjects": [group], "roleRef": reference})),
    ]
}

async fn judged(world: &World) -> Result<()> {
    crate::bypass::policies_type_checked(world).await?;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": ELSEWHERE}});
    let account =
        json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": ELSEWHERE}});
    world.set(&[namespace, account]).await?;
    check_all(&world.client, cases(ELSEWHERE, REFUSED)).await?;
    check_all(&world.client, cases("kube-system", None)).await?;

    // who creates an exception gives its pods devices of pools
    let named = |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    let person = Actor::Person("carol", &["system:authenticated", "namespace-makers"]);
    world.set(&makers_of_namespaces()).await?;
    let refused =
        Some("policies.unmanagedNamespaces of the chart names namespace gpu-operator: its pods may take GPUs");
    let create = |what, actor: &Actor, name, refusal| {
        (what, actor.clone(), Verb::Create, "/api/v1/namespaces".to_owned(), named(name), refusal)
    };
    let creations = vec![
        create("an exception that does not exist", &person, "gpu-operator", refused),
        create("another namespace", &person, "carols", None),
        create("by the administrator", &Actor::Admin, "gpu-operator", None),
    ];
    let outcome = check_all(&world.client, creations).await;
    world.kubectl(&["delete", "clusterrole,clusterrolebinding", MAKERS]).await?;
    outcome?;

    // what controllers create is judged, and they tell their users
    world.set(&[deployment(ELSEWHERE, "w", 1, &pod_spec(SLICE))]).await?;
    let deployments = Api::<Deployment>::namespaced(world.client.clone(), ELSEWHERE);
    eventually("the refusal in the status of the Deployment", PATIENCE, || async {
        let conditions = deployments.get("w").await?.status.and_then(|s| s.conditions).unwrap_or_default();
        let words: Vec<String> = conditions.into_iter().filter_map(|c| c.message).collect();
        let named = |words: &String| {
            words.contains(&format!("namespace {ELSEWHERE} belongs to no GpuTenant"))
                && words.contains(&format!("add {ELSEWHERE} to policies.unmanagedNamespaces"))
        };
        Ok(if words.iter().any(named) { Ok(()) } else { Err(words.join("; ")) })
    })
    .await?;
    world.kubectl(&["delete", "deployment", "w", "-n", ELSEWHERE]).await?;

    world.reinstall_api(&[&format!("policies.unmanagedNamespaces={{kube-system,{ELSEWHERE}}}")]).await?;
    eventually("the exception to be enforced", PATIENCE, || async {
        Ok(check_all(&world.client, cases(ELSEWHERE, None)).await.map_err(|error| error.to_string()))
    })
    .await?;
    let default = Actor::Admin
        .may(&world.client, Verb::Create, "/api/v1/namespaces/default/pods", &pod(json!({SLICE: 1}), json!({})))
        .await?;
    ensure(default.is_err(), "an exception for one namespace opened another one")
}
