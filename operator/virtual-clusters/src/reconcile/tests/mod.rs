//! A reconcile against an API server that a function answers for.

use std::sync::Arc;

use futures::channel::mpsc;
use gputenancy_cluster::{
    events::Publisher,
    testing::{Answer, MockServer, Request},
};
use gputenancy_crds::{GpuTenantSpec, GpuTenantStatus, TenantNamespace};
use serde_json::{Value, json};

mod upgrades;

use super::*;
use crate::{
    args::{Chart, Charts, Standard, Values},
    metrics::Metrics,
    names,
    render::RenderError,
    watches::{Scope, Watched},
};

/// An API server with one namespace, in which a virtual cluster has this many replicas and no pod of its control plane is left. It has no object whose
/// path contains `missing`.
fn server(missing: &'static str, replicas: i64) -> MockServer {
    MockServer::new(move |request: &Request| {
        let meta = |kind: &str, name: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}});
        match (request.method.as_str(), request.path.as_str()) {
            ("GET", _) if request.parameter("watch").is_some() => nothing_to_watch(),
            ("GET", path) if path.ends_with(names::BINDING) => {
                let mut binding = meta("RoleBinding", names::BINDING);
                binding["apiVersion"] = json!("rbac.authorization.k8s.io/v1");
                binding["metadata"]["labels"] = json!({"gputenancy.io/tenant": "team-a"});
                binding["roleRef"] =
                    json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "x"});
                binding.into()
            }
            ("GET", path) if path.contains(missing) || path.ends_with("/services/team-a") => Answer::not_found(),
            ("GET", path) if is_policy(path) => policy(path).into(),
            ("GET", path) if path.contains("/statefulsets") => {
                let mut workload = meta("StatefulSet", "team-a");
                workload["apiVersion"] = json!("apps/v1");
                workload["metadata"]["managedFields"] = json!([{"manager": names::MANAGER, "operation": "Apply"}]);
                workload["metadata"]["labels"] = json!({"app": "vcluster", "release": "team-a"});
                workload["spec"] = json!({"replicas": replicas});
                if path.ends_with("/team-a") { workload.into() } else { Answer::list([workload]) }
            }
            ("GET", path) if path.ends_with("/pods") && request.query.contains("vcluster.loft.sh") => {
                let mut pod = meta("Pod", "train-x-ml-x-team-a");
                pod["spec"] = json!({"containers": []});
                Answer::list([pod])
            }
            ("GET", _) => Answer::list([]),
            ("PATCH", path) if path.contains("/gputenants/") => {
                json!(GpuTenant::new("x", GpuTenantSpec::default())).into()
            }
            _ => Answer::success(),
        }
    })
}

/// A watch that ends its list at once, and reports nothing.
fn nothing_to_watch() -> Answer {
    let metadata = json!({"resourceVersion": "1", "annotations": {"k8s.io/initial-events-end": "true"}});
    let object = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": metadata});
    let end = json!({"type": "BOOKMARK", "object": object});
    Answer::Watch(Box::new([format!("{end}\n")].into_iter()))
}

/// An object that limits or isolates the tenant is asked for.
fn is_policy(path: &str) -> bool {
    ["/gpugrants/", "/resourcequotas/", "/limitranges/", "/networkpolicies/"].iter().any(|kind| path.contains(kind))
}

/// Its metadata.
fn policy(path: &str) -> Value {
    let name = path.rsplit('/').next().unwrap();
    let metadata = json!({"name": name, "labels": {"gputenancy.io/tenant": "team-a"}});
    json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": metadata})
}

/// An attempt for a tenant with this `spec.virtualCluster`, and its requests.
async fn attempted(cluster: Value, replicas: i64) -> (Outcome, Vec<String>) {
    attempted_without("/no/object", cluster, replicas).await
}

/// The same without the objects whose path contains this.
async fn attempted_without(missing: &'static str, cluster: Value, replicas: i64) -> (Outcome, Vec<String>) {
    let server = server(missing, replicas);
    let context = context(server.client());
    let cluster: VirtualCluster = serde_json::from_value(cluster).unwrap();
    let namespaces = vec![TenantNamespace { name: "ns-a".into(), adopt: false }];
    let spec = GpuTenantSpec { namespaces, virtual_cluster: Some(cluster.clone()), ..GpuTenantSpec::default() };
    let mut memory = Memory { complete: Some("key".into()), ..Memory::default() };
    let (outcome, _) = Box::pin(attempt(&GpuTenant::new("team-a", spec), &cluster, &context, &mut memory)).await;
    assert_eq!(memory.complete.is_none(), cluster.suspend && cluster.backend == VirtualClusterBackend::Helm);
    (outcome, lines(&server))
}

/// Method and path of all requests.
fn lines(server: &MockServer) -> Vec<String> {
    server.take().iter().map(Request::line).collect()
}

fn context(client: kube::Client) -> Context {
    let chart = Chart { version: "0.36.1".into(), file: "/nonexistent".into(), sha256: String::new(), url: None };
    Context::new(
        client.clone(),
        Publisher::new(client, "controller", "test"),
        (Charts([("0.36.1".to_owned(), chart)].into()), Values(json!({}))),
        Standard::default(),
        "/nonexistent".into(),
        Arc::new(Metrics::default()),
        mpsc::unbounded().0,
    )
}

/// A step of the removal from a tenant with this status, and its writes.
async fn removed(name: &str, status: Option<VirtualClusterStatus>) -> Vec<String> {
    let server = server("/no/object", 1);
    let namespaces = vec![TenantNamespace { name: "ns-a".into(), adopt: false }];
    let mut tenant = GpuTenant::new(name, GpuTenantSpec { namespaces, ..GpuTenantSpec::default() });
    tenant.metadata.finalizers = Some(vec![VIRTUAL_CLUSTER_FINALIZER.into()]);
    tenant.status = Some(GpuTenantStatus { virtual_cluster: status, ..GpuTenantStatus::default() });
    let after = reconcile(&tenant, &context(server.client())).await.unwrap();
    let mut requests = lines(&server);
    requests.retain(|request| !request.starts_with("GET"));
    assert_eq!(
        after.is_none(),
        requests.last().is_some_and(|last| last.ends_with("gputenants/x") || last.ends_with(name))
    );
    requests
}

#[tokio::test]
async fn removal_whose_status_is_gone_deletes_and_announces_nothing_again() {
    let tenant = "PATCH /apis/gputenancy.io/v1alpha1/gputenants";
    // what a volume that is kept, and an adopted virtual cluster, depend on is in the status only
    assert_eq!(removed("team-a", None).await, [format!("{tenant}/team-a")]);
    // nothing is left in a namespace of another tenant
    let status = VirtualClusterStatus { backend: Some(VirtualClusterBackend::Helm), ..VirtualClusterStatus::default() };
    let event = "POST /apis/events.k8s.io/v1/namespaces/default/events".to_owned();
    assert_eq!(
        removed("team-b", Some(status.clone())).await,
        [event, format!("{tenant}/team-b/status"), format!("{tenant}/x")],
        "the status goes before the finalizer"
    );
    assert!(removed("team-a", Some(status)).await.iter().any(|request| request == STOP), "it is removed in steps");
}

#[tokio::test]
async fn objects_and_pods_are_read_again_after_a_change_only_while_all_rests() {
    let server = server("/no/object", 1);
    let context = context(server.client());
    let cluster: VirtualCluster = serde_json::from_value(json!({"version": "0.36.1", "backend": "External"})).unwrap();
    let namespaces = vec![TenantNamespace { name: "ns-a".into(), adopt: false }];
    let spec = GpuTenantSpec { namespaces, virtual_cluster: Some(cluster.clone()), ..GpuTenantSpec::default() };
    let (tenant, mut memory) = (GpuTenant::new("team-a", spec), Memory::default());
    let scope = Scope { tenant: "team-a".into(), namespace: "ns-a".into(), backend: VirtualClusterBackend::External };
    let mut reads = async |rests: bool, age: Duration, changed: bool| {
        memory.rests = rests;
        let earlier = |at: &mut Instant| *at = at.checked_sub(age).unwrap();
        memory.objects.iter_mut().for_each(|(at, _)| earlier(at));
        memory.pods.iter_mut().for_each(|(at, _)| earlier(at));
        if changed {
            let watches = context.watch(scope.clone());
            watches.mark(Watched::Objects);
            watches.mark(Watched::Pods);
        }
        let awaits = Box::pin(attempt(&tenant, &cluster, &context, &mut memory)).await.1;
        // the watches that it has started list their objects
        tokio::time::sleep(Duration::from_millis(100)).await;
        let requests: Vec<Request> = server.take();
        let read = |part: &str| requests.iter().any(|r| r.parameter("watch").is_none() && r.path.contains(part));
        (read("/statefulsets"), read("/pods"), awaits)
    };
    let (soon, later) = (Duration::ZERO, Duration::from_secs(5));
    assert_eq!(reads(true, soon, false).await, (true, true, false), "nothing is known");
    assert_eq!(reads(true, soon, true).await, (false, false, true), "they were read just before");
    assert_eq!(reads(true, later, true).await, (true, true, false), "they have changed");
    assert_eq!(reads(true, later, false).await, (false, false, false), "nothing has changed");
    assert_eq!(reads(false, later, false).await, (true, true, false), "something is awaited");
    assert_eq!(reads(true, Duration::from_mins(6), false).await, (true, true, false), "by the resync");
}

const STOP: &str = "PATCH /apis/apps/v1/namespaces/ns-a/statefulsets/team-a";
const DELETE: &str = "DELETE /api/v1/namespaces/ns-a/pods/train-x-ml-x-team-a";

#[tokio::test]
async fn suspend_stops_a_virtual_cluster_whose_spec_is_refused() {
    for refused in [json!({"version": "0.36.1", "values": {"rbac": {}}}), json!({"version": "9.9.9"})] {
        let mut suspended = refused.clone();
        suspended["suspend"] = json!(true);
        let (outcome, requests) = attempted(suspended.clone(), 1).await;
        assert!(matches!(outcome.rendered, Some(Err(_))), "{outcome:?}");
        assert_eq!(outcome.control_plane, Some(ControlPlane::Paused));
        assert!([STOP, DELETE].iter().all(|wanted| requests.iter().any(|r| r == wanted)), "{requests:?}");

        let (_, requests) = attempted(suspended, 0).await;
        assert!(requests.iter().all(|r| r != STOP), "it is stopped already: {requests:?}");

        let (outcome, requests) = attempted(refused, 1).await;
        assert_ne!(outcome.control_plane, Some(ControlPlane::Paused));
        assert!(requests.iter().all(|r| r.starts_with("GET")), "a refused spec alone stops nothing: {requests:?}");
    }
}

#[tokio::test]
async fn nothing_is_applied_before_the_policy_of_the_tenant_exists() {
    let spec = |backend: &str| json!({"version": "0.36.1", "backend": backend});
    // with all objects it goes on to the chart, which does not exist
    let (outcome, _) = attempted(spec("Helm"), 1).await;
    assert_eq!(outcome.policy, Some(PolicyState::Present));
    assert!(matches!(outcome.rendered, Some(Err(RenderError::Helm(_)))), "{outcome:?}");
    for (missing, name) in [
        ("/gpugrants/grant", "GpuGrant grant"),
        ("/resourcequotas/gputenancy", "ResourceQuota gputenancy"),
        ("/networkpolicies/gputenancy", "NetworkPolicy gputenancy"),
    ] {
        for backend in ["Helm", "External"] {
            let (outcome, requests) = attempted_without(missing, spec(backend), 1).await;
            assert_eq!(outcome.policy, Some(PolicyState::Missing(name.to_owned())));
            assert!(outcome.rendered.is_none() && outcome.adopted.is_none(), "{outcome:?}");
            assert!(outcome.control_plane.is_some(), "what runs is observed");
            assert!(requests.iter().all(|r| r.starts_with("GET")), "{requests:?}");
        }
    }
    let mut suspended = spec("Helm");
    suspended["suspend"] = json!(true);
    let (_, requests) = attempted_without("/resourcequotas/", suspended, 1).await;
    assert!(requests.iter().any(|r| r == STOP), "it is suspended all the same: {requests:?}");
}
