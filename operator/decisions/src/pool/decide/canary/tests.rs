//! What a canary pod asks for, and what is read from its end.

use gputenancy_crds::{Canary as Rules, DurationText, names, projection::project_pod};
use serde_json::{Value, json};

use super::*;

fn read(status: &Value) -> SlimPod {
    let meta = json!({"name": "c", "namespace": "home", "labels": {names::CANARY_LABEL: "1g.10gb", "app": "x"}});
    let mut pod = serde_json::from_value(json!({"metadata": meta, "status": status})).unwrap();
    project_pod(&mut pod);
    pod
}

fn ended(reason: &str, code: i32, message: &str) -> Value {
    let end = json!({"exitCode": code, "reason": reason, "message": message, "finishedAt": null});
    json!({"phase": "Failed", "containerStatuses": [{"name": "canary", "state": {"terminated": end}}]})
}

#[test]
fn the_pod_gets_one_device_on_one_node_and_no_right() {
    let rules = Rules {
        image: "registry.example.com/vectoradd:1".into(),
        command: vec!["/vectorAdd".into()],
        timeout: DurationText::parse("2m").unwrap(),
    };
    let mut canary = CanaryRequest {
        name: "gputenancy-canary-0".into(),
        device: "1g.10gb+me at 4 of gpu-1 GPU 0".into(),
        profile: Some("1g.10gb+me".into()),
        resource: names::canary_resource(0, 4),
        seconds: 120,
        rules,
    };
    let pod = render(&canary, &"gpu-1".into(), "gputenancy-system").unwrap();
    insta::assert_snapshot!(serde_saphyr::to_string(&pod).unwrap());
    canary.rules.command.clear();
    let default = render(&canary, &"gpu-1".into(), "x").unwrap();
    assert_eq!(default.spec.unwrap().containers[0].command, None, "what the image runs");
}

#[test]
fn only_the_programs_end_speaks_about_the_device() {
    let failed = |words: &str| CanaryOutcome::Failed(words.to_owned());
    assert_eq!(outcome(&read(&json!({"phase": "Succeeded"}))), CanaryOutcome::Passed);
    assert_eq!(outcome(&read(&ended("Error", 3, "no\n device \n"))), failed("exit code 3: no device"));
    assert_eq!(outcome(&read(&ended("OOMKilled", 137, ""))), failed("exit code 137: OOMKilled"));
    let late = |state: Value| {
        let container = json!([{"name": "canary", "state": state}]);
        outcome(&read(
            &json!({"phase": "Failed", "reason": "DeadlineExceeded", "message": "too long", "containerStatuses": container}),
        ))
    };
    for ran in [json!({"running": {}}), json!({"terminated": {"exitCode": 137, "reason": "Error"}})] {
        assert_eq!(late(ran), failed("it did not end; DeadlineExceeded: too long"));
    }
    let waits = json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}});
    for never in [waits, json!({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}})] {
        let CanaryOutcome::Inconclusive(why) = late(never.clone()) else { panic!("{never}") };
        assert!(why.starts_with("it did not start in time; "), "{why}");
        assert!(never["waiting"].is_null() || why.contains("ImagePullBackOff) no such image"), "{why}");
    }
    for reason in ["UnexpectedAdmissionError", "Evicted", "NodeShutdown"] {
        let mut status = ended("Error", 137, "");
        status.as_object_mut().unwrap().insert("reason".into(), json!(reason));
        assert!(
            matches!(outcome(&read(&status)), CanaryOutcome::Inconclusive(why) if why.starts_with(reason)),
            "{reason}"
        );
    }
    assert!(matches!(outcome(&read(&ended("ContainerStatusUnknown", 137, ""))), CanaryOutcome::Inconclusive(_)));
    assert!(matches!(outcome(&read(&json!({"phase": "Failed"}))), CanaryOutcome::Inconclusive(_)));
}

#[test]
fn one_that_has_not_ended_says_what_it_waits_for() {
    let waiting = json!({"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}});
    let pulling = json!({"phase": "Pending", "containerStatuses": [{"state": waiting}]});
    assert_eq!(outcome(&read(&pulling)), CanaryOutcome::Pending("it starts (ImagePullBackOff) no such image".into()));
    let nowhere = json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}]});
    assert_eq!(outcome(&read(&nowhere)), CanaryOutcome::Pending("it is not scheduled: 0/3 nodes".into()));
}

#[test]
fn last_words_are_cut_at_the_front() {
    let long = format!("{} the end", "x".repeat(1000));
    let CanaryOutcome::Failed(words) = outcome(&read(&ended("Error", 1, &long))) else {
        panic!("a program that failed")
    };
    assert!(
        words.starts_with("exit code 1: …x") && words.ends_with("the end") && words.chars().count() < 430,
        "{words}"
    );
}

#[test]
fn nothing_more_is_kept_of_other_pods() {
    let meta = json!({"name": "p", "namespace": "team", "labels": {"app": "x"}});
    let mut pod: SlimPod = serde_json::from_value(json!({"metadata": meta, "status": ended("Error", 1, "x")})).unwrap();
    project_pod(&mut pod);
    assert!(pod.metadata.labels.is_none() && pod.status.container_statuses.is_empty());
    assert_eq!(pod.status.phase, "Failed");
}
