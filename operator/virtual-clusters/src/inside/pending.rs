//! Says on pods inside that are within the budget and have no node why they wait, in the team's words: profile, devices, and what can be done.
//! Names of nodes do not occur. The quota's refusals are those of [`super::refusals`].

use std::collections::{BTreeMap, BTreeSet};

use gputenancy_crds::{
    GpuTenant, GpuUse, reasons,
    virtual_pod::{HostPod, Origin, attribute},
    words::{are, counted},
};
use k8s_openapi::{
    api::core::v1::Pod,
    jiff::{SignedDuration, Timestamp},
};
use kube::{Client, ResourceExt as _};

use super::{
    connect::CallError,
    refusals::{SlimObject, create},
};

/// Most events that are made in one reconcile; further pods get theirs in the next one.
const MOST_MADE: usize = 20;
/// Most requests for that.
const MOST_TRIED: usize = 100;
/// How long a pod must wait: schedulers need seconds, as does a device that a pod gives back.
const PATIENCE: SignedDuration = SignedDuration::from_secs(30);
/// Reason of the scheduler for a pod that fits no node. A pod with scheduling gates has another one.
const UNSCHEDULABLE: &str = "Unschedulable";

/// A pod inside that waits for a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pod: SlimObject,
    message: String,
}

/// The pods that wait, with the text of their event. Pure.
pub fn waiting(tenant: &GpuTenant, synced: &[Pod], now: Timestamp) -> Vec<Waiting> {
    let name = tenant.name_any();
    let of = |host: &Pod| {
        let since = unscheduled_since(host)?;
        if host.metadata.deletion_timestamp.is_some() || now.duration_since(since) < PATIENCE {
            return None;
        }
        let message = text(tenant, &requests(host))?;
        let Origin::Virtual { pod, .. } = attribute(&name, Some(&name), HostPod::from(&host.metadata)).origin else {
            return None;
        };
        let [namespace, name, uid] = [pod.namespace, pod.name, pod.uid].map(str::to_owned);
        Some(Waiting { pod: SlimObject { kind: "Pod".into(), namespace, name, uid }, message })
    };
    synced.iter().filter_map(of).collect()
}

/// Since when the scheduler has found no node for the pod.
fn unscheduled_since(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let scheduled = conditions.iter().find(|c| c.type_ == "PodScheduled" && c.status == "False")?;
    let unschedulable = scheduled.reason.as_deref() == Some(UNSCHEDULABLE);
    scheduled.last_transition_time.as_ref().filter(|_| unschedulable).map(|at| at.0)
}

/// GPU resources in the limits of a pod, of which the projection keeps no others.
fn requests(pod: &Pod) -> BTreeMap<&str, i64> {
    let mut all = BTreeMap::new();
    let containers =
        pod.spec.iter().flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    for (resource, amount) in containers.filter_map(|c| c.resources.as_ref()?.limits.as_ref()).flatten() {
        *all.entry(resource.as_str()).or_default() += amount.0.parse::<i64>().unwrap_or(0);
    }
    all
}

/// Why a pod with these requests waits; `None`: it asks for no GPU of the tenant.
fn text(tenant: &GpuTenant, requests: &BTreeMap<&str, i64>) -> Option<String> {
    let gpus = tenant.status.iter().flat_map(|s| &s.gpus);
    let asked = |gpu: &&GpuUse| requests.get(gpu.resource_name.as_str()).is_some_and(|n| *n > 0);
    // a missing device says more than a present one
    let gpu = gpus.filter(asked).min_by_key(|gpu| gpu.available >= gpu.budget.min(gpu.used))?;
    let GpuUse { profile, resource_name: resource, budget, used, available, .. } = gpu;
    let (name, wanted) = (tenant.name_any(), requests.get(resource.as_str()).copied().unwrap_or_default());
    let head = format!("the pod waits for {wanted} of {resource} (profile {profile})");
    Some(if *available < *budget.min(used) {
        format!(
            "{head}: pods of tenant {name} request {} within its budget of {budget}, and {available} {} available. The platform makes the \
             missing ones as GPUs become free, and the pod starts then. If it lasts, ask your platform team about CapacityReady of GpuTenant {name}",
            counted(*used, "device"),
            are(available),
        )
    } else {
        format!(
            "{head}: tenant {name} has {} (budget {budget}, requested {used}), and no node with a free one fits the rest of \
             the pod: several devices on one node, CPU, memory, node selector, affinity, tolerations, volumes. Ask for less, or ask your platform \
             team for the reason: kubectl describe pod on the host pod",
            counted(*available, "device"),
        )
    })
}

/// Makes the events that are missing. `announced`: UIDs of pods that have theirs; those that no longer wait are removed from it.
pub async fn explain(
    client: &Client,
    waiting: Vec<Waiting>,
    announced: &mut BTreeSet<String>,
) -> Result<(), CallError> {
    announced.retain(|uid| waiting.iter().any(|w| w.pod.uid == *uid));
    let missing: Vec<_> = waiting.into_iter().filter(|w| !announced.contains(&w.pod.uid)).take(MOST_TRIED).collect();
    let (mut made, mut failure) = (0, None);
    for Waiting { pod, message } in missing {
        // one that fails, as in a namespace that ends, must not keep the others from theirs
        match create(client, &pod, reasons::WAITING_FOR_DEVICE, message).await {
            Ok(new) => {
                made += usize::from(new);
                announced.insert(pod.uid);
            }
            Err(error) => failure = Some(error),
        }
        if made == MOST_MADE {
            break;
        }
    }
    failure.map_or(Ok(()), Err)
}

#[cfg(test)]
mod tests {
    use gputenancy_cluster::testing::{Answer, MockServer, Request};
    use gputenancy_crds::{GpuTenantSpec, GpuTenantStatus};
    use serde_json::{Value, json};

    use super::*;

    fn tenant(available: i32) -> GpuTenant {
        let gpu = json!({
            "profile": "mig-1g", "resourceName": "nvidia.com/mig-1g.10gb", "budget": 3, "used": 2, "available": available, "waiting": 1,
        });
        let mut tenant = GpuTenant::new("team-a", GpuTenantSpec::default());
        let gpus = vec![serde_json::from_value(gpu).unwrap()];
        tenant.status = Some(GpuTenantStatus { gpus, ..GpuTenantStatus::default() });
        tenant
    }

    fn pod(reason: &str, resource: &str) -> Value {
        let key = |key: &str| format!("vcluster.loft.sh/{key}");
        let name = "train-0-x-ml-x-team-a";
        json!({
            "metadata": {
                "namespace": "ns-a", "name": name, "labels": {key("managed-by"): "team-a", key("namespace"): "ml"},
                "annotations": {
                    key("object-name"): "train-0", key("object-namespace"): "ml", key("object-uid"): "v-1", key("object-kind"): "/v1, Kind=Pod",
                    key("object-host-name"): name, key("object-host-namespace"): "ns-a",
                },
            },
            "spec": {"containers": [{"name": "c", "resources": {"limits": {resource: "1"}}}]},
            "status": {"conditions": [{
                "type": "PodScheduled", "status": "False", "reason": reason, "lastTransitionTime": "2026-01-01T00:00:00Z",
                "message": "0/5 nodes are available: 1 node(s) had untolerated taint {node-7: secret}",
            }]},
        })
    }

    fn found(tenant: &GpuTenant, pod: &Value, now: &str) -> Vec<Waiting> {
        waiting(tenant, &[serde_json::from_value(pod.clone()).unwrap()], now.parse().unwrap())
    }

    const LATER: &str = "2026-01-01T00:01:00Z";
    const MIG: &str = "nvidia.com/mig-1g.10gb";

    #[test]
    fn waiting_pod_names_profile_budget_and_remedy_and_no_node() {
        let missing = found(&tenant(1), &pod("Unschedulable", MIG), LATER);
        let [Waiting { pod: inside, message }] = missing.as_slice() else { panic!("{missing:?}") };
        assert_eq!((inside.namespace.as_str(), inside.name.as_str(), inside.uid.as_str()), ("ml", "train-0", "v-1"));
        let begin = "the pod waits for 1 of nvidia.com/mig-1g.10gb (profile mig-1g): pods of tenant team-a request 2 devices within its budget of 3, and 1 is available.";
        assert!(message.starts_with(begin), "{message}");
        let present = &found(&tenant(3), &pod("Unschedulable", MIG), LATER)[0].message;
        assert!(present.contains("tenant team-a has 3 devices (budget 3, requested 2)"), "{present}");
        for text in [message, present] {
            assert!(!text.contains("node-7") && !text.contains("ns-a"), "{text}");
        }
    }

    #[test]
    fn pods_that_wait_for_something_else_or_shortly_have_no_event() {
        for (pod, now) in [
            (pod("Unschedulable", MIG), "2026-01-01T00:00:29Z"),
            (pod("SchedulingGated", MIG), LATER),
            (pod("Unschedulable", "cpu"), LATER),
        ] {
            assert_eq!(found(&tenant(1), &pod, now), []);
        }
        let mut forged = pod("Unschedulable", MIG);
        forged["metadata"]["annotations"]["vcluster.loft.sh/object-name"] = json!("other");
        assert_eq!(found(&tenant(1), &forged, LATER), []);
        let mut deleted = pod("Unschedulable", MIG);
        deleted["metadata"]["deletionTimestamp"] = json!(LATER);
        assert_eq!(found(&tenant(1), &deleted, LATER), []);
    }

    #[tokio::test]
    async fn events_are_bounded_and_not_repeated_at_rest() {
        let server = MockServer::new(|request: &Request| request.body.clone());
        let client = server.client();
        let one = found(&tenant(1), &pod("Unschedulable", MIG), LATER).remove(0);
        let with_uid = |uid: usize| {
            let mut waiting = one.clone();
            waiting.pod.uid = uid.to_string();
            waiting
        };
        let (all, mut announced) = ((0..25).map(with_uid).collect::<Vec<_>>(), BTreeSet::new());
        for total in [20, 25, 25] {
            explain(&client, all.clone(), &mut announced).await.unwrap();
            assert_eq!((server.count(Request::is_write), announced.len()), (total, total));
        }
        let event = server.take().remove(0).body;
        assert_eq!(
            (&event["reason"], &event["involvedObject"]["name"]),
            (&json!("WaitingForDevice"), &json!("train-0"))
        );
        explain(&client, all[..1].to_vec(), &mut announced).await.unwrap();
        assert_eq!(announced.len(), 1, "pods that run or are gone are forgotten");
    }

    #[tokio::test]
    async fn pods_of_a_terminating_namespace_keep_no_other_from_its_event() {
        let server = MockServer::new(|request: &Request| {
            if request.path.contains("/namespaces/ending/") {
                return Answer::failure(403, "Forbidden", "the namespace is being terminated");
            }
            request.body.clone().into()
        });
        let client = server.client();
        let one = found(&tenant(1), &pod("Unschedulable", MIG), LATER).remove(0);
        let of = |namespace: &str, uid: usize| {
            let mut waiting = one.clone();
            (waiting.pod.namespace, waiting.pod.uid) = (namespace.into(), uid.to_string());
            waiting
        };
        let ending = |count: usize| (0..count).map(|uid| of("ending", uid));
        let mut announced = BTreeSet::new();
        let all = ending(30).chain([of("ml", 900)]).collect();
        assert!(explain(&client, all, &mut announced).await.is_err());
        assert_eq!(announced, BTreeSet::from(["900".to_owned()]));
        server.take();
        assert!(explain(&client, ending(500).collect(), &mut announced).await.is_err());
        assert_eq!(server.take().len(), MOST_TRIED, "the requests of one reconcile are bounded");
    }
}
