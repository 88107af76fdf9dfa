//! What the tokens of the operator and of an agent reach, and what a user with the right to write `GpuTenants` does not: the lists of
//! SECURITY.md.

use e2e::{
    Result, World,
    actor::{Actor, Case, Verb, check_all},
    fixtures::{canary, merged, mig_profile, patched, pool, tenant},
    product,
    scenario::tenant_ready,
    wait::{PATIENCE, eventually},
};
use serde_json::{Value, json};

use super::security_lists;
use crate::offline::chart::rendered;

const SYSTEM: &str = "/api/v1/namespaces/kube-system";
const RBAC: &str = "rbac.authorization.k8s.io";
/// A pod of the cluster's own namespace that is never scheduled.
const VICTIM: &str = "/api/v1/namespaces/kube-system/pods/e2e-victim";

/// A pod that waits for its gate.
fn waiting(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {
        "automountServiceAccountToken": false, "schedulingGates": [{"name": "example.com/never"}], "containers": [{"name": "c", "image": "i"}]}})
}

/// An object with the labels of those that the operator manages.
fn managed(kind: (&str, &str), name: &str, fields: Value) -> Value {
    let labels = json!({"app.kubernetes.io/managed-by": "gputenancy", "gputenancy.io/tenant": "t"});
    let mut object = json!({"apiVersion": kind.0, "kind": kind.1, "metadata": {"name": name, "labels": labels}});
    for (key, value) in fields.as_object().into_iter().flatten() {
        object[key] = value.clone();
    }
    object
}

fn binding(name: &str, role: &str) -> Value {
    let subjects = json!([{"apiGroup": RBAC, "kind": "User", "name": "eve"}]);
    let role = json!({"apiGroup": RBAC, "kind": "ClusterRole", "name": role});
    managed(("rbac.authorization.k8s.io/v1", "RoleBinding"), name, json!({"roleRef": role, "subjects": subjects}))
}

fn namespace(name: &str, level: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name,
        "labels": {"gputenancy.io/tenant": "t", "pod-security.kubernetes.io/enforce": level},
        "annotations": {"gputenancy.io/created-for": "x"}}})
}

/// Writes of objects in namespaces.
fn objects_in_namespaces() -> Vec<Case> {
    let case = |name, verb, path: String, body, refusal| (name, Actor::Operator, verb, path, body, refusal);
    let bound = |name, namespace: &str, object: &str, refusal| {
        let path = format!("/apis/{RBAC}/v1/namespaces/{namespace}/rolebindings");
        case(name, Verb::Create, path, binding(object, "gputenancy:tenant-owner"), refusal)
    };
    let quota = |name| managed(("v1", "ResourceQuota"), name, json!({"spec": {"hard": {"pods": "9"}}}));
    let spec = json!({"spec": {"podSelector": {}, "ingress": [{}]}});
    let open = managed(("networking.k8s.io/v1", "NetworkPolicy"), "gputenancy", spec);
    let (elsewhere, other) = (Some("in namespaces of tenants only"), Some("those of others stay"));
    let networks = "/apis/networking.k8s.io/v1/namespaces/kube-system/networkpolicies".to_owned();
    let quotas = "/api/v1/namespaces/t/resourcequotas".to_owned();
    vec![
        bound("owner of kube-system", "kube-system", "gputenancy-owners", elsewhere),
        bound("owner of the platform", product::NAMESPACE, "gputenancy-owners", elsewhere),
        bound("owner of a team's namespace", "t", "gputenancy-owners", None),
        bound("binding of a name of others", "t", "friends", other),
        case("quota of kube-system", Verb::Create, format!("{SYSTEM}/resourcequotas"), quota("gputenancy"), elsewhere),
        case("quota of a name of others", Verb::Create, quotas.clone(), quota("own"), other),
        case("a team's own quota", Verb::Delete, format!("{quotas}/own"), json!({}), other),
        case("network of kube-system", Verb::Create, networks, open, elsewhere),
    ]
}

/// Writes of namespaces, and of marks on nodes.
fn namespaces_and_marks() -> Vec<Case> {
    let case = |name, verb, path: &str, body, refusal| (name, Actor::Operator, verb, path.to_owned(), body, refusal);
    let labelled = |name, key: &str, value: &str, refusal| {
        let body = json!({"metadata": {"labels": {key: value}}});
        case(name, Verb::Merge, "/api/v1/namespaces/t", body, refusal)
    };
    let level = Some("baseline and restricted only");
    let no_tenant = Some("the operator may change and delete only namespaces that it made for a tenant");
    let created = |name, namespace, refusal| case(name, Verb::Create, "/api/v1/namespaces", namespace, refusal);
    let bare = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fresh"}});
    let fresh = |key: &str, value: &str| {
        let labels = json!({"metadata": {"labels": {key: value}}});
        patched(namespace("fresh", "restricted"), labels)
    };
    let standard = |of: &str, version: &str| fresh(&format!("pod-security.kubernetes.io/{of}-version"), version);
    let marked = |key: &str, value: &str| json!({"metadata": {"annotations": {key: value}}});
    let adopted = json!({"metadata": {"labels": {"gputenancy.io/tenant": "t"}}});
    let mark = Some("the operator may mark a cordon only when it cordons");
    vec![
        created("namespace without a tenant", bare, no_tenant),
        created("privileged namespace", namespace("fresh", "privileged"), level),
        created("namespace of the cluster", namespace("kube-fresh", "restricted"), no_tenant),
        created(
            "namespace that reaches all tenants",
            fresh("gputenancy.io/reaches-tenants", "true"),
            Some("open no way to other tenants"),
        ),
        created("namespace that may be adopted", fresh("gputenancy.io/adoptable", "true"), Some("permit no adoption")),
        created("namespace with the first standard", standard("enforce", "v1.0"), Some("in the latest version")),
        created("namespace audited by an old standard", standard("audit", "v1.24"), Some("in the latest version")),
        created("namespace that warns by an old standard", standard("warn", "v1.24"), Some("in the latest version")),
        created("namespace with the latest standard", standard("enforce", "latest"), None),
        created("namespace of a tenant", namespace("fresh", "restricted"), None),
        labelled("privileged from now on", "pod-security.kubernetes.io/enforce", "privileged", level),
        labelled("an old standard", "pod-security.kubernetes.io/enforce-version", "v1.20", level),
        labelled("admin access to devices", "resource.kubernetes.io/admin-access", "true", level),
        labelled("baseline", "pod-security.kubernetes.io/enforce", "baseline", None),
        case("adoption without Pod Security", Verb::Merge, "/api/v1/namespaces/e2e-theirs", adopted, no_tenant),
        case(
            "a namespace of others as its own",
            Verb::Merge,
            "/api/v1/namespaces/e2e-adopted",
            marked("gputenancy.io/created-for", "x"),
            Some("may mark a namespace as its own only when it creates it"),
        ),
        case("a cordon of others", Verb::Merge, "/api/v1/nodes/cpu-1", marked("gputenancy.io/cordoned", "x"), mark),
        case(
            "a taint of others",
            Verb::Merge,
            "/api/v1/nodes/cpu-1",
            marked("gputenancy.io/tainted", "node-role.kubernetes.io/control-plane=:NoSchedule"),
            mark,
        ),
    ]
}

/// Writes of pods, evictions, and objects of users.
fn pods_and_specs() -> Vec<Case> {
    let case = |name, verb, path: &str, body, refusal| (name, Actor::Operator, verb, path.to_owned(), body, refusal);
    let nothing_else = Some("the operator may change nothing of a pod but annotations gputenancy.io/");
    let image = json!({"spec": {"containers": [{"name": "c", "image": "evil"}]}});
    let note = |key: &str| json!({"metadata": {"annotations": {key: "x"}}});
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "e2e-victim", "namespace": "kube-system"}});
    let finalizers = Some("the operator may change only its own finalizers of GpuPools and GpuTenants");
    let (tenants, pools) = ("/apis/gputenancy.io/v1alpha1/gputenants", "/apis/gputenancy.io/v1alpha1/gpupools");
    let t = format!("{tenants}/t");
    let eve = json!({"spec": {"owners": [{"kind": "User", "name": "eve"}]}});
    let forbidden = Some("forbidden");
    vec![
        case("image of a pod of the cluster", Verb::Merge, VICTIM, image.clone(), nothing_else),
        case("label of a pod", Verb::Merge, VICTIM, label.clone(), nothing_else),
        case("annotation of a pod", Verb::Merge, VICTIM, note("example.com/x"), nothing_else),
        case("notice on a pod", Verb::Merge, VICTIM, note("gputenancy.io/eviction-notice"), None),
        case(
            "eviction of a pod of the cluster",
            Verb::Create,
            &format!("{VICTIM}/eviction"),
            eviction,
            Some("may evict no pods of the cluster's own namespaces"),
        ),
        case("pod of a team", Verb::Create, "/api/v1/namespaces/t/pods", waiting("x"), forbidden),
        case("secrets of a team", Verb::Delete, "/api/v1/namespaces/t/secrets/x", json!({}), forbidden),
        case("owners of a tenant", Verb::Merge, &t, eve, finalizers),
        case("label of a tenant", Verb::Merge, &t, label, finalizers),
        case(
            "finalizer of others",
            Verb::Merge,
            &t,
            json!({"metadata": {"finalizers": ["example.com/x"]}}),
            finalizers,
        ),
        case("a tenant of its own", Verb::Apply, &format!("{tenants}/eve"), tenant("eve", &[]), forbidden),
        case(
            "selector of a pool",
            Verb::Merge,
            &format!("{pools}/p"),
            json!({"spec": {"profiles": ["other"]}}),
            finalizers,
        ),
    ]
}

/// Pods that a stolen token would like to run in the platform's namespace.
fn canaries() -> Vec<Case> {
    let shape = Some("the operator may create no pod but canaries: one container");
    let marks = Some("the operator may create no pod but canaries, with their labels");
    let device = Some("the operator's canaries may hold no device but one new one");
    let path = format!("/api/v1/namespaces/{}/pods", product::NAMESPACE);
    let spec = |fields: Value| canary(json!({}), fields, json!({}));
    let container = |fields: Value| canary(json!({}), json!({}), fields);
    let metadata = |fields: Value| canary(json!({"metadata": fields}), json!({}), json!({}));
    let secure = |fields: Value| json!({"securityContext": fields});
    let amounts = |amounts: Value| json!({"resources": {"limits": amounts, "requests": amounts}});
    let whole = json!({"nvidia.com/gpu": "8"});
    let mut tenants = canary(json!({}), json!({}), json!({}));
    tenants["spec"]["containers"][0]["resources"] = json!({"limits": {"nvidia.com/mig-3g.40gb": "1"}});
    let mut second = canary(json!({}), json!({}), json!({}));
    let first = second["spec"]["containers"][0].clone();
    second["spec"]["containers"] = json!([first, patched(first.clone(), json!({"name": "d"}))]);
    let mut capable = canary(json!({}), json!({}), json!({}));
    capable["spec"]["containers"][0]["securityContext"] = json!({"allowPrivilegeEscalation": false});
    let unconfined = || json!({"seccompProfile": {"type": "Unconfined"}});
    let near = json!({"topologyKey": "kubernetes.io/hostname", "namespaceSelector": {}, "labelSelector": {}});
    let secret = json!([{"name": "x", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]);
    let token = json!([{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]);
    let reaches = json!({"httpGet": {"host": "10.0.0.1", "port": 10250, "path": "/"}});
    let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "gpu-1", "uid": "x"}]);
    let labelled = |key: &str, value: &str| json!({"labels": {key: value}});
    let noted = |key: &str, value: &str| json!({"annotations": {key: value}});
    [
        ("a canary", spec(json!({})), None),
        ("a canary with the requests of a LimitRange", container(amounts(json!({"cpu": "1", "memory": "1Gi"}))), None),
        ("a Secret as a volume", spec(json!({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]})), shape),
        ("a token as a volume", spec(json!({"volumes": token})), shape),
        ("a token by default", spec(json!({"automountServiceAccountToken": true})), shape),
        ("a Secret as a variable", container(json!({"env": secret})), shape),
        ("Secrets as variables", container(json!({"envFrom": [{"secretRef": {"name": "s"}}]})), shape),
        ("a second container", second, shape),
        ("an init container", spec(json!({"initContainers": [{"name": "i", "image": "x"}]})), shape),
        ("root", container(secure(json!({"runAsNonRoot": false, "runAsUser": 0}))), shape),
        ("the group root", spec(secure(json!({"runAsGroup": 0}))), shape),
        ("a group of the node", spec(secure(json!({"supplementalGroups": [6]}))), shape),
        ("capabilities by default", capable, shape),
        ("an SELinux type of the pod", spec(secure(json!({"seLinuxOptions": {"type": "spc_t"}}))), shape),
        ("an SELinux type", container(secure(json!({"seLinuxOptions": {"type": "spc_t"}}))), shape),
        ("no seccomp profile of the pod", spec(secure(unconfined())), shape),
        ("no seccomp profile", container(secure(unconfined())), shape),
        ("no AppArmor profile", container(secure(json!({"appArmorProfile": {"type": "Unconfined"}}))), shape),
        (
            "all of /proc",
            canary(json!({}), json!({"hostUsers": false}), secure(json!({"procMount": "Unmasked"}))),
            shape,
        ),
        (
            "a kernel parameter",
            spec(secure(json!({"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "0"}]}))),
            shape,
        ),
        ("a probe from the node", container(json!({"startupProbe": reaches})), shape),
        ("a hook from the node", container(json!({"lifecycle": {"postStart": reaches}})), shape),
        ("a port of the node", container(json!({"ports": [{"containerPort": 443, "hostPort": 443}]})), shape),
        ("another node than its device has", spec(json!({"nodeName": "gpu-2"})), shape),
        ("no deadline", spec(json!({"activeDeadlineSeconds": null})), shape),
        ("a pod that starts again", spec(json!({"restartPolicy": "Always"})), shape),
        ("names of its own", spec(json!({"hostAliases": [{"ip": "192.0.2.1", "hostnames": ["x"]}]})), shape),
        ("another scheduler", spec(json!({"schedulerName": "other"})), shape),
        (
            "the nodes of other pods",
            spec(json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [near]}}})),
            shape,
        ),
        ("a class that evicts others", spec(json!({"priorityClassName": "system-cluster-critical"})), shape),
        ("whole GPUs as well", container(amounts(whole)), device),
        ("a device of a tenant", tenants, device),
        ("two new devices", container(amounts(json!({"gputenancy.io/canary_1_0": "1"}))), device),
        ("a device by another name", container(amounts(json!({"gputenancy.io/half": "1"}))), device),
        ("devices by annotation", metadata(noted("cdi.k8s.io/x", "nvidia.com/gpu=all")), marks),
        (
            "an annotation of NRI",
            metadata(noted("mounts.noderesource.dev/container.canary", "[{source: /, destination: /host}]")),
            marks,
        ),
        (
            "a pod of the controller of virtual clusters",
            metadata(labelled("app.kubernetes.io/name", "gputenancy-virtual-clusters")),
            marks,
        ),
        ("an endpoint of the metrics", metadata(labelled("app.kubernetes.io/name", "gputenancy-operator")), marks),
        ("a label of others", metadata(labelled("app", "x")), marks),
        ("an owner", metadata(json!({"ownerReferences": owner})), marks),
        ("a finalizer", metadata(json!({"finalizers": ["example.com/x"]})), marks),
    ]
    .into_iter()
    .map(|(name, pod, refusal)| (name, Actor::Operator, Verb::Create, path.clone(), pod, refusal))
    .collect()
}

/// Namespaces of no tenant: adopted only with the label, which the token cannot set.
fn adoptions() -> Vec<Case> {
    let labels = |labels: Value| json!({"metadata": {"labels": labels}});
    let adopted = json!({"gputenancy.io/tenant": "t", "pod-security.kubernetes.io/enforce": "baseline"});
    let with = |key: &str, value: Value| labels(merged(adopted.clone(), json!({key: value})));
    let (theirs, offered, refused) = ("e2e-theirs", "e2e-offered", "e2e-not-offered");
    let no = Some("adopt one for a tenant if it has the label gputenancy.io/adoptable=true");
    let adoptable = "gputenancy.io/adoptable";
    let mut own = labels(adopted.clone());
    own["metadata"]["annotations"] = json!({"gputenancy.io/created-for": "x"});
    [
        ("a namespace of others", theirs, labels(adopted.clone()), no),
        ("one that is labelled otherwise", refused, labels(adopted.clone()), no),
        ("one with the label in the same request", theirs, with(adoptable, json!("true")), no),
        ("the label of a namespace of others", theirs, labels(json!({adoptable: "true"})), no),
        ("another value of the label", refused, labels(json!({adoptable: "true"})), no),
        ("one as if it had been created for a tenant", theirs, own, no),
        ("one whose label it removes", offered, with(adoptable, Value::Null), no),
        ("one that it makes privileged", offered, with("pod-security.kubernetes.io/enforce", json!("privileged")), no),
        (
            "one whose standard it dates back",
            offered,
            with("pod-security.kubernetes.io/enforce-version", json!("v1.0")),
            no,
        ),
        ("one that is offered", offered, labels(adopted.clone()), None),
        ("the label of a tenant's namespace", "t", labels(json!({adoptable: "true"})), Some("permit no adoption")),
    ]
    .into_iter()
    .map(|(name, space, body, refusal)| {
        (name, Actor::Operator, Verb::Merge, format!("/api/v1/namespaces/{space}"), body, refusal)
    })
    .chain(["status", "finalize"].map(|subresource| {
        let path = format!("/api/v1/namespaces/{theirs}/{subresource}");
        let name = "the label through a subresource";
        (name, Actor::Operator, Verb::Merge, path, labels(json!({adoptable: "true"})), Some("forbidden"))
    }))
    .collect()
}

/// Evictions in the platform's namespace.
fn evictions() -> Vec<Case> {
    let no = Some("the operator may evict no pods of the cluster's own namespaces");
    let home = product::NAMESPACE;
    ["someone", "gputenancy-agent-x", "gputenancy-device-plugin-x"]
        .map(|pod| {
            let body =
                json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": home}});
            let path = format!("/api/v1/namespaces/{home}/pods/{pod}/eviction");
            ("a pod of the platform's namespace", Actor::Operator, Verb::Create, path, body, no)
        })
        .into()
}

/// An agent's token changes nothing of pods, Secrets and tenants.
fn agent() -> Vec<Case> {
    let case =
        |name, verb, path: &str, body| (name, Actor::Agent("gpu-1"), verb, path.to_owned(), body, Some("forbidden"));
    let note = json!({"metadata": {"annotations": {"gputenancy.io/eviction-notice": "x"}}});
    vec![
        case("a pod", Verb::Create, "/api/v1/namespaces/t/pods", waiting("x")),
        case("a notice", Verb::Merge, VICTIM, note.clone()),
        case("deletion of a pod", Verb::Delete, VICTIM, json!({})),
        case("a Secret", Verb::Delete, "/api/v1/namespaces/t/secrets/x", json!({})),
        case("a tenant", Verb::Merge, "/apis/gputenancy.io/v1alpha1/gputenants/t", note.clone()),
        case("a grant", Verb::Merge, "/apis/gputenancy.io/v1alpha1/namespaces/t/gpugrants/grant", note),
    ]
}

#[tokio::test]
async fn tokens_of_operator_and_agent_reach_only_what_the_security_page_lists() {
    let world = World::enter_api().await.unwrap();
    let body = async {
        world.set(&[mig_profile("mig-1g", "1g.10gb")]).await?;
        world.set(&[pool("p", "gpu-1", &["mig-1g"]), tenant("t", &[("mig-1g", 1)])]).await?;
        tenant_ready(&world, "t").await?;
        Actor::Admin.does(&world.client, Verb::Create, &format!("{SYSTEM}/pods"), &waiting("e2e-victim")).await?;
        let space = |name: &str, labels: Value| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
        world
            .set(&[
                space("e2e-theirs", json!({})),
                space("e2e-offered", json!({"gputenancy.io/adoptable": "true"})),
                space("e2e-not-offered", json!({"gputenancy.io/adoptable": "yes"})),
                space("e2e-adopted", json!({"gputenancy.io/tenant": "gone"})),
            ])
            .await?;
        let own = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "own"}, "spec": {"hard": {"pods": "50"}}});
        Actor::Admin.does(&world.client, Verb::Create, "/api/v1/namespaces/t/resourcequotas", &own).await?;
        check_all(
            &world.client,
            [
                objects_in_namespaces(),
                namespaces_and_marks(),
                adoptions(),
                pods_and_specs(),
                evictions(),
                canaries(),
                agent(),
            ]
            .concat(),
        )
        .await?;
        let (.., canary, _) = canaries().swap_remove(0);
        security_lists::tokens_of_operator_and_agent(&world, canary).await
    };
    let outcome = body.await;
    world.kubectl(&["delete", "pod", "-n", "kube-system", "--ignore-not-found", "e2e-victim"]).await.unwrap();
    let spaces = ["e2e-theirs", "e2e-offered", "e2e-not-offered", "e2e-adopted"];
    world.kubectl(&[&["delete", "namespace", "--ignore-not-found"][..], &spaces].concat()).await.unwrap();
    world.keeping_evidence("stolen-tokens", async { outcome }).await;
}

/// The operator gives the rights of the controller of virtual clusters to this controller alone.
fn bindings_of_virtual_clusters() -> Vec<Case> {
    const OWN: &str = "gputenancy-virtual-clusters";
    let controller = json!({"kind": "ServiceAccount", "name": OWN, "namespace": product::NAMESPACE});
    let other = json!({"kind": "ServiceAccount", "name": "default", "namespace": "t"});
    let elsewhere = json!({"kind": "ServiceAccount", "name": OWN, "namespace": "t"});
    let eve = json!({"apiGroup": RBAC, "kind": "User", "name": "eve"});
    let named_alike = json!({"apiGroup": RBAC, "kind": "User", "name": OWN});
    let alone = Some("to the controller of virtual clusters alone");
    [
        ("the controller's binding", OWN, json!([controller]), None),
        ("its rights for a user", OWN, json!([eve]), alone),
        ("its rights for a user of its name", OWN, json!([named_alike]), alone),
        ("its rights for an account", OWN, json!([other]), alone),
        ("its rights for an account of its name", OWN, json!([elsewhere]), alone),
        ("its rights for one more", OWN, json!([controller, eve]), alone),
        ("its rights without a subject", OWN, json!([]), alone),
        ("its rights by another binding", "gputenancy-owners", json!([controller]), alone),
    ]
    .into_iter()
    .map(|(what, name, subjects, refusal)| {
        let mut body = binding(name, "gputenancy:virtual-clusters");
        body["subjects"] = subjects;
        let path = format!("/apis/{RBAC}/v1/namespaces/t/rolebindings/{name}");
        (what, Actor::Operator, Verb::Apply, path, body, refusal)
    })
    .collect()
}

/// Rights and policy of the operator in a release with virtual clusters, without their controller.
async fn with_virtual_clusters(world: &World) -> Result<()> {
    for (file, kind, name) in [
        ("virtual-clusters.yaml", "ClusterRole", "gputenancy:virtual-clusters"),
        ("operator-rbac.yaml", "ClusterRole", "gputenancy-operator"),
        ("operator-objects.yaml", "ValidatingAdmissionPolicy", "gputenancy-operator-objects"),
    ] {
        let all: Vec<Value> = serde_saphyr::from_multiple(&rendered(file, &["virtualClusters.enabled=true"])).unwrap();
        let object = all.into_iter().find(|o| o["kind"] == kind && o["metadata"]["name"] == name).unwrap();
        let plural = if kind == "ClusterRole" { "clusterroles" } else { "validatingadmissionpolicies" };
        let path = format!("/apis/{}/{plural}/{name}", object["apiVersion"].as_str().unwrap());
        Actor::Admin.does(&world.client, Verb::Apply, &path, &object).await?;
    }
    Ok(())
}

#[tokio::test]
async fn operator_binds_the_rights_of_virtual_clusters_to_their_controller_alone() {
    let world = World::enter_api().await.unwrap();
    let body = async {
        world.set(&[tenant("t", &[])]).await?;
        tenant_ready(&world, "t").await?;
        with_virtual_clusters(&world).await?;
        eventually("the operator's right to bind the role, and its policy", PATIENCE, || async {
            Ok(check_all(&world.client, bindings_of_virtual_clusters()).await.map_err(|error| error.to_string()))
        })
        .await
    };
    let outcome = body.await;
    world.kubectl(&["delete", "--ignore-not-found", "clusterrole", "gputenancy:virtual-clusters"]).await.unwrap();
    product::install_over_changes(&world.lab).await.unwrap();
    world.keeping_evidence("stolen-tokens-virtual-clusters", async { outcome }).await;
}

#[tokio::test]
async fn who_may_write_tenants_adopts_only_namespaces_that_are_theirs_to_give() {
    let world = World::enter_api().await.unwrap();
    let body = async {
        let role = |name: &str, rules: Value| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules});
        let bound = |name: &str, kind: &str, user: &str| {
            let subjects = json!([{"apiGroup": RBAC, "kind": "User", "name": user}]);
            json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "subjects": subjects,
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}})
        };
        let tenants =
            json!([{"apiGroups": ["gputenancy.io"], "resources": ["gputenants"], "verbs": ["create", "patch", "get"]}]);
        let gives = json!([{"apiGroups": [RBAC], "resources": ["rolebindings"], "verbs": ["create"]}]);
        let mut theirs = bound("e2e-gives", "RoleBinding", "bob");
        theirs["metadata"]["namespace"] = json!("e2e-theirs");
        let space = |name: &str| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        world.set(&[space("e2e-theirs"), space("e2e-foreign")]).await?;
        world
            .set(&[
                role("e2e-tenants", tenants),
                role("e2e-gives", gives),
                bound("e2e-tenants", "ClusterRoleBinding", "bob"),
                theirs,
            ])
            .await?;
        let adopting = |name: &str| {
            let mut all = tenant("adopting", &[]);
            all["spec"]["namespaces"] = json!([{"name": "fresh-one"}, {"name": name, "adopt": true}]);
            all
        };
        let path = "/apis/gputenancy.io/v1alpha1/gputenants/adopting".to_owned();
        let refusal = Some("adopting e2e-foreign gives what is in it to the owners of GpuTenant adopting");
        let bob = || Actor::Person("bob", &[]);
        // the authorizer's cache lags
        e2e::wait::eventually("the right to write tenants", e2e::wait::PATIENCE, || async {
            let answer = bob().may(&world.client, Verb::Apply, &path, &adopting("e2e-theirs")).await?;
            Ok(answer.map(drop).map_err(|status| status.message))
        })
        .await?;
        check_all(
            &world.client,
            vec![
                ("a namespace of others", bob(), Verb::Apply, path.clone(), adopting("e2e-foreign"), refusal),
                ("one that is his", bob(), Verb::Apply, path.clone(), adopting("e2e-theirs"), None),
                ("by an administrator", Actor::Admin, Verb::Apply, path, adopting("e2e-foreign"), None),
            ],
        )
        .await
    };
    let outcome: Result<()> = body.await;
    for (kind, names) in [
        ("clusterrolebinding", &["e2e-tenants"][..]),
        ("clusterrole", &["e2e-tenants", "e2e-gives"]),
        ("namespace", &["e2e-theirs", "e2e-foreign"]),
    ] {
        world.kubectl(&[&["delete", kind, "--ignore-not-found"], names].concat()).await.unwrap();
    }
    world.keeping_evidence("adoption", async { outcome }).await;
}
