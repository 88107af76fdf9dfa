//! NVIDIA's labels about MIG devices, as gpu-feature-discovery gives them with the mixed strategy, for nodes where it does not run:
//! its own labels would be older than the layout by up to its interval, and without it there would be none.

use std::collections::BTreeMap;

use gputenancy_crds::{Board, BoardProfile, GpuNodeStatus, names, projection::SlimNode};
use kube::ResourceExt as _;

use crate::label;

/// Label by which gpu-feature-discovery tells when it looked last.
const LOOKED: &str = "nvidia.com/gfd.timestamp";
/// Media and copy engines in the order of `GpuNode.status.boards[].profiles[].engines`.
const ENGINES: [&str; 5] = ["copy", "decoder", "encoder", "jpeg", "ofa"];

/// The labels that a node shall have. `instances`: those [`of`] its instances; `changing`: as they are until the layout has settled.
pub fn labels(node: &SlimNode, instances: &BTreeMap<String, String>, changing: bool) -> BTreeMap<String, String> {
    if node.labels().contains_key(LOOKED) {
        return BTreeMap::new();
    }
    if changing {
        let present = node.labels().iter().filter(|(label, _)| label.starts_with(names::MIG_PREFIX));
        return present.map(|(label, value)| (label.clone(), value.clone())).collect();
    }
    instances.clone()
}

/// Is this label written here, on a node with these labels?
pub fn owns(labels: &BTreeMap<String, String>, label: &str) -> bool {
    label.starts_with(names::MIG_PREFIX) && !labels.contains_key(LOOKED)
}

/// Labels of the instances that exist. Where boards of several kinds offer a profile of one name, its size is told as on the last of them.
pub fn of(status: &GpuNodeStatus) -> BTreeMap<String, String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut kinds: BTreeMap<&str, (&Board, &BoardProfile)> = BTreeMap::new();
    for gpu in &status.gpus {
        let Some(board) = usize::try_from(gpu.board).ok().and_then(|index| status.boards.get(index)) else { continue };
        // shared instances have another resource
        for instance in gpu.instances.iter().filter(|i| i.ci.is_some() && i.device.is_some()) {
            let Some(profile) = board.profiles.iter().find(|p| p.name == instance.profile) else { continue };
            *counts.entry(&profile.name).or_default() += 1;
            kinds.insert(&profile.name, (board, profile));
        }
    }
    kinds
        .into_iter()
        .flat_map(|(name, (board, profile))| of_profile(board, profile, counts.get(name).copied().unwrap_or_default()))
        .collect()
}

fn of_profile(board: &Board, profile: &BoardProfile, count: usize) -> BTreeMap<String, String> {
    let resource = names::mig_resource(&profile.name);
    let mut labels = BTreeMap::new();
    let mut set = |what: &str, value: String| {
        let key = format!("{resource}.{what}");
        // one label that Kubernetes refuses would keep all others of the node from being written
        if label::is_qualified(&key) {
            labels.insert(key, label::value(&value));
        }
    };
    set("count", count.to_string());
    set("product", format!("{}-MIG-{}", board.product, profile.name.replace('+', ".")));
    if let Ok(mib) = profile.memory.mib() {
        set("memory", mib.to_string());
    }
    set("replicas", "1".to_owned());
    set("sharing-strategy", "none".to_owned());
    set("slices.gi", profile.slices.to_string());
    set("slices.ci", profile.slices.to_string());
    for (engine, count) in ENGINES.iter().zip(&profile.engines) {
        set(&format!("engines.{engine}"), count.to_string());
    }
    labels
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn node(labels: &[(&str, &str)]) -> SlimNode {
        let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let mut node = SlimNode::default();
        node.metadata.labels = Some(labels);
        node
    }

    /// Labels of one finished instance.
    fn instances() -> BTreeMap<String, String> {
        let profile = json!({"id": 19, "name": "1g.10gb+me", "slices": 1, "memory": "9728Mi", "size": 1, "starts": [0], "max": 1, "engines": [1, 1, 0, 1, 1]});
        let instance = json!({"start": 0, "profile": "1g.10gb+me", "gi": 1, "ci": 0, "device": {}});
        let half_made = json!({"start": 1, "profile": "1g.10gb+me", "gi": 2, "device": {}});
        let board = json!({"product": "NVIDIA-A100-SXM4-80GB", "memory": "80Gi", "slices": 7, "memorySlices": 8, "profiles": [profile]});
        let gpu = json!({"uuid": "GPU-0", "index": 0, "board": 0, "instances": [instance, half_made]});
        of(&serde_json::from_value(json!({"boards": [board], "gpus": [gpu]})).unwrap())
    }

    #[test]
    fn every_number_of_a_finished_instance_has_its_label() {
        insta::assert_yaml_snapshot!(labels(&node(&[]), &instances(), false));
    }

    #[test]
    fn nvidias_own_discovery_is_left_alone() {
        let node = node(&[(LOOKED, "1"), ("nvidia.com/mig-1g.10gb.count", "7")]);
        let wanted = labels(&node, &instances(), false);
        assert!(wanted.is_empty() && !node.labels().keys().any(|label| owns(node.labels(), label)));
    }

    #[test]
    fn labels_stay_until_a_change_is_over_and_none_outlives_its_instances() {
        let node = node(&[("nvidia.com/mig-1g.10gb.count", "7"), ("nvidia.com/mig.config", "all-1g.10gb")]);
        let during = labels(&node, &instances(), true);
        assert_eq!(during.keys().collect::<Vec<_>>(), ["nvidia.com/mig-1g.10gb.count"]);
        let after = labels(&node, &instances(), false);
        let stale = node.labels().keys().filter(|l| owns(node.labels(), l) && !after.contains_key(*l));
        assert_eq!(stale.collect::<Vec<_>>(), ["nvidia.com/mig-1g.10gb.count"]);
    }

    proptest! {
        #[test]
        fn labels_are_valid_for_any_product_and_profile(
            product in prop_oneof!["NVIDIA-[A-Za-z0-9-]{0,70}", any::<String>()],
            profile in prop_oneof!["[1-8]g[.][0-9]{1,4}gb([+-][a-z]{1,8}([.][a-z]{1,8})?)?", "[a-z.+]{0,70}"],
        ) {
            let known = json!({"id": 19, "name": profile, "slices": 1, "memory": "9728Mi", "size": 1, "starts": [0], "max": 1, "engines": [1]});
            let instance = json!({"start": 0, "profile": profile, "gi": 1, "ci": 0, "device": {}});
            let board = json!({"product": product, "memory": "80Gi", "slices": 7, "memorySlices": 8, "profiles": [known]});
            let gpu = json!({"uuid": "GPU-0", "index": 0, "board": 0, "instances": [instance]});
            for (key, value) in of(&serde_json::from_value(json!({"boards": [board], "gpus": [gpu]})).unwrap()) {
                prop_assert!(label::is_qualified(&key) && label::is_value(&value), "{key}={value}");
            }
        }
    }
}
