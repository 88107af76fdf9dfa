use serde_json::json;

use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

/// A node with one GPU whose change is in this phase since second 100; `listed`: kubelet lists what NVML shows.
fn node(advertiser: &str, phase: Option<&str>, listed: bool) -> GpuNode {
    let layout = json!({"mig": true});
    let change = phase.map(|phase| {
        json!({"phase": phase, "from": layout, "to": layout, "startedAt": at(50), "phaseSince": at(100), "reason": "r"})
    });
    let device = json!({"allocatable": listed});
    serde_json::from_value::<GpuNode>(json!({
        "metadata": {"name": "n", "generation": 3},
        "spec": {"gpus": [{"uuid": "GPU-0", "mig": true, "change": change}], "advertiser": advertiser},
        "status": {"observedGeneration": 3, "gpus": [{
            "uuid": "GPU-0", "index": 0, "board": 0, "instances": [{"start": 0, "profile": "1g.10gb", "gi": 7, "device": device}],
        }]},
    }))
    .unwrap()
}

fn steps(node: &GpuNode, now: i64, unschedulable: bool, mark: Option<i64>) -> PluginDecision {
    let mark = mark.map(|second| at(second).to_string());
    step(&PluginObservation {
        now: at(now),
        node,
        pooled: true,
        unschedulable,
        mark: mark.as_deref(),
        shared: false,
        config: None,
    })
}

const THEIRS: &str = "NvidiaDevicePlugin";

#[test]
fn node_is_cordoned_for_a_change_only_where_nvidias_plugin_advertises() {
    let set = PluginDecision { cordon: Some(CordonAction::Set), ..PluginDecision::default() };
    assert_eq!(steps(&node(THEIRS, Some("Held"), true), 100, false, None), set);
    assert_eq!(steps(&node("Agent", Some("Held"), true), 100, false, None), PluginDecision::default());
    assert_eq!(steps(&node(THEIRS, None, true), 100, false, None), PluginDecision::default());
}

#[test]
fn own_cordon_is_lifted_when_no_change_is_left() {
    for ended in [None, Some("RolledBack"), Some("Stuck")] {
        let node = node(THEIRS, ended, true);
        assert_eq!(steps(&node, 200, true, Some(90)).cordon, Some(CordonAction::Lift), "{ended:?}");
        assert_eq!(steps(&node, 200, true, None), PluginDecision::default(), "an administrator's cordon stays");
        assert_eq!(steps(&node, 200, false, Some(90)).cordon, Some(CordonAction::Unmark));
    }
    assert_eq!(steps(&node(THEIRS, Some("Verifying"), true), 200, true, Some(90)).cordon, None);
    assert_eq!(steps(&node("Agent", Some("Verifying"), true), 200, true, Some(90)).cordon, Some(CordonAction::Lift));
}

#[test]
fn own_cordon_stays_while_another_component_relies_on_it() {
    let mark = at(90).to_string();
    let steps = |phase: Option<&str>, pooled, unschedulable, mark: Option<&str>, shared| {
        let node = node(THEIRS, phase, true);
        step(&PluginObservation { now: at(200), node: &node, pooled, unschedulable, mark, shared, config: None }).cordon
    };
    let ours = Some(mark.as_str());
    for (phase, pooled) in [(None, true), (Some("RolledBack"), true), (Some("Verifying"), false)] {
        assert_eq!(steps(phase, pooled, true, ours, true), None, "{phase:?}");
        assert_eq!(steps(phase, pooled, true, ours, false), Some(CordonAction::Lift), "{phase:?}: it has finished");
        assert_eq!(steps(phase, pooled, false, ours, true), Some(CordonAction::Unmark), "{phase:?}: it has uncordoned");
    }
    assert_eq!(steps(Some("Verifying"), true, false, None, true), Some(CordonAction::Set));
}

#[test]
fn node_that_leaves_its_pool_during_a_change_is_uncordoned() {
    let node = node(THEIRS, Some("Verifying"), false);
    let mark = at(90).to_string();
    let left = PluginObservation {
        now: at(200),
        node: &node,
        pooled: false,
        unschedulable: true,
        mark: Some(&mark),
        shared: false,
        config: None,
    };
    assert_eq!(step(&left), PluginDecision { cordon: Some(CordonAction::Lift), ..PluginDecision::default() });
}

#[test]
fn deleted_pool_loses_its_cordon_and_keeps_an_administrators() {
    let phases =
        ["Noticed", "Held", "Evicting", "Idle", "Partitioning", "Verifying", "RollingBack", "RolledBack", "Stuck"];
    for (advertiser, phase) in
        phases.iter().flat_map(|p| [(THEIRS, Some(*p)), ("Agent", Some(*p))]).chain([(THEIRS, None)])
    {
        let node = node(advertiser, phase, false);
        let mark = at(90).to_string();
        for (unschedulable, mark) in [(true, Some(mark.as_str())), (false, Some(&*mark)), (true, None), (false, None)] {
            let expected = match (unschedulable, mark) {
                (true, Some(_)) => Some(CordonAction::Lift),
                (false, Some(_)) => Some(CordonAction::Unmark),
                _ => None,
            };
            let left = step(&PluginObservation {
                now: at(200),
                node: &node,
                pooled: false,
                unschedulable,
                mark,
                shared: false,
                config: None,
            });
            assert_eq!(
                left,
                PluginDecision { cordon: expected.clone(), ..PluginDecision::default() },
                "{phase:?} {unschedulable} {mark:?}"
            );
            // carried out: only who had cordoned it without us still has
            let (unschedulable, mark) = (unschedulable && mark.is_none(), None);
            let after = step(&PluginObservation {
                now: at(201),
                node: &node,
                pooled: false,
                unschedulable,
                mark,
                shared: false,
                config: None,
            });
            assert_eq!(after, PluginDecision::default(), "{phase:?} {expected:?}");
        }
    }
}

#[test]
fn node_is_closed_only_after_bound_pods_have_arrived() {
    let node = node(THEIRS, Some("Held"), true);
    let mark = at(100).to_string();
    let closed_at = |now, unschedulable, mark| {
        closed(&PluginObservation {
            now: at(now),
            node: &node,
            pooled: true,
            unschedulable,
            mark,
            shared: false,
            config: None,
        })
    };
    assert_eq!(closed_at(104, true, Some(mark.as_str())), Some(false));
    assert_eq!(closed_at(105, true, Some(mark.as_str())), Some(true));
    assert_eq!(closed_at(105, false, Some(mark.as_str())), Some(false));
    assert_eq!(closed_at(100, true, None), Some(true), "an administrator's cordon is old");
    assert_eq!(steps(&node, 104, true, Some(100)).wake, Some(at(105)));
}

#[test]
fn plugin_restarts_after_a_new_layout_and_again_while_its_devices_differ() {
    assert_eq!(steps(&node(THEIRS, Some("Partitioning"), false), 110, true, Some(90)).restart, None);
    assert_eq!(steps(&node(THEIRS, Some("Verifying"), false), 110, true, Some(90)).restart, Some(at(100)));
    assert_eq!(steps(&node(THEIRS, Some("Verifying"), false), 300, true, Some(90)).restart, Some(at(240)));
    let seen = node(THEIRS, Some("Verifying"), true);
    assert_eq!(
        steps(&seen, 300, true, Some(90)).restart,
        Some(at(100)),
        "what has gone is still on the old one's list"
    );
    let mut lagging = node(THEIRS, Some("RollingBack"), false);
    lagging.status.as_mut().unwrap().observed_generation = Some(2);
    assert_eq!(steps(&lagging, 300, true, Some(90)).restart, None);
}

#[test]
fn plugin_pods_of_both_manifests_are_recognized() {
    let labels = |key: &'static str, value: &'static str| move |asked: &str| (asked == key).then(|| value.to_owned());
    assert!(is_plugin(labels("app", "nvidia-device-plugin-daemonset")));
    assert!(is_plugin(labels("app.kubernetes.io/name", "nvidia-device-plugin")));
    assert!(!is_plugin(labels("app", "web")));
}

#[test]
fn drain_goes_on_when_bound_pods_have_landed_whatever_config_is_selected() {
    let mut node = node(THEIRS, Some("Held"), true);
    // no config of the plugin can express it
    node.spec.gpus[0].mig = false;
    node.spec.gpus[0].sharing = Some(serde_json::from_value(json!({"mode": "Mps", "shares": []})).unwrap());
    let mark = at(90).to_string();
    let seen = |now| PluginObservation {
        now: at(now),
        node: &node,
        pooled: true,
        unschedulable: true,
        mark: Some(&mark),
        shared: false,
        config: None,
    };
    assert_eq!((closed(&seen(91)), step(&seen(91)).wake), (Some(false), Some(at(95))));
    assert_eq!((closed(&seen(95)), step(&seen(95)).wake), (Some(true), None));
}
