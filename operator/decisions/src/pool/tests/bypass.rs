//! Pods that bypass the memory limit of their share.

use gputenancy_crds::{Enforcement, OnBypass};

use super::*;
use crate::{change::Refusal, pool::decide::bypass::evictions};

/// The fleet with a pod `t/greedy` on node `n` that bypasses the limit of its share, in a pool that evicts such pods.
fn bypassed() -> Fleet {
    let mut fleet = settled();
    let rules = json!({"onBypass": "Evict"});
    fleet.pools[0].spec.enforcement = read(rules);
    let owner = json!({"namespace": "t", "pod": "greedy", "container": "c"});
    let bypass = json!({"uid": "u-greedy", "used": "30300Mi", "counted": "0Mi", "limit": "20352Mi"});
    let share = json!({"number": 3, "device": {"allocatable": true, "owner": owner}, "bypass": bypass});
    let node = Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap());
    node.status.as_mut().unwrap().gpus[0].shares = vec![read(share)];
    place(&mut fleet, "u-greedy", "n");
    fleet
}

fn place(fleet: &mut Fleet, uid: &str, node: &str) {
    let pod = json!({"metadata": {"name": "greedy", "namespace": "t", "uid": uid}, "spec": {"nodeName": node}});
    fleet.pods.insert(PodName { namespace: "t".into(), name: "greedy".into() }, Arc::new(read(pod)));
}

/// Reasons of the evictions, and the time of the next decision in seconds.
fn evicted(fleet: &Fleet, refusals: &Refusals) -> (Vec<String>, Option<i64>) {
    let inventory = Inventory {
        fleet,
        now: Timestamp::from_second(1000).unwrap(),
        refusals,
        namespace: "home",
        tolerated: &Tolerated::default(),
        marks: &BTreeMap::new(),
        lagging: &BTreeSet::new(),
        failing: &BTreeSet::new(),
        writing: &BTreeSet::new(),
    };
    let mut remembered = Remembered::default();
    drop(decide(&inventory, &mut remembered));
    let Derivations { ownership, views, pods, .. } = remembered.derived;
    let found = evictions(&inventory, &ownership, &views, &pods);
    let reasons =
        found.evictions.into_values().flatten().map(|eviction| format!("{}: {}", eviction.uid, eviction.reason));
    (reasons.collect(), found.retry_at.map(Timestamp::as_second))
}

#[test]
fn pod_that_bypasses_its_limit_is_evicted_with_the_numbers_as_the_reason() {
    let fleet = bypassed();
    let (reasons, retry) = evicted(&fleet, &Refusals::new());
    let expected = "u-greedy: the pod bypasses the memory limit of share 3 of GPU 0 of node n: its processes use 30300Mi, and the limit of 20352Mi counts 0Mi of it; let its programs load libcuda.so.1 from the usual path";
    assert_eq!((reasons, retry), (vec![expected.to_owned()], None));
    let work = &at(&fleet, 1000, &[]).nodes["n"];
    let evicted: Vec<&str> = work.evictions.iter().map(|e| e.uid.as_str()).collect();
    assert_eq!(evicted, ["u-greedy"], "the decision about the fleet carries it out");
}

#[test]
fn annotation_against_evictions_does_not_protect_a_bypass() {
    let mut fleet = bypassed();
    let pod = fleet.pods.values_mut().next().unwrap();
    let annotations = [(names::DO_NOT_EVICT.to_owned(), "true".to_owned())];
    Arc::make_mut(pod).metadata.annotations = Some(annotations.into());
    assert_eq!(evicted(&fleet, &Refusals::new()).0.len(), 1);
}

#[test]
fn forged_owner_does_not_protect_a_pod_of_a_tenant() {
    let static_pod = |of_tenant: bool| {
        let mut fleet = bypassed();
        let own = if of_tenant { "t" } else { "other" };
        fleet.tenants.iter_mut().for_each(|tenant| {
            let tenant = Arc::make_mut(tenant);
            tenant.spec.namespaces = vec![gputenancy_crds::TenantNamespace { name: own.into(), adopt: false }];
        });
        let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "1", "controller": true}]);
        let pod = fleet.pods.values_mut().next().unwrap();
        Arc::make_mut(pod).metadata.owner_references = Some(read(owner));
        evicted(&fleet, &Refusals::new()).0.len()
    };
    assert_eq!(static_pod(true), 1, "a team writes no manifest on a node");
    assert_eq!(static_pod(false), 0, "kubelet would start it again");
}

#[test]
fn nothing_is_evicted_without_the_rule_or_another_pod_than_the_one_that_was_found() {
    type Edit = fn(&mut Fleet);
    let edits: [(&str, Edit); 7] = [
        ("no rule", |fleet| fleet.pools[0].spec.enforcement = Enforcement::default()),
        ("warn", |fleet| fleet.pools[0].spec.enforcement.on_bypass = OnBypass::Warn),
        ("a later pod with its name", |fleet| place(fleet, "u-later", "n")),
        ("a pod of another node", |fleet| place(fleet, "u-greedy", "o")),
        ("it ends already", |fleet| {
            let pod = fleet.pods.values_mut().next().unwrap();
            Arc::make_mut(pod).metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        }),
        ("no bypass", |fleet| {
            let node = Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap());
            node.status.as_mut().unwrap().gpus[0].shares[0].bypass = None;
        }),
        ("the agent is silent", |fleet| fleet.agent_pods = Some(BTreeMap::new())),
    ];
    for (what, edit) in edits {
        let mut fleet = bypassed();
        edit(&mut fleet);
        assert_eq!(evicted(&fleet, &Refusals::new()), (Vec::new(), None), "{what}");
    }
}

#[test]
fn rule_for_trusted_tenants_holds_for_their_pods_alone() {
    let evicted_with = |rules: serde_json::Value, trust: &str, namespace: &str| {
        let mut fleet = bypassed();
        fleet.pools[0].spec.enforcement = read(rules);
        fleet.tenants.iter_mut().for_each(|tenant| {
            let tenant = Arc::make_mut(tenant);
            tenant.spec.namespaces = vec![gputenancy_crds::TenantNamespace { name: namespace.into(), adopt: false }];
            tenant.spec.trust = read(json!(trust));
        });
        evicted(&fleet, &Refusals::new()).0.len()
    };
    let warned = || json!({"onBypass": "Evict", "onBypassByTrusted": "Warn"});
    assert_eq!(evicted_with(warned(), "Trusted", "t"), 0);
    assert_eq!(evicted_with(warned(), "Internal", "t"), 1);
    assert_eq!(evicted_with(warned(), "Trusted", "other"), 1, "a pod of no tenant");
    assert_eq!(evicted_with(json!({"onBypass": "Evict"}), "Trusted", "t"), 1, "without the field");
    assert_eq!(evicted_with(json!({"onBypass": "Warn", "onBypassByTrusted": "Evict"}), "Internal", "t"), 0);
    assert_eq!(evicted_with(json!({"onBypass": "Warn", "onBypassByTrusted": "Evict"}), "Trusted", "t"), 1);
}

#[test]
fn refused_eviction_is_tried_again_after_a_while() {
    let fleet = bypassed();
    let refused = |second| {
        let refusal = Refusal { at: Timestamp::from_second(second).unwrap(), message: "a budget".into() };
        evicted(&fleet, &[("u-greedy".to_owned(), refusal)].into())
    };
    let (reasons, retry) = refused(999);
    assert!(reasons.is_empty() && retry.is_some_and(|at| at > 1000), "{reasons:?} {retry:?}");
    assert_eq!(refused(0).0.len(), 1);
}
