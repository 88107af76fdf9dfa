//! The `PriorityClasses` that pods inside may name, with the values of this cluster, and the policy that carries the name to this cluster.
//!
//! The open-source syncer drops `priorityClassName` and `priority` of a pod unless it syncs `PriorityClasses`
//! (`allPriorityClassesSyncingDisabled` in `pkg/controllers/resources/pods/translate/translator.go` of vCluster 0.36.1), for which it would need
//! rights on all of them. It copies annotations. So a policy inside writes the name into [`ANNOTATION`], and the policy
//! `gputenancy-virtual-clusters-priority` of this cluster reads it there, if the tenant's grant lists the class. What the team changes
//! inside can only name another granted class.

use std::time::{Duration, Instant};

use gputenancy_cluster::{
    desired::includes,
    write::{self, FieldManager},
};
use gputenancy_crds::names as labels;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    connect::{CallError, bounded, get},
    objects::{Conflict, MOST_CLASSES, SlimMetadata, apply, delete, read},
};
use crate::{
    host_api::{Priorities, Priority},
    names::{MANAGED_BY, MANAGER},
};

/// Annotation of pods: the `PriorityClass` that a pod inside names.
pub const ANNOTATION: &str = "gputenancy.io/priority-class";
/// Name of the policy inside and of its binding.
const POLICY: &str = "gputenancy-priority-classes";
/// Path of policies and bindings.
const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";
/// Time until the policy is tried again on an API server that did not serve it.
const RETRY: Duration = Duration::from_hours(1);

/// What is read of a `PriorityClass`.
#[derive(Deserialize, Debug)]
#[serde(rename_all = "camelCase")]
struct SlimClass {
    metadata: SlimMetadata,
    #[serde(default)]
    value: i32,
    #[serde(default)]
    preemption_policy: Option<String>,
    #[serde(default)]
    global_default: bool,
}

#[derive(Deserialize)]
struct SlimClasses {
    items: Vec<SlimClass>,
}

/// What is read of a policy or a binding.
#[derive(Deserialize, Default)]
struct SlimPolicy {
    #[serde(default)]
    metadata: SlimMetadata,
    #[serde(default)]
    spec: Value,
}

/// An API server inside that does not serve the policy: it is of a Kubernetes before 1.36.
#[derive(Clone, Debug)]
pub struct PolicyUnserved {
    version: Option<String>,
    at: Instant,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SlimVersion {
    git_version: String,
}

/// The classes for a tenant: of the names that it may use, those that this cluster has. The cluster's own exist inside anyway. Pure.
pub fn granted<'a>(names: impl IntoIterator<Item = &'a String>, host: &Priorities) -> Priorities {
    let usable = names.into_iter().filter(|name| !name.starts_with("system-"));
    usable.filter_map(|name| Some((name.clone(), host.get(name)?.clone()))).collect()
}

/// Classes to apply, and those of this program to delete.
fn changes<'a>(wanted: &'a Priorities, live: &'a [SlimClass]) -> (Vec<(&'a str, &'a Priority)>, Vec<&'a str>) {
    let is_right = |name: &str, Priority { value, preemption }: &Priority| {
        live.iter().any(|l| {
            let same = l.preemption_policy.as_deref().unwrap_or("PreemptLowerPriority") == preemption;
            l.metadata.name == name && l.value == *value && same && !l.global_default
        })
    };
    let applied =
        wanted.iter().filter(|(name, class)| !is_right(name, class)).map(|(name, class)| (name.as_str(), class));
    let stale = live.iter().map(|l| l.metadata.name.as_str()).filter(|name| !wanted.contains_key(*name));
    (applied.collect(), stale.collect())
}

/// Makes the classes inside and the policy as they should be. Without classes there is no policy. `unserved`: what is remembered of the API server.
pub async fn show(
    client: &Client,
    wanted: &Priorities,
    conflict: Conflict,
    unserved: &mut Option<PolicyUnserved>,
) -> Result<(), CallError> {
    let what = "PriorityClasses of the virtual cluster";
    let selector = format!("{}%3D{MANAGED_BY}", labels::MANAGED_BY_LABEL);
    let path = format!("/apis/scheduling.k8s.io/v1/priorityclasses?labelSelector={selector}&limit={MOST_CLASSES}");
    let mut live = get::<SlimClasses>(client, what, &path, None).await?.items;
    live.truncate(MOST_CLASSES);
    let (applied, stale) = changes(wanted, &live);
    let api = Api::<PriorityClass>::all(client.clone());
    for (name, class) in applied {
        let what = format!("PriorityClass {name} of the virtual cluster");
        let path = format!("/apis/scheduling.k8s.io/v1/priorityclasses/{name}");
        if conflict == Conflict::Keep
            && read(client, &what, &path).await?.is_some_and(|live: SlimClass| !live.metadata.is_ours())
        {
            continue;
        }
        apply(&api, &what, name, &object(name, class)).await?;
    }
    for class in &stale {
        bounded(what, delete(&api, class)).await?;
    }
    // of a tenant that never had a class nothing is read
    if !wanted.is_empty() || !live.is_empty() {
        carry_if_served(client, !wanted.is_empty(), unserved).await?;
    }
    Ok(())
}

/// Deletes classes and policy, as far as they are this program's.
pub async fn remove(client: &Client) -> Result<(), CallError> {
    show(client, &Priorities::new(), Conflict::Keep, &mut None).await?;
    carry(client, false).await.map(drop)
}

fn object(name: &str, Priority { value, preemption }: &Priority) -> Value {
    json!({
        "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": value, "preemptionPolicy": preemption, "globalDefault": false,
        "metadata": {"name": name, "labels": {labels::MANAGED_BY_LABEL: MANAGED_BY}},
    })
}

/// Writes policy and binding unless the API server is known not to serve them.
async fn carry_if_served(
    client: &Client,
    wanted: bool,
    unserved: &mut Option<PolicyUnserved>,
) -> Result<(), CallError> {
    if let Some(known) = unserved.as_ref().filter(|known| wanted && known.at.elapsed() < RETRY)
        && known.version == version(client).await?
    {
        return Ok(());
    }
    *unserved = if carry(client, wanted).await? {
        None
    } else {
        Some(PolicyUnserved { version: version(client).await?, at: Instant::now() })
    };
    Ok(())
}

/// Version of the API server inside.
async fn version(client: &Client) -> Result<Option<String>, CallError> {
    let found: Option<SlimVersion> = read(client, "version of the virtual cluster", "/version").await?;
    Ok(found.map(|found| found.git_version))
}

/// Writes policy and binding, or deletes them; false: the API server inside does not serve them.
async fn carry(client: &Client, wanted: bool) -> Result<bool, CallError> {
    for (kind, plural, spec) in policy() {
        let (what, path) =
            (format!("{kind} {POLICY} of the virtual cluster"), format!("{ADMISSION}/{plural}/{POLICY}"));
        let present = read::<SlimPolicy>(client, &what, &path).await?;
        let resource = ApiResource {
            group: "admissionregistration.k8s.io".into(),
            version: "v1".into(),
            api_version: "admissionregistration.k8s.io/v1".into(),
            kind: kind.into(),
            plural: plural.into(),
        };
        let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
        match present {
            Some(live) if !wanted && live.metadata.is_ours() => bounded(&what, delete(&api, POLICY)).await?,
            Some(live) if includes(&live.spec, &spec) => {}
            _ if wanted => {
                let object = json!({
                    "apiVersion": resource.api_version, "kind": kind, "spec": spec,
                    "metadata": {"name": POLICY, "labels": {labels::MANAGED_BY_LABEL: MANAGED_BY}},
                });
                let manager = FieldManager::new(MANAGER);
                let applied = async { write::present(manager.apply(&api, POLICY, &object).await) };
                if bounded(&what, applied).await?.is_none() {
                    return Ok(false);
                }
            }
            _ => {}
        }
    }
    Ok(true)
}

/// Kind, resource and spec of the policy and of its binding.
fn policy() -> [(&'static str, &'static str, Value); 2] {
    let key = ANNOTATION.replace('/', "~1");
    let named = format!(
        "object.spec.?priorityClassName.orValue('') != '' \
         && object.metadata.?annotations[?'{ANNOTATION}'].orValue('') != object.spec.priorityClassName"
    );
    let copied = format!(
        "[has(object.metadata.annotations) \
         ? JSONPatch{{op: 'add', path: '/metadata/annotations/{key}', value: object.spec.priorityClassName}} \
         : JSONPatch{{op: 'add', path: '/metadata/annotations', value: {{'{ANNOTATION}': object.spec.priorityClassName}}}}]"
    );
    let spec = json!({
        // a pod without its class is better than no pod
        "failurePolicy": "Ignore", "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": [
            {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]},
        ]},
        "matchConditions": [{"name": "names-a-class", "expression": named}],
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": copied}}],
    });
    [
        ("MutatingAdmissionPolicy", "mutatingadmissionpolicies", spec),
        ("MutatingAdmissionPolicyBinding", "mutatingadmissionpolicybindings", json!({"policyName": POLICY})),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use gputenancy_cluster::testing::{Answer, MockServer, Request};

    use super::*;

    fn priorities(of: &[(&str, i32)]) -> Priorities {
        let class = |(name, value): &(&str, i32)| {
            ((*name).to_owned(), Priority { value: *value, preemption: "PreemptLowerPriority".into() })
        };
        of.iter().map(class).collect()
    }

    #[test]
    fn granted_classes_are_those_of_this_cluster() {
        let host = priorities(&[("high", 1000), ("foreign", 2000), ("system-node-critical", 2_000_001_000)]);
        let names = ["high", "absent", "system-node-critical"].map(str::to_owned);
        assert_eq!(granted(&names, &host), priorities(&[("high", 1000)]));
    }

    /// A server inside with these objects by path. Returns its writes as method and last part of the path.
    async fn writes(
        objects: BTreeMap<String, Value>,
        served: bool,
        wanted: &Priorities,
        conflict: Conflict,
    ) -> Vec<String> {
        remembered_writes(objects, served, wanted, (conflict, &mut None)).await
    }

    /// The same, with what is remembered of the server.
    async fn remembered_writes(
        objects: BTreeMap<String, Value>,
        served: bool,
        wanted: &Priorities,
        (conflict, unserved): (Conflict, &mut Option<PolicyUnserved>),
    ) -> Vec<String> {
        let inside = MockServer::new(move |request: &Request| {
            let path = &request.path;
            let listed = || {
                objects.iter().filter(|(at, object)| {
                    at.starts_with("/apis/scheduling.k8s.io")
                        && object["metadata"]["labels"][labels::MANAGED_BY_LABEL] == MANAGED_BY
                })
            };
            match (request.is_write(), objects.get(path)) {
                (false, _) if path.ends_with("/priorityclasses") => Answer::list(listed().map(|(_, o)| o.clone())),
                (false, Some(object)) => object.clone().into(),
                (false, None) => Answer::not_found(),
                _ if !served && path.contains("admissionregistration") => Answer::not_found(),
                _ => Answer::success(),
            }
        });
        show(&inside.client(), wanted, conflict, unserved).await.unwrap();
        let written = inside.take().into_iter().filter(Request::is_write);
        written.map(|request| format!("{} {}", request.method, last_two(&request.path))).collect()
    }

    /// The plural name of a type, and the name of its object.
    fn last_two(path: &str) -> &str {
        let at = path.rmatch_indices('/').nth(1).unwrap().0;
        &path[at + 1..]
    }

    fn class(name: &str, value: i32, by: &str) -> (String, Value) {
        let metadata = json!({"name": name, "labels": {labels::MANAGED_BY_LABEL: by}});
        (format!("/apis/scheduling.k8s.io/v1/priorityclasses/{name}"), json!({"metadata": metadata, "value": value}))
    }

    fn policies() -> impl Iterator<Item = (String, Value)> {
        let served = |(_, plural, spec): (_, &str, Value)| {
            (
                format!("{ADMISSION}/{plural}/{POLICY}"),
                json!({"metadata": {"name": POLICY, "labels": {labels::MANAGED_BY_LABEL: MANAGED_BY}}, "spec": spec}),
            )
        };
        policy().into_iter().map(served)
    }

    #[tokio::test]
    async fn nothing_is_written_at_rest() {
        let wanted = priorities(&[("high", 1000)]);
        let objects = [class("high", 1000, MANAGED_BY), class("own", 7, "team")].into_iter().chain(policies());
        assert!(writes(objects.collect(), true, &wanted, Conflict::Replace).await.is_empty());
        assert!(writes(BTreeMap::new(), true, &Priorities::new(), Conflict::Replace).await.is_empty());
    }

    #[tokio::test]
    async fn changed_classes_are_written_and_those_no_longer_granted_removed() {
        let objects = [class("high", 1, MANAGED_BY), class("gone", 5, MANAGED_BY), class("own", 7, "team")];
        let wanted = priorities(&[("high", 1000), ("low", -1)]);
        let changed = writes(objects.clone().into(), true, &wanted, Conflict::Replace).await;
        let classes = |verb: &str, name: &str| format!("{verb} priorityclasses/{name}");
        let policies = [
            format!("PATCH mutatingadmissionpolicies/{POLICY}"),
            format!("PATCH mutatingadmissionpolicybindings/{POLICY}"),
        ];
        let expected = [classes("PATCH", "high"), classes("PATCH", "low"), classes("DELETE", "gone")];
        assert_eq!(changed, [&expected[..], &policies].concat());
        // a tenant without classes has none, and the team keeps its own
        let all = objects.into_iter().chain(self::policies()).collect();
        let none = writes(all, true, &Priorities::new(), Conflict::Replace).await;
        assert_eq!(none.len(), 4, "{none:?}");
        assert!(none.iter().all(|write| write.starts_with("DELETE") && !write.ends_with("/own")), "{none:?}");
    }

    #[tokio::test]
    async fn class_of_another_author_is_kept_in_an_adopted_vcluster() {
        let wanted = priorities(&[("high", 1000)]);
        let objects = || [class("high", 5, "team")].into_iter().chain(policies()).collect();
        assert!(writes(objects(), true, &wanted, Conflict::Keep).await.is_empty());
        assert_eq!(writes(objects(), true, &wanted, Conflict::Replace).await, ["PATCH priorityclasses/high"]);
    }

    #[tokio::test]
    async fn policy_is_not_tried_again_on_the_same_version_within_the_hour() {
        let wanted = priorities(&[("high", 1000)]);
        let version = |version: &str| ("/version".to_owned(), json!({"gitVersion": version}));
        let mut unserved = None;
        let mut pass = async |of: &str, served: bool, age: Duration| {
            if let Some(PolicyUnserved { at, .. }) = unserved.as_mut() {
                *at = at.checked_sub(age).unwrap();
            }
            let objects = [class("high", 1000, MANAGED_BY), version(of)].into();
            let written = remembered_writes(objects, served, &wanted, (Conflict::Replace, &mut unserved)).await.len();
            (written, unserved.is_some())
        };
        assert_eq!(pass("v1.35.0", false, Duration::ZERO).await, (1, true), "the policy is tried once");
        assert_eq!(pass("v1.35.0", false, Duration::ZERO).await, (0, true));
        assert_eq!(pass("v1.35.1", false, Duration::ZERO).await, (1, true), "another version is tried");
        assert_eq!(pass("v1.35.1", false, RETRY).await, (1, true), "an hour has passed");
        assert_eq!(pass("v1.36.0", true, Duration::ZERO).await, (2, false));
    }

    #[tokio::test]
    async fn server_without_mutating_policies_has_the_classes_all_the_same() {
        let written = writes(BTreeMap::new(), false, &priorities(&[("high", 1000)]), Conflict::Replace).await;
        assert_eq!(written[0], "PATCH priorityclasses/high");
    }
}
