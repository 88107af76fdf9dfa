use std::{collections::BTreeMap, sync::Arc};

use gputenancy_crds::{GpuTenant, PoolTaint, Queueing, QueueingSystem, TaintEffect, Trust};
use gputenancy_decisions::{
    fleet_view::{Contract, FleetView, PoolView, ProfileView},
    queues::Supply,
};
use k8s_openapi::jiff::Timestamp;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::{
    decide::{Decided, decide},
    observe::Observed,
    render,
    teams::{self, QueuedTenant},
    write::Write,
};
use crate::cache::kueue::Kind;

const SMALL: &str = "nvidia.com/mig-1g.10gb";

fn view(systems: &[(&str, QueueingSystem, i32)]) -> FleetView {
    let profile = ProfileView {
        resource: SMALL.into(),
        trust: Trust::Untrusted,
        sharing: None,
        refused: None,
        free: 4,
        contract: Contract::default(),
    };
    let pools = systems.iter().map(|(name, system, devices)| {
        let view = PoolView {
            queueing: Queueing { system: *system, topology: Vec::new() },
            resources: [SMALL.to_owned()].into(),
            devices: [(SMALL.to_owned(), *devices)].into(),
            ..PoolView::default()
        };
        ((*name).to_owned(), view)
    });
    FleetView {
        complete: true,
        profiles: [("small".to_owned(), profile)].into(),
        pools: pools.collect(),
        ..FleetView::empty()
    }
}

fn tenant(name: &str, gpu: Value) -> GpuTenant {
    let mut gpus = gpu;
    gpus["profile"] = json!("small");
    serde_json::from_value(json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuTenant", "metadata": {"name": name},
        "spec": {"namespaces": [{"name": name}], "gpus": [gpus], "sharing": {"group": "research", "weight": 3}},
    }))
    .unwrap()
}

/// What is observed of these tenants over these pools, before anything is written.
fn observed(tenants: &[GpuTenant], systems: &[(&str, QueueingSystem, i32)]) -> Observed {
    let view = view(systems);
    let mut seen = Observed { now: Timestamp::UNIX_EPOCH, ..Observed::default() };
    for tenant in tenants {
        let name = tenant.metadata.name.clone().unwrap();
        let (queued, conflicts) = teams::queued(tenant, &view, [(name.clone(), true)].into());
        seen.tenants.extend(queued);
        if !conflicts.is_empty() {
            seen.conflicts.insert(name, conflicts);
        }
    }
    seen.pools = view.pools.into_iter().filter(|(_, pool)| pool.queueing.system == QueueingSystem::Kueue).collect();
    seen.supply = supply(&seen);
    seen
}

fn supply(seen: &Observed) -> Supply {
    let cells = seen.pools.iter().flat_map(|(name, pool)| {
        let flavor = render::flavor_name(name, pool);
        pool.devices.iter().map(move |(resource, n)| {
            let cell = gputenancy_decisions::queues::Cell { flavor: flavor.clone(), resource: resource.clone() };
            (cell, i64::from(*n))
        })
    });
    Supply { devices: cells.collect(), unqueued: BTreeMap::new() }
}

/// The objects after the writes. Kueue calls every queue active.
fn after(seen: &Observed, writes: &[Write]) -> Observed {
    let mut seen = seen.clone();
    for write in writes {
        match write {
            Write::Lower(key, object) | Write::Apply(key, object) => {
                let mut object = object.clone();
                if key.0 == Kind::ClusterQueue {
                    object["status"] = json!({"conditions": [{"type": "Active", "status": "True"}]});
                }
                let had = seen.live.get(key).and_then(|had| had.data.get("status").cloned());
                if let Some(status) = had {
                    object["status"] = status;
                }
                let object: DynamicObject = serde_json::from_value(object).unwrap();
                seen.live.insert(key.clone(), Arc::new(object));
            }
            Write::Status(key, fields) => {
                let mut object = seen.live[key].as_ref().clone();
                object.data["status"] = fields["status"].clone();
                seen.live.insert(key.clone(), Arc::new(object));
            }
            Write::Delete(key) => {
                seen.live.remove(key);
            }
        }
    }
    seen
}

/// Decides until nothing is to be written.
fn converged(mut seen: Observed) -> Observed {
    for _ in 0..5 {
        let Decided { writes, .. } = decide(&seen);
        if writes.is_empty() {
            return seen;
        }
        seen = after(&seen, &writes);
    }
    panic!("still writes: {:?}", decide(&seen).writes);
}

const KUEUE: QueueingSystem = QueueingSystem::Kueue;

#[test]
fn objects_of_two_teams_match_the_snapshot() {
    let teams = [tenant("team-a", json!({"count": 2, "borrow": 3})), tenant("team-b", json!({"count": 4, "lend": 2}))];
    let mut seen = observed(&teams, &[("training", KUEUE, 7)]);
    let pool = seen.pools.get_mut("training").unwrap();
    pool.queueing.topology = vec!["topology.kubernetes.io/zone".into()];
    pool.taint =
        Some(PoolTaint { key: "nvidia.com/gpu".into(), value: String::new(), effect: TaintEffect::NoSchedule });
    seen.supply = supply(&seen);
    let seen = converged(seen);
    let objects: Vec<&DynamicObject> = seen.live.values().map(|object| &**object).collect();
    insta::assert_yaml_snapshot!(objects);
}

#[test]
fn nothing_is_written_once_converged_and_drift_is_repaired() {
    let seen = converged(observed(&[tenant("team-a", json!({"count": 2}))], &[("p", KUEUE, 4)]));
    let key = (Kind::ClusterQueue, String::new(), "gput-team-a".to_owned());
    let mut drifted = seen.clone();
    let mut queue = seen.live[&key].as_ref().clone();
    queue.data["spec"]["preemption"]["reclaimWithinCohort"] = json!("Never");
    drifted.live.insert(key.clone(), Arc::new(queue));
    let writes = decide(&drifted).writes;
    assert_eq!(writes.iter().map(Write::key).collect::<Vec<_>>(), [&key]);
}

#[test]
fn team_whose_queue_is_active_is_ready() {
    let seen = observed(&[tenant("team-a", json!({"count": 2}))], &[("p", KUEUE, 4)]);
    let before = decide(&seen).view;
    assert_eq!(before.tenants["team-a"].reason, "QueuePending");
    let after = decide(&converged(seen)).view;
    assert!(after.admits("team-a"), "{after:?}");
    assert_eq!(after.differing(&before), ["team-a"]);
}

#[test]
fn queue_of_a_deleted_team_is_emptied_and_deleted() {
    let teams = [tenant("team-a", json!({"count": 2})), tenant("team-b", json!({"count": 1}))];
    let mut seen = converged(observed(&teams, &[("p", KUEUE, 4)]));
    seen.tenants.retain(|tenant| tenant.team.name == "team-b");
    let writes = decide(&seen).writes;
    let gone = (Kind::ClusterQueue, String::new(), "gput-team-a".to_owned());
    assert!(matches!(&writes[0], Write::Lower(key, _) if *key == gone), "{writes:?}");
    let deleted: Vec<_> = writes.iter().filter(|w| matches!(w, Write::Delete(_))).map(Write::key).collect();
    let local = (Kind::LocalQueue, "team-a".to_owned(), "default".to_owned());
    assert_eq!(deleted, [&local, &gone]);
    assert_eq!(seen.tenants.len(), 1);
    converged(seen);
}

#[test]
fn nothing_of_kueue_is_left_once_no_pool_has_queues() {
    let mut seen = converged(observed(&[tenant("team-a", json!({"count": 2}))], &[("p", KUEUE, 4)]));
    (seen.pools, seen.tenants, seen.supply) = (BTreeMap::new(), Vec::new(), Supply::default());
    assert!(converged(seen).live.is_empty());
}

#[test]
fn object_of_another_writer_is_left_alone_and_named() {
    let mut seen = observed(&[tenant("team-a", json!({"count": 2}))], &[("p", KUEUE, 4)]);
    let key = (Kind::LocalQueue, "team-a".to_owned(), "default".to_owned());
    let theirs = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "LocalQueue", "metadata": {"name": "default", "namespace": "team-a"},
        "spec": {"clusterQueue": "mine"},
    });
    seen.live.insert(key.clone(), Arc::new(serde_json::from_value(theirs).unwrap()));
    let seen = converged(seen);
    let queue = &decide(&seen).view.tenants["team-a"];
    assert_eq!((queue.ready, queue.reason.as_str()), (false, "QueueForeign"));
    assert!(queue.message.starts_with("LocalQueue default in namespace team-a was not written"), "{}", queue.message);
    assert_eq!(seen.live[&key].data["spec"]["clusterQueue"], "mine");
}

#[test]
fn profile_of_pools_with_different_systems_has_no_queue() {
    let seen = observed(&[tenant("team-a", json!({"count": 2}))], &[("p", KUEUE, 4), ("q", QueueingSystem::None, 4)]);
    assert!(seen.tenants.is_empty());
    let queue = &decide(&seen).view.tenants["team-a"];
    assert_eq!((queue.ready, queue.reason.as_str()), (false, "QueueConflict"));
}

#[test]
fn suspended_team_admits_no_job_and_keeps_its_limits() {
    let mut team = tenant("team-a", json!({"count": 2}));
    let seen = converged(observed(&[team.clone()], &[("p", KUEUE, 4)]));
    team.spec.suspend = true;
    let mut suspended = seen.clone();
    suspended.tenants = observed(&[team], &[("p", KUEUE, 4)]).tenants;
    let writes = decide(&suspended).writes;
    assert!(
        matches!(writes.as_slice(), [Write::Apply(_, queue)] if queue["spec"]["stopPolicy"] == "Hold"),
        "{writes:?}"
    );
}

/// A job with a place in its queue, and the operator's check in this state.
fn workload(state: &str, evicted: bool) -> Arc<DynamicObject> {
    let condition = |type_: &str, on: bool| json!({"type": type_, "status": if on { "True" } else { "False" }});
    let object = json!({
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
        "metadata": {"name": "job-train", "namespace": "team-a", "uid": "w", "resourceVersion": "5"},
        "status": {
            "conditions": [condition("QuotaReserved", true), condition("Evicted", evicted)],
            "admissionChecks": [{"name": "gputenancy-maintenance", "state": state}],
        },
    });
    Arc::new(serde_json::from_value(object).unwrap())
}

#[test]
fn job_with_a_place_in_its_queue_may_start_unless_it_is_being_evicted() {
    let seen = converged(observed(&[tenant("team-a", json!({"count": 2}))], &[("p", KUEUE, 4)]));
    for (state, evicted, written) in
        [("Pending", false, true), ("Pending", true, false), ("Ready", false, false), ("Retry", false, false)]
    {
        let seen = Observed { workloads: vec![workload(state, evicted)], ..seen.clone() };
        let writes = decide(&seen).writes;
        assert_eq!(writes.len(), usize::from(written), "{state} {evicted}: {writes:?}");
        for write in writes {
            let Write::Status(key, fields) = write else { panic!("{write:?}") };
            assert_eq!(key, (Kind::Workload, "team-a".into(), "job-train".into()));
            assert_eq!(fields["status"]["admissionChecks"][0]["state"], "Ready");
            assert_eq!(fields["metadata"]["resourceVersion"], "5");
        }
    }
}

#[test]
fn lowered_team_is_written_before_a_raised_one() {
    let teams = |a: i32, b: i32| [tenant("team-a", json!({"count": a})), tenant("team-b", json!({"count": b}))];
    let seen = converged(observed(&teams(1, 3), &[("p", KUEUE, 4)]));
    let mut changed = seen.clone();
    changed.tenants = observed(&teams(3, 1), &[("p", KUEUE, 4)]).tenants;
    let writes = decide(&changed).writes;
    let names: Vec<(&str, bool)> = writes.iter().map(|w| (w.key().2.as_str(), matches!(w, Write::Lower(..)))).collect();
    assert_eq!(names, [("gput-team-b", true), ("gput-team-a", false)]);
    let _: &QueuedTenant = &changed.tenants[0];
}
