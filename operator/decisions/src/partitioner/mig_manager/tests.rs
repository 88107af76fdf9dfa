//! Layouts as mig-parted reads them, and single states of the MIG manager.

use std::collections::BTreeMap;

use gputenancy_crds::{GpuNode, MigManagerRun, MigManagerStep, names, reasons};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{
    MigConfig, MigConfigs, RequestDecision, RequestObservation, RequestState, RequestTimeouts, Shape, adopted, base,
    configs, is_ours, step, sweeps, twin,
};

fn read<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

fn layout(instances: &[(i32, &str)]) -> Value {
    let instances: Vec<Value> =
        instances.iter().map(|(start, profile)| json!({"start": start, "profile": profile})).collect();
    json!({"mig": true, "instances": instances})
}

fn off() -> Value {
    json!({"mig": false})
}

fn shape(value: Value) -> Shape {
    Shape::of(&read(value))
}

#[test]
fn configs_render_as_mig_parted_reads_them() {
    let a100 = [
        shape(layout(&[(0, "3g.40gb"), (4, "3g.40gb")])),
        shape(layout(&[(0, "1g.10gb"), (1, "1g.10gb"), (4, "3g.40gb")])),
    ];
    let h100 = [shape(layout(&[(0, "1g.10gb+me"), (1, "1g.10gb"), (2, "2g.20gb")])), shape(off()), shape(off())];
    let a30 = [shape(layout(&[(0, "2g.12gb"), (2, "1g.6gb"), (3, "1g.6gb")])), shape(layout(&[]))];
    let rtx = [shape(layout(&[(0, "1g.24gb-me"), (3, "1g.24gb")]))];
    let mut all = MigConfigs::default();
    for shapes in [&a100[..], &h100, &a30, &rtx] {
        all.add(&MigConfig::new(shapes));
    }
    let text = all.render().unwrap();
    assert_eq!(MigConfigs::parse(&text), all);
    insta::assert_snapshot!(text);
}

#[test]
fn config_name_depends_on_the_content_and_has_a_second_form() {
    let one = MigConfig::new(&[shape(layout(&[(0, "1g.10gb"), (4, "3g.40gb")]))]);
    let moved = MigConfig::new(&[shape(layout(&[(3, "1g.10gb"), (4, "3g.40gb")]))]);
    assert_eq!(one.name(), moved.name(), "placements are not requested");
    assert_ne!(one.name(), MigConfig::new(&[shape(off())]).name());
    let other = twin(&one.name());
    assert!(is_ours(&other) && twin(&other) == one.name() && base(&other) == one.name());
    assert!(other.len() <= 63, "a label's value");
}

/// A node whose GPUs change from these layouts to these, in this phase.
fn node(gpus: &[(Value, Value)], phase: &str, needs_reset: bool) -> GpuNode {
    let time = "1970-01-01T00:00:00Z";
    let spec = |(i, (from, to)): (usize, &(Value, Value))| {
        let change =
            json!({"phase": phase, "from": from, "to": to, "startedAt": time, "phaseSince": time, "reason": "r"});
        let mut spec = json!({"uuid": format!("GPU-{i}"), "change": change, "mig": to["mig"]});
        if let Some(instances) = to.get("instances") {
            spec["instances"] = instances.clone();
        }
        spec
    };
    let state = |(i, (from, _)): (usize, &(Value, Value))| {
        let seen = |i: &Value| json!({"start": i["start"], "profile": i["profile"], "gi": 1, "ci": 0, "device": {}});
        let instances: Vec<Value> =
            from.get("instances").and_then(Value::as_array).into_iter().flatten().map(seen).collect();
        json!({"uuid": format!("GPU-{i}"), "index": i, "pciBusId": format!("{i}"), "board": 0, "mig": {"enabled": from["mig"]}, "instances": instances})
    };
    let board =
        json!({"product": "P", "memory": "80Gi", "slices": 7, "memorySlices": 8, "modeNeedsReset": needs_reset});
    read(json!({
        "metadata": {"name": "n", "generation": 1},
        "spec": {"partitioner": "MigManager", "gpus": gpus.iter().enumerate().map(spec).collect::<Vec<_>>()},
        "status": {"observedGeneration": 1, "boards": [board], "gpus": gpus.iter().enumerate().map(state).collect::<Vec<_>>()},
    }))
}

#[test]
fn mode_change_repartitions_gpus_without_a_change() {
    let (half, small) = (layout(&[(0, "3g.40gb")]), layout(&[(0, "1g.10gb")]));
    let sweep = |gpus: &[(Value, Value)], reset: bool| -> Vec<String> {
        let node = node(gpus, "Partitioning", reset);
        let wanted = |uuid: &str| Shape::of(&node.spec.gpus.iter().find(|g| g.uuid == uuid).unwrap().layout());
        sweeps(&node, |state| wanted(&state.uuid)).into_iter().collect()
    };
    let stays = || (half.clone(), half.clone());
    assert_eq!(sweep(&[(half.clone(), small.clone()), stays()], true), ["GPU-0"]);
    let on = [(off(), small.clone()), stays(), (off(), off())];
    assert_eq!(sweep(&on, false), ["GPU-0", "GPU-1"], "mig-parted clears every GPU with MIG on");
    assert_eq!(sweep(&on, true), ["GPU-0", "GPU-1", "GPU-2"], "and resets all where one needs it");
}

#[test]
fn placements_of_the_mig_manager_are_adopted_and_stay_held() {
    let mut node = node(
        &[(layout(&[(3, "1g.10gb"), (4, "3g.40gb")]), layout(&[(0, "3g.40gb"), (6, "1g.10gb")]))],
        "Partitioning",
        false,
    );
    node.spec.gpus[0].hold = vec![0, 6];
    node.spec.gpus[0].instances[0].resource = Some("example.com/half".into());
    node.spec.gpus[0].change.as_mut().unwrap().to.instances[0].resource = Some("example.com/half".into());
    let adopted = adopted(&node).unwrap();
    let spec = &adopted.spec.gpus[0];
    let places: Vec<_> = spec.instances.iter().map(|i| (i.start, i.profile.as_str(), i.resource.as_deref())).collect();
    assert_eq!(places, [(3, "1g.10gb", None), (4, "3g.40gb", Some("example.com/half"))]);
    assert_eq!(spec.change.as_ref().unwrap().to.instances, spec.instances);
    assert_eq!(spec.hold, [3, 4]);
    assert!(super::adopted(&adopted).is_none());
}

/// One GPU from one half to one small instance, waiting for the MIG manager; requested at second 100.
struct Case {
    node: GpuNode,
    labels: BTreeMap<String, String>,
    published: MigConfigs,
}

impl Case {
    fn new(step: MigManagerStep, state: Option<&str>) -> Self {
        let mut node = node(&[(layout(&[(0, "3g.40gb")]), layout(&[(0, "1g.10gb")]))], "Partitioning", false);
        let mut published = MigConfigs::default();
        for config in configs(&node) {
            published.add(&config);
        }
        let name = MigConfig::new(&[shape(layout(&[(0, "1g.10gb")]))]).name();
        let run =
            json!({"config": name, "step": step, "since": "1970-01-01T00:01:40Z", "published": "1970-01-01T00:00:00Z"});
        node.spec.mig_manager = Some(read(run));
        let mut labels: BTreeMap<String, String> = [(names::MIG_CONFIG_LABEL.to_owned(), name)].into();
        labels.extend(state.map(|s| (names::MIG_STATE_LABEL.to_owned(), s.to_owned())));
        Self { node, labels, published }
    }

    fn at(&self, seconds: i64) -> RequestDecision {
        step(&RequestObservation {
            now: Timestamp::from_second(seconds).unwrap(),
            node: &self.node,
            labels: &self.labels,
            agent_alive: true,
            published: &self.published,
            patience: RequestTimeouts {
                answer: SignedDuration::from_secs(1200),
                config_sync: SignedDuration::from_secs(90),
                notice: SignedDuration::from_secs(20),
            },
        })
    }

    fn run(&self, seconds: i64) -> MigManagerRun {
        self.at(seconds).run.unwrap()
    }
}

#[test]
fn failed_state_counts_once_it_refers_to_the_request() {
    let stale = Case::new(MigManagerStep::Asked, Some("failed"));
    assert_eq!(stale.at(110).run, stale.node.spec.mig_manager, "it may not have noticed the label yet");
    let early = stale.run(125);
    assert_eq!((early.step, early.unanswered), (MigManagerStep::Asked, 0), "it may not know the layout yet");
    assert_ne!(early.config, stale.labels[names::MIG_CONFIG_LABEL], "only another value makes it act");
    assert_eq!(stale.run(151).step, MigManagerStep::GaveUp);
    let known = Case::new(MigManagerStep::Working, Some("failed"));
    assert!(
        matches!(known.at(110).state, RequestState::Failed { reason: reasons::MIG_MANAGER_FAILED, .. }),
        "it was partitioning"
    );
}

#[test]
fn pending_request_is_repeated_and_then_fails() {
    let case = Case::new(MigManagerStep::Asked, Some("pending"));
    assert_eq!(case.run(110).step, MigManagerStep::Working);
    let mut stuck = Case::new(MigManagerStep::Working, Some("pending"));
    assert_eq!(stuck.at(1299).requeue_at.map(Timestamp::as_second), Some(1300));
    let again = stuck.run(1300);
    assert_eq!((again.step, again.unanswered, again.since.0.as_second()), (MigManagerStep::Asked, 1, 1300));
    stuck.node.spec.mig_manager.as_mut().unwrap().unanswered = 1;
    stuck.labels.insert("nvidia.com/gpu.deploy.dcgm".into(), names::PAUSED.into());
    let failed = stuck.at(1300);
    let RequestState::Failed { message: words, .. } = &failed.state else { panic!("{failed:?}") };
    for part in ["node n", names::MIG_STATE_LABEL, "pending", "restart it"] {
        assert!(words.contains(part), "{words}");
    }
    stuck.node.spec.mig_manager = failed.run;
    assert_eq!(stuck.at(1301).unpause.into_iter().collect::<Vec<_>>(), ["nvidia.com/gpu.deploy.dcgm"]);
}

#[test]
fn each_state_of_the_label_has_its_outcome() {
    use MigManagerStep::{Asked, Checking, GaveUp, Working};
    // (state, step before, second, step after, words of what people read)
    let cases = [
        (None, Asked, 110, Asked, "no response yet"),
        (Some("pending"), Asked, 110, Working, "pending"),
        (Some("pending"), Working, 1299, Working, "pending"),
        // the node restarts for a change of the MIG mode
        (Some("rebooting"), Asked, 110, Working, "rebooting"),
        (Some("rebooting"), Working, 1299, Working, "rebooting"),
        (Some("success"), Working, 110, Checking, "success"),
        (Some("failed"), Working, 110, GaveUp, "reports nvidia.com/mig.config.state=failed"),
        // a state of a later version is waited for, and named
        (Some("draining"), Asked, 110, Asked, "draining"),
    ];
    for (state, before, second, after, words) in cases {
        let decision = Case::new(before, state).at(second);
        let message = match &decision.state {
            RequestState::InProgress(message) | RequestState::Failed { message, .. } => message,
            RequestState::Done => panic!("{state:?}"),
        };
        assert!(message.contains(words), "{state:?} in {before:?}: {message}");
        assert_eq!(decision.run.map(|run| run.step), Some(after), "{state:?} in {before:?}");
    }
    // a state that never ends is repeated once, and then says which it stays in
    for state in ["rebooting", "draining"] {
        let mut stays = Case::new(Working, Some(state));
        stays.node.spec.mig_manager.as_mut().unwrap().unanswered = 1;
        let RequestState::Failed { reason, message } = stays.at(1300).state else { panic!("{state}") };
        assert_eq!(reason, reasons::MIG_MANAGER_TIMEOUT);
        assert!(message.contains(&format!("stays {state}")), "{message}");
    }
}

#[test]
fn success_without_the_layout_fails() {
    let stale = Case::new(MigManagerStep::Asked, Some("success")).at(130);
    assert!(matches!(stale.state, RequestState::InProgress(_)), "it may refer to an earlier request: {stale:?}");
    assert_eq!(Case::new(MigManagerStep::Working, Some("success")).run(110).step, MigManagerStep::Checking);
    let lies = Case::new(MigManagerStep::Checking, Some("success")).at(121);
    assert!(
        matches!(&lies.state, RequestState::Failed { reason: reasons::LAYOUT_DIFFERS, message: words } if words.contains("GPU 0 has 1×3g.40gb and not 1×1g.10gb")),
        "{lies:?}"
    );
}

#[test]
fn nothing_is_requested_while_a_process_uses_the_gpu() {
    let mut case = Case::new(MigManagerStep::Publishing, None);
    case.labels.clear();
    assert_eq!(case.run(89).step, MigManagerStep::Publishing, "the layout has not arrived");
    assert_eq!(case.run(90).step, MigManagerStep::Asked);
    let state = &mut case.node.status.as_mut().unwrap().gpus[0];
    state.holders = vec![read(json!({"pid": 42, "command": "python"}))];
    let blocked = case.at(90);
    assert!(
        matches!(&blocked.state, RequestState::InProgress(words) if words.contains("process 42 (python)")),
        "{blocked:?}"
    );
    assert_eq!(blocked.run.unwrap().step, MigManagerStep::Publishing);
}
