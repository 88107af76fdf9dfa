//! Lists of a hostile team's namespace, by an API server that a function answers for.

use std::sync::{Arc, Mutex};

use kube::client::Body;
use serde_json::json;

use super::*;

type Queries = Arc<Mutex<Vec<String>>>;

/// An API server that answers lists by the query, and other requests by the path.
fn host(queries: &Queries, answer: impl Fn(&str, &str) -> Value + Clone + Send + 'static) -> Host {
    let queries = queries.clone();
    let serve = move |request: http::Request<Body>| {
        let (path, query) = (request.uri().path().to_owned(), request.uri().query().unwrap_or_default().to_owned());
        queries.lock().unwrap().push(query.clone());
        let answer = answer(&path, &query);
        let status = if answer.is_null() { 404 } else { 200 };
        let answer = match answer {
            Value::Null => json!({"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}),
            found => found,
        };
        let mut answer = http::Response::new(Body::from(answer.to_string().into_bytes()));
        *answer.status_mut() = http::StatusCode::from_u16(status).unwrap();
        std::future::ready(Ok::<_, std::convert::Infallible>(answer))
    };
    Host::new(Client::new(tower::service_fn(serve), "default"), "ns-a", "team-a")
}

/// A page of ten objects of many; the token counts the pages.
fn page(query: &str, pages: usize, item: impl Fn(usize) -> Value) -> Value {
    let token = query.split('&').find_map(|part| part.strip_prefix("continue="));
    let number: usize = token.map_or(0, |token| token.parse().unwrap());
    let next = if number + 1 < pages { (number + 1).to_string() } else { String::new() };
    let items: Vec<_> = (number * 10..number * 10 + 10).map(item).collect();
    json!({"metadata": {"continue": next}, "items": items})
}

fn pod(number: usize) -> Value {
    json!({"metadata": {"name": format!("p{number}")}, "spec": {"containers": []}})
}

#[tokio::test]
async fn pods_are_read_in_small_pages() {
    let queries = Queries::default();
    let host = host(&queries, |_, query| page(query, 3, pod));
    for pods in [host.synced_pods().await, host.control_plane_pods().await, host.some_synced_pods().await] {
        assert_eq!(pods.unwrap().len(), 30);
    }
    let queries = queries.lock().unwrap();
    assert_eq!(queries.len(), 9);
    assert!(queries.iter().all(|query| query.contains("limit=10") && query.contains("labelSelector=")), "{queries:?}");
}

#[tokio::test]
async fn too_many_pods_are_refused_in_passes_and_deleted_bit_by_bit() {
    let pages = lists::MOST_PODS / 10 + 5;
    let queries = Queries::default();
    let host = host(&queries, move |_, query| page(query, pages, pod));
    assert_eq!(host.some_synced_pods().await.unwrap().len(), lists::MOST_PODS);
    assert_eq!(queries.lock().unwrap().len(), lists::MOST_PODS / 10 + 1, "the rest is not read");
    assert_eq!(host.control_plane_pods().await.unwrap().len(), lists::MOST_PODS);
    let error = host.synced_pods().await.unwrap_err().to_string();
    assert!(error.contains("more than 5000 pods have the label vcluster.loft.sh/managed-by=team-a: delete"), "{error}");
}

#[tokio::test]
async fn volumes_of_all_pages_are_named() {
    let queries = Queries::default();
    let host = host(&queries, |_, query| page(query, 3, |n| json!({"metadata": {"name": format!("data-{n}")}})));
    assert_eq!(host.volumes().await.unwrap().len(), 30);
    assert!(queries.lock().unwrap().iter().all(|query| query.contains("limit=10")));
}

#[tokio::test]
async fn decoys_with_forged_labels_and_manager_do_not_hide_the_workload() {
    let object = |name: &str, selector: Value| {
        json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "spec": {"selector": {"matchLabels": selector}},
            "metadata": {"name": name, "managedFields": [{"manager": names::MANAGER, "operation": "Apply"}]},
        })
    };
    let queries = Queries::default();
    let host = host(&queries, move |path, query| {
        let own = json!({"app": "vcluster", "release": "team-a"});
        match path.split_once("/statefulsets").map(|(_, rest)| rest) {
            Some("") => page(query, 5, |n| object(&format!("a-{n}"), json!({}))),
            Some("/team-a") => object("team-a", own),
            Some(decoy) => object(&decoy[1..], json!({})),
            None if query.contains("limit") => json!({"items": []}),
            None => Value::Null,
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
    let queries = Queries::default();
    let host = host(&queries, |path, query| {
        if path.ends_with("/statefulsets/team-a") {
            return json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "team-a"}});
        }
        if query.contains("limit") { json!({"items": []}) } else { Value::Null }
    });
    assert_eq!(host.everything().await.unwrap(), []);
    assert_eq!(host.workloads().await.unwrap(), []);
}
