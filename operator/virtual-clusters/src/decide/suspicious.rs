//! Host pods with the label of the syncer whose name does not follow from their annotations. They are charged to the tenant like any other;
//! [`note`] reports each once. Pure.

use std::collections::BTreeSet;

use gputenancy_crds::virtual_pod::{HostPod, Origin, attribute};
use k8s_openapi::api::core::v1::Pod;

/// What an event about the suspicious pods says that no event has named; `None`: there are none. `named`: UIDs of those that an event has named;
/// it keeps only those that still exist.
pub fn note(tenant: &str, synced: &[Pod], named: &mut BTreeSet<String>) -> Option<String> {
    let suspicious =
        synced.iter().filter_map(|pod| match attribute(tenant, Some(tenant), HostPod::from(&pod.metadata)).origin {
            Origin::Suspicious { reason } => Some((pod, reason)),
            _ => None,
        });
    let found: Vec<_> = suspicious.collect();
    let uid = |pod: &Pod| pod.metadata.uid.clone().unwrap_or_default();
    let mut new = found.iter().filter(|(pod, _)| !named.contains(&uid(pod)));
    let note = new.next().map(|(pod, reason)| {
        let more = match new.count() {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        let [name, namespace] = [&pod.metadata.name, &pod.metadata.namespace].map(|text| text.as_deref().unwrap_or_default());
        format!(
            "pod {name}{more} in namespace {namespace} has the label of the syncer and was not made by it ({reason}); it is charged to the tenant"
        )
    });
    *named = found.iter().map(|(pod, _)| uid(pod)).collect();
    note
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(uid: &str, annotated: &str) -> Pod {
        let key = |key: &str| format!("vcluster.loft.sh/{key}");
        let name = "train-x-ml-x-team-a";
        serde_json::from_value(json!({"metadata": {
            "namespace": "ns-a", "name": name, "uid": uid, "labels": {key("managed-by"): "team-a", key("namespace"): "ml"},
            "annotations": {
                key("object-name"): annotated, key("object-namespace"): "ml", key("object-uid"): "v-1", key("object-kind"): "/v1, Kind=Pod",
                key("object-host-name"): name, key("object-host-namespace"): "ns-a",
            },
        }}))
        .unwrap()
    }

    #[test]
    fn suspicious_pod_is_reported_once_with_its_reason() {
        let (right, forged, other) = (pod("1", "train"), pod("2", "other"), pod("3", "third"));
        let mut named = BTreeSet::new();
        assert_eq!(note("team-a", std::slice::from_ref(&right), &mut named), None);
        let text = note("team-a", &[right.clone(), forged.clone()], &mut named).unwrap();
        assert!(text.starts_with("pod train-x-ml-x-team-a in namespace ns-a has the label of the syncer"), "{text}");
        assert_eq!(note("team-a", &[right, forged.clone()], &mut named), None, "at rest");
        assert!(
            note("team-a", &[forged.clone(), other.clone(), pod("4", "x")], &mut named)
                .unwrap()
                .contains(" and 1 more")
        );
        assert_eq!(note("team-a", &[other], &mut named), None);
        assert_eq!(named.len(), 1, "pods that are gone are forgotten");
    }
}
