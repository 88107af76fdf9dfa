//! Queues of Kueue: policies refuse pods and Jobs that pass by the queue of their team, also while neither the operator nor Kueue runs. The kinds of
//! Kueue are registered without their schemas, as the policies read few fields.

use e2e::{
    Result, World,
    actor::{Actor, Case, Verb, check_all},
    fixtures::{gated_pod, merged, mig_profile, pool, tenant},
    objects::ensure,
    scenario::tenant_ready,
    wait::{PATIENCE, eventually},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt as _, api::ListParams};
use serde_json::{Value, json};

use crate::bypass::{operators, policies_type_checked};

const OWNER: Actor = Actor::Person("ann", &["team-t"]);
/// The default of `queueing.kueue.serviceAccount`.
const KUEUE: Actor = Actor::Account("kueue-system", "kueue-controller-manager");
const JOB_CONTROLLER: Actor = Actor::Account("kube-system", "job-controller");
const SLICE: &str = "nvidia.com/mig-1g.10gb";
const GRANT: &str = "/apis/gputenancy.io/v1alpha1/namespaces/t/gpugrants/grant";
const PODS: &str = "/api/v1/namespaces/t/pods";
const JOBS: &str = "/apis/batch/v1/namespaces/t/jobs";
const HELD: &str = "/apis/batch/v1/namespaces/t/jobs/held";
const API: &str = "kueue.x-k8s.io/v1beta2";
const QUEUE: &str = "kueue.x-k8s.io/queue-name";
const PRIORITY: &str = "kueue.x-k8s.io/priority-class";
const MANAGED: &str = "app.kubernetes.io/managed-by";
const ROLES: [&str; 2] = ["e2e-kueue", "e2e-queues"];
/// Plural, kind and scope.
const KINDS: [(&str, &str, &str); 4] = [
    ("localqueues", "LocalQueue", "Namespaced"),
    ("workloads", "Workload", "Namespaced"),
    ("clusterqueues", "ClusterQueue", "Cluster"),
    ("admissionchecks", "AdmissionCheck", "Cluster"),
];
const NO_JOB: Option<&str> = Some("a pod that asks for it comes from a Job only");
const KEPT: Option<&str> = Some("stays with its Job, which Kueue has admitted with it");
const STARTS: Option<&str> =
    Some("Kueue starts this Job when the queue of tenant t has room for nvidia.com/mig-1g.10gb");

#[tokio::test]
async fn policies_refuse_what_passes_by_the_queue_of_a_team() {
    let world = World::enter_api().await.unwrap();
    let body = async {
        prepared(&world).await?;
        becomes_queued(&world).await?;
        check_all(&world.client, pods()).await?;
        check_all(&world.client, jobs()).await?;
        check_all(&world.client, of_all_kinds()).await?;
        job_waits_and_runs(&world).await?;
        kinds_are_served(&world).await?;
        objects_of_the_team(&world).await
    };
    let outcome = body.await;
    restored(&world).await.unwrap();
    world.keeping_evidence("queues", async { outcome }).await;
}

#[tokio::test]
async fn operator_writes_only_its_own_objects_of_kueue() {
    let world = World::enter_api().await.unwrap();
    let body = async {
        prepared(&world).await?;
        kinds_are_served(&world).await?;
        let foreign = object("ClusterQueue", "gput-others", json!({}));
        Actor::Admin.does(&world.client, Verb::Create, &cluster_path("clusterqueues"), &foreign).await?;
        let workload = object("Workload", "job-held", json!({}));
        KUEUE.does(&world.client, Verb::Create, &path("workloads"), &workload).await?;
        check_all(&world.client, by_the_operator()).await
    };
    let outcome = body.await;
    restored(&world).await.unwrap();
    world.keeping_evidence("queues-operator", async { outcome }).await;
}

/// Team `t`, and no operator, which would take the mark of a queued resource out of the grant.
async fn prepared(world: &World) -> Result<()> {
    world.reinstall_api(&["queueing.kueue.enabled=true"]).await?;
    policies_type_checked(world).await?;
    let mut t = tenant("t", &[("mig-1g", 2)]);
    t["spec"]["owners"] = json!([{"kind": "Group", "name": "team-t"}]);
    t["spec"]["priorityClasses"] = json!(["batch"]);
    world.set(&[mig_profile("mig-1g", "1g.10gb")]).await?;
    world.set(&[pool("p", "gpu-1", &["mig-1g"]), t]).await?;
    tenant_ready(world, "t").await?;
    operators(world, 0).await?;
    world.set(&rights()).await
}

/// Removes the kinds before an operator writes objects of them.
async fn restored(world: &World) -> Result<()> {
    let missing = "--ignore-not-found";
    world.kubectl(&[&["delete", "clusterrole,clusterrolebinding", missing], &ROLES[..]].concat()).await?;
    for (plural, ..) in KINDS {
        world.kubectl(&["delete", "crd", &format!("{plural}.kueue.x-k8s.io"), missing]).await?;
    }
    operators(world, 2).await
}

/// Rights of Kueue, which is not installed, and rights on its kinds that another product aggregates to `edit`.
fn rights() -> [Value; 3] {
    const RBAC: &str = "rbac.authorization.k8s.io";
    let rule = |group: &str, resources: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": ["create", "patch", "update", "delete"]});
    let of = |kind: &str, name: &str| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}});
    let account = json!({"kind": "ServiceAccount", "namespace": "kueue-system", "name": "kueue-controller-manager"});
    let reference = json!({"apiGroup": RBAC, "kind": "ClusterRole", "name": ROLES[0]});
    let kueue = json!([rule("batch", &["jobs"]), rule("kueue.x-k8s.io", &["workloads", "workloads/status"])]);
    let mut edit = of("ClusterRole", ROLES[1]);
    edit["metadata"]["labels"] = json!({"rbac.authorization.k8s.io/aggregate-to-edit": "true"});
    edit["rules"] = json!([rule("kueue.x-k8s.io", &["localqueues", "workloads"])]);
    [
        merged(of("ClusterRole", ROLES[0]), json!({"rules": kueue})),
        merged(of("ClusterRoleBinding", ROLES[0]), json!({"subjects": [account], "roleRef": reference})),
        edit,
    ]
}

/// A bare pod is admitted, until jobs wait for its resource.
async fn becomes_queued(world: &World) -> Result<()> {
    let bare = pod(json!({}), gated_pod(SLICE, 1));
    OWNER.check(&world.client, Verb::Create, PODS, &bare, None).await?;
    let queued = json!({"spec": {"queued": [SLICE]}});
    Actor::Operator.does(&world.client, Verb::Merge, GRANT, &queued).await?;
    eventually("the changed grant to be enforced", PATIENCE, || async {
        let answer = OWNER.check(&world.client, Verb::Create, PODS, &bare, NO_JOB).await;
        Ok(answer.map_err(|error| error.to_string()))
    })
    .await
}

fn pod(metadata: Value, spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": merged(json!({"name": "x"}), metadata), "spec": spec})
}

/// Metadata of an object with this controller.
fn owned(api: &str, kind: &str) -> Value {
    let uid = "11111111-2222-3333-4444-555555555555";
    json!({"ownerReferences": [{"apiVersion": api, "kind": kind, "name": "x", "uid": uid, "controller": true}]})
}

/// A pod whose device is that of a sidecar.
fn with_sidecar() -> Value {
    let mut spec = gated_pod("cpu", 1);
    let mut sidecar = gated_pod(SLICE, 1)["containers"][0].clone();
    sidecar["name"] = json!("sidecar");
    sidecar["restartPolicy"] = json!("Always");
    spec["initContainers"] = json!([sidecar]);
    pod(json!({}), spec)
}

fn pods() -> Vec<Case> {
    let case = |name, actor, pod, refusal| (name, actor, Verb::Create, PODS.to_owned(), pod, refusal);
    let device = |metadata| pod(metadata, gated_pod(SLICE, 1));
    let replica_sets = Actor::Account("kube-system", "replicaset-controller");
    vec![
        case("a pod of a user", OWNER, device(json!({})), NO_JOB),
        case("a pod of an administrator", Actor::Admin, device(json!({})), NO_JOB),
        case("a pod with an owner that a user wrote", OWNER, device(owned("batch/v1", "Job")), NO_JOB),
        case("a pod of a Deployment", replica_sets, device(owned("apps/v1", "ReplicaSet")), NO_JOB),
        case("a sidecar with a device", OWNER, with_sidecar(), NO_JOB),
        case("a pod of no Job", JOB_CONTROLLER, device(json!({})), NO_JOB),
        case("a pod of another kind of Job", JOB_CONTROLLER, device(owned("batch.volcano.sh/v1alpha1", "Job")), NO_JOB),
        case("a pod of a Job", JOB_CONTROLLER, device(owned("batch/v1", "Job")), None),
        case("a pod without a device", OWNER, pod(json!({}), gated_pod("cpu", 1)), None),
    ]
}

/// A Job with these labels and fields, whose pod is never scheduled.
fn job(name: &str, resource: &str, labels: Value, fields: Value) -> Value {
    let pod = merged(gated_pod(resource, 1), json!({"restartPolicy": "Never"}));
    let spec = merged(json!({"backoffLimit": 0, "template": {"spec": pod}}), fields);
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "labels": labels}, "spec": spec})
}

/// A suspended Job whose pod has this class.
fn job_of_class(class: &str) -> Value {
    let mut job = job("x", SLICE, json!({}), json!({"suspend": true}));
    job["spec"]["template"]["spec"]["priorityClassName"] = json!(class);
    job
}

fn jobs() -> Vec<Case> {
    let case = |name, job, refusal| (name, OWNER, Verb::Create, JOBS.to_owned(), job, refusal);
    let waits = |labels| job("x", SLICE, labels, json!({"suspend": true}));
    let unmanaged = Some("spec.suspend: Jobs of tenant t wait for nvidia.com/mig-1g.10gb in a queue of Kueue");
    let queue = Some("label kueue.x-k8s.io/queue-name: fast is not the queue of tenant t: write default");
    let class = Some("spec.template.spec.priorityClassName: urgent is not granted");
    vec![
        case("a suspended Job", waits(json!({})), None),
        case("a Job that is not suspended", job("x", SLICE, json!({}), json!({})), unmanaged),
        case("a Job that runs in its queue", job("x", SLICE, json!({QUEUE: "default"}), json!({})), unmanaged),
        case("a Job without a device", job("x", "cpu", json!({}), json!({})), None),
        case("its own queue", waits(json!({QUEUE: "default"})), None),
        case("another queue", waits(json!({QUEUE: "fast"})), queue),
        case("a class of the tenant", job_of_class("batch"), None),
        case("a class of others", job_of_class("urgent"), class),
    ]
}

/// Kueue reads the priority from a label of every kind that it queues.
fn of_all_kinds() -> Vec<Case> {
    let case = |name, path: &str, object, refusal| (name, OWNER, Verb::Create, path.to_owned(), object, refusal);
    let waits = |class: &str| job("x", SLICE, json!({PRIORITY: class}), json!({"suspend": true}));
    let labelled = |class: &str| pod(json!({"labels": {PRIORITY: class}}), gated_pod("cpu", 1));
    let refused = Some("label kueue.x-k8s.io/priority-class: urgent is not granted; Jobs of tenant t may have");
    vec![
        case("a Job of the tenant's priority", JOBS, waits("batch"), None),
        case("a Job of another priority", JOBS, waits("urgent"), refused),
        case("a pod of the tenant's priority", PODS, labelled("batch"), None),
        case("a pod of another priority", PODS, labelled("urgent"), refused),
    ]
}

/// What Kueue writes into a Job that it starts.
fn started() -> Value {
    let labels = json!({
        "kueue.x-k8s.io/podset": "main", "kueue.x-k8s.io/cluster-queue-name": "gput-t",
        "kueue.x-k8s.io/local-queue-name": "default",
    });
    let metadata = json!({"labels": labels, "annotations": {"kueue.x-k8s.io/workload": "job-held"}});
    let tolerations = json!([{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]);
    let spec = json!({"nodeSelector": {"gputenancy.io/pool": "p"}, "tolerations": tolerations});
    json!({"spec": {"suspend": false, "template": {"metadata": metadata, "spec": spec}}})
}

fn change(name: &'static str, actor: Actor, path: &str, body: Value, refusal: Option<&'static str>) -> Case {
    (name, actor, Verb::Merge, path.to_owned(), body, refusal)
}

/// A Job that waits, that Kueue starts, and that runs.
async fn job_waits_and_runs(world: &World) -> Result<()> {
    let held = job("held", SLICE, json!({QUEUE: "default"}), json!({"suspend": true}));
    OWNER.does(&world.client, Verb::Create, JOBS, &held).await?;
    let labelled = |queue: Value| json!({"metadata": {"labels": {QUEUE: queue}}});
    let spec = |field: &str, value: Value| json!({"spec": {field: value}});
    let other = Some("is not the queue of tenant t");
    let waiting = vec![
        change("started by its owner", OWNER, HELD, spec("suspend", json!(false)), STARTS),
        change("started by an administrator", Actor::Admin, HELD, spec("suspend", json!(false)), STARTS),
        change("started by Kueue", KUEUE, HELD, started(), None),
        change("more pods while it waits", OWNER, HELD, spec("parallelism", json!(2)), None),
        change("another queue while it waits", OWNER, HELD, labelled(json!("fast")), other),
        change("no queue while it waits", OWNER, HELD, labelled(Value::Null), None),
    ];
    check_all(&world.client, waiting).await?;

    KUEUE.does(&world.client, Verb::Merge, HELD, &started()).await?;
    let all = Api::<Pod>::namespaced(world.client.clone(), "t");
    let pod = eventually("the pod of the Job", PATIENCE, || async {
        let of_job = ListParams::default().labels("batch.kubernetes.io/job-name=held");
        Ok(all.list(&of_job).await?.items.into_iter().next().ok_or_else(|| "no pod".to_owned()))
    })
    .await?;
    let selector = pod.spec.as_ref().and_then(|spec| spec.node_selector.clone()).unwrap_or_default();
    ensure(selector.get("gputenancy.io/pool").is_some_and(|pool| pool == "p"), format!("{selector:?}"))?;

    let path = format!("{PODS}/{}", pod.name_any());
    let keeps = Some("a running Job keeps its queue");
    let owners = json!({"metadata": {"ownerReferences": null}});
    let label = |key: &str| json!({"metadata": {"labels": {key: "x"}}});
    let running = vec![
        change("another queue while it runs", OWNER, HELD, labelled(json!("fast")), keeps),
        change("no queue while it runs", OWNER, HELD, labelled(Value::Null), keeps),
        change("more pods while it runs", OWNER, HELD, spec("parallelism", json!(2)), Some("Kueue has to admit more")),
        change("fewer pods while it runs", OWNER, HELD, spec("parallelism", json!(0)), None),
        change("suspended by its owner", OWNER, HELD, spec("suspend", json!(true)), None),
        change("suspended by Kueue", KUEUE, HELD, spec("suspend", json!(true)), None),
        change("a pod without its Job", OWNER, &path, owners.clone(), KEPT),
        change("a pod that its Job gives up", JOB_CONTROLLER, &path, owners, KEPT),
        change("a pod of another selector", OWNER, &path, label("batch.kubernetes.io/controller-uid"), KEPT),
        change("another label of a pod", OWNER, &path, label("example.com/a"), None),
    ];
    check_all(&world.client, running).await
}

/// Registers a kind whose fields are all kept.
fn definition((plural, kind, scope): (&str, &str, &str)) -> Value {
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version = json!({
        "name": "v1beta2", "served": true, "storage": true, "schema": schema, "subresources": {"status": {}},
    });
    let names = json!({"plural": plural, "kind": kind});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.kueue.x-k8s.io")},
        "spec": {"group": "kueue.x-k8s.io", "scope": scope, "names": names, "versions": [version]},
    })
}

fn object(kind: &str, name: &str, spec: Value) -> Value {
    json!({"apiVersion": API, "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// API path of the objects of a kind in the namespace of the team.
fn path(plural: &str) -> String {
    format!("/apis/{API}/namespaces/t/{plural}")
}

fn cluster_path(plural: &str) -> String {
    format!("/apis/{API}/{plural}")
}

/// Registers the kinds, and waits until they are served to all that write them here.
async fn kinds_are_served(world: &World) -> Result<()> {
    world.set(&KINDS.map(definition)).await?;
    let queue = |queue: &str| object("LocalQueue", "x", json!({"clusterQueue": queue}));
    let probes = [
        (OWNER, path("localqueues"), queue("gput-t")),
        (OWNER, path("workloads"), object("Workload", "x", json!({}))),
        (KUEUE, path("workloads"), object("Workload", "x", json!({}))),
        (Actor::Admin, cluster_path("clusterqueues"), object("ClusterQueue", "x", json!({}))),
        (Actor::Admin, cluster_path("admissionchecks"), object("AdmissionCheck", "x", json!({}))),
    ];
    eventually("the kinds of Kueue to be served, and the rights to be aggregated", PATIENCE, || async {
        for (actor, path, body) in &probes {
            if let Err(status) = actor.may(&world.client, Verb::Create, path, body).await?
                && (status.code == 404 || status.message.contains("cannot create resource"))
            {
                return Ok(Err(format!("{actor:?} {path}: {}", status.message)));
            }
        }
        Ok(Ok(()))
    })
    .await
}

/// Queues of the team lead to its own `ClusterQueue`, and only Kueue writes Workloads.
async fn objects_of_the_team(world: &World) -> Result<()> {
    let queue = |of: &str| object("LocalQueue", "x", json!({"clusterQueue": of}));
    let managed = merged(queue("gput-t"), json!({"metadata": {"name": "default", "labels": {MANAGED: "gputenancy"}}}));
    let own = format!("{}/default", path("localqueues"));
    Actor::Operator.does(&world.client, Verb::Apply, &own, &managed).await?;
    let workload = object("Workload", "job-held", json!({"queueName": "default"}));
    KUEUE.does(&world.client, Verb::Create, &path("workloads"), &workload).await?;
    let admitted = format!("{}/job-held", path("workloads"));
    let collector = Actor::Account("kube-system", "generic-garbage-collector");

    let other = Some("spec.clusterQueue: gput-other is not the ClusterQueue of tenant t: write gput-t");
    let written = Some("Workloads of tenants are written by Kueue alone");
    let create = |name, actor, plural: &str, body, refusal| (name, actor, Verb::Create, path(plural), body, refusal);
    let delete = |name, actor, refusal| (name, actor, Verb::Delete, admitted.clone(), json!({}), refusal);
    let (lead, label) = (json!({"spec": {"clusterQueue": "gput-other"}}), json!({"metadata": {"labels": {"a": "b"}}}));
    let priority = json!({"spec": {"priority": 1000}});
    let foreign = object("Workload", "x", json!({}));
    check_all(
        &world.client,
        vec![
            create("a queue of the team", OWNER, "localqueues", queue("gput-t"), None),
            create("a queue of another team", OWNER, "localqueues", queue("gput-other"), other),
            create("a queue of an administrator", Actor::Admin, "localqueues", queue("gput-other"), None),
            change("the team's queue to another team", OWNER, &own, lead, other),
            change("a label of the team's queue", OWNER, &own, label, None),
            create("a Workload of the team", OWNER, "workloads", foreign.clone(), written),
            create("a Workload of Kueue", KUEUE, "workloads", foreign, None),
            change("a priority by the team", OWNER, &admitted, priority.clone(), written),
            change("a priority by Kueue", KUEUE, &admitted, priority, None),
            delete("a Workload that the team deletes", OWNER, written),
            delete("a Workload whose Job is gone", collector, None),
        ],
    )
    .await
}

/// Needs `ClusterQueue` `gput-others` of others, and Workload `job-held`.
fn by_the_operator() -> Vec<Case> {
    let own = Some("the operator may write only its own objects of Kueue");
    let no_tenant = Some("the operator may write LocalQueues in namespaces of tenants only, and default is none");
    let no_check = Some("the operator may write nothing of a Workload but the state of its own check");
    let managed = |kind: &str, name: &str| {
        merged(object(kind, name, json!({})), json!({"metadata": {"name": name, "labels": {MANAGED: "gputenancy"}}}))
    };
    let apply = |name, path: String, body: Value, refusal| (name, Actor::Operator, Verb::Apply, path, body, refusal);
    let cluster = |name, plural: &str, body: Value, refusal| {
        let object = body["metadata"]["name"].as_str().unwrap();
        apply(name, format!("{}/{object}", cluster_path(plural)), body.clone(), refusal)
    };
    let local = |name, namespace: &str, object: &str, refusal| {
        let body = merged(managed("LocalQueue", object), json!({"spec": {"clusterQueue": "gput-t"}}));
        apply(name, format!("/apis/{API}/namespaces/{namespace}/localqueues/{object}"), body, refusal)
    };
    let status = |name, status: Value, refusal| {
        let body = json!({"apiVersion": API, "kind": "Workload", "metadata": {"name": "job-held"}, "status": status});
        apply(name, format!("{}/job-held/status", path("workloads")), body, refusal)
    };
    let check = |name: &str| json!({"admissionChecks": [{"name": name, "state": "Ready"}]});
    let (queues, checks) = ("clusterqueues", "admissionchecks");
    let others = format!("{}/gput-others", cluster_path(queues));
    vec![
        cluster("the queue of a team", queues, managed("ClusterQueue", "gput-t"), None),
        cluster("a queue of another name", queues, managed("ClusterQueue", "cpu"), own),
        cluster("a queue without the label", queues, object("ClusterQueue", "gput-t", json!({})), own),
        cluster("a queue of others", queues, managed("ClusterQueue", "gput-others"), own),
        ("deletes a queue of others", Actor::Operator, Verb::Delete, others, json!({}), own),
        cluster("its check", checks, managed("AdmissionCheck", "gputenancy-maintenance"), None),
        cluster("another check", checks, managed("AdmissionCheck", "gput-check"), own),
        local("the queue in a namespace", "t", "default", None),
        local("another queue in a namespace", "t", "gput-fast", own),
        local("a queue in a namespace of no tenant", "default", "default", no_tenant),
        status("the state of its check", check("gputenancy-maintenance"), None),
        status("the state of another check", check("provisioning"), no_check),
        status("an admission", json!({"admission": {"clusterQueue": "gput-t"}}), no_check),
    ]
}
