//! Pods inside that the quota refuses and that wait for it, as `status.virtualCluster.refused` reports them. They have no pod on this cluster,
//! where waiting pods of other tenants are counted. Pure.

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{
    RefusedPod, RefusedPods,
    virtual_pod::{HostPod, Origin, attribute},
};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time};

use super::{orphans::PodInside, refusals::Refusal};

/// Most pods of a profile that are named.
const MOST_NAMED: usize = 10;
/// Longest name of a namespace, in bytes (RFC 1123).
const MOST_NAMESPACE: usize = 63;
/// Longest name of a pod, in bytes (RFC 1123).
const MOST_NAME: usize = 253;

/// The refused pods that still exist inside and have no host pod. `cluster`: name of tenant and virtual cluster. The host pods must be
/// listed before the pods inside.
pub fn refused(cluster: &str, refusals: &[Refusal], synced: &[Pod], inside: &[PodInside]) -> Vec<RefusedPods> {
    let on_host =
        synced.iter().filter_map(|pod| match attribute(cluster, Some(cluster), HostPod::from(&pod.metadata)).origin {
            Origin::Virtual { pod, .. } => Some(pod.uid),
            _ => None,
        });
    let on_host: BTreeSet<&str> = on_host.collect();
    let wanted: BTreeSet<&str> = inside.iter().filter_map(PodInside::remaining).collect();
    let mut profiles: BTreeMap<&str, Vec<&Refusal>> = BTreeMap::new();
    for refusal in refusals {
        let pod = &refusal.pod;
        // the team chooses the names in events of its own
        let named = is_name(&pod.namespace, MOST_NAMESPACE) && is_name(&pod.name, MOST_NAME);
        if named && wanted.contains(pod.uid.as_str()) && !on_host.contains(pod.uid.as_str()) {
            profiles.entry(&refusal.profile).or_default().push(refusal);
        }
    }
    let report = |(profile, mut refusals): (&str, Vec<&Refusal>)| {
        refusals.sort_by_key(|refusal| (refusal.since, &refusal.pod.namespace, &refusal.pod.name));
        let named = refusals.iter().take(MOST_NAMED).map(|refusal| RefusedPod {
            namespace: refusal.pod.namespace.clone(),
            name: refusal.pod.name.clone(),
            since: refusal.since.map(Time),
            message: refusal.message.clone(),
        });
        RefusedPods {
            profile: profile.to_owned(),
            count: i32::try_from(refusals.len()).unwrap_or(i32::MAX),
            pods: named.collect(),
        }
    };
    profiles.into_iter().map(report).collect()
}

/// A name that the API server of this cluster would accept.
fn is_name(text: &str, most: usize) -> bool {
    let allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'.');
    !text.is_empty() && text.len() <= most && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::refusals::SlimObject, *};

    fn refusal(uid: &str, name: &str, profile: &str, since: &str) -> Refusal {
        let pod = SlimObject { kind: "Pod".into(), namespace: "ml".into(), name: name.into(), uid: uid.into() };
        Refusal { pod, profile: profile.into(), message: "used up".into(), since: since.parse().ok() }
    }

    fn inside(uid: &str, deleted: Option<&str>) -> PodInside {
        serde_json::from_value(json!({"metadata": {"uid": uid, "deletionTimestamp": deleted}})).unwrap()
    }

    /// The host pod of `ml/NAME` with this UID inside.
    fn host(name: &str, uid: &str) -> Pod {
        let key = |key: &str| format!("vcluster.loft.sh/{key}");
        serde_json::from_value(json!({"metadata": {
            "name": format!("{name}-x-ml-x-team-a"), "namespace": "ns-a",
            "labels": {key("managed-by"): "team-a", key("namespace"): "ml"},
            "annotations": {key("object-name"): name, key("object-namespace"): "ml", key("object-uid"): uid},
        }}))
        .unwrap()
    }

    const EARLY: &str = "2026-01-01T00:00:00Z";
    const LATE: &str = "2026-01-01T00:01:00Z";

    #[test]
    fn pods_that_run_or_are_gone_wait_no_longer() {
        let refusals = [
            refusal("1", "waits", "mig-1g", LATE),
            refusal("2", "first", "mig-1g", EARLY),
            refusal("3", "runs", "mig-1g", EARLY),
            refusal("4", "gone", "mig-1g", EARLY),
            refusal("5", "ends", "mig-1g", EARLY),
            refusal("6", "other", "whole", EARLY),
        ];
        let there = ["1", "2", "3", "6"].map(|uid| inside(uid, None)).into_iter().chain([inside("5", Some(LATE))]);
        let there: Vec<PodInside> = there.collect();
        let found = refused("team-a", &refusals, &[host("runs", "3")], &there);
        let counts: Vec<(&str, i32)> = found.iter().map(|of| (of.profile.as_str(), of.count)).collect();
        assert_eq!(counts, [("mig-1g", 2), ("whole", 1)]);
        let names: Vec<&str> = found[0].pods.iter().map(|pod| pod.name.as_str()).collect();
        assert_eq!(names, ["first", "waits"], "the first refused comes first");
        assert_eq!(refused("team-a", &refusals, &[], &[]), []);
    }

    #[test]
    fn names_are_bounded_and_the_count_is_not() {
        let name = |n: usize| format!("p-{n:02}");
        let mut refusals: Vec<_> = (0..25).map(|n| refusal(&name(n), &name(n), "mig-1g", EARLY)).collect();
        let there: Vec<_> = refusals.iter().map(|r| inside(&r.pod.uid, None)).collect();
        let found = refused("team-a", &refusals, &[], &there);
        assert_eq!((found[0].count, found[0].pods.len()), (25, MOST_NAMED));
        for forged in ["\u{1b}[2J", "", "A", &"x".repeat(254)] {
            refusals[0].pod.name = forged.into();
            assert_eq!(refused("team-a", &refusals, &[], &there)[0].count, 24, "{forged:?}");
        }
    }
}
