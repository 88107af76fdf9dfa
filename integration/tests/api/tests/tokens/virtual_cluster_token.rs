//! What the token of the controller of virtual clusters reaches: the list of SECURITY.md. No virtual cluster runs: the chart's account and roles,
//! and the role binding that the operator writes in a namespace with one, are all that the requests need.

use e2e::{
    Error, Result, World,
    actor::{Actor, Case, Verb, check_all},
    fixtures::{merged, mig_profile, pool, restricted_spec, tenant},
    objects::ensure,
    product,
    scenario::tenant_ready,
    wait::{PATIENCE, eventually},
};
use gputenancy_crds::{GpuTenant, VIRTUAL_CLUSTER_FINALIZER};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::security_lists;
use crate::offline::chart::rendered;

const CONTROLLER: Actor = Actor::Account(product::NAMESPACE, "gputenancy-virtual-clusters");
/// Namespaces without a virtual cluster: of the cluster, the platform, no tenant and another tenant.
const ELSEWHERE: [&str; 4] = ["kube-system", product::NAMESPACE, "default", "other"];
const RBAC: &str = "rbac.authorization.k8s.io";
const FORBIDDEN: Option<&str> = Some("forbidden");
const BINDING: Option<&str> = Some("may bind only Roles, and only to ServiceAccounts of the same namespace");

fn case(name: &'static str, verb: Verb, path: &str, body: Value, refusal: Option<&'static str>) -> Case {
    (name, CONTROLLER, verb, path.to_owned(), body, refusal)
}

fn object(kind: (&str, &str), name: &str, fields: Value) -> Value {
    merged(json!({"apiVersion": kind.0, "kind": kind.1, "metadata": {"name": name}}), fields)
}

/// A pod of one container within Pod Security `restricted`, with these fields of the container and of the spec.
fn pod(container: Value, spec: Value) -> Value {
    let container = merged(json!({"name": "c", "image": "i"}), container);
    object(("v1", "Pod"), "x", json!({"spec": merged(restricted_spec(container), spec)}))
}

fn secret() -> Value {
    object(("v1", "Secret"), "x", json!({}))
}

fn role(resource: (&str, &str)) -> Value {
    let rule = json!({"apiGroups": [resource.0], "resources": [resource.1], "verbs": ["create"]});
    object(("rbac.authorization.k8s.io/v1", "Role"), "x", json!({"rules": [rule]}))
}

fn binding(name: &str, role: (&str, &str), subject: Value) -> Value {
    let role = json!({"apiGroup": RBAC, "kind": role.0, "name": role.1});
    object(("rbac.authorization.k8s.io/v1", "RoleBinding"), name, json!({"roleRef": role, "subjects": [subject]}))
}

/// A `ServiceAccount` as a subject.
fn account(namespace: &str, name: &str) -> Value {
    json!({"kind": "ServiceAccount", "namespace": namespace, "name": name})
}

fn eve() -> Value {
    json!({"apiGroup": RBAC, "kind": "User", "name": "eve"})
}

/// Namespaces without a virtual cluster, and what belongs to none.
fn elsewhere() -> Vec<Case> {
    let foreign = ELSEWHERE.into_iter().flat_map(|namespace| {
        let at = format!("/api/v1/namespaces/{namespace}");
        let bindings = format!("/apis/{RBAC}/v1/namespaces/{namespace}/rolebindings");
        let bound = binding("x", ("Role", "x"), account(namespace, "default"));
        [
            case("a Secret elsewhere", Verb::Create, &format!("{at}/secrets"), secret(), FORBIDDEN),
            case("a Secret removed elsewhere", Verb::Delete, &format!("{at}/secrets/x"), json!({}), FORBIDDEN),
            case("a pod elsewhere", Verb::Create, &format!("{at}/pods"), pod(json!({}), json!({})), FORBIDDEN),
            case("a binding elsewhere", Verb::Create, &bindings, bound, FORBIDDEN),
        ]
    });
    let label = || json!({"metadata": {"labels": {"a": "b"}}});
    let namespace = object(("v1", "Namespace"), "fresh", json!({}));
    let admin =
        json!({"roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"}, "subjects": [eve()]});
    let admin = object(("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"), "x", admin);
    let everything = object(("rbac.authorization.k8s.io/v1", "ClusterRole"), "x", json!({"rules": []}));
    let policy = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/gputenancy-tenant-pods";
    let (rbac, ours) = (format!("/apis/{RBAC}/v1"), "/apis/gputenancy.io/v1alpha1");
    let none = [
        case("a label of a node", Verb::Merge, "/api/v1/nodes/gpu-1", label(), FORBIDDEN),
        case("a namespace", Verb::Create, "/api/v1/namespaces", namespace, FORBIDDEN),
        case("a label of its namespace", Verb::Merge, "/api/v1/namespaces/t", label(), FORBIDDEN),
        case("its namespace removed", Verb::Delete, "/api/v1/namespaces/t", json!({}), FORBIDDEN),
        case("a ClusterRole", Verb::Create, &format!("{rbac}/clusterroles"), everything, FORBIDDEN),
        case("a ClusterRoleBinding", Verb::Create, &format!("{rbac}/clusterrolebindings"), admin, FORBIDDEN),
        case("a policy removed", Verb::Delete, policy, json!({}), FORBIDDEN),
        case("a pool", Verb::Merge, &format!("{ours}/gpupools/p"), label(), FORBIDDEN),
        case("a layout", Verb::Merge, &format!("{ours}/gpunodes/gpu-1"), json!({"spec": {"gpus": []}}), FORBIDDEN),
        case("a tenant removed", Verb::Delete, &format!("{ours}/gputenants/t"), json!({}), FORBIDDEN),
        case("a tenant", Verb::Create, &format!("{ours}/gputenants"), tenant("fresh", &[]), FORBIDDEN),
    ];
    foreign.chain(none).collect()
}

/// `GpuTenants`: its own part of the status, its own finalizer, and nothing else. `finalizers`: those that the tenant has.
fn tenants(finalizers: &[String]) -> Vec<Case> {
    let t = "/apis/gputenancy.io/v1alpha1/gputenants/t";
    let status = format!("{t}/status");
    let (only, of_status) =
        (Some("may change only its own finalizer of a GpuTenant"), Some("but status.virtualCluster"));
    let change = |name, body, refusal| case(name, Verb::Merge, t, body, refusal);
    let report = |name, body: Value, refusal| case(name, Verb::Merge, &status, json!({"status": body}), refusal);
    let own: Vec<&str> = finalizers.iter().map(String::as_str).chain([VIRTUAL_CLUSTER_FINALIZER]).collect();
    let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "gone", "uid": "0-0"}]);
    let owners = json!([{"kind": "User", "name": "eve"}]);
    let ready = json!([{"type": "Ready", "status": "False", "reason": "X", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    vec![
        report("the state of the virtual cluster", json!({"virtualCluster": {"version": "0.36.1"}}), None),
        report("a condition of the tenant", json!({"conditions": ready}), of_status),
        report("a summary", json!({"summary": "x"}), of_status),
        report("no namespaces", json!({"namespaces": null}), of_status),
        change("its finalizer", json!({"metadata": {"finalizers": own}}), None),
        change("the operator's finalizer", json!({"metadata": {"finalizers": [VIRTUAL_CLUSTER_FINALIZER]}}), only),
        change("owners of a tenant", json!({"spec": {"owners": owners}}), only),
        change("a namespace of a tenant", json!({"spec": {"namespaces": [{"name": "t"}, {"name": "u"}]}}), only),
        change("a label of a tenant", json!({"metadata": {"labels": {"a": "b"}}}), only),
        change("an annotation of a tenant", json!({"metadata": {"annotations": {"a": "b"}}}), only),
        // the garbage collector deletes an object whose owner does not exist
        change("an owner that does not exist", json!({"metadata": {"ownerReferences": owner}}), only),
    ]
}

/// Pods of the namespace with a virtual cluster: within Pod Security, grant and quota.
fn pods() -> Vec<Case> {
    let create = |name, container, spec, refusal| {
        case(name, Verb::Create, "/api/v1/namespaces/t/pods", pod(container, spec), refusal)
    };
    let limits = |resource: &str| json!({"resources": {"limits": {resource: "1"}}});
    let all = json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]);
    let security = Some("violates PodSecurity");
    let privileged = json!({"name": "c", "image": "i", "securityContext": {"privileged": true}});
    let waiting = |what: &str| format!("/api/v1/namespaces/t/pods/waiting{what}");
    let restricted = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    let debug = json!({"spec": {"ephemeralContainers": [{"name": "d", "image": "i", "env": all, "securityContext": restricted}]}});
    let eviction = object(("policy/v1", "Eviction"), "waiting", json!({}));
    let bind =
        object(("v1", "Binding"), "waiting", json!({"target": {"apiVersion": "v1", "kind": "Node", "name": "gpu-1"}}));
    let devices = Some("devices and limits are given by the resource");
    vec![
        create("a pod", json!({}), json!({}), None),
        create("a pod with a granted device", limits("nvidia.com/mig-1g.10gb"), json!({}), None),
        create("a device that is not granted", limits("nvidia.com/gpu"), json!({}), Some("this namespace may use:")),
        create("all devices by a variable", json!({"env": all}), json!({}), devices),
        create("a privileged pod", json!({}), json!({"containers": [privileged]}), security),
        create("a pod with the node's network", json!({}), json!({"hostNetwork": true}), security),
        create(
            "a node by name",
            json!({}),
            json!({"nodeName": "gpu-1"}),
            Some("spec.nodeName would pass by the scheduler"),
        ),
        create(
            "a class of the cluster",
            json!({}),
            json!({"priorityClassName": "system-node-critical"}),
            Some("system- classes are the cluster"),
        ),
        case("all devices for debugging", Verb::Merge, &waiting("/ephemeralcontainers"), debug, devices),
        case(
            "an ended pod",
            Verb::Merge,
            &waiting("/status"),
            json!({"status": {"phase": "Succeeded"}}),
            Some("the status of a pod is written by its node"),
        ),
        case(
            "a claim of others in the status",
            Verb::Merge,
            &waiting("/status"),
            json!({"status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "theirs"}]}}),
            Some("the status of a pod is written by its node"),
        ),
        case("an eviction", Verb::Create, &waiting("/eviction"), eviction, FORBIDDEN),
        case("a pod on a node", Verb::Create, &waiting("/binding"), bind, FORBIDDEN),
        case("a pod removed", Verb::Delete, &waiting(""), json!({}), None),
    ]
}

/// Other objects of the namespace with a virtual cluster.
fn objects() -> Vec<Case> {
    let (core, rbac) = ("/api/v1/namespaces/t", format!("/apis/{RBAC}/v1/namespaces/t"));
    let create = |name, at: &str, body, refusal| case(name, Verb::Create, &format!("{core}/{at}"), body, refusal);
    let grants = |name, at: &str, body, refusal| case(name, Verb::Create, &format!("{rbac}/{at}"), body, refusal);
    let service =
        |spec| object(("v1", "Service"), "x", json!({"spec": merged(json!({"ports": [{"port": 80}]}), spec)}));
    let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "volumeName": "theirs"});
    let claim = object(("v1", "PersistentVolumeClaim"), "x", json!({"spec": claim}));
    let token = object(("authentication.k8s.io/v1", "TokenRequest"), "x", json!({"spec": {"audiences": []}}));
    let open =
        object(("networking.k8s.io/v1", "NetworkPolicy"), "x", json!({"spec": {"podSelector": {}, "ingress": [{}]}}));
    let networks = "/apis/networking.k8s.io/v1/namespaces/t/networkpolicies";
    let grant = "/apis/gputenancy.io/v1alpha1/namespaces/t/gpugrants/grant";
    let own = ("ClusterRole", "gputenancy:virtual-clusters");
    let of_tenant = Some("choose another name for one of your own");
    let syncer = || account("t", "vc-t");
    vec![
        create("a Secret", "secrets", secret(), None),
        create("a Service", "services", service(json!({})), None),
        create(
            "an address of others",
            "services",
            service(json!({"externalIPs": ["203.0.113.1"]})),
            Some("spec.externalIPs would take"),
        ),
        create("a port of all nodes", "services", service(json!({"type": "NodePort"})), Some("exceeded quota")),
        create("a volume of others", "persistentvolumeclaims", claim, Some("could take a volume of another team")),
        create("a token of an account", "serviceaccounts/default/token", token, FORBIDDEN),
        case("the quota removed", Verb::Delete, &format!("{core}/resourcequotas/gputenancy"), json!({}), FORBIDDEN),
        case("the limits removed", Verb::Delete, &format!("{core}/limitranges/gputenancy"), json!({}), FORBIDDEN),
        case("an open network", Verb::Create, networks, open, FORBIDDEN),
        case("a larger grant", Verb::Merge, grant, json!({"spec": {"resources": {"nvidia.com/gpu": 8}}}), FORBIDDEN),
        grants("a Role", "roles", role(("", "secrets")), None),
        grants(
            "a Role beyond its rights",
            "roles",
            role(("networking.k8s.io", "networkpolicies")),
            Some("not currently held"),
        ),
        grants("vCluster's binding", "rolebindings", binding("vc-t", ("Role", "vc-t"), syncer()), None),
        grants("its rights for a user", "rolebindings", binding("x", own, eve()), BINDING),
        grants("its rights for an account", "rolebindings", binding("x", own, syncer()), BINDING),
        grants("a Role for a user", "rolebindings", binding("x", ("Role", "vc-t"), eve()), BINDING),
        grants(
            "a Role for another team",
            "rolebindings",
            binding("x", ("Role", "vc-t"), account("other", "default")),
            BINDING,
        ),
        grants("cluster-admin", "rolebindings", binding("x", ("ClusterRole", "cluster-admin"), syncer()), FORBIDDEN),
        grants(
            "a binding of the platform",
            "rolebindings",
            binding("gputenancy-owners", ("Role", "vc-t"), syncer()),
            of_tenant,
        ),
    ]
}

/// Events of the whole cluster, in its own name only.
fn events() -> Vec<Case> {
    let event = |controller: &str| {
        json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "x.1", "namespace": "default"},
            "eventTime": "2026-01-01T00:00:00.000000Z", "reason": "VirtualClusterReady", "type": "Normal", "action": "Reconcile", "note": "x",
            "regarding": {"apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuTenant", "name": "t"},
            "reportingController": controller, "reportingInstance": "x",
        })
    };
    let path = "/apis/events.k8s.io/v1/namespaces/default/events";
    let own = Some("may report events only in its own name");
    vec![
        case("an event", Verb::Create, path, event("gputenancy.io/virtual-clusters"), None),
        case("an event of the operator", Verb::Create, path, event("gputenancy.io/operator"), own),
    ]
}

/// The chart's objects for the controller, without the program.
async fn install_identity(world: &World) -> Result<()> {
    let text = rendered("virtual-clusters.yaml", &["virtualClusters.enabled=true"]);
    let mut objects: Vec<Value> =
        serde_saphyr::from_multiple(&text).map_err(|e| Error::Text { what: "the chart".into(), why: e.to_string() })?;
    objects.retain(|object| object["kind"] != "Deployment");
    ensure(objects.len() >= 8, format!("{} objects", objects.len()))?;
    world.set(&objects).await?;
    // as the operator writes it in a namespace with a virtual cluster, under a name that it does not manage
    let mut bound = binding(
        "e2e-virtual-clusters",
        ("ClusterRole", "gputenancy:virtual-clusters"),
        account(product::NAMESPACE, "gputenancy-virtual-clusters"),
    );
    bound["metadata"]["namespace"] = json!("t");
    // a binding is judged only if its Role exists
    let mut syncer = role(("", "secrets"));
    syncer["metadata"] = json!({"name": "vc-t", "namespace": "t"});
    // of the team
    let (mut own, mut given) = (role(("", "pods")), binding("e2e-team", ("Role", "e2e-team"), account("t", "default")));
    for object in [&mut own, &mut given] {
        object["metadata"] = json!({"name": "e2e-team", "namespace": "t"});
    }
    world.set(&[bound, syncer, own, given]).await
}

async fn remove_identity(world: &World) -> Result<()> {
    let kinds = "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,serviceaccounts";
    let label = "app.kubernetes.io/name=gputenancy-virtual-clusters";
    world.kubectl(&["delete", kinds, "-n", product::NAMESPACE, "-l", label]).await.map(drop)
}

/// Rights and policies of new objects take effect a moment later.
async fn identity_in_effect(world: &World) -> Result<()> {
    eventually("the controller's rights and policies", PATIENCE, || async {
        let cases = [events(), tenants(&[]), objects()].concat();
        let refused = cases
            .into_iter()
            .filter(|(.., refusal)| [BINDING, Some("may report events only in its own name")].contains(refusal));
        Ok(check_all(&world.client, refused.collect()).await.map_err(|error| error.to_string()))
    })
    .await
}

/// It reads Secrets and pods of namespaces with a virtual cluster only.
async fn reads(world: &World) -> Result<()> {
    let identity = format!("--as=system:serviceaccount:{}:gputenancy-virtual-clusters", product::NAMESPACE);
    for kind in ["secrets", "pods"] {
        world.kubectl(&["get", kind, "-n", "t", &identity]).await?;
        let places = ELSEWHERE.map(|namespace| vec!["-n", namespace]);
        for place in places.into_iter().chain([vec!["--all-namespaces"]]) {
            let answer = world.kubectl(&[&["get", kind, &identity][..], &place].concat()).await;
            let refused = answer.as_ref().err().is_some_and(|error| error.to_string().contains("is forbidden"));
            ensure(refused, format!("{kind} {place:?}: {answer:?}"))?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn token_of_the_controller_of_virtual_clusters_reaches_only_what_the_security_page_lists() {
    let world = World::enter_api().await.unwrap();
    let body = async {
        world.set(&[mig_profile("mig-1g", "1g.10gb")]).await?;
        world.set(&[pool("p", "gpu-1", &["mig-1g"]), tenant("t", &[("mig-1g", 1)]), tenant("other", &[])]).await?;
        tenant_ready(&world, "t").await?;
        tenant_ready(&world, "other").await?;
        install_identity(&world).await?;
        let claims = json!([{"name": "gpu", "resourceClaimTemplateName": "gpu"}]);
        let mut gated =
            pod(json!({}), json!({"schedulingGates": [{"name": "example.com/never"}], "resourceClaims": claims}));
        gated["metadata"]["name"] = json!("waiting");
        Actor::Admin.does(&world.client, Verb::Create, "/api/v1/namespaces/t/pods", &gated).await?;
        identity_in_effect(&world).await?;
        let finalizers = Api::<GpuTenant>::all(world.client.clone()).get("t").await?.finalizers().to_vec();
        ensure(!finalizers.is_empty(), "the tenant has no finalizer of the operator")?;
        check_all(&world.client, [elsewhere(), tenants(&finalizers), pods(), objects(), events()].concat()).await?;
        let kept: Vec<&str> = finalizers.iter().map(String::as_str).chain([VIRTUAL_CLUSTER_FINALIZER]).collect();
        let list = security_lists::controller(pod(json!({}), json!({})), &kept);
        security_lists::all_admitted(&world, &CONTROLLER, "gputenancy-virtual-clusters", list).await?;
        reads(&world).await
    };
    let outcome = body.await;
    remove_identity(&world).await.unwrap();
    world.keeping_evidence("virtual-cluster-token", async { outcome }).await;
}
