//! Waiting workloads with the reason: controllers whose pods are refused, pending pods, and pods inside a virtual cluster that the quota
//! refuses, which have no pod in the namespace.

use std::collections::BTreeMap;

use gputenancy_crds::{
    RefusedPods, VirtualClusterStatus, projection::SlimEvent, quota::resource_key, quota_refusal::QuotaRefusal,
};
use k8s_openapi::{
    api::core::v1::{Pod, PodCondition},
    jiff::Timestamp,
};
use kube::ResourceExt as _;

use super::{NamespaceObjects, Sources, Waiting};
use crate::{inside::Inside, units::seconds};

/// Reason of a refusal by the tenant's quota.
pub(crate) const QUOTA_EXCEEDED: &str = "QuotaExceeded";

/// Everything that waits, the longest first; `resources` are pairs of profile and resource.
pub(super) fn waiting(sources: &Sources, resources: &[(String, String)]) -> Vec<Waiting> {
    let of = |place: &NamespaceObjects| {
        let refused = refused(place, resources, sources.now);
        let pending = place.pods.iter().filter_map(|pod| pending(sources, place, pod, resources));
        refused.into_iter().chain(pending).collect::<Vec<_>>()
    };
    let mut all: Vec<Waiting> = sources.namespaces.iter().flat_map(of).chain(inside(sources)).collect();
    all.sort_by(|a, b| (b.seconds, &a.namespace, &a.object).cmp(&(a.seconds, &b.namespace, &b.object)));
    all
}

/// The virtual cluster's status; `None` without one.
fn virtual_cluster(sources: &Sources) -> Option<&VirtualClusterStatus> {
    let tenant = sources.tenant.as_ref().filter(|tenant| tenant.spec.virtual_cluster.is_some())?;
    tenant.status.as_ref()?.virtual_cluster.as_ref()
}

/// Pods inside that the quota refuses, as far as the status names them.
fn inside(sources: &Sources) -> impl Iterator<Item = Waiting> + '_ {
    let status = virtual_cluster(sources);
    let namespace = status.and_then(|s| s.namespace.clone()).unwrap_or_default();
    let pods = status.into_iter().flat_map(|s| &s.refused);
    pods.flat_map(|of| of.pods.iter().map(move |pod| (&of.profile, pod))).map(move |(profile, pod)| {
        let since = pod.since.as_ref().map(|t| t.0);
        Waiting {
            namespace: namespace.clone(),
            object: format!("Pod/{}", pod.name),
            reason: QUOTA_EXCEEDED.to_owned(),
            message: pod.message.clone(),
            at: since.map(|t| t.to_string()),
            seconds: since.map(|t| seconds(sources.now.duration_since(t))),
            profiles: vec![profile.clone()],
            inside: Some(Inside::Pod { namespace: pod.namespace.clone(), name: pod.name.clone() }),
        }
    })
}

/// Pods inside that the status counts and does not name.
pub(super) fn unnamed(sources: &Sources) -> Option<i32> {
    let rest = |of: &RefusedPods| of.count.saturating_sub(i32::try_from(of.pods.len()).unwrap_or(i32::MAX)).max(0);
    let all = virtual_cluster(sources).into_iter().flat_map(|s| &s.refused).map(rest);
    Some(all.fold(0_i32, i32::saturating_add)).filter(|count| *count > 0)
}

/// Names of the profiles with a requested resource.
fn profiles_of(resources: &[(String, String)], requested: impl Fn(&str) -> bool) -> Vec<String> {
    resources.iter().filter(|(_, resource)| requested(resource)).map(|(profile, _)| profile.clone()).collect()
}

/// The latest refusal of each controller with fewer pods than desired. A controller that may not be read counts as short.
fn refused(place: &NamespaceObjects, resources: &[(String, String)], now: Timestamp) -> Vec<Waiting> {
    let mut last: BTreeMap<&str, &SlimEvent> = BTreeMap::new();
    for event in &place.events {
        let known = last.entry(event.regarding.uid.as_str()).or_insert(event);
        if known.at() < event.at() {
            *known = event;
        }
    }
    let short = |event: &&SlimEvent| place.controllers.get(&event.regarding.uid).is_none_or(|short| *short);
    let or_unknown = |text: &'_ str| if text.is_empty() { "?" } else { text }.to_owned();
    let one = |event: &SlimEvent| {
        let (at, message) = (event.at(), &event.note);
        let quota = QuotaRefusal::parse(message);
        let requested = |resource: &str| quota.is_some_and(|q| q.requested.of(&resource_key(resource)).is_some());
        let profiles = profiles_of(resources, requested);
        let (kind, name) = (or_unknown(&event.regarding.kind), or_unknown(&event.regarding.name));
        let reason_of = |text: &str| text.rsplit_once("rror creating: ").map_or(text, |(_, rest)| rest).to_owned();
        Waiting {
            namespace: place.name.clone(),
            object: line(format!("{kind}/{name}")),
            reason: if quota.is_some() { QUOTA_EXCEEDED } else { "Refused" }.to_owned(),
            message: quota.map_or_else(|| reason_of(message), |quota| quota.words.to_owned()),
            at: at.map(|t| t.to_string()),
            seconds: at.map(|t| seconds(now.duration_since(t))),
            profiles,
            inside: None,
        }
    };
    last.into_values().filter(short).map(one).collect()
}

/// A name from an event, which anybody with the right to write events chooses, in one line.
fn line(name: String) -> String {
    if name.contains(char::is_control) { name.replace(char::is_control, "\u{fffd}") } else { name }
}

/// A pending pod and the reason.
fn pending(sources: &Sources, place: &NamespaceObjects, pod: &Pod, resources: &[(String, String)]) -> Option<Waiting> {
    let status = pod.status.as_ref().filter(|s| s.phase.as_deref() == Some("Pending"))?;
    if pod.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let unscheduled = |c: &&PodCondition| c.type_ == "PodScheduled" && c.status == "False";
    let held = status.conditions.iter().flatten().find(unscheduled).map(|c| {
        (c.reason.clone().unwrap_or_else(|| "Unschedulable".to_owned()), c.message.clone().unwrap_or_default())
    });
    let starting = || {
        let containers =
            status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
        let waiting = containers.filter_map(|c| c.state.as_ref()?.waiting.as_ref());
        // the first with another reason than its creation
        let found = waiting.filter_map(|w| Some((w.reason.clone()?, w.message.clone().unwrap_or_default())));
        found.max_by_key(|(reason, _)| !matches!(reason.as_str(), "ContainerCreating" | "PodInitializing"))
    };
    let fallback = || ("Scheduling".to_owned(), "the scheduler has not processed the pod yet".to_owned());
    let (reason, message) = held.or_else(starting).unwrap_or_else(fallback);
    let since = pod.metadata.creation_timestamp.as_ref().map(|t| t.0);
    Some(Waiting {
        namespace: place.name.clone(),
        object: format!("Pod/{}", pod.name_any()),
        reason,
        message,
        at: since.map(|t| t.to_string()),
        seconds: since.map(|t| seconds(sources.now.duration_since(t))),
        profiles: requested(pod, resources),
        inside: sources.tenant.as_ref().and_then(|tenant| Inside::of(tenant, &pod.metadata)),
    })
}

/// Names of the profiles that a pod requests.
pub(super) fn requested(pod: &Pod, resources: &[(String, String)]) -> Vec<String> {
    let containers = pod.spec.iter().flat_map(|s| s.containers.iter().chain(s.init_containers.iter().flatten()));
    let requested: Vec<&String> = containers
        .filter_map(|c| c.resources.as_ref())
        .flat_map(|r| r.limits.iter().chain(&r.requests).flat_map(|amounts| amounts.keys()))
        .collect();
    profiles_of(resources, |resource| requested.iter().any(|a| *a == resource))
}
