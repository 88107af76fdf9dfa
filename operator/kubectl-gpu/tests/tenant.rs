//! `tenant`, for a platform engineer and for a member of the team.

use gputenancy_crds::{GpuGrant, GpuProfile, GpuTenant};
use kubectl_gpu::{
    render,
    tenant::{NamespaceObjects, Sources, TenantReport, report},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

const MIG: &str = "requests.nvidia.com/mig-1g.10gb";

fn of<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-11-01T08:00:00Z"})
}

fn tenant() -> GpuTenant {
    let short = "2 of 3 devices of profile mig-1g available; others are being created";
    of(json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuTenant", "metadata": {"name": "team-a"},
        "spec": {
            "trust": "Internal", "namespaces": [{"name": "a-dev"}, {"name": "a-prod"}],
            "gpus": [{"profile": "mig-1g", "count": 3}, {"profile": "gone", "count": 1}],
            "resources": {"requests.cpu": "8", "requests.memory": "32Gi"},
        },
        "status": {
            "namespaces": [{"name": "a-dev", "phase": "Active"}, {"name": "a-prod", "phase": "Active"}],
            "gpus": [{
                "profile": "mig-1g", "resourceName": "nvidia.com/mig-1g.10gb", "budget": 3, "used": 2, "available": 2, "waiting": 2,
            }],
            "conditions": [
                condition("Ready", "False", "Changing", short), condition("Reconciling", "True", "Changing", short),
                condition("Stalled", "False", "Changing", short), condition("QuotaReady", "True", "Enforced", "the quotas add up"),
                condition("CapacityReady", "False", "Changing", short),
            ],
        },
    }))
}

fn profile() -> GpuProfile {
    of(json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuProfile", "metadata": {"name": "mig-1g"},
        "spec": {
            "device": {"mig": {"profile": "1g.10gb"}},
            "support": {"expected": "One seventh of the board's compute.", "incident": "Another tenant's work changes your memory."},
        },
    }))
}

fn grant() -> GpuGrant {
    of(json!({
        "apiVersion": "gputenancy.io/v1alpha1", "kind": "GpuGrant", "metadata": {"name": "grant"},
        "spec": {
            "tenant": "team-a", "resources": {"nvidia.com/mig-1g.10gb": 3},
            "profiles": [{
                "name": "mig-1g", "resourceName": "nvidia.com/mig-1g.10gb", "budget": 3,
                "expected": "One seventh of the board's compute.", "incident": "Another tenant's work changes your memory.",
            }],
        },
    }))
}

fn place(name: &str, lower: &str, force: &str, used: &str) -> NamespaceObjects {
    let quota = json!({
        "metadata": {"name": "gputenancy", "namespace": name},
        "spec": {"hard": {MIG: lower, "requests.nvidia.com/gpu": "0", "requests.cpu": "4", "requests.memory": "16Gi"}},
        "status": {
            "hard": {MIG: force, "requests.nvidia.com/gpu": "0", "requests.cpu": "4", "requests.memory": "16Gi"},
            "used": {MIG: used, "requests.cpu": "1500m", "requests.memory": "1536Mi"},
        },
    });
    NamespaceObjects { name: name.into(), grant: Some(grant()), quota: Some(of(quota)), ..NamespaceObjects::default() }
}

fn refusal(name: &str, uid: &str, at: &str, words: &str) -> Value {
    json!({
        "metadata": {"name": format!("{name}.{at}")}, "reason": "FailedCreate", "type": "Warning", "lastTimestamp": at,
        "involvedObject": {"kind": "ReplicaSet", "name": name, "uid": uid}, "message": words,
    })
}

fn quota_words(pod: &str) -> String {
    format!(
        "Error creating: pods \"{pod}\" is forbidden: exceeded quota: gputenancy, requested: {MIG}=1, used: {MIG}=2, limited: {MIG}=2"
    )
}

/// Two namespaces: in one a controller is refused, in the other a pod finds no node and one cannot get its image.
fn seen() -> Sources {
    let (mut dev, mut prod) = (place("a-dev", "2", "3", "2"), place("a-prod", "1", "1", "0"));
    dev.events = [
        refusal("web-1", "u-1", "2026-11-01T11:00:00Z", &quota_words("web-1-old")),
        refusal("web-1", "u-1", "2026-11-01T11:58:00Z", &quota_words("web-1-new")),
        refusal("served", "u-2", "2026-11-01T11:59:00Z", &quota_words("served-x")),
        refusal(
            "rude",
            "u-3",
            "2026-11-01T11:59:30Z",
            "Error creating: pods \"rude-x\" is forbidden: spec.nodeName would pass by the scheduler",
        ),
    ]
    .map(of)
    .into();
    dev.controllers = [("u-1".to_owned(), true), ("u-2".to_owned(), false), ("u-3".to_owned(), true)].into();
    let made = |name: &str, status: Value| {
        of(json!({
            "metadata": {"name": name, "creationTimestamp": "2026-11-01T11:30:00Z"},
            "spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/mig-1g.10gb": "1"}}}]},
            "status": status,
        }))
    };
    let nowhere = json!({"phase": "Pending", "conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/3 nodes are available: 3 Insufficient nvidia.com/mig-1g.10gb.",
    }]});
    let pulling = json!({"phase": "Pending", "containerStatuses": [{
        "name": "c", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image \"x\""}},
    }]});
    prod.pods = vec![made("train-0", nowhere), made("train-1", pulling), made("train-2", json!({"phase": "Running"}))];
    Sources {
        name: "team-a".into(),
        tenant: Some(tenant()),
        namespaces: vec![dev, prod],
        profiles: vec![profile()],
        hidden: Vec::new(),
        now: "2026-11-01T12:00:00Z".parse().unwrap(),
    }
}

/// The same as visible to a member of the team with one namespace.
fn seen_by_the_team() -> Sources {
    let mut seen = seen();
    seen.tenant = None;
    seen.profiles.clear();
    seen.namespaces.retain(|p| p.name == "a-dev");
    seen.hidden = vec!["GpuTenant team-a: trust and conditions".into(), "GpuProfiles mig-1g: isolation".into()];
    seen
}

fn plain(report: &TenantReport) -> String {
    // the stream that is no terminal takes colours away
    anstream::adapter::strip_str(&render::tenant(report, true)).to_string()
}

#[test]
fn tenant_for_a_platform_engineer_shows_everything() {
    let report = report(&seen());
    insta::assert_snapshot!(plain(&report));
    insta::assert_json_snapshot!("tenant_as_json", report);
}

#[test]
fn tenant_for_a_team_member_shows_own_namespaces() {
    insta::assert_snapshot!(plain(&report(&seen_by_the_team())));
}

#[test]
fn limits_of_other_resources_are_one_line_unless_they_are_asked_for() {
    let shown = anstream::adapter::strip_str(&render::tenant(&report(&seen()), false)).to_string();
    let limits = shown.split("Other limits\n").nth(1).unwrap().lines().next().unwrap().to_owned();
    assert!(limits.contains("(--limits lists them)"), "{limits}");
    assert!(!shown.contains("requests.memory  "), "{shown}");
}

#[test]
fn limits_that_are_not_used_are_listed_with_their_budget() {
    let mut seen = seen();
    for place in &mut seen.namespaces {
        place.quota.as_mut().unwrap().spec.hard.insert("services.nodeports".into(), of(json!("2")));
    }
    let shown = plain(&report(&seen));
    let rows: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(rows.contains(&vec!["services.nodeports", "4", "0"]), "{shown}");
    assert!(rows.contains(&vec!["requests.cpu", "8", "3"]), "{shown}");
}

#[test]
fn waiting_shows_the_last_refusal_of_short_controllers() {
    let report = report(&seen());
    let refused: Vec<_> = report.waiting.iter().filter(|w| w.object.starts_with("ReplicaSet/")).collect();
    let found: Vec<_> = refused.iter().map(|w| (w.object.as_str(), w.seconds, w.reason.as_str())).collect();
    assert_eq!(found, [("ReplicaSet/web-1", Some(120), "QuotaExceeded"), ("ReplicaSet/rude", Some(30), "Refused")]);
    assert_eq!(refused[0].profiles, ["mig-1g"]);
    assert!(refused[1].profiles.is_empty());
}

#[test]
fn limit_is_the_larger_of_spec_and_enforced_quota() {
    let report = report(&seen());
    let limits: Vec<_> = report.profiles[0].namespaces.iter().map(|s| s.limit.as_str()).collect();
    assert_eq!(limits, ["3", "1"]);
}

#[test]
fn tenant_with_a_cap_shows_the_weight_of_each_device() {
    let mut seen = seen();
    let tenant = seen.tenant.as_mut().unwrap();
    tenant.spec.gpu_equivalents = Some("0.5".into());
    let status = tenant.status.as_mut().unwrap();
    status.gpus[0].share = Some("1/8".into());
    status.equivalents = Some(of(json!({"used": "0.25", "cap": "0.5"})));
    let shown = plain(&report(&seen));
    let expected = "  in total 0.25 of 0.5 whole GPUs; a device counts as: mig-1g 1/8\n";
    assert!(shown.contains(expected), "{shown}");
    seen.tenant.as_mut().unwrap().status = None;
    let shown = plain(&report(&seen));
    assert!(shown.contains("  in total ? of 0.5 whole GPUs\n"), "{shown}");
}

#[test]
fn tenant_with_a_queue_shows_what_is_borrowed_and_lent_and_its_jobs() {
    let mut seen = seen();
    let report_of = |seen: &Sources| serde_json::to_value(report(seen)).unwrap();
    let without = report_of(&seen);
    assert!(without.get("queue").is_none() && without["profiles"][0].get("borrowed").is_none(), "{without}");
    let status = seen.tenant.as_mut().unwrap().status.as_mut().unwrap();
    status.queue = Some(of(json!({"waiting": 0, "admitted": 0})));
    assert_eq!(report_of(&seen), without, "an empty queue");

    let status = seen.tenant.as_mut().unwrap().status.as_mut().unwrap();
    (status.gpus[0].borrowed, status.queue) = (2, Some(of(json!({"waiting": 1, "admitted": 4}))));
    let with = report_of(&seen);
    assert_eq!(with["queue"], json!({"waiting": 1, "admitted": 4}));
    assert_eq!((&with["profiles"][0]["borrowed"], with["profiles"][0].get("lent")), (&json!(2), None));
    let shown = plain(&report(&seen));
    let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let table: Vec<_> = shown.lines().skip_while(|line| *line != "GPUs").skip(1).take(2).map(cells).collect();
    let header = ["PROFILE", "BUDGET", "USED", "BORROWED", "LENT", "AVAILABLE", "WAITING", "RESOURCE"];
    assert_eq!(table, [&header[..], &["mig-1g", "3", "2", "2", "0", "2", "2", "nvidia.com/mig-1g.10gb"]]);
    assert!(shown.contains("\n  in the queue: 1 job waiting, 4 admitted\n"), "{shown}");
}

#[test]
fn memory_is_summed_over_namespaces() {
    let report = report(&seen());
    let memory = report.resources.iter().find(|r| r.resource == "requests.memory").unwrap();
    assert_eq!((memory.used.as_str(), memory.budget.as_deref()), ("3Gi", Some("32Gi")));
    assert!(report.resources.iter().all(|r| !r.resource.contains("nvidia.com")));
}

#[test]
fn amounts_are_written_as_the_resource_is_counted() {
    let mut seen = seen();
    let quota = seen.namespaces[0].quota.as_mut().unwrap();
    for (key, amount) in [
        ("gold.storageclass.storage.k8s.io/persistentvolumeclaims", "1024"),
        ("gold.storageclass.storage.k8s.io/requests.storage", "1024Gi"),
        ("hugepages-2Mi", "4Gi"),
        ("pods", "5000"),
    ] {
        quota.spec.hard.insert(key.into(), of(json!(amount)));
    }
    let report = report(&seen);
    let limit = |key: &str| {
        let resource = report.resources.iter().find(|r| r.resource == key).unwrap();
        resource.budget.clone().unwrap()
    };
    assert_eq!(limit("gold.storageclass.storage.k8s.io/persistentvolumeclaims"), "1024");
    assert_eq!(limit("gold.storageclass.storage.k8s.io/requests.storage"), "1Ti");
    assert_eq!(limit("hugepages-2Mi"), "4Gi");
}

/// A team can write as many events as it likes.
#[test]
fn waiting_of_many_events_is_cut_with_their_number() {
    let mut seen = seen();
    let first = serde_json::to_value(&seen.namespaces[0].events[0]).unwrap();
    seen.namespaces[0].events = (0..3_000)
        .map(|number| {
            let mut event = first.clone();
            event["metadata"]["name"] = json!(format!("e-{number}"));
            event["regarding"] = json!({"kind": format!("Kind{number}"), "name": "x", "uid": format!("u-{number}")});
            of(event)
        })
        .collect();
    let shown = plain(&report(&seen));
    let cut = shown.lines().find(|line| line.contains("others: -o json has all")).unwrap();
    assert!(cut.contains("and 29"), "{cut}");
    assert!(shown.lines().count() < 300, "{}", shown.lines().count());
}

#[test]
fn budget_of_a_default_limit_is_the_sum_of_quotas() {
    let mut seen = seen();
    for (place, most) in seen.namespaces.iter_mut().zip(["1", "3"]) {
        place.quota.as_mut().unwrap().spec.hard.insert("services.nodeports".into(), of(json!(most)));
    }
    let budget = |seen: &Sources| {
        let resources = report(seen).resources;
        resources.into_iter().find(|r| r.resource == "services.nodeports").unwrap().budget
    };
    assert_eq!(budget(&seen).as_deref(), Some("4"));
    seen.tenant = None;
    assert_eq!(budget(&seen), None, "namespaces may be hidden");
}
