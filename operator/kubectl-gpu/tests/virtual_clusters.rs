//! Pods of virtual clusters: `status`, `tenant`, `plan` and the snapshot show them under their names inside.

use gputenancy_crds::GpuTenant;
use kubectl_gpu::{
    Inside,
    input::{Text, documents},
    render, snapshot,
    status::{self, Filter, FleetStatus},
    tenant::{NamespaceObjects, Sources, TenantReport},
    world::World,
};
use serde_json::{Value, json};

const SHARING: &str = include_str!("fixtures/sharing.yaml");
/// A pod whose annotations name another one.
const FORGED: &str = "job-1-x-ml-x-team-c";

/// A host pod in namespace `team-c`, with the annotations of vCluster for a pod in `ml`.
fn host_pod(host: &str, inside: &str) -> Value {
    let key = |key: &str| format!("vcluster.loft.sh/{key}");
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": host, "namespace": "team-c", "uid": format!("uid-{host}"),
            "labels": {key("managed-by"): "team-c", key("namespace"): "ml", "unrelated": "x"},
            "annotations": {
                key("object-name"): inside, key("object-namespace"): "ml", key("object-uid"): "11111111-aaaa",
                key("object-host-name"): host, key("labels"): "unrelated=x", "unrelated": "x",
            },
        },
        "spec": {"nodeName": "gpu-1", "containers": [{"resources": {"requests": {"nvidia.com/gpu.shared": "1"}}}]},
        "status": {"phase": "Running"},
    })
}

/// The fleet of `sharing.yaml`, in which `team-c` has a virtual cluster: one pod was synced, one is forged, one was made on the host.
/// `team-a` has none, and has forged the annotations of a pod of its own.
fn fleet() -> String {
    let mut elsewhere = host_pod("trainer-0", "train-0");
    elsewhere["metadata"]["namespace"] = "a-prod".into();
    let mut plain = host_pod("server-0", "");
    plain["metadata"]["labels"] = json!({});
    plain["metadata"]["annotations"] = json!({});
    let pods = [host_pod("train-0-x-ml-x-team-c", "train-0"), host_pod(FORGED, "train-0"), plain, elsewhere];
    let team = "namespaces: [{name: team-c}]\n";
    let mut text = SHARING
        .replace(team, &format!("{team}      virtualCluster: {{version: 0.36.1}}\n"))
        .replace("pod: experiment-0,", "pod: train-0-x-ml-x-team-c,")
        .replace("pod: experiment-1,", &format!("pod: {FORGED},"));
    for pod in pods {
        text.push_str(&format!("  - {pod}\n"));
    }
    text
}

fn world(text: &str) -> World {
    World::of(documents(&[Text { name: "fleet.yaml".into(), text: text.into() }]).unwrap())
}

fn all(world: &World) -> FleetStatus {
    status::report(world, &Filter::default()).unwrap()
}

fn strip(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

/// The rows of these pods.
fn rows(text: &str, pods: &[&str]) -> Vec<String> {
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    text.lines().filter(|line| pods.iter().any(|pod| line.contains(pod))).map(words).collect()
}

#[test]
fn status_shows_pods_under_their_names_inside() {
    let report = all(&world(&fleet()));
    let text = strip(&render::status(&report, false));
    let found = rows(&text, &["x-team-c", "server-0", "trainer-0"]);
    let expected = [
        "gpu-1 0 whole GPU used a-prod/trainer-0 team-a nvidia.com/gpu",
        "gpu-1 2 time-slice 0 of 4 used ml/train-0 team-c nvidia.com/gpu.shared host pod team-c/train-0-x-ml-x-team-c",
        "gpu-1 2 time-slice 1 of 4 used suspicious team-c nvidia.com/gpu.shared host pod team-c/job-1-x-ml-x-team-c: its annotations name a virtual pod whose host name is train-0-x-ml-x-team-c",
        "gpu-1 3 MPS share 0 (20Gi, 30 %) used team-c/server-0 team-c gputenancy.io/mps-20g",
    ];
    for row in expected {
        assert!(found.iter().any(|f| f == row), "{row}\n{found:#?}");
    }
    let attention = report.attention.iter().filter(|line| line.contains("is suspicious")).collect::<Vec<_>>();
    assert!(
        matches!(attention.as_slice(), [one] if one.starts_with("pod team-c/job-1-x-ml-x-team-c is suspicious: its ann")),
        "{attention:?}"
    );
}

#[test]
fn status_of_a_snapshot_keeps_the_names_inside_and_nothing_else_of_the_pods() {
    let cluster = world(&fleet());
    let text = snapshot::to_yaml(&cluster).unwrap();
    assert_eq!(all(&world(&text)), all(&cluster));
    assert!(!text.contains("unrelated"), "{text}");
    let trainer =
        text.split("- apiVersion").find(|item| item.contains("name: trainer-0") && item.contains("kind: Pod"));
    assert!(trainer.is_some_and(|pod| !pod.contains("vcluster.loft.sh")), "a pod of no virtual cluster: {trainer:?}");
}

#[test]
fn status_without_the_right_to_list_pods_shows_host_names() {
    let mut world = world(&fleet());
    world.pods.clear();
    let mut report = all(&world);
    report.not_visible = vec!["pods of namespace team-c: their names in the virtual cluster".into()];
    let text = strip(&render::status(&report, false));
    assert!(text.contains("  team-c/train-0-x-ml-x-team-c  "), "{text}");
    assert!(
        text.ends_with("Not visible to you\n  - pods of namespace team-c: their names in the virtual cluster\n"),
        "{text}"
    );
}

fn of<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

/// A tenant with a virtual cluster: a running, a forged and a waiting pod, and one of the control plane.
fn sources() -> Sources {
    let tenant: GpuTenant = of(json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuTenant", "metadata": {"name": "team-c"},
        "spec": {"namespaces": [{"name": "team-c"}], "gpus": [{"profile": "shared-4", "count": 4}], "virtualCluster": {"version": "0.36.1"}},
        "status": {
            "gpus": [{"profile": "shared-4", "resourceName": "nvidia.com/gpu.shared", "budget": 4, "used": 3, "available": 4, "waiting": 1}],
            "conditions": [{"type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-11-25T08:00:00Z"}],
        },
    }));
    let pod = |host: &str, inside: &str, phase: &str| {
        let mut pod = host_pod(host, inside);
        pod["spec"]["containers"][0]["name"] = "main".into();
        pod["status"]["phase"] = phase.into();
        pod["metadata"]["creationTimestamp"] = "2026-11-25T07:30:00Z".into();
        pod
    };
    let (mut waiting, mut forged) =
        (pod("job-2-x-ml-x-team-c", "job-2", "Pending"), pod("job-3-x-ml-x-team-c", "x", "Pending"));
    for pod in [&mut waiting, &mut forged] {
        pod["spec"]["nodeName"] = Value::Null;
    }
    let control_plane = json!({
        "metadata": {"name": "team-c-0", "namespace": "team-c", "labels": {"app": "vcluster", "release": "team-c"}},
        "spec": {"nodeName": "gpu-1", "containers": [{"name": "syncer"}]}, "status": {"phase": "Running"},
    });
    let running = pod("train-0-x-ml-x-team-c", "train-0", "Running");
    let ended = pod("train-1-x-ml-x-team-c", "train-1", "Succeeded");
    let pods = [running, pod(FORGED, "train-0", "Running"), ended, waiting, forged, control_plane].map(of).into();
    Sources {
        name: "team-c".into(),
        tenant: Some(tenant),
        namespaces: vec![NamespaceObjects { name: "team-c".into(), pods, ..NamespaceObjects::default() }],
        now: "2026-11-25T08:00:00Z".parse().unwrap(),
        ..Sources::default()
    }
}

#[test]
fn tenant_shows_pods_under_their_names_inside() {
    let report: TenantReport = kubectl_gpu::tenant::report(&sources());
    insta::assert_snapshot!(strip(&render::tenant(&report, true)));
    let inside = Inside::Pod { namespace: "ml".into(), name: "job-2".into() };
    let waiting = report.waiting.iter().find(|w| w.object == "Pod/job-2-x-ml-x-team-c").unwrap();
    assert_eq!(waiting.inside, Some(inside));
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!(json["pods"][1]["inside"], json!({"pod": {"namespace": "ml", "name": "train-0"}}));
}

#[test]
fn tenant_without_virtual_cluster_ignores_annotations_of_vcluster() {
    let mut sources = sources();
    sources.tenant.as_mut().unwrap().spec.virtual_cluster = None;
    let report = kubectl_gpu::tenant::report(&sources);
    assert!(report.pods.is_empty() && report.waiting.iter().all(|w| w.inside.is_none()), "{report:?}");
}

#[test]
fn tenant_shows_pods_that_the_quota_refuses_inside() {
    let mut sources = sources();
    let message = "the budget of profile shared-4 is used up: 4 of 4 nvidia.com/gpu.shared are requested by other pods of tenant team-c.";
    let pod =
        |name: &str, since: Option<&str>| json!({"namespace": "ml", "name": name, "since": since, "message": message});
    let pods = [pod("job-7", Some("2026-11-25T07:59:20Z")), pod("job-8", None)];
    let refused = json!([{"profile": "shared-4", "count": 5, "pods": pods}]);
    let status = sources.tenant.as_mut().unwrap().status.as_mut().unwrap();
    status.virtual_cluster = Some(of(json!({"namespace": "team-c", "refused": refused})));
    status.gpus[0].waiting = 6;
    let report = kubectl_gpu::tenant::report(&sources);
    assert_eq!((report.profiles[0].waiting, report.waiting_unnamed), (6, Some(3)));
    let found = report.waiting.iter().find(|w| w.object == "Pod/job-7").unwrap();
    assert_eq!(
        (found.reason.as_str(), found.seconds, found.profiles.as_slice()),
        ("QuotaExceeded", Some(40), &["shared-4".into()][..])
    );
    assert_eq!(found.inside, Some(Inside::Pod { namespace: "ml".into(), name: "job-7".into() }));
    let text = strip(&render::tenant(&report, true));
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains(
            "ml/Pod/job-7 and 1 more like it (first refused 40s ago; in the virtual cluster, no pod on the host)"
        ),
        "{text}"
    );
    assert!(words.contains("no pod on the host) QuotaExceeded: the budget of"), "{text}");
    assert!(words.contains("and 3 more in the virtual cluster that the quota refuses"), "{text}");

    sources.tenant.as_mut().unwrap().spec.virtual_cluster = None;
    let report = kubectl_gpu::tenant::report(&sources);
    assert!(report.waiting.iter().all(|w| w.object != "Pod/job-7") && report.waiting_unnamed.is_none());
}
