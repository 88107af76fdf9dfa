//! The library: snapshots are complete, the schema is documented, changes are shown correctly.

use std::sync::Arc;

use gputenancy_crds::{ChangePhase, GpuNode, GpuPool, GpuTenant};
use k8s_openapi::jiff::Timestamp;
use kubectl_gpu::{
    args::PlanArgs,
    changes::{Objects, changes},
    input::{Reading, Text, documents},
    preview::{PlanPreview, preview, propose},
    render, run, snapshot,
    world::World,
};
use serde_json::{Value, json};

const TWO_TEAMS: &str = include_str!("fixtures/two-teams.yaml");
const BUSY: &str = include_str!("fixtures/busy.yaml");

fn read(text: &str) -> Reading {
    let texts = Some(Text { name: "file".into(), text: text.into() }).filter(|text| !text.text.is_empty());
    documents(&texts.into_iter().collect::<Vec<_>>()).unwrap()
}

fn plan(world: &World, manifest: &str) -> PlanPreview {
    run::preview(world, read(manifest), &PlanArgs::default()).unwrap()
}

#[test]
fn snapshot_gives_the_same_preview_as_its_cluster() {
    let manifests = [include_str!("fixtures/grow.yaml"), include_str!("fixtures/big.yaml")];
    for (cluster, manifest) in [TWO_TEAMS, BUSY].into_iter().zip(manifests) {
        let world = World::of(read(cluster));
        let taken = snapshot::to_yaml(&world).unwrap();
        let again = World::of(read(&taken));
        assert_eq!(plan(&again, manifest), plan(&world, manifest));
        assert_eq!(snapshot::to_yaml(&again).unwrap(), taken, "a snapshot of a snapshot is the same");
    }
}

#[test]
fn plan_says_which_guarantees_wait_because_they_flap_also_from_a_snapshot() {
    let mut world = World::of(read(TWO_TEAMS));
    let pool = &mut world.fleet.pools[0];
    let flapping = json!([
        {"tenant": "team-b", "profile": "mig-3g", "writers": ["argocd", "flux"], "changes": 7, "wanted": 3, "planned": 1, "plannedAt": "2026-01-01T00:00:00Z"},
        {"tenant": "team-a", "profile": "mig-1g", "changes": 5, "wanted": 2, "planned": 2},
    ]);
    pool.status = Some(serde_json::from_value(json!({"flapping": flapping})).unwrap());
    let name = pool.metadata.name.clone().unwrap();
    let again = World::of(read(&snapshot::to_yaml(&world).unwrap()));
    for world in [&world, &again] {
        let notes = plan(world, include_str!("fixtures/grow.yaml")).notes;
        let expected = format!(
            "pool {name}: the guarantee of tenant team-b for mig-3g has changed 7 times up and down, written by argocd, flux: the operator plans 1 devices, and 3 from 2026-01-01T00:00:00Z on if it stays"
        );
        assert!(notes.contains(&expected), "{notes:?}");
        assert!(!notes.iter().any(|note| note.contains("team-a for")), "{notes:?}");
    }
}

#[test]
fn plan_gives_no_device_to_a_tenant_without_a_namespace_of_its_own_also_from_a_snapshot() {
    let mut world = World::of(read(TWO_TEAMS));
    let status = json!({"namespaces": [{"name": "team-a", "phase": "Active"}]});
    let team = world.tenants.iter_mut().find(|t| t.metadata.name.as_deref() == Some("team-a")).unwrap();
    team.status = Some(serde_json::from_value(status).unwrap());
    world.fleet.tenants = world.tenants.iter().cloned().map(Into::into).collect();
    let again = World::of(read(&snapshot::to_yaml(&world).unwrap()));
    for world in [&world, &again] {
        let manifest = "apiVersion: gputenancy.io/v1alpha1
kind: GpuTenant
metadata: {name: x4}
spec: {namespaces: [{name: team-a}], gpus: [{profile: mig-1g, count: 1000}]}
";
        let preview = plan(world, manifest);
        let problems: Vec<String> = preview.problems.iter().map(|problem| problem.message.clone()).collect();
        assert_eq!(
            problems,
            [
                "tenant x4 lists namespace team-a, which belongs to tenant team-a; no device is planned for it, as it has no namespace of its own: choose another name in spec.namespaces, or see condition NamespacesReady of GpuTenant x4"
            ]
        );
        assert!(preview.changes.is_empty(), "{:?}", preview.changes);
    }
}

#[test]
fn plan_takes_a_node_that_a_maintenance_request_names_for_no_supply_also_from_a_snapshot() {
    let request = json!({
        "apiVersion": "nvsentinel.dgxc.nvidia.com/v1", "kind": "MaintenanceRequest", "metadata": {"name": "m"},
        "spec": {"healthEvent": {"nodeName": "gpu-1"}},
    });
    let world = World::of(read(&format!("{TWO_TEAMS}\n---\n{request}\n")));
    let again = World::of(read(&snapshot::to_yaml(&world).unwrap()));
    assert_eq!(again.fleet.maintenance, world.fleet.maintenance);
    for world in [&world, &again] {
        let preview = plan(world, include_str!("fixtures/grow.yaml"));
        let text = serde_json::to_string(&preview).unwrap();
        assert!(text.contains("MaintenanceRequest m of NVSentinel names it"), "{text}");
        assert!(preview.changes.iter().all(|change| change.node != "gpu-1"), "{:?}", preview.changes);
    }
}

#[test]
fn plan_takes_no_taint_that_pods_of_tenants_tolerate_for_a_mark_also_from_a_snapshot() {
    let tainted = |status: &serde_json::Value| {
        let mut world = World::of(read(TWO_TEAMS));
        for node in world.fleet.nodes.values_mut() {
            let taint = json!({"key": "example.com/gpus", "value": "x", "effect": "NoSchedule"});
            Arc::make_mut(node).spec.taints = vec![serde_json::from_value(taint).unwrap()];
        }
        world.fleet.pools[0].status = Some(serde_json::from_value(status.clone()).unwrap());
        world
    };
    let grow = include_str!("fixtures/grow.yaml");
    let unknown = serde_json::to_string(&plan(&tainted(&json!({})), grow)).unwrap();
    assert!(unknown.contains("it has the taint example.com/gpus=x:NoSchedule"), "{unknown}");
    let world = tainted(&json!({"toleratedTaint": "example.com/gpus"}));
    let again = World::of(read(&snapshot::to_yaml(&world).unwrap()));
    let expected = plan(&World::of(read(TWO_TEAMS)), grow);
    assert!(!expected.changes.is_empty());
    for world in [&world, &again] {
        assert_eq!(plan(world, grow).changes, expected.changes);
    }
}

#[test]
fn plan_notes_marked_nodes_and_withdrawn_gpus_also_if_nothing_changes() {
    let notes = |edit: &dyn Fn(&mut gputenancy_crds::projection::SlimNode)| {
        let mut world = World::of(read(TWO_TEAMS));
        edit(Arc::make_mut(world.fleet.nodes.values_mut().next().unwrap()));
        plan(&world, "").notes.join("; ")
    };
    assert!(!notes(&|_| {}).contains("do not count"));
    let cordoned = notes(&|node| node.spec.unschedulable = true);
    assert!(cordoned.contains(": it is cordoned: free devices there do not count, and no change starts"), "{cordoned}");
    let withdrawn = notes(&|node| {
        let annotation = (gputenancy_crds::names::WITHDRAWN_GPUS.to_owned(), "GPU-a=hot".to_owned());
        node.metadata.annotations = Some([annotation].into());
    });
    assert!(withdrawn.contains("GPU-a is withdrawn by") && withdrawn.contains("(hot): free devices"), "{withdrawn}");
}

#[test]
fn snapshot_is_independent_of_list_order() {
    let world = World::of(read(BUSY));
    let mut reading = read(BUSY);
    reading.documents.reverse();
    assert_eq!(snapshot::document(&World::of(reading)), snapshot::document(&world));
}

#[test]
fn snapshot_contains_no_secrets() {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "w", "namespace": "small", "annotations": {"example.com/token": "hush", "gputenancy.io/do-not-evict": "true"},
            "labels": {"app": "db", "team-secret": "hush"},
        },
        "spec": {"containers": [{
            "image": "registry/hush", "env": [{"name": "TOKEN", "value": "hush"}], "args": ["hush"],
            "resources": {"requests": {"nvidia.com/gpu": "1", "cpu": "1"}},
        }]},
    });
    let tenant = json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuTenant", "metadata": {"name": "t"},
        "spec": {"owners": [{"kind": "User", "name": "hush@example.com"}], "namespaces": [{"name": "t"}]},
    });
    let node = json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuNode", "metadata": {"name": "g"}, "spec": {},
        "status": {"gpus": [{"uuid": "GPU-0", "index": 0, "board": 0,
            "holders": [{"pid": 7, "command": "train --password=hush"}]}]},
    });
    let list = json!({"apiVersion": "v1", "kind": "List", "items": [pod, tenant, node]}).to_string();
    let mut reading = read(BUSY);
    reading.documents.extend(read(&list).documents);
    let text = snapshot::to_yaml(&World::of(reading)).unwrap();
    assert!(!text.contains("hush") && !text.contains("cpu"), "{text}");
    assert!(text.contains("do-not-evict") && text.contains("app: db") && text.contains("command: train"), "{text}");
}

#[test]
fn snapshot_omits_pods_without_devices() {
    let pod = r#"{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "w", "namespace": "n"}, "spec": {}}"#;
    assert!(World::of(read(pod)).pods.is_empty());
}

#[test]
fn plan_after_a_previewed_change_has_nothing_to_do() {
    let world = World::of(read(TWO_TEAMS));
    let first = plan(&world, include_str!("fixtures/grow.yaml"));
    let mut after = propose(&world, read(include_str!("fixtures/grow.yaml")), &[], false).unwrap().after;
    for change in &first.changes {
        let node = Arc::make_mut(after.fleet.gpu_nodes.get_mut(&change.node).unwrap());
        let spec = node.spec.gpus.iter_mut().find(|g| g.uuid == change.uuid).unwrap();
        let state = node.status.as_mut().unwrap().gpus.iter_mut().find(|g| g.uuid == change.uuid).unwrap();
        let gone = |start: i32, profile: &str| change.destroy.iter().any(|i| i.start == start && i.profile == profile);
        spec.instances.retain(|i| !gone(i.start, &i.profile));
        state.instances.retain(|i| !gone(i.start, &i.profile));
        for new in &change.create {
            let profile = new.profile.clone();
            spec.instances.push(gputenancy_crds::InstanceSpec {
                start: new.start,
                profile: profile.clone(),
                resource: None,
                replicas: None,
            });
            state.instances.push(gputenancy_crds::InstanceState { start: new.start, profile, ..Default::default() });
        }
    }
    let second = preview(&after, &propose(&after, Reading::default(), &[], false).unwrap(), false);
    assert_eq!((second.exit_code, second.changes), (0, Vec::new()));
}

#[test]
fn estimate_includes_canary_timeouts() {
    let mut world = World::of(read(TWO_TEAMS));
    let plain = plan(&world, include_str!("fixtures/grow.yaml"));
    for pool in &mut world.fleet.pools {
        pool.spec.verify.canary =
            serde_json::from_value(json!({"image": "registry.example.com/vectoradd:12.8", "timeout": "90s"})).unwrap();
    }
    let with_canary = plan(&world, include_str!("fixtures/grow.yaml"));
    let steps = with_canary.changes.iter().map(|c| c.step).max().unwrap();
    assert_eq!(with_canary.estimate.seconds, plain.estimate.seconds + 90 * u64::from(steps));
    assert!(
        with_canary.estimate.basis.iter().any(|b| b.contains("up to 90 s on a GPU")),
        "{:?}",
        with_canary.estimate.basis
    );
}

#[test]
fn preview_of_a_change_in_progress_keeps_its_layout_and_reason() {
    let mut world = World::of(read(TWO_TEAMS));
    let node = Arc::make_mut(world.fleet.gpu_nodes.get_mut("gpu-1").unwrap());
    let spec = &mut node.spec.gpus[1];
    let to =
        json!({"mig": true, "instances": [{"start": 0, "profile": "3g.40gb"}, {"start": 4, "profile": "3g.40gb"}]});
    spec.change = Some(
        serde_json::from_value(json!({
            "phase": "Evicting", "from": spec.layout(), "to": to, "startedAt": "2026-11-21T08:00:00Z",
            "phaseSince": "2026-11-21T08:00:00Z", "reason": "it began so",
        }))
        .unwrap(),
    );
    let found = plan(&world, include_str!("fixtures/grow.yaml"));
    let change = found.changes.iter().find(|c| c.phase.is_some()).unwrap();
    assert_eq!((change.node.as_str(), change.gpu, change.phase.as_deref()), ("gpu-1", 1, Some("Evicting")));
    assert_eq!((change.step, change.destroy.len(), change.evicts.len()), (1, 7, 1));
    assert_eq!(change.reasons, ["it began so"]);
    assert_eq!((found.exit_code, found.changes.len(), found.evictions.len()), (3, 3, 1));
}

#[test]
fn gpus_of_unselected_nodes_are_released_without_evictions() {
    let world = World::of(read(TWO_TEAMS));
    let pool = include_str!("fixtures/windows.yaml").replace("example.com/gpus: a100", "example.com/gpus: h100");
    let found = plan(&world, &pool);
    assert_eq!((found.changes.len(), found.evictions.len()), (4, 0));
    assert!(found.changes.iter().all(|c| c.pool.is_none() && c.to == "not managed"), "{:?}", found.changes);
    let waits: Vec<&String> = found.changes.iter().flat_map(|c| &c.waits_for).collect();
    assert_eq!(waits.len(), 4, "four pods run on: {waits:?}");
    assert!(found.problems.iter().any(|p| p.reason == "NoNodes" && !p.known), "{:?}", found.problems);
}

#[test]
fn preview_of_mig_mode_change_includes_reset() {
    let mut world = World::of(read(TWO_TEAMS));
    let whole = r#"{"apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": "gpu"},
        "spec": {"device": {"whole": {}}, "support": {"expected": "e", "incident": "i"}}}"#;
    let pool = include_str!("fixtures/windows.yaml").replace("[mig-1g, mig-3g]", "[gpu, mig-1g, mig-3g]");
    for text in [whole, &pool] {
        read(text).documents.into_iter().for_each(|d| world.put(d.object));
    }
    let found = plan(&world, &include_str!("fixtures/grow.yaml").replace("mig-3g, count: 7", "gpu, count: 1"));
    let modes: Vec<_> = found.changes.iter().filter_map(|c| c.mig_mode).collect();
    assert_eq!(modes.len(), 1, "{:?}", found.changes);
    assert!(!modes[0].enabled && modes[0].reset);
    assert!(found.estimate.basis[0].contains("to reset a GPU"), "{:?}", found.estimate);
}

#[test]
fn schema_of_the_preview_is_documented() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/plan-preview.schema.json");
    let schema = serde_json::to_value(schemars::schema_for!(PlanPreview)).unwrap();
    if std::env::var_os("UPDATE_SCHEMA").is_some() {
        std::fs::write(path, serde_json::to_string_pretty(&schema).unwrap() + "\n").unwrap();
    }
    let documented: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert!(documented == schema, "UPDATE_SCHEMA=1 updates {path}");
}

/// A node with a change in this phase, its pool and a tenant with an observed generation.
fn changing(phase: ChangePhase, seen: i64) -> Objects {
    let change = json!({
        "phase": phase, "from": {"mig": true}, "to": {"mig": true}, "startedAt": "2026-11-21T08:00:00Z",
        "phaseSince": "2026-11-21T08:01:00Z", "reason": "7 of mig-3g are guaranteed and 2 exist",
    });
    let node: GpuNode = serde_json::from_value(json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuNode", "metadata": {"name": "gpu-1"},
        "spec": {"gpus": [{"uuid": "GPU-0", "mig": true, "change": change}, {"uuid": "GPU-1"}]},
        "status": {"gpus": [{"uuid": "GPU-0", "index": 3, "board": 0}]},
    }))
    .unwrap();
    let message = "pod team-a/x on 1g.10gb at 0 may not be evicted yet: budget db";
    let pool: GpuPool = serde_json::from_value(json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuPool", "metadata": {"name": "p", "generation": 1},
        "spec": {"nodeSelector": {"matchLabels": {"a": "b"}}, "profiles": ["x"]},
        "status": {"observedGeneration": 1, "changes": [{"node": "gpu-1", "gpu": 3, "phase": "Evicting", "message": message}]},
    }))
    .unwrap();
    let tenant: GpuTenant = serde_json::from_value(json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuTenant", "metadata": {"name": "t", "generation": 2},
        "spec": {"namespaces": [{"name": "t"}]}, "status": {"observedGeneration": seen},
    }))
    .unwrap();
    Objects { nodes: vec![node], pools: vec![pool], tenants: vec![tenant] }
}

#[test]
fn changes_show_step_age_and_blocker() {
    let now: Timestamp = "2026-11-21T08:03:30Z".parse().unwrap();
    let list = changes(&changing(ChangePhase::Evicting, 1), now);
    insta::assert_snapshot!(render::changes(&list));
    insta::assert_snapshot!(render::change_line(&list.items[0]));
    assert_eq!(list.pending, ["GpuTenant t: the operator has not reconciled generation 2 yet"]);
    assert!(!list.is_over() && !list.failed());
}

#[test]
fn message_of_an_earlier_phase_is_omitted() {
    let list = changes(&changing(ChangePhase::Idle, 2), Timestamp::UNIX_EPOCH);
    assert_eq!((list.items[0].message.as_str(), list.items[0].step), ("", 4));
    assert!(render::change_line(&list.items[0]).ends_with("waiting until NVML shows no process on removed instances"));
}

#[test]
fn changes_are_not_over_while_a_tenant_waits_for_capacity() {
    let mut objects = changing(ChangePhase::RolledBack, 2);
    for reason in ["Planning", "Changing", "ChangePlanned"] {
        let waiting = json!([{"type": "CapacityReady", "status": "False", "reason": reason, "message": "0 of 1 devices can be had",
            "lastTransitionTime": "2026-11-21T08:00:00Z"}]);
        objects.tenants[0].status.as_mut().unwrap().conditions = serde_json::from_value(waiting).unwrap();
        let list = changes(&objects, Timestamp::UNIX_EPOCH);
        assert_eq!(list.pending, ["GpuTenant t: 0 of 1 devices can be had"], "{reason}");
        assert!(!list.is_over(), "{reason}");
    }
}

#[test]
fn changes_are_not_over_while_a_guarantee_that_flapped_is_planned_later() {
    let mut objects = changing(ChangePhase::RolledBack, 2);
    let flapping =
        |at: Value| json!([{"tenant": "t", "profile": "x", "changes": 6, "wanted": 1, "planned": 0, "plannedAt": at}]);
    let mut list = |at| {
        objects.pools[0].status.as_mut().unwrap().flapping = serde_json::from_value(flapping(at)).unwrap();
        changes(&objects, Timestamp::UNIX_EPOCH)
    };
    let waits = list(json!("2026-11-21T08:00:30Z"));
    let expected = "GpuPool p: of x 0 devices are planned for tenant t, and 1 from 2026-11-21T08:00:30Z on if it stays";
    assert_eq!((waits.pending.clone(), waits.is_over()), (vec![expected.to_owned()], false));
    assert!(list(Value::Null).is_over(), "it is planned as it is");
}

#[test]
fn failed_change_ends_the_watch() {
    let list = changes(&changing(ChangePhase::RolledBack, 2), Timestamp::UNIX_EPOCH);
    assert!(list.is_over() && list.failed());
    let none = changes(&Objects::default(), Timestamp::UNIX_EPOCH);
    assert!(none.is_over() && !none.failed());
    assert!(render::changes(&none).contains("no GPU is changing"));
}
