//! Annotations that plugins and the operator obey, written into a pod that exists, and the size of objects that are of no workload.

use e2e::{
    Result, World,
    actor::{Actor, Verb},
};
use serde_json::{Value, json};

use crate::bypass::{OWNER, WAITING};

/// The annotation in which a network plugin keeps the addresses of a pod.
const NETWORKS: &str = "k8s.ovn.org/pod-networks";
const CHOOSES: Option<&str> = Some("choose networks, addresses or limits past network policies and quotas");

/// A plugin, with rights on all namespaces, writes its annotation into a pod; the team does not, before nor after. `pod`: path of a pod of the team.
pub(crate) async fn annotations_of_plugins(world: &World, pod: &str) -> Result<()> {
    let noted = |key: &str, value: Value| json!({"metadata": {"annotations": {key: value}}});
    for (actor, key, refused) in [
        (OWNER, NETWORKS, CHOOSES),
        (OWNER, "net1.default.ovn.kubernetes.io/ip_address", CHOOSES),
        (OWNER, "rdt.resources.beta.kubernetes.io/pod", CHOOSES),
        (OWNER, "ovn.example.com/pod-networks", None),
        (Actor::Admin, NETWORKS, None),
        // Calico writes its own into the status
        (Actor::Admin, "cni.projectcalico.org/podIP", CHOOSES),
        (Actor::Admin, "k8s.v1.cni.cncf.io/networks", CHOOSES),
    ] {
        actor.check(&world.client, Verb::Merge, pod, &noted(key, json!("x")), refused).await?;
    }
    Actor::Admin.does(&world.client, Verb::Merge, pod, &noted(NETWORKS, json!("10.0.0.1"))).await?;
    for (key, value, refused) in
        [(NETWORKS, json!("10.0.0.2"), CHOOSES), ("example.com/note", json!("x"), None), (NETWORKS, Value::Null, None)]
    {
        OWNER.check(&world.client, Verb::Merge, pod, &noted(key, value), refused).await?;
    }
    Actor::Admin.does(&world.client, Verb::Merge, pod, &noted(NETWORKS, Value::Null)).await.map(drop)
}

/// Leases and events of a team hold no more than text of a usual length, and its events are not those of the platform; controllers of the cluster
/// may write longer events.
pub(crate) async fn sizes(world: &World) -> Result<()> {
    let refused = Some("have at most 16384 characters in all fields together");
    let of = |length: usize| json!("x".repeat(length));
    let finalizers: Vec<String> = (0..300).map(|n| format!("example.com/{}-{n}", "x".repeat(50))).collect();
    let lease = |metadata: Value, holder: Value| {
        let mut lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {"holderIdentity": holder}});
        lease["metadata"]["name"] = json!("leader");
        lease
    };
    let event = |field: &str, length: usize| {
        let mut event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "x.1", "namespace": "t"}, "message": "x", "reason": "X",
            "type": "Normal", "involvedObject": {"kind": "Pod", "namespace": "t", "name": "x"}, "source": {"component": "x"}});
        *event.pointer_mut(field).unwrap() = of(length);
        event
    };
    let alone = Some("are written by these programs alone");
    let forged = |field: &str, value: &str| {
        let mut event = event("/message", 10);
        *event.pointer_mut(field).unwrap() = json!(value);
        event
    };
    let (leases, events) = ("/apis/coordination.k8s.io/v1/namespaces/t/leases", "/api/v1/namespaces/t/events");
    for (actor, path, object, refused) in [
        (OWNER, leases, lease(json!({}), of(17_000)), refused),
        (OWNER, leases, lease(json!({"annotations": {"example.com/data": of(17_000)}}), json!("a")), refused),
        (OWNER, leases, lease(json!({"finalizers": finalizers}), json!("a")), refused),
        (OWNER, leases, lease(json!({"annotations": {"example.com/note": of(4000)}}), of(200)), None),
        (OWNER, events, event("/message", 17_000), refused),
        (OWNER, events, event("/source/component", 17_000), refused),
        (OWNER, events, event("/involvedObject/name", 17_000), refused),
        (OWNER, events, event("/message", 4000), None),
        (OWNER, events, forged("/involvedObject/kind", "GpuNode"), alone),
        (OWNER, events, forged("/source/component", "gputenancy-operator"), alone),
        (OWNER, events, forged("/involvedObject/kind", "Deployment"), None),
        (Actor::Admin, events, forged("/involvedObject/kind", "GpuNode"), None),
        (Actor::Admin, events, event("/message", 17_000), None),
    ] {
        actor.check(&world.client, Verb::Create, path, &object, refused).await?;
    }
    // later
    let path = &format!("{leases}/leader");
    OWNER.does(&world.client, Verb::Create, leases, &lease(json!({}), json!("a"))).await?;
    for (length, refused) in [(17_000, refused), (200, None)] {
        OWNER
            .check(&world.client, Verb::Merge, path, &json!({"spec": {"holderIdentity": of(length)}}), refused)
            .await?;
    }
    OWNER.does(&world.client, Verb::Delete, path, &json!({})).await.map(drop)
}

/// The owner of a pod neither writes nor removes the notice of its eviction.
pub(crate) async fn notices(world: &World) -> Result<()> {
    const NOTICE: &str = "gputenancy.io/eviction-notice";
    let noted = |key: &str, value: Value| json!({"metadata": {"annotations": {key: value}}});
    let refused = Some("are written by the operator alone");
    let notice = noted(NOTICE, json!("2026-11-27T00:00:00Z: why"));
    OWNER.check(&world.client, Verb::Merge, WAITING, &notice, refused).await?;
    Actor::Operator.does(&world.client, Verb::Merge, WAITING, &notice).await?;
    for (actor, key, value, refused) in [
        (OWNER, NOTICE, Value::Null, refused),
        (OWNER, NOTICE, json!("2027-11-27T00:00:00Z: why"), refused),
        (OWNER, "gputenancy.io/canary-node", json!("gpu-2"), refused),
        (OWNER, "gputenancy.io/do-not-evict", json!("true"), None),
        (OWNER, "gputenancy.io/suspend-compute", json!("true"), None),
    ] {
        actor.check(&world.client, Verb::Merge, WAITING, &noted(key, value), refused).await?;
    }
    Actor::Operator.does(&world.client, Verb::Merge, WAITING, &noted(NOTICE, Value::Null)).await.map(drop)
}
