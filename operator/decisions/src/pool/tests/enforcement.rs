//! Pools that demand a minimum of the limits of shares.

use gputenancy_crds::{Enforcement, Isolation, MemoryScrub, NodeEnforcement, ShareMinimum, UnscrubbedMemory};

use super::*;

/// The agent reports what limits time-slices.
fn report(fleet: &mut Fleet, time_slice: Isolation) {
    let reason = (time_slice == Isolation::None).then(|| "limits are off: switch them on".to_owned());
    let means = NodeEnforcement { time_slice, reason, ..NodeEnforcement::default() };
    Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap()).status.as_mut().unwrap().enforcement = Some(means);
}

/// A pool with whole GPUs and time-slices that demands this minimum, on a node whose agent limits nothing.
fn demanding(minimum: Isolation) -> Fleet {
    let mut fleet = fleet(&["p"]);
    fleet.pools[0].spec.profiles.push("turns".into());
    fleet.pools[0].spec.enforcement.minimum = minimum;
    report(&mut fleet, Isolation::None);
    for second in 0..20 {
        let pass = at(&fleet, second, &[]);
        carry_out(&mut fleet, &pass);
    }
    fleet
}

fn conditions(fleet: &Fleet, type_: &str) -> Option<(String, String, String)> {
    let conditions = fleet.pools[0].status.clone().unwrap().conditions;
    conditions.into_iter().find(|c| c.type_ == type_).map(|c| (c.status, c.reason, c.message))
}

#[test]
fn pool_names_nodes_that_are_too_weak_until_they_are_strong_enough() {
    let mut fleet = demanding(Isolation::Software);
    let (status, reason, message) = conditions(&fleet, "EnforcementMet").unwrap();
    assert_eq!((status.as_str(), reason.as_str()), ("False", "EnforcementTooWeak"));
    for part in ["profile turns", "None on n (limits are off: switch them on)", "lower the minimum"] {
        assert!(message.contains(part), "{message}");
    }
    let (status, reason, _) = conditions(&fleet, "Ready").unwrap();
    assert_eq!((status.as_str(), reason.as_str()), ("False", "EnforcementTooWeak"));
    assert_eq!(fleet.gpu_nodes["n"].spec.gpus.len(), 2, "whole GPUs are offered all the same");
    let rest = at(&fleet, 1000, &[]);
    assert!(rest.nodes.is_empty() && rest.pools.is_empty() && rest.labels.is_empty(), "{rest:?}");
    report(&mut fleet, Isolation::Software);
    let pass = at(&fleet, 1001, &[]);
    carry_out(&mut fleet, &pass);
    assert_eq!(conditions(&fleet, "EnforcementMet").unwrap().1, "MinimumMet");
    assert_eq!(conditions(&fleet, "Ready").unwrap().1, "Ready");
}

#[test]
fn pool_without_a_minimum_has_no_such_condition() {
    let fleet = demanding(Isolation::None);
    assert_eq!(conditions(&fleet, "EnforcementMet"), None);
    assert_eq!(conditions(&fleet, "Ready").unwrap().1, "Ready");
}

#[test]
fn minimum_of_the_pool_reaches_the_agent_and_leaves_with_the_pool() {
    let mut fleet = demanding(Isolation::Software);
    let spec = |fleet: &Fleet| fleet.gpu_nodes["n"].spec.enforcement;
    assert_eq!(spec(&fleet), ShareMinimum { minimum: Isolation::Software, ..ShareMinimum::default() });
    let mut second = fleet.pools[0].clone();
    second.metadata.name = Some("q".into());
    second.spec.enforcement = Enforcement::default();
    fleet.pools.push(second);
    let pass = at(&fleet, 100, &[]);
    carry_out(&mut fleet, &pass);
    assert_eq!(spec(&fleet).minimum, Isolation::Software, "an overlap of pools changes nothing");
    fleet.pools.pop();
    fleet.pools[0].spec.enforcement.minimum = Isolation::Server;
    let pass = at(&fleet, 200, &[]);
    carry_out(&mut fleet, &pass);
    assert_eq!(spec(&fleet).minimum, Isolation::Server);
    fleet.pools.clear();
    let pass = at(&fleet, 300, &[]);
    carry_out(&mut fleet, &pass);
    assert_eq!(spec(&fleet), ShareMinimum::default());
}

#[test]
fn acceptance_of_unscrubbed_memory_reaches_agents_that_report_it() {
    let mut fleet = demanding(Isolation::None);
    fleet.pools[0].spec.enforcement.unscrubbed_memory = UnscrubbedMemory::Accept;
    let spec = |fleet: &Fleet| fleet.gpu_nodes["n"].spec.enforcement;
    let pass = at(&fleet, 1000, &[]);
    carry_out(&mut fleet, &pass);
    assert_eq!(spec(&fleet), ShareMinimum::default(), "an agent of an earlier release does not know the field");
    Arc::make_mut(fleet.gpu_nodes.get_mut("n").unwrap()).status.as_mut().unwrap().memory_scrub = Some(MemoryScrub::Off);
    let pass = at(&fleet, 1001, &[]);
    carry_out(&mut fleet, &pass);
    assert_eq!(spec(&fleet).unscrubbed_memory, UnscrubbedMemory::Accept);
}
