//! An operator that was rolled back, and reads what a newer release has written.

use super::*;

/// The node's first GPU as a newer release shares it, read as this release reads it.
fn shared_by_a_newer_release(fleet: &mut Fleet) {
    let node = Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap());
    let mut spec = serde_json::to_value(&node.spec).unwrap();
    spec["gpus"][0]["sharing"] =
        json!({"mode": "Quanta", "shares": [{"resource": "x.io/quantum", "numbers": [0, 1], "quanta": 7}]});
    node.spec = read(spec);
}

#[test]
fn node_with_a_mode_of_a_newer_release_gets_no_write_and_is_named() {
    let mut fleet = settled();
    shared_by_a_newer_release(&mut fleet);
    // a change that would be carried out on any other node
    fleet.profiles[0].spec.resource_name = Some("gputenancy.io/gpu".into());
    let found = at(&fleet, 200, &[]);
    assert!(found.nodes.is_empty(), "{:?}", found.nodes);
    let (status, reason, message) = condition_of(&found, "ForeignPartitioner");
    assert_eq!((status.as_str(), reason.as_str()), ("True", "Found"));
    for part in ["node n ", "a newer release of this operator", "sharing.mode", "install the newer release again"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    carry_out(&mut fleet, &found);
    let rest = at(&fleet, 100_000, &[]);
    assert!(rest.nodes.is_empty() && rest.labels.is_empty() && rest.pools.is_empty(), "{rest:?}");
}
