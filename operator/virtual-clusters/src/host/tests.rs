//! Lists of a hostile team's namespace, by an API server that a function answers for.

use gputenancy_cluster::testing::{Answer, MockServer, Request};
use serde_json::json;

use super::*;

/// The namespace of an API server, and the server.
fn host(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> (Host, MockServer) {
    let server = MockServer::new(answer);
    (Host::new(server.client(), "ns-a", "team-a"), server)
}

/// A page of ten objects of many; the token counts the pages.
fn page(request: &Request, pages: usize, item: impl Fn(usize) -> Value) -> Answer {
    let number: usize = request.parameter("continue").map_or(0, |token| token.parse().unwrap());
    let next = if number + 1 < pages { (number + 1).to_string() } else { String::new() };
    let items: Vec<_> = (number * 10..number * 10 + 10).map(item).collect();
    json!({"metadata": {"continue": next}, "items": items}).into()
}

/// An empty list, or no object.
fn nothing(request: &Request) -> Answer {
    if request.parameter("limit").is_some() { Answer::list([]) } else { Answer::not_found() }
}

fn pod(number: usize) -> Value {
    json!({"metadata": {"name": format!("p{number}")}, "spec": {"containers": []}})
}

#[tokio::test]
async fn pods_are_read_in_small_pages() {
    let (host, server) = host(|request| page(request, 3, pod));
    for pods in [host.synced_pods().await, host.control_plane_pods().await, host.some_synced_pods().await] {
        assert_eq!(pods.unwrap().len(), 30);
    }
    let lists = server.take();
    assert_eq!(lists.len(), 9);
    assert!(
        lists.iter().all(|l| l.parameter("limit") == Some("10") && l.parameter("labelSelector").is_some()),
        "{lists:?}"
    );
}

#[tokio::test]
async fn too_many_pods_are_refused_in_passes_and_deleted_bit_by_bit() {
    let pages = lists::MOST_PODS / 10 + 5;
    let (host, server) = host(move |request| page(request, pages, pod));
    assert_eq!(host.some_synced_pods().await.unwrap().len(), lists::MOST_PODS);
    assert_eq!(server.take().len(), lists::MOST_PODS / 10 + 1, "the rest is not read");
    assert_eq!(host.control_plane_pods().await.unwrap().len(), lists::MOST_PODS);
    let error = host.synced_pods().await.unwrap_err().to_string();
    assert!(error.contains("more than 5000 pods have the label vcluster.loft.sh/managed-by=team-a: delete"), "{error}");
}

#[tokio::test]
async fn volumes_of_all_pages_are_named() {
    let (host, server) = host(|request| page(request, 3, |n| json!({"metadata": {"name": format!("data-{n}")}})));
    assert_eq!(host.volumes().await.unwrap().len(), 30);
    assert!(server.take().iter().all(|list| list.parameter("limit") == Some("10")));
}

#[tokio::test]
async fn decoys_with_forged_labels_and_manager_do_not_hide_the_workload() {
    let object = |name: &str, selector: Value| {
        json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "spec": {"selector": {"matchLabels": selector}},
            "metadata": {"name": name, "managedFields": [{"manager": names::MANAGER, "operation": "Apply"}]},
        })
    };
    let (host, _) = host(move |request| {
        let own = json!({"app": "vcluster", "release": "team-a"});
        match request.path.split_once("/statefulsets").map(|(_, rest)| rest) {
            Some("") => page(request, 5, |n| object(&format!("a-{n}"), json!({}))),
            Some("/team-a") => object("team-a", own).into(),
            Some(decoy) => object(&decoy[1..], json!({})).into(),
            None => nothing(request),
        }
    });
    for found in [host.applied().await.unwrap(), host.everything().await.unwrap()] {
        let (own, decoys): (Vec<_>, Vec<_>) = found.iter().partition(|live| live.name == "team-a");
        assert_eq!((own.len(), decoys.len()), (1, MOST_OBJECTS));
        assert_eq!(own[0].content.pointer("/metadata/managedFields"), None);
    }
    let workloads = host.workloads().await.unwrap();
    assert_eq!(workloads.iter().map(|live| live.name.as_str()).collect::<Vec<_>>(), ["team-a"]);
}

#[tokio::test]
async fn workload_of_the_name_with_other_labels_and_selector_is_not_the_release() {
    let (host, _) = host(|request| {
        if request.path.ends_with("/statefulsets/team-a") {
            return json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "team-a"}}).into();
        }
        nothing(request)
    });
    assert_eq!(host.everything().await.unwrap(), []);
    assert_eq!(host.workloads().await.unwrap(), []);
}
