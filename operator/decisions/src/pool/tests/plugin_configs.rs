//! Configs and labels for NVIDIA's device plugin, from the first time-slice to the last.

use std::sync::Arc;

use gputenancy_crds::{ChangePhase, GpuNode};

use super::*;
use crate::{
    plugin::{PluginConfig, PluginConfigs},
    pool::decide::{labels::unwanted, plugin_configs::whole_nodes},
};

const LABEL: &str = names::DEVICE_PLUGIN_CONFIG_LABEL;

/// A pool of NVIDIA's plugin with time-slices alone, whose agent knows that the plugin advertises.
fn shared() -> Fleet {
    let mut fleet = fleet(&["p"]);
    fleet.pools[0].spec.profiles = vec!["turns".into()];
    fleet.pools[0].spec.advertiser = Advertiser::NvidiaDevicePlugin;
    edit(&mut fleet, |node| node.spec.advertiser = Advertiser::NvidiaDevicePlugin);
    fleet
}

fn edit(fleet: &mut Fleet, change: impl FnOnce(&mut GpuNode)) {
    change(Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap()));
}

fn key() -> String {
    PluginConfig::TimeSliced { replicas: 4 }.key("p").unwrap()
}

fn publish(fleet: &mut Fleet, decision: &FleetDecision) {
    let write = decision.plugin_configs.as_ref().unwrap();
    assert_eq!(write.repaired, Vec::<String>::new());
    fleet.plugin_configs = PluginConfigs::parse(write.configs.data());
}

fn set_label(fleet: &mut Fleet, value: Option<&str>) {
    let mut node = (*fleet.nodes["n"]).clone();
    let labels = node.metadata.labels.get_or_insert_default();
    labels.remove(LABEL);
    labels.extend(value.map(|value| (LABEL.to_owned(), value.to_owned())));
    fleet.nodes.insert("n".into(), Arc::new(node));
}

fn label(decision: &FleetDecision) -> Option<String> {
    decision.labels.values().find_map(|labels| labels.get(LABEL).cloned())
}

/// A node whose GPUs are time-sliced, with their config published and selected.
fn settled() -> Fleet {
    let mut fleet = shared();
    let begun = at(&fleet, 0, &[]);
    publish_after(&mut fleet, &begun);
    edit(&mut fleet, |node| node.spec.gpus.iter_mut().for_each(|gpu| gpu.change = None));
    set_label(&mut fleet, Some(&key()));
    fleet
}

/// Takes over the specs of a decision and publishes the configs that follow from them.
fn publish_after(fleet: &mut Fleet, decision: &FleetDecision) {
    let spec = decision.nodes.values().next().unwrap().spec.clone().unwrap();
    edit(fleet, |node| node.spec = spec);
    let next = at(fleet, 1, &["n"]);
    publish(fleet, &next);
}

#[test]
fn config_is_published_before_its_label_and_selected_before_the_plugin_restarts() {
    let mut fleet = shared();
    let begun = at(&fleet, 0, &[]);
    let phases: Vec<_> = begun.nodes.values().flat_map(|w| &w.spec.as_ref().unwrap().gpus).map(|g| &g.change).collect();
    assert!(phases.iter().all(|c| c.as_ref().is_some_and(|c| c.phase == ChangePhase::Partitioning)), "{phases:?}");
    assert_eq!(whole_nodes(&fleet, &gputenancy_plan::Plan::default()).len(), 0, "nothing is shared yet");
    let spec = begun.nodes.values().next().unwrap().spec.clone().unwrap();
    edit(&mut fleet, |node| node.spec = spec);
    assert_eq!(whole_nodes(&fleet, &gputenancy_plan::Plan::default()).len(), 1);

    let unpublished = at(&fleet, 1, &["n"]);
    assert_eq!(label(&unpublished), None);
    let configs = unpublished.plugin_configs.as_ref().unwrap().configs.data();
    assert_eq!(configs.keys().map(String::as_str).collect::<Vec<_>>(), ["default", &key()]);
    publish(&mut fleet, &unpublished);

    let published = at(&fleet, 2, &["n"]);
    assert_eq!((label(&published), published.plugin_configs), (Some(key()), None));
    edit(&mut fleet, |node| {
        for change in node.spec.gpus.iter_mut().filter_map(|gpu| gpu.change.as_mut()) {
            (change.phase, change.phase_since) = (ChangePhase::Verifying, Time(Timestamp::from_second(2).unwrap()));
        }
        let status = node.status.as_mut().unwrap();
        status.gpus.iter_mut().for_each(|gpu| gpu.step = gputenancy_crds::AgentStep::Steady);
    });
    let mut node = (*fleet.nodes["n"]).clone();
    node.spec.unschedulable = true;
    fleet.nodes.insert("n".into(), Arc::new(node));
    let restart = |fleet: &Fleet| at(fleet, 30, &[]).nodes.values().find_map(|w| w.plugin.restart);
    assert_eq!(restart(&fleet), None, "the plugin would read its last config");
    set_label(&mut fleet, Some(&key()));
    assert!(restart(&fleet).is_some());
}

#[test]
fn settled_node_is_written_no_more_until_another_client_changes_it() {
    let mut fleet = settled();
    let rest = at(&fleet, 10, &["n"]);
    assert!(rest.plugin_configs.is_none() && label(&rest).is_none_or(|l| l == key()), "{:?}", rest.labels);
    for other in [None, Some("a100-40gb"), Some("p-0123456789abcdef")] {
        set_label(&mut fleet, other);
        assert_eq!(label(&at(&fleet, 10, &["n"])), Some(key()), "{other:?}");
    }
    set_label(&mut fleet, Some(&key()));
    let mut data = fleet.plugin_configs.data().clone();
    data.get_mut(&key()).unwrap().push_str("# edited\n");
    for (change, published) in [("edited", data), ("deleted", BTreeMap::from([("default".to_owned(), String::new())]))]
    {
        fleet.plugin_configs = PluginConfigs::parse(&published);
        let write = at(&fleet, 10, &["n"]).plugin_configs.unwrap();
        assert!(write.repaired.contains(&key()), "{change}: {:?}", write.repaired);
        assert_eq!(write.configs.data()[&key()], PluginConfig::TimeSliced { replicas: 4 }.render(), "{change}");
    }
}

#[test]
fn label_is_removed_when_gpus_are_whole_or_the_node_leaves_and_one_of_an_administrator_stays() {
    let mut fleet = settled();
    edit(&mut fleet, |node| node.spec.gpus.iter_mut().for_each(|gpu| gpu.sharing = None));
    let removed = |fleet: &Fleet| {
        let present = fleet.nodes["n"].labels().clone();
        let decision = at(fleet, 10, &["n"]);
        decision.labels.values().any(|wanted| unwanted(&present, wanted).any(|label| label == LABEL))
    };
    assert!(removed(&fleet));
    let mut left = settled();
    left.pools.clear();
    assert!(!removed(&left), "pods may still use shares, and the plugin would offer their GPUs whole");
    edit(&mut left, |node| node.spec.gpus.clear());
    assert!(removed(&left));
    set_label(&mut left, Some("a100-40gb"));
    assert!(!removed(&left), "{:?}", at(&left, 10, &["n"]).labels);
}

#[test]
fn layout_that_the_plugin_cannot_express_leaves_the_label() {
    let mut fleet = settled();
    edit(&mut fleet, |node| node.spec.gpus[0].sharing = None);
    let decision = at(&fleet, 10, &["n"]);
    assert!(decision.labels.values().all(|l| l.get(LABEL) == Some(&key())), "{:?}", decision.labels);
}
