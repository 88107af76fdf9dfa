//! Cordons and restarts of NVIDIA's device plugin.

use gputenancy_decisions::plugin::{CordonAction, PluginDecision};

use super::*;

impl World {
    /// A decision about the cordon of a node.
    fn cordon(name: &str, action: CordonAction) -> FleetDecision {
        let plugin = PluginDecision { cordon: Some(action), ..PluginDecision::default() };
        let work = GpuWork { plugin, ..GpuWork::default() };
        FleetDecision { nodes: [(name.into(), work)].into(), ..FleetDecision::default() }
    }

    /// A decision to restart the plugin of a node.
    fn restart(name: &str) -> FleetDecision {
        let plugin = PluginDecision { restart: Some(Timestamp::now()), ..PluginDecision::default() };
        let work = GpuWork { plugin, ..GpuWork::default() };
        FleetDecision { nodes: [(name.into(), work)].into(), ..FleetDecision::default() }
    }
}

#[tokio::test(start_paused = true)]
async fn restart_of_the_plugin_that_was_decided_long_ago_is_decided_again() {
    let mut world = World::new(40);
    for node in 0..32 {
        world.api.rule(format!("/nodes/n-{node:02}").leak(), Some(Rule::Hang));
    }
    let names: Vec<String> = world.fleet.nodes.keys().take(32).cloned().collect();
    world.decide(World::labels(&names.iter().map(String::as_str).collect::<Vec<_>>()));
    world.decide(World::restart("n-39"));
    let mut restarting = world.next().await;
    while restarting.0 != gpu_node("n-39") {
        restarting = world.next().await;
    }
    assert_eq!((restarting, world.seconds()), ((gpu_node("n-39"), None, true), 15));
    assert_eq!(world.api.count("GET", "/pods"), 0, "the plugin's pods are not even looked for");
}

#[tokio::test(start_paused = true)]
async fn cordon_is_set_again_with_backoff_unless_it_has_lasted() {
    use CordonAction::{Lift, Set};
    let mut world = World::new(1);
    let mark = |since: Timestamp| json!({"gputenancy.io/cordoned": since.to_string()});
    let long_ago = Timestamp::now() - Duration::from_secs(90);
    for (action, since, writes) in
        [(Set, None, 1), (Lift, Some(Timestamp::now()), 2), (Set, None, 2), (Lift, Some(long_ago), 3), (Set, None, 4)]
    {
        let annotations = since.map(mark).unwrap_or_default();
        let metadata = json!({"name": "n-00", "resourceVersion": "7", "annotations": annotations});
        let node = Arc::new(read(json!({"metadata": metadata, "spec": {"unschedulable": since.is_some()}})));
        Arc::make_mut(&mut world.fleet).nodes.insert("n-00".into(), node);
        world.decide(World::cordon("n-00", action.clone()));
        assert_eq!(world.next().await, (gpu_node("n-00"), None, false));
        assert_eq!(world.api.count("PATCH", "/nodes/n-00"), writes, "{action:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn cordon_ends_although_its_gpu_node_is_deleted() {
    let mut world = World::new(1);
    Arc::make_mut(&mut world.fleet).gpu_nodes.clear();
    world.decide(World::cordon("n-00", CordonAction::Lift));
    assert_eq!(world.next().await, (gpu_node("n-00"), None, false));
    assert_eq!(world.api.count("PATCH", "/nodes/n-00"), 1);
}
