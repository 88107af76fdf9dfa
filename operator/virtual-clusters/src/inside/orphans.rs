//! Host pods whose pod inside was deleted with force, or is gone there.
//!
//! Inside, `kubectl delete --force` leaves a pod with a finalizer in the API with a grace period of zero seconds. The syncer deletes the host
//! pod with the same grace period. The policies of this cluster refuse that for a running pod with a GPU, because its processes would run on
//! without a pod. [`decide`] finds such host pods, and this program deletes them with the grace period of their own spec.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use gputenancy_crds::virtual_pod::{HostPod, Origin, attribute};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use serde::Deserialize;

use super::connect::{CallError, get};

/// How long a host pod must be without its pod inside: the syncer needs seconds, and the two lists are not of the same time.
const PATIENCE: Duration = Duration::from_secs(30);
/// Pods that are listed at once.
const PAGE: usize = 50;
/// Most pages; a virtual cluster with more pods is not looked at.
const MOST_PAGES: usize = 200;
/// Longest token of a page.
const MOST_TOKEN: usize = 1024;
/// Grace period of a pod that names none, in seconds.
const DEFAULT_GRACE: i64 = 30;
/// Metadata only: the team chooses the size of its pods.
const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// Why the pods inside are not known.
#[derive(Debug, thiserror::Error)]
pub enum PodsError {
    /// A page was not read.
    #[error(transparent)]
    Call(#[from] CallError),
    /// A page has more pods than were asked for: a list that is cut would make pods look deleted.
    #[error("{LISTING}: the API server inside does not keep to the limit of a page")]
    Limit,
    /// The token of the next page would be a part of a URL.
    #[error("{LISTING}: the token of the next page is not one of Kubernetes")]
    Token,
    /// There are more pods than are compared.
    #[error("{LISTING}: it has more than {}", PAGE * MOST_PAGES)]
    TooMany,
}

/// The request for a page, in errors.
const LISTING: &str = "listing pods of the virtual cluster";

/// What is read of a pod inside.
#[derive(Deserialize, Debug, Clone, Default)]
pub struct PodInside {
    metadata: SlimMetadata,
}

#[derive(Deserialize, Debug, Clone, Default)]
#[serde(rename_all = "camelCase")]
struct SlimMetadata {
    #[serde(default)]
    uid: String,
    #[serde(default)]
    deletion_timestamp: Option<String>,
    #[serde(default)]
    deletion_grace_period_seconds: Option<i64>,
}

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMetadata,
    #[serde(default)]
    items: Vec<PodInside>,
}

#[derive(Deserialize, Default)]
struct PageMetadata {
    #[serde(default, rename = "continue")]
    next: String,
}

impl PodInside {
    /// Its UID; `None`: its deletion was requested.
    pub fn remaining(&self) -> Option<&str> {
        self.metadata.deletion_timestamp.is_none().then_some(self.metadata.uid.as_str())
    }

    /// It was deleted with force, and something such as a finalizer keeps it.
    fn is_forced(&self) -> bool {
        self.metadata.deletion_timestamp.is_some() && self.metadata.deletion_grace_period_seconds == Some(0)
    }
}

/// A host pod to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The version on which this is decided.
    pub version: Option<String>,
    /// Grace period, in seconds.
    pub seconds: u32,
}

/// Host pods to delete, and since when each one without a pod inside is known, by UID. `seen`: the same of the reconcile before. The host pods must
/// be listed before the pods inside: then a pod inside that is not listed was deleted, and not only made later. Pure.
pub fn decide(
    cluster: &str,
    host: &[Pod],
    inside: &[PodInside],
    seen: &BTreeMap<String, Instant>,
    now: Instant,
) -> (Vec<Orphan>, BTreeMap<String, Instant>) {
    let inside: BTreeMap<&str, &PodInside> = inside.iter().map(|pod| (pod.metadata.uid.as_str(), pod)).collect();
    let (mut orphans, mut next) = (Vec::new(), BTreeMap::new());
    for pod in host.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
        // the name follows from the annotations, or it is not this pod
        let Origin::Virtual { pod: origin, .. } =
            attribute(cluster, Some(cluster), HostPod::from(&pod.metadata)).origin
        else {
            continue;
        };
        let (Some(name), Some(uid)) = (&pod.metadata.name, &pod.metadata.uid) else { continue };
        if inside.get(origin.uid).is_some_and(|pod| !pod.is_forced()) {
            continue;
        }
        let since = seen.get(uid).copied().unwrap_or(now);
        next.insert(uid.clone(), since);
        if seen.contains_key(uid) && now.saturating_duration_since(since) >= PATIENCE {
            let version = pod.metadata.resource_version.clone();
            orphans.push(Orphan { name: name.clone(), uid: uid.clone(), version, seconds: grace(pod) });
        }
    }
    (orphans, next)
}

/// The pod's own grace period, but never zero.
fn grace(pod: &Pod) -> u32 {
    let own = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(DEFAULT_GRACE);
    u32::try_from(own.max(1)).unwrap_or(u32::MAX)
}

/// The pods of the virtual cluster.
pub async fn pods(client: &Client) -> Result<Vec<PodInside>, PodsError> {
    let (mut all, mut token) = (Vec::new(), String::new());
    for _ in 0..MOST_PAGES {
        let path = format!("/api/v1/pods?limit={PAGE}&continue={token}");
        let page: Page = get(client, LISTING, &path, Some(METADATA)).await?;
        if page.items.len() > PAGE {
            return Err(PodsError::Limit);
        }
        all.extend(page.items);
        token = page.metadata.next;
        if token.is_empty() {
            return Ok(all);
        }
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'=' | b'.');
        if token.len() > MOST_TOKEN || !token.bytes().all(allowed) {
            return Err(PodsError::Token);
        }
    }
    Err(PodsError::TooMany)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use gputenancy_cluster::testing::{MockServer, Request};
    use http::header::ACCEPT;
    use serde_json::{Value, json};

    use super::*;

    const TRAIN: &str = "train-0-x-ml-x-team-a";

    /// The host pod of `ml/train-0` with this UID inside.
    fn host_pod(uid: &str, inside: &str) -> Value {
        json!({
            "metadata": {
                "name": TRAIN, "namespace": "ns-a", "uid": uid, "resourceVersion": "7",
                "labels": {"vcluster.loft.sh/managed-by": "team-a", "vcluster.loft.sh/namespace": "ml"},
                "annotations": {
                    "vcluster.loft.sh/object-name": "train-0", "vcluster.loft.sh/object-namespace": "ml",
                    "vcluster.loft.sh/object-uid": inside,
                },
            },
            "spec": {"containers": [], "terminationGracePeriodSeconds": 60},
        })
    }

    fn inside(uid: &str, grace: Option<i64>) -> PodInside {
        let deleted = grace.map(|_| "2026-01-01T00:00:00Z");
        let metadata = json!({"uid": uid, "deletionTimestamp": deleted, "deletionGracePeriodSeconds": grace});
        serde_json::from_value(json!({"metadata": metadata})).unwrap()
    }

    /// Names that two reconciles delete, 31 seconds apart.
    fn deleted(first: (&Value, &[PodInside]), second: (&Value, &[PodInside])) -> Vec<String> {
        let pods = |pod: &Value| -> Vec<Pod> { vec![serde_json::from_value(pod.clone()).unwrap()] };
        let now = Instant::now();
        let (none, seen) = decide("team-a", &pods(first.0), first.1, &BTreeMap::new(), now);
        assert_eq!(none, [], "never in the first reconcile");
        let (orphans, _) = decide("team-a", &pods(second.0), second.1, &seen, now + Duration::from_secs(31));
        orphans.into_iter().map(|orphan| orphan.name).collect()
    }

    #[test]
    fn pod_that_is_gone_or_deleted_with_force_inside_is_deleted() {
        let pod = host_pod("h1", "v1");
        for list in [vec![], vec![inside("v1", Some(0))], vec![inside("v2", None)]] {
            assert_eq!(deleted((&pod, &list), (&pod, &list)), [TRAIN], "{list:?}");
        }
        for list in [vec![inside("v1", None)], vec![inside("v1", Some(60))]] {
            assert_eq!(deleted((&pod, &list), (&pod, &list)), Vec::<String>::new(), "the syncer does it: {list:?}");
        }
    }

    #[test]
    fn deletion_has_the_grace_period_of_the_pod_and_is_of_that_pod_only() {
        let now = Instant::now();
        let (before, seen) = (now.checked_sub(PATIENCE).unwrap(), |at| BTreeMap::from([("h1".to_owned(), at)]));
        let mut pod = host_pod("h1", "v1");
        let mut orphan = |seconds: Value| {
            pod["spec"]["terminationGracePeriodSeconds"] = seconds;
            let pods = [serde_json::from_value(pod.clone()).unwrap()];
            decide("team-a", &pods, &[], &seen(before), now).0.remove(0)
        };
        let expected = Orphan { name: TRAIN.into(), uid: "h1".into(), version: Some("7".into()), seconds: 60 };
        assert_eq!(orphan(json!(60)), expected);
        assert_eq!(orphan(json!(null)).seconds, 30);
        assert_eq!(orphan(json!(0)).seconds, 1, "zero is what is refused");
    }

    #[test]
    fn pod_recreated_under_the_same_name_is_kept() {
        let (old, new) = (host_pod("h1", "v1"), host_pod("h2", "v2"));
        let now_inside = [inside("v2", None)];
        assert_eq!(deleted((&old, &now_inside), (&new, &now_inside)), Vec::<String>::new());
        // the host pod is another one, so its time begins again
        assert_eq!(deleted((&old, &[]), (&new, &[])), Vec::<String>::new());
    }

    #[test]
    fn pod_that_is_absent_in_one_pass_only_is_kept() {
        let pod = host_pod("h1", "v1");
        let present = [inside("v1", None)];
        assert_eq!(deleted((&pod, &[]), (&pod, &present)), Vec::<String>::new());
        assert_eq!(deleted((&pod, &present), (&pod, &[])), Vec::<String>::new());
        let pods = [serde_json::from_value(pod).unwrap()];
        let (now, soon) = (Instant::now(), Duration::from_secs(4));
        let (_, seen) = decide("team-a", &pods, &[], &BTreeMap::new(), now);
        let (early, seen) = decide("team-a", &pods, &[], &seen, now + soon);
        assert_eq!((early, seen["h1"]), (vec![], now), "the time is that of the first reconcile");
    }

    #[test]
    fn pod_inside_without_a_host_pod_is_no_matter() {
        let (orphans, seen) = decide("team-a", &[], &[inside("v1", Some(0))], &BTreeMap::new(), Instant::now());
        assert!(orphans.is_empty() && seen.is_empty(), "the syncer has not made it yet");
    }

    #[test]
    fn pod_with_forged_annotations_or_of_another_origin_is_kept() {
        let with = |at: &str, value: Value| {
            let mut pod = host_pod("h1", "v1");
            *pod.pointer_mut(at).unwrap() = value;
            pod
        };
        for pod in [
            with("/metadata/annotations/vcluster.loft.sh~1object-name", json!("other")),
            with("/metadata/annotations/vcluster.loft.sh~1object-namespace", json!("other")),
            with("/metadata/annotations", json!(null)),
            with("/metadata/labels/vcluster.loft.sh~1managed-by", json!("team-b")),
            with("/metadata/labels", json!(null)),
            with("/metadata/name", json!("control-plane-0")),
        ] {
            assert_eq!(deleted((&pod, &[]), (&pod, &[])), Vec::<String>::new(), "{pod}");
        }
    }

    #[test]
    fn pod_that_ends_already_is_kept() {
        let mut pod = host_pod("h1", "v1");
        pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        assert_eq!(deleted((&pod, &[]), (&pod, &[])), Vec::<String>::new());
    }

    /// Lists the pods of an API server with these tokens of its pages; returns their UIDs, and the queries.
    async fn listed(tokens: &'static [&'static str]) -> (Result<Vec<String>, PodsError>, Vec<String>) {
        let pages = AtomicUsize::default();
        let server = MockServer::new(move |request: &Request| {
            assert_eq!(request.headers[ACCEPT], METADATA);
            let page = pages.fetch_add(1, Ordering::Relaxed);
            let token = tokens.get(page).copied().unwrap_or_default();
            let items = json!([{"metadata": {"uid": format!("v{page}"), "name": "x", "managedFields": [{}]}}]);
            json!({"metadata": {"continue": token}, "items": items})
        });
        let found = pods(&server.client()).await;
        let found = found.map(|all| all.into_iter().map(|pod| pod.metadata.uid).collect());
        (found, server.take().into_iter().map(|request| request.query).collect())
    }

    #[tokio::test]
    async fn all_pages_are_read() {
        let (found, queries) = listed(&["eyJ2-_=."]).await;
        assert_eq!(found.unwrap(), ["v0", "v1"]);
        assert_eq!(queries, ["limit=50&continue=", "limit=50&continue=eyJ2-_=."]);
    }

    #[tokio::test]
    async fn list_without_an_end_or_with_a_forged_token_is_refused() {
        let (found, queries) = listed(&["a&fieldSelector=x"]).await;
        assert!(found.unwrap_err().to_string().contains("token") && queries.len() == 1);
        let (found, queries) = listed(&["a"; MOST_PAGES]).await;
        assert!(found.unwrap_err().to_string().contains("more than 10000") && queries.len() == MOST_PAGES);
    }
}
