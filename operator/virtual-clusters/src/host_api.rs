//! What is read of this cluster for all virtual clusters together: version and APIs of its API server, and its `PriorityClasses`. Each is kept
//! for a minute, and longer while the API server does not answer.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use gputenancy_cluster::error::sentence;
use http::header::ACCEPT;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::{Api, Client, ResourceExt as _, api::ListParams};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::Mutex,
    time::{error::Elapsed, timeout_at},
};

use crate::hex::hex;

/// How long an answer is used.
const KEPT: Duration = Duration::from_mins(1);
/// Limit of a read, and of the wait for one that another caller makes.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Discovery of all groups in one answer.
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
/// API groups outside of Kubernetes that vCluster's chart has switches for. Others are left out: an installed CRD would render all
/// virtual clusters again.
const GROUPS: [&str; 6] = [
    "cert-manager.io",
    "external-secrets.io",
    "gateway.networking.k8s.io",
    "kubevirt.io",
    "monitoring.coreos.com",
    "networking.istio.io",
];

/// The API server of this cluster, as charts ask for it (`.Capabilities`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Served {
    /// Version, such as `v1.36.3`.
    pub version: String,
    /// Sorted: `group/version` and `group/version/Kind`; without the group in the core group.
    pub api_versions: Vec<String>,
}

impl Served {
    /// Differs for other APIs.
    pub fn fingerprint(&self) -> String {
        hex(Sha256::digest(self.api_versions.join(",")).get(..8).unwrap_or_default())
    }
}

/// What a `PriorityClass` of this cluster means to a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Priority {
    /// Its value.
    pub value: i32,
    /// `Never` or `PreemptLowerPriority`.
    pub preemption: String,
}

/// `PriorityClasses` by name.
pub type Priorities = BTreeMap<String, Priority>;

/// A value and when it was read.
type Kept<T> = Mutex<Option<(Instant, Arc<T>)>>;

/// This cluster.
pub struct HostApi {
    client: Client,
    served: Kept<Served>,
    priorities: Kept<Priorities>,
}

impl HostApi {
    /// Reads nothing yet.
    pub fn new(client: Client) -> Self {
        Self { client, served: Mutex::default(), priorities: Mutex::default() }
    }

    /// Version and APIs.
    pub async fn served(&self) -> kube::Result<Arc<Served>> {
        kept(&self.served, async {
            let version = self.client.apiserver_version().await?.git_version;
            let (core, groups) = (self.discover("/api").await?, self.discover("/apis").await?);
            Ok(Served { version, api_versions: names(core.into_iter().chain(groups)) })
        })
        .await
    }

    /// The `PriorityClasses`.
    pub async fn priorities(&self) -> kube::Result<Arc<Priorities>> {
        kept(&self.priorities, async {
            let classes = Api::<PriorityClass>::all(self.client.clone()).list(&ListParams::default()).await?;
            let preemption = default_preemption(&classes.items);
            Ok(classes.iter().map(|class| priority(class, &preemption)).collect())
        })
        .await
    }

    async fn discover(&self, path: &str) -> kube::Result<Vec<Group>> {
        let request = http::Request::get(path).header(ACCEPT, AGGREGATED).body(Vec::new());
        let request =
            request.map_err(|error| kube::Error::BuildRequest(kube::core::request::Error::BuildRequest(error)))?;
        Ok(self.client.request::<Groups>(request).await?.items)
    }
}

/// The preemption policy of a pod that names no class.
fn default_preemption(classes: &[PriorityClass]) -> String {
    let default = classes.iter().find(|class| class.global_default == Some(true));
    default.and_then(|class| class.preemption_policy.clone()).unwrap_or_else(|| "PreemptLowerPriority".into())
}

/// The class as it is inside. Its preemption policy is that of a pod without a class: the syncer copies the policy from the pod inside and drops the
/// class, and the API server refuses a pod whose policy is not that of its class, before a policy can give it its class.
fn priority(class: &PriorityClass, preemption: &str) -> (String, Priority) {
    (class.name_any(), Priority { value: class.value.unwrap_or_default(), preemption: preemption.to_owned() })
}

/// The value, read again when it is old. Callers that come together wait for one request. A value that cannot be read again is used as if it had
/// just been read: without it no virtual cluster could be rendered.
async fn kept<T>(slot: &Kept<T>, read: impl Future<Output = kube::Result<T>>) -> kube::Result<Arc<T>> {
    let deadline = tokio::time::Instant::now() + TIMEOUT;
    let mut slot = timeout_at(deadline, slot.lock()).await.map_err(late)?;
    if let Some((_, value)) = slot.as_ref().filter(|(at, _)| at.elapsed() < KEPT) {
        return Ok(value.clone());
    }
    let value = match (timeout_at(deadline, read).await.map_err(late).flatten(), slot.as_ref()) {
        (Ok(value), _) => Arc::new(value),
        (Err(error), Some((_, old))) => {
            tracing::warn!(
                error = sentence(&error),
                "API server of this cluster not read again; the last answer stays in use"
            );
            old.clone()
        }
        (Err(error), None) => return Err(error),
    };
    *slot = Some((Instant::now(), value.clone()));
    Ok(value)
}

fn late(_: Elapsed) -> kube::Error {
    kube::Error::Service(format!("no answer within {} seconds", TIMEOUT.as_secs()).into())
}

#[derive(Deserialize)]
struct Groups {
    #[serde(default)]
    items: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    #[serde(default)]
    metadata: Name,
    #[serde(default)]
    versions: Vec<Version>,
}

#[derive(Deserialize, Default)]
struct Name {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct Version {
    version: String,
    #[serde(default)]
    resources: Vec<Resource>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Resource {
    response_kind: Option<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    kind: String,
}

/// A chart may ask for this group. Metrics APIs are left out: they come and go with their server.
fn is_asked_for(group: &str) -> bool {
    GROUPS.contains(&group)
        || !group.contains('.')
        || (group.ends_with(".k8s.io") && !group.ends_with("metrics.k8s.io") && !group.contains(".x-"))
}

fn names(groups: impl Iterator<Item = Group>) -> Vec<String> {
    let mut names = BTreeSet::new();
    for Group { metadata: Name { name: group }, versions } in groups.filter(|group| is_asked_for(&group.metadata.name))
    {
        for Version { version, resources } in versions {
            let served = if group.is_empty() { version } else { format!("{group}/{version}") };
            let kinds = resources.into_iter().filter_map(|resource| resource.response_kind);
            names.extend(kinds.map(|Kind { kind }| format!("{served}/{kind}")));
            names.insert(served);
        }
    }
    names.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use gputenancy_cluster::testing::{MockServer, Request};
    use serde_json::{Value, json};

    use super::*;

    fn group(name: &str, version: &str, kinds: &[&str]) -> Value {
        let resources: Vec<_> =
            kinds.iter().map(|kind| json!({"resource": "x", "responseKind": {"kind": kind}})).collect();
        json!({"metadata": {"name": name}, "versions": [{"version": version, "resources": resources}]})
    }

    /// An API server that serves some APIs, and has two classes.
    fn answer(request: &Request) -> Value {
        match &*request.path {
            "/version" => json!({"major": "1", "minor": "36", "gitVersion": "v1.36.3", "gitCommit": "",
                "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "", "platform": ""}),
            "/api" => json!({"items": [{"metadata": {}, "versions": [{"version": "v1", "resources": [
                {"resource": "pods", "responseKind": {"kind": "Pod"}}, {"resource": "x"},
            ]}]}]}),
            "/apis" => {
                assert_eq!(request.headers[ACCEPT], AGGREGATED);
                json!({"items": [
                    group("networking.k8s.io", "v1", &["NetworkPolicy", "Ingress"]), group("apps", "v1", &["Deployment"]),
                    group("monitoring.coreos.com", "v1", &["ServiceMonitor"]), group("example.com", "v1", &["Mine"]),
                    group("custom.metrics.k8s.io", "v1", &["MetricValueList"]),
                ]})
            }
            _ => json!({"metadata": {}, "items": [
                {"metadata": {"name": "high"}, "value": 1000, "preemptionPolicy": "Never"}, {"metadata": {"name": "low"}, "value": -1},
            ]}),
        }
    }

    #[tokio::test]
    async fn served_apis_are_sorted_and_those_that_charts_ask_for() {
        let host = MockServer::new(answer);
        let cluster = HostApi::new(host.client());
        let served = cluster.served().await.unwrap();
        assert_eq!(served.version, "v1.36.3");
        let expected = [
            "apps/v1",
            "apps/v1/Deployment",
            "monitoring.coreos.com/v1",
            "monitoring.coreos.com/v1/ServiceMonitor",
            "networking.k8s.io/v1",
            "networking.k8s.io/v1/Ingress",
            "networking.k8s.io/v1/NetworkPolicy",
            "v1",
            "v1/Pod",
        ];
        assert_eq!(served.api_versions, expected);
        assert_eq!(*cluster.served().await.unwrap(), *served);
        assert_eq!(host.take().len(), 3, "the second answer is the first one");
    }

    fn refused() -> kube::Result<i32> {
        Err(kube::Error::Service("refused".into()))
    }

    #[tokio::test]
    async fn failed_read_keeps_the_last_answer_until_the_next_interval() {
        let slot = Kept::<i32>::default();
        assert!(kept(&slot, async { refused() }).await.is_err(), "there is no last answer");
        assert_eq!(*kept(&slot, async { Ok(1) }).await.unwrap(), 1);
        let expire = async || {
            let mut slot = slot.lock().await;
            let (at, _) = slot.as_mut().unwrap();
            *at = at.checked_sub(KEPT).unwrap();
        };
        expire().await;
        assert_eq!(*kept(&slot, async { refused() }).await.unwrap(), 1);
        assert_eq!(*kept(&slot, async { Ok(2) }).await.unwrap(), 1, "not read again at once");
        expire().await;
        assert_eq!(*kept(&slot, async { Ok(2) }).await.unwrap(), 2);
    }

    #[tokio::test]
    async fn read_without_an_answer_ends_and_holds_up_no_other_caller_longer() {
        let slot = Kept::<i32>::default();
        let begin = Instant::now();
        let both = tokio::join!(kept(&slot, std::future::pending()), kept(&slot, std::future::pending()));
        assert!(both.0.is_err() && both.1.is_err());
        assert!(begin.elapsed() < TIMEOUT * 3 / 2, "{:?}", begin.elapsed());
    }

    #[tokio::test]
    async fn priority_classes_have_their_value_and_the_preemption_of_pods_without_a_class() {
        let classes = HostApi::new(MockServer::new(answer).client()).priorities().await.unwrap();
        let of = |name: &str| (classes[name].value, classes[name].preemption.as_str());
        assert_eq!((of("high"), of("low")), ((1000, "PreemptLowerPriority"), (-1, "PreemptLowerPriority")));
        let never = PriorityClass {
            global_default: Some(true),
            preemption_policy: Some("Never".into()),
            ..PriorityClass::default()
        };
        assert_eq!(default_preemption(&[PriorityClass::default(), never]), "Never");
    }
}
